"""Flight Deck's engine: a fleet of boxes whose queue is a database. The public API; everything else is private.

Calls that take ``conn`` accept a psycopg or sqlite3 connection and join its transaction; without one they open the
configured store, do one thing and close it. Ids are texts. Errors are :class:`EngineError` and its subclasses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from engine import config as _config
from engine.config import ConfigError, EngineError, configure
from engine.registry import (
    ingest_task,
    node,
    register_ingest_task,
    register_model,
    register_node,
    register_workflow,
)

if TYPE_CHECKING:
    from pathlib import Path

    from engine.queue.enqueue import Job
    from engine.store import Db

__all__ = [
    "ConfigError",
    "EngineError",
    "awaiting_input",
    "bootstrap",
    "cancel_job",
    "cancel_run",
    "complete_job",
    "configure",
    "cordon",
    "downgrade_host",
    "enqueue_ingest_job",
    "enqueue_many",
    "fleet_snapshot",
    "ingest_task",
    "job_log",
    "kill_job",
    "migrate_host",
    "node",
    "park",
    "preload_model",
    "register_ingest_task",
    "register_model",
    "register_node",
    "register_schedule",
    "register_workflow",
    "resume",
    "retry_job",
    "retry_run",
    "run_next",
    "submit_input",
    "submit_run",
    "uncordon",
    "unload_model",
]


def bootstrap() -> list[int]:
    """Bring the configured database to this program's schema; the versions applied. Idempotent."""
    from engine.store import open_store
    from engine.store.migrate import migrate

    return migrate(open_store())


def register_schedule(
    name: str,
    cron: str,
    *,
    task_name: str,
    queue: str,
    args: Mapping[str, Any] | None = None,
    tz: str = "UTC",
    misfire: str = "one",
    jitter_s: float = 0.0,
) -> None:
    """Enqueue a job of ``task_name`` at every tick of ``cron``; queue-scheduler does it, wherever it loads this app.

    ``misfire``: what becomes of missed ticks, ``skip``, ``one`` (the newest) or ``all``. ``jitter_s``: the job starts up
    to so many seconds later. Raises BadInput, UnknownTask, UnknownQueue and PayloadError, each with the name.
    """
    from engine.scheduler.entries import register

    register(name, cron, task_name, queue, args, tz, misfire, jitter_s)


def migrate_host(directory: str | Path, ledger: str) -> list[int]:
    """Apply a host's own migrations to the configured database, beside ours; the versions applied. Idempotent.

    ``directory`` holds ``postgres/`` and ``sqlite/`` with ``NNNN_name.sql`` and ``NNNN_name.down.sql``; ``ledger`` is the
    table that records them. Safe from many processes at once, as :func:`bootstrap`. Raises ConfigError, SchemaMismatch.
    """
    from pathlib import Path

    from engine.store import open_store
    from engine.store.migrate import check_host_chain, migrate

    check_host_chain(Path(directory), ledger)
    return migrate(open_store(), directory=Path(directory), ledger=ledger)


def downgrade_host(directory: str | Path, ledger: str, to_version: int = 0) -> list[int]:
    """Take back a host's own migrations above ``to_version``, newest first; the versions taken back."""
    from pathlib import Path

    from engine.store import open_store
    from engine.store.migrate import check_host_chain, downgrade

    check_host_chain(Path(directory), ledger)
    return downgrade(open_store(), to_version, directory=Path(directory), ledger=ledger)


def submit_run(
    graph_or_name: Mapping[str, Any] | str,
    context: Mapping[str, Any] | None = None,
    priority: int = 100,
    project: str | None = None,
    conn: Any = None,
) -> str:
    """Start a graph (or a registered workflow); the run's id. Raises GraphError and PayloadError before any write."""
    from engine.dag.runs import submit_run as submit

    with _database(conn) as db:
        return str(submit(db, graph_or_name, context, priority, _project(project)))


def enqueue_ingest_job(
    *,
    task_name: str,
    queue: str,
    args: Mapping[str, Any] | None = None,
    priority: int = 100,
    max_attempts: int | None = None,
    run_after: datetime | None = None,
    idempotency_key: str | None = None,
    project: str | None = None,
    conn: Any = None,
) -> Job:
    """Queue one stand-alone job. Unknown task or queue, or a bad payload, is refused before any write."""
    from engine.queue.enqueue import enqueue

    with _database(conn) as db:
        return enqueue(
            db,
            task_name=task_name,
            queue=queue,
            args=args,
            priority=priority,
            max_attempts=max_attempts,
            run_after=run_after,
            idempotency_key=idempotency_key,
            project=_project(project),
        )


def enqueue_many(
    *, task_name: str, queue: str, args_list: Sequence[Mapping[str, Any]], project: str | None = None, conn: Any = None
) -> list[str]:
    """Queue many jobs of one task at once (COPY); their ids, in order."""
    from engine.queue.enqueue import enqueue_many as enqueue

    with _database(conn) as db:
        return [
            str(i)
            for i in enqueue(db, task_name=task_name, queue=queue, args_list=args_list, project=_project(project))
        ]


def complete_job(conn: Any, job: Any, result: Mapping[str, Any] | None) -> None:
    """Complete ``ctx.job`` inside the task's own transaction. Raises StaleClaim when the claim is lost: roll back."""
    from engine.queue.finish import complete_job as complete

    complete(conn, job, result)


def park(
    *,
    queue: str,
    box: str | None = None,
    policy: str = "hard",
    project: str | None = None,
    reason: str | None = None,
    until: datetime | None = None,
    requested_by: str | None = None,
) -> str:
    """Order lanes off (``box``/``queue`` ``"*"``: all of them; ``box`` None: this box); what was done, in words.

    hard: running jobs are killed and queued again at the front. drain: they end, nothing new is claimed.
    """
    from engine.orders import check_queue
    from engine.queue import operate

    with _database() as db:
        check_queue(db, queue)
        return operate.park(
            db,
            queue=queue,
            box=box or _config.box_name(),
            policy=policy,
            project=_project(project),
            reason=reason,
            until=until,
            requested_by=requested_by,
        ).message


def resume(*, queue: str, box: str | None = None, project: str | None = None, requested_by: str | None = None) -> str:
    """Order lanes on; what was done, in words."""
    from engine.orders import check_queue
    from engine.queue import operate

    with _database() as db:
        check_queue(db, queue)
        return operate.resume(
            db, queue=queue, box=box or _config.box_name(), project=_project(project), requested_by=requested_by
        ).message


def cordon(
    *,
    box: str | None = None,
    policy: str = "hard",
    project: str | None = None,
    reason: str | None = None,
    until: datetime | None = None,
    requested_by: str | None = None,
) -> str:
    """Order every lane of a box off, by one order that :func:`uncordon` removes; what was done, in words."""
    from engine.queue import operate

    with _database() as db:
        return operate.cordon(
            db,
            box=box or _config.box_name(),
            policy=policy,
            project=_project(project),
            reason=reason,
            until=until,
            requested_by=requested_by,
        ).message


def uncordon(*, box: str | None = None, project: str | None = None, requested_by: str | None = None) -> str:
    """Remove a cordon, so that earlier orders for the box's lanes count again; what was done, in words."""
    from engine.queue import operate

    with _database() as db:
        return operate.uncordon(
            db, box=box or _config.box_name(), project=_project(project), requested_by=requested_by
        ).message


def preload_model(
    model: str,
    box: str | None = None,
    queue: str = "gpu",
    project: str | None = None,
    requested_by: str | None = None,
) -> str:
    """Ask lanes to load a model into a free slot that fits it (``box`` ``"*"``: of every box; None: of this one).

    Runs no job over. What was ordered, in words; what the lanes did is in ``model_orders.answers``. Good for ten minutes.
    """
    return _order_model("load", model, box, queue, project, requested_by)


def unload_model(
    model: str,
    box: str | None = None,
    queue: str = "gpu",
    project: str | None = None,
    requested_by: str | None = None,
) -> str:
    """Ask lanes to drop a model, after the job that uses it, and so to let its GPU go; what was ordered, in words."""
    return _order_model("unload", model, box, queue, project, requested_by)


def _order_model(
    action: str, model: str, box: str | None, queue: str, project: str | None, requested_by: str | None
) -> str:
    from engine.orders import check_queue
    from engine.queue.models import order_model

    with _database() as db:
        check_queue(db, queue)
        return order_model(
            db,
            action,
            model,
            box=box or _config.box_name(),
            queue=queue,
            project=_project(project),
            requested_by=requested_by,
        ).message


def run_next(job_id: int | str, requested_by: str | None = None) -> str:
    """Flag a queued job to be claimed before everything else; what was done, or why nothing was."""
    from engine.queue import operate

    with _database() as db:
        return operate.run_next(db, job_id, requested_by).message


def cancel_job(job_id: int | str, requested_by: str | None = None) -> str:
    """Cancel a queued job at once, ask a running one to stop; what was done, or why nothing was."""
    from engine.queue import operate

    with _database() as db:
        return operate.cancel_job(db, job_id, requested_by).message


def cancel_run(run_id: int | str, requested_by: str | None = None) -> str:
    """Cancel a live run; what was done, or why nothing was."""
    from engine.queue import operate

    with _database() as db:
        return operate.cancel_run(db, run_id, requested_by).message


def kill_job(job_id: int | str, requested_by: str | None = None) -> str:
    """Kill the executor of a running job, which is queued again with nothing spent; what was done, or why nothing was."""
    from engine.queue import operate

    with _database() as db:
        return operate.kill_job(db, job_id, requested_by).message


def job_log(job_id: int | str) -> str:
    """The end (64 KiB) of what a job has printed in its latest attempt; empty when nothing. Raises NotFound."""
    from engine.queue.logs import read_tail

    with _database() as db:
        return read_tail(db, job_id)


def retry_job(job_id: int | str, requested_by: str | None = None) -> str:
    """Queue a failed or cancelled ingest job once more; the new job's id.

    Raises Conflict when there is nothing to retry, an earlier retry of it has not ended, or the queue is full.
    """
    from engine.errors import Conflict
    from engine.queue import operate

    with _database() as db:
        done = operate.retry_job(db, job_id, requested_by)
    if done.id is None:
        raise Conflict(done.message)
    return done.id


def submit_input(run_id: int | str, node_id: str, value: Any, conn: Any = None, requested_by: str | None = None) -> str:
    """Give a node that waits for a person its input; the submission's id. See docs/graphs.md.

    Raises NotFound, Conflict (it does not wait, or a submission is in flight), BadInput (the value does not fit the
    node's schema), PayloadError, all before any write.
    """
    from engine.dag.inputs import submit_input as submit

    with _database(conn) as db:
        return str(submit(db, run_id, node_id, value, requested_by))


def awaiting_input(project: str | None = None) -> list[dict[str, Any]]:
    """The nodes that wait for a person, oldest first, as plain data; ``project`` None: of all projects."""
    from engine.queue.inputs import awaiting
    from engine.snapshot import jsonable

    with _database() as db:
        return jsonable(awaiting(db, project))  # type: ignore[no-any-return]


def retry_run(run_id: int | str, requested_by: str | None = None) -> str:
    """Start a failed or cancelled run again, without what it had finished; the new run's id.

    Raises Conflict when there is nothing to retry, NotFound.
    """
    from engine.dag.retry import retry_run as retry
    from engine.errors import Conflict

    with _database() as db:
        done = retry(db, run_id, requested_by)
    if done.id is None:
        raise Conflict(done.message)
    return done.id


def fleet_snapshot(project: str | None = None) -> dict[str, Any]:
    """What the deck draws, as plain data."""
    from engine.snapshot import fleet_snapshot as snapshot

    return snapshot(project)


def _project(project: str | None) -> str:
    return _config.project_name() if project is None else project


@contextmanager
def _database(conn: Any = None) -> Iterator[Db]:
    """The caller's connection, or one of our own on a store whose schema is there."""
    from engine.store import adopt, open_store
    from engine.store.migrate import ensure_schema

    if conn is not None:
        yield adopt(conn)
        return
    store = open_store()
    ensure_schema(store, seconds=0)
    with store.connect("api") as db:
        yield db
