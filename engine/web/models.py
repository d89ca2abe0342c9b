"""What goes in and out of the job API, with examples: the OpenAPI document is made of these."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from engine.queue.enqueue import PRIORITY_LIMIT
from engine.web.examples import EVENT, GRAPH, JOB, RUN

Status = Literal["queued", "running", "succeeded", "failed", "cancelled"]
NodeStatus = Literal["queued", "running", "succeeded", "failed", "cancelled", "awaiting_input", "skipped"]
STATUSES: tuple[str, ...] = ("queued", "running", "succeeded", "failed", "cancelled")

MOMENT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})$"


def stored(status: str) -> str:
    """A status of this API as rows have it."""
    return "completed" if status == "succeeded" else status


def told(status: str) -> str:
    """A row's status as this API has it."""
    return "succeeded" if status == "completed" else status


def _no_surprise(text: str) -> str:
    if any("\ud800" <= c <= "\udfff" or c == "\x00" for c in text):
        raise ValueError("holds a NUL character or half a character")
    return text


def _time(text: str) -> str:
    if not re.match(MOMENT, text, re.ASCII) or text.endswith("\n"):
        raise PydanticCustomError("moment", "a time with its zone, such as 2026-01-31T12:00:00Z")
    return text


def _whole(value: Any) -> Any:
    """3.0 is a whole number to JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_no_surprise)]
Id = Annotated[str, Field(pattern="^[0-9]{1,19}$", examples=["1042"])]
Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"}, examples=["2026-01-31T12:00:00.123456Z"])]
Priority = Annotated[
    int,
    Field(ge=-PRIORITY_LIMIT, le=PRIORITY_LIMIT, description="Lower goes sooner."),
    BeforeValidator(_whole),
]


class JobRequest(BaseModel):
    """One job to be done."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [
                {"payload": {"steps": 3, "samples": 100}},
                {
                    "payload": {"steps": 200, "step_delay_seconds": 0.05, "samples": 500},
                    "task": "train",
                    "queue": "training",
                    "priority": 50,
                    "max_attempts": 3,
                    "run_after": "2026-01-31T12:00:00Z",
                },
            ]
        },
    )

    payload: dict[str, Any] = Field(description="What the task is called with, by name. At most 1 MiB as JSON.")
    task: Name = Field("train", description="A task that is registered: `train`, or one of the app that is served.")
    queue: Name = Field("training", description="The queue whose lanes run it.")
    priority: Priority = 100
    max_attempts: Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(_whole)] | None = Field(
        None, description="How often it is tried when it fails with an error; null: as the task says."
    )
    run_after: (
        Annotated[str, AfterValidator(_time), Field(json_schema_extra={"pattern": MOMENT, "format": "date-time"})]
        | None
    ) = Field(None, description="Not before this time, which carries its zone; null, or in the past: at once.")


class Job(BaseModel):
    """One job. It is over when its status is succeeded, failed or cancelled, and never changes after."""

    model_config = ConfigDict(json_schema_extra={"examples": [JOB]})

    id: Id
    task: str
    queue: str
    status: Status
    payload: Any
    result: Any = Field(description="What the task returned; null until it has succeeded.")
    error: str | None = Field(description="Why it failed, was cancelled, or (while queued) is tried again.")
    attempt: int = Field(ge=0, description="How often it has been begun.")
    max_attempts: int
    progress: float | None = Field(
        description="0 to 100, as the task reports it; null: nothing reported. Of a job that has succeeded 100."
    )
    created_at: Moment | None
    started_at: Moment | None
    finished_at: Moment | None


class JobPage(BaseModel):
    """Jobs, newest first."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"items": [JOB], "total": 1, "limit": 50, "offset": 0, "next": None}]}
    )

    items: list[Job]
    total: int = Field(ge=0, description="How many jobs the filters let through, on all pages together.")
    limit: int = Field(
        ge=1, description="As asked; or fewer, where a page ended early because its payloads and results came to 8 MiB."
    )
    offset: int = Field(ge=0)
    next: Id | None = Field(description="Give it as `after` for the next page; null: this was the last.")


class Event(BaseModel):
    """The end of one attempt of a job, or something unusual."""

    model_config = ConfigDict(json_schema_extra={"examples": [EVENT]})

    id: Id
    at: Moment | None
    type: str = Field(
        description="completed failed cancelled requeued stall_suspected trip lost_claim stale_write refused unplaceable"
    )
    cause: str | None = Field(
        description="Of what is requeued: executor_died lane_lost lease_lapsed operator_stop drain trip retry handed_back"
    )
    attempt: int | None
    box: str | None
    exit_code: int | None
    elapsed_s: float | None = Field(description="Seconds that the attempt ran.")
    text: str = Field(description="One line for people.")
    detail: Any = Field(description="Whatever else is known, an object.")


class EventPage(BaseModel):
    """Events, oldest first."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"items": [EVENT], "next": None}]})

    items: list[Event]
    next: Id | None = Field(description="Give it as `after` to read on; null: these were the last so far.")


class RunRequest(BaseModel):
    """A graph to be run: given here, or by the name under which the served app registers it."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [{"graph": GRAPH, "context": {"url": "https://example.org/rows"}}, {"workflow": "nightly"}],
            "oneOf": [{"required": ["graph"]}, {"required": ["workflow"]}],
        },
    )

    graph: dict[str, Any] = Field(
        default_factory=dict,
        description="See docs/graphs.md. At most 1 MiB as JSON.",
        json_schema_extra={
            "required": ["nodes"],
            "properties": {
                "name": {"type": "string"},
                "nodes": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["id"],
                        "properties": {
                            "id": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,200}$"},
                            "node": {"type": "string", "description": "A node that is registered."},
                            "depends_on": {"type": "array", "items": {"type": "string"}},
                            "inputs": {"type": "object"},
                        },
                    },
                },
            },
        },
    )
    workflow: Name = Field("", description="The name of a registered workflow.", validate_default=False)
    context: dict[str, Any] = Field(
        default_factory=dict, description="What the nodes' inputs may refer to. At most 1 MiB as JSON."
    )
    priority: Priority = 100


class RunNode(BaseModel):
    """One node of a run; one that has not been reached yet is `waiting`."""

    id: str
    node: str
    status: NodeStatus | Literal["waiting"]
    queue: str
    depends_on: list[str]
    job_id: Id | None
    attempt: int
    progress: float | None
    output: Any = Field(description="What it returned; null where it is larger than 64 KiB (see output_bytes).")
    output_bytes: int | None
    error: str | None
    started_at: Moment | None
    finished_at: Moment | None


class Run(BaseModel):
    """One execution of a graph."""

    model_config = ConfigDict(json_schema_extra={"examples": [RUN]})

    id: Id
    workflow: str
    status: Status
    priority: int
    error: str | None
    retry_of: Id | None
    created_at: Moment | None
    started_at: Moment | None
    finished_at: Moment | None
    nodes: list[RunNode]


class Problem(BaseModel):
    """What went wrong (RFC 9457)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "about:blank",
                    "title": "Unprocessable Content",
                    "status": 422,
                    "detail": "the request is not valid: priorty: Extra inputs are not permitted",
                    "instance": "/jobs",
                    "request_id": "5f0c2b9d1e7a4c33",
                    "errors": [
                        {"where": "priorty", "what": "Extra inputs are not permitted", "kind": "extra_forbidden"}
                    ],
                }
            ]
        }
    )

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str
    errors: list[dict[str, str]] = Field(default_factory=list)


class Metrics(BaseModel):
    """The jobs of the project that is served, in numbers."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "total": 1042,
                    "queued": 12,
                    "running": 4,
                    "succeeded": 1020,
                    "failed": 5,
                    "cancelled": 1,
                    "retried": 7,
                    "expired_leases": 1,
                    "mean_run_s": 12.75,
                }
            ]
        }
    )

    total: int
    queued: int
    running: int
    succeeded: int
    failed: int
    cancelled: int
    retried: int = Field(description="Attempts that ended with their job back in the queue, for whatever cause.")
    expired_leases: int = Field(description="Attempts that were taken from a lane that no longer renewed their lease.")
    mean_run_s: float | None = Field(description="Of the newest 5,000 jobs that succeeded, in seconds; null: none has.")
