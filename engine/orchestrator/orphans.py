"""Nodes of runs that are over: queued ones are cancelled, running ones asked to stop.

Ending a run does this in its own transaction. These sweeps are for runs that somebody ended by plain SQL, and for a row
that slipped in under a run while it ended. ``runs_leftovers`` takes those of runs that are not closed yet; here are the
others, found from the jobs' side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.queue.ends import ORPHANS_AT_ONCE, cancel_rows
from engine.queue.family import LIVE_RUN, NODE
from engine.store import Db

_NO_RUN = f"not exists (select 1 from workflow_runs r where r.id = j.run_id and r.status in {LIVE_RUN})"


def stop_running(db: Db) -> int:
    """Ask running nodes of runs that are over to stop (their lanes kill them after the grace); how many."""
    found = db.all(
        f"select j.id from workflow_node_jobs j where j.status = 'running' and j.cancel_requested = {{false}} and {_NO_RUN}"
    )
    if not found:
        return 0
    with db.transaction():
        rows = _still(db, found, "running")
        db.run(
            "update workflow_node_jobs set cancel_requested = {true} where id {any[ids]}",
            ids=[row["id"] for row in rows],
        )
        for box, queue in sorted({(row["claimed_box"] or "*", row["queue"]) for row in rows}):
            db.notify("worker_control", f"{box}:{queue}")
    return len(rows)


def cancel_queued(db: Db) -> int:
    """Cancel queued nodes of runs that are over, up to 2,000; how many."""
    count = 0
    for due in ("run_after is null", "run_after is not null"):
        found = db.all(
            f"select j.id from workflow_node_jobs j where j.status = 'queued' and j.{due} and {_NO_RUN} limit {{n}}",
            n=ORPHANS_AT_ONCE - count,
        )
        if found:
            with db.transaction():
                rows = _still(db, found, "queued")
                cancel_rows(db, NODE, [row["id"] for row in rows], "the run is over")
            count += len(rows)
    return count


def _still(db: Db, found: Sequence[Mapping[str, Any]], status: str) -> list[dict[str, Any]]:
    """Those that are in this state still, locked. What is being finished or claimed is left to the next time: waiting
    for it, in another order than a finish takes its rows, can deadlock. A run that is over stays so."""
    return db.all(
        "select id, claimed_box, queue from workflow_node_jobs where id {any[ids]} and status = {status} "
        "order by id {skip_locked}",
        ids=[row["id"] for row in found],
        status=status,
    )
