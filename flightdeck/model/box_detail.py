"""What the box page knows beyond the overview: facts, named sensors, processes, each GPU's series, jobs of the window.

Made from answers of the database and from live samples; every text passes ``clean``, unknown keys are ignored, what is
no number is no value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from flightdeck.model.slots import Columns, Pair
from flightdeck.model.text import clean
from flightdeck.model.timeline import Timeline
from flightdeck.model.traces import gpu_identity
from flightdeck.model.units import known

if TYPE_CHECKING:
    from engine.telemetry.sample import BoxSample, GpuSample

SERIES = ("temp_c", "power_w", "sm_mhz", "util_pct", "mem_used_mb", "mem_temp_c", "fan_pct", "fan_rpm")
HELD = {"P": ("sw_power_ms",), "T": ("sw_thermal_ms", "hw_thermal_ms"), "B": ("hw_brake_ms",), "S": ("sync_boost_ms",)}
MOST = 64  # named sensors of one kind, processes
HIDDEN_MS = 100.0  # under a tenth of a second of a cell is the counters' own grain


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
    net: tuple[tuple[str, Pair], ...] = ()
    disks: tuple[tuple[str, Pair], ...] = ()
    processes: tuple[Process, ...] | None = None  # None: nobody looked
    uptime_s: float | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    gpu_absent: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
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
        if isinstance(gpu, Mapping) and (value := _number(gpu.get("temp_shutdown_c"))) is not None:
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
        net=_rates(data.get("net")),
        disks=_rates(data.get("disks")),
        processes=_processes(processes) if isinstance(processes, list) else None,
        uptime_s=_number(data.get("uptime_s")),
        absent=_reasons(data.get("absent")),
        gpu_absent=_gpu_reasons(data.get("gpu_absent")),
        offered=True,
    )


def _values(data: object) -> tuple[tuple[str, float], ...]:
    found = []
    for name, value in list(data.items())[:MOST] if isinstance(data, Mapping) else ():
        if (number := _number(value)) is not None:
            found.append((clean(name, 40) or "?", number))
    return tuple(found)


def _hottest_first(values: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(values, key=lambda pair: (-pair[1], pair[0])))


def _rates(data: object) -> tuple[tuple[str, Pair], ...]:
    found = []
    for name, value in list(data.items())[:MOST] if isinstance(data, Mapping) else ():
        if isinstance(value, list | tuple) and len(value) == 2:
            pair = (_number(value[0]), _number(value[1]))
            if pair[0] is not None and pair[1] is not None:
                found.append((clean(name, 40) or "?", (pair[0], pair[1])))
    return tuple(found)


def _processes(data: Sequence[Any]) -> tuple[Process, ...]:
    found = [
        Process(_whole(row.get("pid")), clean(row.get("name"), 60) or "?", _whole(row.get("gpu_index")), _number(row.get("mem_mb")))
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


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and known(value) else None


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


# -- series of the GPUs


@dataclass
class Series:
    """The readings of a box's GPUs in slots of ``slot_s`` seconds, numbered from the epoch; identity is the uuid."""

    slot_s: int = 0
    cards: dict[str, Card] = field(default_factory=dict)

    def load(self, answer: object) -> None:
        """Take over a ``box_gpus`` answer; it replaces what is known of the cards that it names."""
        if not isinstance(answer, Mapping):
            return
        slot_s, first = _number(answer.get("bucket_s")), _whole(answer.get("first"))
        rows = answer.get("gpus")
        if not slot_s or first is None or not isinstance(rows, list):
            return
        if int(slot_s) != self.slot_s:
            self.slot_s, self.cards = int(slot_s), {}
        for row in rows:
            if isinstance(row, Mapping):
                self.cards[clean(row.get("uuid"), 60)] = _card(row, first)

    def add(self, sample: BoxSample) -> None:
        """One live sample, merged into its slot; of cards that were read only, so that nobody takes a tail for a past."""
        if not self.slot_s:
            return
        column = int(sample.at.timestamp() // self.slot_s)
        for gpu in sample.gpus:
            card = self.cards.get(clean(gpu_identity(gpu), 60))
            if card is None or column < card.newest:
                continue
            card.newest = column
            for name in SERIES:
                value = getattr(gpu, name)
                if known(value):
                    low, high = card.pairs.setdefault(name, {}).get(column, (value, value))
                    card.pairs[name][column] = (min(low, value), max(high, value))
            for cause, names in HELD.items():
                values = [float(ms) for name in names if known(ms := getattr(gpu, name))]
                if values:
                    held = card.held.setdefault(cause, {})
                    held[column] = held.get(column, 0.0) + max(values)
            if known(gpu.brakes):
                card.brakes[column] = card.brakes.get(column, 0) + int(gpu.brakes or 0)
            card.sampled = gpu.throttle_source == "mask" if gpu.throttle_source else card.sampled
            if gpu.xid:
                card.xid_at = card.xid_at if card.xid == gpu.xid else sample.at
                card.xid = gpu.xid


@dataclass
class Card:
    """One GPU: readings, milliseconds held back per letter, and brakes, each by slot."""

    pairs: dict[str, dict[int, Pair]] = field(default_factory=dict)
    held: dict[str, dict[int, float]] = field(default_factory=dict)
    brakes: dict[int, int] = field(default_factory=dict)
    sampled: bool = False  # seconds come from a mask: shown with ~
    xid: int | None = None
    xid_at: datetime | None = None
    newest: int = -1

    def columns(self, name: str, line: Timeline) -> Columns:
        """The readings of one metric, a pair per column of the axis."""
        found = self.pairs.get(name, {})
        out: Columns = []
        for column in range(line.first, line.last + 1):
            pairs = [found[slot] for slot in _slots(column, line) if slot in found]
            out.append((min(low for low, _ in pairs), max(high for _, high in pairs)) if pairs else None)
        return out

    def letters(self, line: Timeline) -> str:
        """A letter per character of the axis: the gravest cause; ``.`` none, blank not read."""
        out = []
        for cell in range(line.cells):
            slots = [slot for column in line.columns_of(cell) for slot in _slots(line.first + column, line)]
            sums = {cause: [held[slot] for slot in slots if slot in held] for cause, held in self.held.items()}
            grave = [cause for cause in "BTPS" if sum(sums.get(cause, ())) >= HIDDEN_MS]
            braked = any(self.brakes.get(slot) for slot in slots)
            out.append("B" if braked else grave[0] if grave else "." if any(sums.values()) else " ")
        return "".join(out)

    def causes(self, column: int, line: Timeline) -> str:
        """The letters of all causes in one column of the axis."""
        slots = _slots(line.first + column, line)
        braked = any(self.brakes.get(slot) for slot in slots)
        held = {cause: sum(values.get(slot, 0.0) for slot in slots) for cause, values in self.held.items()}
        return "".join(cause for cause in "PTBS" if held.get(cause, 0.0) >= HIDDEN_MS or (cause == "B" and braked))

    def totals(self, line: Timeline) -> tuple[dict[str, float], int]:
        """Milliseconds per letter over the axis, and brakes. Causes overlap and are never added up."""
        span = range(line.first * line.slots, (line.last + 1) * line.slots)
        sums = {cause: sum(held.get(slot, 0.0) for slot in span) for cause, held in self.held.items()}
        return sums, sum(self.brakes.get(slot, 0) for slot in span)


def _slots(column: int, line: Timeline) -> range:
    """The slots in a column, both counted from the epoch."""
    return range(column * line.slots, (column + 1) * line.slots)


def _card(row: Mapping[str, Any], first: int) -> Card:
    card = Card(sampled=row.get("source") == "mask", xid=_whole(row.get("xid")), xid_at=_time(row.get("xid_at")))
    series = row.get("series")
    for name, values in series.items() if isinstance(series, Mapping) else ():
        if name in SERIES:
            card.pairs[name] = dict(_pairs(values, first))
            card.newest = max([card.newest, *card.pairs[name]])
    held = row.get("held")
    if isinstance(held, Mapping):
        for cause, names in HELD.items():
            found: dict[int, float] = {}
            for name in names:  # of the software's and the hardware's heat the longer one: they overlap
                for column, value in _numbered(held.get(name), first):
                    found[column] = max(found.get(column, 0.0), value)
            card.held[cause] = found
    card.brakes = {column: int(value) for column, value in _numbered(row.get("brakes"), first)}
    return card


def _pairs(values: object, first: int) -> Iterable[tuple[int, Pair]]:
    for place, pair in enumerate(values if isinstance(values, list) else ()):
        if isinstance(pair, list | tuple) and len(pair) == 2:
            low, high = _number(pair[0]), _number(pair[1])
            if low is not None and high is not None:
                yield first + place, (low, high)


def _numbered(values: object, first: int) -> Iterable[tuple[int, float]]:
    for place, value in enumerate(values if isinstance(values, list) else ()):
        if (number := _number(value)) is not None and number >= 0 and math.isfinite(number):
            yield first + place, number


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
    started = _time(row.get("started_at"))
    if started is None:
        return None
    project = row.get("project")
    return Attempt(
        id=clean(row.get("id"), 30),
        name=clean(row.get("name"), 80) or "?",
        queue=clean(row.get("queue"), 40),
        project=clean(project, 60) or "-",
        raw_project=project if isinstance(project, str) else "",
        attempt=_whole(row.get("attempt")) or 0,
        started=started,
        finished=_time(row.get("finished_at")),
        outcome=clean(row.get("outcome"), 20),
        cause=clean(row.get("cause"), 30),
        exit_code=_whole(row.get("exit_code")),
        progress_pct=_number(row.get("progress_pct")),
        power_ms=_number(row.get("power_ms")),
        thermal_ms=_number(row.get("thermal_ms")),
    )


def _time(value: object) -> datetime | None:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    return value if isinstance(value, datetime) and value.tzinfo is not None else None


def gpu_samples(answer: object) -> tuple[GpuSample, ...]:
    """The GPUs of a ``box_now`` answer as samples, for a box that nothing was heard of live."""
    from engine.telemetry.sample import BoxSample

    if not isinstance(answer, Mapping) or not answer.get("gpus"):
        return ()
    try:
        return BoxSample.from_payload({"box": "x", "at": answer.get("sample_at"), "gpus": answer["gpus"]}).gpus
    except ValueError:
        return ()
