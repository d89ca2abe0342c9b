"""Counters that read on in the history: events committed out of order, more pairs than are told apart, a new database."""

from __future__ import annotations

import pytest

from engine.queue.tally import OTHER, Pairs, Tally
from engine.store import Db, Store

FAR = float("inf")


def happen(db: Db, id: int | None = None, **more: object) -> None:
    values = {"family": "ingest", "job_id": 1, "attempt": 1, "event_type": "failed", "queue": "q", **more}
    if id is not None:
        values["id"] = id
    names = ", ".join(values)
    db.run(f"insert into job_events ({names}) values ({', '.join(f'{{{name}}}' for name in values)})", **values)


def failed(tally: Tally) -> int:
    return tally.attempts[("q", "", "failed")]


def test_an_event_that_is_committed_after_a_later_one_is_counted_once(pg_store: Store) -> None:
    now = [0.0]
    with pg_store.connect("a") as db, pg_store.connect("b") as slow:
        tally = Tally(clock=lambda: now[0])
        tally.read(db, FAR)
        with slow.transaction():
            happen(slow)
            happen(db)
            tally.read(db, FAR)
            assert failed(tally) == 1
        now[0] = 59.0
        tally.read(db, FAR)
        assert failed(tally) == 2
        tally.read(db, FAR)
        assert failed(tally) == 2


def test_an_id_that_never_comes_is_given_up(pg_store: Store) -> None:
    now = [0.0]
    with pg_store.connect("a") as db:
        tally = Tally(clock=lambda: now[0])
        tally.read(db, FAR)
        happen(db, id=10)
        tally.read(db, FAR)
        now[0] = 61.0
        tally.read(db, FAR)
        happen(db, id=5)
        tally.read(db, FAR)
        assert failed(tally) == 1


def test_what_is_not_read_in_time_is_read_the_next_time(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.queue.tally.AT_ONCE", 2)
    tally = Tally(clock=lambda: 0.0)
    tally.read(db, FAR)
    for _ in range(5):
        happen(db)
    tally.read(db, 0.0)
    assert (failed(tally), tally.unread) == (2, 3)
    tally.read(db, FAR)
    assert (failed(tally), tally.unread) == (5, 0)


def test_a_database_that_begins_anew_is_followed_and_nothing_falls(db: Db) -> None:
    tally = Tally()
    tally.read(db, FAR)
    db.run("insert into ingest_jobs (task_name, queue, status) values ('work', 'q', 'running')")
    happen(db, id=1000)
    tally.read(db, FAR)
    assert failed(tally) == 1 and tally.claims[("q", "")] == 2
    db.run("delete from job_events")
    db.run("delete from ingest_jobs")
    happen(db, id=3)
    tally.read(db, FAR)
    happen(db, id=4)
    tally.read(db, FAR)
    assert failed(tally) == 2 and tally.claims[("q", "")] == 3


def test_rows_of_others_are_counted_somewhere_and_break_nothing(db: Db) -> None:
    tally = Tally(Pairs(most=2))
    tally.read(db, FAR)
    happen(db, queue=None, elapsed_s=float("inf"), event_type="completed")
    happen(db, elapsed_s=-5.0, event_type="completed", exit_code=10**6)
    tally.read(db, FAR)
    happen(db, queue="third", event_type="requeued", cause="gremlins")
    happen(db, queue="third", event_type="dancing")
    tally.read(db, FAR)
    assert tally.attempts[("", "", "completed")] == tally.attempts[("q", "", "completed")] == 1
    assert tally.requeues == {(*OTHER, "other"): 1}
    assert not tally.runs and not tally.trips
    assert tally.pairs.known == [("", ""), OTHER, ("q", "")]
