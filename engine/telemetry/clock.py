"""The database's time on a box, whatever the box's own clock says."""

from __future__ import annotations

import time
from datetime import UTC, datetime

CLOCK_STEP_S = 0.05  # the database's clock is followed when it is off by more


class DatabaseClock:
    """The database's time without asking for it: an offset to a clock that nobody sets, and that counts suspends."""

    def __init__(self) -> None:
        self._offset = time.time() - uptime()  # until the database says better

    def now(self) -> datetime:
        return datetime.fromtimestamp(uptime() + self._offset, UTC)

    def set(self, database_now: datetime, asked_at: float, answered_at: float) -> None:
        """Take over the database's time, read between two readings of ``uptime``; small differences are noise."""
        offset = database_now.timestamp() - (asked_at + answered_at) / 2
        if abs(offset - self._offset) > max(CLOCK_STEP_S, answered_at - asked_at):
            self._offset = offset


def uptime() -> float:
    """Seconds on a clock that only runs forward and does not stop in suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
