"""The OpenAPI document: every call with its parameters, its examples and all that it can answer.

Calls read their requests themselves (strict JSON, words for what is wrong), so the document is written here, one entry
to a call; what holds for all of them (tokens, limits, the database away) is added to each.
"""

from __future__ import annotations

import re
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from engine import config, registry
from engine.web.models import (
    STATUSES,
    Event,
    EventPage,
    Job,
    JobPage,
    JobRequest,
    Metrics,
    Problem,
    Run,
    RunRequest,
)

TAG = "x-flightdeck-call"  # marks the operations that are written here
_PROBLEM = {"$ref": "#/components/schemas/Problem"}

_WORDS = {
    400: "A token in the address, or an address that is none.",
    401: "No token, or a wrong one.",
    403: "A token that may only read; or, where no token is set, a request from another site.",
    404: "There is none in the project that is served.",
    408: "The body did not come within 30 s.",
    409: "It is over already.",
    413: "The payload is larger than 1 MiB.",
    422: "The request is not valid; `detail` and `errors` name what is wrong. Nothing was done.",
    429: "The queue is full, or too many requests a second; see Retry-After.",
    500: "A fault of ours; the log has it under `request_id`.",
    503: "The database does not answer, or too many requests wait; see Retry-After.",
}
_ALWAYS = (400, 401, 403, 429, 500, 503)
_RETRY = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}}
_LOCATION = {"Location": {"description": "Where it is.", "schema": {"type": "string"}}}


def _query(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


_AFTER = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_ID_IN = {
    "type": "string",
    "pattern": "^[0-9]{1,19}$",
    "minLength": 1,
    "maxLength": 19,
}
_PROMETHEUS = {
    "text/plain": {"schema": {"type": "string"}},
    "application/openmetrics-text": {"schema": {"type": "string"}},
}

# name of the call: what it answers when all is well, and what else it may answer.
_CALLS: dict[str, dict[str, Any]] = {
    "submit_job": {
        "body": JobRequest,
        "parameters": [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "description": "Makes it safe to send again: the same key and body give the first job, another body is refused.",
                "schema": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 255,
                    "pattern": "^[!-~]([ -~]{0,253}[!-~])?$",
                },
                "example": "order-2026-01-31-0007",
            }
        ],
        "good": {
            201: (Job, "A new job.", _LOCATION),
            200: (Job, "The job that this key and body made before.", _LOCATION),
        },
        "bad": (408, 413, 422),
    },
    "list_jobs": {
        "parameters": [
            _query("limit", "How many at most.", {"type": "integer", "minimum": 1, "maximum": 100, "default": 50}),
            _query(
                "offset",
                "Without so many of the newest.",
                {"type": "integer", "minimum": 0, "maximum": 2**53 - 1, "default": 0},
            ),
            _query("status", "Only those.", {"type": "string", "enum": list(STATUSES)}),
            _query("after", "Only those behind that id: the `next` of the page before.", _AFTER),
            _query(
                "task",
                "Only jobs of that task.",
                {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[^\\x00-\\x1f]+$"},
            ),
            _query(
                "queue",
                "Only jobs of that queue.",
                {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[^\\x00-\\x1f]+$"},
            ),
        ],
        "good": {200: (JobPage, "A page of jobs.", {})},
        "bad": (422,),
    },
    "get_job": {"good": {200: (Job, "The job as it is now.", {})}, "bad": (404,)},
    "cancel_job": {
        "good": {200: (Job, "It waited, and is cancelled.", {}), 202: (Job, "It runs, and was asked to stop.", {})},
        "bad": (404, 409),
    },
    "job_events": {
        "parameters": [
            _query("limit", "How many at most.", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 200}),
            _query("after", "Only those behind that event: the `next` of the page before.", {**_AFTER, "default": 0}),
        ],
        "good": {200: (EventPage, "What happened, oldest first.", {})},
        "bad": (404, 422),
    },
    "job_log": {
        "good": {
            200: (
                {"text/plain": {"schema": {"type": "string"}}},
                "The end of what it printed.",
                {
                    "X-Log-Attempt": {"description": "Of which attempt.", "schema": {"type": "integer"}},
                    "X-Log-Bytes": {"description": "How much it printed in all.", "schema": {"type": "integer"}},
                },
            )
        },
        "bad": (404,),
    },
    "submit_run": {
        "body": RunRequest,
        "good": {201: (Run, "A new run.", _LOCATION)},
        "bad": (408, 413, 422),
    },
    "get_run": {"good": {200: (Run, "The run as it is now.", {})}, "bad": (404,)},
    "cancel_run": {
        "good": {
            200: (Run, "Cancelled; nothing of it ran.", {}),
            202: (Run, "Cancelled; what runs of it was asked to stop.", {}),
        },
        "bad": (404, 409),
    },
    "metrics": {
        "parameters": [
            _query(
                "format",
                "Goes before the Accept header: JSON of this project, or the fleet for Prometheus.",
                {"type": "string", "enum": ["json", "prometheus"]},
            )
        ],
        "good": {200: (Metrics, "Numbers.", {})},
        "more": {200: _PROMETHEUS},
        "bad": (422,),
    },
}


def documented(call: str) -> dict[str, Any]:
    """The keyword arguments of a route's decorator."""
    entry = _CALLS[call]
    responses: dict[int | str, dict[str, Any]] = {}
    for status, (model, description, headers) in entry["good"].items():
        found: dict[str, Any] = {"description": description}
        found |= {"model": model} if isinstance(model, type) else {"content": model}
        more = entry.get("more", {}).get(status)
        if more:
            found["content"] = more
        if headers:
            found["headers"] = headers
        responses[status] = found
    for status in (*_ALWAYS, *entry["bad"]):
        responses[status] = _refusal(status)
    extra: dict[str, Any] = {TAG: call}
    if (body := entry.get("body")) is not None:
        schema = {"$ref": f"#/components/schemas/{body.__name__}"}
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {
        "operation_id": call,
        "responses": responses,
        "response_model": None,
        "status_code": next(iter(entry["good"])),
        "openapi_extra": extra,
    }


def _refusal(status: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "description": _WORDS[status],
        "content": {"application/problem+json": {"schema": _PROBLEM}},
    }
    if status in (429, 503):
        found["headers"] = _RETRY
    return found


def install(app: FastAPI) -> None:
    """Have the app's document finished once it is asked for: by then the served app has registered its tasks."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            _finish(FastAPI.openapi(app), guarded=bool(app.state.settings.tokens))
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _finish(document: dict[str, Any], guarded: bool) -> None:
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    taken: tuple[type[BaseModel], ...] = (Problem, JobRequest, RunRequest)
    for model in taken:
        schemas[model.__name__] = _schema(model)
    given: tuple[type[BaseModel], ...] = (Job, JobPage, Event, EventPage, Run, Metrics)
    for model in given:  # the framework leaves out of their examples what is null
        schemas[model.__name__]["examples"] = _schema(model)["examples"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    job = schemas["JobRequest"]["properties"]
    job["task"]["enum"] = sorted(registry.tasks)
    job["queue"]["enum"] = list(config.ingest_queues())
    schemas["RunRequest"]["properties"]["workflow"] = _workflows()
    if guarded:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    for path, calls in document.get("paths", {}).items():
        for operation in calls.values():
            _finish_call(path, operation)
    health = document["paths"].get("/healthz", {}).get("get")
    if health is not None:
        health["security"] = []  # an empty list: it needs none
        for status in ("401", "403"):
            health["responses"].pop(status, None)


def _finish_call(path: str, operation: dict[str, Any]) -> None:
    call = operation.pop(TAG, None)
    for status in _ALWAYS:
        operation["responses"].setdefault(str(status), _refusal(status))
    if call is None:
        return
    ids = [
        {"name": name, "in": "path", "required": True, "schema": _ID_IN, "example": "1042"}
        for name in re.findall(r"{(\w+)}", path)
    ]
    operation["parameters"] = ids + _CALLS[call].get("parameters", [])
    operation["responses"] = dict(sorted(operation["responses"].items()))


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(ref_template="#/components/schemas/{model}")


def _workflows() -> dict[str, Any]:
    known = sorted(registry.workflows)
    base: dict[str, Any] = {"type": "string", "description": "The name of a registered workflow."}
    return base | ({"enum": known} if known and config.hook("workflow_provider") is None else {})
