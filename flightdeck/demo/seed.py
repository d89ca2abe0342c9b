"""What the demo's database holds before the first frame: three boxes, their hour, one parked lane. Under a second."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from engine.store import Db, Json
from engine.telemetry.rollup import by_minute, minute_of, roll_up
from engine.telemetry.sample import BOX_FOLDED, BOX_RANGED, GPU_RANGED, BoxSample
from engine.telemetry.together import fold
from engine.telemetry.writer import BOX_COLUMNS, GPU_COLUMNS
from flightdeck.demo.boxes import PROFILES, BoxProfile
from flightdeck.demo.sensors import facts, past_hour

DATABASE = "flightdeck_demo"
PARKED = ("kestrel", "cpu", "render")  # box, queue, project of the lane that is parked when the demo starts

_TABLES = (
    "workflow_runs, workflow_node_jobs, ingest_jobs, executions, workflow_dispatch_events, job_events, control_events, "
    "input_submissions, worker_heartbeats, worker_controls, services, schedules, schedule_fires, boxes, flight_recorder, "
    "flight_recorder_gpu, job_hardware"
)


def start_afresh(db: Db) -> None:
    """Empty the demo's database, so that every demo begins the same. Refuses any other database."""
    if db.value("select current_database()") != DATABASE:
        raise RuntimeError("only the demo's own database is ever emptied")
    db.run(f"truncate {_TABLES} restart identity")
    db.value("select setval('job_id_seq', 1, false)")


def seed(db: Db, profiles: Iterable[BoxProfile] = PROFILES) -> None:
    """Write boxes, hour and parked lane in one transaction."""
    now = db.now()
    with db.transaction():
        for profile in profiles:
            write_box(db, profile)
            samples, _ = past_hour(profile, now)
            write_samples(db, list(history_rows(samples, now)))
        box, queue, project = PARKED
        db.run(
            "insert into worker_controls (box, queue, project, desired, policy, reason, requested_by) "
            "values ({box}, {queue}, {project}, 'off', 'hard', 'fan swap', 'ops')",
            box=box,
            queue=queue,
            project=project,
        )
        db.run(
            "insert into control_events (at, project, box, queue, action, policy, requested_by, detail) "
            "values ({now}, {project}, {box}, {queue}, 'park', 'hard', 'ops', {detail})",
            project=project,
            box=box,
            queue=queue,
            detail=Json({"reason": "fan swap", "changed": 1, "message": f"{queue} on {box} ordered off (hard)"}),
        )


# What a past hour was throttled less than the last one, by hour and box, so that a day looks like a day.
_CALMER = "abs(sin(k * 0.7 + length(box)))"
_THROTTLING = frozenset({"power_ms", "thermal_ms", "sw_power_ms", "sw_thermal_ms", "hw_thermal_ms"})
_BRAKES = frozenset({"brakes", "hw_brake_ms", "gpu_hw_brake_ms"})


def seed_day(db: Db) -> None:
    """A simulated day before the simulated hour: its minutes again and again, throttled now more and now less.

    For the pages that look back further than an hour. Not before the first frame: it takes the server half a second.
    """
    boxes = [profile.name for profile in PROFILES]
    for table, columns in (("flight_recorder", BOX_COLUMNS), ("flight_recorder_gpu", GPU_COLUMNS)):
        values = [
            "at - make_interval(hours => k)" if column == "at"
            else f"{column} * {_CALMER}" if column in _THROTTLING
            else f"case when {_CALMER} > 0.95 or {column} is null then {column} else 0 end" if column in _BRAKES
            else column
            for column in columns
        ]  # fmt: skip
        db.run(
            f"insert into {table} ({', '.join(columns)}) select {', '.join(values)} from {table}, generate_series(1, 23) k "
            "where box {any[boxes]} and tier = 'minute' and at > {before[hour]} on conflict do nothing",
            boxes=boxes,
            hour=3660.0,
        )


def announce(db: Db, box: str, queue: str, project: str, slots: int) -> None:
    """A lane that is being started, so that the first frame has it; the lane itself overwrites the row."""
    db.run(
        "insert into worker_heartbeats (box, queue, project, state, slots) "
        "values ({box}, {queue}, {project}, 'starting', {slots}) on conflict do nothing",
        box=box,
        queue=queue,
        project=project,
        slots=slots,
    )


def write_box(db: Db, profile: BoxProfile) -> None:
    known = facts(profile)
    db.run(
        "insert into boxes (box, machine_id, description, cpu_model, cores, mem_mb, gpus, driver, kernel, simulated) "
        "values ({box}, {machine_id}, {description}, {cpu_model}, {cores}, {mem_mb}, {gpus}, {driver}, {kernel}, {true}) "
        "on conflict (box) do nothing",
        box=known.box,
        machine_id=known.machine_id,
        description=known.description,
        cpu_model=known.cpu_model,
        cores=known.cores,
        mem_mb=known.mem_mb,
        gpus=Json([gpu.values() for gpu in known.gpus]),
        driver=known.driver,
        kernel=known.kernel,
    )


def history_rows(samples: list[BoxSample], now: datetime) -> Iterator[BoxSample]:
    """The past as a recorder would have left it: a row per whole minute, and the last two minutes in detail."""
    for minute, group in by_minute(samples).items():
        if minute < minute_of(now):
            yield roll_up(group)
    yield from (sample for sample in samples if sample.at >= minute_of(now) - timedelta(minutes=1))


def write_samples(db: Db, samples: list[BoxSample]) -> None:
    """Append rows of either tier."""
    db.copy("flight_recorder", BOX_COLUMNS, (_box_row(s) for s in samples))
    db.copy("flight_recorder_gpu", GPU_COLUMNS, (row for s in samples for row in _gpu_rows(s)))


def _range_values(sample: Any, metrics: Iterable[str]) -> list[float | None]:
    return [ends.get(metric) for metric in metrics for ends in (sample.low, sample.high)]


def _box_row(sample: BoxSample) -> tuple[Any, ...]:
    sensors = json.dumps(sample.sensors) if sample.sensors else None
    together = fold(sample.gpus)
    return (
        sample.box, sample.at, sample.tier, *sample.values().values(), *_range_values(sample, BOX_RANGED), sensors,
        *(together.get(column) for column in BOX_FOLDED),
    )  # fmt: skip


def _gpu_rows(sample: BoxSample) -> Iterator[tuple[Any, ...]]:
    for gpu in sample.gpus:
        yield (sample.box, sample.at, sample.tier, *gpu.values().values(), *_range_values(gpu, GPU_RANGED))
