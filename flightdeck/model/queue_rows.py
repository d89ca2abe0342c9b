"""Queues as their page shows them: what the question ``queues`` answers, cleaned, as immutable values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from flightdeck.model.fleet import show_project
from flightdeck.model.lanes import LaneWord
from flightdeck.model.rows import integer, mapping, moment, number, raw, rows
from flightdeck.model.text import clean


@dataclass(frozen=True, slots=True)
class QueueOrder:
    """An order that holds lanes of the queue off."""

    box: str
    policy: str
    reason: str
    by: str
    until: datetime | None
    at: datetime | None


@dataclass(frozen=True, slots=True)
class ModelNeed:
    model: str
    queued: int
    capped: bool
    warm: int  # lanes that hold it


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue of one project. Times in seconds; None: nothing to tell."""

    queue: str
    project: str
    raw_queue: str
    raw_project: str
    queued: int
    capped: bool
    scheduled: int
    next_at: datetime | None
    running: int
    awaiting: int
    oldest_at: datetime | None
    done: int
    failed: int
    run_mean_s: float | None
    run_p95_s: float | None
    wait_mean_s: float | None
    wait_p95_s: float | None
    on: int
    parked: int
    down: int
    changing: int
    slots: int
    busy: int
    desired: str  # on, off, mixed, none
    orders: tuple[QueueOrder, ...]
    models: tuple[ModelNeed, ...]
    unplaceable: int
    unplaceable_capped: bool
    reason: str

    @property
    def lanes(self) -> int:
        return self.on + self.parked + self.down + self.changing


@dataclass(frozen=True, slots=True)
class QueueList:
    """``window_s``: of how many of the last 3,600 seconds the figures tell. ``backlog_limit``: 0: none."""

    queues: tuple[QueueRow, ...] = ()
    window_s: float = 3600.0
    backlog_limit: int = 0


def actual(row: QueueRow) -> LaneWord:
    """What its lanes do, never what is wanted of them, in at most 12 cells."""
    if not row.lanes:
        return LaneWord("no lane", "bad" if row.queued else "dim")
    if row.down == row.lanes:
        return LaneWord("DOWN", "bad")
    if row.parked == row.lanes:
        return LaneWord("PARKED", "warn")
    if row.on == row.lanes:
        return LaneWord("ON", "ok")
    if row.changing and not row.on:
        return LaneWord("parking..." if row.desired == "off" else "resuming...", "wait")
    return LaneWord(f"{row.on} of {row.lanes} ON", "warn")


def read_queues(answer: object) -> QueueList:
    """Raises nothing for odd content."""
    data = mapping(answer)
    return QueueList(
        queues=tuple(_queue(row) for row in rows(data.get("queues"))),
        window_s=number(data.get("window_s")) or 3600.0,
        backlog_limit=integer(data.get("backlog_limit")) or 0,
    )


def _queue(row: Mapping[str, Any]) -> QueueRow:
    ended, lanes = mapping(row.get("ended")), mapping(row.get("lanes"))
    return QueueRow(
        queue=clean(row.get("queue"), 40) or "?",
        project=show_project(row.get("project")),
        raw_queue=raw(row.get("queue")),
        raw_project=raw(row.get("project")),
        queued=integer(row.get("queued")) or 0,
        capped=bool(row.get("capped")),
        scheduled=integer(row.get("scheduled")) or 0,
        next_at=moment(row.get("next_at")),
        running=integer(row.get("running")) or 0,
        awaiting=integer(row.get("awaiting")) or 0,
        oldest_at=moment(row.get("oldest_at")),
        done=integer(ended.get("done")) or 0,
        failed=integer(ended.get("failed")) or 0,
        run_mean_s=number(ended.get("run_mean_s")),
        run_p95_s=number(ended.get("run_p95_s")),
        wait_mean_s=number(ended.get("wait_mean_s")),
        wait_p95_s=number(ended.get("wait_p95_s")),
        on=integer(lanes.get("on")) or 0,
        parked=integer(lanes.get("parked")) or 0,
        down=integer(lanes.get("down")) or 0,
        changing=integer(lanes.get("changing")) or 0,
        slots=integer(lanes.get("slots")) or 0,
        busy=integer(lanes.get("busy")) or 0,
        desired=clean(row.get("desired"), 10) or "none",
        orders=tuple(_order(order) for order in rows(row.get("orders"))),
        models=tuple(_model(model) for model in rows(row.get("models"))),
        unplaceable=integer(row.get("unplaceable")) or 0,
        unplaceable_capped=bool(row.get("unplaceable_capped")),
        reason=clean(row.get("reason"), 300),
    )


def _order(row: Mapping[str, Any]) -> QueueOrder:
    return QueueOrder(
        box=clean(row.get("box"), 60),
        policy=clean(row.get("policy"), 10),
        reason=clean(row.get("reason"), 200),
        by=clean(row.get("requested_by"), 60),
        until=moment(row.get("until")),
        at=moment(row.get("updated_at")),
    )


def _model(row: Mapping[str, Any]) -> ModelNeed:
    return ModelNeed(
        clean(row.get("model"), 80),
        integer(row.get("queued")) or 0,
        bool(row.get("capped")),
        integer(row.get("warm")) or 0,
    )
