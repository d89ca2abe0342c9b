"""The end of attempts: outcome, history, outbox, the committed effect and the next claim in one commit. All fenced."""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import psycopg

from engine.errors import BadInput, PayloadError, StaleClaim
from engine.queue import events, outbox
from engine.queue.claim import ClaimedJob, ClaimRequest, Plan, claim, jobs, split, take, top_up
from engine.queue.family import Family, for_update
from engine.queue.finish_sql import complete_statement, finish_statement
from engine.queue.texts import check_payload, clean_text, encode_payload, payload_limit
from engine.queue.workers import Worker
from engine.store import Db, adopt

EVENT_ERROR_LIMIT = 500


@dataclass(frozen=True)
class Outcome:
    """How one attempt ended. ``output_json``: the result as JSON text; ``elapsed_s`` seconds of user code.

    ``final``: a failure that no further attempt can mend; none follows, whatever ``max_attempts`` is.
    """

    id: int
    fencing_token: int
    status: str  # "completed" | "failed" | "cancelled"
    output_json: str | None = None
    error: str | None = None
    elapsed_s: float | None = None
    exit_code: int | None = None
    detail: dict[str, Any] | None = None
    final: bool = False


@dataclass
class Finished:
    """``done``: written. ``stale``: the claim was lost, the result dropped, an event says so. ``claimed``: the next jobs."""

    done: set[int] = field(default_factory=set)
    stale: set[int] = field(default_factory=set)
    claimed: list[ClaimedJob] = field(default_factory=list)


class Held(Protocol):
    """What a task knows of its own attempt (``ctx.job``, or a ClaimedJob)."""

    @property
    def family(self) -> Family: ...
    @property
    def id(self) -> int: ...
    @property
    def fencing_token(self) -> int: ...


def finish(db: Db, worker: Worker, outcomes: Sequence[Outcome], next: ClaimRequest | None = None) -> Finished:
    """End these attempts and claim ``next``, in one statement and one commit.

    A job whose cancel was asked for ends cancelled whatever it reports; a failure with attempts left (and not ``final``) is
    queued again with backoff (event ``requeued``, cause ``retry``); a node's end writes the outbox, a completed ingest job its
    executions row. A result that is too large or not JSON fails its own job only. Sends no notification.
    """
    limit = payload_limit() if any(outcome.output_json for outcome in outcomes) else 0
    checked = [_checked(outcome, limit) for outcome in outcomes]
    if not checked:
        return Finished(claimed=claim(db, next) if next else [])
    if next is not None and next.n <= 0:
        next = None
    try:
        return _finish_sqlite(db, worker, checked, next) if db.kind == "sqlite" else _finish(db, worker, checked, next)
    except (psycopg.DataError, sqlite3.DataError) as error:
        if len(checked) == 1:
            only = checked[0]
            if only.status != "completed":
                raise
            said = str(error).strip().splitlines()[0]
            return finish(db, worker, [_failed(only, f"the result cannot be stored: {said}")], next)
    # One result that the database refuses must not take its neighbours along: each on its own.
    answer = Finished()
    for outcome in checked:
        one = finish(db, worker, [outcome])
        answer.done |= one.done
        answer.stale |= one.stale
    answer.claimed = claim(db, next) if next else []
    return answer


def complete_job(conn: Any, job: Held, result: Any) -> None:
    """Complete a job inside the task's own transaction: both are committed together, or neither.

    ``conn``: the task's psycopg or sqlite3 connection; never committed here. Raises StaleClaim when the claim was
    lost or a cancel was asked for (let it roll your transaction back), PayloadError for a result that cannot be stored
    or is neither a mapping nor None, BadInput for a job that is none.
    """
    family = getattr(job, "family", None)
    if not isinstance(family, Family) or not all(
        isinstance(getattr(job, name, None), int) for name in ("id", "fencing_token")
    ):
        raise BadInput(f"complete_job takes the job that is running (ctx.job), not a {type(job).__name__}")
    if result is not None and not isinstance(result, Mapping):
        raise PayloadError(f"the result of job {job.id} is a {type(result).__name__}; a dict or None is expected")
    db = adopt(conn)
    text = None if result is None else encode_payload(dict(result), f"result of job {job.id}")
    with db.transaction():
        row = _attempt(db, family, job.id)
        owner = getattr(job, "worker", None) or (row and row["claimed_by"])
        mine = row is not None and row["fencing_token"] == job.fencing_token and row["claimed_by"] == owner
        if row is None or not mine or row["status"] != "running":
            raise StaleClaim(f"job {job.id}: the claim with fence {job.fencing_token} was lost; nothing was written")
        if row["cancel_requested"]:
            raise StaleClaim(f"job {job.id}: a cancel was asked for; nothing was written")
        _end_one(db, family, row, Outcome(job.id, job.fencing_token, "completed", text), None)


def _checked(outcome: Outcome, limit: int) -> Outcome:
    if outcome.status not in ("completed", "failed", "cancelled"):
        raise BadInput(f"job {outcome.id}: an attempt ends completed, failed or cancelled, not {outcome.status!r}")
    if outcome.output_json is not None:
        try:
            check_payload(outcome.output_json, "the result", limit)
        except PayloadError as error:
            return _failed(outcome, str(error))
    return replace(outcome, error=clean_text(outcome.error)) if outcome.error else outcome


def _failed(outcome: Outcome, error: str) -> Outcome:
    return replace(outcome, status="failed", output_json=None, error=clean_text(error))


def _detail(outcome: Outcome) -> str:
    if not outcome.error and not outcome.detail:
        return "{}"
    detail = dict(outcome.detail or {})
    if outcome.error:
        detail.setdefault("error", outcome.error[:EVENT_ERROR_LIMIT])
    return json.dumps(detail, default=str)


def _finish(db: Db, worker: Worker, outcomes: Sequence[Outcome], next: ClaimRequest | None) -> Finished:
    ordinary = all(
        outcome.status == "completed" and not (outcome.error or outcome.detail) and outcome.exit_code is None
        for outcome in outcomes
    )
    statement = complete_statement if ordinary else finish_statement
    given = _given(worker, outcomes, ordinary)
    shape, plan = None, None
    if next is not None:
        plan = Plan.for_request(db, next)
        shape = plan.shape(next)
        given |= next.params
        given |= plan.floor or {}
    began = time.monotonic()
    rows = db.hot(statement(worker.family, shape), **given)
    answer = _answered(rows)
    if ordinary and len(answer.done) < len(outcomes):
        left = [outcome for outcome in outcomes if outcome.id not in answer.done]
        late = _answered(db.all(finish_statement(worker.family, None), **_given(worker, left, False)))
        answer = Finished(answer.done | late.done, late.stale)
    events.heard(db, given["ids"], given["tokens"], worker.box)
    if next is not None and plan is not None:
        claimed, more = split(db, next, plan, rows)
        answer.claimed = top_up(db, next, plan, jobs(next, claimed, began), more)
    return answer


def _given(worker: Worker, outcomes: Sequence[Outcome], ordinary: bool) -> dict[str, Any]:
    """The parameters of a statement that ends attempts; the short one for ordinary ends takes fewer."""
    given: dict[str, Any] = {
        "ids": [outcome.id for outcome in outcomes],
        "tokens": [outcome.fencing_token for outcome in outcomes],
        "outputs": [outcome.output_json for outcome in outcomes],
        "elapsed": [None if outcome.elapsed_s is None else float(outcome.elapsed_s) for outcome in outcomes],
        "box": worker.box,
        "owner": worker.owner,
    }
    if not ordinary:
        given |= {
            "outcomes": [outcome.status for outcome in outcomes],
            "errors": [outcome.error for outcome in outcomes],
            "exits": [outcome.exit_code for outcome in outcomes],
            "details": [_detail(outcome) for outcome in outcomes],
            "finals": [outcome.final for outcome in outcomes],
            "lane": worker.queue,
        }
    return given


def _answered(rows: Sequence[dict[str, Any]]) -> Finished:
    return Finished(
        {row["id"] for row in rows if row["kind"] == "done"}, {row["id"] for row in rows if row["kind"] == "stale"}
    )


def _finish_sqlite(db: Db, worker: Worker, outcomes: Sequence[Outcome], next: ClaimRequest | None) -> Finished:
    answer = Finished()
    plan = Plan.for_request(db, next) if next else None
    began = time.monotonic()
    with db.transaction():
        for outcome in sorted(outcomes, key=lambda outcome: outcome.id):
            row = _attempt(db, worker.family, outcome.id)
            if row is not None and row["fencing_token"] == outcome.fencing_token:
                if row["status"] == "running" and row["claimed_by"] == worker.owner:
                    _end_one(db, worker.family, row, outcome, worker)
                    answer.done.add(outcome.id)
                    continue
                if row["status"] == outcome.status:  # the same once more: the first answer was lost on the way
                    answer.done.add(outcome.id)
                    continue
            answer.stale.add(outcome.id)
            _stale_event(db, worker, row, outcome)
        if next is not None and plan is not None:
            claimed, more = take(db, next, plan)
    if next is not None and plan is not None:
        answer.claimed = top_up(db, next, plan, jobs(next, claimed, began), more)
    return answer


def _attempt(db: Db, family: Family, job_id: int) -> dict[str, Any] | None:
    run = ", run_id, node_id" if family.has_run else ""
    return db.one(
        f"select id, status, fencing_token, attempt, failures, max_attempts, cancel_requested, queue, project, "
        f"claimed_by, claimed_box, started_at{run} from {family.table} where id = {{id}} {for_update(db)}",
        id=job_id,
    )


def _end_one(db: Db, family: Family, row: dict[str, Any], outcome: Outcome, worker: Worker | None) -> None:
    """One locked, running row and its outcome: what the fused statement does, step by step."""
    status = outcome.status
    if row["cancel_requested"]:
        status = "cancelled"
    elif status == "failed" and not outcome.final and row["failures"] + 1 < row["max_attempts"]:
        status = "queued"
    if status == "queued":
        db.run(
            f"update {family.table} set status = 'queued', error = {{error}}, failures = failures + 1, "
            "run_after = {after[backoff]}, claimed_by = null, claimed_box = null, claimed_at = null, started_at = null, "
            "progress_pct = null, progress_text = null, lease_expires_at = null, kill_requested = {false} where id = {id}",
            id=row["id"],
            error=outcome.error,
            backoff=min(600.0, 2.0 ** min(row["failures"], 16)) * random.uniform(0.75, 1.25),
        )
    else:
        db.run(
            f"update {family.table} set status = {{status}}, {family.output_column} = {{output}}{{json}}, "
            "error = {error}, failures = failures + {spent}, finished_at = {now}, "
            "started_at = coalesce(started_at, {now}), lease_expires_at = null, kill_requested = {false} where id = {id}",
            id=row["id"],
            status=status,
            output=outcome.output_json if status == "completed" else None,
            error=None if status == "completed" else outcome.error or ("cancelled" if status == "cancelled" else None),
            spent=1 if status == "failed" else 0,
        )
    elapsed = outcome.elapsed_s
    if elapsed is None and row["started_at"] is not None:
        elapsed = max(0.0, (db.now() - row["started_at"]).total_seconds())
    events.record_for(
        db,
        family,
        row,
        "requeued" if status == "queued" else status,
        cause="retry" if status == "queued" else None,
        box=worker.box if worker else None,
        exit_code=outcome.exit_code,
        elapsed_s=elapsed,
        detail=json.loads(_detail(outcome)),
    )
    if family.has_run and status != "queued":
        outbox.emit(db, row["run_id"], row["node_id"], "completed" if status == "completed" else "failed")
    elif not family.has_run and status == "completed":
        db.run(
            "insert into executions (job_id, fencing_token, worker, result) "
            "values ({id}, {token}, {worker}, {result}{json}) on conflict (job_id) do nothing",
            id=row["id"],
            token=row["fencing_token"],
            worker=row["claimed_by"] or "",
            result=outcome.output_json,
        )


def _stale_event(db: Db, worker: Worker, row: dict[str, Any] | None, outcome: Outcome) -> None:
    seen = row or {}
    events.record(
        db,
        family=worker.family,
        job_id=outcome.id,
        event_type="stale_write",
        run_id=seen.get("run_id"),
        node_id=seen.get("node_id"),
        attempt=seen.get("attempt"),
        fencing_token=outcome.fencing_token,
        box=worker.box,
        queue=seen.get("queue", worker.queue),
        exit_code=outcome.exit_code,
        elapsed_s=outcome.elapsed_s,
        detail={
            "wrote": outcome.status,
            "status": seen.get("status"),
            "fencing_token": seen.get("fencing_token"),
            "owner": seen.get("claimed_by"),
        },
        project=seen.get("project", worker.project),
    )
