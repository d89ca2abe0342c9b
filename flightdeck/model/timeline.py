"""The time axis of a page that lays things over each other: columns snapped to the epoch, ticks in the viewer's zone. Pure.

Charts, strips and jobs of one width take the same axis, so that the same column is the same time in all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property

from flightdeck.model.axis import slot_step

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_TICKS_S = (
    15, 30, _MINUTE, 2 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE,
    _HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 2 * _DAY,
)  # fmt: skip
TICK_CELLS = 10  # from one tick to the next at least


@dataclass(frozen=True)
class Timeline:
    """``cells`` characters (two dot columns each) for ``span_s`` seconds that end at ``end``; the newest stands right."""

    end: datetime
    span_s: int
    cells: int

    @cached_property
    def slot_s(self) -> int:
        """Seconds of a slot of the history that holds this span."""
        return slot_step(self.span_s)

    @cached_property
    def slots(self) -> int:
        """Slots to a dot column."""
        return max(1, math.ceil(self.span_s / self.slot_s / max(2, self.cells * 2)))

    @cached_property
    def column_s(self) -> int:
        """Seconds to a dot column."""
        return self.slots * self.slot_s

    @cached_property
    def count(self) -> int:
        """Dot columns that the span needs: at most two to a cell."""
        return min(max(2, self.cells * 2), math.ceil(self.span_s / self.column_s))

    @cached_property
    def shift(self) -> int:
        """Dot columns that stay empty at the left."""
        return self.cells * 2 - self.count

    @cached_property
    def last(self) -> int:
        """Number of the newest column, counted from the epoch."""
        return int(self.end.timestamp() // self.column_s)

    @cached_property
    def first(self) -> int:
        return self.last - self.count + 1

    @cached_property
    def start(self) -> datetime:
        return datetime.fromtimestamp(self.first * self.column_s, UTC)

    def column(self, at: datetime) -> int:
        """The column that holds an instant; outside 0 to ``count`` - 1 it is not in sight."""
        return int(at.timestamp() // self.column_s) - self.first

    def cell(self, column: int) -> int:
        """The character of a column."""
        return (column + self.shift) // 2

    def columns_of(self, cell: int) -> range:
        """The columns in a character; empty where nothing is drawn."""
        first = cell * 2 - self.shift
        return range(max(0, first), min(self.count, first + 2))

    def ticks(self, zone: tzinfo | None = None) -> tuple[tuple[int, str], ...]:
        """(column, text) at round times of the viewer's zone (None: the machine's). Hours are those of its wall clock."""
        wanted = TICK_CELLS * 2 * self.column_s
        step = next((size for size in _TICKS_S if size >= wanted), _TICKS_S[-1])
        found: list[tuple[int, str]] = []
        at = self.start
        while at <= self.end:
            local = at.astimezone(zone)
            second = local.hour * _HOUR + local.minute * _MINUTE + local.second
            over = (second + (local.toordinal() * _DAY if step > _DAY else 0)) % step
            if over:
                # To the next round time. Across a change of the clock the rest is looked for anew.
                at += timedelta(seconds=step - over) if step <= _HOUR else timedelta(seconds=_to_hour(local))
                continue
            column = self.column(at)
            if 0 <= column < self.count:
                found.append(
                    (column, local.strftime("%a %d" if step >= _DAY else "%H:%M:%S" if step < _MINUTE else "%H:%M"))
                )
            at += timedelta(seconds=step if step <= _HOUR else _HOUR)
        return tuple(found)


def _to_hour(local: datetime) -> int:
    """Seconds to the next full hour of a wall clock."""
    return _HOUR - local.minute * _MINUTE - local.second
