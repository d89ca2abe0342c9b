"""Work that comes back: to the front, up to its caps; guarded against everything that happened meanwhile."""

from __future__ import annotations

import threading

import pytest

from engine import config
from engine.queue.ends import end_run
from engine.queue.finish import Outcome, finish
from engine.queue.lease import renew
from engine.queue.operate import cancel_job
from engine.queue.requeue import hand_back, requeue, requeue_lost
from engine.queue.workers import free_predecessors
from engine.store import Db, Store
from engine.store.locks import Presence
from tests.queue.conftest import PAST, add_ingest, add_node, add_run, events_of, job, kinds, lane, take
from tests.support import eventually


@pytest.mark.parametrize("cause", ["executor_died", "trip", "lane_lost", "operator_stop", "drain"])
def test_work_that_comes_back_goes_to_the_front(db: Db, cause: str) -> None:
    job_id = add_ingest(db, priority=500)
    add_ingest(db, priority=1)
    worker = lane()
    db.run("update ingest_jobs set is_priority = {true} where id = {id}", id=job_id)
    (one,) = take(db, worker)
    db.run("update ingest_jobs set is_priority = {false} where id = {id}", id=job_id)
    answer = requeue(db, worker, {job_id: one.fencing_token}, cause, exit_code=79, detail={"reason": "why"})
    assert answer.queued == {job_id}
    row = job(db, job_id)
    assert (row["status"], row["priority"], bool(row["is_priority"])) == ("queued", 10, True)
    assert row["claimed_by"] is None and row["lease_expires_at"] is None and row["started_at"] is None
    spent = {"executor_died": (1, 0), "trip": (1, 0), "lane_lost": (0, 1)}.get(cause, (0, 0))
    assert (row["watchdog_retries"], row["losses"]) == spent
    (event,) = events_of(db, job_id)
    assert (event["event_type"], event["cause"], event["exit_code"], event["box"]) == ("requeued", cause, 79, "b1")
    assert event["detail"]["reason"] == "why" and event["fencing_token"] == one.fencing_token
    assert [got.id for got in take(db, lane(box="b2"))] == [job_id]


def test_a_more_urgent_priority_is_kept(db: Db) -> None:
    job_id = add_ingest(db, priority=3)
    worker = lane()
    (one,) = take(db, worker)
    requeue(db, worker, {job_id: one.fencing_token}, "drain")
    assert job(db, job_id)["priority"] == 3


@pytest.mark.parametrize(("cause", "cap"), [("executor_died", 3), ("trip", 3), ("lane_lost", 5)])
def test_a_poison_job_fails_at_the_cap_with_its_last_reason(db: Db, cause: str, cap: int) -> None:
    config.configure(shun_seconds=0)
    run = add_run(db)
    job_id = add_node(db, run, "a")
    for attempt in range(1, cap + 2):
        worker = lane("cpu", box=f"b{attempt}")
        (one,) = take(db, worker)
        answer = requeue(
            db, worker, {job_id: one.fencing_token}, cause, exit_code=-9, detail={"reason": f"no {attempt}"}
        )
        assert bool(answer.queued) == (attempt <= cap)
    row = job(db, job_id)
    assert row["status"] == "failed" and f"no {cap + 1}" in row["error"] and row["finished_at"] is not None
    assert [kind for kind, _ in kinds(db, job_id)] == ["requeued"] * cap + ["failed"]
    (event,) = db.all("select * from workflow_dispatch_events")
    assert (event["run_id"], event["node_id"], event["kind"]) == (run, "a", "failed")


def test_under_a_run_that_is_over_it_is_cancelled_instead(db: Db) -> None:
    run = add_run(db)
    job_id = add_node(db, run, "a")
    worker = lane("cpu")
    (one,) = take(db, worker)
    db.run("update workflow_runs set status = 'failed'")
    assert requeue(db, worker, {job_id: one.fencing_token}, "executor_died").cancelled == {job_id}
    assert job(db, job_id)["status"] == "cancelled" and kinds(db, job_id)[-1][0] == "cancelled"


def test_a_job_asked_to_stop_is_cancelled_instead(db: Db) -> None:
    job_id = add_ingest(db)
    worker = lane()
    (one,) = take(db, worker)
    cancel_job(db, job_id)
    assert requeue(db, worker, {job_id: one.fencing_token}, "operator_stop").cancelled == {job_id}
    assert job(db, job_id)["status"] == "cancelled"


@pytest.mark.parametrize("cause", ["lease_lapsed", "lane_lost"])
def test_a_rescue_that_read_a_job_before_it_completed_leaves_it_completed(db: Db, cause: str) -> None:
    """Q1: one guarded decision under the row lock: status, fence, owner, unchanged lease."""
    job_id = add_ingest(db)
    worker = lane()
    (one,) = take(db, worker)
    db.run("update ingest_jobs set lease_expires_at = {past}", past=PAST)
    seen = db.all("select id, fencing_token, claimed_by, lease_expires_at from ingest_jobs")
    finish(db, worker, [Outcome(job_id, one.fencing_token, "completed", "{}")])
    assert requeue_lost(db, worker.family, seen, cause).stale == {job_id}
    assert job(db, job_id)["status"] == "completed" and kinds(db, job_id) == [("completed", None)]


def test_a_rescue_that_read_a_lease_before_its_renewal_leaves_it_running(db: Db) -> None:
    """Q1, Q4: only a lease that is still lapsed and unchanged is rescued."""
    job_id = add_ingest(db)
    worker = lane()
    (one,) = take(db, worker)
    db.run("update ingest_jobs set lease_expires_at = {past}", past=PAST)
    seen = db.all("select id, fencing_token, claimed_by, lease_expires_at from ingest_jobs")
    renew(db, worker, {job_id: one.fencing_token}, 600)
    assert requeue_lost(db, worker.family, seen, "lease_lapsed").stale == {job_id}
    assert job(db, job_id)["status"] == "running"
    alive = db.all("select id, fencing_token, claimed_by, lease_expires_at from ingest_jobs")
    assert requeue_lost(db, worker.family, alive, "lease_lapsed").stale == {job_id}
    db.run("update ingest_jobs set lease_expires_at = {past}", past=PAST)
    lapsed = db.all("select id, fencing_token, claimed_by, lease_expires_at from ingest_jobs")
    assert requeue_lost(db, worker.family, lapsed, "lease_lapsed").queued == {job_id}
    assert job(db, job_id)["losses"] == 1
    assert take(db, lane(box="b1")) == [] and len(take(db, lane(box="b2"))) == 1


def test_a_rescue_of_an_older_claim_does_not_touch_the_newer(db: Db) -> None:
    """Q1, Q7: the same box and queue, another incarnation and fence."""
    job_id = add_ingest(db)
    first, second = lane(), lane()
    (one,) = take(db, first)
    seen = db.all("select id, fencing_token, claimed_by, lease_expires_at from ingest_jobs")
    requeue(db, first, {job_id: one.fencing_token}, "drain")
    take(db, second)
    assert requeue_lost(db, first.family, seen, "lane_lost").stale == {job_id}
    assert requeue(db, first, {job_id: one.fencing_token + 1}, "drain").stale == {job_id}
    assert job(db, job_id)["claimed_by"] == second.owner and job(db, job_id)["losses"] == 0


def test_handed_back_unbegun_is_as_before(db: Db) -> None:
    job_id = add_ingest(db, priority=40)
    worker = lane()
    (one,) = take(db, worker, begin=False)
    assert hand_back(db, worker, {job_id: one.fencing_token}).queued == {job_id}
    row = job(db, job_id)
    assert (row["status"], row["attempt"], row["priority"], bool(row["is_priority"])) == ("queued", 0, 40, False)
    assert row["fencing_token"] == 1 and row["losses"] == row["watchdog_retries"] == 0
    assert kinds(db, job_id) == [("requeued", "handed_back")]
    (again,) = take(db, worker)
    assert (again.attempt, again.fencing_token) == (1, 2)
    assert hand_back(db, worker, {job_id: again.fencing_token}).stale == {job_id}, "it has begun"


def test_a_restarted_lane_frees_the_rows_of_its_dead_predecessor_and_nobody_elses(store: Store) -> None:
    """Scenario 2, Q7, Q8: incarnations tell lives apart; no heartbeat row is needed."""
    with store.connect("a") as db, store.connect("b", direct=True) as other:
        jobs = [add_ingest(db) for _ in range(3)]
        dead, alive, elsewhere = lane(), lane(), lane(box="b2")
        for worker in (dead, alive, elsewhere):
            take(db, worker)
        mark = Presence(store, alive.incarnation)
        mark.hold(other)
        try:
            reborn = lane()
            assert free_predecessors(store, db, reborn) == 1
            assert [job(db, job_id)["status"] for job_id in jobs] == ["queued", "running", "running"]
            assert [one.id for one in take(db, reborn)] == [jobs[0]], "its own box may take it at once"
        finally:
            mark.release()


def test_an_ended_run_cancels_what_waits_and_asks_what_runs(db: Db) -> None:
    """Q31: transitions are guarded; a run that is over never comes back."""
    run = add_run(db)
    waiting, running = add_node(db, run, "a", priority=200), add_node(db, run, "b")
    worker = lane("cpu")
    (one,) = take(db, worker)
    assert one.id == running
    assert end_run(db, run, "failed", "node x broke")
    assert not end_run(db, run, "cancelled", "too late")
    row = db.one("select * from workflow_runs where id = {id}", id=run)
    assert row is not None
    assert (row["status"], row["error"], row["finished_at"]) == ("failed", "node x broke", None)
    assert job(db, waiting)["status"] == "cancelled" and kinds(db, waiting) == [("cancelled", None)]
    assert job(db, running)["status"] == "running" and job(db, running)["cancel_requested"]
    idle = add_run(db, status="queued")
    assert end_run(db, str(idle), "cancelled", None)
    assert db.value("select finished_at from workflow_runs where id = {id}", id=idle) is not None


def test_ending_a_run_locks_its_jobs_in_the_order_of_their_ids(pg_store: Store) -> None:
    """A finish takes them in that order; another one would deadlock with it, a second of stall and a failed statement."""
    with pg_store.connect("finish") as holder, pg_store.connect("ender") as ender, pg_store.connect("look") as look:
        run = add_run(look)
        first, second = add_node(look, run, "z"), add_node(look, run, "a")  # the index of the run has them reversed
        ending = threading.Thread(target=lambda: end_run(ender, run, "cancelled", None))
        with holder.transaction():
            holder.all("select id from workflow_node_jobs where id = {id} for update", id=first)
            ending.start()
            waits = "select 1 as yes from pg_stat_activity where application_name like '%ender%' and wait_event_type = 'Lock'"
            eventually(lambda: look.value(waits), what="the end of the run waits for the finish")
            holder.all("select id from workflow_node_jobs where id = {id} for update nowait", id=second)
        ending.join(30)
        assert {job(look, first)["status"], job(look, second)["status"]} == {"cancelled"}
