"""fleet_snapshot(): the shape of the contract, on both stores."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

import engine
from engine import snapshot
from engine.queue import workers
from engine.queue.workers import Worker
from engine.store import Db, Store
from engine.store.locks import new_incarnation
from engine.telemetry import writer
from engine.telemetry.rollup import roll_up
from engine.telemetry.sample import BoxFacts, BoxSample, GpuFacts, GpuSample


def record(db: Db, box: str, *samples: BoxSample) -> None:
    writer.write_facts(db, BoxFacts(box, cores=8, gpus=(GpuFacts(0, name="card"),), simulated=True, description="d"))
    writer.write(db, writer.Recorder(box, "0" * 16, 1, "0"), list(samples), payload=None, last_error=None)


def beat(db: Db, box: str, queue: str = "gpu", project: str = "") -> None:
    workers.beat(db, Worker(box, queue, project, new_incarnation()), state="running", slots=1, busy=0, version="0")


@pytest.fixture
def at(db: Db) -> datetime:
    return db.now()


def test_the_shape_is_that_of_the_contract(store: Store, db: Db, at: datetime) -> None:
    engine.configure(db_url=store.url)
    gpu = GpuSample(0, temp_c=71.0, power_w=200.0, sw_power_ms=500.0, brakes=1)
    sample = BoxSample("kestrel", at, cpu_pct=40.0, power_ms=500.0, thermal_ms=0.0, brakes=1, gpus=(gpu,))
    minute = roll_up([replace(sample, at=at - timedelta(minutes=5))])
    record(db, "kestrel", minute, sample)
    beat(db, "kestrel")
    engine.register_ingest_task("t", lambda: None)
    job = engine.enqueue_ingest_job(task_name="t", queue="default", project="p")

    found = engine.fleet_snapshot()
    assert json.loads(json.dumps(found)) == found, "plain data"
    assert {"at", "store", "leader", "projects", "boxes", "events"} <= set(found)
    assert datetime.fromisoformat(found["at"]).tzinfo is not None
    assert found["store"] == store.kind and found["leader"] is None
    assert {"project": "p", "queued": 1, "running": 0}.items() <= found["projects"][-1].items()
    (box,) = found["boxes"]
    assert {"box", "state", "sample_age_s", "facts", "now", "gpus", "lanes", "jobs", "hour"} <= set(box)
    assert (box["box"], box["state"], box["now"]["cpu_pct"]) == ("kestrel", "ok", 40.0)
    assert box["gpus"][0]["temp_c"] == 71.0 and box["facts"]["gpus"][0]["name"] == "card"
    assert box["simulated"] is True and box["description"] == "d"
    assert box["hour"] == {"power_s": 1.0, "thermal_s": 0.0, "brakes": 2, "power_max_w": 200.0, "temp_max_c": 71.0}
    (lane,) = box["lanes"]
    assert {"queue", "project", "state", "desired", "slots", "busy", "queued", "current_model"} <= set(lane)
    assert isinstance(job.id, str)


def test_a_running_job_is_shown_on_its_box(store: Store, db: Db) -> None:
    engine.configure(db_url=store.url)
    engine.register_ingest_task("t", lambda: None)
    job = engine.enqueue_ingest_job(task_name="t", queue="default")
    db.run(
        "update ingest_jobs set status = 'running', claimed_box = 'kestrel', claimed_at = {now}, started_at = {now}, "
        "progress_pct = 61 where id = {id}",
        id=int(job.id),
    )
    (box,) = engine.fleet_snapshot()["boxes"]
    (shown,) = box["jobs"]
    assert {"id", "family", "project", "name", "queue", "age_s", "progress_pct"} <= set(shown)
    assert (box["box"], shown["id"], shown["family"], shown["progress_pct"]) == ("kestrel", job.id, "ingest", 61)


def test_a_project_sees_its_own_lanes_and_jobs(store: Store, db: Db, at: datetime) -> None:
    engine.configure(db_url=store.url)
    for project in ("a", "b"):
        beat(db, "kestrel", project=project)
    record(db, "osprey", BoxSample("osprey", at))
    found = engine.fleet_snapshot("a")
    assert [p["project"] for p in found["projects"]] == ["a"]
    lanes = {box["box"]: [lane["project"] for lane in box["lanes"]] for box in found["boxes"]}
    assert lanes == {"kestrel": ["a"], "osprey": []}


@pytest.mark.parametrize(
    ("sample_age_s", "beat_age_s", "state"),
    [
        (1.0, None, "ok"),
        (20.0, None, "stale"),
        (200.0, 2.0, "stale"),
        (None, 2.0, "stale"),
        (200.0, None, "down"),
        (200.0, 200.0, "down"),
        (None, 200.0, "down"),
        (None, None, "never"),
    ],
)
def test_a_boxs_state_is_read_from_its_signs_of_life(
    db: Db, at: datetime, sample_age_s: float | None, beat_age_s: float | None, state: str
) -> None:
    if sample_age_s is not None:
        record(db, "kestrel", BoxSample("kestrel", at - timedelta(seconds=sample_age_s)))
    else:
        writer.write_facts(db, BoxFacts("kestrel"))
    if beat_age_s is not None:
        beat(db, "kestrel")
        db.run("update worker_heartbeats set last_seen = {then}", then=at - timedelta(seconds=beat_age_s))
    (box,) = snapshot.fleet_snapshot(db=db)["boxes"]
    assert box["state"] == state


def test_ages_alone_do_not_make_a_view_new(db: Db, at: datetime) -> None:
    record(db, "kestrel", BoxSample("kestrel", at))
    beat(db, "kestrel")
    fleet, last = snapshot.FleetView(), {"kestrel": at}
    assert [fleet.read(db, {}, last)[2] for _ in range(2)] == [True, False]
    db.run("update worker_heartbeats set busy = 1")
    assert [fleet.read(db, {}, last)[2] for _ in range(2)] == [True, False]


def test_an_empty_fleet_is_an_empty_snapshot(db: Db) -> None:
    found = snapshot.fleet_snapshot(db=db)
    assert (found["boxes"], found["projects"], found["events"], found["leader"]) == ([], [], [], None)
