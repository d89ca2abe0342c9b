"""Scenario 9: run next. Before every band; a job that runs already is told so and left alone. (Warm models: later.)"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.queue.family import find
from engine.store import Db, Store
from tests.lane.fleet import add, add_node, beats, pid_in, start_lane, stop
from tests.support import Processes, eventually

Add = Callable[..., int]


@pytest.fixture(params=["ingest", "node"])
def kind(request: pytest.FixtureRequest) -> tuple[str, Add]:
    """A queue of either family, and what puts a job into it."""
    return ("default", add) if request.param == "ingest" else ("cpu", add_node)


def row_of(db: Db, job_id: int) -> dict[str, Any]:
    found = find(db, job_id)
    assert found is not None
    return found[1]


def done(db: Db, *jobs: int) -> None:
    eventually(lambda: all(row_of(db, job)["status"] == "completed" for job in jobs), what=f"jobs {jobs} complete")


def in_order_of_their_end(db: Db) -> list[int]:
    return [
        event["job_id"] for event in db.all("select job_id from job_events where event_type = 'completed' order by id")
    ]


def test_run_next_goes_before_every_band(
    store: Store, db: Db, processes: Processes, tmp_path: Path, kind: tuple[str, Add]
) -> None:
    queue, put = kind
    engine.configure(db_url=store.url)
    lane = start_lane(processes, store, "--no-claims-ahead", queue=queue)
    running = put(db, "touch_and_wait", {"path": str(tmp_path / "pid")})
    pid_in(tmp_path / "pid")
    urgent = [put(db, "noop", priority=priority) for priority in (-50, 1, 1)]
    ordinary = put(db, "noop")
    back_of_the_queue = put(db, "noop", priority=5000)
    not_due = put(db, "noop", priority=9000, run_after=db.now() + timedelta(hours=1))
    assert "runs next" in engine.run_next(back_of_the_queue, requested_by="ann")
    assert "runs next" in engine.run_next(str(not_due))
    assert "already: nothing to do" in engine.run_next(back_of_the_queue)

    (tmp_path / "pid.go").touch()
    everything = [running, back_of_the_queue, not_due, *urgent, ordinary]
    done(db, *everything)
    assert in_order_of_their_end(db) == everything
    assert row_of(db, back_of_the_queue)["priority"] == 5000, "the band stays as it was"
    said = db.all("select action, requested_by, detail from control_events order by id")
    assert [(row["action"], row["requested_by"], row["detail"]["changed"]) for row in said] == [
        ("run_next", "ann", 1),
        ("run_next", None, 1),
        ("run_next", None, 0),
    ]
    stop(lane)


def test_run_next_on_a_running_job_says_so_and_does_nothing(
    store: Store, db: Db, processes: Processes, tmp_path: Path, kind: tuple[str, Add]
) -> None:
    queue, put = kind
    engine.configure(db_url=store.url)
    lane = start_lane(processes, store, queue=queue, env={"FLIGHTDECK_RENEW_SECONDS": "60"})
    job = put(db, "touch_and_wait", {"path": str(tmp_path / "pid")})
    pid = pid_in(tmp_path / "pid")
    eventually(lambda: row_of(db, job)["started_at"])
    before = row_of(db, job)
    assert "is running on b1 already: nothing to do" in engine.run_next(job)
    after = row_of(db, job)
    assert {name: (before[name], after[name]) for name in before if before[name] != after[name]} == {}
    assert db.value("select count(*) from job_events") == 0
    (tmp_path / "pid.go").touch()
    done(db, job)
    assert (row_of(db, job)["attempt"], pid_in(tmp_path / "pid")) == (1, pid)
    assert "is completed: nothing to do" in engine.run_next(job)
    assert in_order_of_their_end(db) == [job]
    stop(lane)


def test_run_next_wakes_an_idle_lane(store: Store, db: Db, processes: Processes) -> None:
    """A job that is due in an hour is run now, by a lane that sleeps."""
    engine.configure(db_url=store.url)
    lane = start_lane(processes, store)
    beats(db, "running")
    job = add(db, "noop", run_after=db.now() + timedelta(hours=1))
    other = add(db, "noop", run_after=db.now() + timedelta(hours=1))
    engine.run_next(job)
    done(db, job)
    assert row_of(db, other)["status"] == "queued"
    stop(lane)
