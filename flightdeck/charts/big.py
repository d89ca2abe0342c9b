"""Big charts with axes, drawn by plotext: a min-max line over snapped time ticks, limits, a cursor. Pure: values to spans.

plotext gets dot levels instead of values, one dot column a reading, so that what is drawn can be told in advance: two
readings never share a column by accident, a gap is a gap, nothing is rescaled. Its frame is made of box-drawing
characters, whose width is ambiguous: they are replaced. It keeps one figure for the whole process: for one thread only.

Version 5.3 and not 6: that one ends the process (std::bad_alloc in its C++ kernel) on a NaN, takes 0.3 s to import
instead of 0.06 s, and is no faster (measured: 8.2 against 5.6 ms for 69 x 13 cells, 12.5 against 12.7 ms for 205 x 16).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from flightdeck.charts.cells import Level, levels
from flightdeck.model.slots import Columns, Pair
from flightdeck.model.units import known

Span = tuple[str, str]  # text, style name
Line = list[Span]

LABEL_CELLS = 6  # of the value axis, without the axis itself
MARGIN = LABEL_CELLS + 1
KEPT = 96  # drawn charts in a cache
TICKS = 5  # steps of the value axis at most
TICK_ROWS = 2  # between two labels of the value axis there are at least so many rows

MARKERS = {"braille": (2, 4), "blocks": (2, 2), "ascii": (1, 1)}  # dots per character: across, up
_MARKER_OF = {"braille": "braille", "blocks": "hd", "ascii": "*"}
_FRAME = "│┤├─┬┴┼└┘┌┐"
_BRAILLE_FRAME = str.maketrans(_FRAME, "⡇⡧⡇⠉⠋⠉⠋⠋⠙⠉⠉")
_ASCII_FRAME = str.maketrans(_FRAME, "||+-+-++++-")
_ROWS_OF_DOTS = "⣀⠤⠒⠉"  # one dot high, from the bottom of a cell upwards


_ready: list[bool] = []  # whether plotext's one figure was set up: doing that anew for each chart doubles its cost


@dataclass(frozen=True, slots=True)
class Limit:
    """A line that the hardware told: its slowdown temperature, its power limit."""

    value: float
    text: str


@dataclass(frozen=True)
class Chart:
    """One chart. ``columns`` has :func:`dots` readings for its width, oldest first."""

    title: str
    columns: Columns
    scale: Pair
    value: str = ""  # now, or at the instant that is looked at
    peak: str = ""
    tone: str = "info"
    value_tone: str = ""
    limits: tuple[Limit, ...] = ()
    ticks: tuple[tuple[int, str], ...] = ()  # (column, text) along the time axis; empty: no axis is drawn
    label: Callable[[float], str] = "{:.0f}".format  # of the value axis
    unit: float = 1.0  # what labels are round in: 1024 for memory
    cursor: int | None = None  # the column that is looked at
    ended: bool = False  # nothing reports any more: the last reading gets an end mark
    note: str = ""  # instead of a line: why there is none


@dataclass
class ChartCache:
    """Drawn charts by name, kept until what is drawn differs: a column rolled, the window, the range, the size."""

    kept: dict[Hashable, tuple[Hashable, list[Level | None], list[str]]] = field(default_factory=dict)
    drawn: int = 0  # how often plotext was asked; told by benchmarks and tests

    def rows(
        self, name: Hashable, mark: Hashable, found: list[Level | None], draw: Callable[[], list[str]]
    ) -> list[str]:
        """``mark``: all but the readings that decides what is drawn; ``found``: these, as dot levels."""
        kept = self.kept.get(name)
        if kept is None or kept[0] != mark or not _looks_like(found, kept[1]):
            self.drawn += 1
            if len(self.kept) >= KEPT:
                self.kept.clear()  # other boxes, other sizes
            kept = self.kept[name] = (mark, found, draw())
        return kept[2]


def dots(width: int, marker: str = "braille") -> int:
    """How many readings a chart of ``width`` cells takes."""
    return max(2, (width - MARGIN) * MARKERS[marker][0])


def big_chart(chart: Chart, width: int, height: int, marker: str = "braille", cache: ChartCache | None = None,
              name: Hashable = "") -> list[Line]:  # fmt: skip
    """``height`` lines of ``width`` cells: a title, the canvas with its value axis, and with ticks two rows of time axis.

    ``cache`` and ``name``: where the canvas is kept between two calls.
    """
    axis_rows = 2 if chart.ticks else 0
    canvas = height - 1 - axis_rows
    if width < MARGIN + 4 or canvas < 1:
        return [_title(chart, width), *([(" " * width, "text")] for _ in range(max(0, height - 1)))][: max(0, height)]
    across, up = MARKERS[marker]
    columns = _gathered(chart.columns, (width - MARGIN) * across) if across == 1 else chart.columns
    found = levels(columns, chart.scale, canvas * up)
    count = (width - MARGIN) * across
    missing: list[Level | None] = [None] * (count - len(found))
    found = missing + found[-count:]
    labels = value_ticks(chart.scale, canvas, chart.label, chart.unit)
    shift = len(found) - len(columns)
    cells = tuple((_cell(column, shift, across), text) for column, text in chart.ticks)

    def draw() -> list[str]:
        return plotted(found, labels, cells, width, canvas, marker)

    rows = draw() if cache is None else cache.rows(name, (labels, cells, width, height, marker), found, draw)
    return [_title(chart, width), *_inked(chart, rows, found, canvas, marker, shift)]


def _looks_like(found: list[Level | None], drawn: list[Level | None]) -> bool:
    """Whether readings look as they were drawn. The newest column is still being filled: it may be a dot off until it
    rolls, so that the noise of every sample does not draw the chart again."""
    if found[:-1] != drawn[:-1] or not found:
        return False
    new, old = found[-1], drawn[-1]
    if new is None or old is None:
        return new is old
    return abs(new[0] - old[0]) <= 1 and abs(new[1] - old[1]) <= 1


def plotted(
    found: Sequence[Level | None],
    labels: Sequence[tuple[int, str]],
    ticks: Sequence[tuple[int, str]],
    width: int,
    canvas: int,
    marker: str = "braille",
) -> list[str]:
    """What plotext draws: ``canvas`` rows, and two more with ``ticks``, each of ``width`` characters, no colours.

    ``found``: dot levels per dot column; ``labels``: (row from the bottom, text); ``ticks``: (cell, text).
    """
    import plotext as plt  # 0.06 s: not before somebody looks at a chart

    across, up = MARKERS[marker]
    inner = width - MARGIN
    if not _ready:
        plt.clear_figure()
        plt.limit_size(False, False)
        plt.theme("clear")
        _ready.append(True)
    plt.clear_data()
    plt.plot_size(width, canvas + (2 if ticks else 0))
    plt.xaxes(bool(ticks), False)
    plt.yaxes(True, False)
    right, top = max(1, inner * across - 1), max(1, canvas * up - 1)
    plt.xlim(0, right)
    plt.ylim(0, top)
    for xs, ys in _paths(found):
        plt.plot(xs, ys, marker=_MARKER_OF[marker])
    if not any(found):  # without data there are no axes
        plt.scatter([0], [0], marker=" ")
    # Ticks count in characters, readings in dots.
    rows_at = [row * top / max(1, canvas - 1) for row, _ in labels]
    plt.yticks(rows_at, [text[:LABEL_CELLS].rjust(LABEL_CELLS) for _, text in labels])
    plt.xticks([cell * right / max(1, inner - 1) for cell, _ in ticks], [text for _, text in ticks])
    text = plt.uncolorize(plt.build())
    plain = text.translate(_BRAILLE_FRAME if marker == "braille" else _ASCII_FRAME)
    rows = [row[:width].ljust(width) for row in plain.split("\n")][: canvas + (2 if ticks else 0)]
    if ticks:
        rows[-1] = _labelled([cell for cell, _ in ticks], [text for _, text in ticks], width)
    return rows


def _paths(found: Sequence[Level | None]) -> list[tuple[list[int], list[int]]]:
    """Per run of readings one closed line: along the highest values and back along the lowest, so that a spike stands."""
    paths = []
    run: list[int] = []
    for column, level in enumerate([*found, None]):
        if level is not None:
            run.append(column)
        elif run:
            tops, bottoms = [], []
            for x in run:
                at = found[x]
                assert at is not None
                tops.append(at[1])
                bottoms.append(at[0])
            xs, ys = _thinned(run, tops)
            if bottoms != tops:
                back, under = _thinned(run[::-1], bottoms[::-1])
                xs, ys = xs + back, ys + under
            paths.append((xs, ys))
            run = []
    return paths


def _thinned(xs: list[int], ys: list[int]) -> tuple[list[int], list[int]]:
    """Without the points inside level stretches: each costs plotext as much as any other."""
    keep = [i for i in range(len(xs)) if not 0 < i < len(xs) - 1 or not ys[i - 1] == ys[i] == ys[i + 1]]
    return [xs[i] for i in keep], [ys[i] for i in keep]


def _gathered(columns: Columns, most: int) -> Columns:
    """Two columns as one, for markers that are a whole character wide."""
    padded = columns if len(columns) % 2 == 0 else [None, *columns]
    out: Columns = []
    for left, right in zip(padded[::2], padded[1::2], strict=True):
        pairs = [pair for pair in (left, right) if pair is not None and known(pair[0]) and known(pair[1])]
        out.append((min(pair[0] for pair in pairs), max(pair[1] for pair in pairs)) if pairs else None)
    return out[-most:]


def _cell(column: int, shift: int, across: int) -> int:
    """The character of the canvas that holds a column of the chart's readings."""
    return (column // (2 if across == 1 else 1) + shift) // across


def value_ticks(
    scale: Pair, canvas: int, label: Callable[[float], str] = "{:.0f}".format, unit: float = 1.0
) -> tuple[tuple[int, str], ...]:
    """(row from the bottom, text) of the value axis: round values, never two in rows that touch."""
    low, high = scale[0] / unit, scale[1] / unit
    span = high - low
    if not span > 0 or canvas < 2:
        return ((0, label(scale[0])),)
    most = min(TICKS, max(1, (canvas - 1) // TICK_ROWS))
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next((size * power for size in (1, 2, 2.5, 4, 5, 10) if span / (size * power) <= most + 1e-9), 10 * power)
    found: list[tuple[int, str]] = []
    tick = math.ceil(low / step - 1e-9) * step
    while tick <= high + step * 1e-6:
        row = round((tick - low) / span * (canvas - 1))
        if not found or row - found[-1][0] > 1:
            found.append((row, label(tick * unit)))
        tick += step
    return tuple(found)


def _labelled(cells: Sequence[int], texts: Sequence[str], width: int) -> str:
    """The row of times: each centred under its tick, moved inward at the edges, left out where it would touch another."""
    row = [" "] * width
    free = 0
    for cell, text in zip(cells, texts, strict=True):
        start = min(max(0, MARGIN + cell - len(text) // 2), width - len(text))
        if start >= free:
            row[start : start + len(text)] = text
            free = start + len(text) + 1
    return "".join(row)


def _title(chart: Chart, width: int) -> Line:
    """``GPU C      84  peak 86   slowdown 90``, exactly ``width`` cells."""
    parts: Line = [(chart.title[:width], "text")]
    after: Line = []
    if chart.note:
        after.append((f"  n/a  {chart.note}", "faint"))
    else:
        after.append((f"  {chart.value}", f"{chart.value_tone or chart.tone}+b"))
        after += [(f"   peak {chart.peak}", "dim")] if chart.peak else []
    after += [(f"   {limit.text}", "faint") for limit in chart.limits]
    used = len(parts[0][0])
    for text, style in after:
        if used + len(text) <= width:
            parts.append((text, style))
            used += len(text)
    parts.append((" " * (width - used), "text"))
    return parts


def _inked(
    chart: Chart, rows: list[str], found: list[Level | None], canvas: int, marker: str, shift: int
) -> list[Line]:
    """The drawn rows as spans, with what lies over and under the line: limits, cursor, end mark."""
    across, up = MARKERS[marker]
    plain = marker != "braille"
    width = len(rows[0]) if rows else 0
    grid = [list(row) for row in rows]
    style = [[("faint" if x < MARGIN or y >= canvas else chart.tone) for x in range(width)] for y in range(len(rows))]
    if chart.ended:
        style = [[tone if tone == "faint" else "dim" for tone in row] for row in style]
    for limit in chart.limits:
        _limit(limit, chart.scale, grid, style, canvas, up, plain)
    if chart.ended and any(found):
        last = max(index for index, level in enumerate(found) if level is not None)
        x = min(width - 1, MARGIN + (last + 1) // across)
        grid[canvas - 1][x], style[canvas - 1][x] = "x", "bad+b"
    if chart.cursor is not None:
        x = MARGIN + _cell(chart.cursor, shift, across)
        if MARGIN <= x < width:
            for y in range(canvas):
                if grid[y][x] == " " or style[y][x] == "faint":
                    grid[y][x] = "|" if plain else "⡇"
                style[y][x] = "focus"
    return [_spans(row, tones) for row, tones in zip(grid, style, strict=True)]


def _limit(
    limit: Limit, scale: Pair, grid: list[list[str]], style: list[list[str]], canvas: int, up: int, plain: bool
) -> None:
    """A dashed line under the readings; outside the scale it is not drawn."""
    low, high = scale
    if not known(limit.value) or not low <= limit.value <= high or high <= low:
        return
    dot = round((limit.value - low) / (high - low) * (canvas * up - 1))
    y = canvas - 1 - dot // up
    char = "-" if plain else _ROWS_OF_DOTS[dot % up if up == 4 else 1]
    for x in range(MARGIN, len(grid[y])):
        if grid[y][x] == " " and x % 2:
            grid[y][x], style[y][x] = char, "faint"


def _spans(row: list[str], tones: list[str]) -> Line:
    line: Line = []
    start = 0
    for x in range(1, len(row) + 1):
        if x == len(row) or tones[x] != tones[start]:
            line.append(("".join(row[start:x]), tones[start]))
            start = x
    return line
