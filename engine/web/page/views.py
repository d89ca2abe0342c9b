"""The pages that only show: fleet, jobs, a job, queues, workers, throttling, events; and the page's own files."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.display.lanes import exit_text
from engine.errors import NotFound
from engine.lane.exits import NAMES as EXIT_NAMES
from engine.lane.exits import explain
from engine.queue import browse, queues, timeline
from engine.queue.detail import job_detail
from engine.queue.services import services
from engine.store import Db
from engine.telemetry import throttle_history
from engine.telemetry.strip import CAUSES, NAMES, runs
from engine.web.page.fleet import read_fleet, read_strips
from engine.web.page.forms import effect, looks_of
from engine.web.page.jobs import STATUSES, Filter, after_of, read_filter
from engine.web.page.orders import order_url
from engine.web.page.render import TYPES, here_of, render, static
from engine.web.page.routes import PageRoute

router = APIRouter(route_class=PageRoute, include_in_schema=False)

REFRESH_S = 10  # without JavaScript
STRIP_FRESH_S = 10.0
MANY = 20  # boxes; of more the page is drawn less often
QUEUES_MOST = 300  # of queues and projects that are drawn
KINDS = ("telling", "all", "trouble", "jobs", "orders")


@router.get("/")
def fleet_page(request: Request) -> Response:
    """Boxes next to each other."""
    looks = looks_of(request)
    look = looks.look("fleet", read_fleet)
    strips = looks.look("strips", read_strips, STRIP_FRESH_S)
    return render(
        request, "fleet.html", page="fleet", fleet=look.value, strips=strips.value, runs=runs, causes=CAUSES, names=NAMES,
        order_url=partial(order_url, here_of(request)), age_s=look.age_s, trouble=look.trouble, refresh_s=REFRESH_S,
        rest_s=2 if len(look.value.boxes) <= MANY else 5,
    )  # fmt: skip


@router.get("/page/jobs")
def jobs_page(request: Request) -> Response:
    """Jobs of both families, filtered, page by page."""
    wanted = read_filter(request.query_params)

    def read(db: Db) -> dict[str, Any]:
        found = browse.browse(
            db, wanted.status, wanted.project, wanted.queue or None, wanted.box or None, wanted.text, wanted.sort or None,
            limit=wanted.limit, after=after_of(wanted.after),
        )  # fmt: skip
        return {"found": found, "counts": browse.counts(db, wanted.project)}

    looks = looks_of(request)
    look = looks.look(("jobs", wanted), read)
    projects = looks.look("fleet", read_fleet).value.projects
    return render(
        request, "jobs.html", page="jobs", wanted=wanted, found=look.value["found"], counts=look.value["counts"],
        projects=projects, statuses=STATUSES, sorts=browse.SORTS[wanted.status], link=_jobs_link(wanted), after_text=_after_text,
        age_s=look.age_s, trouble=look.trouble, refresh_s=REFRESH_S,
    )  # fmt: skip


def _jobs_link(wanted: Filter) -> Any:
    """Addresses of the same list, differing in what is named."""

    def link(**changes: str) -> str:
        return f"/page/jobs?{urlencode(wanted.pairs(**changes), errors='replace')}"

    return link


@router.get("/page/jobs/{job_id}")
def job_page(request: Request, job_id: str) -> Response:
    """Everything about one job."""
    look = looks_of(request).look(("job", job_id), lambda db: job_detail(db, job_id))
    if look.value is None:
        raise NotFound(f"no job {job_id}")
    job = look.value["job"]
    offered = [action for action in ("cancel", "kill", "next", "retry") if effect(action, job)]
    return render(
        request, "job.html", page="jobs", detail=look.value, job=job, offered=offered, why_exit=why_exit,
        age_s=look.age_s, trouble=look.trouble, refresh_s=REFRESH_S if job["finished_at"] is None else 0,
    )  # fmt: skip


def why_exit(code: object) -> str:
    """An exit code in words: the five of the watchdogs by name, a signal by its own."""
    if not isinstance(code, int):
        return ""
    return explain(code) if code in EXIT_NAMES or code > 128 else exit_text(code)


@router.get("/page/queues")
def queues_page(request: Request) -> Response:
    """What waits, what runs, who serves it and why not."""
    look = looks_of(request).look("queues", lambda db: queues.queues_view(db), fresh_s=1.5)
    shown = look.value["queues"]
    if len(shown) > QUEUES_MOST:  # what lanes serve comes first, then what runs
        shown = sorted(shown, key=lambda row: (row["desired"] == "none", not row["running"]))[:QUEUES_MOST]
    return render(
        request, "queues.html", page="queues", view=look.value, queues=shown, order_url=partial(order_url, here_of(request)),
        age_s=look.age_s, trouble=look.trouble, refresh_s=REFRESH_S,
    )  # fmt: skip


@router.get("/page/workers")
def workers_page(request: Request) -> Response:
    """Every lane as it reports itself, and the services."""
    looks = looks_of(request)
    look = looks.look("fleet", read_fleet)
    others = looks.look("services", services)
    return render(
        request, "workers.html", page="workers", fleet=look.value, services=others.value, why_exit=why_exit,
        order_url=partial(order_url, here_of(request)), age_s=look.age_s, trouble=look.trouble, refresh_s=REFRESH_S,
    )  # fmt: skip


@router.get("/page/throttling")
def throttling_page(request: Request) -> Response:
    """The last hour: what held which box back, minute by minute, and the jobs that ran under it."""
    looks = looks_of(request)
    strips = looks.look("strips", read_strips, STRIP_FRESH_S)
    suffered = looks.look("suffered", lambda db: throttle_history.jobs(db, 3600.0), STRIP_FRESH_S)
    return render(
        request, "throttling.html", page="throttling", strips=strips.value, suffered=suffered.value, runs=runs,
        causes=CAUSES, names=NAMES, age_s=strips.age_s, trouble=strips.trouble or suffered.trouble, refresh_s=30,
    )  # fmt: skip


@router.get("/page/events")
def events_page(request: Request) -> Response:
    """What happened to jobs and what people ordered, newest first."""
    asked = request.query_params
    kind = asked.get("kind") if asked.get("kind") in KINDS else "telling"
    text, project = asked.get("text", "")[:200], asked.get("project")
    after = after_of(asked.get("after", ""), ("job", "control"))
    look = looks_of(request).look(
        ("events", kind, text, project, asked.get("after", "")[:60]),
        lambda db: timeline.happened(db, kind or "telling", project, text=text, limit=100, after=after),
    )
    pairs = [("kind", kind or ""), ("text", text), *([("project", project)] if project is not None else [])]
    return render(
        request, "events.html", page="events", found=look.value, kind=kind, kinds=KINDS, text=text,
        base=f"/page/events?{urlencode(pairs, errors='replace')}", older=_after_text(look.value["next"]),
        age_s=look.age_s, trouble=look.trouble, refresh_s=0 if after else REFRESH_S,
    )  # fmt: skip


def _after_text(after: Any) -> str:
    return ",".join(f"{name}:{number}" for name, number in after.items()) if after else ""


@router.get("/static/{name}")
def file(name: str) -> Response:
    """The page's style and its one script."""
    content = static(name)
    if content is None:
        raise NotFound("no such file")
    return Response(content, media_type=TYPES[name], headers={"cache-control": "public, max-age=3600"})


@router.get("/page/{rest:path}")
def nothing(rest: str) -> Response:
    """Every other address."""
    raise NotFound("there is no such page")
