"""Putting jobs into the queue: one, many, or the nodes of a run; always checked before anything is written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from engine import config, registry
from engine.errors import BacklogFull, BadInput, Conflict, NotFound, UnknownQueue
from engine.queue import backlog
from engine.queue.family import INGEST, LIVE_RUN, find, for_update
from engine.queue.texts import (
    check_payload,
    encode_payload,
    encode_within,
    payload_limit,
    project_name,
)
from engine.store import Db

__all__ = ["Job", "encode_payload", "enqueue", "enqueue_many", "get_job", "insert_node_jobs"]

PRIORITY_LIMIT = 100_000  # bands of flagged rows lie a million lower


@dataclass(frozen=True)
class Job:
    """One ingest job as callers see it: ids are text, times aware. ``existing``: an earlier request made it."""

    id: str
    task: str
    queue: str
    project: str
    status: str
    priority: int
    is_priority: bool
    args: Any
    result: Any
    error: str | None
    attempt: int
    failures: int
    max_attempts: int
    progress_pct: float | None
    progress_text: str | None
    cancel_requested: bool
    run_after: datetime | None
    idempotency_key: str | None
    retry_of: str | None
    claimed_box: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    existing: bool = False

    @staticmethod
    def of_row(row: Mapping[str, Any], existing: bool = False) -> Job:
        return Job(
            id=str(row["id"]),
            task=row["task_name"],
            queue=row["queue"],
            project=row["project"],
            status=row["status"],
            priority=row["priority"],
            is_priority=bool(row["is_priority"]),
            args=row["args"],
            result=row["result"],
            error=row["error"],
            attempt=row["attempt"],
            failures=row["failures"],
            max_attempts=row["max_attempts"],
            progress_pct=row["progress_pct"],
            progress_text=row["progress_text"],
            cancel_requested=bool(row["cancel_requested"]),
            run_after=row["run_after"],
            idempotency_key=row["idempotency_key"],
            retry_of=None if row["retry_of"] is None else str(row["retry_of"]),
            claimed_box=row["claimed_box"],
            created_at=row["created_at"],
            started_at=row["started_at"],
            finished_at=row["finished_at"],
            existing=existing,
        )


def get_job(db: Db, job_id: int | str) -> Job:
    """One ingest job. Raises NotFound."""
    found = find(db, job_id)
    if found is None or found[0] is not INGEST:
        raise NotFound(f"no ingest job {job_id}")
    return Job.of_row(found[1])


def enqueue(
    db: Db,
    *,
    task_name: str,
    queue: str,
    args: Mapping[str, Any] | None = None,
    priority: int = 100,
    max_attempts: int | None = None,
    run_after: datetime | None = None,
    idempotency_key: str | None = None,
    project: str | None = None,
) -> Job:
    """Insert one job, in the caller's transaction if ``db`` is in one; the insert wakes the queue's lanes.

    The same idempotency key and body again returns the first job, also while the queue is full. Raises UnknownTask,
    UnknownQueue, PayloadError, BadInput, BacklogFull before anything is written, and Conflict when the key was used
    with another body.
    """
    task, attempts = _checked(task_name, queue, priority, max_attempts)
    payload = _encoded_args(args, task_name)
    if run_after is not None:
        _check_moment(run_after)
    if idempotency_key is not None:
        _check_key(idempotency_key)
    where = project_name(project)
    values = {
        "task_name": task_name,
        "queue": queue,
        "args": payload,
        "priority": priority,
        "max_attempts": attempts,
        "budget_s": task.budget_s,
        "run_after": run_after,
        "key": idempotency_key,
        "hash": _body_hash(task_name, queue, payload, priority, attempts, run_after) if idempotency_key else None,
        "project": where,
    }
    refusal = backlog.refusal(db, queue, where, 1)
    for _ in range(10):
        # A conflicting insert waits for the other transaction: if that rolls back, ours is the job.
        row = None if refusal else _insert(db, values)
        if row is not None:
            return _new(row, values)
        row = db.one(
            "select * from ingest_jobs where project = {project} and idempotency_key = {key}",
            project=where,
            key=idempotency_key,
        )
        if row is not None:
            if row["body_hash"] != values["hash"]:
                raise Conflict(
                    f"idempotency key {idempotency_key!r} was used for job {row['id']} with another body; nothing enqueued"
                )
            return Job.of_row(row, existing=True)
        if refusal:
            raise BacklogFull(refusal)
        # The first job was deleted between the two statements: the key is free again.
    raise Conflict(f"idempotency key {idempotency_key!r}: its job keeps appearing and vanishing; nothing enqueued")


def _new(row: Mapping[str, Any], values: Mapping[str, Any]) -> Job:
    """The job that was inserted just now. All but its id and time are known: to read forty columns back takes longer than
    to encode the parameters."""
    run_after = values["run_after"]
    return Job(
        id=str(row["id"]),
        task=values["task_name"],
        queue=values["queue"],
        project=values["project"],
        status="queued",
        priority=values["priority"],
        is_priority=False,
        args=json.loads(values["args"]),
        result=None,
        error=None,
        attempt=0,
        failures=0,
        max_attempts=values["max_attempts"],
        progress_pct=None,
        progress_text=None,
        cancel_requested=False,
        run_after=None if run_after is None else run_after.astimezone(UTC),
        idempotency_key=values["key"],
        retry_of=None,
        claimed_box=None,
        created_at=row["created_at"],
        started_at=None,
        finished_at=None,
    )


def _insert(db: Db, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Id and time of the new row; None when the key is taken."""
    return db.one(
        "insert into ingest_jobs (task_name, queue, args, priority, max_attempts, budget_s, run_after, "
        "idempotency_key, body_hash, project) values ({task_name}, {queue}, {args}{json}, {priority}, "
        "{max_attempts}, {budget_s}, {run_after}, {key}, {hash}, {project}) "
        "on conflict (project, idempotency_key) where idempotency_key is not null do nothing "
        "returning id, created_at",
        **values,
    )


def enqueue_many(
    db: Db,
    *,
    task_name: str,
    queue: str,
    args_list: Iterable[Mapping[str, Any] | None],
    priority: int = 100,
    max_attempts: int | None = None,
    project: str | None = None,
) -> list[str]:
    """Insert many jobs of one task by COPY, all or none; returns their ids in order. Raises as :func:`enqueue`."""
    task, attempts = _checked(task_name, queue, priority, max_attempts)
    what, limit = f"args of task {task_name}", payload_limit()
    payloads = [
        encode_within(args, what, limit) if type(args) is dict else _encoded_args(args, task_name) for args in args_list
    ]
    if not payloads:
        return []
    where = project_name(project)
    if refusal := backlog.refusal(db, queue, where, len(payloads)):
        raise BacklogFull(refusal)
    columns = ["id", "task_name", "queue", "args"]
    same: list[Any] = []
    for name, value, default in (
        ("priority", priority, 100),
        ("max_attempts", attempts, 1),
        ("budget_s", task.budget_s, None),
        ("project", where, ""),
    ):
        if value != default:  # a column left out costs nothing on the wire
            columns.append(name)
            same.append(value)
    with db.transaction():
        ids = _reserve_ids(db, len(payloads))
        tail = tuple(same)
        db.copy(
            "ingest_jobs",
            columns,
            [(job_id, task_name, queue, text, *tail) for job_id, text in zip(ids, payloads, strict=True)],
        )
    return [str(job_id) for job_id in ids]


def insert_node_jobs(db: Db, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert nodes of runs, each (run_id, node_id) once however often it is tried; returns how many were new.

    A row has run_id, node_id, node, queue and optionally required_model, priority, inputs (JSON text), output (JSON
    text), status, max_attempts, budget_s, only_boxes, avoid_boxes, project. Nothing is added to a run that is over:
    its row is locked here, so that ending it either comes first and is seen, or waits and cancels what was added.
    """
    if not rows:
        return 0
    with db.transaction():
        live = {
            row["id"]
            for row in db.all(
                f"select id from workflow_runs where id {{any[ids]}} and status in {LIVE_RUN} "
                f"order by id {for_update(db)}",
                ids=sorted({row["run_id"] for row in rows}),
            )
        }
        values = [_node_row(row) for row in rows if row["run_id"] in live]
        if db.kind == "postgresql":
            return sum(_insert_nodes_postgres(db, part) for part in _parts(values))
        return db.run_many(
            f"insert into workflow_node_jobs ({_NODE_COLUMNS}, finished_at) values ({{run_id}}, {{node_id}}, "
            "{node}, {queue}, {required_model}, {status}, {priority}, {inputs}{json}, {output}{json}, {max_attempts}, "
            "{budget_s}, {only_boxes}, {avoid_boxes}, {project}, "
            "case when {status} in ('completed', 'skipped') then {now} end) on conflict (run_id, node_id) do nothing",
            values,
        )


_NODE_COLUMNS = (
    "run_id, node_id, node, queue, required_model, status, priority, inputs, output, max_attempts, budget_s, "
    "only_boxes, avoid_boxes, project"
)
_PART_BYTES = 16 * 1024 * 1024


def _parts(values: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The rows in parts whose payloads are of a size that one statement can carry."""
    part: list[dict[str, Any]] = []
    size = 0
    for row in values:
        size += len(row["inputs"]) + len(row["output"] or "")
        if part and size > _PART_BYTES:
            yield part
            part, size = [], len(row["inputs"]) + len(row["output"] or "")
        part.append(row)
    if part:
        yield part


def _insert_nodes_postgres(db: Db, values: Sequence[dict[str, Any]]) -> int:
    """One statement for all: the insert trigger fires once, not once for each of a thousand nodes (4x faster)."""
    columns: dict[str, list[Any]] = {name: [row[name] for row in values] for name in _NODE_COLUMNS.split(", ")}
    for name in ("only_boxes", "avoid_boxes"):
        columns[name] = [json.dumps(boxes) for boxes in columns[name]]
    return db.run(
        f"insert into workflow_node_jobs ({_NODE_COLUMNS}, finished_at) select u.run_id, u.node_id, u.node, u.queue, "
        "u.required_model, u.status, u.priority, u.inputs::jsonb, u.output::jsonb, u.max_attempts, u.budget_s, "
        "array(select jsonb_array_elements_text(u.only_boxes::jsonb)), "
        "array(select jsonb_array_elements_text(u.avoid_boxes::jsonb)), u.project, "
        "case when u.status in ('completed', 'skipped') then now() end "
        "from unnest({run_id}::bigint[], {node_id}::text[], {node}::text[], {queue}::text[], {required_model}::text[], "
        "{status}::text[], {priority}::int[], {inputs}::text[], {output}::text[], {max_attempts}::int[], "
        "{budget_s}::float8[], {only_boxes}::text[], {avoid_boxes}::text[], {project}::text[]) "
        f"as u({_NODE_COLUMNS}) on conflict (run_id, node_id) do nothing",
        **columns,
    )


def _node_row(row: Mapping[str, Any]) -> dict[str, Any]:
    what = f"inputs of node {row['node_id']}"
    inputs = row.get("inputs")
    text = inputs if isinstance(inputs, str) else encode_payload(inputs or {}, what)
    if isinstance(inputs, str):
        check_payload(text, what)
    return {
        "run_id": row["run_id"],
        "node_id": row["node_id"],
        "node": row["node"],
        "queue": row["queue"],
        "required_model": row.get("required_model") if row["queue"] == "gpu" else None,
        "status": row.get("status", "queued"),
        "priority": row.get("priority", 100),
        "inputs": text,
        "output": row.get("output"),
        "max_attempts": row.get("max_attempts") or 1,
        "budget_s": row.get("budget_s"),
        "only_boxes": sorted(set(row.get("only_boxes") or ())),  # equal sets make one class of the claim
        "avoid_boxes": sorted(set(row.get("avoid_boxes") or ())),
        "project": row.get("project", ""),
    }


def _checked(task_name: str, queue: str, priority: int, max_attempts: int | None) -> tuple[registry.Task, int]:
    task = registry.resolve_task(task_name)
    if queue in ("cpu", "gpu"):
        raise UnknownQueue(f"queue {queue!r} holds the nodes of graphs; an ingest job needs a queue of its own")
    known = config.ingest_queues()
    if queue not in known:
        raise UnknownQueue(f"unknown queue {queue!r} (known: {', '.join(known)})")
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > PRIORITY_LIMIT:
        raise BadInput(f"priority must be a whole number within {PRIORITY_LIMIT:,} of zero, got {priority!r}")
    attempts = task.max_attempts if max_attempts is None else max_attempts
    if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts <= 1_000_000:
        raise BadInput(f"max_attempts must be a whole number from 1, got {attempts!r}")
    return task, attempts


def _check_key(key: Any) -> None:
    if not isinstance(key, str) or not 0 < len(key) <= 255:
        raise BadInput(f"an idempotency key is a text of 1 to 255 characters, got {str(key)[:100]!r}")
    if any(c == "\x00" or "\ud800" <= c <= "\udfff" for c in key):
        raise BadInput("an idempotency key cannot hold a NUL character or half a character")


def _check_moment(run_after: Any) -> None:
    if not isinstance(run_after, datetime) or run_after.tzinfo is None:
        raise BadInput(f"run_after must be a time that carries a time zone, got {run_after!r}")
    try:
        run_after.astimezone(UTC)
    except OverflowError:
        raise BadInput(f"run_after {run_after!r} is beyond what can be told in UTC") from None


def _encoded_args(args: Mapping[str, Any] | None, task_name: str) -> str:
    if args is None:
        return "{}"
    if not isinstance(args, Mapping):
        raise BadInput(f"args of task {task_name} must be a mapping of names to values, got {type(args).__name__}")
    return encode_payload(args if isinstance(args, dict) else dict(args), f"args of task {task_name}")


def _body_hash(
    task_name: str, queue: str, payload: str, priority: int, max_attempts: int, run_after: datetime | None
) -> str:
    moment = run_after.astimezone(UTC).isoformat() if run_after else None
    body = [task_name, queue, json.loads(payload), priority, max_attempts, moment]
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _reserve_ids(db: Db, n: int) -> list[int]:
    """``n`` fresh ids, because COPY returns none."""
    if db.kind == "postgresql":
        ids: list[int] = db.value("select array(select nextval('job_id_seq') from generate_series(1, {n})) as ids", n=n)
        return ids
    last = db.value(
        "select max(coalesce((select seq from sqlite_sequence where name = 'ingest_jobs'), 0), "
        "coalesce((select max(id) from ingest_jobs), 0)) as last"
    )
    return list(range(last + 1, last + 1 + n))
