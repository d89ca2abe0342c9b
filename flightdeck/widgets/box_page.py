"""The page of one box: facts, the chosen GPU, charts over throttling over jobs on one time axis, lanes, named sensors.

Pure: a scene, what the page has read, and a size in; lines and click targets out. Wide, three columns; middling, charts
beside a column of words; narrow, one chart over everything else in short.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len

from engine.telemetry.slow import slow_of
from flightdeck.charts.big import MARGIN
from flightdeck.model import units
from flightdeck.model.fleet import Box
from flightdeck.model.timeline import Timeline
from flightdeck.model.traces import gpu_identity
from flightdeck.widgets import box_charts, gpu_tabs, job_lanes, sensor_list
from flightdeck.widgets.box_charts import BoxView, Wanted
from flightdeck.widgets.box_row import STATE_TONES, state_word
from flightdeck.widgets.box_words import Page, gpus_of, lane_lines, running_lines, words_column
from flightdeck.widgets.lines import Glyphs, Line, Row, Span
from flightdeck.widgets.meter import cpu_limits, device_of
from flightdeck.widgets.scene import Scene
from flightdeck.widgets.throttle_strip import TONES

if TYPE_CHECKING:
    from engine.telemetry.sample import GpuSample

WIDE, MIDDLING = 150, 104
CHART_LEAST, CHART_GOOD = 6, 8  # rows of a chart without its time axis, title included
GOOD_CELLS = (180, 120, 90, 72, 60, 45, 36)  # time axes that a window fills to the last column
AXIS_ROWS = 2
JOBS_LEAST, JOBS_MOST = 3, 12


def chart_cells(width: int) -> int:
    """The characters of the time axis on a page of this width."""
    return max(4, _left_width(width) - MARGIN)


def timeline(scene: Scene, width: int) -> Timeline:
    return Timeline(scene.end(), scene.window.span_s, chart_cells(width))


def box_page(scene: Scene, box: Box, view: BoxView, width: int, height: int) -> Page:
    """Everything, in exactly ``height`` lines of ``width`` cells."""
    page = Page()
    line = timeline(scene, width)
    gpus = gpus_of(scene, box, view)
    if view.gpu not in [name for name, _ in gpus]:
        view.gpu = gpus[0][0] if gpus else ""
    chosen = next((gpu for name, gpu in gpus if name == view.gpu), None)
    page.lines.append(facts_line(scene, box, view, width))
    _gpu_block(page, scene, box, view, gpus, chosen, line, width, height)
    device = device_of(box, chosen) if chosen is not None else None
    cards = box_charts.gpu_wanted(scene, box, view, chosen, device, line, len(gpus))
    hosts = box_charts.host_wanted(scene, box, line)
    room = height - len(page.lines)
    if width >= WIDE:
        _wide(page, scene, box, view, cards, hosts, line, width, room)
    elif width >= MIDDLING:
        _middling(page, scene, box, view, cards + hosts, line, width, room)
    else:
        _narrow(page, scene, box, view, cards + hosts, line, width, room)
    del page.lines[height:]
    page.lines += [Row(width).done() for _ in range(height - len(page.lines))]
    return page


def facts_line(scene: Scene, box: Box, view: BoxView, width: int) -> Line:
    """Name, state, age; what the box is. Facts that do not fit are left out from behind."""
    deck = scene.deck
    state = deck.box_state(box)
    age = deck.sample_age(box)
    row = Row(width).add(f" {scene.glyphs.up} ", STATE_TONES[state]).add(box.name, "bright")
    if box.simulated:
        row.add("  simulated", "cyan")
    if state != "up":
        word, tone = state_word(deck, box)
        row.add(f"  {word}", f"{tone}+b")
    seen = "no samples" if age is None else "live" if age < 4 else f"last sample {units.ago(age)}"
    row.add(f"  {seen}", "dim" if state == "up" else "warn")
    sample = deck.history(box).latest
    load = units.number(sample.load1, 1) if sample is not None and units.known(sample.load1) and state != "down" else ""
    names = [device.name for device in box.devices if device.name]
    cores = f"{box.cores} cores" if box.cores else ""
    parts = [
        box.cpu_model,
        " ".join(part for part in (cores, f"load {load}" if load else "") if part),
        f"{units.gigabytes(box.mem_mb)} G" if box.mem_mb else "",
        f"{len(names)} x {names[0]}" if len(names) > 1 else names[0] if names else "no GPU",
        f"driver {box.driver}" if box.driver else "",
        f"kernel {view.facts.kernel}" if view.facts.kernel else "",
        f"up {units.age(view.sensors.uptime_s)}" if view.sensors.uptime_s is not None else "",
        _about(box),
    ]
    for part in parts:
        if part and row.used + 3 + cell_len(part) <= width:
            row.add("   ").add(part, "dim")
    return row.done()


def _about(box: Box) -> str:
    """What its owner says about it, without what stands there already."""
    about = box.description
    if box.simulated:
        about = about.removeprefix("simulated").lstrip(" ,;:-\u00b7")
    return about if about != box.name else ""


def _gpu_block(
    page: Page, scene: Scene, box: Box, view: BoxView, gpus: list[tuple[str, GpuSample]], chosen: GpuSample | None,
    line: Timeline, width: int, height: int,
) -> None:  # fmt: skip
    """Tabs where there are several, the chosen one's name, figures and throttling."""
    if chosen is None:
        why = "no GPU in this box" if not box.devices else "its GPUs have not been read yet"
        page.lines.append(Row(width).add(" ").add("GPU  n/a  ", "dim").add(why, "faint").done())
        return
    inner = width - 2
    if len(gpus) > 1:
        drawn = gpu_tabs.tabs_line(gpus, view.gpu, inner)
        y = len(page.lines)
        page.tabs = [(y, start + 1, stop + 1, name) for start, stop, name in drawn.places]
        page.lines.append(_inset(drawn.line))
    device = device_of(box, chosen)
    sample = scene.deck.history(box).latest
    memory = (sample.mem_used_mb, sample.mem_total_mb or box.mem_mb) if sample is not None else (None, None)
    before = scene.deck.history(box).gpu_alive.get(gpu_identity(chosen))
    shutdown = view.facts.shutdown_c.get(view.gpu)
    absent = view.sensors.gpu_absent.get(chosen.gpu_index, {})
    old = units.ago(scene.deck.sample_age(box)) if scene.deck.box_state(box) == "down" else ""
    gpu = gpu_tabs.Gpu(
        chosen,
        device,
        absent,
        view.card(),
        shutdown,
        before,
        old,
        box_mem=memory,
        slow=slow_of(sample, chosen),
        named=view.sensors.gpus.get(chosen.gpu_index),
    )
    now, at = scene.end(), scene.at()
    if at is not None:
        used = scene.deck.past(box, line.span_s).at("mem", at, line.column_s)
        gpu = gpu_tabs.at_instant(gpu, line, at, (used[1] if used else None, memory[1]))
        chosen = gpu.now
    page.lines.append(_inset(gpu_tabs.name_line(gpu, now, inner)))
    if chosen.state == "ok":
        rows = 1 if width >= 200 else 2
        packed = gpu_tabs.packed(gpu_tabs.figures(gpu, now), inner, rows if height > 16 else 1)
        page.lines += [_inset(figures) for figures in packed]
    page.lines.append(_inset(gpu_tabs.held_line(gpu, line, inner)))


def _inset(line: Line) -> Line:
    return [(" ", "text"), *line, (" ", "text")]


# -- layouts


def _left_width(width: int) -> int:
    """Of the charts that have throttling and jobs below them."""
    if width >= WIDE:
        return _good(width * 42 // 100)
    return _good(width - 48) if width >= MIDDLING else width


def _middle_width(width: int) -> int:
    """Of the charts beside them; nothing unless the page is wide."""
    return _good(width - _left_width(width) - 4 - max(44, width * 22 // 100)) if width >= WIDE else 0


def _good(most: int) -> int:
    """The widest chart of at most so many cells whose time axis is full."""
    return next((cells + MARGIN for cells in GOOD_CELLS if cells + MARGIN <= most), most)


def _wide(
    page: Page, scene: Scene, box: Box, view: BoxView, cards: list[Wanted], hosts: list[Wanted], line: Timeline,
    width: int, height: int,
) -> None:  # fmt: skip
    left, middle = _left_width(width), _middle_width(width)
    words = width - left - middle - 5  # the last column of the screen stays free
    second = Timeline(line.end, line.span_s, middle - MARGIN)
    right = {wanted.metric.key for wanted in hosts}
    if not cards:  # a box of processors: its own charts take both columns
        half = -(-len(hosts) // 2)
        cards, right = hosts[:half], {wanted.metric.key for wanted in hosts[half:]}
    # On an axis of their own width: other columns than those of the charts at the left.
    hosts = [wanted for wanted in box_charts.host_wanted(scene, box, second) if wanted.metric.key in right]
    jobs = _job_rows(scene, view, line, height)
    stack = _stack(scene, box, view, _turned(cards, view.chart), line, left, height - 1 - jobs)
    stack += _under(scene, view, box, line, left, jobs)
    beside = _stack(scene, box, view, _turned(hosts, view.chart), second, middle, height)
    column = words_column(scene, box, view, words, height)
    _side_by_side(page, [(stack, left), (beside, middle), (column.lines, words)], height)
    _shifted(page, column, len(page.lines) - height, left + middle + 4)


def _middling(
    page: Page, scene: Scene, box: Box, view: BoxView, charts: list[Wanted], line: Timeline, width: int, height: int
) -> None:
    left = _left_width(width)
    words = width - left - 3
    jobs = _job_rows(scene, view, line, height)
    stack = _stack(scene, box, view, _turned(charts, view.chart), line, left, height - 1 - jobs)
    stack += _under(scene, view, box, line, left, jobs)
    column = words_column(scene, box, view, words, height)
    _side_by_side(page, [(stack, left), (column.lines, words)], height)
    _shifted(page, column, len(page.lines) - height, left + 2)


def _narrow(
    page: Page, scene: Scene, box: Box, view: BoxView, charts: list[Wanted], line: Timeline, width: int, height: int
) -> None:
    lanes = max(1, len(scene.lanes(box)))
    running = max(1, len(scene.jobs(box)) + scene.hidden_jobs(box))
    fixed = 1  # the throttle strip
    words = min(lanes, 2 if height < 20 else 4) + min(running, 1 if height < 20 else 3)
    jobs = min(JOBS_LEAST if height < 20 else 6, max(0, height - fixed - words - CHART_LEAST - AXIS_ROWS))
    sensors = 1 if height - fixed - words - jobs > CHART_LEAST + AXIS_ROWS else 0
    chart = max(0, height - fixed - words - jobs - sensors)
    page.lines += _stack(scene, box, view, _turned(charts, view.chart), line, width, chart)
    page.lines += _under(scene, view, box, line, width, jobs)
    lane_lines(page, scene, box, width, min(lanes, 2 if height < 20 else 4), 0)
    running_lines(page, scene, box, width, words - min(lanes, 2 if height < 20 else 4))
    if sensors:
        shown = sensor_list.short_parts(view.sensors, cpu_limits(box))
        page.lines += [_inset(short) for short in gpu_tabs.packed(shown, width - 2, 1)]


def _job_rows(scene: Scene, view: BoxView, line: Timeline, height: int) -> int:
    wanted = job_lanes.wanted_rows(view.jobs, line, scene.project)
    return max(JOBS_LEAST, min(wanted, JOBS_MOST, height // 3))


def _turned(charts: list[Wanted], by: int) -> list[Wanted]:
    at = by % len(charts) if charts else 0
    return charts[at:] + charts[:at]


def _stack(
    scene: Scene, box: Box, view: BoxView, charts: list[Wanted], line: Timeline, width: int, height: int
) -> list[Line]:
    """As many charts as fit below each other, on one time axis; the last one has its ticks."""
    if height <= 0:
        return []
    if not charts:
        text = Row(width).add(" ").add("n/a  ", "dim").add("nothing was measured here in this window", "faint").done()
        return [text, *[Row(width).done() for _ in range(height - 1)]]
    drawn = [wanted for wanted in charts if any(wanted.columns)]
    # What has no reading says why in one line, below what has.
    absent = [wanted for wanted in charts if not any(wanted.columns)]
    del absent[max(0, (height - AXIS_ROWS - CHART_LEAST) // 4) if drawn else height :]
    if not drawn:
        lines = [box_charts.draw(scene, box, view, wanted, line, width, 1, False)[0] for wanted in absent]
        return lines + [Row(width).done() for _ in range(height - len(lines))]
    height -= len(absent)
    least = CHART_GOOD if height >= 30 else CHART_LEAST
    count = max(1, min(len(drawn), (height - AXIS_ROWS) // least))
    base, over = divmod(height - AXIS_ROWS, count)
    lines = []
    for index, wanted in enumerate(drawn[:count]):
        last = index == count - 1
        rows = base + (1 if index < over else 0) + (AXIS_ROWS if last else 0)
        lines += box_charts.draw(scene, box, view, wanted, line, width, min(rows, height - len(lines)), last)
    del lines[height:]
    return lines + [box_charts.draw(scene, box, view, wanted, line, width, 1, False)[0] for wanted in absent]


def _under(scene: Scene, view: BoxView, box: Box, line: Timeline, width: int, jobs: int) -> list[Line]:
    """The throttle strip and the jobs, on the axis of the charts above them."""
    at = scene.at()
    column = line.column(at) if at is not None else -1
    x = MARGIN + line.cell(column) if 0 <= column < line.count else None
    lines = [strip_line(scene, box, view, line, width)]
    lines += job_lanes.job_lines(
        view.jobs, line, MARGIN, width, jobs, scene.glyphs, scene.project, view.more_jobs, view.jobs_note
    )
    if x is None:
        return lines
    strip, *rest = lines  # between them the heading of the jobs stays as it is
    return [
        _crossed(strip, x, scene.glyphs, "focus+r"),
        *rest[:1],
        *(_crossed(each, x, scene.glyphs, "focus+b") for each in rest[1:]),
    ]


def strip_line(scene: Scene, box: Box, view: BoxView, line: Timeline, width: int) -> Line:
    """A letter per character: what held back the chosen GPU; before it was read, what held back the box."""
    row = Row(width).add(" THROT", "text", MARGIN)
    card, past = view.card(), scene.deck.past(box, line.span_s)
    letters = ""
    if card is not None and any(card.held.values()):
        letters = card.letters(line)
    elif past.throttle_offered and past.step_s == line.slot_s:
        first = line.first * line.slots - line.shift % 2 * line.slots
        cells = (line.count + 1) // 2
        letters = "".join(past.throttle.cell(first + cell * 2 * line.slots, 2 * line.slots) for cell in range(cells))
        letters = letters.rjust(line.cells)
    if not letters.strip():
        why = "no GPU in this box" if not box.devices else "no counters, no mask, or nothing read in this window"
        return row.add("n/a  ", "dim").add(why, "faint").done()
    run = ""
    for letter in [*letters, ""]:
        if run and letter != run[0]:
            row.add(run, TONES.get(run[0], "text"))
            run = ""
        run += letter
    return row.done()


def _crossed(line: Line, x: int, g: Glyphs, tone: str) -> Line:
    """The instant that is looked at, as a mark on a line; what stands there stays and takes ``tone``."""
    out: Line = []
    at = 0
    for text, style in line:
        size = cell_len(text)
        if at <= x < at + size and size == len(text):
            here = text[x - at]
            mark: Span = ("⡇" if g.charts == "braille" else "|", "focus") if here == " " else (here, tone)
            out += [(text[: x - at], style), mark, (text[x - at + 1 :], style)]
        else:
            out.append((text, style))
        at += size
    return [span for span in out if span[0]]


def _side_by_side(page: Page, parts: list[tuple[list[Line], int]], height: int) -> None:
    for y in range(height):
        row: Line = []
        for index, (lines, width) in enumerate(parts):
            if index:
                row.append(("  ", "text"))
            row += lines[y] if y < len(lines) else [(" " * width, "text")]
        page.lines.append([*row, (" ", "text")])


def _shifted(page: Page, column: Page, down: int, right: int) -> None:
    """The click targets of a column, where it stands on the page."""
    for y, (x, target) in column.targets.items():
        page.targets[y + down] = (x + right, target)
