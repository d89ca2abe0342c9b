"""Signs of life ahead of the database's clock, on both stores."""

from __future__ import annotations

import pytest

from engine.orchestrator.ahead import pull_back
from engine.orchestrator.leader import Leader
from engine.orchestrator.lost import LostWork
from engine.orchestrator.placement import live_lanes
from engine.queue import services
from engine.queue.services import Service
from engine.queue.workers import beat
from engine.store import Db, Store
from tests.orchestrator.test_lost import Clock
from tests.queue.conftest import add_ingest, job, lane, take


def _silent(db: Db, table: str) -> float:
    return float((db.now() - db.value(f"select last_seen from {table}")).total_seconds())


def test_a_dead_lane_whose_last_beat_lies_ahead_of_the_clock_is_lost_all_the_same(store: Store, db: Db) -> None:
    """Q23: after the database's clock was set back by an hour a dead lane counted as alive for that hour."""
    id, worker = add_ingest(db), lane()
    beat(db, worker, state="running", slots=1, busy=1)
    assert take(db, worker)
    db.run("update worker_heartbeats set last_seen = {after[hour]}", hour=3600.0)
    clock = Clock()
    work = LostWork(store, clock)
    work._pooled = True  # no session tells of its death: the heartbeat decides
    for _ in range(20):
        clock.now += 4.0
        assert work.lost_lanes(db) == 0
    assert pull_back(db) == 1 and -1.0 < _silent(db, "worker_heartbeats") < 60.0
    assert len(live_lanes(db)) == 1, "silent from now on"
    db.run("update worker_heartbeats set last_seen = {before[while]}", **{"while": 45.0})  # which it is for so long
    given_back = 0
    for _ in range(10):
        clock.now += 4.0
        given_back += work.lost_lanes(db)
    assert given_back == 1 and job(db, id)["status"] == "queued"


def test_who_is_in_step_with_the_clock_is_left_alone(db: Db) -> None:
    beat(db, lane(), state="running", slots=1, busy=0)
    services.beat(db, Service("scheduler", "b1", "0" * 16), {}, None)
    assert pull_back(db) == 0
    db.run("update services set last_seen = {after[day]}", day=86400.0)
    assert (pull_back(db), pull_back(db)) == (1, 0) and abs(_silent(db, "services")) < 60.0


@pytest.mark.parametrize("seen", ["infinity", "9999-12-31"])
def test_a_time_without_end_is_pulled_back_too(pg_store: Store, seen: str) -> None:
    with pg_store.connect("test") as db:
        beat(db, lane(), state="running", slots=1, busy=0)
        db.run(f"update worker_heartbeats set last_seen = '{seen}'")
        assert pull_back(db) == 1 and abs(_silent(db, "worker_heartbeats")) < 60.0


def test_a_dead_leader_whose_row_lies_ahead_of_the_clock_is_followed_behind_a_pooler(store: Store, db: Db) -> None:
    services.beat(db, Service("orchestrator", "b1", "0" * 16), {}, None, leads=True)
    second = Leader(store, db)
    second._pooled = True
    assert not second.try_lead()
    db.run("update services set last_seen = {after[hour]}", hour=3600.0)
    assert second.try_lead()
    second.leave()
