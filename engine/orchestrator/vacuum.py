"""Vacuuming the job tables where the server does it too seldom. PostgreSQL only.

Every job leaves two dead versions of its row and dead entries at the head of the claim's index, which every claim then
reads. The tables ask autovacuum to come after 10,000 of them; where it looks only once a minute, as it does by default,
60,000 may have gathered at a thousand jobs a second. The leader looks every five seconds and does it itself.
"""

from __future__ import annotations

import time
from typing import Any

from engine.orchestrator.sweeps import Clock, Sweep
from engine.queue.family import FAMILIES
from engine.store import Db

DEAD_ROWS = 60_000  # about 30,000 finished jobs
STATEMENT_S = 300.0
TABLES = (*(family.table for family in FAMILIES), "workflow_dispatch_events")


class Vacuum:
    """The sweep, and what each table looked like after the last time."""

    def __init__(self, clock: Clock = time.monotonic, dead_rows: int = DEAD_ROWS) -> None:
        self._clock = clock
        self._dead_rows = dead_rows
        self._left: dict[str, int] = {}  # what a vacuum could not remove: a held snapshot

    def sweep(self) -> Sweep:
        return Sweep("vacuum", 5.0, self.vacuum, self._clock, duty=10.0)

    def vacuum(self, db: Db) -> int:
        """Vacuum what has gathered enough; the number of tables. Never waits for a lock."""
        count = 0
        for table in TABLES:
            dead, left = _dead(db, table), self._left.get(table, 0)
            # The same ones again: nothing can remove them until somebody's snapshot is gone (``doctor`` names it).
            if dead - left < self._dead_rows:
                self._left[table] = min(dead, left)
                continue
            db.run(f"vacuum (index_cleanup on, truncate off, skip_locked on) {table}")
            self._left[table] = _dead(db, table)
            count += 1
        return count


def _dead(db: Db, table: str) -> int:
    found: Any = db.value("select n_dead_tup from pg_stat_all_tables where relid = {name}::regclass", name=table)
    return int(found or 0)
