"""Ends that nobody ran: queued jobs that are cancelled, runs that are over, and what they leave behind."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import BadInput
from engine.queue import events, inputs
from engine.queue.family import LIVE_RUN, NODE, Family, row_id
from engine.queue.texts import clean_text
from engine.store import Db

ORPHANS_AT_ONCE = 2000


def cancel_rows(db: Db, family: Family, ids: Sequence[int], error: str, requested_by: str | None = None) -> None:
    """Mark these jobs cancelled, with their events. The caller holds their locks and knows that they do not run."""
    if not ids:
        return
    db.run(
        f"update {family.table} set status = 'cancelled', finished_at = {{now}}, error = {{error}}, "
        "lease_expires_at = null where id {any[ids]}",
        ids=list(ids),
        error=clean_text(error),
    )
    detail = {"reason": error}
    if requested_by:
        detail["requested_by"] = requested_by
    events.record_rows(db, family, ids, "cancelled", detail=detail)


def cancel_orphans(db: Db, queue: str, project: str) -> int:
    """Cancel queued nodes of runs that are over, up to 2,000. Returns how many.

    Ending a run cancels its nodes in the same transaction; this is for runs that a plain SQL statement ended.
    """
    lock = "for update of j skip locked" if db.kind == "postgresql" else ""
    with db.transaction():
        rows = db.all(
            "select j.id from workflow_node_jobs j where j.queue = {queue} and j.project = {project} "
            f"and j.status = 'queued' and not exists (select 1 from workflow_runs r where r.id = j.run_id "
            f"and r.status in {LIVE_RUN}) limit {{limit}} {lock}",
            queue=queue,
            project=project,
            limit=ORPHANS_AT_ONCE,
        )
        cancel_rows(db, NODE, [row["id"] for row in rows], "the run is over")
    return len(rows)


def end_run(db: Db, run_id: int | str, status: str, error: str | None, requested_by: str | None = None) -> bool:
    """End a live run as ``failed`` or ``cancelled``: its queued nodes are cancelled, its running ones asked to stop.

    One transaction; False (and nothing changed) when the run is over already or unknown. ``finished_at`` is set here
    only when nothing runs any more; else by whoever ends the last node. A claim that races with this either sees the
    run over, or skips the locked row, or is seen by the one UPDATE below through re-evaluation.
    """
    if status not in ("failed", "cancelled"):
        raise BadInput(f"a run ends as failed or cancelled, not as {status!r}")
    number = row_id(run_id, "run")
    reason = error or f"run {status}"
    with db.transaction():
        ended = db.run(
            "update workflow_runs set status = {status}, error = {error} "
            f"where id = {{id}} and status in {LIVE_RUN}",
            id=number,
            status=status,
            error=clean_text(error),
        )
        if not ended:
            return False
        if db.kind == "postgresql":  # in the order of the ids, as a finish takes them: any other order can deadlock
            db.all(
                "select id from workflow_node_jobs where run_id = {id} "
                "and status in ('queued', 'running', 'awaiting_input') order by id for update",
                id=number,
            )
        rows = db.all(
            "update workflow_node_jobs set "
            "status = case when status = 'running' then status else 'cancelled' end, "
            "cancel_requested = case when status = 'running' then {true} else cancel_requested end, "
            "finished_at = case when status = 'running' then finished_at else {now} end, "
            "error = case when status = 'running' then error else {error} end "
            "where run_id = {id} and status in ('queued', 'running', 'awaiting_input') "
            "returning id, status, claimed_box, queue",
            id=number,
            error=clean_text(f"run {status}: {error}" if error else reason),
        )
        cancelled = [row["id"] for row in rows if row["status"] == "cancelled"]
        running = [row for row in rows if row["status"] == "running"]
        detail = {"reason": reason, **({"requested_by": requested_by} if requested_by else {})}
        if cancelled:
            events.record_rows(db, NODE, cancelled, "cancelled", detail=detail)
        inputs.fail_pending(db, number, f"run {status}: {reason}" if error else reason)
        for box, queue in sorted({(row["claimed_box"], row["queue"]) for row in running}):
            db.notify("worker_control", f"{box}:{queue}")
        if not running:
            db.run("update workflow_runs set finished_at = {now} where id = {id} and finished_at is null", id=number)
    return True
