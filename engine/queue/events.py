"""job_events: append-only history; one row for the end of every attempt and for everything unusual."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine.display.lanes import cause_text
from engine.queue.family import Family
from engine.store import Db

if TYPE_CHECKING:
    from engine.queue.claim import ClaimedJob

COLUMNS = (
    "family, job_id, run_id, node_id, attempt, fencing_token, event_type, cause, box, queue, exit_code, elapsed_s, "
    "detail, project"
)

_listener: Callable[[Sequence[int]], None] | None = None


def listen(listener: Callable[[Sequence[int]], None] | None) -> None:
    """Have ``listener`` told the ids of the events that this process writes, before they are committed; None: nobody.

    For whoever passes them on (engine/queue/sink.py). It must return at once.
    """
    global _listener
    _listener = listener


def heard(db: Db, job_ids: Sequence[int], tokens: Sequence[int], box: str) -> None:
    """Tell the listener of the ends of these attempts, which a statement has just written together with their events."""
    if _listener is not None and job_ids:
        rows = db.all(
            "select max(id) as id from job_events where job_id {any[ids]} and fencing_token {any[tokens]} "
            "and box = {box} group by job_id",
            ids=list(job_ids),
            tokens=list(tokens),
            box=box,
        )
        _listener([row["id"] for row in rows])


def _append(db: Db, sql: str, **values: Any) -> None:
    if _listener is None:
        db.run(sql, **values)
    else:
        _listener([row["id"] for row in db.all(f"{sql} returning id", **values)])


def record(
    db: Db,
    *,
    family: Family | str,
    job_id: int,
    event_type: str,
    run_id: int | None = None,
    node_id: str | None = None,
    attempt: int | None = None,
    fencing_token: int | None = None,
    cause: str | None = None,
    box: str | None = None,
    queue: str | None = None,
    exit_code: int | None = None,
    elapsed_s: float | None = None,
    detail: Mapping[str, Any] | None = None,
    project: str = "",
) -> None:
    """Append one event, in the caller's transaction if there is one."""
    _append(
        db,
        f"insert into job_events ({COLUMNS}) values ({{family}}, {{job_id}}, {{run_id}}, {{node_id}}, {{attempt}}, "
        "{fencing_token}, {event_type}, {cause}, {box}, {queue}, {exit_code}, {elapsed_s}, {detail}{json}, {project})",
        family=family if isinstance(family, str) else family.name,
        job_id=job_id,
        run_id=run_id,
        node_id=node_id,
        attempt=attempt,
        fencing_token=fencing_token,
        event_type=event_type,
        cause=cause,
        box=box,
        queue=queue,
        exit_code=exit_code,
        elapsed_s=elapsed_s,
        detail=json.dumps(dict(detail or {}), default=str),
        project=project,
    )


def record_for(
    db: Db,
    family: Family,
    row: Mapping[str, Any],
    event_type: str,
    *,
    cause: str | None = None,
    box: str | None = None,
    exit_code: int | None = None,
    elapsed_s: float | None = None,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Append one event about the job whose row this is; ``box`` defaults to the box that holds the row."""
    record(
        db,
        family=family,
        job_id=row["id"],
        run_id=row.get("run_id"),
        node_id=row.get("node_id"),
        attempt=row["attempt"],
        fencing_token=row["fencing_token"],
        event_type=event_type,
        cause=cause,
        box=box or row.get("claimed_box"),
        queue=row["queue"],
        exit_code=exit_code,
        elapsed_s=elapsed_s,
        detail=detail,
        project=row["project"],
    )


def record_attempt(
    db: Db,
    job: ClaimedJob,
    event_type: str,
    *,
    box: str,
    exit_code: int | None = None,
    elapsed_s: float | None = None,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Append one event about an attempt as its lane knows it; the row may be somebody else's by now."""
    record(
        db,
        family=job.family,
        job_id=job.id,
        run_id=job.run_id,
        node_id=job.node_id,
        attempt=job.attempt,
        fencing_token=job.fencing_token,
        event_type=event_type,
        box=box,
        queue=job.queue,
        exit_code=exit_code,
        elapsed_s=elapsed_s,
        detail=detail,
        project=job.project,
    )


def record_rows(
    db: Db,
    family: Family,
    ids: Sequence[int],
    event_type: str,
    *,
    cause: str | None = None,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Append one event for each of these jobs, from their rows as they are now in this transaction."""
    run = "run_id, node_id" if family.has_run else "null, null"
    _append(
        db,
        f"insert into job_events ({COLUMNS}) select {{family}}, id, {run}, attempt, fencing_token, {{event_type}}, "
        f"{{cause}}, claimed_box, queue, null, null, {{detail}}{{json}}, project from {family.table} where id {{any[ids]}}",
        family=family.name,
        event_type=event_type,
        cause=cause,
        detail=json.dumps(dict(detail or {}), default=str),
        ids=list(ids),
    )


def recent(db: Db, limit: int = 50, project: str | None = None, after_id: int | None = None) -> list[dict[str, Any]]:
    """The newest ``limit`` events, newest first; only those above ``after_id`` and of ``project`` when given.

    A project is looked for among the last 5,000 events only: a quiet project must not cost a walk through history.
    """
    rows = db.all(RECENT, **recent_parameters(limit, project, after_id))
    return [shown(row) for row in rows]


def by_ids(db: Db, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Those of these events that are committed, oldest first, in the form of :func:`recent`."""
    rows = db.all(f"select {SHOWN} from job_events e where id {{any[ids]}} order by id", ids=list(ids))
    return [shown(row) for row in rows]


SHOWN = (
    "id, family, job_id, run_id, node_id, attempt, fencing_token, event_type, cause, box, queue, exit_code, "
    "elapsed_s, detail, project, created_at, "
    "(select task_name from ingest_jobs j where j.id = e.job_id and e.family = 'ingest') as task"
)

RECENT = (
    f"select {SHOWN} from (select * from job_events where id > {{after_id}} order by id desc limit {{depth}}) e "
    "where (1 = {every} or e.project = {project}) order by id desc limit {shown}"
)


def recent_parameters(limit: int, project: str | None, after_id: int | None = None) -> dict[str, Any]:
    """Those of RECENT."""
    return {
        "after_id": after_id or 0,
        "depth": limit if project is None else max(limit, 5000),
        "every": 1 if project is None else 0,
        "project": project or "",
        "shown": limit,
    }


def without_bytes(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose names are texts: SQLite takes bytes from whoever writes them."""
    return {name: value.decode(errors="replace") if isinstance(value, bytes) else value for name, value in row.items()}


def shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """One event as plain data, with a line for people."""
    row = without_bytes(row)
    return {
        "id": str(row["id"]),
        "at": row["created_at"],
        "family": row["family"],
        "job_id": str(row["job_id"]),
        "run_id": None if row["run_id"] is None else str(row["run_id"]),
        "node_id": row["node_id"],
        "attempt": row["attempt"],
        "box": row["box"],
        "queue": row["queue"],
        "project": row["project"],
        "type": row["event_type"],
        "cause": row["cause"],
        "exit_code": row["exit_code"],
        "elapsed_s": row["elapsed_s"],
        "detail": row["detail"],
        "text": describe(row),
    }


_WORDS = {
    "stall_suspected": "stall not confirmed",
    "trip": "watchdog trip",
    "lost_claim": "lost its claim",
    "stale_write": "late write dropped",
}


def describe(row: Mapping[str, Any]) -> str:
    """One line for people: what happened, where, to which job, why."""
    where = " ".join(part for part in (row.get("box"), row.get("queue")) if part)
    job = f"job {row['job_id']}"
    what = str(row.get("node_id") or (f"{row['task']} ({job})" if row.get("task") else job))
    happened = _WORDS.get(row["event_type"], str(row["event_type"]).replace("_", " "))
    if row.get("cause"):
        happened += f" ({cause_text(str(row['cause']))})"
    if row.get("exit_code"):
        happened += f", exit {row['exit_code']}"
    detail = row.get("detail") or {}
    reason = detail.get("error") or detail.get("reason") if isinstance(detail, Mapping) else None
    text = f"{where}: {what} {happened}" if where else f"{what} {happened}"
    if not reason:
        return text
    first = str(reason).splitlines()[0]
    if row.get("exit_code"):  # lanes explain a code with the code in front; it stands there already
        first = re.sub(rf"^{row['exit_code']}\b:? *", "", first)
    return f"{text}: {first[:200]}" if first else text
