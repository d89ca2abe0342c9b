"""What a box went through before an instant: samples, what climbed, what held it back and when, who was aboard.

For the time after a machine died, or a night on which everything was slow. The last row before a hole is the evidence of
a power cut: nothing else has survived it. Details reach back an hour (a week, when the recorder died with the box), minute
rows a week.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Any

from engine.errors import BadInput, NotFound
from engine.queue.family import FAMILIES, family_named
from engine.store import Db
from engine.telemetry import slow
from engine.telemetry.rows import assemble
from engine.telemetry.sample import BoxFacts, BoxSample, GpuSample
from engine.telemetry.throttle import BITS, CAUSES, SHOWN_MS
from engine.telemetry.writer import BOX_COLUMNS, GPU_COLUMNS

SPAN_S = 3600.0
TAIL_S = 600.0  # of details at the end, where they are kept
AFTER_S = 600.0  # of what became of it
JOBS = 40
EVENTS = 40
MINUTE = timedelta(minutes=1)
DETAIL_HOLE, MINUTE_HOLE = timedelta(seconds=15), timedelta(seconds=150)
LOADED_PCT = 50.0
SAME = timedelta(seconds=90)  # two times on of one reason with less between them are one


@dataclass(frozen=True)
class Climb:
    """One reading that rose (or fell) towards the end: its usual before, its extreme at the end, and when that was."""

    what: str
    unit: str
    before: float
    extreme: float
    at: datetime
    weight: float  # by how many times it moved more than such a reading does anyway


@dataclass(frozen=True)
class On:
    """One reason that held something back. ``times``: when it came on and went, oldest first; ``seconds`` None: unknown."""

    who: str
    letter: str
    name: str
    seconds: float | None
    times: tuple[tuple[datetime, datetime], ...]
    at_the_end: bool
    sampled: bool


@dataclass(frozen=True)
class Evidence:
    """All of it. ``last``: the newest sample at or before ``asked``; ``next_at``: the first one after it."""

    box: str
    facts: BoxFacts | None
    now: datetime
    asked: datetime
    last: BoxSample
    next_at: datetime | None
    samples: tuple[BoxSample, ...]
    holes: tuple[tuple[datetime, datetime], ...]
    climbs: tuple[Climb, ...]
    reasons: tuple[On, ...]
    jobs: tuple[Mapping[str, Any], ...]
    lanes: tuple[Mapping[str, Any], ...]
    events: tuple[Mapping[str, Any], ...]
    signed_on: bool  # the recorder's line in services is still there: it did not leave in order, or it is at work

    @property
    def silent_s(self) -> float | None:
        """Seconds without a sample after the last one; None: the next one came in time."""
        gap = (self.next_at or self.now) - self.last.at
        usual = DETAIL_HOLE if self.last.tier == "detail" else MINUTE_HOLE
        return gap.total_seconds() if gap > usual else None


def evidence(db: Db, box: str, at: datetime | None = None, facts: BoxFacts | None = None) -> Evidence:
    """What is known of ``box`` up to ``at`` (None: now).

    Raises BadInput for a box that nobody knows, naming those that are; NotFound when nothing was recorded by then.
    """
    now = db.now()
    asked = min(at or now, now)
    last_at, tier = _newest(db, box, asked)
    if last_at is None:
        _refuse(db, box, asked)
    assert last_at is not None
    start = last_at - timedelta(seconds=SPAN_S)
    tail = last_at - timedelta(seconds=TAIL_S)
    details = _rows(db, box, "detail", tail, last_at)
    begin = details[0].at if details else last_at + MINUTE
    minutes = [row for row in _rows(db, box, "minute", start, last_at) if row.at + MINUTE <= begin]
    if details and (not minutes or minutes[-1].at + 2 * MINUTE < begin) and begin > tail - MINUTE:
        since = minutes[-1].at + MINUTE if minutes else start
        details = _rows(db, box, "detail", since, last_at)  # minutes that nobody rolled up
    samples = (*minutes, *details)
    last = samples[-1] if samples else BoxSample(box, last_at, tier)
    return Evidence(
        box, facts, now, asked, last, _next(db, box, last), samples, tuple(holes(samples)), tuple(climbs(samples)),
        tuple(reasons(samples)), tuple(_jobs(db, box, last.at)), tuple(_lanes(db, box)),
        tuple(_events(db, box, start, last.at)), _signed_on(db, box),
    )  # fmt: skip


def _refuse(db: Db, box: str, asked: datetime) -> None:
    known = sorted(
        str(row["box"])
        for row in db.all("select box from boxes union select box from worker_heartbeats order by 1 limit 50")
    )
    if box in known:
        raise NotFound(f"box {box!r}: nothing was recorded up to {asked:%Y-%m-%d %H:%M:%S} UTC")
    raise BadInput(f"no box {box!r}; " + (f"known: {', '.join(known)}" if known else "no box is known yet"))


def _newest(db: Db, box: str, asked: datetime) -> tuple[datetime | None, str]:
    """The newest row at or before a time; of a minute row, its beginning."""
    found: dict[str, datetime | None] = {}
    for tier in ("detail", "minute"):
        found[tier] = db.value(
            f"select max(at) as last_at from flight_recorder where box = {{box}} and tier = '{tier}' and at <= {{asked}}",
            box=box,
            asked=asked,
        )
    detail, minute = found["detail"], found["minute"]
    if detail is not None and (minute is None or detail >= minute):
        return detail, "detail"
    return minute, "minute"


def _next(db: Db, box: str, last: BoxSample) -> datetime | None:
    edge = last.at if last.tier == "detail" else last.at + MINUTE - timedelta(microseconds=1)
    times = [
        db.value(
            f"select min(at) as first_at from flight_recorder where box = {{box}} and tier = '{tier}' and at > {{edge}}",
            box=box,
            edge=edge,
        )
        for tier in ("detail", "minute")
    ]
    return min((at for at in times if at is not None), default=None)


def _rows(db: Db, box: str, tier: str, since: datetime, until: datetime) -> list[BoxSample]:
    where = f"where box = {{box}} and tier = '{tier}' and at >= {{since}} and at <= {{until}}"
    params: dict[str, Any] = {"box": box, "since": since, "until": until}
    return assemble(
        db.all(f"select {', '.join(BOX_COLUMNS)} from flight_recorder {where}", **params),
        db.all(f"select {', '.join(GPU_COLUMNS)} from flight_recorder_gpu {where}", **params),
    )


# --- what the samples say: pure ---


def holes(samples: Sequence[BoxSample]) -> list[tuple[datetime, datetime]]:
    """Where nobody recorded, between the samples: from the last one before to the first one after."""
    found = []
    for before, after in pairwise(samples):
        end = before.at if before.tier == "detail" else before.at + MINUTE
        if after.at - end > (DETAIL_HOLE if before.tier == after.tier == "detail" else MINUTE_HOLE - MINUTE):
            found.append((end, after.at))
    return found


@dataclass(frozen=True)
class _Reading:
    what: str
    unit: str
    metric: str
    moves: Callable[[float], float]  # by how much it moves anyway, from its usual value
    load: str = ""  # a clock: it falls, and means something only under this load


_BOX_READINGS = (
    _Reading("CPU temperature", "C", "cpu_temp_c", lambda usual: 8.0),
    _Reading("hottest zone", "C", "zone_max_c", lambda usual: 8.0),
    _Reading("CPU use", "%", "cpu_pct", lambda usual: 25.0),
    _Reading("load", "", "load1", lambda usual: max(2.0, usual * 0.5)),
    _Reading("memory", "MiB", "mem_used_mb", lambda usual: max(2048.0, usual * 0.1)),
    _Reading("swap", "MiB", "swap_used_mb", lambda usual: max(256.0, usual * 0.2)),
    _Reading("disk", "%", "disk_used_pct", lambda usual: 2.0),
    _Reading("fan", "rpm", "fan_max_rpm", lambda usual: max(400.0, usual * 0.25)),
    _Reading("CPU clock", "MHz", "cpu_mhz", lambda usual: max(200.0, usual * 0.15), "cpu_pct"),
)
_GPU_READINGS = (
    _Reading("temperature", "C", "temp_c", lambda usual: 8.0),
    _Reading("memory temperature", "C", "mem_temp_c", lambda usual: 8.0),
    _Reading("power", "W", "power_w", lambda usual: max(15.0, usual * 0.2)),
    _Reading("use", "%", "util_pct", lambda usual: 25.0),
    _Reading("memory", "MiB", "mem_used_mb", lambda usual: max(2048.0, usual * 0.1)),
    _Reading("clock", "MHz", "sm_mhz", lambda usual: max(150.0, usual * 0.15), "util_pct"),
)


def climbs(samples: Sequence[BoxSample]) -> list[Climb]:
    """What moved most in the last tenth of the hour against the time before it, the most telling first."""
    found = [climb for reading in _BOX_READINGS if (climb := _climb(reading, "", samples)) is not None]
    for index in sorted({gpu.gpu_index for sample in samples for gpu in sample.gpus}):
        cards = [(s.at, gpu) for s in samples for gpu in s.gpus if gpu.gpu_index == index]
        found += [c for reading in _GPU_READINGS if (c := _climb(reading, f"GPU {index} ", cards)) is not None]
    return sorted(found, key=lambda climb: -climb.weight)


def _climb(reading: _Reading, prefix: str, rows: Sequence[Any]) -> Climb | None:
    looks = [(row if isinstance(row, tuple) else (row.at, row)) for row in rows]
    if reading.load:
        looks = [(at, row) for at, row in looks if (getattr(row, reading.load) or 0.0) >= LOADED_PCT]
    values = [(at, value, row) for at, row in looks if (value := getattr(row, reading.metric)) is not None]
    if len(values) < 4:
        return None
    edge = max(values[0][0] + (values[-1][0] - values[0][0]) / 2, values[-1][0] - timedelta(seconds=TAIL_S))
    usual = [value for at, value, _ in values if at < edge]
    late = [(at, _extreme(row, reading)) for at, _, row in values if at >= edge]
    if not usual or not late:
        return None
    before = median(usual)
    at, extreme = (min if reading.load else max)(late, key=lambda pair: pair[1])
    moved = (before - extreme if reading.load else extreme - before) / reading.moves(before)
    return Climb(f"{prefix}{reading.what}", reading.unit, before, extreme, at, moved) if moved >= 1.0 else None


def _extreme(row: BoxSample | GpuSample, reading: _Reading) -> float:
    """The highest of a minute; of a clock the mean, for its lowest may be a moment without load."""
    value = getattr(row, reading.metric)
    return float(value if reading.load else row.high.get(reading.metric, value))


def reasons(samples: Sequence[BoxSample]) -> list[On]:
    """Every reason that was given or counted, by GPU and then by gravity; with its times on."""
    found = []
    for index in sorted({gpu.gpu_index for sample in samples for gpu in sample.gpus}):
        cards = [(sample, gpu) for sample in samples for gpu in sample.gpus if gpu.gpu_index == index]
        sampled = any(gpu.throttle_source == "mask" for _, gpu in cards)
        columns = {bit: cause for cause, bit in CAUSES.items()}
        for bit, (name, letter, _) in sorted(BITS.items(), key=lambda item: -item[1][2]):
            if not letter:
                continue
            column = columns.get(bit)
            looks = [(sample, _is_on(gpu, bit, column), _held(gpu, column)) for sample, gpu in cards]
            found += _on(f"GPU {index}", letter, name, looks, sampled)
    looks = [(sample, (sample.cpu_throttle_ms or 0.0) >= SHOWN_MS, sample.cpu_throttle_ms) for sample in samples]
    return [*found, *_on("CPU", "C", "cpu thermal", looks, False)]


def _is_on(gpu: GpuSample, bit: int, column: str | None) -> bool:
    mask = gpu.throttle_mask or 0
    if bit == 0x08 and mask & 0xC0:
        return False  # the umbrella of a reason that stands there by itself
    return bool(mask & bit) or (_held(gpu, column) or 0.0) >= SHOWN_MS


def _held(gpu: GpuSample, column: str | None) -> float | None:
    value = getattr(gpu, column) if column else None
    return None if value is None else max(0.0, float(value))


def _on(
    who: str, letter: str, name: str, looks: Sequence[tuple[BoxSample, bool, float | None]], sampled: bool
) -> list[On]:
    times: list[tuple[datetime, datetime]] = []
    before: datetime | None = None
    for sample, on, _ in looks:
        end = sample.at + (MINUTE if sample.tier == "minute" else timedelta())
        if on:
            # A detail row tells of the time since the one before it, a minute row of its minute.
            since = sample.at if sample.tier == "minute" or before is None or sample.at - before > SAME else before
            if times and since - times[-1][1] <= SAME:
                times[-1] = (times[-1][0], end)
            else:
                times.append((since, end))
        before = end
    if not times:
        return []
    known = [held for _, _, held in looks if held is not None]
    seconds = round(sum(known) / 1000.0, 3) if known else None
    return [On(who, letter, name, seconds, tuple(times), bool(looks[-1][1]), sampled)]


# --- who was aboard ---


def _jobs(db: Db, box: str, at: datetime) -> list[dict[str, Any]]:
    """The attempts that ran on the box at that time: those that run still, and those whose end an event tells."""
    found = []
    for row in db.all(
        "select family, job_id, node_id, attempt, queue, project, event_type, cause, exit_code, elapsed_s, created_at "
        "from job_events where box = {box} and elapsed_s >= 9 and created_at >= {at} "
        "and event_type in ('completed', 'failed', 'cancelled', 'requeued') order by created_at limit 2000",
        box=box,
        at=at,
    ):
        start = row["created_at"] - timedelta(seconds=row["elapsed_s"])
        if start <= at:
            end = {"end": row["event_type"], "cause": row["cause"], "exit_code": row["exit_code"]}
            found.append({**row, **end, "started_at": start, "ended_at": row["created_at"], "name": row["node_id"]})
    for family in FAMILIES:
        for row in db.all(
            f"select id as job_id, {family.name_column} as name, attempt, queue, project, started_at from {family.table} "
            "where status = 'running' and claimed_box = {box} and started_at <= {at} order by started_at limit {n}",
            box=box,
            at=at,
            n=JOBS,
        ):
            found.append(
                {**row, "family": family.name, "end": "running", "cause": None, "exit_code": None, "ended_at": None}
            )
    for name in {row["family"] for row in found if not row["name"]}:
        family = family_named(name)
        ids = [row["job_id"] for row in found if row["family"] == name and not row["name"]]
        names = db.all(f"select id, {family.name_column} as name from {family.table} where id {{any[ids]}}", ids=ids)
        by_id = {row["id"]: row["name"] for row in names}
        found = [{**row, "name": row["name"] or by_id.get(row["job_id"])} for row in found]
    wanted = (
        "family", "job_id", "name", "project", "queue", "attempt", "started_at", "end", "cause", "exit_code", "ended_at"
    )  # fmt: skip
    return [{key: row[key] for key in wanted} for row in sorted(found, key=lambda row: row["started_at"])[:JOBS]]


def _lanes(db: Db, box: str) -> list[dict[str, Any]]:
    return db.all(
        "select queue, project, state, slots, busy, current_model, last_seen, flagged_dead_at, last_exit_code, "
        "last_exit_reason from worker_heartbeats where box = {box} order by queue, project",
        box=box,
    )


def _events(db: Db, box: str, start: datetime, end: datetime) -> list[dict[str, Any]]:
    """What was done to the box, or told of it, until ten minutes after the end."""
    return db.all(
        "select at, queue, project, action, policy, requested_by, detail from control_events "
        "where box = {box} and at >= {start} and at <= {end} order by at desc limit {n}",
        box=box,
        start=start,
        end=end + timedelta(seconds=AFTER_S),
        n=EVENTS,
    )[::-1]


def _signed_on(db: Db, box: str) -> bool:
    return bool(db.value("select count(*) as n from services where kind = 'recorder' and box = {box}", box=box))


def slow_at_the_end(last: BoxSample) -> list[slow.Slow]:
    """GPUs that were slow without a reason when the last sample was taken."""
    return slow.flags(last.sensors)
