"""Fleet > Box > Lane, Device, Job: what one view of the database says, as immutable values.

Texts are cleaned already; raw names that an order must name again are kept beside the shown ones (``raw_*``).
:mod:`flightdeck.model.view` makes them, :mod:`flightdeck.model.lanes` says how a lane stands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from engine.display.lanes import LANE_SILENT_S
from engine.display.text import show_project as show_project
from engine.telemetry.limits import ANY, Level, Limits

SAMPLE_LATE_S = 10.0
SAMPLE_GONE_S = 30.0


@dataclass(frozen=True, slots=True)
class Project:
    name: str
    raw: str
    queued: int
    running: int
    capped: bool = False  # there are more: counting stopped
    awaiting: int = 0  # nodes that wait for a person


@dataclass(frozen=True, slots=True)
class Lane:
    """What an operator parks: one (box, queue, project), or in ``all`` the lanes of one queue on a box merged."""

    queue: str
    project: str
    raw_queue: str
    raw_project: str
    state: str
    desired: str
    policy: str
    slots: int
    busy: int
    queued: int
    current_model: str
    last_seen_s: float | None
    flagged: bool
    exit_code: int | None
    exit_reason: str
    incarnation: str = ""
    cordoned: bool = False
    ordered_by: str = ""
    merged: tuple[Lane, ...] = ()  # the lanes behind a merged row

    @property
    def parts(self) -> tuple[Lane, ...]:
        return self.merged or (self,)

    def silent(self, since_view_s: float = 0.0) -> bool:
        return self.flagged or (self.last_seen_s is not None and self.last_seen_s + since_view_s > LANE_SILENT_S)


@dataclass(frozen=True, slots=True)
class Job:
    id: str
    family: str
    project: str
    raw_project: str
    name: str
    queue: str
    box: str
    age_s: float | None
    progress_pct: float | None
    progress_text: str
    run_id: str
    attempt: int
    is_priority: bool
    stopping: bool = False  # asked to cancel
    note: str = ""  # e.g. how long the hardware held it back


@dataclass(frozen=True, slots=True)
class Device:
    """Facts of one GPU."""

    index: int
    uuid: str
    name: str
    mem_mb: float | None
    unified: bool
    power_limit_w: float | None
    temp_slowdown_c: float | None
    clock_max_mhz: float | None
    heat: Level | None = None  # from when on it is warm, and hot, for its class


@dataclass(frozen=True, slots=True)
class Box:
    name: str
    raw: str
    state: str
    description: str
    simulated: bool
    cpu_model: str
    cores: int | None
    mem_mb: float | None
    driver: str
    devices: tuple[Device, ...]
    lanes: tuple[Lane, ...]
    jobs: tuple[Job, ...]
    running: int  # jobs running here; may be more than are listed
    limits: Limits = ANY  # of its class of hardware


@dataclass(frozen=True, slots=True)
class Event:
    id: str
    at: datetime | None
    box: str
    queue: str
    project: str
    raw_project: str
    kind: str
    cause: str
    text: str


@dataclass(frozen=True, slots=True)
class View:
    """One reading of the database."""

    boxes: tuple[Box, ...] = ()
    projects: tuple[Project, ...] = ()
    events: tuple[Event, ...] = ()
    leader: bool | None = None
    store: str = ""


def merge_lanes(lanes: Iterable[Lane]) -> tuple[Lane, ...]:
    """One row per queue: what ``all`` shows. A queue of a single project stays that lane."""
    grouped: dict[str, list[Lane]] = {}
    for lane in lanes:
        grouped.setdefault(lane.raw_queue, []).append(lane)
    return tuple(group[0] if len(group) == 1 else _merge(group) for group in grouped.values())


def _merge(group: list[Lane]) -> Lane:
    states = {lane.state for lane in group}
    models = [lane.current_model for lane in group if lane.current_model]
    return replace(
        group[0],
        project="*",
        raw_project="*",
        state=group[0].state if len(states) == 1 else "mixed",
        desired="on" if any(lane.desired == "on" for lane in group) else "off",
        slots=sum(lane.slots for lane in group),
        busy=sum(lane.busy for lane in group),
        queued=sum(lane.queued for lane in group),
        current_model=models[0] if models else "",
        last_seen_s=max((lane.last_seen_s for lane in group if lane.last_seen_s is not None), default=None),
        flagged=any(lane.flagged for lane in group),
        exit_code=next((lane.exit_code for lane in group if lane.exit_code), None),
        exit_reason=next((lane.exit_reason for lane in group if lane.exit_reason), ""),
        merged=tuple(group),
    )
