"""Fleet > Box > Lane, Device, Job: what one view of the database says, cleaned, as immutable values.

Everything here may come from rows that anybody wrote: unknown keys are ignored, missing ones have a default, and every
text passes ``clean``. Raw names that an order must name again are kept beside the shown ones (``raw_*``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from engine.telemetry.limits import ANY, Level, Limits, gpu_level, limits_for
from flightdeck.model.text import clean

LANE_SILENT_S = 30.0  # a heartbeat older than this is a lane that is gone (SPEC, liveness)
SAMPLE_LATE_S = 10.0
SAMPLE_GONE_S = 30.0

EXIT_CODES = {
    75: "over its budget",
    76: "stalled",
    77: "lost its claim",
    78: "gpu idle",
    79: "stopped by an operator",
}


@dataclass(frozen=True, slots=True)
class Project:
    name: str
    raw: str
    queued: int
    running: int
    capped: bool = False  # there are more: counting stopped


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


Classes = tuple[tuple[str, Limits], ...]


def read_view(data: Mapping[str, Any], classes: Sequence[tuple[str, Limits]] = ()) -> View:
    """A ``fleet_snapshot()``-shaped dict as values. Raises nothing for odd content. ``classes``: levels of a profile."""
    known = tuple(classes)
    return View(
        boxes=tuple(_box(row, known) for row in _rows(data.get("boxes"))),
        projects=tuple(
            Project(
                show_project(row.get("project")),
                _raw(row.get("project")),
                _int(row.get("queued")),
                _int(row.get("running")),
                bool(row.get("capped")),
            )
            for row in _rows(data.get("projects"))
        ),
        events=tuple(_event(row) for row in _rows(data.get("events"))),
        leader=_leader(data.get("leader", None), "leader" in data),
        store=_store(data.get("store")),
    )


def show_project(value: object) -> str:
    """The unnamed project has a visible name."""
    return clean(value, 60) or "-"


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


@dataclass(frozen=True, slots=True)
class LaneWord:
    """The state of a lane in at most 12 cells, and how it is meant: ok, warn, bad, wait or dim."""

    text: str
    tone: str


def lane_word(lane: Lane, since_view_s: float = 0.0) -> LaneWord:
    """Desired against actual, never confused: ``PARKED`` only when the lane itself says parked."""
    if lane.merged:
        words = [lane_word(part, since_view_s) for part in lane.merged]
        if len({word.text for word in words}) == 1:
            return words[0]
        on = sum(word.text == "ON" for word in words)
        tone = "bad" if any(word.tone == "bad" for word in words) else "warn"
        return LaneWord(f"{on} of {len(words)} ON", tone)
    if lane.state == "stopping" and not lane.busy and not lane.flagged:
        return LaneWord("ended", "dim")  # its last heartbeat: it went in order, which is no fault
    if lane.silent(since_view_s):
        return LaneWord("DOWN", "bad")
    if lane.state == "refused":
        return LaneWord("REFUSED", "bad")
    if lane.state == "stopping":
        return LaneWord("stopping", "warn")
    if lane.desired == "off":
        if lane.state == "parked":
            return LaneWord("PARKED", "warn")
        if lane.state == "draining" or (lane.policy == "drain" and lane.busy):
            return LaneWord(f"draining {lane.busy}", "warn")
        return LaneWord("parking...", "wait")
    if lane.state in ("parked", "parking"):
        return LaneWord("resuming...", "wait")
    if lane.state == "starting":
        return LaneWord("starting...", "wait")
    if lane.state == "draining":
        return LaneWord(f"draining {lane.busy}", "warn")
    return LaneWord("ON", "ok")


def counts(boxes: Iterable[Box], since_view_s: float = 0.0) -> tuple[int, int, int]:
    """(parked, draining, down) lanes, each lane of each project counted once."""
    words = [lane_word(lane, since_view_s).text for box in boxes for lane in box.lanes]
    return (
        sum(word == "PARKED" for word in words),
        sum(word.startswith("draining") for word in words),
        sum(word in ("DOWN", "REFUSED") for word in words),
    )


def exit_text(code: int | None, reason: str = "") -> str:
    """Why a process ended, in words."""
    if code is None:
        return reason
    if code in EXIT_CODES:
        text = f"{EXIT_CODES[code]} ({code})"
    elif code < 0:
        text = f"killed by signal {-code}"
    else:
        text = f"exit code {code}"
    return f"{text}: {reason}" if reason and reason != text else text


@lru_cache(maxsize=1024)
def _limits(box: str, cpu: str, gpus: tuple[str, ...], classes: Classes) -> Limits:
    return limits_for(box, cpu, gpus, classes)


def _box(row: Mapping[str, Any], classes: Classes) -> Box:
    facts = row.get("facts") if isinstance(row.get("facts"), Mapping) else {}
    assert isinstance(facts, Mapping)
    name = clean(row.get("box"), 60)
    jobs = tuple(_job(job, name) for job in _rows(row.get("jobs")))
    lanes = tuple(_lane(lane) for lane in _rows(row.get("lanes")))
    devices = tuple(_device(index, gpu) for index, gpu in enumerate(_rows(facts.get("gpus"))))
    limits = _limits(name, clean(facts.get("cpu_model"), 60), tuple(device.name for device in devices), classes)
    devices = tuple(replace(device, heat=gpu_level(limits, device.temp_slowdown_c)) for device in devices)
    lanes = tuple(sorted(lanes, key=lambda lane: (_QUEUE_ORDER.get(lane.queue, 2), lane.queue, lane.project)))
    return Box(
        name=name or "?",
        raw=_raw(row.get("box")),
        state=clean(row.get("state"), 20),
        description=clean(row.get("description") or facts.get("description"), 80),
        simulated=bool(row.get("simulated", facts.get("simulated", False))),
        cpu_model=clean(facts.get("cpu_model"), 60),
        cores=_int_or_none(facts.get("cores")),
        mem_mb=_float(facts.get("mem_mb")),
        driver=clean(facts.get("driver"), 30),
        devices=devices,
        lanes=lanes,
        jobs=jobs,
        running=max(len(jobs), _int(row.get("running"))),
        limits=limits,
    )


_QUEUE_ORDER = {"cpu": 0, "gpu": 1}


def _lane(row: Mapping[str, Any]) -> Lane:
    return Lane(
        queue=clean(row.get("queue"), 40),
        project=show_project(row.get("project")),
        raw_queue=_raw(row.get("queue")),
        raw_project=_raw(row.get("project")),
        state=clean(row.get("state"), 20),
        desired="off" if row.get("desired") == "off" else "on",
        policy=clean(row.get("policy"), 10),
        slots=_int(row.get("slots")),
        busy=_int(row.get("busy")),
        queued=_int(row.get("queued")),
        current_model=clean(row.get("current_model"), 60),
        last_seen_s=_float(row.get("last_seen_s")),
        flagged=bool(row.get("flagged")),
        exit_code=_int_or_none(row.get("last_exit_code")),
        exit_reason=clean(row.get("last_exit_reason"), 120),
        incarnation=clean(row.get("incarnation"), 20),
        cordoned=bool(row.get("cordoned")),
        ordered_by=clean(row.get("requested_by"), 40),
    )


def _job(row: Mapping[str, Any], box: str) -> Job:
    return Job(
        id=clean(row.get("id"), 30),
        family=clean(row.get("family"), 10),
        project=show_project(row.get("project")),
        raw_project=_raw(row.get("project")),
        name=clean(row.get("name"), 80) or "?",
        queue=clean(row.get("queue"), 40),
        box=clean(row.get("box"), 60) or box,
        age_s=_float(row.get("age_s")),
        progress_pct=_float(row.get("progress_pct")),
        progress_text=clean(row.get("progress_text"), 120),
        run_id=clean(row.get("run_id"), 30),
        attempt=_int(row.get("attempt")),
        is_priority=bool(row.get("is_priority")),
        stopping=bool(row.get("cancel_requested")),
        note=clean(row.get("note"), 80),
    )


def _device(position: int, row: Mapping[str, Any]) -> Device:
    index = _int_or_none(row.get("index"))
    return Device(
        index=position if index is None else index,
        uuid=clean(row.get("uuid"), 60),
        name=clean(row.get("name"), 60),
        mem_mb=_float(row.get("mem_mb")),
        unified=bool(row.get("unified")),
        power_limit_w=_float(row.get("power_limit_w")),
        temp_slowdown_c=_float(row.get("temp_slowdown_c")),
        clock_max_mhz=_float(row.get("clock_max_mhz")),
    )


def _event(row: Mapping[str, Any]) -> Event:
    kind, cause = clean(row.get("type"), 30), clean(row.get("cause"), 30)
    text = clean(row.get("text"), 200)
    if not text:
        code = exit_text(_int_or_none(row.get("exit_code")))
        why = ", ".join(part for part in (cause.replace("_", " "), code) if part)
        text = kind.replace("_", " ") + (f": {why}" if why else "")
    return Event(
        id=clean(row.get("id"), 30),
        at=_time(row.get("at")),
        box=clean(row.get("box"), 60),
        queue=clean(row.get("queue"), 40),
        project=show_project(row.get("project")),
        raw_project=_raw(row.get("project")),
        kind=kind,
        cause=cause,
        text=text,
    )


def _leader(value: object, given: bool) -> bool | None:
    if not given:
        return None
    if isinstance(value, Mapping):
        return bool(value.get("box") or value.get("incarnation") or value.get("is_leader"))
    return bool(value)


def _store(value: object) -> str:
    if isinstance(value, Mapping):
        value = value.get("name") or value.get("url") or value.get("kind")
    return clean(value, 60)


def _rows(value: object) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list | tuple) else []


def _raw(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _int(value: object) -> int:
    return _int_or_none(value) or 0


def _int_or_none(value: object) -> int | None:
    number = _float(value)
    return None if number is None else int(number)


def _float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = float(value)
    return number if number == number and abs(number) < 1e18 else None


def _time(value: object) -> datetime | None:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    return value if isinstance(value, datetime) and value.tzinfo is not None else None
