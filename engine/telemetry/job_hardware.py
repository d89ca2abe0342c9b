"""What the hardware did to one job while it ran: the rows of ``job_hardware``.

Whole minutes of a job come from minute rows, its edges (and minutes that nobody rolled up) from detail rows, so that a
job of ten seconds is exact and one of five hours costs no more to add up. A row tells what happened since the row
before it; of one that reaches over the start or the end of the job only that part counts. Jobs on one box overlap:
each gets what happened while it ran. The box's recorder writes the rows, with its housekeeping: whatever long job has
ended and has no row yet gets one, whoever was down when it ended.

Which GPUs a job had: the one that its lane noted at its end; else those of its lane; else those of the box. A job of
the cpu queue, and any job of a box without GPUs, gets one row with ``gpu_index`` -1, the processor's: ``thermal_ms``
is what the processor was throttled, ``sm_mean_mhz`` its clock.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from engine import config
from engine.errors import EngineError
from engine.queue.family import FAMILIES, family_named, row_id
from engine.store import Db
from engine.store.db import Row
from engine.telemetry.rollup import minute_of
from engine.telemetry.throttle import worst

log = logging.getLogger("engine.recorder")

PROCESSOR = -1  # gpu_index of what the processor went through
LONG_S = 10.0  # a shorter job gets no row
CATCH_UP_S = 86_400.0  # after a start: jobs that ended that long ago
LATE_S = 1800.0  # and afterwards: an end may be committed that late
AT_ONCE = 50  # jobs of one call
WAIT_S = 60.0  # for the sample that follows the end of a job
_LOOK_AROUND = timedelta(seconds=30)  # for the rows next to the edges of a job
_WEIGHT_S = 10.0  # a reading after a hole does not stand for the whole hole
_REACH = timedelta(seconds=10)  # details that begin so late tell of an edge
_MINUTE = timedelta(minutes=1)

COLUMNS = ("power_ms", "thermal_ms", "brake_ms", "temp_max_c", "power_max_w", "sm_mean_mhz", "samples")


@dataclass(frozen=True, slots=True)
class Piece:
    """One row of the recorder: what happened between two times. None: not offered, or not read."""

    start: datetime
    end: datetime
    power_ms: float | None = None
    thermal_ms: float | None = None
    brake_ms: float | None = None
    temp_c: float | None = None
    power_w: float | None = None
    mhz: float | None = None
    instant: bool = True  # its readings are of its end; else (a minute) of all of it


def add_up(pieces: Iterable[Piece], start: datetime, end: datetime) -> dict[str, float | None]:
    """What of these pieces happened between ``start`` and ``end``: milliseconds per cause, peaks, the mean clock. Pure.

    Never negative, and no cause longer than the time that passed.
    """
    sums: dict[str, float | None] = dict.fromkeys(("power_ms", "thermal_ms", "brake_ms"))
    temps: list[float | None] = []
    watts: list[float | None] = []
    turns = weight = 0.0
    for piece in pieces:
        length = (piece.end - piece.start).total_seconds()
        inside = (min(end, piece.end) - max(start, piece.start)).total_seconds()
        if inside <= 0 or length <= 0:
            continue
        for cause in sums:
            held = getattr(piece, cause)
            if held is not None:
                sums[cause] = (sums[cause] or 0.0) + max(0.0, held) * min(1.0, inside / length)
        if piece.instant and piece.end > end:
            continue  # its readings were taken after the job
        temps.append(piece.temp_c)
        watts.append(piece.power_w)
        if piece.mhz is not None:
            stands_for = min(inside, _WEIGHT_S) if piece.instant else inside
            turns, weight = turns + piece.mhz * stands_for, weight + stands_for
    longest = (end - start).total_seconds() * 1000.0
    return {
        **{cause: None if held is None else round(min(held, longest), 3) for cause, held in sums.items()},
        "temp_max_c": worst(temps),
        "power_max_w": worst(watts),
        "sm_mean_mhz": round(turns / weight, 3) if weight else None,
    }


@dataclass(frozen=True)
class Job:
    """One attempt that ran: where and when, and its GPUs as far as its lane tells ([{index, uuid}]; None: not known)."""

    id: int
    queue: str
    box: str
    start: datetime
    end: datetime
    devices: Sequence[Mapping[str, Any]] | None = None


# What of a row goes into a share, by the table that has it.
_GPU = (
    "select gpu_index, at, sw_power_ms as power_ms, hw_brake_ms as brake_ms, sw_thermal_ms, hw_thermal_ms, temp_c, power_w, "
    "sm_mhz as mhz, temp_c_max, power_w_max from flight_recorder_gpu"
)
_CPU = (
    f"select {PROCESSOR} as gpu_index, at, null as power_ms, null as brake_ms, cpu_throttle_ms as sw_thermal_ms, "
    "null as hw_thermal_ms, cpu_temp_c as temp_c, null as power_w, cpu_mhz as mhz, cpu_temp_c_max as temp_c_max, "
    "null as power_w_max from flight_recorder"
)


def shares(db: Db, job: Job) -> dict[int, dict[str, Any]]:
    """The rows of one job by ``gpu_index``, values by the columns of ``job_hardware``. Never empty."""
    if job.queue != "cpu":
        for which, params in _which(job.devices or ()):
            if found := _read(db, _GPU, job, which, params):
                return found
    return _read(db, _CPU, job, "", {}) or {PROCESSOR: dict.fromkeys(COLUMNS) | {"samples": 0}}


def _which(devices: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Conditions for the rows of these devices, the best first: by uuid, for an index may be another card's by now."""
    uuids = [uuid for device in devices if isinstance(uuid := device.get("uuid"), str)]
    numbers = [index for device in devices if isinstance(index := device.get("index"), int)]
    if uuids:
        yield " and gpu_uuid {any[uuids]}", {"uuids": uuids}
    if numbers:
        yield " and gpu_index {any[numbers]}", {"numbers": numbers}
    yield "", {}


def _read(db: Db, select: str, job: Job, which: str, params: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Sums over the job by index; empty when there is no row of any."""

    def rows(tier: str, since: datetime, until: datetime) -> list[Row]:
        where = f"where box = {{box}} and tier = '{tier}' and at >= {{since}} and at < {{until}}{which} order by at"
        return db.all(f"{select} {where}", box=job.box, since=since, until=until, **params)

    minutes: dict[int, dict[datetime, Piece]] = {}
    for row in rows("minute", minute_of(job.start), job.end):
        minutes.setdefault(row["gpu_index"], {})[row["at"]] = _piece(row, row["at"], row["at"] + _MINUTE, False)
    covered = {at for some in minutes.values() for at in some if _inner(at, job.start, job.end)}
    details: dict[int, dict[datetime, Piece]] = {}
    for since, until in uncovered(job.start, job.end, covered):
        for row in rows("detail", since - _LOOK_AROUND, until):
            details.setdefault(row["gpu_index"], {})[row["at"]] = _piece(row, row["at"], row["at"], True)
    counts, oldest = _samples(db, select, job, which, params)
    found = {}
    for index in sorted({*minutes, *details}):
        pieces = choose(minutes.get(index, {}), _after_one_another(details.get(index, {})), job.start, job.end)
        if pieces:
            found[index] = add_up(pieces, job.start, job.end) | {
                "samples": counts.get(index, 0) + gone(pieces, job.start, oldest)
            }
    return found


def _piece(row: Row, start: datetime, end: datetime, instant: bool) -> Piece:
    heat = (row["sw_thermal_ms"], row["hw_thermal_ms"])  # they overlap: the longer one
    temp, watts = row["temp_c"], row["power_w"]
    if not instant:
        temp = temp if row["temp_c_max"] is None else row["temp_c_max"]
        watts = watts if row["power_w_max"] is None else row["power_w_max"]
    return Piece(start, end, row["power_ms"], worst(heat), row["brake_ms"], temp, watts, row["mhz"], instant)


def _after_one_another(details: Mapping[datetime, Piece]) -> list[Piece]:
    """Detail rows in order, each beginning where the one before it ends."""
    found: list[Piece] = []
    for at, piece in sorted(details.items()):
        before = found[-1].end if found else at - timedelta(seconds=float(config.get("sample_seconds")))
        found.append(replace(piece, start=before))
    return found


def uncovered(start: datetime, end: datetime, covered: set[datetime]) -> list[tuple[datetime, datetime]]:
    """From when until when details are needed beside these whole minutes: the edges, and minutes that are missing. Pure."""
    spans: list[tuple[datetime, datetime]] = []
    at = start
    for minute in sorted(covered):
        if at < minute:
            spans.append((at, minute))
        at = minute + _MINUTE
    return [*spans, (at, end + _LOOK_AROUND)]


def choose(minutes: Mapping[datetime, Piece], details: Sequence[Piece], start: datetime, end: datetime) -> list[Piece]:
    """The pieces that tell of a job: each minute by its own row or by its details, never by both. Pure.

    ``minutes`` by their start; ``details`` in order, of the edges at least. A minute's row is taken where all of it is
    the job's, and at an edge whose details are gone. A detail counts in the minute in which it ends.
    """
    by_minute: dict[datetime, list[Piece]] = {}
    for piece in details:
        if piece.end > start and piece.start < end:
            by_minute.setdefault(min(minute_of(piece.end), minute_of(end)), []).append(piece)
    found: list[Piece] = []
    for minute in sorted({*minutes, *by_minute}):
        row, some = minutes.get(minute), by_minute.get(minute, [])
        since = max(start, minute)
        if some:
            reach = some[0].start <= since + _REACH
        else:  # the job's part of this minute may be so short that the first detail to tell of it ends in the next one
            reach = any(piece.start <= since < piece.end for piece in details)
        found += [row] if row is not None and (_inner(minute, start, end) or not reach) else some
    return found


def _inner(minute: datetime, start: datetime, end: datetime) -> bool:
    """All that the row of this minute tells of is the job's: its first sample tells of a time before the minute, too."""
    return start + _REACH <= minute and minute + _MINUTE <= end


def _samples(db: Db, select: str, job: Job, which: str, params: dict[str, Any]) -> tuple[dict[int, int], datetime]:
    """How many samples of the job are kept, by index, and since when; its end, when none is."""
    rows = db.all(
        f"select gpu_index, count(*) as n, min(at) as first_at from ({select} where box = {{box}} and tier = 'detail' "
        f"and at > {{since}} and at <= {{until}}{which}) s group by gpu_index",
        box=job.box,
        since=job.start,
        until=job.end,
        **params,
    )
    oldest = min((row["first_at"] for row in rows), default=job.end)
    return {row["gpu_index"]: int(row["n"]) for row in rows}, oldest


def gone(pieces: Iterable[Piece], start: datetime, oldest: datetime) -> int:
    """How many samples the cadence yields for the minutes whose details are gone: those before ``oldest``. Pure."""
    if oldest <= start + _REACH:
        return 0
    spans = (min(piece.end, oldest) - max(piece.start, start) for piece in pieces if not piece.instant)
    return round(sum(max(0.0, span.total_seconds()) for span in spans) / float(config.get("sample_seconds")))


# --- the rows ---


def share_of(db: Db, job_id: int | str) -> list[dict[str, Any]]:
    """What the hardware did to a job, by the columns of ``job_hardware``, GPUs in order.

    Of a job that runs: so far. Empty for one that has not begun, and one that is unknown. Raises BadInput.
    """
    number = row_id(job_id)
    stored = db.all(
        f"select gpu_index, {', '.join(COLUMNS)} from job_hardware where job_id = {{id}} order by gpu_index", id=number
    )
    if stored:
        return stored
    for family in FAMILIES:
        row = db.one(
            f"select queue, project, claimed_box, started_at, finished_at, status from {family.table} where id = {{id}}",
            id=number,
        )
        if row is None:
            continue
        end = db.now() if row["status"] == "running" else row["finished_at"]
        if row["claimed_box"] is None or row["started_at"] is None or end is None or end <= row["started_at"]:
            return []
        devices = None if row["status"] == "running" else _noted(db, number)
        devices = devices or _lane_devices(db, row["claimed_box"], row["queue"], row["project"], number)
        job = Job(number, row["queue"], row["claimed_box"], row["started_at"], end, devices)
        return [{"gpu_index": index, **share} for index, share in shares(db, job).items()]
    return []


def _noted(db: Db, job_id: int) -> Sequence[Mapping[str, Any]] | None:
    """The device that the newest event of a job tells; None: it tells of none."""
    detail = db.value("select detail from job_events where job_id = {id} order by id desc limit 1", id=job_id)
    gpu = detail.get("gpu") if isinstance(detail, Mapping) else None
    return [gpu] if isinstance(gpu, Mapping) else None


def _lane_devices(
    db: Db, box: str, queue: str, project: str, job_id: int | None = None
) -> Sequence[Mapping[str, Any]] | None:
    """The devices that a lane says it has, of these the ones that it says ``job_id`` runs on; None: it says nothing."""
    detail = db.value(
        "select detail from worker_heartbeats where box = {box} and queue = {queue} and project = {project}",
        box=box,
        queue=queue,
        project=project,
    )
    devices = detail.get("devices") if isinstance(detail, Mapping) else None
    known = [device for device in devices if isinstance(device, Mapping)] if isinstance(devices, list) else []
    own = [device for device in known if isinstance(jobs := device.get("jobs"), list) and job_id in jobs]
    return own or known or None


class JobShares:
    """Writes the rows of one box's jobs, whenever it is told to. For one thread."""

    def __init__(self, box: str) -> None:
        self._box = box
        self._look_back_s = CATCH_UP_S
        self._passed: set[int] = set()  # jobs that get no row: too short after all, or no row can be made

    def catch_up(self, db: Db, sampled: datetime | None) -> int:
        """Write the rows of long jobs that have ended and have none yet, at most 50 of them. Returns how many jobs.

        ``sampled``: the box's newest sample. A job that ended after it waits for the next one. Raises the store's errors.
        """
        if len(self._passed) > 10 * AT_ONCE:
            self._passed.clear()  # they come again, a call later
        ended = db.all(_PENDING, box=self._box, look_back_s=self._look_back_s, passed=list(self._passed), n=AT_ONCE)
        if len(ended) < AT_ONCE:
            self._look_back_s = LATE_S
        if not ended:
            return 0
        written, now = 0, db.now()
        jobs = _jobs(db, self._box, ended)
        self._passed |= {row["job_id"] for row in ended} - {job.id for job in jobs}
        for job in jobs:
            if (sampled is None or job.end > sampled) and now - job.end < timedelta(seconds=WAIT_S):
                continue
            try:
                write(db, job.id, shares(db, job))
            except EngineError:
                raise
            except Exception:  # one odd row must not keep the others from theirs
                log.exception("box %s: no hardware share of job %d", self._box, job.id)
                self._passed.add(job.id)
            else:
                written += 1
        return written


def write(db: Db, job_id: int, rows: Mapping[int, Mapping[str, Any]]) -> None:
    """Write the rows of a job; those that are there are replaced."""
    changes = ", ".join(f"{column} = excluded.{column}" for column in COLUMNS)
    db.run_many(
        f"insert into job_hardware (job_id, gpu_index, {', '.join(COLUMNS)}) values ({{job_id}}, {{gpu_index}}, "
        f"{', '.join(f'{{{column}}}' for column in COLUMNS)}) on conflict (job_id, gpu_index) do update set {changes}",
        [{"job_id": job_id, "gpu_index": index, **row} for index, row in rows.items()],
    )


# Newest first: what an operator looks at now. An index of long attempts only; the constant is the index's.
_PENDING = (
    "select e.family, e.job_id, e.queue, e.project, e.detail from job_events e where e.box = {box} and e.elapsed_s >= 9 "
    "and e.created_at > {before[look_back_s]} and e.event_type in ('completed', 'failed', 'cancelled') "
    "and not exists (select 1 from job_hardware h where h.job_id = e.job_id) and not (e.job_id {any[passed]}) order by e.created_at desc limit {n}"
)


def _jobs(db: Db, box: str, ended: Sequence[Row]) -> list[Job]:
    """The last attempts of these jobs, of those that are long enough and were run by this box."""
    found = []
    for family in {row["family"] for row in ended}:
        some = {row["job_id"]: row for row in ended if row["family"] == family}
        for row in db.all(
            f"select id, started_at, finished_at from {family_named(family).table} where id {{any[ids]}} "
            "and claimed_box = {box} and started_at is not null and finished_at is not null",
            ids=list(some),
            box=box,
        ):
            if (row["finished_at"] - row["started_at"]).total_seconds() < LONG_S:
                continue
            event = some[row["id"]]
            noted = event["detail"].get("gpu") if isinstance(event["detail"], Mapping) else None
            devices: Sequence[Mapping[str, Any]] | None = [noted] if isinstance(noted, Mapping) else None
            if devices is None and event["queue"] == "gpu":
                devices = _lane_devices(db, box, event["queue"], event["project"])
            found.append(Job(row["id"], event["queue"], box, row["started_at"], row["finished_at"], devices))
    return found
