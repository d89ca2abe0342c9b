"""The keeper on its own thread, with a real database and no lane around it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine.lane.book import Book
from engine.lane.keeper import Face, Keeper, Timing
from engine.lane.link import Link
from engine.queue import controls, workers
from engine.queue.claim import ClaimRequest, claim
from engine.queue.workers import Worker
from engine.store import Db, Store
from engine.store.locks import new_incarnation, present
from tests.lane.fleet import add, heartbeat, history, row
from tests.support import eventually

QUICK = Timing(lease_s=30.0, renew_s=0.1, beat_s=0.1)


class Kept:
    """A keeper and what it told."""

    def __init__(self, store: Store, box: str = "b1", timing: Timing = QUICK) -> None:
        self.worker = Worker(box, "default", "", new_incarnation())
        self.book = Book()
        self.face = Face("running", 1, 0)
        self.told: list[tuple[str, Any]] = []
        self.keeper = Keeper(
            store, self.worker, self.book, Link(box), timing, lambda: self.face, lambda k, v: self.told.append((k, v))
        )
        self.keeper.start()

    def heard(self, kind: str) -> Any:
        return eventually(lambda: next(((k, v) for k, v in self.told if k == kind), None), what=kind)[1]

    def turn(self) -> None:
        self.book.turns += 1


@pytest.fixture
def kept(store: Store) -> Iterator[Callable[..., Kept]]:
    made: list[Kept] = []

    def make(**values: Any) -> Kept:
        made.append(Kept(store, **values))
        return made[-1]

    yield make
    for each in made:
        each.keeper.finish(10.0)


def test_it_marks_its_presence_beats_and_renews(store: Store, db: Db, kept: Callable[..., Kept]) -> None:
    """Q6, Q7."""
    lane = kept()
    lane.heard("held")
    assert present(store, db, [lane.worker.incarnation]) == {lane.worker.incarnation}
    job = add(db, "noop")
    lane.book.add(claim(db, ClaimRequest(lane.worker, 1, lease_s=1.0)))
    first = row(db, job)["lease_expires_at"]
    eventually(lambda: row(db, job)["lease_expires_at"] > first)
    seen = heartbeat(db)["last_seen"]
    eventually(lambda: heartbeat(db)["last_seen"] > seen)
    assert heartbeat(db)["incarnation"] == lane.worker.incarnation


def test_a_lost_claim_is_told_with_the_fence_that_was_lost(db: Db, kept: Callable[..., Kept]) -> None:
    lane = kept()
    lane.heard("held")
    job = add(db, "noop")
    lane.book.add(claim(db, ClaimRequest(lane.worker, 1, lease_s=60.0)))
    db.run("update ingest_jobs set fencing_token = fencing_token + 1 where id = {id}", id=job)
    assert lane.heard("lost") == {job: 1}


def test_a_claim_whose_answer_was_lost_is_given_back(db: Db, kept: Callable[..., Kept]) -> None:
    """The row says that it is ours, no slot knows: two rounds of the loop later it is queued again, nothing spent."""
    lane = kept()
    lane.heard("held")
    job = add(db, "noop")
    claim(db, ClaimRequest(lane.worker, 1, lease_s=60.0))

    def back() -> bool:
        lane.turn()
        return bool(row(db, job)["status"] == "queued")

    eventually(back)
    assert history(db, job)[0]["cause"] == "handed_back"
    back_again = row(db, job)
    assert [back_again[name] for name in ("losses", "watchdog_retries", "attempt", "is_priority")] == [0, 0, 0, False]
    assert (back_again["priority"], back_again["started_at"]) == (100, None)


def test_an_order_is_told_at_once_and_when_it_changes(db: Db, kept: Callable[..., Kept]) -> None:
    controls.set_order(db, "*", "default", "", desired="off", policy="drain")
    lane = kept()
    assert lane.heard("order").policy == "drain"
    controls.set_order(db, "b1", "*", "", desired="on")
    eventually(lambda: lane.told[-1][0] == "order" and lane.told[-1][1].desired == "on")


def test_one_of_two_holds_the_lane(db: Db, kept: Callable[..., Kept]) -> None:
    first = kept()
    first.heard("held")
    second = kept()
    second.heard("waiting")
    assert not second.keeper.holding
    first.keeper.finish(10.0)
    second.heard("held")
    eventually(lambda: heartbeat(db)["incarnation"] == second.worker.incarnation)


def test_a_keeper_that_fails_starts_over_and_says_so(
    db: Db, kept: Callable[..., Kept], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q20: a side loop does not die silently."""
    real, failing = workers.beat, threading.Event()

    def beat(*args: Any, **values: Any) -> None:
        if failing.is_set():
            failing.clear()
            raise RuntimeError("a defect")
        real(*args, **values)

    monkeypatch.setattr(workers, "beat", beat)
    lane = kept()
    lane.heard("held")
    failing.set()
    assert "a defect" in lane.heard("sick")
    seen = heartbeat(db)["last_seen"]
    eventually(lambda: heartbeat(db)["last_seen"] > seen)
    assert lane.keeper.is_alive()


def test_a_keeper_that_fails_for_good_ends(kept: Callable[..., Kept], monkeypatch: pytest.MonkeyPatch) -> None:
    """Q20: the lane sees that its thread is gone and ends loudly."""

    def beat(*args: Any, **values: Any) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(workers, "beat", beat)
    lane = kept()
    eventually(lambda: not lane.keeper.is_alive())
    assert [kind for kind, _ in lane.told].count("sick") == 5


def test_it_reconnects_after_its_session_was_cut(pg_store: Store) -> None:
    lane = Kept(pg_store)
    lane.heard("held")
    with pg_store.connect("test") as db:
        seen = heartbeat(db)["last_seen"]
        db.run(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
            "and pid <> pg_backend_pid()"
        )
        eventually(lambda: heartbeat(db)["last_seen"] > seen)
        eventually(lambda: present(pg_store, db, [lane.worker.incarnation]))
        eventually(lambda: lane.keeper.holding)
        began = time.monotonic()
        lane.keeper.finish(10.0)
        assert not lane.keeper.is_alive() and time.monotonic() - began < 10.0
        assert not present(pg_store, db, [lane.worker.incarnation])
