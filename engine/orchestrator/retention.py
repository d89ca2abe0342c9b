"""Old rows go: runs, jobs and events after 30 days, the outbox after one; whatever lives, or is wanted by what lives, stays.

No index serves this: each table is walked along its primary key, from the oldest row on, a batch at a time, until a
batch has nothing old in it. A pass takes half a second at most; the next one goes on where it ended. Boxes are kept for
ever (a scheduler forgets its own fires). A setting of 0 days keeps that kind of row for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine import config
from engine.orchestrator.sweeps import Clock, Sweep
from engine.queue.family import INGEST, LIVE_INGEST, NODE
from engine.store import Db

BATCH = {"postgresql": 1000, "sqlite": 500}
RUNS_AT_ONCE = 100  # a run may have thousands of nodes;
NODE_BATCHES = 4  # those go by batches of their own, so many in one step
PASS_S = 0.5
AGAIN_S = 60.0  # between two walks over a table
DAY_S = 86400.0
ENDED = "('completed', 'failed', 'cancelled')"
CLOSED = "('completed', 'failed', 'cancelled', 'skipped')"


@dataclass
class Walk:
    """One table's walk. ``step(db, after, keep_s, n)``: delete what is old in the batch behind id ``after``; the last id
    of the batch (None: there is nothing old any more) and how many rows went."""

    name: str
    setting: str  # of the days that rows are kept
    step: Callable[[Db, int, float, int], tuple[int | None, int]]
    after: int = 0
    due: float = field(default=0.0)


class Retention:
    """The sweep, and how far each of its walks has come."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self.walks = [
            Walk("runs", "retention_runs_days", runs),
            Walk("jobs", "retention_jobs_days", jobs),
            Walk("events", "retention_events_days", _plain("job_events", "created_at")),
            Walk("control_events", "retention_events_days", _plain("control_events", "at")),
            Walk("inputs", "retention_runs_days", _plain("input_submissions", "processed_at", "status <> 'pending'")),
            Walk("outbox", "retention_outbox_days", _plain("workflow_dispatch_events", "processed_at")),
            Walk("model_orders", "retention_outbox_days", _plain("model_orders", "expires_at")),
            Walk("services", "retention_workers_days", services),
            Walk("heartbeats", "retention_workers_days", heartbeats),
        ]

    def sweep(self) -> Sweep:
        return Sweep("retention", 10.0, self.clean, self._clock, duty=10.0)

    def clean(self, db: Db) -> int:
        """One pass over what is due; the number of rows deleted. A walk that fails keeps no other waiting."""
        until = time.monotonic() + PASS_S
        count = 0
        failed: Exception | None = None
        for walk in sorted(self.walks, key=lambda walk: walk.due):
            try:
                count += self._walk(db, walk, until)
            except Exception as error:
                if db.closed:
                    raise
                walk.after, walk.due = 0, self._clock() + AGAIN_S
                failed = failed or error
        if failed is not None:
            raise failed
        return count

    def _walk(self, db: Db, walk: Walk, until: float) -> int:
        keep_s = float(config.get(walk.setting)) * DAY_S
        count = 0
        while keep_s > 0 and self._clock() >= walk.due and time.monotonic() < until:
            last, gone = walk.step(db, walk.after, keep_s, BATCH[db.kind])
            count += gone
            if last is None:
                walk.after, walk.due = 0, self._clock() + AGAIN_S
            else:
                walk.after, walk.due = last, self._clock()  # the others first, if time is short
            if db.kind == "sqlite" and gone:
                time.sleep(0.002)  # others write, too
        return count


def _plain(table: str, at: str, when: str = "") -> Callable[[Db, int, float, int], tuple[int | None, int]]:
    """The step over a table whose rows depend on nothing: ``at`` is the time that counts, ``when`` what may go."""
    condition = f" and {when}" if when else ""

    def step(db: Db, after: int, keep_s: float, n: int) -> tuple[int | None, int]:
        # A row whose time is not set yet is as old as its id says: the walk goes past it.
        rows = db.all(
            f"select id, case when {at} < {{before[keep_s]}}{condition} then 1 else 0 end as goes, "
            f"case when coalesce({at}, {{before[keep_s]}}) <= {{before[keep_s]}} then 1 else 0 end as old "
            f"from {table} where id > {{past}} order by id limit {{n}}",
            past=after,
            keep_s=keep_s,
            n=n,
        )
        ids = [row["id"] for row in rows if row["goes"]]
        gone = db.run(f"delete from {table} where id {{any[ids]}}{condition}", ids=ids) if ids else 0
        return _last(rows, n), gone

    return step


def _last(rows: Sequence[dict[str, Any]], n: int) -> int | None:
    """Where the next batch begins; None: this one was the table's last, or nothing in it was old."""
    if len(rows) < n or not any(row["old"] for row in rows):
        return None
    return int(rows[-1]["id"])


def _aged(db: Db, table: str, after: int, keep_s: float, n: int) -> list[dict[str, Any]]:
    """A batch of runs or ingest jobs: whether each may go by its age and status, whether it was made long ago."""
    return db.all(
        f"select id, case when status in {ENDED} and coalesce(finished_at, created_at) < {{before[keep_s]}} "
        "then 1 else 0 end as goes, case when created_at < {before[keep_s]} then 1 else 0 end as old "
        f"from {table} where id > {{past}} order by id limit {{n}}",
        past=after,
        keep_s=keep_s,
        n=n,
    )


def _retried(db: Db, table: str, ids: Sequence[int]) -> set[int]:
    """Those of these runs or jobs whose retry is still going."""
    live = " union all ".join(
        f"select retry_of from {table} where {which} and retry_of {{any[ids]}}" for which in _LIVE[table]
    )
    return {row["retry_of"] for row in db.all(live, ids=list(ids))}


_LIVE = {"workflow_runs": ("status in ('queued', 'running')",), "ingest_jobs": LIVE_INGEST}


def runs(db: Db, after: int, keep_s: float, n: int) -> tuple[int | None, int]:
    """Runs that ended long ago, with their nodes. Kept: one with an open node, and one whose retry is still going."""
    n = min(n, RUNS_AT_ONCE)
    rows = _aged(db, "workflow_runs", after, keep_s, n)
    ids = [row["id"] for row in rows if row["goes"]]
    if not ids:
        return _last(rows, n), 0
    kept = _retried(db, "workflow_runs", ids)
    kept |= {
        row["run_id"]
        for row in db.all(
            f"select distinct run_id from workflow_node_jobs where run_id {{any[ids]}} and status not in {CLOSED}",
            ids=ids,
        )
    }
    ids = [id for id in ids if id not in kept]
    if not ids:
        return _last(rows, n), 0
    gone = 0
    for _ in range(NODE_BATCHES):
        nodes = db.all(
            f"select id from workflow_node_jobs where run_id {{any[ids]}} and status in {CLOSED} limit {{n}}",
            ids=ids,
            n=BATCH[db.kind],
        )
        if not nodes:
            break
        gone += _delete_jobs(db, NODE.name, NODE.table, [row["id"] for row in nodes], CLOSED)
    else:
        return after, gone  # there may be more: once more from here
    gone += db.run(f"delete from workflow_runs where id {{any[ids]}} and status in {ENDED}", ids=ids)
    return _last(rows, n), gone


def jobs(db: Db, after: int, keep_s: float, n: int) -> tuple[int | None, int]:
    """Ingest jobs that ended long ago, with their effects and logs. Kept: one whose retry is still going."""
    rows = _aged(db, INGEST.table, after, keep_s, n)
    ids = [row["id"] for row in rows if row["goes"]]
    if ids:
        kept = _retried(db, INGEST.table, ids)
        ids = [id for id in ids if id not in kept]
    return _last(rows, n), _delete_jobs(db, INGEST.name, INGEST.table, ids, ENDED) if ids else 0


def _delete_jobs(db: Db, family: str, table: str, ids: Sequence[int], ended: str) -> int:
    """Delete jobs with all that hangs on them, in one transaction."""
    with db.transaction():
        # Terminal rows never reopen; that they are terminal is asked once more all the same.
        gone = [
            row["id"]
            for row in db.all(f"delete from {table} where id {{any[ids]}} and status in {ended} returning id", ids=ids)
        ]
        db.run("delete from job_logs where family = {family} and job_id {any[ids]}", family=family, ids=gone)
        db.run("delete from job_hardware where job_id {any[ids]}", ids=gone)
        if family == INGEST.name:
            db.run("delete from executions where job_id {any[ids]}", ids=gone)
    return len(gone)


def services(db: Db, after: int, keep_s: float, n: int) -> tuple[int | None, int]:
    """Rows of processes that have not been heard of for long."""
    return None, db.run("delete from services where last_seen < {before[keep_s]}", keep_s=keep_s)


def heartbeats(db: Db, after: int, keep_s: float, n: int) -> tuple[int | None, int]:
    """Lanes that have not been heard of for long and hold nothing."""
    held = " and ".join(
        f"not exists (select 1 from {family.table} j where j.status = 'running' and j.queue = worker_heartbeats.queue "
        "and j.project = worker_heartbeats.project and j.claimed_box = worker_heartbeats.box)"
        for family in (NODE, INGEST)
    )
    return None, db.run(f"delete from worker_heartbeats where last_seen < {{before[keep_s]}} and {held}", keep_s=keep_s)
