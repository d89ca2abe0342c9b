"""Jobs over HTTP: submit, look at, list, cancel, their events and what they printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from engine.errors import BadInput, Conflict, NotFound, PayloadTooLarge
from engine.queue import operate
from engine.queue.enqueue import Job, enqueue
from engine.queue.family import INGEST
from engine.queue.listing import Filter, Row, history, one, page, printed
from engine.web.answers import answer, dumps, json_text, moment
from engine.web.bodies import BadBody, Invalid, chosen, parse, row_number, single, valid, whole
from engine.web.models import STATUSES, JobRequest, stored, told
from engine.web.openapi import documented
from engine.web.problems import problem

router = APIRouter(tags=["jobs"])

KEY = "idempotency-key"
_KEY = re.compile(r"[!-~](?:[ -~]{0,253}[!-~])?")
_OFFSET_MOST = 2**53 - 1  # what every client's numbers hold
ENDED = ("completed", "failed", "cancelled")


@router.post("/jobs", summary="Submit a job", **documented("submit_job"))
async def submit(request: Request) -> Response:
    """201 with the new job; 200 with the first one when its idempotency key and body come again, also while the queue
    is full."""
    raw = await request.body()  # here already: see BodyMiddleware
    return await run_in_threadpool(_submit, request, raw)


def _submit(request: Request, raw: bytes) -> Response:
    state = request.app.state
    try:
        wanted = valid(JobRequest, parse(raw, request.headers.get("content-type")))
        key = _key(request.headers.getlist(KEY))
        run_after = _moment(wanted.run_after)
        with state.databases.borrow() as db:
            job = enqueue(
                db,
                task_name=wanted.task,
                queue=wanted.queue,
                args=wanted.payload,
                priority=wanted.priority,
                max_attempts=wanted.max_attempts,
                run_after=run_after,
                idempotency_key=key,
                project=state.settings.project,
            )
    except Invalid as error:
        return error.response
    except PayloadTooLarge as error:
        return problem(413, str(error))
    except (BadInput, Conflict) as error:
        return problem(422, str(error)[:1000])
    return json_text(_of_job(job), 200 if job.existing else 201, {"location": f"/jobs/{job.id}"})


def _key(given: list[str]) -> str | None:
    if not given:
        return None
    if len(given) > 1:
        raise BadBody("the header Idempotency-Key is given more than once")
    if not _KEY.fullmatch(given[0]):
        raise BadBody("the header Idempotency-Key must be 1 to 255 visible ASCII characters (spaces only within)")
    return given[0]


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text.upper())
    except ValueError as error:
        raise BadBody(f"run_after: {text[:60]!r} is no time: {error}") from None


@router.get("/jobs", summary="List jobs, newest first", **documented("list_jobs"))
def list_jobs(request: Request) -> Response:
    """A page of the project's jobs, by `limit` and `offset`, or behind the `next` of the page before (`after`), which
    stays quick however deep and neither repeats nor misses a job when others are submitted meanwhile."""
    state = request.app.state
    try:
        given = single(request, "limit", "offset", "status", "after", "task", "queue")
        limit = whole(given, "limit", 50, 1, 100)
        offset = whole(given, "offset", 0, 0, _OFFSET_MOST)
        status = chosen(given, "status", STATUSES)
        after = whole(given, "after", -1, 0, 2**63 - 1) if "after" in given else None
        named = {name: _word(given, name) for name in ("task", "queue")}
    except BadBody as error:
        return problem(422, str(error))
    wanted = Filter(state.settings.project, stored(status) if status else None, named["task"], named["queue"])
    with state.databases.borrow() as db:
        found = page(db, wanted, limit, offset, after)
    items = ",".join(of_row(row) for row in found.jobs)
    following = "null" if found.next is None else f'"{found.next}"'
    return json_text(
        f'{{"items":[{items}],"total":{found.total},"limit":{found.limit},"offset":{offset},"next":{following}}}'
    )


def _word(given: Mapping[str, str], name: str) -> str | None:
    text = given.get(name)
    if text is not None and (not 0 < len(text) <= 200 or any(c < " " or "\ud800" <= c <= "\udfff" for c in text)):
        raise BadBody(f"{name} must be 1 to 200 characters, none of them a control character")
    return text


@router.get("/jobs/{job_id}", summary="Look at a job", **documented("get_job"))
def get_job(request: Request) -> Response:
    """The job as it is now."""
    job_id = request.path_params["job_id"]
    row = None
    if (number := row_number(job_id)) is not None:
        state = request.app.state
        with state.databases.borrow() as db:
            row = one(db, state.settings.project, number)
    return _missing(job_id) if row is None else json_text(of_row(row))


@router.delete("/jobs/{job_id}", summary="Cancel a job", **documented("cancel_job"))
def cancel(request: Request) -> Response:
    """200: it waited, and is cancelled. 202: it runs, and was asked to stop (by force after 10 s). 409: it is over."""
    job_id = request.path_params["job_id"]
    state = request.app.state
    number = row_number(job_id)
    if number is None:
        return _missing(job_id)
    with state.databases.borrow() as db:
        if one(db, state.settings.project, number) is None:
            return _missing(job_id)
        try:
            with db.transaction():
                done = operate.cancel_job(db, number, f"web:{request.state.access.name}")
                row = one(db, state.settings.project, number)
        except NotFound:
            row = None
    if row is None:
        return _missing(job_id)
    if not done.changed and row["status"] in ENDED:
        return problem(409, f"job {number} is {told(row['status'])} already: nothing to cancel")
    return json_text(of_row(row), 200 if row["status"] in ENDED else 202)


@router.get("/jobs/{job_id}/events", summary="What happened to a job", **documented("job_events"))
def job_events(request: Request) -> Response:
    """Every end of an attempt, and everything unusual, oldest first."""
    job_id = request.path_params["job_id"]
    try:
        given = single(request, "limit", "after")
        limit = whole(given, "limit", 200, 1, 1000)
        after = whole(given, "after", 0, 0, 2**63 - 1)
    except BadBody as error:
        return problem(422, str(error))
    found = _of_mine(request, job_id, lambda db, number: history(db, INGEST, number, limit + 1, after))
    if found is None:
        return _missing(job_id)
    items = [
        {
            "id": event["id"],
            "at": moment(event["at"]),
            **{
                name: event[name]
                for name in ("type", "cause", "attempt", "box", "exit_code", "elapsed_s", "text", "detail")
            },
        }
        for event in found[:limit]
    ]
    return answer({"items": items, "next": items[-1]["id"] if len(found) > limit else None})


@router.get("/jobs/{job_id}/log", summary="What a job printed", **documented("job_log"))
def job_log(request: Request) -> Response:
    """The newest 64 KiB of what its latest attempt printed, written every few seconds while it runs; empty: nothing yet."""
    job_id = request.path_params["job_id"]
    found = _of_mine(request, job_id, lambda db, number: printed(db, INGEST, number))
    if found is None:
        return _missing(job_id)
    return Response(
        found["tail"].encode("utf-8", "replace"),
        headers={"x-log-attempt": str(found["attempt"]), "x-log-bytes": str(found["bytes"])},
        media_type="text/plain",
    )


def _of_mine(request: Request, job_id: str, read: Any) -> Any:
    """What ``read(db, number)`` finds of a job of this project; None: there is no such job."""
    state = request.app.state
    number = row_number(job_id)
    if number is None:
        return None
    with state.databases.borrow() as db:
        if one(db, state.settings.project, number) is None:
            return None
        return read(db, number)


def _missing(job_id: str) -> Response:
    return problem(404, f"no job {job_id[:60]}")


# -- a job as JSON


def of_row(row: Row) -> str:
    """A row of :func:`engine.queue.listing.columns`; payload and result are JSON texts already."""
    return _text(
        str(row["id"]), row["task_name"], row["queue"], row["status"], row["payload"], row["outcome"], row["error"],
        row["attempt"], row["max_attempts"], row["progress_pct"], row["created_at"], row["started_at"], row["finished_at"],
    )  # fmt: skip


def _of_job(job: Job) -> str:
    return _text(
        job.id, job.task, job.queue, job.status, dumps(job.args), None if job.result is None else dumps(job.result),
        job.error, job.attempt, job.max_attempts, job.progress_pct, job.created_at, job.started_at, job.finished_at,
    )  # fmt: skip


def _text(
    job_id: str, task: Any, queue: Any, status: str, payload: str | None, result: str | None, error: str | None,
    attempt: int, max_attempts: int, progress: float | None,
    created: datetime | None, started: datetime | None, finished: datetime | None,
) -> str:  # fmt: skip
    head = dumps({"id": job_id, "task": _plain(task), "queue": _plain(queue), "status": told(status)})
    tail = dumps(
        {
            "error": _plain(error),
            "attempt": attempt,
            "max_attempts": max_attempts,
            "progress": 100.0 if status == "completed" else progress,  # the last report may have come with the end
            "created_at": moment(created),
            "started_at": moment(started),
            "finished_at": moment(finished),
        }
    )
    return f'{head[:-1]},"payload":{payload or "null"},"result":{result or "null"},{tail[1:]}'


def _plain(value: Any) -> Any:
    """A name of bytes, which SQLite takes from whoever writes it, as text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
