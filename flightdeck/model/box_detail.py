"""What the box page knows beyond the overview: facts, named sensors, processes, jobs of the window.

Made from answers of the database and from live samples; every text passes ``clean``, unknown keys are ignored, what is
no number is no value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from flightdeck.model.gpu_named import GpuNamed, read_gpu_named
from flightdeck.model.rows import integer, moment, number
from flightdeck.model.slots import Pair
from flightdeck.model.text import clean

if TYPE_CHECKING:
    from engine.telemetry.sample import GpuSample

MOST = 64  # named sensors of one kind, processes


# -- facts and sensors


@dataclass(frozen=True, slots=True)
class Process:
    pid: int | None
    name: str
    gpu_index: int | None
    mem_mb: float | None


@dataclass(frozen=True)
class Sensors:
    """Named sensors of one sample. Rates are (in, out) or (read, written) in bytes per second."""

    zones: tuple[tuple[str, float], ...] = ()
    fans: tuple[tuple[str, float], ...] = ()
    rails: tuple[tuple[str, float], ...] = ()
    mounts: tuple[tuple[str, float], ...] = ()
    pressure: tuple[tuple[str, float], ...] = ()  # percent of ten seconds in which something waited for it
    net: tuple[tuple[str, Pair], ...] = ()
    disks: tuple[tuple[str, Pair], ...] = ()
    processes: tuple[Process, ...] | None = None  # None: nobody looked
    uptime_s: float | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    gpu_absent: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    gpus: Mapping[int, GpuNamed] = field(default_factory=dict)
    offered: bool = False  # whether a sample brought any of this


@dataclass(frozen=True)
class Facts:
    """What does not change, beyond the read model's own: see :class:`flightdeck.model.fleet.Box`."""

    kernel: str = ""
    shutdown_c: Mapping[str, float] = field(default_factory=dict)  # by GPU uuid


def read_facts(row: object) -> Facts:
    """From the ``facts`` of a ``box_now`` answer or of a view."""
    if not isinstance(row, Mapping):
        return Facts()
    shutdown = {}
    for gpu in row.get("gpus") if isinstance(row.get("gpus"), list) else ():  # type: ignore[union-attr]
        if isinstance(gpu, Mapping) and (value := number(gpu.get("temp_shutdown_c"))) is not None:
            shutdown[clean(gpu.get("uuid"), 60)] = value
    return Facts(clean(row.get("kernel"), 40), shutdown)


def read_sensors(data: object) -> Sensors:
    """The ``sensors`` of a detail row; whatever else a program wrote there is left out."""
    if not isinstance(data, Mapping):
        return Sensors()
    processes = data.get("processes")
    return Sensors(
        zones=_hottest_first(_values(data.get("zones"))),
        fans=_values(data.get("fans")),
        rails=_values(data.get("rails")),
        mounts=_values(data.get("mounts")),
        pressure=_values(data.get("pressure")),
        net=_rates(data.get("net")),
        disks=_rates(data.get("disks")),
        processes=_processes(processes) if isinstance(processes, list) else None,
        uptime_s=number(data.get("uptime_s")),
        absent=_reasons(data.get("absent")),
        gpu_absent=_gpu_reasons(data.get("gpu_absent")),
        gpus=read_gpu_named(data.get("gpus")),
        offered=True,
    )


def _values(data: object) -> tuple[tuple[str, float], ...]:
    found = []
    for name, value in list(data.items())[:MOST] if isinstance(data, Mapping) else ():
        if (real := number(value)) is not None:
            found.append((clean(name, 40) or "?", real))
    return tuple(found)


def _hottest_first(values: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(values, key=lambda pair: (-pair[1], pair[0])))


def _rates(data: object) -> tuple[tuple[str, Pair], ...]:
    found = []
    for name, value in list(data.items())[:MOST] if isinstance(data, Mapping) else ():
        if isinstance(value, list | tuple) and len(value) == 2:
            pair = (number(value[0]), number(value[1]))
            if pair[0] is not None and pair[1] is not None:
                found.append((clean(name, 40) or "?", (pair[0], pair[1])))
    return tuple(found)


def _processes(data: Sequence[Any]) -> tuple[Process, ...]:
    found = [
        Process(integer(row.get("pid")), clean(row.get("name"), 60) or "?", integer(row.get("gpu_index")), number(row.get("mem_mb")))
        for row in data[:MOST]
        if isinstance(row, Mapping)
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda row: -(row.mem_mb or 0.0)))


def _reasons(data: object) -> dict[str, str]:
    items = data.items() if isinstance(data, Mapping) else ()
    return {clean(name, 40): clean(why, 80) for name, why in items if isinstance(why, str)}


def _gpu_reasons(data: object) -> dict[int, dict[str, str]]:
    items = data.items() if isinstance(data, Mapping) else ()
    return {int(index): _reasons(why) for index, why in items if isinstance(index, str) and index.isdecimal()}


# -- jobs of the window


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a job that ran within the window."""

    id: str
    name: str
    queue: str
    project: str
    raw_project: str
    attempt: int
    started: datetime
    finished: datetime | None
    outcome: str  # running, completed, failed, cancelled, requeued
    cause: str
    exit_code: int | None
    progress_pct: float | None
    power_ms: float | None
    thermal_ms: float | None


def read_jobs(answer: object) -> tuple[tuple[Attempt, ...], bool]:
    """The attempts of a ``box_jobs`` answer, newest start first, and whether there were more."""
    if not isinstance(answer, Mapping) or not isinstance(answer.get("jobs"), list):
        return (), False
    found = [job for row in answer["jobs"] if isinstance(row, Mapping) and (job := _attempt(row)) is not None]
    return tuple(found), bool(answer.get("more"))


def _attempt(row: Mapping[str, Any]) -> Attempt | None:
    started = moment(row.get("started_at"))
    if started is None:
        return None
    project = row.get("project")
    return Attempt(
        id=clean(row.get("id"), 30),
        name=clean(row.get("name"), 80) or "?",
        queue=clean(row.get("queue"), 40),
        project=clean(project, 60) or "-",
        raw_project=project if isinstance(project, str) else "",
        attempt=integer(row.get("attempt")) or 0,
        started=started,
        finished=moment(row.get("finished_at")),
        outcome=clean(row.get("outcome"), 20),
        cause=clean(row.get("cause"), 30),
        exit_code=integer(row.get("exit_code")),
        progress_pct=number(row.get("progress_pct")),
        power_ms=number(row.get("power_ms")),
        thermal_ms=number(row.get("thermal_ms")),
    )


def gpu_samples(answer: object) -> tuple[GpuSample, ...]:
    """The GPUs of a ``box_now`` answer as samples, for a box that nothing was heard of live."""
    from engine.telemetry.sample import BoxSample

    if not isinstance(answer, Mapping) or not answer.get("gpus"):
        return ()
    try:
        return BoxSample.from_payload({"box": "x", "at": answer.get("sample_at"), "gpus": answer["gpus"]}).gpus
    except ValueError:
        return ()
