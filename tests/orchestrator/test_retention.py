"""What is old goes, what lives stays: on both stores, by the clock of the database."""

from __future__ import annotations

from typing import Any

import pytest

from engine import config
from engine.dag.runs import submit_run
from engine.orchestrator import retention
from engine.orchestrator.retention import Retention
from engine.queue.workers import beat
from engine.store import Db
from tests.dag.steps import Hands, chain, drain_all, node
from tests.lane.fleet import add

DAY = 86400.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def age(db: Db, table: str, days: float, where: str = "1 = 1", *columns: str) -> None:
    changes = ", ".join(f"{column} = {{before[s]}}" for column in columns or ("created_at", "finished_at"))
    db.run(f"update {table} set {changes} where {where}", s=days * DAY)


def count(db: Db, table: str) -> int:
    return int(db.value(f"select count(*) as n from {table}"))


def finished_run(db: Db, nodes: int = 2) -> int:
    run_id = submit_run(db, chain(*(node(f"n{i}") for i in range(nodes))))
    Hands(db).run_all({})
    drain_all(db)
    return run_id


def job(db: Db, status: str, days: float, **more: Any) -> int:
    id = add(db, "t", status=status, **more)
    db.run(
        "update ingest_jobs set created_at = {before[s]}, finished_at = {before[s]} where id = {id}",
        s=days * DAY,
        id=id,
    )
    db.run("insert into executions (job_id, fencing_token) values ({id}, 1)", id=id)
    db.run("insert into job_logs (family, job_id, tail) values ('ingest', {id}, 'x'), ('node', {id}, 'y')", id=id)
    db.run("insert into job_hardware (job_id) values ({id})", id=id)
    return id


def ids(db: Db, table: str, column: str = "id") -> list[int]:
    return [row["found"] for row in db.all(f"select {column} as found from {table} order by {column}")]


def test_runs_that_ended_long_ago_go_with_their_nodes(db: Db) -> None:
    old, young, failed = (finished_run(db) for _ in range(3))
    age(db, "workflow_runs", 31, f"id in ({old}, {failed})")
    db.run("update workflow_runs set status = 'failed' where id = {id}", id=failed)
    age(db, "workflow_runs", 29, f"id = {young}")
    node_ids = ids(db, "workflow_node_jobs")
    for id in node_ids:
        db.run("insert into job_logs (family, job_id) values ('node', {id}), ('ingest', {id})", id=id)
    assert Retention().clean(db) == 6
    assert ids(db, "workflow_runs") == [young]
    kept = ids(db, "workflow_node_jobs")
    assert len(kept) == 2
    assert count(db, "job_logs") == 6 + 2, "a log goes with the job of its own family"
    assert Retention().clean(db) == 0


def test_a_run_that_lives_stays_however_old_and_so_does_one_whose_retry_lives(db: Db) -> None:
    waiting = submit_run(db, chain(node("a"), node("b")))
    retried, done_again = finished_run(db), finished_run(db)
    retry = submit_run(db, chain(node("a")))
    db.run("update workflow_runs set retry_of = {of} where id = {id}", of=retried, id=retry)
    retry_done = finished_run(db)
    db.run("update workflow_runs set retry_of = {of} where id = {id}", of=done_again, id=retry_done)
    half = finished_run(db)
    open_node = min(ids(db, "workflow_node_jobs"))
    db.run(
        "update workflow_node_jobs set status = 'running', run_id = {run}, node_id = 'z' where id = {id}",
        run=half,
        id=open_node,
    )
    age(db, "workflow_runs", 400)
    db.run("update workflow_runs set status = 'running' where id {any[live]}", live=[waiting, retry])
    Retention().clean(db)
    assert ids(db, "workflow_runs") == [waiting, retried, retry, half]
    assert db.value("select status from workflow_node_jobs where id = {id}", id=open_node) == "running"


def test_ingest_jobs_go_with_effects_and_logs_and_live_ones_stay(db: Db) -> None:
    statuses = ["completed", "failed", "cancelled", "queued", "running"]
    old = [job(db, status, 31) for status in statuses]
    young = job(db, "completed", 29)
    retried = job(db, "failed", 31)
    live_retry = job(db, "queued", 0, retry_of=retried)
    assert Retention().clean(db) == 3
    kept = [*old[3:], young, retried, live_retry]
    assert ids(db, "ingest_jobs") == kept
    assert ids(db, "executions", "job_id") == kept == ids(db, "job_hardware", "job_id")
    assert count(db, "job_logs") == 2 * len(kept) + 3, "logs of nodes are others'"


def test_events_the_outbox_and_the_rest_by_their_own_age(db: Db) -> None:
    for days, processed in ((31, 31), (2, 2), (2, None), (0.5, 0.5)):
        db.run(
            "insert into workflow_dispatch_events (run_id, node_id, kind, created_at, processed_at) values (1, 'n', "
            "'completed', {before[made]}, case when {done} < 0 then null else {before[done]} end)",
            made=days * DAY,
            done=-1.0 if processed is None else processed * DAY,
        )
    for days in (31, 29):
        s = days * DAY
        db.run(
            "insert into job_events (family, job_id, event_type, created_at) values ('node', 1, 'x', {before[s]})", s=s
        )
        db.run("insert into control_events (action, at) values ('park', {before[s]})", s=s)
        for status in ("pending", "processed"):
            db.run(
                "insert into input_submissions (run_id, node_id, status, created_at, processed_at) values "
                "({run}, 'n', {status}, {before[s]}, case when {status} = 'pending' then null else {before[s]} end)",
                run=days,
                status=status,
                s=s,
            )
    db.run(
        "insert into model_orders (box, model, action, expires_at) values ('a', 'm', 'load', {before[s]})", s=2 * DAY
    )
    for days in (8, 6):
        db.run(
            "insert into services (kind, box, incarnation, last_seen) values ('web', 'a', {i}, {before[s]})",
            i=str(days),
            s=days * DAY,
        )
    Retention().clean(db)
    assert ids(db, "workflow_dispatch_events") == [3, 4], "what nobody has dealt with stays"
    assert count(db, "job_events") == count(db, "control_events") == 1
    assert [row["status"] for row in db.all("select status from input_submissions order by id")] == [
        "pending",
        "pending",
        "processed",
    ]
    assert count(db, "model_orders") == 0
    assert ids(db, "services", "incarnation") == ["6"]


def test_lanes_long_gone_go_unless_they_hold_a_job(db: Db) -> None:
    for box in ("gone", "holder"):
        hands = Hands(db, box=box)
        beat(db, hands.worker, state="running", slots=1, busy=0)
        if box == "holder":
            submit_run(db, chain(node("a")))
            assert hands.take()
    age(db, "worker_heartbeats", 8, "1 = 1", "last_seen")
    db.run("insert into boxes (box, updated_at) values ('gone', {before[s]})", s=4000 * DAY)
    assert Retention().clean(db) == 1
    assert ids(db, "worker_heartbeats", "box") == ["holder"]
    assert count(db, "boxes") == 1


def test_days_are_a_setting_and_none_keeps_for_ever(db: Db) -> None:
    job(db, "completed", 3)
    config.configure(retention_jobs_days=0)
    assert Retention().clean(db) == 0
    config.configure(retention_jobs_days=2.5)
    assert Retention().clean(db) == 1


def test_it_walks_on_past_what_must_stay_a_batch_at_a_time(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten old jobs that are still queued stand before the old ones that may go, and a pass may end anywhere."""
    monkeypatch.setattr(retention, "BATCH", {"postgresql": 3, "sqlite": 3})
    for status in ["queued"] * 10 + ["completed"] * 10:
        job(db, status, 40)
    young = [job(db, "completed", 1) for _ in range(3)]
    clock = Clock()
    keep = Retention(clock)
    monkeypatch.setattr(retention, "PASS_S", 0.0)
    assert keep.clean(db) == 0
    monkeypatch.setattr(retention, "PASS_S", 60.0)
    assert keep.clean(db) == 10
    assert count(db, "ingest_jobs") == 13 and set(young) <= set(ids(db, "ingest_jobs"))
    job(db, "completed", 40)
    assert keep.clean(db) == 0  # this walk is over
    clock.now += 61
    assert keep.clean(db) == 1


def test_one_table_that_refuses_keeps_no_other_from_being_cleaned(db: Db) -> None:
    """Q21: the walk that fails is said, and the others go on."""
    job(db, "completed", 40)
    finished = finished_run(db)
    age(db, "workflow_runs", 40)
    if db.kind == "postgresql":
        db.run("create function refuse() returns trigger language plpgsql as $$ begin raise exception 'mine'; end $$")
        db.run("create trigger refuse before delete on ingest_jobs for each row execute function refuse()")
    else:
        db.run("create trigger refuse before delete on ingest_jobs begin select raise(abort, 'mine'); end")
    with pytest.raises(Exception, match="mine"):
        Retention().clean(db)
    assert finished not in ids(db, "workflow_runs")
    assert count(db, "ingest_jobs") == 1


def test_a_run_of_very_many_nodes_goes_in_several_steps(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", {"postgresql": 3, "sqlite": 3})
    big, small = finished_run(db, 40), finished_run(db, 1)
    age(db, "workflow_runs", 40)
    last, gone = retention.runs(db, 0, DAY, 3)
    assert (last, gone) == (0, 12), "a step is short, and the next one goes on at the same place"
    assert Retention().clean(db) == 40 + 1 - 12 + 2
    assert not {big, small} & set(ids(db, "workflow_runs"))


def test_a_table_with_very_much_to_delete_keeps_no_other_waiting(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", {"postgresql": 1, "sqlite": 1})
    clock = Clock()
    keep = Retention(clock)
    for walk in keep.walks[2:]:
        walk.due = float("inf")
    finished_run(db)
    age(db, "workflow_runs", 40)
    for _ in range(3):
        job(db, "completed", 40)
    served: list[str] = []
    steps = {walk.name: walk.step for walk in keep.walks}

    def one_step(name: str) -> Any:
        def step(*args: Any) -> Any:
            served.append(name)
            monkeypatch.setattr(retention, "PASS_S", 0.0)
            clock.now += 1
            return steps[name](*args)

        return step

    for walk in keep.walks:
        walk.step = one_step(walk.name)
    for _ in range(4):
        monkeypatch.setattr(retention.time, "monotonic", lambda: clock.now)  # a pass ends with its first step
        monkeypatch.setattr(retention, "PASS_S", 0.5)
        keep.clean(db)
    assert served[:4] == ["runs", "jobs", "runs", "jobs"]
