"""A trace: label and printed range, the hour as a thin min-max line, the value now and the peak in fixed cells."""

from __future__ import annotations

from flightdeck.charts.cells import ascii_line, braille
from flightdeck.model import units
from flightdeck.model.fleet import Box
from flightdeck.model.traces import BY_KEY, Columns, Metric, Pair, column_width
from flightdeck.widgets.lines import Line, Row
from flightdeck.widgets.meter import CPU_HOT_C, CPU_WARM_C, gpu_limits
from flightdeck.widgets.scene import Scene

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
    """``rows`` (1 to 3) lines of ``width`` cells; a metric without any reading is one line with the reason."""
    history = scene.deck.history(box)
    ring = history.rings[metric.key]
    cells = trace_cells(width, label)
    if ring.empty():
        text = Row(width).add(metric.label, "dim", label).add("n/a  ", "dim").add(reason(box, metric), "faint").done()
        return [text, *[Row(width).done() for _ in range(rows - 1)]]
    slots, count = column_width(cells)
    end = scene.deck.end_slot(box)
    columns = ring.columns(end, slots, count)
    scale = history.range_of(metric, columns, _hint(box, metric))
    drawn = _drawn(scene, box, metric, columns, scale, cells, rows)
    peak = max((pair[1] for pair in columns if pair is not None), default=None)
    tone = _tone(box, metric, ring.last)
    printed = _range_text(metric, scale)
    ended = scene.deck.box_state(box) == "down"
    after = next((index for index in range(len(columns), 0, -1) if columns[index - 1] is not None), 0)
    end_cell = cells - (len(columns) - after) // 2  # the cell behind the newest reading
    out: list[Line] = []
    for index, dots in enumerate(drawn):
        last = index == rows - 1
        named = index == min(1, rows - 1)  # the row of range and figures
        row = Row(width)
        if rows == 1:
            row.add(metric.label, "text", 8).add(printed if label >= LABEL_WIDE else "", "faint", label - 8)
        else:
            heading = metric.label if index == 0 else printed if named else ""
            row.add(heading, "text" if index == 0 else "faint", label)
        _line(row, dots, tone, end_cell if ended and last else None, ended)
        if named:
            row.add("-" if ended else _value(metric, ring.last), "faint" if ended else f"{tone}+b", VALUE_CELLS, ">")
            row.add(_value(metric, peak), "dim", PEAK_CELLS, ">")
        out.append(row.done())
    return out


def rule_row(width: int, label: int, rule: str) -> Line:
    """The heading above the traces: the span of the axis and what the two columns of figures are."""
    cells = trace_cells(width, label)
    row = Row(width).add("last hour", "dim", label)
    left = cells // 2 - 3
    row.add(rule * max(0, left), "track").add(" -30m ", "faint").add(rule * max(0, cells - left - 6), "track")
    return row.add("now", "dim", VALUE_CELLS, ">").add("peak", "dim", PEAK_CELLS, ">").done()


def reason(box: Box, metric: Metric) -> str:
    """Why there is no such line."""
    if metric.gpu and not box.devices:
        return "no GPU in this box"
    if metric.gpu:
        return "driver reports none"
    if metric.kind == "temp":
        return "no sensor"
    return "not offered here"


def _line(row: Row, text: str, tone: str, end_cell: int | None, ended: bool) -> None:
    """The drawn characters; after the last reading of a box that stopped reporting stands an end mark."""
    if end_cell is None or end_cell >= len(text):
        row.add(text, "dim" if ended else tone)
    else:
        row.add(text[:end_cell], "dim").add("x", "bad+b").add(text[end_cell + 1 :], "dim")


def _drawn(scene: Scene, box: Box, metric: Metric, columns: Columns, scale: Pair, cells: int, rows: int) -> list[str]:
    key = (box.raw, metric.key, cells, rows)
    mark = (columns, scale, scene.glyphs.ascii)
    found = scene.traces.rows.get(key)
    if found is not None and found[0] == mark:
        return found[1]
    draw = ascii_line if scene.glyphs.ascii else braille
    lines = [line.rjust(cells) for line in draw(columns, scale, rows)]
    scene.traces.rows[key] = (mark, lines)
    return lines


def _hint(box: Box, metric: Metric) -> float | None:
    if metric.kind == "watts":
        limits = [device.power_limit_w for device in box.devices if device.power_limit_w is not None]
        return max(limits, default=None)
    if metric.kind == "mem":
        return box.mem_mb
    return None


def _tone(box: Box, metric: Metric, last: float | None) -> str:
    if metric.kind == "temp":
        warm, hot = gpu_limits(box.devices[0] if box.devices else None) if metric.gpu else (CPU_WARM_C, CPU_HOT_C)
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
    low, high = scale
    if metric.kind == "ghz":
        return f"{low / 1000:g}-{high / 1000:g}"
    if metric.kind == "rate":
        return f"0-{units.rate(high)}"
    if metric.kind == "mem":
        return f"0-{high / 1024:.0f}"
    return f"{low:.0f}-{high:.0f}"
