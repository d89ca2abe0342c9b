"""The line of a trace as it was drawn last, and drawn anew only where a dot of it changed. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from flightdeck.charts.cells import DRAWERS, Level, limit_mark, newest
from flightdeck.model import units
from flightdeck.model.axis import Axis
from flightdeck.model.fleet import Box
from flightdeck.model.metrics import Metric
from flightdeck.model.slots import Columns, Pair, extremes
from flightdeck.model.traces import History
from flightdeck.widgets.lines import Line

TraceKey = tuple[str, str, int, int, int]  # box, metric, width, rows, cells of the label
_TAIL = 4  # columns, an even number: two cells, the last of which is drawn as in the whole line


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """``dots``: the drawn rows. ``level``: of the newest column. ``end``: the cell behind the newest reading, None: there
    is none behind it. ``limit``: (row, character) of the limit's line. The rest is what it was made of."""

    dots: list[str]
    level: Level | None
    printed: str
    peak: str
    end: int | None
    limit: tuple[int, str] | None
    scale: Pair
    box: Box
    columns: Columns
    axis: Axis
    charts: str


@dataclass
class TraceCache:
    """What was drawn of each trace, kept until something changes of which it is made."""

    pictures: dict[TraceKey, Picture] = field(default_factory=dict)
    rows: dict[TraceKey, tuple[tuple[object, ...], tuple[object, ...], list[Line]]] = field(default_factory=dict)


def picture_of(
    before: Picture | None,
    box: Box,
    past: History,
    metric: Metric,
    columns: Columns,
    axis: Axis,
    rows: int,
    charts: str,
) -> Picture:
    """The line of these columns; ``before``: the one that was drawn last, which is given back where nothing changed."""
    if before is not None and (before.axis != axis or before.charts != charts):
        before = None
    same = before is not None and before.columns is columns and before.box is box
    if before is not None and same and before.scale == past.ranges.get(metric.key):
        return before
    found = extremes(columns)
    scale = past.range_holding(metric, found, _hint(box, metric))
    level = newest(columns, scale, rows, charts)
    if before is None or before.scale != scale or before.columns[:-1] != columns[:-1]:
        dots = [line.rjust(axis.cells) for line in _drawn(columns, axis, scale, rows, charts)]
    elif before.level == level:
        dots = before.dots
    else:  # the newest column alone
        cells, tail = max(1, axis.repeat // 2), _drawn(columns[-_TAIL:], axis, scale, rows, charts)
        dots = [old[:-cells] + new[-cells:] for old, new in zip(before.dots, tail, strict=True)]
    after = len(columns)
    while after and columns[after - 1] is None:
        after -= 1
    return Picture(
        dots,
        level,
        range_text(metric, scale),
        value_text(metric, None if found is None else found[1]),
        axis.cell_of(after) if after < len(columns) else None,
        _limit(box, metric, scale, rows, charts),
        scale,
        box,
        columns,
        axis,
        charts,
    )


def _drawn(columns: Columns, axis: Axis, scale: Pair, rows: int, charts: str) -> list[str]:
    stretched = columns if axis.repeat == 1 else [pair for pair in columns for _ in range(axis.repeat)]
    return DRAWERS[charts](stretched, scale, rows)


def limit_of(box: Box, metric: Metric) -> float | None:
    """The limit that the hardware itself told for a metric; None: it told none."""
    if metric.key == "gpu_c":
        return min((d.temp_slowdown_c for d in box.devices if d.temp_slowdown_c is not None), default=None)
    if metric.key == "gpu_w":
        return max((d.power_limit_w for d in box.devices if d.power_limit_w is not None), default=None)
    return None


def _limit(box: Box, metric: Metric, scale: Pair, rows: int, charts: str) -> tuple[int, str] | None:
    """(row, character) of the limit's line; None: none is known, it is out of range, or a single row has no room."""
    limit = limit_of(box, metric)
    if limit is None or rows < 2 or not scale[0] < limit <= scale[1]:
        return None
    return limit_mark(limit, scale, rows, charts)


def _hint(box: Box, metric: Metric) -> float | None:
    if metric.kind == "watts":
        limits = [device.power_limit_w for device in box.devices if device.power_limit_w is not None]
        return max(limits, default=None)
    if metric.kind == "mem":
        return box.mem_mb
    return None


def value_text(metric: Metric, value: float | None) -> str:
    """A reading in the metric's own unit."""
    if metric.kind == "ghz":
        return units.gigahertz(value)
    if metric.kind == "rate":
        return units.rate(value)
    if metric.kind == "mem":
        return units.gigabytes(value)
    return units.number(value)


def range_text(metric: Metric, scale: Pair) -> str:
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
