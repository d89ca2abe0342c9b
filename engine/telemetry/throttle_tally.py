"""Counters of how long each box was held back, and by what: they begin at nothing and only ever grow.

Kept by the process that tells them, which reads on in the recorders' samples; a recorder that was cut off writes what it had
kept, oldest first, and that is counted then. Causes overlap: they are never added up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from engine.store import Db
from engine.telemetry.rows import AHEAD_S, MOST

CAUSES: Mapping[str, str] = {  # label -> column, milliseconds since the sample before
    "power": "power_ms",
    "thermal": "thermal_ms",
    "brake": "gpu_hw_brake_ms",
    "sync_boost": "gpu_sync_boost_ms",
    "cpu": "cpu_throttle_ms",
}
AT_ONCE = 20_000  # samples
BACK = timedelta(minutes=15)  # a recorder writes what it kept during an outage of ten
BOXES_MOST = 200


class ThrottleTally:
    """Seconds by (box, cause). For one thread at a time."""

    def __init__(self) -> None:
        self.seconds: Counter[tuple[str, str]] = Counter()
        self._marks: dict[str, datetime] = {}
        self._begun: datetime | None = None

    def read(self, db: Db) -> None:
        """Count the samples that are new, up to AT_ONCE of them."""
        now = db.now()
        if self._begun is None:
            self._begun = now
        past = max(self._begun, min((mark for mark in self._marks.values() if mark > now - BACK), default=self._begun))
        rows = db.all(
            f"select box, at, {', '.join(CAUSES.values())} from flight_recorder where tier = 'detail' and at > {{past}} "
            "and at <= {after[ahead]} order by at limit {n}",
            past=past if self._marks else self._begun,
            ahead=AHEAD_S,
            n=AT_ONCE,
        )
        for row in rows:
            self._take(row)

    def _take(self, row: Mapping[str, Any]) -> None:
        box, begun = row["box"], self._begun
        if not isinstance(box, str) or (box not in self._marks and len(self._marks) >= BOXES_MOST):
            return
        if begun is None or row["at"] <= self._marks.get(box, begun):
            return
        self._marks[box] = row["at"]
        for cause, column in CAUSES.items():
            value = row[column]
            if isinstance(value, int | float) and 0 <= value <= MOST:
                self.seconds[(box, cause)] += float(value) / 1000.0  # type: ignore[assignment]
