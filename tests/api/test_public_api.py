"""The public API on both stores: joins the caller's transaction, refuses before it writes, says what it did."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import engine
from engine import config
from engine.errors import (
    BadInput,
    Conflict,
    GraphError,
    NotFound,
    PayloadError,
    SchemaMismatch,
    StoreUnavailable,
    UnknownQueue,
    UnknownTask,
)
from engine.store import Db, Store

GRAPH = {"name": "two", "nodes": [{"id": "a", "node": "n"}, {"id": "b", "node": "n", "depends_on": ["a"]}]}


@pytest.fixture(autouse=True)
def configured(store: Store) -> None:
    engine.configure(db_url=store.url, box="here")
    engine.register_node("n", lambda: None)
    engine.register_ingest_task("t", lambda **kw: kw, max_attempts=2)


def counts(db: Db) -> tuple[int, int, int]:
    return tuple(  # type: ignore[return-value]
        db.value(f"select count(*) as n from {table}")
        for table in ("workflow_runs", "workflow_node_jobs", "ingest_jobs")
    )


def test_a_run_and_its_first_node_are_there(db: Db) -> None:
    run_id = engine.submit_run(GRAPH, project="render", priority=7)
    assert isinstance(run_id, str)
    row = db.one("select node_id, priority, project from workflow_node_jobs where run_id = {id}", id=int(run_id))
    assert row == {"node_id": "a", "priority": 7, "project": "render"}


def test_jobs_are_enqueued_one_and_many(db: Db) -> None:
    job = engine.enqueue_ingest_job(task_name="t", queue="default", args={"x": 1}, idempotency_key="k")
    again = engine.enqueue_ingest_job(task_name="t", queue="default", args={"x": 1}, idempotency_key="k")
    assert again.id == job.id and job.max_attempts == 2
    ids = engine.enqueue_many(task_name="t", queue="default", args_list=[{"x": n} for n in range(5)])
    assert len(set(ids)) == 5 and all(isinstance(i, str) for i in ids)
    assert counts(db) == (0, 0, 6)


def test_calls_with_conn_follow_the_callers_transaction(store: Store, db: Db) -> None:
    with store.connect("host") as host:
        with pytest.raises(RuntimeError):
            with host.transaction():
                engine.submit_run(GRAPH, conn=host.raw)
                engine.enqueue_ingest_job(task_name="t", queue="default", conn=host.raw)
                engine.enqueue_many(task_name="t", queue="default", args_list=[{}], conn=host.raw)
                raise RuntimeError("the host changes its mind")
    assert counts(db) == (0, 0, 0)
    with store.connect("host") as host, host.transaction():
        engine.submit_run(GRAPH, conn=host.raw)
        engine.enqueue_ingest_job(task_name="t", queue="default", conn=host.raw)
    assert counts(db) == (1, 1, 1)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: engine.enqueue_ingest_job(task_name="nope", queue="default"), UnknownTask),
        (lambda: engine.enqueue_ingest_job(task_name="t", queue="nope"), UnknownQueue),
        (lambda: engine.enqueue_ingest_job(task_name="t", queue="gpu"), UnknownQueue),
        (lambda: engine.enqueue_ingest_job(task_name="t", queue="default", args={"x": {1}}), PayloadError),
        (lambda: engine.enqueue_ingest_job(task_name="t", queue="default", args={"x": "y" * 1_100_000}), PayloadError),
        (lambda: engine.enqueue_ingest_job(task_name="t", queue="default", run_after=datetime(2026, 1, 1)), BadInput),
        (lambda: engine.enqueue_many(task_name="t", queue="default", args_list=[{}, {"x": {1}}]), PayloadError),
        (
            lambda: engine.submit_run(
                {
                    "name": "c",
                    "nodes": [
                        {"id": "a", "node": "n", "depends_on": ["b"]},
                        {"id": "b", "node": "n", "depends_on": ["a"]},
                    ],
                }
            ),
            GraphError,
        ),
        (lambda: engine.submit_run("no such workflow"), NotFound),
        (lambda: engine.submit_run(GRAPH, context={"x": {1}}), PayloadError),
        (lambda: engine.park(queue="nope"), UnknownQueue),
        (lambda: engine.park(queue="gpu", policy="soft"), BadInput),
        (lambda: engine.run_next(123456), NotFound),
        (lambda: engine.cancel_job("x"), BadInput),
        (lambda: engine.cancel_run(99), NotFound),
    ],
)
def test_bad_input_is_refused_with_one_line_and_changes_nothing(db: Db, call: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, engine.EngineError)
    assert len(str(caught.value).splitlines()) == 1
    assert counts(db) == (0, 0, 0)
    assert db.value("select count(*) as n from worker_controls") == 0


def test_orders_say_what_they_did_and_who_gave_them(db: Db) -> None:
    assert "ordered off" in engine.park(queue="gpu", reason="fan", requested_by="ana")
    assert "already" in engine.park(queue="gpu", requested_by="ben")
    row = db.one("select box, queue, desired, policy, reason, requested_by from worker_controls")
    assert row == {
        "box": "here", "queue": "gpu", "desired": "off", "policy": "hard", "reason": "fan", "requested_by": "ana",
    }  # fmt: skip
    assert "ordered on" in engine.resume(queue="gpu", requested_by="ana")
    assert "every queue" in engine.cordon(until=datetime.now(UTC) + timedelta(hours=2))
    assert "uncordoned" in engine.uncordon()
    actions = [r["action"] for r in db.all("select action from control_events order by id")]
    assert actions == ["park", "park", "resume", "cordon", "uncordon"]


def test_jobs_are_moved_cancelled_and_retried(db: Db) -> None:
    job = engine.enqueue_ingest_job(task_name="t", queue="default")
    assert "runs next" in engine.run_next(job.id)
    assert "nothing to kill" in engine.kill_job(job.id)
    with pytest.raises(Conflict):
        engine.retry_job(job.id)
    assert "cancelled" in engine.cancel_job(job.id)
    new = engine.retry_job(job.id)
    assert isinstance(new, str) and new != job.id
    run_id = engine.submit_run(GRAPH)
    assert "cancelled" in engine.cancel_run(run_id)


def test_bootstrap_is_idempotent(store: Store) -> None:
    assert engine.bootstrap() == []


def test_an_empty_fleet_database_is_a_clear_error(pg_empty_url: str) -> None:
    config.reset()
    engine.configure(db_url=pg_empty_url)
    with pytest.raises(SchemaMismatch, match="queue-broker bootstrap"):
        engine.fleet_snapshot()
    with pytest.raises(SchemaMismatch, match="queue-broker bootstrap"):
        engine.park(queue="gpu")


def test_an_absent_database_is_a_clear_error() -> None:
    config.reset()
    engine.configure(db_url="postgresql://nobody:secret@127.0.0.1:1/none")
    with pytest.raises(StoreUnavailable) as caught:
        engine.submit_run(GRAPH)
    assert "secret" not in str(caught.value)
