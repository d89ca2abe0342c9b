"""One job in full: what the question ``job`` answers, cleaned, as immutable values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from flightdeck.model.jobs import JobRow, read_job
from flightdeck.model.rows import integer, lines, mapping, moment, number, rows, texts
from flightdeck.model.text import clean

LINES_MOST = 2_000  # of a payload, an error, a log


@dataclass(frozen=True, slots=True)
class Payload:
    lines: tuple[str, ...]
    size: int  # characters in all
    cut: bool


@dataclass(frozen=True, slots=True)
class Attempt:
    """An event of an attempt. ``detail``: what else was written about it, (name, value) as text."""

    at: datetime | None
    number: int | None
    kind: str
    cause: str
    box: str
    queue: str
    exit_code: int | None
    elapsed_s: float | None
    text: str
    detail: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the run. ``id``: of its job, empty: not enqueued yet; then ``waits_for``."""

    node_id: str
    depth: int
    waits_for: tuple[str, ...]
    id: str
    status: str
    queue: str
    box: str
    progress_pct: float | None
    started_at: datetime | None
    finished_at: datetime | None
    why: str


@dataclass(frozen=True, slots=True)
class Run:
    id: str
    workflow: str
    status: str
    error: str
    retry_of: str
    states: tuple[tuple[str, int], ...]
    nodes: tuple[Node, ...]
    hidden: int


@dataclass(frozen=True, slots=True)
class Share:
    """What the hardware of one GPU did to it. Milliseconds; None: not offered."""

    gpu_index: int | None
    power_ms: float | None
    thermal_ms: float | None
    brake_ms: float | None
    temp_max_c: float | None
    power_max_w: float | None
    sm_mean_mhz: float | None
    samples: int


@dataclass(frozen=True, slots=True)
class Log:
    lines: tuple[str, ...]
    size: int
    attempt: int
    updated_at: datetime | None
    cut: bool


@dataclass(frozen=True, slots=True)
class JobDetail:
    job: JobRow
    facts: Mapping[str, Any]  # columns that are shown as they are: numbers, times, cleaned texts
    only_boxes: tuple[str, ...]
    avoid_boxes: tuple[str, ...]
    input: Payload | None
    output: Payload | None
    error: tuple[str, ...]
    events: tuple[Attempt, ...]
    events_cut: bool
    log: Log | None
    run: Run | None
    prompt: str
    schema: tuple[str, ...]
    submitted: bool
    committed_at: datetime | None
    committed_by: str
    hardware: tuple[Share, ...]
    hardware_why: str
    waits: tuple[str, ...]
    ahead: int | None
    ahead_capped: bool

    @property
    def over(self) -> bool:
        """Whether nothing of it changes any more."""
        return self.job.status in ("completed", "failed", "cancelled", "skipped")


_TIMES = ("claimed_at", "lease_expires_at", "last_lost_at", "created_at", "started_at", "finished_at", "run_after")
_NUMBERS = ("failures", "max_attempts", "watchdog_retries", "losses", "attempt", "priority", "budget_s")
_TEXTS = ("claimed_by", "last_lost_box", "retry_of", "fencing_token", "idempotency_key")


def read_detail(answer: object) -> JobDetail | None:
    """None: there is no such job. Raises nothing for odd content."""
    data = mapping(answer)
    row = data.get("job")
    if not isinstance(row, Mapping):
        return None
    asked, execution, ahead = mapping(data.get("asked")), mapping(data.get("execution")), mapping(data.get("ahead"))
    facts: dict[str, Any] = {name: moment(row.get(name)) for name in _TIMES}
    facts |= {name: number(row.get(name)) for name in _NUMBERS}
    facts |= {name: clean(row.get(name), 120) for name in _TEXTS}
    return JobDetail(
        job=read_job(row),
        facts=facts,
        only_boxes=texts(row.get("only_boxes"), 60),
        avoid_boxes=texts(row.get("avoid_boxes"), 60),
        input=_payload(data.get("input")),
        output=_payload(data.get("output")),
        error=lines(row.get("error"), LINES_MOST),
        events=tuple(_event(event) for event in rows(data.get("events"))),
        events_cut=bool(data.get("events_cut")),
        log=_log(data.get("log")),
        run=_run(data.get("run")),
        prompt=clean(asked.get("prompt"), 400),
        schema=_flat(asked.get("schema")),
        submitted=bool(asked.get("submitted")),
        committed_at=moment(execution.get("committed_at")),
        committed_by=clean(execution.get("worker"), 120),
        hardware=tuple(_share(share) for share in rows(data.get("hardware"))),
        hardware_why=clean(data.get("hardware_why"), 200),
        waits=texts(data.get("waits"), 300),
        ahead=integer(ahead.get("n")) if ahead else None,
        ahead_capped=bool(ahead.get("capped")),
    )


def read_shares(answer: object) -> tuple[Share, ...]:
    """What the question ``job_hardware`` answers."""
    return tuple(_share(row) for row in rows(answer))


def _payload(value: object) -> Payload | None:
    if not isinstance(value, Mapping):
        return None
    return Payload(lines(value.get("text"), LINES_MOST), integer(value.get("size")) or 0, bool(value.get("cut")))


def _log(value: object) -> Log | None:
    if not isinstance(value, Mapping):
        return None
    found = lines(value.get("text"), LINES_MOST)
    while found and not found[-1]:
        found = found[:-1]
    return Log(
        found,
        integer(value.get("size")) or 0,
        integer(value.get("attempt")) or 0,
        moment(value.get("updated_at")),
        bool(value.get("cut")),
    )


def _event(row: Mapping[str, Any]) -> Attempt:
    detail = row.get("detail")
    return Attempt(
        at=moment(row.get("at")),
        number=integer(row.get("attempt")),
        kind=clean(row.get("type"), 30),
        cause=clean(row.get("cause"), 30),
        box=clean(row.get("box"), 60),
        queue=clean(row.get("queue"), 60),
        exit_code=integer(row.get("exit_code")),
        elapsed_s=number(row.get("elapsed_s")),
        text=clean(row.get("text"), 300),
        detail=tuple(_said(detail)) if isinstance(detail, Mapping) else (),
    )


def _said(detail: Mapping[Any, Any], before: str = "") -> list[tuple[str, str]]:
    """What is written about an event, flat, up to 24 entries: evidence of a watchdog is a mapping in a mapping."""
    found: list[tuple[str, str]] = []
    for name, value in list(detail.items())[:24]:
        name = f"{before}{clean(name, 40)}"
        if isinstance(value, Mapping) and not before:
            found += _said(value, f"{name}.")
        elif isinstance(value, list | tuple):
            found.append((name, clean(", ".join(str(item) for item in value[:20]), 300)))
        elif value is not None and value != "":
            found.append((name, clean(value, 300)))
    return found[:24]


def _flat(schema: object) -> tuple[str, ...]:
    """A JSON schema in a line or a few: what an answer may be."""
    if not isinstance(schema, Mapping) or not schema:
        return ()
    found = []
    kind = clean(schema.get("type"), 30)
    if isinstance(schema.get("enum"), list | tuple):
        found.append("one of: " + ", ".join(texts(schema["enum"], 60)[:12]))
    elif kind:
        found.append(kind)
    properties = schema.get("properties")
    required = texts(schema.get("required"), 60)
    for name, part in list(properties.items())[:12] if isinstance(properties, Mapping) else ():
        shown = clean(name, 60)
        need = "" if shown in required else ", may be left out"
        found.append(f"  {shown}: {' '.join(_flat(part)) or 'anything'}{need}")
    return tuple(found)


def _run(value: object) -> Run | None:
    if not isinstance(value, Mapping):
        return None
    states = mapping(value.get("states"))
    return Run(
        id=clean(value.get("id"), 30),
        workflow=clean(value.get("workflow"), 80),
        status=clean(value.get("status"), 20),
        error=clean(value.get("error"), 300),
        retry_of=clean(value.get("retry_of"), 30),
        states=tuple((clean(name, 20), integer(count) or 0) for name, count in states.items()),
        nodes=tuple(_node(node) for node in rows(value.get("nodes"))),
        hidden=integer(value.get("hidden")) or 0,
    )


def _node(row: Mapping[str, Any]) -> Node:
    return Node(
        node_id=clean(row.get("node_id"), 80),
        depth=min(max(0, integer(row.get("depth")) or 0), 500),
        waits_for=texts(row.get("waits_for"), 60),
        id=clean(row.get("id"), 30),
        status=clean(row.get("status"), 20),
        queue=clean(row.get("queue"), 40),
        box=clean(row.get("box"), 60),
        progress_pct=number(row.get("progress_pct")),
        started_at=moment(row.get("started_at")),
        finished_at=moment(row.get("finished_at")),
        why=clean(row.get("error") or row.get("unplaceable_reason"), 200),
    )


def _share(row: Mapping[str, Any]) -> Share:
    return Share(
        gpu_index=integer(row.get("gpu_index")),
        power_ms=number(row.get("power_ms")),
        thermal_ms=number(row.get("thermal_ms")),
        brake_ms=number(row.get("brake_ms")),
        temp_max_c=number(row.get("temp_max_c")),
        power_max_w=number(row.get("power_max_w")),
        sm_mean_mhz=number(row.get("sm_mean_mhz")),
        samples=integer(row.get("samples")) or 0,
    )
