"""Lost work: what proves a death, and what does not. On both stores, with the observer's clock in our hands."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from engine import config
from engine.dag.runs import submit_run
from engine.errors import StoreUnavailable
from engine.orchestrator import lost
from engine.orchestrator.lost import LostWork, _lapsed_rows, _requeue
from engine.orchestrator.sweeps import PartlyDone
from engine.queue.family import NODE
from engine.queue.workers import beat
from engine.store import Db, Store
from engine.store.locks import Presence, present
from tests.dag.steps import Hands, chain, drain_all, node, run_row
from tests.support import eventually


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Lane:
    """A lane as the database sees it: its rows, its session mark, its heartbeat."""

    def __init__(self, store: Store, box: str = "box1", marked: bool = True) -> None:
        self.store = store
        self.db = store.connect("lane")
        self.hands = Hands(self.db, box=box)
        self.mark = Presence(store, self.hands.worker.incarnation)
        if marked:
            self.mark.hold(self.db)

    def beat(self) -> None:
        beat(self.db, self.hands.worker, state="running", slots=1, busy=1)

    def die(self, seen_by: Db) -> None:
        self.mark.release()
        self.db.close()
        eventually(lambda: not present(self.store, seen_by, [self.hands.worker.incarnation]))


class Observer:
    def __init__(self, store: Store, db: Db) -> None:
        self.clock = Clock()
        self.db = db
        self.work = LostWork(store, self.clock)

    def watch(self, seconds: float, step: float = 2.0) -> int:
        """Let that much time pass, looking every ``step`` seconds; how many jobs were given back."""
        count = self.work.lost_lanes(self.db)
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.now = min(until, self.clock.now + step)
            count += self.work.lost_lanes(self.db)
        return count


@pytest.fixture
def lanes(store: Store) -> Iterator[list[Lane]]:
    made: list[Lane] = []
    yield made
    for lane in made:
        lane.mark.release()
        lane.db.close()


@pytest.fixture
def lane(store: Store, lanes: list[Lane]) -> Lane:
    lanes.append(Lane(store))
    return lanes[0]


@pytest.fixture
def observer(store: Store, db: Db) -> Observer:
    return Observer(store, db)


def queue_nodes(db: Db, n: int) -> int:
    return submit_run(db, chain(*(node(f"n{i}") for i in range(n))))


def by_status(db: Db) -> dict[str, int]:
    return {r["status"]: r["n"] for r in db.all("select status, count(*) as n from workflow_node_jobs group by status")}


def age_heartbeats(db: Db, seconds: float) -> None:
    db.run("update worker_heartbeats set last_seen = {before[seconds]}", seconds=seconds)


def test_the_jobs_of_a_killed_lane_are_queued_again_without_its_heartbeat_row(
    db: Db, lane: Lane, observer: Observer
) -> None:
    """Q8: recovery never needs the worker's row; here there is none."""
    queue_nodes(db, 3)
    lane.hands.take(2)
    assert observer.watch(30) == 0
    lane.die(db)
    assert observer.watch(2.5, step=0.5) == 0  # a blip is no death
    assert observer.watch(1.0, step=0.5) == 2
    assert by_status(db) == {"queued": 3}
    row = db.one("select * from workflow_node_jobs where is_priority = {true} limit 1")
    assert row is not None
    assert (row["priority"], row["losses"], row["attempt"], row["claimed_by"]) == (10, 1, 1, None)
    events = db.all("select event_type, cause, box, detail from job_events")
    assert events == 2 * [
        {"event_type": "requeued", "cause": "lane_lost", "box": "box1", "detail": {"reason": "its session is gone"}}
    ]
    assert observer.watch(10) == 0


def test_a_session_that_comes_back_in_time_is_no_death(store: Store, db: Db, lane: Lane, observer: Observer) -> None:
    queue_nodes(db, 1)
    lane.hands.take()
    observer.watch(30)
    lane.mark.release()
    observer.watch(2)
    lane.mark.hold(lane.db)
    observer.watch(2)
    lane.mark.release()
    assert observer.watch(2) == 0
    assert observer.watch(2) == 1


def test_a_new_leader_does_not_touch_live_work(store: Store, db: Db, lane: Lane) -> None:
    """Q32: after a restart the observer starts from nothing and gives no verdict for 30 s; live marks never get one."""
    queue_nodes(db, 1)
    lane.hands.take()
    for _ in range(3):
        assert Observer(store, db).watch(120) == 0
    lane.die(db)
    fresh = Observer(store, db)
    assert fresh.watch(29) == 0
    assert fresh.watch(2) == 1


def test_a_time_without_looking_proves_nothing(db: Db, lane: Lane, observer: Observer) -> None:
    queue_nodes(db, 1)
    lane.hands.take()
    observer.watch(40)
    lane.mark.release()
    observer.watch(1)
    observer.clock.now += 60  # the leader was stopped
    assert observer.work.lost_lanes(db) == 0
    lane.mark.hold(lane.db)
    assert observer.watch(10) == 0


def test_a_lane_that_cannot_hold_a_mark_lives_by_its_heartbeat(
    store: Store, db: Db, lanes: list[Lane], observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a transaction pooler: no session to see. It beats, so it lives; when it stops, 42 s decide."""
    monkeypatch.setattr(lost, "is_pooled", lambda db: True)
    observer.work._pooled = True if store.kind == "sqlite" else None
    lanes.append(Lane(store, marked=False))
    queue_nodes(db, 1)
    lanes[0].hands.take()
    for _ in range(10):
        lanes[0].beat()
        assert observer.watch(10) == 0
    assert observer.watch(25) == 0
    age_heartbeats(db, 41)
    assert observer.watch(28, step=4) == 0  # aged by a step of the database's clock only: it moved in our eyes
    age_heartbeats(db, 50)
    assert observer.watch(28, step=4) == 0
    assert observer.watch(4, step=4) == 1


def test_a_sign_of_life_weighs_more_than_a_missing_mark(db: Db, lane: Lane, observer: Observer) -> None:
    queue_nodes(db, 1)
    lane.hands.take()
    observer.watch(30)
    lane.mark.release()
    observer.watch(2)
    lane.beat()
    assert observer.watch(20) == 0
    lane.mark.hold(lane.db)
    observer.watch(2)
    lane.mark.release()  # from here on the mark counts again
    assert observer.watch(4) == 1


def test_a_frozen_lane_loses_its_jobs_although_its_session_stands(db: Db, lane: Lane, observer: Observer) -> None:
    queue_nodes(db, 1)
    (job,) = lane.hands.take()
    lane.beat()
    observer.watch(32)
    age_heartbeats(db, 41.0)
    assert observer.watch(40) == 0
    age_heartbeats(db, 43.0)
    observer.watch(0)
    assert observer.watch(31) == 1
    # What it sends when it wakes up changes nothing.
    assert lane.hands.end(job).stale == {job.id}
    assert by_status(db) == {"queued": 1}


def test_a_dead_lane_with_running_work_is_flagged_once(
    db: Db, lane: Lane, observer: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    queue_nodes(db, 1)
    lane.hands.take()
    lane.beat()
    observer.watch(31)
    assert observer.work.dead_flags(db) == 0
    age_heartbeats(db, 33)
    observer.watch(31)
    assert observer.work.dead_flags(db) == 1
    observer.watch(10)
    assert observer.work.dead_flags(db) == 0
    job_id = db.value("select id from workflow_node_jobs")
    said = [line for line in caplog.messages if "looks dead" in line]
    assert len(said) == 1
    assert said[0].startswith("lane box1/cpu looks dead: no sign of life, last heartbeat 3")
    assert said[0].endswith(f"s ago, running jobs {job_id} (project '')")
    lane.beat()
    assert db.value("select flagged_dead_at from worker_heartbeats") is None


def test_a_lane_lost_with_its_session_is_flagged_too(db: Db, lane: Lane, observer: Observer) -> None:
    queue_nodes(db, 1)
    lane.hands.take()
    lane.beat()
    observer.watch(31)
    lane.die(db)
    assert observer.watch(6) == 1
    assert observer.work.dead_flags(db) == 1


def test_a_lane_that_beats_again_in_time_is_not_flagged(db: Db, lane: Lane, observer: Observer) -> None:
    queue_nodes(db, 1)
    lane.hands.take()
    lane.beat()
    observer.watch(31)
    age_heartbeats(db, 33)
    observer.watch(31)
    lane.beat()
    assert observer.work.dead_flags(db) == 0


def test_idle_lanes_that_stop_are_neither_flagged_nor_missed(db: Db, lane: Lane, observer: Observer) -> None:
    lane.beat()
    observer.watch(31)
    lane.die(db)
    age_heartbeats(db, 100)
    assert observer.watch(60) == 0
    assert observer.work.dead_flags(db) == 0


def lapse(db: Db, seconds: float) -> None:
    db.run(
        "update workflow_node_jobs set lease_expires_at = {before[seconds]} where status = 'running'", seconds=seconds
    )


def test_a_step_of_the_clock_ends_no_live_job(db: Db, lane: Lane, observer: Observer) -> None:
    """Q23: every lease looks lapsed by two hours, but the lanes renew: it moves, so it lives."""
    queue_nodes(db, 3)
    lane.hands.take()
    for i in range(20):
        lapse(db, 7200.0 - i)
        assert observer.work.lapsed_leases(db) == 0
        observer.clock.now += 10.0
    assert observer.work.lapsed_leases(db) == 0
    observer.clock.now += 19.0
    assert observer.work.lapsed_leases(db) == 0
    observer.clock.now += 2.0
    assert observer.work.lapsed_leases(db) == 3
    assert by_status(db) == {"queued": 3}
    assert {row["cause"] for row in db.all("select cause from job_events")} == {"lease_lapsed"}


def test_the_rescue_leaves_a_job_alone_that_was_completed_meanwhile(db: Db, lane: Lane, observer: Observer) -> None:
    """Q1: the statement that requeues is guarded; what was read before it proves nothing."""
    run_id = queue_nodes(db, 2)
    jobs = lane.hands.take()
    lapse(db, 60)
    rows = _lapsed_rows(db, NODE)
    assert len(rows) == 2
    lane.hands.end(jobs[0])
    db.run(
        "update workflow_node_jobs set lease_expires_at = {after[s]} where status = 'running'", s=60.0
    )  # and the other was renewed
    assert _requeue(db, NODE, rows, "lease_lapsed", "test") == 0
    assert _requeue(db, NODE, [row for row in rows if row["id"] == jobs[0].id], "lane_lost", "test") == 0
    assert by_status(db) == {"completed": 1, "running": 1}
    drain_all(db)
    assert run_row(db, run_id)["status"] == "running"


def test_the_rescue_waits_for_a_completion_that_is_under_way(pg_store: Store) -> None:
    """Q1, at the same moment: the completion holds the row, the rescue waits for it and then does nothing."""
    with pg_store.connect("sweep") as db:
        lane = Lane(pg_store)
        queue_nodes(db, 1)
        (job,) = lane.hands.take()
        lapse(db, 60)
        rows = _lapsed_rows(db, NODE)
        counts: list[int] = []
        with lane.db.transaction():
            lane.hands.end(job)
            rescue = threading.Thread(target=lambda: counts.append(_requeue(db, NODE, rows, "lease_lapsed", "test")))
            rescue.start()
            with pg_store.connect("look") as look:
                eventually(
                    lambda: look.value(
                        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
                    )
                )
        rescue.join(20)
        assert counts == [0]
        assert by_status(db) == {"completed": 1}
        lane.db.close()


def refuse_one(db: Db, job_id: int) -> None:
    """The database itself refuses to touch one row, as a host's trigger or constraint may."""
    if db.kind == "postgresql":
        db.run(
            "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not this one'; end $$"
        )
        db.run(
            f"create trigger refuse before update on workflow_node_jobs for each row when (old.id = {int(job_id)}) "
            "execute function refuse()"
        )
    else:
        db.run(
            f"create trigger refuse before update on workflow_node_jobs when old.id = {int(job_id)} "
            "begin select raise(abort, 'not this one'); end"
        )


def test_one_row_that_cannot_be_requeued_stops_no_other(db: Db, lane: Lane, observer: Observer) -> None:
    """Q21: that row alone fails, with the reason, again and again but ever less often."""
    queue_nodes(db, 4)
    jobs = lane.hands.take()
    refuse_one(db, jobs[1].id)
    observer.watch(31)
    lane.die(db)
    observer.watch(2.5, step=0.5)
    observer.clock.now += 0.5
    with pytest.raises(PartlyDone, match=rf"node job {jobs[1].id}: .*not this one") as caught:
        observer.work.lost_lanes(db)
    assert caught.value.count == 3
    assert by_status(db) == {"queued": 3, "running": 1}
    observer.clock.now += 0.5
    with pytest.raises(PartlyDone, match="1 jobs cannot be requeued"):
        observer.work.lost_lanes(db)
    db.run("drop trigger refuse" + (" on workflow_node_jobs" if db.kind == "postgresql" else ""))
    observer.clock.now += 2.0
    assert observer.work.lost_lanes(db) == 1


def test_a_recovery_that_is_cut_off_is_finished_by_the_next_one(
    store: Store, db: Db, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q10: the database goes away after the first half; nothing has to be remembered for the second."""
    queue_nodes(db, 2)
    lane.hands.take()
    db.run(
        "insert into ingest_jobs (task_name, status, claimed_by, claimed_box, fencing_token, attempt) "
        "values ('t', 'running', {owner}, 'box1', 1, 1)",
        owner=lane.hands.worker.owner,
    )
    mine = store.connect("sweep")
    observer = Observer(store, mine)
    observer.watch(31)
    lane.die(db)
    original = lost.requeue_lost

    def cut_off(db: Db, *args: Any, **kwargs: Any) -> Any:
        answer = original(db, *args, **kwargs)
        db.close()
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(lost, "requeue_lost", cut_off)
        with pytest.raises(StoreUnavailable):
            observer.watch(4)
    assert by_status(db) == {"queued": 2}
    assert db.value("select status from ingest_jobs") == "running"
    assert Observer(store, db).watch(31) == 1
    assert db.value("select status from ingest_jobs") == "queued"


def test_a_job_that_fells_lane_after_lane_fails_at_the_cap(
    store: Store, db: Db, lanes: list[Lane], observer: Observer
) -> None:
    run_id = queue_nodes(db, 1)
    config.configure(shun_seconds=0)
    observer.watch(31)
    for i in range(6):
        lanes.append(Lane(store, box=f"box{i}"))
        assert len(lanes[-1].hands.take()) == 1
        observer.watch(1, step=0.5)
        lanes[-1].die(db)
        assert observer.watch(4) == 1
    drain_all(db)
    row = run_row(db, run_id)
    assert row["status"] == "failed"
    assert "the lane was lost" in row["error"]


def test_a_cancelled_job_of_a_dead_lane_ends_cancelled(db: Db, lane: Lane, observer: Observer) -> None:
    """Nobody is left to honour the request: the job must not come back, and its run becomes terminal."""
    run_id = queue_nodes(db, 1)
    lane.hands.take()
    db.run("update workflow_node_jobs set cancel_requested = {true}")
    observer.watch(31)
    lane.die(db)
    assert observer.watch(4) == 1
    drain_all(db)
    assert by_status(db) == {"cancelled": 1}
    assert run_row(db, run_id)["finished_at"] is not None


def test_an_outage_of_a_quarter_of_an_hour_kills_no_work(store: Store, db: Db, lanes: list[Lane]) -> None:
    """Every lease has lapsed and every heartbeat is old when the database is back; lanes get the time of three renewals.

    The lanes' marks went with the outage, too; a lane that does not come back is lost after all.
    """
    for box in ("back", "gone"):
        lanes.append(Lane(store, box=box, marked=False))
        queue_nodes(db, 1)
        assert lanes[-1].hands.take()
        lanes[-1].beat()
    lapse(db, 900 - 600)
    age_heartbeats(db, 900)
    observer = Observer(store, db)  # the leader's session ended as well: a new one, from nothing
    assert observer.watch(10) + observer.work.lapsed_leases(db) == 0
    lanes[0].mark.hold(lanes[0].db)
    lanes[0].beat()
    db.run(
        "update workflow_node_jobs set lease_expires_at = {after[s]} where claimed_box = 'back'", s=600.0
    )  # its first renewal
    for _ in range(9):
        assert observer.watch(2) + observer.work.lapsed_leases(db) == 0
    assert by_status(db) == {"running": 2}
    for _ in range(10):
        observer.watch(2)
        observer.work.lapsed_leases(db)
        lanes[0].beat()
    rows = db.all("select status, losses from workflow_node_jobs order by id")
    assert rows == [{"status": "running", "losses": 0}, {"status": "queued", "losses": 1}]


def test_recovery_asks_no_gate(db: Db, lane: Lane, observer: Observer) -> None:
    """Q12: the lane's queue is parked, its box cordoned, the job avoids the box and is due tomorrow: it comes back."""
    queue_nodes(db, 1)
    lane.hands.take()
    db.run("insert into worker_controls (box, queue, desired) values ('*', 'cpu', 'off'), ('box1', '*', 'off')")
    boxes = '["box1"]' if db.kind == "sqlite" else ["box1"]
    db.run("update workflow_node_jobs set avoid_boxes = {boxes}, run_after = {after[s]}", boxes=boxes, s=86400.0)
    observer.watch(31)
    lane.die(db)
    assert observer.watch(4) == 1
    assert db.one("select status, run_after from workflow_node_jobs") == {"status": "queued", "run_after": None}


def test_a_heartbeat_row_that_somebody_pruned_hides_no_job(db: Db, lane: Lane, observer: Observer) -> None:
    """Q8, the other way round: the row was there, and is deleted while the lane lives."""
    queue_nodes(db, 1)
    lane.hands.take()
    lane.beat()
    observer.watch(31)
    db.run("delete from worker_heartbeats")
    assert observer.watch(60) == 0
    lane.die(db)
    assert observer.watch(4) == 1
