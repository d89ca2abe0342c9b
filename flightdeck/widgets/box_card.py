"""A box as a card, as one row, or as an opened row. Pure: a scene and a size in, lines and click targets out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from rich.cells import cell_len

from flightdeck.model import units
from flightdeck.model.fleet import Box, Lane
from flightdeck.model.metrics import BY_KEY
from flightdeck.widgets.box_row import STATE_TONES, hardware, one_row, state_word
from flightdeck.widgets.job_list import job_rows
from flightdeck.widgets.lane_row import exit_row, lane_row, model_row, room_for_words
from flightdeck.widgets.lines import Line, Row, faded, fit
from flightdeck.widgets.meter import cpu_row, gpu_rows, memory_row
from flightdeck.widgets.scene import Cursor, Scene, Shape
from flightdeck.widgets.throttle_strip import strip_row, sums_row
from flightdeck.widgets.trace import LABEL_CELLS, LABEL_WIDE, look_at, rule_row, trace_rows, wanted_traces


@dataclass
class Drawn:
    """Lines of equal width, and what a click on a line means."""

    lines: list[Line] = field(default_factory=list)
    targets: dict[int, Cursor] = field(default_factory=dict)

    def put(self, line: Line, target: Cursor | None = None) -> None:
        if target is not None:
            self.targets[len(self.lines)] = target
        self.lines.append(line)


OPEN_TRACE_MAX = 7  # rows of a trace in an opened box: what room there is goes to the hour


def card(scene: Scene, box: Box, width: int, height: int) -> Drawn:
    """The card of a box: frame, meters, lanes, jobs, traces, throttle; what does not fit is left out by importance."""
    g = scene.glyphs
    focused = scene.cursor.box == box.raw
    tone = "focus" if focused else "frame"
    inner = max(0, width - 4)
    drawn = Drawn()
    drawn.put(_title(scene, box, width, tone), Cursor(box.raw))
    body = _body(scene, box, inner, max(0, height - 2))
    left, right, here = (g.sides[0] + " ", tone), (" " + g.sides[1], tone), Cursor(box.raw)
    for index, line in enumerate(body.lines):
        drawn.put([left, *line, right], body.targets.get(index, here))
    drawn.put([(g.bottom[0], tone), (g.bottom[1] * max(0, width - 2), tone), (g.bottom[2], tone)])
    return drawn


def opened(scene: Scene, box: Box, width: int, height: int) -> Drawn:
    """The focused box below its row: lanes, jobs, traces side by side, throttle."""
    drawn = Drawn()
    drawn.put(one_row(scene, box, width), Cursor(box.raw))
    body = _opened_body(scene, box, max(10, width - 4), height - 1)
    for index, line in enumerate(body.lines):
        drawn.put([("  ", "text"), *line, ("  ", "text")], body.targets.get(index, Cursor(box.raw)))
    return drawn


def _title(scene: Scene, box: Box, width: int, tone: str) -> Line:
    g, deck = scene.glyphs, scene.deck
    state = deck.box_state(box)
    left, line, right = g.top
    row = Row(width).add(left + line, tone).add(" ")
    row.add(g.up, STATE_TONES[state]).add(" ").add(box.name, "bright").add(" ")
    if state != "up":
        word, word_tone = state_word(deck, box)
        row.add(word, f"{word_tone}+b").add(" ")
    if box.simulated:
        row.add("simulated", "cyan").add(" ")
    sample = deck.history(box).latest
    load = units.number(sample.load1, 1) if sample is not None and state in ("up", "late") else units.NA
    tail = f" load {load}" + (f" / {box.cores} cores " if box.cores else " ")
    if row.used + len(tail) + 3 <= width:
        row.add(line * (width - row.used - len(tail) - 2), tone).add(tail, "dim")
    return row.add(line * (width - row.used - 1), tone).add(right, tone).done()


def _about(scene: Scene, box: Box, width: int) -> Line:
    about = box.description
    if box.simulated:  # the title says so
        about = about.removeprefix("simulated").lstrip(" ,;:-\u00b7")
    parts = [hardware(box), about if about != box.name else "", f"driver {box.driver}" if box.driver else ""]
    parts = [part for part in parts if part] or ["nothing known about this box yet"]
    seen = " " + _seen(scene.deck.sample_age(box))
    row = Row(width).add(fit(parts[0], min(cell_len(parts[0]), width - len(seen))), "dim")
    for part in parts[1:]:
        if row.used + 2 + cell_len(part) + len(seen) <= width:
            row.add(f"  {part}", "dim")
    late = scene.deck.box_state(box) != "up"
    return row.right((seen, "warn" if late else "faint")).done()


def _seen(age: float | None) -> str:
    if age is None:
        return "no samples"
    return "live" if age < 4 else units.ago(age)


def _body(scene: Scene, box: Box, width: int, height: int) -> Drawn:
    """Top block (meters, lanes, jobs) grows down, bottom block (traces, throttle) stands at the same rows in every card."""
    g, deck = scene.glyphs, scene.deck
    history = deck.history(box)
    lanes = scene.lanes(box)
    meters = [
        cpu_row(box, history.latest, width, g),
        *gpu_rows(box, history, deck.now(), width, g, most=_gpu_rows(height)),
        memory_row(box, history.latest, width, g),
    ]
    shape = Shape(len(meters), len(lanes), sum(_wants_detail(lane, scene) for lane in lanes))
    if scene.shape is not None:
        shape = scene.shape.covering(shape)
    plan = plan_card(min(height, scene.shape_height or height) if scene.shape else height, shape)
    bottom = _bottom(scene, box, width, plan)
    top = max(0, height - len(bottom))
    drawn = Drawn()
    if plan.about:
        drawn.put(_about(scene, box, width))
    down = deck.box_state(box) == "down"
    for line in meters:
        drawn.put(faded(line) if down else line)
    if plan.gaps:
        for _ in range(1 + shape.meters - len(meters)):
            drawn.put(Row(width).done())
    _put_lanes(drawn, scene, box, lanes, max(1, top - len(drawn.lines) - 1), plan.details, width)
    if plan.gaps and top - len(drawn.lines) > 2:
        drawn.put(Row(width).done())
    room = top - len(drawn.lines) - (1 if plan.gaps and top - len(drawn.lines) > 2 else 0)
    _put_jobs(drawn, scene, box, room, width)
    del drawn.lines[top:]
    while len(drawn.lines) < top:
        drawn.put(Row(width).done())
    for line in bottom:
        drawn.put(line)
    del drawn.lines[height:]
    return drawn


def _bottom(scene: Scene, box: Box, width: int, plan: Plan) -> list[Line]:
    label = LABEL_CELLS if plan.rows > 1 or width < 54 else LABEL_WIDE
    lines = [rule_row(scene, box, width, label)] if plan.rule else []
    wanted, look = wanted_traces(scene, box), look_at(scene, box)
    if len(plan.traces) < len(_BY_IMPORTANCE) and not any(metric.gpu for metric in wanted):
        wanted = wanted[: len(plan.traces)]
    for metric in wanted:
        if metric.key not in _BY_IMPORTANCE or metric.key in plan.traces:
            lines += trace_rows(scene, box, metric, width, plan.rows, label, look)
    if plan.strip:
        lines.append(strip_row(scene, box, width, label))
    if plan.sums:
        lines.append(sums_row(scene, box, width, label))
    return lines


@dataclass(frozen=True)
class Plan:
    """What a card of some height shows: which traces and how high, and which of the lines that can be left out."""

    traces: frozenset[str]
    rows: int
    rule: bool
    strip: bool
    sums: bool
    about: bool
    gaps: bool
    details: int


_BY_IMPORTANCE = ("gpu_c", "cpu_c", "gpu_w", "cpu_pct", "gpu_mhz", "cpu_mhz", "net_rx")


@lru_cache(maxsize=64)
def plan_card(height: int, shape: Shape) -> Plan:
    """Give ``height`` rows away by importance. Depends on the shape alone, so that neighbouring cards line up."""
    left = height - shape.meters - max(1, shape.lanes) - 1  # one row for jobs
    taken = {"strip": 0, "about": 0, "sums": 0, "rule": 0, "gaps": 0, "details": 0}
    traces: list[str] = []

    def take(name: str, rows: int = 1) -> None:
        nonlocal left
        if 0 < rows <= left:
            taken[name] += rows
            left -= rows

    def trace(count: int) -> None:
        nonlocal left
        while len(traces) < count and left > 0:
            traces.append(_BY_IMPORTANCE[len(traces)])
            left -= 1

    trace(2)
    take("strip")
    trace(3)
    take("about")
    take("sums")
    trace(4)
    left -= 1 if left else 0  # another job
    trace(7)
    take("rule")
    rows = 1
    if left >= 2:
        left -= 2  # two more jobs
        take("gaps", 2)
        for _ in range(shape.details):
            take("details")
    while rows < 3 and len(traces) == len(_BY_IMPORTANCE) and left >= len(traces):
        rows += 1
        left -= len(traces)
    if not taken["gaps"]:
        take("gaps", 2)
    flags = {name: bool(taken[name]) for name in ("rule", "strip", "sums", "about", "gaps")}
    return Plan(frozenset(traces), rows, details=taken["details"], **flags)


def _put_jobs(drawn: Drawn, scene: Scene, box: Box, room: int, width: int) -> None:
    rows = job_rows(
        scene.jobs(box), room, width, scene.glyphs, _chosen_job(scene, box), scene.deck.view_age(), scene.hidden_jobs(box),
        scene.project is None,
    )  # fmt: skip
    for line, job in rows:
        drawn.put(line, Cursor(box.raw, job.queue if job else "", job.id if job else ""))


def _gpu_rows(height: int) -> int:
    """How many GPUs of a box get a meter each in a card of so many inner rows."""
    return 2 if height >= 24 else 1


def shape_of(scene: Scene, boxes: Sequence[Box], height: int) -> Shape:
    """The largest of each part over these boxes, in cards of ``height`` inner rows."""
    shape = Shape(0, 0, 0)
    for box in boxes:
        lanes = scene.lanes(box)
        latest = scene.deck.history(box).latest
        gpus = max(1, len(latest.gpus) if latest is not None else 1)
        gpus = gpus if gpus <= _gpu_rows(height) else 1
        shape = shape.covering(Shape(2 + gpus, len(lanes), sum(_wants_detail(lane, scene) for lane in lanes)))
    return shape


def _wants_detail(lane: Lane, scene: Scene) -> bool:
    return lane.queue == "gpu" or lane.silent(scene.deck.view_age())


def _put_lanes(
    drawn: Drawn, scene: Scene, box: Box, lanes: tuple[Lane, ...], rows: int, details: int, width: int
) -> None:
    if not lanes:
        if rows:
            where = "no lanes on this box" if scene.project is None else "no lanes of this project here"
            drawn.put(Row(width).add(f"  {where}", "faint").done())
        return
    chosen = scene.cursor.lane if scene.cursor.box == box.raw and not scene.cursor.job else None
    since = scene.deck.view_age()
    silent = [part.silent(since) for lane in lanes for part in lane.parts]
    of = (lanes, silent, since if any(silent) else None, rows, details, width, chosen, scene.glyphs)
    kept = scene.lane_lines.get(box.raw)
    if kept is None or kept[0] != of:
        kept = scene.lane_lines[box.raw] = (of, _lane_lines(scene, lanes, since, rows, details, width, chosen))
    for line, queue in kept[1]:
        drawn.put(line, Cursor(box.raw, queue))


def _lane_lines(
    scene: Scene, lanes: tuple[Lane, ...], since: float, rows: int, details: int, width: int, chosen: str | None
) -> list[tuple[Line, str]]:
    """Lines, and the raw queue that each is about."""
    shown = lanes[:rows]
    if chosen and all(lane.raw_queue != chosen for lane in shown) and shown:
        shown = (*shown[:-1], next((lane for lane in lanes if lane.raw_queue == chosen), shown[-1]))
    words = room_for_words(shown, width)
    out = []
    for lane in shown:
        out.append((lane_row(lane, width, scene.glyphs, lane.raw_queue == chosen, since, words), lane.raw_queue))
        if details and (lane.queue == "gpu" or lane.silent(since)):
            details -= 1
            out.append((exit_row(lane, width, since) if lane.silent(since) else model_row(lane, width), lane.raw_queue))
    return out


def _chosen_job(scene: Scene, box: Box) -> str:
    return scene.cursor.job if scene.cursor.box == box.raw else ""


def _opened_body(scene: Scene, box: Box, width: int, height: int) -> Drawn:
    """Lanes and jobs over traces in as many columns as fit, ending with the throttle strip."""
    lanes = scene.lanes(box)
    traces = wanted_traces(scene, box)
    columns = max(1, min(3, width // 36))
    if box.devices and columns > 1:  # fills the last row
        traces += [BY_KEY[key] for key in ("gpu_pct", "net_tx")[: columns * -(-len(traces) // columns) - len(traces)]]
    groups = -(-len(traces) // columns)
    job_count = max(1, len(scene.jobs(box)) + scene.hidden_jobs(box))
    lane_rows = min(max(1, len(lanes)), max(1, height // 3))
    sums = 1 if scene.past(box).throttle_offered else 0
    left = max(0, height - lane_rows - 2 - sums)  # strip, sums and one job
    high = min(2, left // groups)
    shown = groups if high else left
    left -= shown * max(1, high)
    jobs = 1 + min(left, job_count - 1, 3)
    left -= jobs - 1
    details = min(left, sum(_wants_detail(lane, scene) for lane in lanes))
    left -= details
    if high == 2 and left >= groups:
        high, left = 3, left - groups
    more = min(left, job_count - jobs)
    jobs, left = jobs + more, left - more
    while 3 <= high < OPEN_TRACE_MAX and left >= groups:
        high, left = high + 1, left - groups
    gap = 1 if left else 0
    drawn = Drawn()
    _put_lanes(drawn, scene, box, lanes, lane_rows, details, width)
    if gap:
        drawn.put(Row(width).done())
    _put_jobs(drawn, scene, box, jobs, width)
    below = shown * max(1, high) + 1 + sums
    while len(drawn.lines) < height - below:
        drawn.put(Row(width).done())
    cell, look = (width - 2 * (columns - 1)) // columns, look_at(scene, box)
    for group in range(shown):
        row_of = traces[group * columns : (group + 1) * columns]
        parts = [trace_rows(scene, box, metric, cell, max(1, high), look=look) for metric in row_of]
        for index in range(max(1, high)):
            line: Line = []
            for part in parts:
                line += [*([("  ", "text")] if line else []), *part[index]]
            pad = width - len(parts) * cell - 2 * (len(parts) - 1)
            drawn.put([*line, (" " * pad, "text")])
    drawn.put(strip_row(scene, box, width, LABEL_CELLS))
    if sums:
        drawn.put(sums_row(scene, box, width, LABEL_CELLS))
    del drawn.lines[max(0, height) :]
    return drawn
