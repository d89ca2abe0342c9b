"""A failed or cancelled run once more, as a new run: what had finished is taken over, the rest runs again."""

from __future__ import annotations

from engine.dag.runs import GraphCache, advance
from engine.errors import NotFound
from engine.queue.family import LIVE_RUN, for_update, row_id
from engine.queue.operate import Done, log_control
from engine.store import Db

_COPIED = (
    "node_id, node, queue, required_model, status, priority, inputs, output, max_attempts, budget_s, avoid_boxes, "
    "only_boxes, project"
)


def retry_run(db: Db, run_id: int | str, requested_by: str | None = None) -> Done:
    """Start a new run with the graph, context, priority and project of one that failed or was cancelled.

    Nodes that completed keep their output, nodes that were skipped stay skipped; everything else runs again. ``id`` of
    the answer is the new run's; None when there was nothing to retry, with the reason. One transaction; of two that
    ask at once, one is told about the other's run. Raises NotFound.
    """
    number = row_id(run_id, "run")
    with db.transaction():
        run = db.one(
            f"select id, status, finished_at, project from workflow_runs where id = {{id}} {for_update(db)}", id=number
        )
        if run is None:
            raise NotFound(f"no run {run_id}")
        if run["status"] not in ("failed", "cancelled"):
            done = Done(0, f"run {number} is {run['status']}: only a failed or cancelled run can be retried")
        elif run["finished_at"] is None:
            left = db.value(
                "select count(*) as n from workflow_node_jobs where run_id = {id} and status = 'running'", id=number
            )
            done = Done(
                0, f"run {number} is {run['status']}, but {left} of its nodes still run: retry it when they ended"
            )
        elif (live := _live_retry(db, number)) is not None:
            done = Done(0, f"run {number} is being retried already, as run {live}")
        else:
            new = _copy(db, number)
            advance(db, new, GraphCache())
            done = Done(1, f"run {number} started again as run {new}", str(new))
        log_control(
            db,
            "retry_run",
            done,
            requested_by,
            project=run["project"],
            detail={"run_id": str(number), "new_id": done.id},
        )
    return done


def _live_retry(db: Db, run_id: int) -> int | None:
    """A retry of this run that has not ended; reads only runs that have not."""
    found: int | None = db.value(
        f"select id from workflow_runs where retry_of = {{id}} and status in {LIVE_RUN} "
        "union all select id from workflow_runs where retry_of = {id} and status in ('failed', 'cancelled') "
        "and finished_at is null limit 1",
        id=run_id,
    )
    return found


def _copy(db: Db, run_id: int) -> int:
    """The new run and what the old one had finished."""
    new = int(
        db.value(
            "insert into workflow_runs (workflow_name, graph, priority, context, project, retry_of) "
            "select workflow_name, graph, priority, context, project, id from workflow_runs where id = {id} returning id",
            id=run_id,
        )
    )
    db.run(
        f"insert into workflow_node_jobs (run_id, {_COPIED}, finished_at) select {{new}}, {_COPIED}, {{now}} "
        "from workflow_node_jobs where run_id = {id} and status in ('completed', 'skipped') order by id",
        new=new,
        id=run_id,
    )
    return new
