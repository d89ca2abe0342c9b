"""Reading a view: a ``fleet_snapshot()``-shaped dict as values of :mod:`flightdeck.model.fleet`.

Everything here may come from rows that anybody wrote: unknown keys are ignored, missing ones have a default, and every
text passes ``clean``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
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


REBASE_S = 60.0  # ages count from one view for so long
APART_S = 0.5  # and no longer when the two clocks do not go together (one was set, a recording has jumped)


class ViewReader:
    """Reads one view after the other, and of each only what is different. A row of a box that has a time of its own ("at")
    and is the same object as before is not read again; of facts that say what they said before nothing is.

    So that a box which did not change is the same value, too, all ages of a view count from ``mono`` (monotonic seconds), the
    time of an earlier view: they are below zero for what is younger.
    """

    def __init__(self, classes: Classes = ()) -> None:
        self.classes = classes
        self.mono = 0.0
        self._at: datetime | None = None  # the database's clock at that time
        self._hardware: dict[str, tuple[Mapping[str, Any], _Hardware]] = {}
        self._boxes: dict[str, tuple[Mapping[str, Any], Box]] = {}
        self._events: tuple[list[Mapping[str, Any]], tuple[Event, ...]] = ([], ())

    def read(self, data: Mapping[str, Any], mono: float = 0.0) -> View:
        """``mono``: when the view was read."""
        at = moment(data.get("at"))
        if not self._counts_on(at, mono):
            self._at, self.mono, self._boxes = at, mono, {}
        before, self._boxes = self._boxes, {}
        boxes = tuple(self._box(row, at, before) for row in rows(data.get("boxes")))
        if len(self._hardware) > 2 * len(boxes) + 16:
            self._hardware.clear()
        events = rows(data.get("events"))
        if events != self._events[0]:
            self._events = events, tuple(_event(row) for row in events)
        return View(
            boxes=boxes,
            projects=tuple(
                Project(
                    show_project(row.get("project")),
                    raw(row.get("project")),
                    _int(row.get("queued")),
                    _int(row.get("running")),
                    bool(row.get("capped")),
                    _int(row.get("awaiting")),
                )
                for row in rows(data.get("projects"))
            ),
            events=self._events[1],
            leader=_leader(data.get("leader", None), "leader" in data),
            store=_store(data.get("store")),
        )

    def _counts_on(self, at: datetime | None, mono: float) -> bool:
        """Whether ages may go on counting from where they do."""
        if at is None or self._at is None:
            return False
        passed_s = (at - self._at).total_seconds()
        return 0.0 <= passed_s <= REBASE_S and abs(passed_s - (mono - self.mono)) <= APART_S

    def _box(
        self, row: Mapping[str, Any], view_at: datetime | None, before: Mapping[str, tuple[Mapping[str, Any], Box]]
    ) -> Box:
        name = raw(row.get("box"))
        known = before.get(name)
        if known is not None and known[0] is row:
            self._boxes[name] = known
            return known[1]
        facts = mapping(row.get("facts"))
        hardware = self._hardware.get(name)
        if hardware is None or (hardware[0] is not facts and hardware[0] != facts):
            hardware = (facts, _read_hardware(clean(row.get("box"), 60), facts, self.classes))
            self._hardware[name] = hardware
        own = moment(row.get("at"))
        at = own or view_at
        box = _box(
            row, hardware[1], (self._at - at).total_seconds() if self._at is not None and at is not None else 0.0
        )
        if own is not None:
            self._boxes[name] = row, box
        return box


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


def _box(row: Mapping[str, Any], hardware: _Hardware, shift_s: float) -> Box:
    """``shift_s`` is added to all ages."""
    name = clean(row.get("box"), 60)
    jobs = tuple(_job(job, name, shift_s) for job in rows(row.get("jobs")))
    lanes = tuple(_lane(lane, shift_s) for lane in rows(row.get("lanes")))
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


_LANE = (
    "queue", "project", "state", "desired", "policy", "slots", "busy", "queued", "current_model", "flagged", "last_exit_code",
    "incarnation", "cordoned", "requested_by",
)  # fmt: skip


def _lane(row: Mapping[str, Any], shift_s: float) -> Lane:
    values = [row.get(name) for name in _LANE]
    try:
        what, how, who = _lane_parts(*values)
    except TypeError:  # a list where a word should be
        what, how, who = _lane_parts.__wrapped__(*values)
    seen_s = _age(row.get("last_seen_s"), shift_s)
    fields = (*what, seen_s, *how, clean(row.get("last_exit_reason"), 120), *who)  # in the order of the class
    return Lane(*fields)


@lru_cache(maxsize=1024, typed=True)  # a lane that beats says what it said before
def _lane_parts(
    queue: Any, project: Any, state: Any, desired: Any, policy: Any, slots: Any, busy: Any, queued: Any, model: Any,
    flagged: Any, exit_code: Any, incarnation: Any, cordoned: Any, ordered_by: Any,
) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:  # fmt: skip
    """The fields of a lane up to the age of its last beat, up to the reason of its last exit, and those behind."""
    what = (
        clean(queue, 40), show_project(project), raw(queue), raw(project), clean(state, 20), "off" if desired == "off" else "on",
        clean(policy, 10), _int(slots), _int(busy), _int(queued), clean(model, 60),
    )  # fmt: skip
    return what, (bool(flagged), integer(exit_code)), (clean(incarnation, 20), bool(cordoned), clean(ordered_by, 40))


def _job(row: Mapping[str, Any], box: str, shift_s: float) -> Job:
    return Job(
        id=clean(row.get("id"), 30),
        family=clean(row.get("family"), 10),
        project=show_project(row.get("project")),
        raw_project=raw(row.get("project")),
        name=clean(row.get("name"), 80) or "?",
        queue=clean(row.get("queue"), 40),
        box=clean(row.get("box"), 60) or box,
        age_s=_age(row.get("age_s"), shift_s),
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


def _age(value: object, shift_s: float) -> float | None:
    found = number(value)
    return None if found is None else found + shift_s


def _int(value: object) -> int:
    return integer(value) or 0
