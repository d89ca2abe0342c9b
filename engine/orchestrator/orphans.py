"""Nodes of runs that are over: queued ones are cancelled, running ones asked to stop.

Ending a run does this in its own transaction. These sweeps are for runs that somebody ended by plain SQL, and for a row
that slipped in under a run while it ended. ``runs_leftovers`` takes those of runs that are not closed yet; here are the
others, found from the jobs' side.
"""

from __future__ import annotations

from engine.queue.ends import ORPHANS_AT_ONCE, cancel_rows
from engine.queue.family import LIVE_RUN, NODE
from engine.store import Db

_NO_RUN = f"not exists (select 1 from workflow_runs r where r.id = j.run_id and r.status in {LIVE_RUN})"


def stop_running(db: Db) -> int:
    """Ask running nodes of runs that are over to stop (their lanes kill them after the grace); how many."""
    with db.transaction():
        rows = db.all(  # skipping what is being finished: waiting for it in another order can deadlock
            "select j.id, j.claimed_box, j.queue from workflow_node_jobs j where j.status = 'running' "
            f"and j.cancel_requested = {{false}} and {_NO_RUN} {_lock(db)}"
        )
        if rows:
            db.run(
                "update workflow_node_jobs set cancel_requested = {true} where id {any[ids]} and status = 'running'",
                ids=[row["id"] for row in rows],
            )
        for box, queue in sorted({(row["claimed_box"] or "*", row["queue"]) for row in rows}):
            db.notify("worker_control", f"{box}:{queue}")
    return len(rows)


def cancel_queued(db: Db) -> int:
    """Cancel queued nodes of runs that are over, up to 2,000; how many."""
    count = 0
    for due in ("run_after is null", "run_after is not null"):
        with db.transaction():
            rows = db.all(
                f"select j.id from workflow_node_jobs j where j.status = 'queued' and j.{due} and {_NO_RUN} "
                f"limit {{n}} {_lock(db)}",
                n=ORPHANS_AT_ONCE - count,
            )
            cancel_rows(db, NODE, [row["id"] for row in rows], "the run is over")
        count += len(rows)
    return count


def _lock(db: Db) -> str:
    return "for update of j skip locked" if db.kind == "postgresql" else ""
