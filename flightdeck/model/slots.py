"""Fixed slots of time: minimum and maximum of a metric, and milliseconds throttled, over a span and a little more.

A slot is 5 s of the epoch (longer in a history of hours or days). Rings know slot numbers alone; what was not read is a
gap, never 0.
"""

from __future__ import annotations

import math
from array import array
from datetime import datetime
from operator import itemgetter

from flightdeck.model.axis import SLOTS

STEP_S = 5
_RING = SLOTS + 24  # some slack, so that a column at the left edge is whole

Pair = tuple[float, float]
Columns = list[Pair | None]
_HIGH = itemgetter(1)

CAUSES = "PTBCS"  # power cap, thermal, hardware brake, cpu, sync boost; the letters of the strip
SEVERITY = "BTPCS"  # which letter a cell shows when several causes share it
_HIDDEN_MS = 100.0  # less than a tenth of a second is noise of the counters


def extremes(columns: Columns) -> Pair | None:
    """Lowest and highest reading; None: there is none."""
    found = [pair for pair in columns if pair is not None]
    return (min(found)[0], max(map(_HIGH, found))) if found else None


def slot_of(at: datetime, step_s: int = STEP_S) -> int:
    """The slot that holds an instant."""
    return int(at.timestamp() // step_s)


class Ring:
    """Minimum and maximum per slot of one metric over a little more than the span."""

    __slots__ = ("_drawn", "hi", "last", "lo", "newest", "stamp")

    def __init__(self) -> None:
        self.lo = array("d", bytes(8 * _RING))
        self.hi = array("d", bytes(8 * _RING))
        self.stamp = array("q", [-1] * _RING)
        self.last: float | None = None  # newest reading; None: the newest sample had none
        self.newest = -1
        self._drawn: dict[tuple[int, int], tuple[int, Columns]] = {}  # columns by (width, count), and the last index

    def copy(self) -> Ring:
        still = Ring.__new__(Ring)
        still.lo, still.hi, still.stamp = self.lo[:], self.hi[:], self.stamp[:]
        still.last, still.newest, still._drawn = self.last, self.newest, dict(self._drawn)
        return still

    def put(self, first: int, count: int, lo: float, hi: float) -> None:
        """Merge a reading into ``count`` slots from ``first`` on."""
        if self._drawn:
            self._forget_columns(first)
        self.newest = max(self.newest, first + count - 1)
        for slot in range(first, first + count):
            index = slot % _RING
            if self.stamp[index] != slot:
                if self.stamp[index] > slot:
                    continue  # older than the ring reaches
                self.stamp[index] = slot
                self.lo[index], self.hi[index] = lo, hi
            else:
                self.lo[index] = min(self.lo[index], lo)
                self.hi[index] = max(self.hi[index], hi)

    def _forget_columns(self, first: int) -> None:
        """Those that a reading of this slot changes and that are not looked at again anyway."""
        old = [key for key, (last, _) in self._drawn.items() if first // key[0] < last - 1]
        for key in old:
            del self._drawn[key]

    def columns(self, end: int, width: int, count: int) -> Columns:
        """``count`` columns of ``width`` slots each; the last one holds slot ``end``. None: no reading in it.

        The same list as before (not to be changed) where it says the same as before.
        """
        last = end // width
        known_last, cached = self._drawn.get((width, count), (-1, []))
        # Only the columns that a new reading can reach are added up again: the newest, and the one before it.
        moved = last - known_last
        fresh = count if not cached or not 0 <= moved < count else min(count, moved + 2)
        tail = [self.over(index * width, width) for index in range(last - fresh + 1, last + 1)]
        if moved == 0 and fresh < count and cached[-fresh:] == tail:
            return cached
        out = [*cached[moved : moved + count - fresh], *tail]
        self._drawn[(width, count)] = (last, out)
        return out

    def over(self, first: int, count: int) -> Pair | None:
        """Lowest and highest reading in ``count`` slots from ``first`` on; None: none."""
        lo, hi, stamp = self.lo, self.hi, self.stamp
        low, high = math.inf, -math.inf
        for slot in range(first, first + count):
            at = slot % _RING
            if stamp[at] == slot:
                low = min(low, lo[at])
                high = max(high, hi[at])
        return (low, high) if low <= high else None

    def empty(self) -> bool:
        return self.newest < 0


class Sums:
    """Milliseconds throttled per cause and slot, brakes per slot, and which slots were sampled at all."""

    __slots__ = ("_letters", "_oldest", "_total", "_total_brakes", "brakes", "ms", "newest", "stamp")

    def __init__(self) -> None:
        self.ms = {cause: array("d", bytes(8 * _RING)) for cause in CAUSES}
        self.brakes = array("d", bytes(8 * _RING))
        self.stamp = array("q", [-1] * _RING)
        self.newest = -1
        self._total = dict.fromkeys(CAUSES, 0.0)  # running sums over the slots from _oldest on
        self._total_brakes = 0.0
        self._oldest = 0
        self._letters: dict[tuple[int, int], str] = {}

    def copy(self) -> Sums:
        still = Sums.__new__(Sums)
        still.ms = {cause: values[:] for cause, values in self.ms.items()}
        still.brakes, still.stamp = self.brakes[:], self.stamp[:]
        still.newest, still._oldest = self.newest, self._oldest
        still._total, still._total_brakes = dict(self._total), self._total_brakes
        still._letters = dict(self._letters)
        return still

    def put(self, slot: int, ms: dict[str, float], brakes: float) -> None:
        index = slot % _RING
        if self.stamp[index] > slot:
            return
        if slot < self.newest:
            self._letters.clear()
        self.newest = max(self.newest, slot)
        if self.stamp[index] != slot:
            self._forget(index)
            self.stamp[index] = slot
            self.brakes[index] = 0.0
            for cause in CAUSES:
                self.ms[cause][index] = 0.0
        self.brakes[index] += brakes
        counted = slot >= self._oldest
        self._total_brakes += brakes if counted else 0.0
        for cause, value in ms.items():
            self.ms[cause][index] += value
            self._total[cause] += value if counted else 0.0

    def _forget(self, index: int) -> None:
        """Take a slot out of the running sums."""
        if self.stamp[index] >= self._oldest:
            self._total_brakes -= self.brakes[index]
            for cause in CAUSES:
                self._total[cause] -= self.ms[cause][index]

    def cell(self, first: int, width: int) -> str:
        """The letter for ``width`` slots: the gravest cause; ``.`` none, blank not sampled."""
        key = (first, width)
        letter = self._letters.get(key)
        if letter is None:
            letter = self._letter(first, width)
            if first + width <= self.newest:
                if len(self._letters) > 4000:
                    self._letters.clear()
                self._letters[key] = letter
        return letter

    def _letter(self, first: int, width: int) -> str:
        seen = False
        total = dict.fromkeys(CAUSES, 0.0)
        brakes = 0.0
        for slot in range(first, first + width):
            index = slot % _RING
            if self.stamp[index] == slot:
                seen = True
                brakes += self.brakes[index]
                for cause in CAUSES:
                    total[cause] += self.ms[cause][index]
        if brakes >= 0.5:
            return "B"
        for cause in SEVERITY:
            if total[cause] >= _HIDDEN_MS:
                return cause
        return "." if seen else " "

    def totals(self, end: int, slots: int = SLOTS) -> tuple[dict[str, float], int]:
        """Milliseconds per cause and brakes over the ``slots`` slots that end with slot ``end``."""
        if slots < SLOTS:
            return self._part(end - slots + 1, slots)
        oldest = end - SLOTS + 1
        if oldest > self._oldest:
            for slot in range(max(self._oldest, oldest - _RING), oldest):
                if self.stamp[slot % _RING] == slot:
                    self._forget(slot % _RING)
            self._oldest = oldest
        # Sums that go up and down by floating point may end a hair below nothing.
        return {cause: max(0.0, value) for cause, value in self._total.items()}, round(max(0.0, self._total_brakes))

    def _part(self, first: int, count: int) -> tuple[dict[str, float], int]:
        """The same over any part of what is kept, added up anew."""
        seen = [slot % _RING for slot in range(first, first + count) if self.stamp[slot % _RING] == slot]
        total = {cause: sum(values[index] for index in seen) for cause, values in self.ms.items()}
        return total, round(sum(self.brakes[index] for index in seen))
