"""A trace: label and printed range, the window as a thin min-max line, the value now (or then) and the peak in fixed cells."""

from __future__ import annotations

import math

from flightdeck.charts.cells import DRAWERS, limit_mark, newest
from flightdeck.model import units
from flightdeck.model.axis import Axis, edge_text, lay_out
from flightdeck.model.fleet import Box
from flightdeck.model.metrics import BY_KEY, Metric
from flightdeck.model.slots import Pair, slot_of
from flightdeck.model.traces import History
from flightdeck.widgets.lines import Line, Row
from flightdeck.widgets.meter import cpu_limits, gpu_limits
from flightdeck.widgets.scene import Picture, Scene, TraceKey

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


def trace_rows(scene: Scene, box: Box, metric: Metric, width: int, rows: int, label: int = LABEL_CELLS) -> list[Line]:
    """``rows`` (1 to 3) lines of ``width`` cells; a metric without any reading is one line with the reason.

    The same lines as before (not to be changed) where they say the same as before.
    """
    past, last = scene.past(box), scene.deck.history(box).rings[metric.key].last
    if past.rings[metric.key].empty():
        return _nothing(scene, box, metric, width, rows, label)
    key = (box.raw, metric.key, width, rows, label)
    picture = _picture(scene, box, past, metric, key)
    tone = _tone(box, metric, last)
    ended = scene.deck.box_state(box) == "down"
    pointed = scrubbed_cell(scene, box, picture.looks[1])
    figure, figure_tone = _value(metric, last), f"{tone}+b"
    if pointed is not None:
        at = scene.reading(box, metric.key)
        figure, figure_tone = ("-", "faint") if at is None else (_value(metric, at[1]), "info+b")
    elif ended:
        figure, figure_tone = "-", "faint"
    end = (trace_cells(width, label) if picture.end is None else picture.end) if ended else None
    marks = _limit(scene, box, metric, picture.scale, rows)
    shown = (
        picture.dots,
        _range_text(metric, picture.scale),
        "dim" if ended else tone,
        end,
        marks,
        pointed,
        (figure, figure_tone, _value(metric, picture.peak)),
    )
    before = scene.traces.rows.get(key)
    if before is not None and before[0] == shown:
        return before[1]
    out = _rows(metric, width, label, *shown)
    scene.traces.rows[key] = (shown, out)
    return out


def _picture(scene: Scene, box: Box, past: History, metric: Metric, key: TraceKey) -> Picture:
    """The drawn line, as it was before where nothing of it changed that can be seen."""
    _, _, width, rows, label = key
    axis = lay_out(trace_cells(width, label), scene.window.span_s, past.step_s)
    columns = past.rings[metric.key].columns(scene.deck.end_slot(box, past.step_s), axis.slots, axis.columns)
    hint, looks = _hint(box, metric), (scene.glyphs, axis)
    before = scene.traces.pictures.get(key)
    if before is not None and before.looks != looks:
        before = None
    same = before is not None and before.columns is columns and before.hint == hint
    if before is not None and same and before.scale == past.ranges.get(metric.key):
        return before
    scale = past.range_of(metric, columns, hint)
    level = newest(columns, scale, rows, scene.glyphs.charts)
    same = before is not None and before.scale == scale and before.level == level
    if before is not None and same and before.columns[:-1] == columns[:-1]:
        dots = before.dots
    else:
        stretched = columns if axis.repeat == 1 else [pair for pair in columns for _ in range(axis.repeat)]
        dots = [line.rjust(axis.cells) for line in DRAWERS[scene.glyphs.charts](stretched, scale, rows)]
    peak = max((pair[1] for pair in columns if pair is not None), default=None)
    after = next((index for index in range(len(columns), 0, -1) if columns[index - 1] is not None), 0)
    end = axis.cell_of(after) if after < len(columns) else None
    picture = scene.traces.pictures[key] = Picture(columns, hint, scale, looks, dots, level, peak, end)
    return picture


def _rows(
    metric: Metric,
    width: int,
    label: int,
    drawn: list[str],
    printed: str,
    tone: str,
    end: int | None,
    marks: tuple[int, str] | None,
    pointed: int | None,
    figures: tuple[str, str, str],
) -> list[Line]:
    rows = len(drawn)
    out: list[Line] = []
    for index, dots in enumerate(drawn):
        named = index == min(1, rows - 1)  # the row of range and figures
        row = Row(width)
        if rows == 1:
            row.add(metric.label, "text", 8).add(printed if label >= LABEL_WIDE else "", "faint", label - 8)
        else:
            heading = metric.label if index == 0 else printed if named else ""
            row.add(heading, "text" if index == 0 else "faint", label)
        mark = marks[1] if marks is not None and marks[0] == index else ""
        _line(row, dots, tone, mark, end if index == rows - 1 else None, pointed)
        if named:
            row.add(figures[0], figures[1], VALUE_CELLS, ">")
            row.add(figures[2], "dim", PEAK_CELLS, ">")
        out.append(row.done())
    return out


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
    column = axis.column_of(slot_of(at, step_s), scene.deck.end_slot(box, step_s))
    return None if column is None else axis.cell_of(column)


def rule_row(scene: Scene, box: Box, width: int, label: int) -> Line:
    """The heading above the traces: the span of the axis and what the two columns of figures are."""
    rule = scene.glyphs.rule
    cells = trace_cells(width, label)
    axis = lay_out(cells, scene.window.span_s, scene.past(box).step_s)
    span = f"last {scene.window.words}"
    row = Row(width).add(span if len(span) < label else f"last {scene.window.name}", "dim", label)
    middle = f" {edge_text(scene.window.span_s, 0.5)} "
    left = max(0, cells - axis.used // 2 - len(middle) // 2)
    row.add(rule * left, "track").add(middle, "faint").add(rule * max(0, cells - left - len(middle)), "track")
    at = scene.at()
    figure = "now" if at is None else at.astimezone().strftime("%H:%M")
    return row.add(figure, "dim" if at is None else "info", VALUE_CELLS, ">").add("peak", "dim", PEAK_CELLS, ">").done()


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


def limit_of(box: Box, metric: Metric) -> float | None:
    """The limit that the hardware itself told for a metric; None: it told none."""
    if metric.key == "gpu_c":
        return min((d.temp_slowdown_c for d in box.devices if d.temp_slowdown_c is not None), default=None)
    if metric.key == "gpu_w":
        return max((d.power_limit_w for d in box.devices if d.power_limit_w is not None), default=None)
    return None


def _limit(scene: Scene, box: Box, metric: Metric, scale: Pair, rows: int) -> tuple[int, str] | None:
    """(row, character) of the limit's line; None: none is known, it is out of range, or a single row has no room."""
    limit = limit_of(box, metric)
    if limit is None or rows < 2 or not scale[0] < limit <= scale[1]:
        return None
    return limit_mark(limit, scale, rows, scene.glyphs.charts)


def _hint(box: Box, metric: Metric) -> float | None:
    if metric.kind == "watts":
        limits = [device.power_limit_w for device in box.devices if device.power_limit_w is not None]
        return max(limits, default=None)
    if metric.kind == "mem":
        return box.mem_mb
    return None


def _tone(box: Box, metric: Metric, last: float | None) -> str:
    if metric.kind == "temp":
        warm, hot = gpu_limits(box.devices[0] if box.devices else None) if metric.gpu else cpu_limits(box)
        if last is None:
            return "info"
        return "bad" if last >= hot else "warn" if last >= warm else "info"
    return {"watts": "accent", "pct": "ok"}.get(metric.kind, "cyan")


def _value(metric: Metric, value: float | None) -> str:
    if metric.kind == "ghz":
        return units.gigahertz(value)
    if metric.kind == "rate":
        return units.rate(value)
    if metric.kind == "mem":
        return units.gigabytes(value)
    return units.number(value)


def _range_text(metric: Metric, scale: Pair) -> str:
    """As short as it can be said without leaving out what is drawn."""
    low, high = scale
    if metric.kind == "ghz":
        return f"{low / 1000:g}-{high / 1000:g}"
    if metric.kind == "rate":
        tenths = high >= 1e6 or high % 1e5 == 0
        return f"0-{units.rate(high) if tenths else f'{math.ceil(high / 1e3)}k'}"
    if metric.kind == "mem":
        top = high / 1024.0
        return f"0-{math.ceil(top * 10.0) / 10.0:g}" if top < 10.0 else f"0-{math.ceil(top)}"
    return f"{math.floor(low)}-{math.ceil(high)}"
