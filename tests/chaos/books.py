"""Reads the books of a run out of its database, and on SQLite watches the marks of lanes while it runs."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from pathlib import Path

from engine.store import Db
from tests.chaos.journal import Journal
from tests.chaos.load import Asked
from tests.chaos.verdict import Books

_JOB = "id, status, attempt, failures, losses, watchdog_retries, fencing_token"


def read(db: Db, asked: Asked, journal: Journal, watch: Watch | None) -> Books:
    jobs = db.all(
        f"select 'ingest' as family, {_JOB}, task_name as name, idempotency_key, null as run_id, null as node_id, "
        "null as output from ingest_jobs order by id"
    )
    nodes = db.all(
        f"select 'node' as family, {_JOB}, node as name, null as idempotency_key, run_id, node_id, output "
        "from workflow_node_jobs order by id"
    )
    return Books(
        jobs=[*jobs, *nodes],  # one numbering for both
        runs=db.all("select id, status, error, finished_at from workflow_runs order by id"),
        audit=db.all("select * from chaos_audit order by id"),
        events=db.all("select * from job_events order by id"),
        executions=db.all("select * from executions"),
        effects=db.all("select * from chaos_effects order by id"),
        outbox=db.all("select * from workflow_dispatch_events order by id"),
        freezes=journal.freezes,
        held_at=watch.spans if watch is not None else {},
        asked_jobs=asked.jobs,
        asked_runs=asked.runs,
        cancelled_jobs=frozenset(asked.cancelled_jobs),
        cancelled_runs=frozenset(asked.cancelled_runs),
    )


class Watch(threading.Thread):
    """The marks of the lanes of a SQLite store, from the kernel's own list of locks: looking disturbs nobody."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="watch", daemon=True)
        self._folder = folder
        self._ending = threading.Event()
        self.spans: dict[str, list[tuple[float, float]]] = defaultdict(list)  # incarnation -> seen held from, to

    def run(self) -> None:
        before: set[str] = set()
        while not self._ending.wait(0.1):
            now = time.time()
            locked = _locked_inodes()
            held = set()
            for path in self._folder.glob("*.lock"):
                try:
                    if path.stat().st_ino in locked:
                        held.add(path.stem)
                except OSError:
                    continue
            for name in held:
                spans = self.spans[name]
                if name in before:
                    spans[-1] = (spans[-1][0], now)
                else:
                    spans.append((now, now))
            before = held

    def end(self) -> None:
        self._ending.set()
        self.join(5)


def _locked_inodes() -> set[int]:
    """Inodes that somebody holds an exclusive flock on."""
    with open("/proc/locks") as file:
        rows = [line.split() for line in file]
    return {int(row[5].rsplit(":", 1)[-1]) for row in rows if row[1] == "FLOCK" and row[3] == "WRITE"}
