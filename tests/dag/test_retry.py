"""Retry of a run: a new run that takes over what had finished; on both stores."""

from __future__ import annotations

import threading

import pytest

import engine
from engine.dag.retry import retry_run
from engine.dag.runs import submit_run
from engine.errors import Conflict, NotFound
from engine.queue.ends import end_run
from engine.store import Db, Store
from tests.dag.steps import DIAMOND, Hands, chain, drain_all, node, run_row, statuses


def failed_diamond(db: Db) -> int:
    """a completed, b failed, c completed, d never began."""
    hands = Hands(db)
    run_id = submit_run(db, DIAMOND, {"k": 1}, priority=7, project="")
    hands.run_all({"from": "a"})
    drain_all(db)
    jobs = hands.take_named()
    hands.end(jobs["c"], output={"from": "c"})
    hands.end(jobs["b"], error="boom")
    drain_all(db)
    assert run_row(db, run_id)["status"] == "failed"
    return run_id


def test_only_what_had_not_finished_runs_again(db: Db) -> None:
    old = failed_diamond(db)
    done = retry_run(db, old, "ana")
    assert done.id is not None
    new = int(done.id)
    before, after = run_row(db, old), run_row(db, new)
    for same in ("workflow_name", "graph", "context", "priority", "project"):
        assert after[same] == before[same]
    assert (after["retry_of"], after["status"], before["status"]) == (old, "running", "failed")
    assert statuses(db, new) == {"a": "completed", "c": "completed", "b": "queued"}
    assert Hands(db).run_all({"from": "b"}) == {"b"}
    drain_all(db)
    assert Hands(db).run_all() == {"d"}
    drain_all(db)
    row = run_row(db, new)
    assert row["status"] == "completed" and row["created_at"] <= row["started_at"] <= row["finished_at"]
    assert db.value("select output from workflow_node_jobs where run_id = {r} and node_id = 'a'", r=new) == {
        "from": "a"
    }
    assert statuses(db, old) == {"a": "completed", "b": "failed", "c": "completed"}
    event = db.one("select requested_by, detail from control_events where action = 'retry_run'")
    assert event is not None
    assert (event["requested_by"], event["detail"]["new_id"]) == ("ana", str(new))


def test_skipped_nodes_stay_skipped_and_a_cancelled_run_can_be_retried(db: Db) -> None:
    skip = {"skip_if": {"$eq": [1, 1]}}
    old = submit_run(db, chain(node("a", **skip), node("b", depends_on=["a"])))
    end_run(db, old, "cancelled", "stop")
    done = retry_run(db, old)
    assert statuses(db, int(done.id or 0)) == {"a": "skipped", "b": "queued"}


def test_runs_that_cannot_be_retried_say_why(store: Store, db: Db) -> None:
    engine.configure(db_url=store.url)
    live = submit_run(db, DIAMOND)
    with pytest.raises(Conflict, match=f"run {live} is queued: only a failed or cancelled run"):
        engine.retry_run(live)
    hands = Hands(db)
    (job,) = hands.take()
    end_run(db, live, "cancelled", "stop")
    with pytest.raises(Conflict, match="1 of its nodes still run"):
        engine.retry_run(live)
    hands.end(job)
    drain_all(db)
    new = engine.retry_run(str(live))
    with pytest.raises(Conflict, match=f"is being retried already, as run {new}"):
        engine.retry_run(live)
    end_run(db, new, "cancelled", "stop")
    assert engine.retry_run(live) not in (new, str(live))
    with pytest.raises(NotFound):
        engine.retry_run(10**6)
    assert db.value("select count(*) from workflow_runs") == 3
    assert db.value("select count(*) from control_events where action = 'retry_run'") == 5


def test_two_who_retry_at_once_start_one_run(store: Store, db: Db) -> None:
    old = failed_diamond(db)
    begin = threading.Barrier(2)
    made: list[str | None] = []

    def retry() -> None:
        with store.connect("someone") as mine:
            begin.wait(10)
            made.append(retry_run(mine, old).id)

    threads = [threading.Thread(target=retry) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(made) == 2 and made.count(None) == 1
    assert db.value("select count(*) from workflow_runs where retry_of = {old}", old=old) == 1


def test_a_retry_can_be_retried(db: Db) -> None:
    old = failed_diamond(db)
    first = int(retry_run(db, old).id or 0)
    hands = Hands(db)
    hands.end(*hands.take(), error="again")
    drain_all(db)
    second = int(retry_run(db, first).id or 0)
    assert run_row(db, second)["retry_of"] == first
    assert statuses(db, second) == {"a": "completed", "c": "completed", "b": "queued"}
