"""Scenario 6: work by the clock. The next tick is one job and it runs; a job by hand follows its caller's transaction."""

from __future__ import annotations

import signal
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

import engine
from engine.store import Db, Store
from tests.lane.fleet import ended, start_lane, status
from tests.scheduler.support import EACH_SECOND, each_once, entry, fires, jobs, put, services, set_back, start_scheduler
from tests.support import Processes, eventually

APP = "tests.apps.scheduled_jobs"

pytestmark = pytest.mark.timeout(240)


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def job_of(db: Db, name: str) -> int | None:
    found: int | None = db.value(
        "select job_id from schedule_fires where name = {name} order by tick limit 1", name=name
    )
    return found


def test_the_next_tick_fires_once_and_its_job_runs(store: Store, processes: Processes, tmp_path: Path) -> None:
    """Two schedulers, one lane: an hour that passed is made up for once, the next second comes by itself."""
    with store.connect("test") as db:
        lane = start_lane(processes, store, "--app", APP)
        schedulers = [start_scheduler(processes, store, box=f"s{n}", app=APP) for n in range(2)]
        eventually(lambda: len(services(db)) == 2, 90, "both schedulers")
        assert jobs(db) == [], "an entry starts from now"

        set_back(db, "report", 3600)
        hourly = eventually(lambda: job_of(db, "report"), 60, "the tick of the past hour")
        assert ended(db, hourly)["status"] == "completed"
        assert len(fires(db, "report")) == 1 and entry(db, "report")["last_tick"] == fires(db, "report")[0][1]

        put(db, "soon", EACH_SECOND, task_name="note", args={"path": str(tmp_path / "soon")})
        eventually(lambda: len(fires(db, "soon")) >= 2, 60, "ticks to come")
        db.run("update schedules set enabled = {false} where name = 'soon'")
        for process in schedulers:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, processes.log(process)
        each_once(db)
        eventually(lambda: lines(tmp_path / "soon") == len(fires(db, "soon")), 60, "each tick ran")
        assert db.value("select count(*) from job_events where event_type <> 'completed'") == 0
        lane.send_signal(signal.SIGTERM)
        assert lane.wait(60) == 0


def test_a_direct_enqueue_follows_the_callers_transaction(store: Store, processes: Processes, tmp_path: Path) -> None:
    """Rolled back, the job never was, and nothing of it runs; committed together with the caller's row, it runs."""
    engine.register_ingest_task("note", lambda path: None)
    raw: Any = psycopg.connect(store.url) if store.kind == "postgresql" else sqlite3.connect(str(store.path))
    with store.connect("test") as db:
        lane = start_lane(processes, store, "--app", APP)
        db.run("create table orders (id integer primary key)")
        for number, end in ((1, raw.rollback), (2, raw.commit)):
            raw.execute(f"insert into orders values ({number})")
            job = engine.enqueue_ingest_job(
                task_name="note", queue="default", args={"path": str(tmp_path / f"order-{number}")}, conn=raw
            )
            assert jobs(db) == [], "nobody else sees it before the commit"
            end()
        assert [row["id"] for row in db.all("select id from orders")] == [2]
        assert ended(db, int(job.id))["status"] == "completed"
        assert [row["id"] for row in jobs(db)] == [int(job.id)] and status(db, int(job.id)) == "completed"
        assert lines(tmp_path / "order-2") == 1 and not (tmp_path / "order-1").exists()
        raw.close()
        lane.send_signal(signal.SIGTERM)
        assert lane.wait(60) == 0
