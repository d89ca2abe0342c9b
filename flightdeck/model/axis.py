"""The time axis that all traces of all boxes share: how long it is, and which instant of it is looked at. Pure.

A span is cut into slots of a fixed length, snapped to the epoch; a history keeps :data:`SLOTS` of them. Scrubbing moves
by a :data:`STEPS`-th of the span, whatever the width of a trace, so that the same instant is meant everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

SPANS_S = (600, 3600, 21_600, 86_400, 604_800)
HOUR_S = 3600
SLOTS = 720  # per history: an hour of 5 s, six of 30 s, a day of 120 s, a week of 840 s
STEPS = 120  # by which scrubbing goes through a window
_NAMES = {600: "10m", 3600: "1h", 21_600: "6h", 86_400: "24h", 604_800: "7d"}
_WORDS = {600: "10 minutes", 3600: "hour", 21_600: "6 hours", 86_400: "24 hours", 604_800: "7 days"}


@dataclass(frozen=True)
class Window:
    """``span_s``: length of the axis. ``back_s``: scrubbing, seconds before its right edge; None: nobody scrubs."""

    span_s: int = HOUR_S
    back_s: float | None = None

    @property
    def name(self) -> str:
        """``1h``."""
        return _NAMES.get(self.span_s, f"{self.span_s}s")

    @property
    def words(self) -> str:
        """``hour``, to be read after "last"."""
        return _WORDS.get(self.span_s, f"{self.span_s} s")

    @property
    def step_s(self) -> float:
        """How far one key press scrubs, and how much time is looked at."""
        return self.span_s / STEPS

    @property
    def long(self) -> bool:
        """Whether it reaches further back than the deck itself remembers."""
        return self.span_s > HOUR_S

    def narrower(self) -> Window:
        """The next shorter span; the instant looked at stays where it is, or goes with what no longer is in sight."""
        return self._spanning(max((span for span in SPANS_S if span < self.span_s), default=self.span_s))

    def wider(self) -> Window:
        return self._spanning(min((span for span in SPANS_S if span > self.span_s), default=self.span_s))

    def scrubbed(self, by_columns: int, columns: int = STEPS) -> Window:
        """Looking ``by_columns`` of ``columns`` further right (negative: left, into the past). Past the right edge: released."""
        start = 0.0 if self.back_s is None else self.back_s
        back = start - by_columns * self.span_s / max(1, columns)
        if back < 0.0:
            return self.released()
        return replace(self, back_s=min(back, self.span_s - self.step_s))

    def released(self) -> Window:
        return replace(self, back_s=None)

    def _spanning(self, span_s: int) -> Window:
        seen = self.back_s is not None and self.back_s < span_s
        return Window(span_s, self.back_s if seen else None)


@dataclass(frozen=True)
class Axis:
    """How a window lies in the cells of one trace, each two dot columns wide; it ends at the right edge.

    ``slots``: per column; ``columns``: so many; ``repeat``: dot columns that each of them takes (1, 2 or 4).
    """

    cells: int
    slots: int
    columns: int
    repeat: int

    @property
    def used(self) -> int:
        """Cells from the first column to the right edge."""
        return -(-self.columns * self.repeat // 2)

    def column_of(self, slot: int, end: int) -> int | None:
        """Which column a slot is in, when the last one holds slot ``end``; None: out of sight."""
        column = self.columns - 1 - (end // self.slots - slot // self.slots)
        return column if 0 <= column < self.columns else None

    def cell_of(self, column: int) -> int:
        """The cell in which a column begins. An odd number of columns leaves the first half cell empty."""
        dots = self.columns * self.repeat
        return self.cells - self.used + (column * self.repeat + dots % 2) // 2


@lru_cache(maxsize=256)
def lay_out(cells: int, span_s: int, step_s: int) -> Axis:
    """A window of ``span_s`` seconds, slots of ``step_s``, in ``cells`` characters."""
    dots = max(2, cells * 2)
    slots = -(-span_s // step_s)
    width = max(1, -(-slots // dots))
    columns = min(dots, -(-slots // width))
    repeat = max(times for times in (1, 2, 4) if times * columns <= dots)
    return Axis(max(1, cells), width, columns, repeat)


def slot_step(span_s: int) -> int:
    """Seconds per slot of the history that holds a span; up to an hour they are the same."""
    return max(5, -(-span_s // SLOTS))


def edge_text(span_s: int, part: float) -> str:
    """How long before the right edge a place of the axis is: ``-30m``, ``-12h``, ``-3.5d``. ``part``: 0 left, 1 right."""
    back = span_s * (1.0 - part)
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("m", 60.0)):
        if back >= size * (2 if unit == "d" else 1):
            return f"-{back / size:.3g}{unit}"
    return f"-{back:.0f}s"
