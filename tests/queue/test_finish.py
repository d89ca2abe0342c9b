"""The end of attempts: outcomes, history, outbox, effects, the next claim; and what stale writers cannot do."""

from __future__ import annotations

import threading
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from engine.errors import BadInput, PayloadError, StaleClaim
from engine.queue.finish import Outcome, complete_job, finish
from engine.queue.operate import cancel_job
from engine.queue.requeue import requeue
from engine.store import Db, Store
from tests.queue.conftest import add_ingest, add_node, add_run, ask, events_of, job, kinds, lane, take


def effects(db: Db) -> list[tuple[int, int]]:
    return [(row["job_id"], row["fencing_token"]) for row in db.all("select * from executions order by job_id")]


def outbox(db: Db) -> list[tuple[int, str, str]]:
    rows = db.all("select * from workflow_dispatch_events order by id")
    return [(row["run_id"], row["node_id"], row["kind"]) for row in rows]


def test_finish_and_claim_share_one_commit(db: Db) -> None:
    first, second, third = (add_ingest(db) for _ in range(3))
    worker = lane()
    one, two = take(db, worker, n=2)
    answer = finish(
        db,
        worker,
        [
            Outcome(two.id, two.fencing_token, "failed", error="boom", exit_code=3, elapsed_s=0.5),
            Outcome(one.id, one.fencing_token, "completed", '{"y":[1,"é"]}', elapsed_s=1.5),
        ],
        next=ask(worker, n=2),
    )
    assert answer.done == {first, second} and answer.stale == set()
    assert [claimed.id for claimed in answer.claimed] == [third]
    done, failed = job(db, first), job(db, second)
    assert (done["status"], done["result"], done["error"]) == ("completed", {"y": [1, "é"]}, None)
    assert done["finished_at"] is not None and done["claimed_box"] == "b1"
    assert (failed["status"], failed["error"], failed["failures"]) == ("failed", "boom", 1)
    (event,) = events_of(db, first)
    assert (event["event_type"], event["elapsed_s"], event["box"], event["attempt"]) == ("completed", 1.5, "b1", 1)
    (event,) = events_of(db, second)
    assert (event["event_type"], event["exit_code"], event["detail"]["error"]) == ("failed", 3, "boom")
    assert effects(db) == [(first, 1)]


def test_a_node_writes_its_outbox_row_with_its_end(db: Db) -> None:
    run = add_run(db)
    for node in ("a", "b", "c"):
        add_node(db, run, node)
    worker = lane("cpu")
    a, b, c = take(db, worker, n=3)
    answer = finish(
        db,
        worker,
        [
            Outcome(a.id, a.fencing_token, "completed", '{"rows":3}'),
            Outcome(b.id, b.fencing_token, "failed", error="no"),
            Outcome(c.id, c.fencing_token, "cancelled"),
        ],
    )
    assert answer.done == {a.id, b.id, c.id}
    assert outbox(db) == [(run, "a", "completed"), (run, "b", "failed"), (run, "c", "failed")]
    assert job(db, a.id)["output"] == {"rows": 3}
    assert job(db, c.id)["error"] == "cancelled"
    assert effects(db) == []


def test_a_failure_with_attempts_left_waits_and_comes_again(db: Db) -> None:
    job_id = add_ingest(db, max_attempts=2, priority=7)
    worker = lane()
    (first,) = take(db, worker)
    finish(db, worker, [Outcome(job_id, first.fencing_token, "failed", error="flaky")])
    row = job(db, job_id)
    assert (row["status"], row["failures"], row["priority"], bool(row["is_priority"])) == ("queued", 1, 7, False)
    wait = (row["run_after"] - db.now()).total_seconds()
    assert 0 < wait <= 1.5
    assert kinds(db, job_id) == [("requeued", "retry")]
    db.run("update ingest_jobs set run_after = {now}")
    (second,) = take(db, worker)
    assert (second.attempt, second.fencing_token, second.failures) == (2, 2, 1)
    finish(db, worker, [Outcome(job_id, second.fencing_token, "failed", error="again")])
    assert job(db, job_id)["status"] == "failed"
    assert kinds(db, job_id) == [("requeued", "retry"), ("failed", None)]


def test_a_failure_that_no_attempt_can_mend_is_the_last(db: Db) -> None:
    """Q30: the attempts that are left are not tried; a neighbour's failure in the same commit waits for its own."""
    ids = [add_ingest(db, max_attempts=5) for _ in range(2)]
    worker = lane()
    first, second = take(db, worker, n=2)
    finish(
        db,
        worker,
        [
            Outcome(first.id, first.fencing_token, "failed", error="task 'x' is not registered", final=True),
            Outcome(second.id, second.fencing_token, "failed", error="flaky"),
        ],
    )
    ends = [job(db, each) for each in ids]
    assert [(row["status"], row["failures"]) for row in ends] == [("failed", 1), ("queued", 1)]
    assert ends[0]["error"] == "task 'x' is not registered" and ends[0]["finished_at"] is not None
    assert kinds(db, ids[0]) == [("failed", None)]


def test_a_late_completion_of_an_old_attempt_changes_nothing(db: Db) -> None:
    """Q2: the write of an old attempt never lands on the new one; an event says so."""
    job_id = add_ingest(db)
    old, new = lane(box="b1"), lane(box="b2")
    (first,) = take(db, old)
    requeue(db, old, {job_id: first.fencing_token}, "operator_stop")
    (second,) = take(db, new)
    for status in ("completed", "failed", "cancelled"):
        answer = finish(db, old, [Outcome(job_id, first.fencing_token, status, '{"late":1}', error="late")])
        assert answer.stale == {job_id} and answer.done == set()
    row = job(db, job_id)
    assert (row["status"], row["claimed_by"], row["result"], row["error"]) == ("running", new.owner, None, None)
    assert kinds(db, job_id) == [("requeued", "operator_stop"), *[("stale_write", None)] * 3]
    assert events_of(db, job_id)[-1]["fencing_token"] == first.fencing_token
    assert effects(db) == []
    finish(db, new, [Outcome(job_id, second.fencing_token, "completed", '{"right":1}')])
    assert job(db, job_id)["result"] == {"right": 1} and effects(db) == [(job_id, 2)]


def test_a_stale_neighbour_does_not_stop_the_others(db: Db) -> None:
    """Q2, Q21: one conflicting row of a batch concerns that row alone."""
    mine, other = add_ingest(db), add_ingest(db)
    worker = lane()
    claimed = {one.id: one.fencing_token for one in take(db, worker, n=2)}
    answer = finish(
        db,
        worker,
        [
            Outcome(mine, claimed[mine], "completed", "{}"),
            Outcome(other, claimed[other] - 1, "completed", "{}"),
            Outcome(10**15, 1, "completed", "{}"),
        ],
    )
    assert answer.done == {mine} and answer.stale == {other, 10**15}
    assert job(db, other)["status"] == "running"


def test_the_same_outcome_sent_twice_is_done_not_stale(db: Db) -> None:
    """After a connection that died at its commit a lane cannot know; sending again must be harmless."""
    job_id = add_ingest(db)
    worker = lane()
    (one,) = take(db, worker)
    outcome = Outcome(job_id, one.fencing_token, "completed", "{}")
    assert finish(db, worker, [outcome]).done == {job_id}
    assert finish(db, worker, [outcome]).done == {job_id}
    assert kinds(db, job_id) == [("completed", None)] and effects(db) == [(job_id, 1)]


@pytest.mark.parametrize("bad", ['{"x":' + '"' + "y" * 1_100_000 + '"}', '{"x":"\\u0000"}', '{"x":"\ud800"}'])
def test_a_result_that_cannot_be_stored_fails_its_own_job_only(db: Db, bad: str) -> None:
    good, wrong = add_ingest(db), add_ingest(db)
    worker = lane()
    tokens = {one.id: one.fencing_token for one in take(db, worker, n=2)}
    finish(
        db,
        worker,
        [Outcome(good, tokens[good], "completed", "{}"), Outcome(wrong, tokens[wrong], "completed", bad)],
    )
    assert job(db, good)["status"] == "completed"
    row = job(db, wrong)
    assert row["status"] == "failed" and "result" in row["error"]


def test_a_result_that_is_not_json_fails_its_own_job_only(pg_store: Store) -> None:
    with pg_store.connect("test", claims=True) as db:
        good, wrong = add_ingest(db), add_ingest(db)
        worker = lane()
        tokens = {one.id: one.fencing_token for one in take(db, worker, n=2)}
        third = add_ingest(db)
        answer = finish(
            db,
            worker,
            [Outcome(good, tokens[good], "completed", "{}"), Outcome(wrong, tokens[wrong], "completed", "{nonsense")],
            next=ask(worker, n=2),
        )
        assert job(db, good)["status"] == "completed" and job(db, wrong)["status"] == "failed"
        assert [one.id for one in answer.claimed] == [third]


def test_error_texts_are_cut_and_hold_no_nul(db: Db) -> None:
    job_id = add_ingest(db)
    worker = lane()
    (one,) = take(db, worker)
    finish(db, worker, [Outcome(job_id, one.fencing_token, "failed", error="a\x00b" + "x" * 20_000)])
    error = job(db, job_id)["error"]
    assert len(error) == 8000 and error.startswith("a\ufffdb")


def test_a_cancel_that_was_asked_for_wins_over_the_completion(db: Db) -> None:
    """SPEC 8: the completion re-checks under the row lock."""
    for status in ("completed", "failed"):
        job_id = add_ingest(db, max_attempts=5)
        worker = lane()
        (one,) = take(db, worker)
        assert cancel_job(db, job_id).changed == 1
        assert finish(db, worker, [Outcome(job_id, one.fencing_token, status, "{}", error=None)]).done == {job_id}
        row = job(db, job_id)
        assert (row["status"], row["result"]) == ("cancelled", None)
        assert kinds(db, job_id) == [("cancelled", None)]
    assert effects(db) == []


def test_a_task_commits_its_own_rows_and_its_completion_together(store: Store) -> None:
    with store.connect("setup") as db, store.connect("task") as own:
        db.run("create table mine (x integer)")
        job_id = add_ingest(db)
        worker = lane()
        (one,) = take(db, worker)
        with own.transaction():
            own.run("insert into mine values (1)")
            complete_job(own.raw, one, {"ok": True})
        assert db.value("select count(*) as n from mine") == 1
        assert job(db, job_id)["status"] == "completed" and job(db, job_id)["result"] == {"ok": True}
        assert effects(db) == [(job_id, 1)] and kinds(db, job_id) == [("completed", None)]
        assert finish(db, worker, [Outcome(job_id, one.fencing_token, "completed", "{}")]).done == {job_id}


def test_a_lost_claim_rolls_the_callers_transaction_back(store: Store) -> None:
    """Q2: the caller's own rows go with the stale completion."""
    with store.connect("setup") as db, store.connect("task") as own:
        db.run("create table mine (x integer)")
        job_id = add_ingest(db)
        worker = lane()
        (one,) = take(db, worker)
        requeue(db, worker, {job_id: one.fencing_token}, "operator_stop")
        take(db, lane(box="b2"))
        with pytest.raises(StaleClaim), own.transaction():
            own.run("insert into mine values (1)")
            complete_job(own.raw, one, {})
        assert db.value("select count(*) as n from mine") == 0
        assert job(db, job_id)["status"] == "running" and effects(db) == []
        with pytest.raises(PayloadError):
            complete_job(own.raw, one, {"x": object()})


@pytest.mark.parametrize("result", [[], "done", 1, False, [("ok", True)]])
def test_a_task_completes_with_a_mapping_or_nothing(store: Store, result: Any) -> None:
    """As for a value that a task returns; what reads results later counts on it."""
    with store.connect("task") as own:
        job_id = add_ingest(own)
        (one,) = take(own, lane())
        with pytest.raises(PayloadError, match=f"is a {type(result).__name__}; a dict or None"):
            complete_job(own.raw, one, result)
        assert job(own, job_id)["status"] == "running"
        complete_job(own, one, MappingProxyType({"ok": True}))
        assert job(own, job_id)["result"] == {"ok": True}


@pytest.mark.parametrize("wrong", [None, "7", 7, {"id": 7}, SimpleNamespace(id=7, fencing_token=1, family="ingest")])
def test_completing_what_is_no_job_is_refused_in_our_words(sqlite_store: Store, wrong: Any) -> None:
    with sqlite_store.connect("task") as own:
        with pytest.raises(BadInput, match=f"ctx.job.*not a {type(wrong).__name__}"):
            complete_job(own.raw, wrong, {})


def test_lanes_that_finish_and_claim_together_never_deadlock_or_share(store: Store) -> None:
    total = 240
    with store.connect("setup") as db:
        for _ in range(total):
            add_ingest(db)
    seen: list[int] = []
    failures: list[BaseException] = []

    def work(box: str) -> None:
        try:
            with store.connect("lane", claims=True) as own:
                worker = lane(box=box)
                claimed = take(own, worker, n=5)
                while claimed:
                    seen.extend(one.id for one in claimed)
                    done = [Outcome(one.id, one.fencing_token, "completed", "{}") for one in claimed]
                    answer = finish(own, worker, done, next=ask(worker, n=5))
                    assert answer.stale == set()
                    claimed = answer.claimed
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(f"b{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert len(seen) == len(set(seen)) == total
    with store.connect("check") as db:
        assert len(effects(db)) == total
        assert db.value("select count(*) as n from job_events where event_type = 'completed'") == total


def test_a_fence_given_a_second_time_after_a_server_crash_is_told_apart_by_its_owner(db: Db) -> None:
    """Q2: a claim that the crash forgot was made again by another lane, with the same number."""
    add_ingest(db)
    first, second = lane(), lane(box="b2")
    (lost,) = take(db, first)
    db.run("update ingest_jobs set status = 'queued', claimed_by = null, fencing_token = 0, attempt = 0")
    (again,) = take(db, second)
    assert again.fencing_token == lost.fencing_token
    outcome = Outcome(lost.id, lost.fencing_token, "completed", '{"from":"first"}')
    assert finish(db, first, [outcome]).stale == {lost.id}
    assert effects(db) == [] and kinds(db, lost.id) == [("stale_write", None)]
    assert finish(db, second, [Outcome(again.id, again.fencing_token, "completed", "{}")]).done == {again.id}
    assert effects(db) == [(again.id, again.fencing_token)]


def test_only_a_claim_on_its_own_does_not_wait_for_the_disk(pg_store: Store) -> None:
    """What holds results is flushed; the setting does not outlive the claim's statement."""
    with pg_store.connect("test", claims=True) as db:
        add_ingest(db)
        db.run("set synchronous_commit = on")
        worker = lane()
        (claimed,) = take(db, worker)
        assert db.value("show synchronous_commit") == "on"
        finish(db, worker, [Outcome(claimed.id, claimed.fencing_token, "completed", "{}")], next=ask(worker))
        assert db.value("show synchronous_commit") == "on"
    from engine.queue.claim_sql import claim_statement
    from engine.queue.family import FAMILIES
    from engine.queue.finish_sql import complete_statement, finish_statement

    for family in FAMILIES:
        assert "synchronous_commit" in claim_statement(family, False, False, False, 8)
        for fused in (finish_statement, complete_statement):
            assert "synchronous_commit" not in fused(family, (False, False, False, 8, False))
