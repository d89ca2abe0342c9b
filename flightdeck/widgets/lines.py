"""Lines of styled text with exact widths, and the one widget that shows them by the line API.

Data goes to the terminal as segments, never as markup. A widget keeps its strips and repaints only the rows whose
content changed, so a tick that changes one figure costs one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from flightdeck.model.text import ascii_only
from flightdeck.styles.palette import Palette, palette

Span = tuple[str, str]  # text, style name
Line = list[Span]


@dataclass(frozen=True)
class Glyphs:
    """The chrome's characters. None of them is wide or of ambiguous width."""

    ascii: bool
    top: tuple[str, str, str]  # left corner, line, right corner
    sides: tuple[str, str]
    bottom: tuple[str, str, str]
    full: str
    track: str
    mark: str
    up: str
    rule: str
    cut: str
    charts: str  # which of charts.cells.DRAWERS


UNICODE = Glyphs(False, ("⡖", "⠒", "⢲"), ("⡇", "⢸"), ("⠧", "⠤", "⠼"), "⠶", "⠤", ">", "◉", "⠒", "~", "braille")
ASCII = Glyphs(True, ("+", "-", "+"), ("|", "|"), ("+", "-", "+"), "#", ".", ">", "*", "-", "~", "ascii")
BLOCKS = replace(ASCII, ascii=False, charts="blocks")  # for terminals that have blocks but no braille


def fit(text: str, width: int, align: str = "<", cut: str = "~") -> str:
    """Exactly ``width`` cells; what is cut ends in a tilde."""
    if width <= 0:
        return ""
    size = len(text) if text.isascii() else cell_len(text)
    if size > width:
        return set_cell_size(text, width - 1) + cut
    pad = " " * (width - size)
    return pad + text if align == ">" else text + pad


def wrap(text: str, width: int) -> list[str]:
    """Words in lines of at most ``width`` characters; a longer word has a line of its own."""
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


class Row:
    """Builds one line of exactly ``width`` cells, left to right; what does not fit is cut."""

    __slots__ = ("modifiers", "spans", "used", "width")

    def __init__(self, width: int, modifiers: str = "") -> None:
        self.width = max(0, width)
        self.used = 0
        self.spans: Line = []
        self.modifiers = modifiers

    def add(self, text: str, style: str = "text", width: int | None = None, align: str = "<") -> Row:
        room = self.width - self.used
        if room <= 0:
            return self
        if width is not None:
            text = fit(text, width if width < room else room, align)
        size = len(text) if text.isascii() else cell_len(text)
        if size > room:
            text, size = fit(text, room), room
        if size:
            self.spans.append((text, self._styled(style) if self.modifiers else style))
            self.used += size
        return self

    def put(self, spans: Sequence[Span]) -> Row:
        """What another row of this width was made of."""
        self.spans = [*self.spans, *spans]
        self.used += sum(cell_len(text) for text, _ in spans)
        return self

    def to(self, column: int) -> Row:
        """Blank up to a column."""
        if column > self.used:
            self.add(" " * (min(column, self.width) - self.used))
        return self

    def right(self, *spans: Span, keep: int = 0) -> Row:
        """Spans flush with the right edge, ``keep`` cells before it; over what stands there already they win."""
        size = sum(cell_len(text) for text, _ in spans)
        start = self.width - keep - size
        if start < self.used:
            self._cut(max(0, start))
        self.to(start)
        for text, style in spans:
            self.add(text, style)
        return self

    def done(self) -> Line:
        if self.used < self.width:
            self.to(self.width)
        return self.spans

    def _cut(self, column: int) -> None:
        out: Line = []
        used = 0
        for text, style in self.spans:
            size = cell_len(text)
            if used + size > column:
                if column > used:
                    out.append((fit(text, column - used), style))
                used = column
                break
            out.append((text, style))
            used += size
        self.spans, self.used = out, used

    def _styled(self, style: str) -> str:
        return f"{style}{self.modifiers}" if "+" in style else f"{style}+{self.modifiers}"


def faded(line: Line) -> Line:
    """The same without its colours: what is no longer so."""
    return [(text, "faint") for text, _ in line]


def plain(line: Line) -> str:
    return "".join(text for text, _ in line)


def to_strip(line: Line, colors: Palette) -> Strip:
    return Strip([Segment(text, colors.style(style)) for text, style in line if text])


class LineView(Widget):
    """Shows lines. ``show`` compares with what is there; only what differs goes to the terminal."""

    DEFAULT_CSS = "LineView { height: 1fr; width: 1fr; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines: list[Line] = []
        self._strips: list[Strip | None] = []
        self._colors = palette("dark")
        self._ascii = False

    def show(self, lines: Sequence[Line], colors: Palette, ascii_chrome: bool = False) -> int:
        """Returns how many rows changed."""
        if ascii_chrome:
            lines = [[(ascii_only(text), style) for text, style in line] for line in lines]
        if colors is not self._colors or ascii_chrome != self._ascii or len(lines) != len(self._lines):
            self._colors, self._ascii = colors, ascii_chrome
            self._lines, self._strips = list(lines), [None] * len(lines)
            self.refresh()
            return len(lines)
        changed = [(y, old, new) for y, (old, new) in enumerate(zip(self._lines, lines, strict=True)) if old != new]
        for y, _, new in changed:
            self._lines[y], self._strips[y] = new, None
        if changed and not self._paint(changed):
            self.refresh(*(Region(0, y, self.size.width, 1) for y, _, _ in changed))  # harmless before mount and after
        return len(changed)

    def _paint(self, changed: list[tuple[int, Line, Line]]) -> bool:
        """At once, where this view stands where it shall."""
        if not self.is_attached:
            return False
        painter = getattr(self.app, "painter", None)
        region = self.region
        return painter is not None and self.settled(region) and painter.paint(self, region, changed, self._colors)

    def repaint(self, rows: Sequence[tuple[int, Line]]) -> None:
        """Bring rows up to date of which the terminal shows something older: (row, what stands there)."""
        changed = [(y, old, self._lines[y]) for y, old in rows if y < len(self._lines) and old != self._lines[y]]
        if changed and not self._paint(changed):
            self.refresh(*(Region(0, y, self.size.width, 1) for y, _, _ in changed))

    def settled(self, region: Region) -> bool:
        """Whether this is where the view shall stand; a layout may be under way."""
        return bool(region)

    def text(self) -> list[str]:
        return [plain(line) for line in self._lines]

    def render_lines(self, crop: Region) -> list[Strip]:
        """Straight from the lines: no borders, no padding, and nothing to go stale."""
        strips = [self.render_line(y) for y in crop.line_range]
        for line_filter in self.get_line_filters():
            strips = [strip.apply_filter(line_filter, self.styles.background) for strip in strips]
        if crop.column_span != (0, self.size.width):
            strips = [strip.crop(*crop.column_span) for strip in strips]
        return strips

    def render_line(self, y: int) -> Strip:
        if not 0 <= y < len(self._lines):
            return Strip.blank(self.size.width, self._colors.style("text"))
        strip = self._strips[y]
        if strip is None or strip.cell_length != self.size.width:
            strip = to_strip(self._lines[y], self._colors)
            self._strips[y] = strip = strip.adjust_cell_length(self.size.width, self._colors.style("text"))
        return strip
