"""Jobs of a box over its time axis: what runs, what ended and how, attempt by attempt, on both stores."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from engine.queue import events
from engine.queue.box_jobs import box_jobs
from engine.store import Db
from tests.queue.conftest import add_ingest, add_node, add_run


def ended(db: Db, job_id: int, family: str = "ingest", **values: Any) -> None:
    """The end of an attempt on b1, as a lane records it."""
    at = values.pop("at", None)
    fields = {"box": "b1", "queue": "default", "attempt": 1, "event_type": "completed", "elapsed_s": 60.0} | values
    events.record(db, family=family, job_id=job_id, **fields)
    if at is not None:
        db.run("update job_events set created_at = {at} where job_id = {id} and attempt = {n}",
               at=at, id=job_id, n=fields["attempt"])  # fmt: skip


def test_running_and_ended_attempts_with_their_times(db: Db) -> None:
    now = db.now()
    run = add_run(db)
    node = add_node(db, run, "render", node="render_still", queue="gpu", status="running", claimed_box="b1",
                    attempt=2, started_at=now - timedelta(minutes=4), progress_pct=40.0)  # fmt: skip
    done = add_ingest(db, status="failed")
    ended(db, done, event_type="failed", exit_code=78, at=now - timedelta(minutes=10))
    add_ingest(db, status="running", claimed_box="elsewhere", started_at=now)
    ended(db, add_ingest(db, status="completed"), box="elsewhere")
    answer = box_jobs(db, "b1")
    assert [(job["id"], job["outcome"], job["name"]) for job in answer["jobs"]] == [
        (str(node), "running", "render_still"),
        (str(done), "failed", "work"),
    ]
    first, second = answer["jobs"]
    assert (first["queue"], first["attempt"], first["progress_pct"], first["finished_at"]) == ("gpu", 2, 40.0, None)
    began, end = (datetime.fromisoformat(second[name]) for name in ("started_at", "finished_at"))
    assert (end - began).total_seconds() == 60.0 and second["exit_code"] == 78
    assert json.loads(json.dumps(answer)) == answer and not answer["more"]


def test_every_attempt_of_a_job_is_one_row(db: Db) -> None:
    """A job that was killed and ran again stands there twice, each time with its own end."""
    now = db.now()
    job = add_ingest(db, status="completed", attempt=2)
    ended(
        db, job, event_type="requeued", cause="executor_died", exit_code=-9, attempt=1, at=now - timedelta(minutes=20)
    )
    ended(db, job, attempt=2, at=now - timedelta(minutes=2))
    found = [(entry["attempt"], entry["outcome"], entry["cause"]) for entry in box_jobs(db, "b1")["jobs"]]
    assert found == [(2, "completed", None), (1, "requeued", "executor_died")]


def test_what_is_outside_the_window_or_shorter_than_a_column_is_left_out(db: Db) -> None:
    now = db.now()
    ended(db, add_ingest(db), at=now - timedelta(hours=2))
    ended(db, add_ingest(db), elapsed_s=3.0)
    ended(db, add_ingest(db), event_type="stale_write")
    assert box_jobs(db, "b1", 3600)["jobs"] == []
    assert len(box_jobs(db, "b1", 4 * 3600)["jobs"]) == 1


def test_a_long_list_is_cut_and_says_so(db: Db) -> None:
    now = db.now()
    for number in range(7):
        ended(db, add_ingest(db), at=now - timedelta(minutes=number))
    answer = box_jobs(db, "b1", limit=5)
    assert len(answer["jobs"]) == 5 and answer["more"]
    assert answer["jobs"][0]["finished_at"] > answer["jobs"][-1]["finished_at"]


def test_the_hardware_share_of_the_worst_gpu_comes_along(db: Db) -> None:
    job = add_ingest(db)
    ended(db, job)
    for index, thermal in enumerate((1000.0, 88_000.0)):
        db.run("insert into job_hardware (job_id, gpu_index, thermal_ms) values ({id}, {index}, {ms})",
               id=job, index=index, ms=thermal)  # fmt: skip
    [entry] = box_jobs(db, "b1")["jobs"]
    assert entry["thermal_ms"] == 88_000.0 and entry["power_ms"] is None


def test_a_job_whose_row_is_gone_still_shows_its_attempt(db: Db) -> None:
    """Retention takes jobs and events at different times."""
    ended(db, 987_654, family="node", queue="gpu", node_id="render", project="p")
    [entry] = box_jobs(db, "b1")["jobs"]
    assert (entry["name"], entry["project"]) == ("render", "p")


def test_ended_attempts_are_found_by_index(db: Db) -> None:
    if db.kind == "sqlite":
        plan = str(db.all("explain query plan select id from job_events where box = 'b1' and elapsed_s >= 9 "
                          "and created_at >= '2026' order by created_at desc limit 80"))  # fmt: skip
    else:
        with db.transaction():
            db.run("set local enable_seqscan = off")
            plan = str(db.all("explain select id from job_events where box = 'b1' and elapsed_s >= 9 "
                              "and created_at >= now() order by created_at desc limit 80"))  # fmt: skip
    assert "job_events_long" in plan
