"""A trace: label and printed range, the window as a thin min-max line, the value now (or then) and the peak in fixed cells."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from flightdeck.model.axis import Axis, Window, edge_text, lay_out
from flightdeck.model.fleet import Box
from flightdeck.model.metrics import BY_KEY, Metric
from flightdeck.model.slots import slot_of
from flightdeck.model.traces import History
from flightdeck.widgets.lines import Line, Row
from flightdeck.widgets.meter import cpu_limits, gpu_limits
from flightdeck.widgets.scene import Scene
from flightdeck.widgets.trace_picture import picture_of, value_text

VALUE_CELLS = 6  # now
PEAK_CELLS = 6
LABEL_CELLS = 10
LABEL_WIDE = 19  # one-row traces print their range beside the label


def wanted_traces(scene: Scene, box: Box) -> list[Metric]:
    """The traces of a box, most telling first; of CPU and zone temperature the one that exists."""
    rings = scene.deck.history(box).rings
    heat = "zone_c" if rings["cpu_c"].empty() and not rings["zone_c"].empty() else "cpu_c"
    wanted = [BY_KEY[key] for key in ("gpu_c", heat, "gpu_w", "gpu_mhz", "cpu_mhz", "cpu_pct", "net_rx")]
    if not box.devices and rings["gpu_c"].empty() and rings["gpu_w"].empty():
        # The meter says that there is none; its place goes to what tells more about a box of processors.
        return [BY_KEY[key] for key in (heat, "core", "mem", "cpu_mhz", "cpu_pct", "net_tx", "net_rx")]
    return wanted


def trace_cells(width: int, label: int) -> int:
    """How many characters the line itself gets."""
    return max(4, width - label - VALUE_CELLS - PEAK_CELLS)


@dataclass(frozen=True, slots=True)
class Look:
    """What all traces of a box share in one drawing. ``end``: the slot at the right edge; ``at``: the instant that is looked
    at."""

    past: History
    now: History
    end: int
    ended: bool
    at: datetime | None


def look_at(scene: Scene, box: Box) -> Look:
    deck, past = scene.deck, scene.past(box)
    return Look(past, deck.history(box), deck.end_slot(box, past.step_s), deck.box_state(box) == "down", scene.at())


def trace_rows(
    scene: Scene, box: Box, metric: Metric, width: int, rows: int, label: int = LABEL_CELLS, look: Look | None = None
) -> list[Line]:
    """``rows`` (1 to 3) lines of ``width`` cells; a metric without any reading is one line with the reason.

    The same lines as before (not to be changed) where they say the same as before.
    """
    look = look or look_at(scene, box)
    past, ring, cells = look.past, look.past.rings[metric.key], trace_cells(width, label)
    if ring.empty():
        return _nothing(scene, box, metric, width, rows, label)
    key, cache = (box.raw, metric.key, width, rows, label), scene.traces
    axis = lay_out(cells, scene.window.span_s, past.step_s)
    columns = ring.columns(look.end, axis.slots, axis.columns)
    picture = picture_of(cache.pictures.get(key), box, past, metric, columns, axis, rows, scene.glyphs.charts)
    cache.pictures[key] = picture
    last = look.now.rings[metric.key].last
    tone = _tone(box, metric, last)
    pointed = None if look.at is None else _cell(axis, slot_of(look.at, past.step_s), look.end)
    figure, figure_tone = value_text(metric, last), f"{tone}+b"
    if pointed is not None:
        at = scene.reading(box, metric.key)
        figure, figure_tone = ("-", "faint") if at is None else (value_text(metric, at[1]), "info+b")
    elif look.ended:
        figure, figure_tone = "-", "faint"
    end = (cells if picture.end is None else picture.end) if look.ended else None
    line = (picture.dots, picture.printed, "dim" if look.ended else tone, end, picture.limit, pointed)
    figures = (figure, figure_tone, picture.peak)
    before = cache.rows.get(key)
    if before is None or before[0] != line:
        out = [_row(metric, width, label, index, *line, figures) for index in range(rows)]
    elif before[1] != figures:
        named = min(1, rows - 1)
        out = [*before[2][:named], _row(metric, width, label, named, *line, figures), *before[2][named + 1 :]]
    else:
        return before[2]
    cache.rows[key] = (line, figures, out)
    return out


def _row(
    metric: Metric,
    width: int,
    label: int,
    index: int,
    drawn: list[str],
    printed: str,
    tone: str,
    end: int | None,
    limit: tuple[int, str] | None,
    pointed: int | None,
    figures: tuple[str, str, str],
) -> Line:
    """Row ``index`` of a trace."""
    rows = len(drawn)
    named = index == min(1, rows - 1)  # the row of range and figures
    row = Row(width)
    if rows == 1:
        row.add(metric.label, "text", 8).add(printed if label >= LABEL_WIDE else "", "faint", label - 8)
    else:
        heading = metric.label if index == 0 else printed if named else ""
        row.add(heading, "text" if index == 0 else "faint", label)
    mark = limit[1] if limit is not None and limit[0] == index else ""
    _line(row, drawn[index], tone, mark, end if index == rows - 1 else None, pointed)
    if named:
        row.add(figures[0], figures[1], VALUE_CELLS, ">").add(figures[2], "dim", PEAK_CELLS, ">")
    return row.done()


def _nothing(scene: Scene, box: Box, metric: Metric, width: int, rows: int, label: int) -> list[Line]:
    """A line that says why there is no trace."""
    row = Row(width).add(metric.label, "dim", label)
    if scene.window.long and (box.raw, scene.window.span_s) not in scene.deck.pasts:
        row.add(f"reading {scene.window.words}", "faint")
    elif scene.window.long and not scene.deck.history(box).rings[metric.key].empty():
        row.add(f"nothing kept of these {scene.window.words}", "faint")
    else:
        row.add("n/a  ", "dim").add(reason(box, metric), "faint")
    return [row.done(), *[Row(width).done() for _ in range(rows - 1)]]


def scrubbed_cell(scene: Scene, box: Box, axis: Axis) -> int | None:
    """The cell of the instant that is looked at; None: nobody scrubs."""
    at = scene.at()
    if at is None:
        return None
    step_s = scene.past(box).step_s
    return _cell(axis, slot_of(at, step_s), scene.deck.end_slot(box, step_s))


def _cell(axis: Axis, slot: int, end: int) -> int | None:
    column = axis.column_of(slot, end)
    return None if column is None else axis.cell_of(column)


def rule_row(scene: Scene, box: Box, width: int, label: int) -> Line:
    """The heading above the traces: the span of the axis and what the two columns of figures are."""
    at = scene.at()
    figure = "now" if at is None else at.astimezone().strftime("%H:%M")
    return _rule(scene.glyphs.rule, scene.window.span_s, scene.past(box).step_s, width, label, figure)


@lru_cache(maxsize=32)
def _rule(rule: str, span_s: int, step_s: int, width: int, label: int, figure: str) -> Line:
    window, cells = Window(span_s), trace_cells(width, label)
    axis = lay_out(cells, span_s, step_s)
    span = f"last {window.words}"
    row = Row(width).add(span if len(span) < label else f"last {window.name}", "dim", label)
    middle = f" {edge_text(span_s, 0.5)} "
    left = max(0, cells - axis.used // 2 - len(middle) // 2)
    row.add(rule * left, "track").add(middle, "faint").add(rule * max(0, cells - left - len(middle)), "track")
    row.add(figure, "dim" if figure == "now" else "info", VALUE_CELLS, ">")
    return row.add("peak", "dim", PEAK_CELLS, ">").done()


def reason(box: Box, metric: Metric) -> str:
    """Why there is no such line."""
    if metric.gpu and not box.devices:
        return "no GPU in this box"
    if metric.gpu:
        return "driver reports none"
    if metric.kind == "temp":
        return "no sensor"
    return "not offered here"


def _line(row: Row, text: str, tone: str, mark: str, end_cell: int | None, pointed: int | None) -> None:
    """The drawn characters. Where nothing is drawn a limit shows as faint dots; behind the last reading of a box that
    stopped reporting stands an end mark; the instant looked at is reversed."""
    if not mark and end_cell is None and pointed is None:
        row.add(text, tone)
        return
    run, run_tone = "", tone
    for cell, char in enumerate(text):
        style = tone
        if cell == end_cell:
            char, style = "x", "bad+b"
        elif mark and char == " ":
            char, style = mark, "faint"
        if cell == pointed:
            style = f"{style}r" if "+" in style else f"{style}+r"
        if style != run_tone and run:
            row.add(run, run_tone)
            run = ""
        run, run_tone = run + char, style
    row.add(run, run_tone)


def _tone(box: Box, metric: Metric, last: float | None) -> str:
    if metric.kind == "temp":
        warm, hot = gpu_limits(box.devices[0] if box.devices else None) if metric.gpu else cpu_limits(box)
        if last is None:
            return "info"
        return "bad" if last >= hot else "warn" if last >= warm else "info"
    return {"watts": "accent", "pct": "ok"}.get(metric.kind, "cyan")
