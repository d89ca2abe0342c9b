"""What a claim takes, and in which order, on both stores."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from engine.queue import claim as claim_module
from engine.queue.workers import Worker
from engine.store import Db, Store
from tests.queue.conftest import FUTURE, PAST, add_ingest, add_many, add_node, add_run, events_of, job, lane, take


def names(claimed: list[Any]) -> list[int]:
    return [one.id for one in claimed]


def test_a_claim_stamps_owner_lease_attempt_and_fence(db: Db) -> None:
    job_id = add_ingest(db, args={"x": 1})
    worker = lane()
    (claimed,) = take(db, worker)
    row = job(db, job_id)
    assert (claimed.id, claimed.fencing_token, claimed.attempt, claimed.name) == (job_id, 1, 1, "work")
    assert claimed.payload.replace(" ", "") == '{"x":1}'
    assert (row["status"], row["claimed_by"], row["claimed_box"]) == ("running", worker.owner, "b1")
    assert (row["lease_expires_at"] - row["claimed_at"]).total_seconds() == pytest.approx(600, abs=1)
    assert row["started_at"] is not None
    assert take(db, worker) == []
    assert events_of(db, job_id) == []


def test_order_is_run_next_then_priority_then_oldest(db: Db) -> None:
    old = add_ingest(db, created_at="2020-01-01T00:00:00.000000+00:00")
    first = add_ingest(db, created_at="2019-01-01T00:00:00.000000+00:00")
    urgent = add_ingest(db, priority=5)
    flagged = add_ingest(db, priority=900, is_priority=True)
    assert names(take(db, lane(), n=10)) == [flagged, urgent, first, old]


def test_queue_and_project_match_exactly(db: Db) -> None:
    add_ingest(db, queue="other")
    add_ingest(db, project="p1")
    add_ingest(db, project="P1")
    mine = add_ingest(db, project="p")
    assert names(take(db, lane(project="p"), n=10)) == [mine]
    assert take(db, lane(project=""), n=10) == []


def test_scheduled_rows_wait_until_due_and_then_keep_their_order(db: Db) -> None:
    add_ingest(db, run_after=FUTURE)
    late = add_ingest(db, run_after=PAST)
    urgent_late = add_ingest(db, run_after=PAST.replace(year=2021), priority=1)
    plain = add_ingest(db)
    claimed = names(take(db, lane(), n=10))
    assert set(claimed) == {late, urgent_late, plain} and claimed[0] == urgent_late


def test_placement_names_boxes(db: Db) -> None:
    here = add_ingest(db, only_boxes=["b1", "b2"])
    add_ingest(db, only_boxes=["b2"])
    add_ingest(db, avoid_boxes=["b1"])
    add_ingest(db, only_boxes=["b1"], avoid_boxes=["b1"])
    anywhere = add_ingest(db)
    assert names(take(db, lane(), n=10)) == [here, anywhere]


def test_due_rows_obey_placement_however_many_are_elsewhere(db: Db) -> None:
    past = PAST
    for _ in range(40):
        add_ingest(db, only_boxes=["b2"], run_after=past)
    mine = add_ingest(db, run_after=past.replace(year=2021))
    assert names(take(db, lane(), n=1)) == [mine]


def test_a_lost_job_is_not_offered_to_that_box_at_first(db: Db) -> None:
    job_id = add_ingest(db, last_lost_box="b1", last_lost_at=db.now())
    assert take(db, lane(box="b1")) == []
    assert names(take(db, lane(box="b2"))) == [job_id]
    long_ago = add_ingest(db, last_lost_box="b1", last_lost_at=PAST)
    assert names(take(db, lane(box="b1"))) == [long_ago]


def test_nodes_of_runs_that_are_over_are_never_claimed(db: Db) -> None:
    live, over = add_run(db), add_run(db, status="cancelled")
    dead = [add_node(db, over, f"d{i}") for i in range(20)]
    mine = add_node(db, live, "a", priority=200)
    assert names(take(db, lane("cpu"), n=1)) == [mine]
    assert take(db, lane("cpu"), n=1) == []
    assert {job(db, job_id)["status"] for job_id in dead} <= {"queued", "cancelled"}


def test_a_wall_of_dead_parents_is_cleared_and_the_live_row_behind_it_found(db: Db) -> None:
    over, live = add_run(db, status="failed"), add_run(db)
    add_many(db, 700, table="workflow_node_jobs", run_id=over)
    mine = add_node(db, live, "a")
    assert names(take(db, lane("cpu"), n=1)) == [mine]
    gone = db.value(
        "select count(*) as n from workflow_node_jobs where run_id = {id} and status = 'cancelled'", id=over
    )
    assert gone == 700
    assert db.value("select count(*) as n from job_events where event_type = 'cancelled'") == 700


def test_negative_host_priority_takes_the_newest_of_the_most_urgent_band(db: Db) -> None:
    times = [f"2020-01-0{day}T00:00:00.000000+00:00" for day in (1, 2, 3)]
    low = [add_ingest(db, created_at=at, priority=50) for at in times]
    add_ingest(db, created_at=times[2], priority=60)
    flagged = add_ingest(db, created_at=times[0], priority=70, is_priority=True)
    assert names(take(db, lane(), n=3, host_priority=-1)) == [flagged, low[2], low[1]]


def test_claimed_ahead_has_not_started(db: Db) -> None:
    job_id = add_ingest(db)
    (claimed,) = take(db, lane(), begin=False)
    assert claimed.ahead and job(db, job_id)["started_at"] is None and job(db, job_id)["status"] == "running"


def gpu(db: Db, run: int, node_id: str, model: str | None, **values: Any) -> int:
    return add_node(db, run, node_id, queue="gpu", required_model=model, **values)


def test_gpu_takes_known_models_and_prefers_the_warm_one(db: Db) -> None:
    run = add_run(db)
    now = db.now()
    gpu(db, run, "unknown", "z", priority=1)
    cold = gpu(db, run, "cold", "a", priority=5, created_at=now)
    warm = gpu(db, run, "warm", "b", priority=90, created_at=now)
    free = gpu(db, run, "free", None, priority=80, created_at=now)
    flagged = gpu(db, run, "flagged", "a", priority=99, is_priority=True, created_at=now)
    worker = lane("gpu")
    claimed = take(db, worker, n=10, models=("a", "b"), loaded_model="b")
    assert names(claimed) == [flagged, warm, cold, free]
    assert claimed[0].required_model == "a"


def test_an_empty_gpu_slot_is_warm_for_rows_without_a_model(db: Db) -> None:
    run = add_run(db)
    gpu(db, run, "cold", "a", priority=1, created_at=db.now())
    free = gpu(db, run, "free", None, created_at=db.now())
    assert names(take(db, lane("gpu"), n=1, models=("a",))) == [free]


def test_model_slots_and_free_slots_take_their_own_kind(db: Db) -> None:
    run = add_run(db)
    free, model = gpu(db, run, "free", None), gpu(db, run, "model", "a")
    assert names(take(db, lane("gpu"), n=5, models=("a",), free_rows=False)) == [model]
    assert names(take(db, lane("gpu"), n=5, models=("a",), model_rows=False)) == [free]


def test_a_job_that_waited_too_long_for_its_model_counts_as_warm(db: Db) -> None:
    run = add_run(db)
    now = db.now()
    for i in range(30):
        gpu(db, run, f"warm{i}", "b", priority=10, created_at=now)
        gpu(db, run, f"young{i}", "a", priority=5, created_at=now)
    # Behind younger rows of a more urgent band of its own model: what only the exact look finds.
    aged = gpu(db, run, "aged", "a", priority=9, created_at="2020-01-01T00:00:00.000000+00:00")
    assert names(take(db, lane("gpu"), n=1, models=("a", "b"), loaded_model="b")) == [aged]


def _expected(
    rows: list[dict[str, Any]], n: int, newest: bool, models: list[str] | None, loaded: str, wait: Any
) -> list[int]:
    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        age = (row["created_at"], row["id"])
        stamp = (-row["created_at"].timestamp(), -row["id"]) if newest else age
        cold = models is not None and (row.get("required_model") or "") != loaded and row["created_at"] > wait
        return (not row["is_priority"], cold, row["priority"], *stamp)

    return [row["id"] for row in sorted(rows, key=key)[:n]]


@pytest.mark.parametrize("queue", ["default", "cpu", "gpu"])
def test_random_queues_match_the_naive_order(db: Db, queue: str) -> None:
    chance = random.Random(f"{db.kind} {queue}")
    now = db.now()
    run, over = add_run(db), add_run(db, status="cancelled")
    for round_number in range(6):
        made = []
        for i in range(60):
            values: dict[str, Any] = {
                "priority": chance.choice([1, 50, 50, 50, 100]),
                "is_priority": chance.random() < 0.1,
                "created_at": now.replace(year=now.year - 1 - chance.randrange(3), day=1 + chance.randrange(5)),
            }
            if chance.random() < 0.3:
                values["only_boxes"] = chance.choice([["b1"], ["b2"], ["b1", "b2"]])
            if chance.random() < 0.2:
                values["avoid_boxes"] = chance.choice([["b1"], ["b2"]])
            if queue == "default":
                made.append(add_ingest(db, **values))
                continue
            if queue == "gpu":
                values["required_model"] = chance.choice([None, "a", "b", "z"])
                if chance.random() < 0.7:
                    values["created_at"] = now
            parent = over if chance.random() < 0.1 else run
            made.append(add_node(db, parent, f"{round_number}-{i}", queue=queue, **values))
        newest, n = chance.random() < 0.5, chance.choice([1, 3, 10])
        loaded = chance.choice(["", "a"])
        table = "ingest_jobs" if queue == "default" else "workflow_node_jobs"
        rows = [
            row
            for row in db.all(f"select * from {table} where id {{any[ids]}}", ids=made)
            if (not row["only_boxes"] or "b1" in row["only_boxes"])
            and "b1" not in row["avoid_boxes"]
            and (queue == "default" or row["run_id"] == run)
            and (queue != "gpu" or row["required_model"] in (None, "a", "b"))
        ]
        models = ["a", "b"] if queue == "gpu" else None
        wait = now.replace(year=now.year - 1, month=12, day=31)
        expected = _expected(rows, n, newest, models, loaded, wait)
        claim_module._exact_at.clear()  # an exact claim, as the first of a lane is
        claimed = take(
            db,
            lane(queue),
            n=n,
            host_priority=-1 if newest else 0,
            models=tuple(models or ()),
            loaded_model=loaded or None,
        )
        assert names(claimed) == expected, (round_number, newest, n, loaded)
        db.run(f"delete from {table}")


def test_no_theft_between_projects_and_no_job_twice_under_concurrency(store: Store) -> None:
    """Scenario 7: many projects on one database."""
    with store.connect("setup") as db:
        expected = {}
        for project in ("a", "b", "c"):
            for _ in range(60):
                expected[add_ingest(db, project=project)] = project
    got: list[tuple[str, int]] = []
    failures: list[BaseException] = []

    def drain(project: str, box: str) -> None:
        try:
            with store.connect("lane", claims=True) as own:
                worker: Worker = lane(project=project, box=box)
                while claimed := take(own, worker, n=4):
                    got.extend((project, one.id) for one in claimed)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=drain, args=(p, f"b{i}")) for p in ("a", "b", "c") for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert len(got) == len(expected) and {(expected[job_id], job_id) for _, job_id in got} == set(got)
