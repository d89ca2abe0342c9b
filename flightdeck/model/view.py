"""Reading a view: a ``fleet_snapshot()``-shaped dict as values of :mod:`flightdeck.model.fleet`.

Everything here may come from rows that anybody wrote: unknown keys are ignored, missing ones have a default, and every
text passes ``clean``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from engine.telemetry.limits import Limits, gpu_level, limits_for
from flightdeck.model.fleet import Box, Device, Event, Job, Lane, Project, View, show_project
from flightdeck.model.lanes import exit_text
from flightdeck.model.rows import integer, mapping, moment, number, raw, rows
from flightdeck.model.text import clean

Classes = tuple[tuple[str, Limits], ...]


def read_view(data: Mapping[str, Any], classes: Sequence[tuple[str, Limits]] = ()) -> View:
    """A ``fleet_snapshot()``-shaped dict as values. Raises nothing for odd content. ``classes``: levels of a profile."""
    return ViewReader(tuple(classes)).read(data)


@dataclass(frozen=True, slots=True)
class _Hardware:
    """What the facts of a box say."""

    description: str
    simulated: bool
    cpu_model: str
    cores: int | None
    mem_mb: float | None
    driver: str
    devices: tuple[Device, ...]
    limits: Limits


class ViewReader:
    """Reads one view after the other. Hardware hardly ever changes: of facts that say what they said before nothing is
    read again."""

    def __init__(self, classes: Classes = ()) -> None:
        self.classes = classes
        self._hardware: dict[str, tuple[Mapping[str, Any], _Hardware]] = {}

    def read(self, data: Mapping[str, Any]) -> View:
        found = _view(data, self._box)
        if len(self._hardware) > 2 * len(found.boxes) + 16:
            self._hardware.clear()
        return found

    def _box(self, row: Mapping[str, Any]) -> Box:
        facts = mapping(row.get("facts"))
        known = self._hardware.get(raw(row.get("box")))
        if known is None or known[0] != facts:
            known = (facts, _read_hardware(clean(row.get("box"), 60), facts, self.classes))
            self._hardware[raw(row.get("box"))] = known
        return _box(row, known[1])


def _view(data: Mapping[str, Any], read_box: Callable[[Mapping[str, Any]], Box]) -> View:
    return View(
        boxes=tuple(read_box(row) for row in rows(data.get("boxes"))),
        projects=tuple(
            Project(
                show_project(row.get("project")),
                raw(row.get("project")),
                _int(row.get("queued")),
                _int(row.get("running")),
                bool(row.get("capped")),
            )
            for row in rows(data.get("projects"))
        ),
        events=tuple(_event(row) for row in rows(data.get("events"))),
        leader=_leader(data.get("leader", None), "leader" in data),
        store=_store(data.get("store")),
    )


@lru_cache(maxsize=1024)
def _limits(box: str, cpu: str, gpus: tuple[str, ...], classes: Classes) -> Limits:
    return limits_for(box, cpu, gpus, classes)


def _read_hardware(box: str, facts: Mapping[str, Any], classes: Classes) -> _Hardware:
    devices = tuple(_device(index, gpu) for index, gpu in enumerate(rows(facts.get("gpus"))))
    limits = _limits(box, clean(facts.get("cpu_model"), 60), tuple(device.name for device in devices), classes)
    return _Hardware(
        description=clean(facts.get("description"), 80),
        simulated=bool(facts.get("simulated", False)),
        cpu_model=clean(facts.get("cpu_model"), 60),
        cores=integer(facts.get("cores")),
        mem_mb=number(facts.get("mem_mb")),
        driver=clean(facts.get("driver"), 30),
        devices=tuple(replace(device, heat=gpu_level(limits, device.temp_slowdown_c)) for device in devices),
        limits=limits,
    )


def _box(row: Mapping[str, Any], hardware: _Hardware) -> Box:
    name = clean(row.get("box"), 60)
    jobs = tuple(_job(job, name) for job in rows(row.get("jobs")))
    lanes = tuple(_lane(lane) for lane in rows(row.get("lanes")))
    lanes = tuple(sorted(lanes, key=lambda lane: (_QUEUE_ORDER.get(lane.queue, 2), lane.queue, lane.project)))
    return Box(
        name=name or "?",
        raw=raw(row.get("box")),
        state=clean(row.get("state"), 20),
        description=clean(row.get("description"), 80) or hardware.description,
        simulated=bool(row.get("simulated", hardware.simulated)),
        cpu_model=hardware.cpu_model,
        cores=hardware.cores,
        mem_mb=hardware.mem_mb,
        driver=hardware.driver,
        devices=hardware.devices,
        lanes=lanes,
        jobs=jobs,
        running=max(len(jobs), _int(row.get("running"))),
        limits=hardware.limits,
    )


_QUEUE_ORDER = {"cpu": 0, "gpu": 1}


def _lane(row: Mapping[str, Any]) -> Lane:
    return Lane(
        queue=clean(row.get("queue"), 40),
        project=show_project(row.get("project")),
        raw_queue=raw(row.get("queue")),
        raw_project=raw(row.get("project")),
        state=clean(row.get("state"), 20),
        desired="off" if row.get("desired") == "off" else "on",
        policy=clean(row.get("policy"), 10),
        slots=_int(row.get("slots")),
        busy=_int(row.get("busy")),
        queued=_int(row.get("queued")),
        current_model=clean(row.get("current_model"), 60),
        last_seen_s=number(row.get("last_seen_s")),
        flagged=bool(row.get("flagged")),
        exit_code=integer(row.get("last_exit_code")),
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
        raw_project=raw(row.get("project")),
        name=clean(row.get("name"), 80) or "?",
        queue=clean(row.get("queue"), 40),
        box=clean(row.get("box"), 60) or box,
        age_s=number(row.get("age_s")),
        progress_pct=number(row.get("progress_pct")),
        progress_text=clean(row.get("progress_text"), 120),
        run_id=clean(row.get("run_id"), 30),
        attempt=_int(row.get("attempt")),
        is_priority=bool(row.get("is_priority")),
        stopping=bool(row.get("cancel_requested")),
        note=clean(row.get("note"), 80),
    )


def _device(position: int, row: Mapping[str, Any]) -> Device:
    index = integer(row.get("index"))
    return Device(
        index=position if index is None else index,
        uuid=clean(row.get("uuid"), 60),
        name=clean(row.get("name"), 60),
        mem_mb=number(row.get("mem_mb")),
        unified=bool(row.get("unified")),
        power_limit_w=number(row.get("power_limit_w")),
        temp_slowdown_c=number(row.get("temp_slowdown_c")),
        clock_max_mhz=number(row.get("clock_max_mhz")),
    )


def _event(row: Mapping[str, Any]) -> Event:
    kind, cause = clean(row.get("type"), 30), clean(row.get("cause"), 30)
    text = clean(row.get("text"), 200)
    if not text:
        code = exit_text(integer(row.get("exit_code")))
        why = ", ".join(part for part in (cause.replace("_", " "), code) if part)
        text = kind.replace("_", " ") + (f": {why}" if why else "")
    return Event(
        id=clean(row.get("id"), 30),
        at=moment(row.get("at")),
        box=clean(row.get("box"), 60),
        queue=clean(row.get("queue"), 40),
        project=show_project(row.get("project")),
        raw_project=raw(row.get("project")),
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


def _int(value: object) -> int:
    return integer(value) or 0
