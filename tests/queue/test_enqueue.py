"""Putting jobs in: checked before any write, once per key, in the caller's transaction, by COPY, one wake per statement."""

from __future__ import annotations

import math
import threading
from datetime import datetime
from typing import Any

import psycopg
import pytest

from engine import config, registry
from engine.errors import BacklogFull, BadInput, Conflict, NotFound, PayloadError, UnknownQueue, UnknownTask
from engine.queue import backlog
from engine.queue.enqueue import enqueue, enqueue_many, get_job, insert_node_jobs
from engine.store import Db, Store, adopt
from tests.queue.conftest import FUTURE, add_many, add_run, job, lane, take
from tests.support import eventually


def count(db: Db, table: str = "ingest_jobs") -> int:
    found: int = db.value(f"select count(*) as n from {table}")
    return found


def test_a_job_is_a_row_with_everything_it_needs(db: Db) -> None:
    registry.register_ingest_task("timed", lambda **_: None, budget_s=12.5, max_attempts=4)
    config.configure(project="p")
    made = enqueue(db, task_name="timed", queue="other", args={"a": [1, None, "é"]}, priority=7)
    assert (made.status, made.task, made.queue, made.project, made.priority) == ("queued", "timed", "other", "p", 7)
    assert made.args == {"a": [1, None, "é"]} and made.max_attempts == 4 and made.created_at.tzinfo is not None
    row = job(db, int(made.id))
    assert row["budget_s"] == 12.5 and row["run_after"] is None
    assert get_job(db, made.id) == made
    with pytest.raises(NotFound):
        get_job(db, 10**14)


def deep() -> Any:
    value: Any = {}
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"task_name": "nobody"}, UnknownTask),
        ({"task_name": "os.system"}, UnknownTask),
        ({"queue": "nowhere"}, UnknownQueue),
        ({"queue": "cpu"}, UnknownQueue),
        ({"queue": "gpu"}, UnknownQueue),
        ({"args": {"x": object()}}, PayloadError),
        ({"args": {"x": math.nan}}, PayloadError),
        ({"args": {"x": "a\x00b"}}, PayloadError),
        ({"args": {"x": "\ud800"}}, PayloadError),
        ({"args": {"x": "y" * 1_048_576}}, PayloadError),
        ({"args": {"x": "é" * 600_000}}, PayloadError),
        ({"args": {"x": deep()}}, PayloadError),
        ({"args": [1, 2]}, BadInput),
        ({"priority": 10**9}, BadInput),
        ({"priority": True}, BadInput),
        ({"max_attempts": 0}, BadInput),
        ({"run_after": datetime(2030, 1, 1)}, BadInput),
        ({"project": "a\x00b"}, BadInput),
        ({"idempotency_key": ""}, BadInput),
    ],
)
def test_bad_input_is_refused_in_one_line_and_nothing_is_written(
    db: Db, wrong: dict[str, Any], error: type[Exception]
) -> None:
    """Bad input; Q36: a task that is not registered is no name at all."""
    with pytest.raises(error) as caught:
        enqueue(db, **{"task_name": "work", "queue": "default", **wrong})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
    assert count(db) == 0
    if "idempotency_key" in wrong or "run_after" in wrong:
        return
    given = {"task_name": "work", "queue": "default", **wrong}
    args = given.pop("args", {})
    with pytest.raises(error):
        enqueue_many(db, **given, args_list=[{"fine": 1}, args])
    assert count(db) == 0


def test_text_that_only_looks_like_nul_is_kept(db: Db) -> None:
    made = enqueue(db, task_name="work", queue="default", args={"x": "\\u0000 \\\\u0000"})
    assert job(db, int(made.id))["args"] == {"x": "\\u0000 \\\\u0000"}


def test_the_callers_transaction_decides(store: Store) -> None:
    with store.connect("host") as host, store.connect("look") as look:
        with pytest.raises(RuntimeError), host.transaction():
            enqueue(adopt(host.raw), task_name="work", queue="default")
            enqueue_many(adopt(host.raw), task_name="work", queue="default", args_list=[{}, {}])
            raise RuntimeError("the caller changed its mind")
        assert count(look) == 0
        with host.transaction():
            enqueue(adopt(host.raw), task_name="work", queue="default")
            assert count(look) == 0
        assert count(look) == 1


def test_a_plain_driver_connection_is_joined_and_never_committed(pg_store: Store, pg_url: str) -> None:
    with psycopg.connect(pg_url) as host, pg_store.connect("look") as look:
        enqueue(adopt(host), task_name="work", queue="default")
        enqueue_many(adopt(host), task_name="work", queue="default", args_list=[{}, {}])
        assert count(look) == 0
        host.rollback()
        assert count(look) == 0
        enqueue(adopt(host), task_name="work", queue="default")
        host.commit()
        assert count(look) == 1


def test_the_same_key_and_body_again_gives_the_first_job(db: Db) -> None:
    one = enqueue(db, task_name="work", queue="default", args={"a": 1, "b": 2}, idempotency_key="k")
    two = enqueue(db, task_name="work", queue="default", args={"b": 2, "a": 1}, idempotency_key="k")
    assert two.id == one.id and two.existing and not one.existing
    other = enqueue(db, task_name="work", queue="default", args={}, idempotency_key="k", project="p2")
    assert other.id != one.id
    take(db, lane())
    again = enqueue(db, task_name="work", queue="default", args={"a": 1, "b": 2}, idempotency_key="k")
    assert (again.id, again.status) == (one.id, "running")


@pytest.mark.parametrize("other", [{"args": {"a": 2}}, {"queue": "other"}, {"priority": 1}, {"max_attempts": 3}])
def test_a_key_that_was_used_with_another_body_is_refused(db: Db, other: dict[str, Any]) -> None:
    """Q29"""
    enqueue(db, task_name="work", queue="default", args={"a": 1}, idempotency_key="order-7")
    with pytest.raises(Conflict, match="order-7"):
        enqueue(
            db, **{"task_name": "work", "queue": "default", "args": {"a": 1}, "idempotency_key": "order-7", **other}
        )
    assert count(db) == 1


def test_a_key_held_by_a_transaction_that_rolls_back_still_makes_the_job(pg_store: Store) -> None:
    """Q28: the second request waits and sees the outcome; the job exists."""
    made: list[Any] = []
    with pg_store.connect("first") as first, pg_store.connect("second") as second, pg_store.connect("look") as look:
        given: dict[str, Any] = {"task_name": "work", "queue": "default", "idempotency_key": "k"}
        waiter = threading.Thread(target=lambda: made.append(enqueue(second, **given)))
        with pytest.raises(RuntimeError), first.transaction():
            enqueue(first, **given)
            waiter.start()
            waiting = "select 1 as yes from pg_stat_activity where application_name like '%second%' and wait_event_type = 'Lock'"
            eventually(lambda: look.value(waiting), what="the second request waits")
            raise RuntimeError("rolled back")
        waiter.join(30)
        assert len(made) == 1 and not made[0].existing
        assert count(look) == 1


def test_a_key_held_by_a_writer_that_rolls_back_still_makes_the_job_in_a_file(sqlite_store: Store) -> None:
    """Q28 on SQLite: the second request waits for the file; what was rolled back leaves no trace."""
    made: list[Any] = []
    with sqlite_store.connect("first") as first, sqlite_store.connect("second") as second:
        given: dict[str, Any] = {"task_name": "work", "queue": "default", "idempotency_key": "k"}
        asked = threading.Event()

        def ask() -> None:
            asked.set()
            made.append(enqueue(second, **given))

        waiter = threading.Thread(target=ask)
        with pytest.raises(RuntimeError), first.transaction():
            enqueue(first, **given)
            waiter.start()
            assert asked.wait(30) and not made
            raise RuntimeError("rolled back")
        waiter.join(30)
        assert len(made) == 1 and not made[0].existing
        assert count(first) == 1


def test_a_full_queue_takes_no_more_and_says_so(db: Db) -> None:
    config.configure(backlog_limit=3)
    given: dict[str, Any] = {"task_name": "work", "queue": "default"}
    first = enqueue(db, **given, idempotency_key="k")
    enqueue(db, **given, run_after=FUTURE)
    with pytest.raises(BacklogFull, match=r"queue default is full: 2 jobs wait, the limit is 3 and 2 more"):
        enqueue_many(db, **given, args_list=[{}, {}])
    assert count(db) == 2, "all or none"
    enqueue_many(db, **given, args_list=[{}])
    with pytest.raises(BacklogFull, match="the limit is 3"):
        enqueue(db, **given)
    assert count(db) == 3
    assert enqueue(db, **given, idempotency_key="k").id == first.id, "a repeated request adds nothing"
    with pytest.raises(Conflict):
        enqueue(db, **given, args={"a": 1}, idempotency_key="k")
    enqueue(db, **given, project="p2")
    enqueue(db, task_name="work", queue="other")
    assert take(db, lane(), n=1)
    enqueue(db, **given)


def test_a_large_limit_is_not_counted_at_every_insert_and_yet_holds(pg_store: Store) -> None:
    limit = 2 * backlog.EXACT
    config.configure(backlog_limit=limit)
    with pg_store.connect("host") as db:
        add_many(db, limit - 40)
        asked: list[str] = []
        ask = db.value

        def value(sql: str, /, **params: Any) -> Any:
            asked.append(sql)
            return ask(sql, **params)

        db.value = value  # type: ignore[method-assign]
        made = 0
        with pytest.raises(BacklogFull):
            for _ in range(limit):
                enqueue(db, task_name="work", queue="default")
                made += 1
        assert made == 40 and backlog.count(db, "default", "", limit) == limit
        assert len(asked) < 41, "some of them were not counted"


def test_concurrent_first_requests_give_one_job(store: Store) -> None:
    """Q28, Q29"""
    made: list[str] = []
    failures: list[BaseException] = []
    gate = threading.Barrier(6)

    def request() -> None:
        try:
            with store.connect("web") as own:
                gate.wait(30)
                made.append(enqueue(own, task_name="work", queue="default", args={}, idempotency_key="k").id)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=request) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures and len(made) == 6 and len(set(made)) == 1
    with store.connect("look") as look:
        assert count(look) == 1


def test_many_are_one_copy_with_their_ids_in_order(db: Db) -> None:
    registry.register_ingest_task("timed", lambda **_: None, budget_s=3, max_attempts=2)
    given = [{"i": i, "tab": "\t\n\\"} for i in range(1000)]
    ids = enqueue_many(db, task_name="timed", queue="default", args_list=given, priority=5, project="p")
    assert len(set(ids)) == 1000
    row = job(db, int(ids[617]))
    assert (row["args"], row["priority"], row["max_attempts"], row["budget_s"]) == (given[617], 5, 2, 3)
    single = enqueue(db, task_name="timed", queue="default", project="p", priority=6)
    assert single.id not in ids
    claimed = take(db, lane(project="p"), n=3)
    assert [str(one.id) for one in claimed] == ids[:3]
    assert enqueue_many(db, task_name="timed", queue="default", args_list=[]) == []


def test_one_notification_per_statement_and_queue_however_many_rows(pg_store: Store) -> None:
    """Q17: a notification per row would serialise commits."""
    with pg_store.connect("listener") as listener, pg_store.connect("host") as host:
        listener.raw.execute("listen ingest_job_ready")
        listener.raw.execute("listen node_job_ready")
        enqueue_many(host, task_name="work", queue="default", args_list=[{"i": i} for i in range(500)])
        enqueue(host, task_name="work", queue="other")
        run = add_run(host)
        insert_node_jobs(host, [{"run_id": run, "node_id": f"n{i}", "node": "work", "queue": "cpu"} for i in range(50)])
        seen = [(note.channel, note.payload) for note in listener.raw.notifies(timeout=10, stop_after=3)]
        assert seen == [("ingest_job_ready", "default"), ("ingest_job_ready", "other"), ("node_job_ready", "cpu")]
        assert list(listener.raw.notifies(timeout=0.2)) == []
        triggers = host.all(
            "select tgname, tgtype & 1 as per_row from pg_trigger where tgname like '%ready' and not tgisinternal"
        )
        assert len(triggers) == 2 and all(row["per_row"] == 0 for row in triggers)


def test_a_notification_commits_with_its_insert(pg_store: Store) -> None:
    with pg_store.connect("listener") as listener, pg_store.connect("host") as host:
        listener.raw.execute("listen ingest_job_ready")
        with pytest.raises(RuntimeError), host.transaction():
            enqueue(host, task_name="work", queue="default")
            raise RuntimeError("no")
        assert list(listener.raw.notifies(timeout=0.2)) == []


def test_nodes_enter_once_and_never_under_a_run_that_is_over(db: Db) -> None:
    """Q31: expansion is guarded."""
    live, over = add_run(db), add_run(db, status="cancelled")
    rows = [
        {
            "run_id": live,
            "node_id": "a",
            "node": "work",
            "queue": "gpu",
            "required_model": "m",
            "only_boxes": ["y", "x"],
        },
        {"run_id": live, "node_id": "b", "node": "work", "queue": "cpu", "inputs": '{"x":1}', "priority": 3},
        {"run_id": live, "node_id": "c", "node": "work", "queue": "cpu", "status": "completed", "output": '{"k":2}'},
        {"run_id": over, "node_id": "a", "node": "work", "queue": "cpu"},
    ]
    assert insert_node_jobs(db, rows) == 3
    assert insert_node_jobs(db, rows) == 0
    made = {row["node_id"]: row for row in db.all("select * from workflow_node_jobs")}
    assert set(made) == {"a", "b", "c"}
    assert made["a"]["only_boxes"] == ["x", "y"] and made["a"]["required_model"] == "m"
    assert made["b"]["inputs"] == {"x": 1} and made["b"]["priority"] == 3
    assert made["c"]["output"] == {"k": 2} and made["c"]["finished_at"] is not None
    assert [one.node_id for one in take(db, lane("gpu", box="x"), models=("m",))] == ["a"]
