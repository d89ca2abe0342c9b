"""What a lane does to the rows that it holds: all fenced, all in one look."""

from __future__ import annotations

import pytest

from engine.errors import ConfigError
from engine.queue.lease import begin, check_lease, flags, owned, progress, renew
from engine.queue.operate import cancel_job, kill_job
from engine.queue.requeue import requeue
from engine.queue.workers import beat
from engine.store import Db, Store
from tests.queue.conftest import PAST, add_ingest, add_node, add_run, job, lane, take


@pytest.mark.parametrize(("lease", "renewal"), [(30.0, 10.1), (10.0, 10.0), (5.0, 30.0), (0.0, 1.0), (30.0, 0.0)])
def test_a_renewal_that_is_too_slow_for_its_lease_is_refused(lease: float, renewal: float) -> None:
    """Q5: live jobs would run twice."""
    with pytest.raises(ConfigError, match="lease"):
        check_lease(lease, renewal)


def test_a_renewal_of_a_third_of_the_lease_is_accepted() -> None:
    check_lease(30.0, 10.0)
    check_lease(600.0, 10.0)


def test_renew_extends_what_is_held_and_names_what_is_lost(db: Db) -> None:
    jobs = [add_ingest(db) for _ in range(4)]
    worker = lane()
    held = {one.id: one.fencing_token for one in take(db, worker, n=4)}
    db.run("update ingest_jobs set lease_expires_at = {past}", past=PAST)
    requeue(db, worker, {jobs[0]: held[jobs[0]]}, "drain")
    other = lane(box="b2")
    take(db, other)
    cancel_job(db, jobs[2])
    kill_job(db, jobs[3])
    answer = renew(db, worker, held | {10**15: 1}, 600)
    assert answer.renewed == set(jobs[1:]) and answer.lost == {jobs[0], 10**15}
    assert (answer.cancel, answer.kill) == ({jobs[2]}, {jobs[3]})
    assert flags(db, worker, held) == ({jobs[2]}, {jobs[3]}, {jobs[0]})
    lease = (job(db, jobs[1])["lease_expires_at"] - db.now()).total_seconds()
    assert 590 < lease <= 600
    assert job(db, jobs[0])["claimed_by"] == other.owner


def test_a_lapsed_lease_that_nobody_took_is_still_owned(db: Db) -> None:
    job_id = add_ingest(db)
    worker = lane()
    (one,) = take(db, worker)
    db.run("update ingest_jobs set lease_expires_at = {past}", past=PAST)
    assert renew(db, worker, {job_id: one.fencing_token}, 600).renewed == {job_id}


def test_a_row_that_somebody_has_locked_is_neither_renewed_nor_lost(pg_store: Store) -> None:
    """A finish in progress must not look like a lost claim: the slot would be killed."""
    with pg_store.connect("lane") as db, pg_store.connect("other") as other:
        job_id = add_ingest(db)
        worker = lane()
        (one,) = take(db, worker)
        with other.transaction():
            other.run("update ingest_jobs set progress_pct = 1 where id = {id}", id=job_id)
            answer = renew(db, worker, {job_id: one.fencing_token}, 600)
        assert answer.renewed == set() and answer.lost == set()
        assert renew(db, worker, {job_id: one.fencing_token}, 600).renewed == {job_id}


def test_two_lives_of_one_lane_name_are_told_apart(db: Db) -> None:
    """Q7: the incarnation is part of the owner, the fence of every write."""
    job_id = add_ingest(db)
    first, second = lane(), lane()
    assert first.owner != second.owner
    (one,) = take(db, first)
    assert renew(db, second, {job_id: one.fencing_token}, 600).lost == {job_id}
    assert begin(db, second, {job_id: one.fencing_token}) == {job_id}
    assert owned(db, second) == {} and owned(db, first) == {job_id: one.fencing_token}


def test_late_progress_of_an_old_attempt_lands_nowhere(db: Db) -> None:
    """Q2"""
    job_id = add_ingest(db)
    old = lane()
    (one,) = take(db, old)
    assert progress(db, old, [(job_id, one.fencing_token, 40, "step 4\x00")]) == set()
    row = job(db, job_id)
    assert (row["progress_pct"], row["progress_text"]) == (40, "step 4\ufffd")
    requeue(db, old, {job_id: one.fencing_token}, "drain")
    new = lane()
    (two,) = take(db, new)
    assert progress(db, old, [(job_id, one.fencing_token, 90, "late")]) == {job_id}
    assert job(db, job_id)["progress_pct"] is None
    assert progress(db, old, [(job_id, two.fencing_token, 90, "right number, wrong owner")]) == {job_id}
    assert progress(db, new, [(job_id, two.fencing_token, 250, None)]) == set()
    assert job(db, job_id)["progress_pct"] == 100


def test_begin_sets_the_start_of_what_was_claimed_ahead(db: Db) -> None:
    run = add_run(db)
    a, b = add_node(db, run, "a"), add_node(db, run, "b")
    worker = lane("cpu")
    held = {one.id: one.fencing_token for one in take(db, worker, n=2, begin=False)}
    assert begin(db, worker, {a: held[a], b: held[b] + 1}) == {b}
    assert job(db, a)["started_at"] is not None and job(db, b)["started_at"] is None


def test_a_heartbeat_keeps_the_last_exit_until_another(db: Db) -> None:
    worker = lane()
    beat(db, worker, state="starting", slots=2, busy=0, version="1")
    beat(db, worker, state="running", slots=2, busy=1, last_exit_code=77, last_exit_reason="lost", version="1")
    db.run("update worker_heartbeats set flagged_dead_at = {now}")
    beat(db, worker, state="running", slots=2, busy=0, models_known=("m",), current_model="m", version="1")
    (row,) = db.all("select * from worker_heartbeats")
    assert (row["last_exit_code"], row["last_exit_reason"], row["flagged_dead_at"]) == (77, "lost", None)
    assert (row["models_known"], row["current_model"], row["busy"], row["incarnation"]) == (
        ["m"],
        "m",
        0,
        worker.incarnation,
    )
