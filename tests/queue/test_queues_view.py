"""Each queue in one row: what waits, how the hour went, who serves it, and what was ordered."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from engine import config
from engine.queue import operate, queues, waiting
from engine.queue.browse import counts
from engine.queue.finish import Outcome, finish
from engine.queue.queues import figures, lane_state, percentile, queues_view
from engine.queue.workers import Worker, beat
from engine.snapshot import jsonable
from engine.store import Db, Store
from tests.queue.conftest import FUTURE, PAST, add_ingest, add_many, add_node, add_run, lane, take


def rows(db: Db, project: str | None = None) -> dict[tuple[str, str], dict[str, Any]]:
    found = queues_view(db, project)
    json.dumps(jsonable(found))
    return {(row["queue"], row["project"]): row for row in found["queues"]}


def test_what_waits_what_runs_and_how_the_hour_went(db: Db) -> None:
    run = add_run(db, project="p")
    add_many(db, 3)
    add_ingest(db, run_after=FUTURE)
    add_ingest(db, queue="other", run_after=PAST)
    add_node(db, run, "approve", status="awaiting_input", project="p")
    add_node(db, run, "render", queue="gpu", required_model="m1", project="p")
    add_node(db, run, "grade", queue="gpu", required_model="m1", project="p", priority=5)
    worker = lane()
    for outcome in ("completed", "completed", "failed"):
        (job,) = take(db, worker)
        finish(db, worker, [Outcome(job.id, job.fencing_token, outcome, elapsed_s=2.0)])
    add_ingest(db)
    add_ingest(db)
    take(db, worker)
    found = rows(db)
    assert list(found) == [("cpu", "p"), ("gpu", "p"), ("default", ""), ("other", "")]
    default = found["default", ""]
    assert (default["queued"], default["capped"], default["scheduled"], default["running"]) == (2, False, 1, 1)
    assert default["next_at"] == FUTURE and default["oldest_at"] is not None and default["family"] == "ingest"
    ended = default["ended"]
    assert (ended["done"], ended["failed"], ended["run_mean_s"]) == (2, 1, pytest.approx(2.0))
    assert 0.0 <= ended["wait_mean_s"] <= ended["wait_p95_s"]
    assert (found["other", ""]["queued"], found["other", ""]["scheduled"]) == (1, 0)
    assert found["other", ""]["oldest_at"] is not None  # its time has come: it waits
    assert (found["cpu", "p"]["awaiting"], found["cpu", "p"]["ended"]["done"]) == (1, 0)
    assert found["gpu", "p"]["models"] == [{"model": "m1", "queued": 2, "capped": False, "warm": 0}]
    assert list(rows(db, "p")) == [("cpu", "p"), ("gpu", "p")]


def test_lanes_are_counted_by_what_they_are_and_orders_say_who_and_why(db: Db) -> None:
    gpu = [Worker(box, "gpu", "", f"i{box}") for box in ("a", "b", "c", "d")]
    for worker in gpu:
        beat(db, worker, state="running", slots=2, busy=1, current_model="m1")
    beat(db, gpu[1], state="parked", slots=2, busy=0)
    beat(db, gpu[3], state="stopping", slots=2, busy=0)
    db.run("update worker_heartbeats set last_seen = {before[s]} where box = 'c'", s=300.0)
    until = db.now() + timedelta(hours=2)
    operate.park(
        db, box="b", queue="gpu", project="", policy="drain", reason="new fan", requested_by="ops", until=until
    )
    operate.resume(db, box="a", queue="gpu", project="")
    found = rows(db)["gpu", ""]
    assert found["lanes"] == {"on": 1, "parked": 1, "down": 1, "changing": 0, "slots": 4, "busy": 1}
    assert found["desired"] == "mixed"
    (order,) = found["orders"]
    assert (order["box"], order["policy"], order["reason"], order["requested_by"]) == ("b", "drain", "new fan", "ops")
    assert order["until"] == until
    assert found["models"] == [{"model": "m1", "queued": 0, "capped": False, "warm": 1}]


def test_an_order_is_about_a_queue_by_name_by_star_and_by_the_box_of_a_lane(db: Db) -> None:
    beat(db, Worker("a", "default", "", "i"), state="running", slots=1, busy=0)
    add_ingest(db, queue="other")
    operate.cordon(db, box="a", project="")  # a lane of default stands there, none of other
    operate.park(db, box="*", queue="other", project="")
    operate.park(db, box="*", queue="*", project="p")
    found = rows(db)
    assert [order["box"] for order in found["default", ""]["orders"]] == ["a"]
    assert [order["queue"] for order in found["other", ""]["orders"]] == ["other"]


LANE: dict[str, Any] = {"state": "running", "desired": "on", "flagged": False, "last_seen_s": 1.0}


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ({}, "on"),
        ({"desired": "off"}, "changing"),
        ({"desired": "off", "state": "parking"}, "changing"),
        ({"desired": "off", "state": "parked"}, "parked"),
        ({"state": "parked"}, "changing"),
        ({"state": "starting"}, "changing"),
        ({"state": "refused"}, "down"),
        ({"flagged": True}, "down"),
        ({"last_seen_s": 31.0}, "down"),
        ({"state": "stopping", "last_seen_s": 500.0}, "ended"),
    ],
)
def test_what_a_lane_is_and_what_is_wanted_of_it_are_two_things(over: dict[str, Any], expected: str) -> None:
    assert lane_state(LANE | over) == expected


def test_what_no_slot_could_hold_is_counted_by_class(db: Db) -> None:
    run = add_run(db)
    for number in range(4):
        values = {"queue": "gpu", "required_model": "big", "unplaceable_reason": "big fits nowhere"}
        add_node(db, run, f"n{number}", **values)
    add_node(db, run, "small", queue="gpu", required_model="m1")
    found = rows(db)["gpu", ""]
    assert (found["unplaceable"], found["unplaceable_capped"], found["reason"]) == (4, False, "big fits nowhere")
    assert found["models"][0] == {"model": "big", "queued": 4, "capped": False, "warm": 0}


def test_counts_and_the_hour_stop_and_say_so(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    """D25"""
    for name, value in (("QUEUED_CAP", 5), ("ENDS_READ", 4), ("MODEL_CAP", 3)):
        monkeypatch.setattr(queues, name, value)
    run = add_run(db)
    add_many(db, 9)
    add_many(db, 4, table="workflow_node_jobs", run_id=run, queue="gpu", required_model="m1")
    for _ in range(6):
        db.run(
            "insert into job_events (family, job_id, event_type, queue, elapsed_s) values ('ingest', 1, 'completed', 'default', 1)"
        )
    found = queues_view(db)
    default = next(row for row in found["queues"] if row["queue"] == "default")
    gpu = next(row for row in found["queues"] if row["queue"] == "gpu")
    assert (default["queued"], default["capped"], default["ended"]["done"]) == (5, True, 4)
    assert 0.0 < found["window_s"] < 3600.0
    assert gpu["models"] == [{"model": "m1", "queued": 3, "capped": True, "warm": 0}]


def test_many_queues_share_what_one_answer_counts(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty queues of 5,000 rows each would be counted for tenths of a second, every other second."""
    assert [waiting.share_of(parts, 5_000) for parts in (0, 4, 5, 10, 40, 200)] == [
        5_000,
        5_000,
        2_000,
        2_000,
        500,
        100,
    ]
    assert waiting.share_of(40, 1_000) == 500 and waiting.share_of(10_000, 3) == 3
    monkeypatch.setattr(waiting, "COUNTED_MOST", 300)
    for project in ("a", "b", "c"):
        add_many(db, 130, project=project)
    assert [(row["queued"], row["capped"]) for row in rows(db).values()] == [(100, True)] * 3
    assert counts(db)["queued"] == {"n": 300, "capped": True}


def test_waits_are_looked_up_of_the_newest_ends_of_each_queue(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    """One queue that ends a thousand jobs a second leaves the others their figures."""
    monkeypatch.setattr(queues, "WAITS_READ", 2)
    add_ingest(db, queue="other")
    for _ in range(5):
        add_ingest(db)
    for worker in (lane(queue="other"), *[lane()] * 5):
        (job,) = take(db, worker)
        finish(db, worker, [Outcome(job.id, job.fencing_token, "completed", elapsed_s=1.0)])
    seen = queues._ended_rows(db)
    assert [(row["queue"], row["waited_s"] is not None) for row in seen] == [
        *[("default", True)] * 2,
        *[("default", False)] * 3,
        ("other", True),
    ]
    assert rows(db)["default", ""]["ended"]["done"] == 5


def test_an_empty_database_has_no_queues(db: Db) -> None:
    config.configure(ingest_queues=("default",), backlog_limit=50)
    found = queues_view(db)
    assert (found["queues"], found["window_s"], found["backlog_limit"]) == ([], 3600.0, 50)


def test_figures_of_ends() -> None:
    """Means and 95 % by an independent count; failed attempts tell nothing about how long a job runs."""
    ends = [{"event_type": "completed", "elapsed_s": float(n), "waited_s": n / 10} for n in range(1, 101)]
    ends += [{"event_type": "failed", "elapsed_s": 9999.0, "waited_s": None}]
    found = figures(ends)
    assert (found["done"], found["failed"]) == (100, 1)
    assert found["run_mean_s"] == pytest.approx(50.5) and found["run_p95_s"] == 95.0
    assert found["wait_mean_s"] == pytest.approx(5.05) and found["wait_p95_s"] == 9.5
    for n in range(1, 60):
        values = [float((7 * i) % n) for i in range(n)]
        p95 = percentile(values, 0.95)
        assert p95 is not None
        assert sum(value <= p95 for value in values) >= 0.95 * n
        assert all(sum(other <= value for other in values) < 0.95 * n for value in values if value < p95)
    assert percentile([], 0.95) is None


def test_words_where_numbers_belong_count_for_nothing(sqlite_store: Store) -> None:
    """SQLite keeps whatever a foreign program writes into a column."""
    with sqlite_store.connect("test") as db:
        db.run(
            "insert into worker_heartbeats (box, queue, project, incarnation, state, slots, busy, last_seen) "
            "values ('b', 'training', '', 'x', 'running', 'many', 2, {now})"
        )
        for elapsed in ("'long'", "2.0"):
            db.run(
                "insert into job_events (family, job_id, event_type, queue, elapsed_s, created_at) "
                f"values ('ingest', 2, 'completed', 'training', {elapsed}, {{now}})"
            )
        queue = queues_view(db)["queues"][0]
    assert (queue["ended"]["done"], queue["ended"]["run_mean_s"]) == (2, 2.0)
    assert (queue["lanes"]["slots"], queue["lanes"]["busy"]) == (0, 2)
