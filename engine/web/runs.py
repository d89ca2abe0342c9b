"""Runs over HTTP: submit a graph, look at it, cancel it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from engine import registry
from engine.dag.reading import run_with_nodes
from engine.dag.runs import submit_run
from engine.errors import BadInput, NotFound, PayloadTooLarge
from engine.queue import operate
from engine.web.answers import dumps, json_text, moment
from engine.web.bodies import BadBody, Invalid, parse, row_number, valid
from engine.web.models import RunRequest, told
from engine.web.openapi import documented
from engine.web.problems import problem

router = APIRouter(tags=["runs"])

ENDED = ("completed", "failed", "cancelled")


@router.post("/runs", summary="Run a graph", **documented("submit_run"))
async def submit(request: Request) -> Response:
    """201 with the new run. A graph that is not valid is refused with the name of its node, before anything is written."""
    raw = await request.body()  # here already: see BodyMiddleware
    return await run_in_threadpool(_submit, request, raw)


def _submit(request: Request, raw: bytes) -> Response:
    state = request.app.state
    project = state.settings.project
    try:
        wanted = valid(RunRequest, parse(raw, request.headers.get("content-type")))
        if ("graph" in wanted.model_fields_set) == ("workflow" in wanted.model_fields_set):
            raise BadBody("give either graph or workflow")
        with state.databases.borrow() as db:
            graph = wanted.graph if "graph" in wanted.model_fields_set else _named(wanted.workflow)
            number = submit_run(db, graph, wanted.context, wanted.priority, project)
            run = run_with_nodes(db, project, number)
    except Invalid as error:
        return error.response
    except PayloadTooLarge as error:
        return problem(413, str(error))
    except (BadInput, NotFound) as error:
        return problem(422, str(error)[:1000])
    if run is None:  # it was deleted at once
        return problem(404, f"no run {number}")
    return json_text(_text(run), 201, {"location": f"/runs/{number}"})


def _named(workflow: str) -> str:
    """A workflow's name that cannot be taken for a graph. Raises NotFound."""
    if workflow.lstrip().startswith("{") and workflow not in registry.workflows:
        raise NotFound(f"workflow {workflow[:60]!r} is not registered")
    return workflow


@router.get("/runs/{run_id}", summary="Look at a run", **documented("get_run"))
def get_run(request: Request) -> Response:
    """The run and all its nodes as they are now."""
    run_id = request.path_params["run_id"]
    state = request.app.state
    number = row_number(run_id)
    if number is None:
        return _missing(run_id)
    with state.databases.borrow() as db:
        run = run_with_nodes(db, state.settings.project, number)
    return _missing(run_id) if run is None else json_text(_text(run))


@router.delete("/runs/{run_id}", summary="Cancel a run", **documented("cancel_run"))
def cancel(request: Request) -> Response:
    """The run is cancelled at once. 202: nodes of it still run, and were asked to stop (by force after 10 s); it has
    ended when `finished_at` is set. 409: it was over."""
    run_id = request.path_params["run_id"]
    state = request.app.state
    number = row_number(run_id)
    if number is None:
        return _missing(run_id)
    with state.databases.borrow() as db:
        if (
            db.one(
                "select id from workflow_runs where id = {id} and project = {project}",
                id=number,
                project=state.settings.project,
            )
            is None
        ):
            return _missing(run_id)
        try:
            done = operate.cancel_run(db, number, f"web:{request.state.access.name}")
            run = run_with_nodes(db, state.settings.project, number)
        except NotFound:
            run = None
    if run is None:
        return _missing(run_id)
    if not done.changed:
        return problem(409, done.message)
    return json_text(_text(run), 202 if run["finished_at"] is None else 200)


def _missing(run_id: str) -> Response:
    return problem(404, f"no run {run_id[:60]}")


def _text(run: dict[str, Any]) -> str:
    """A run of :func:`run_with_nodes` as JSON; its outputs are JSON texts already."""
    head = dumps(
        {
            "id": str(run["id"]),
            "workflow": run["workflow_name"],
            "status": told(run["status"]),
            "priority": run["priority"],
            "error": run["error"],
            "retry_of": None if run["retry_of"] is None else str(run["retry_of"]),
            **{name: moment(run[name]) for name in ("created_at", "started_at", "finished_at")},
        }
    )
    return f'{head[:-1]},"nodes":[{",".join(map(_node, run["nodes"]))}]}}'


def _node(node: dict[str, Any]) -> str:
    output = node["output"]
    text = dumps(
        {
            **{name: value for name, value in node.items() if name != "output"},
            "status": told(node["status"]),
            "started_at": moment(node["started_at"]),
            "finished_at": moment(node["finished_at"]),
        }
    )
    return f'{text[:-1]},"output":{output if output is not None else "null"}}}'
