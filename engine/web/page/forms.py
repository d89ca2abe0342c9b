"""What the page changes: questions that say exactly what would happen, and the forms that then do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from engine.dag.retry import retry_run
from engine.errors import NotFound
from engine.queue import operate
from engine.queue.detail import job_detail
from engine.store import Db
from engine.web.page import orders
from engine.web.page.fleet import read_fleet, title
from engine.web.page.looks import Looks
from engine.web.page.posted import Fields, check_form, local_path, read_form, text_of
from engine.web.page.render import is_https, render, sessions_of
from engine.web.page.routes import PageRoute, Refused
from engine.web.sessions import SAID, SAID_LASTS_S

router = APIRouter(route_class=PageRoute, include_in_schema=False)

JOB_ACTIONS = {"cancel": "Cancel", "kill": "Kill and requeue", "retry": "Run again", "next": "Run next"}
JOBS_NAMED = 50


def looks_of(request: Request) -> Looks:
    """What has been read lately; one for the service."""
    state = request.app.state
    if not hasattr(state, "looks"):
        state.looks = Looks(state.databases)
    found: Looks = state.looks
    return found


# -- lanes


@router.get("/page/order")
def ask_order(request: Request) -> Response:
    """What an order would reach: its lanes and what runs on them, and how it is to be done."""
    _may(request)
    fields = {name: request.query_params.getlist(name) for name in request.query_params}
    look = looks_of(request).look("fleet", read_fleet)
    scope = orders.read_scope(fields, look.value)
    return render(
        request, "order.html", page="fleet", scope=scope, verb=orders.ACTIONS[scope.action],
        parks=scope.action in ("park", "cordon"), reached=orders.reached(scope, look.value), spans=orders.SPANS,
        taken=orders.taken_back(scope, look.value.orders) if scope.action in ("resume", "uncordon") else [],
        left=orders.left_off(scope, look.value.orders), named=JOBS_NAMED, back=local_path(request.query_params.get("back")), age_s=look.age_s, trouble=look.trouble,
    )  # fmt: skip


@router.post("/page/order")
async def give_order(request: Request) -> Response:
    """Park, resume, cordon or uncordon; then back to where it was asked."""
    fields = await read_form(request)
    who = check_form(request, fields)
    said = await run_in_threadpool(_order, request, fields, who)
    return _told(request, said, text_of(fields, "back"))


def _order(request: Request, fields: Fields, who: str) -> str:
    looks = looks_of(request)
    fleet = looks.look("fleet", read_fleet).value if not fields.get("project") else None
    scope, span = orders.read_scope(fields, fleet), orders.read_span(fields)
    with request.app.state.databases.borrow() as db:
        _, said = orders.carry_out(db, scope, text_of(fields, "policy"), text_of(fields, "reason"), span, who)
    looks.forget()
    return said


# -- jobs


@router.get("/page/jobs/{job_id}/{action}")
def ask_job(request: Request, job_id: str, action: str) -> Response:
    """What cancelling or killing a job would do."""
    _may(request)
    if action not in JOB_ACTIONS:
        raise NotFound("a job can be cancelled, killed, run again and run next")
    look = looks_of(request).look(("job", job_id), lambda db: job_detail(db, job_id))
    if look.value is None:
        raise NotFound(f"no job {job_id}")
    job = look.value["job"]
    return render(
        request, "job_order.html", page="jobs", job=job, title=title({**job, "box": job["claimed_box"]}), action=action,
        verb=JOB_ACTIONS[action], effect=effect(action, job), back=local_path(f"/page/jobs/{job['id']}"),
        age_s=look.age_s, trouble=look.trouble,
    )  # fmt: skip


def effect(action: str, job: dict[str, Any]) -> str:
    """What an action does to this job, in words; empty: it does nothing."""
    status, node = job["status"], job["family"] == "node"
    if action == "cancel" and status in ("queued", "running", "awaiting_input"):
        begun = "It is asked to stop, and stopped hard after 10 s." if status == "running" else "It has not begun."
        return begun + (" Its run fails." if node else "")
    if action == "kill" and status == "running":
        return "Its executor is killed; the job is queued again in front, nothing spent."
    if action == "retry" and status in ("failed", "cancelled", "skipped"):
        return "A new run, without what this one had finished." if node else "A new job with the same input."
    if action == "next" and status == "queued":
        return "It is claimed before everything else of its queue."
    return ""


@router.post("/page/jobs/{job_id}/{action}")
async def order_job(request: Request, job_id: str, action: str) -> Response:
    """Cancel, kill, retry or run next; then back to the job, or to the new one."""
    fields = await read_form(request)
    who = check_form(request, fields)
    if action not in JOB_ACTIONS:
        raise NotFound("a job can be cancelled, killed, run again and run next")
    said, new = await run_in_threadpool(_order_job, request, job_id, action, who)
    return _told(request, said, f"/page/jobs/{new}" if new else text_of(fields, "back") or f"/page/jobs/{job_id}")


def _order_job(request: Request, job_id: str, action: str, who: str) -> tuple[str, str | None]:
    """What was done, and the new job's id, if there is one."""
    calls: dict[str, Callable[[Db, str, str], operate.Done]] = {
        "cancel": operate.cancel_job,
        "kill": operate.kill_job,
        "next": operate.run_next,
        "retry": operate.retry_job,
    }
    with request.app.state.databases.borrow() as db:
        call, of = calls[action], job_id
        if action == "retry":
            found = job_detail(db, job_id)
            if found is None:
                raise NotFound(f"no job {job_id}")
            if found["job"]["family"] == "node":
                call, of = retry_run, found["job"]["run_id"]
        done = call(db, of, who)
    looks_of(request).forget()
    return done.message, done.id if call is operate.retry_job else None


# -- both


def _may(request: Request) -> None:
    if request.state.access.level != "operate":
        raise Refused("this token may look, not change anything")


def _told(request: Request, said: str, back: str) -> Response:
    """Back to a page of ours, which says once what was done."""
    answer = RedirectResponse(local_path(back), 303)
    answer.set_cookie(
        SAID, sessions_of(request).say(said), max_age=SAID_LASTS_S, path="/", httponly=True, samesite="strict",
        secure=is_https(request),
    )  # fmt: skip
    return answer
