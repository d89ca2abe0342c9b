"""What a deck reads of the queue, and that reading it stays cheap."""

from __future__ import annotations

import time

from engine.queue import operate
from engine.queue.events import describe, recent
from engine.queue.finish import Outcome, finish
from engine.queue.lease import progress
from engine.queue.snapshot import COUNT_CAP, queue_view
from engine.queue.workers import beat
from engine.snapshot import FleetView
from engine.store import Db, Store
from tests.queue.conftest import add_ingest, add_many, add_node, add_run, lane, take


def test_one_view_of_all_projects(db: Db) -> None:
    """Scenario 7: one view sees all."""
    run = add_run(db, project="p")
    add_node(db, run, "render", node="video", project="p")
    add_node(db, run, "later", project="p", run_after="2100-01-01T00:00:00.000000+00:00")
    worker, other = lane("cpu", project="p"), lane("default")
    (one,) = take(db, worker)
    progress(db, worker, [(one.id, one.fencing_token, 61, "frame 61")])
    for _ in range(3):
        add_ingest(db)
    (two,) = take(db, other)
    finish(db, other, [Outcome(two.id, two.fencing_token, "failed", error="boom\nmore", exit_code=1)])
    beat(db, worker, state="running", slots=1, busy=1, current_model="m")
    beat(db, other, state="parked", slots=2, busy=0)
    operate.cordon(db, box="b1", policy="drain", project="")
    db.run(
        "insert into services (kind, box, incarnation, is_leader) values ('orchestrator', 'b9', 'x', {leads})",
        leads=True,
    )
    view = queue_view(db)
    assert view["projects"] == [
        {"project": "", "queued": 2, "running": 0, "awaiting": 0, "capped": False},
        {"project": "p", "queued": 1, "running": 1, "awaiting": 0, "capped": False},
    ]
    lanes = {(row["queue"], row["project"]): row for row in view["lanes"]}
    cpu, default = lanes["cpu", "p"], lanes["default", ""]
    assert (cpu["desired"], cpu["state"], cpu["busy"], cpu["queued"], cpu["current_model"]) == (
        "on",
        "running",
        1,
        1,
        "m",
    )
    assert (default["desired"], default["policy"], default["queued"], default["cordoned"]) == ("off", "drain", 2, True)
    assert 0 <= cpu["last_seen_s"] < 60
    (shown,) = view["jobs"]
    assert (shown["id"], shown["name"], shown["node_id"], shown["box"]) == (str(one.id), "video", "render", "b1")
    assert (shown["progress_pct"], shown["progress_text"], shown["run_id"]) == (61, "frame 61", str(run))
    assert 0 <= shown["age_s"] < 60
    assert view["events"][0]["text"] == f"b1 default: {two.name} (job {two.id}) failed, exit 1: boom"
    assert view["leader"]["box"] == "b9"
    mine = queue_view(db, project="p")
    assert [row["project"] for row in mine["projects"]] == ["p"] and len(mine["lanes"]) == 1
    assert mine["events"] == []


def test_nodes_that_wait_for_a_person_are_counted_by_project(db: Db) -> None:
    """Also of a project that has nothing else."""
    for project, n in (("p", 2), ("", 1)):
        run = add_run(db, project=project)
        for number in range(n):
            add_node(db, run, f"approve{number}", status="awaiting_input", project=project)
    assert [(row["project"], row["awaiting"]) for row in queue_view(db)["projects"]] == [("", 1), ("p", 2)]
    assert [(row["project"], row["awaiting"]) for row in queue_view(db, "p")["projects"]] == [("p", 2)]
    view = FleetView()
    assert view.read(db, {}, {})[2] and not view.read(db, {}, {})[2]
    db.run("update workflow_node_jobs set status = 'completed' where project = 'p'")
    found, _, changed = view.read(db, {}, {})
    assert changed and [(row["project"], row["awaiting"]) for row in found["projects"]] == [("", 1)]


def test_events_after_an_id_are_only_the_new_ones(db: Db) -> None:
    job_id = add_ingest(db)
    operate.cancel_job(db, job_id)
    (first,) = recent(db)
    operate.cancel_job(db, add_ingest(db))
    (second,) = recent(db, after_id=int(first["id"]))
    assert int(second["id"]) > int(first["id"]) and second["type"] == "cancelled"


def test_an_event_reads_as_one_line() -> None:
    row = {
        "job_id": 7,
        "event_type": "requeued",
        "cause": "executor_died",
        "box": "spark",
        "queue": "gpu",
        "exit_code": -9,
    }
    assert describe(row) == "spark gpu: job 7 requeued (executor died), exit -9"
    row |= {"exit_code": 137, "detail": {"reason": "137: killed by SIGKILL"}}
    assert describe(row) == "spark gpu: job 7 requeued (executor died), exit 137: killed by SIGKILL"
    row |= {"exit_code": 9, "detail": {"reason": "90 s without an answer"}}
    assert describe(row) == "spark gpu: job 7 requeued (executor died), exit 9: 90 s without an answer"
    row |= {"cause": "drain", "exit_code": None, "detail": {"reason": "the lane was told to stop at once"}}
    assert describe(row) == "spark gpu: job 7 requeued (lane stopped it): the lane was told to stop at once"


def test_100_000_queued_rows_are_counted_up_to_a_cap(store: Store) -> None:
    """D25: a long queue does not slow the deck. (Its timing, under 50 ms, belongs to the benchmarks.)"""
    with store.connect("deck", timeout_s=60) as db:
        add_many(db, 100_000)
        view = queue_view(db)
        assert view["projects"] == [{"project": "", "queued": COUNT_CAP, "running": 0, "awaiting": 0, "capped": True}]
        spent = []
        for _ in range(5):
            start = time.perf_counter()
            queue_view(db)
            spent.append(time.perf_counter() - start)
        assert min(spent) < 0.5, spent


def test_rows_claimed_ahead_are_not_shown_as_running_jobs(db: Db) -> None:
    add_ingest(db)
    take(db, lane(), begin=False)
    assert queue_view(db)["jobs"] == []
