"""Claims that could not be handed over at once: asked about, waiting, given back. Real rows, no executors."""

from __future__ import annotations

import selectors
from dataclasses import dataclass, field

import pytest

from engine.lane.ahead import Ahead
from engine.lane.book import GOOD_FOR_S, Book, now
from engine.lane.crew import Crew
from engine.lane.duty import Duty
from engine.lane.fates import Fates
from engine.lane.intake import Intake
from engine.lane.settle import Settler
from engine.queue.claim import ClaimRequest, claim
from engine.queue.workers import Worker
from engine.store import Db
from engine.store.locks import new_incarnation
from tests.lane.fleet import add, history, row


@dataclass
class Bare:
    """A lane's parts without processes."""

    db: Db
    worker: Worker = field(default_factory=lambda: Worker("b1", "default", "", new_incarnation()))

    def __post_init__(self) -> None:
        self.book, self.duty, ahead = Book(), Duty(holding=True), Ahead(64, 1)
        self.settler = Settler(self.worker, self.book)
        self.fates = Fates("b1/default", self.book, self.settler, ahead, lambda slot, end: [], lambda slot: None)
        crew = Crew([], selectors.DefaultSelector(), self.fates.read, self.fates.ended)
        self.intake = Intake(self.worker, 60.0, 0, self.duty, self.book, crew, self.fates, ahead, lambda: True)

    def claim(self, n: int, begin: bool = True) -> None:
        self.intake.take(claim(self.db, ClaimRequest(self.worker, n, 60.0, begin=begin)), None)

    def write(self) -> None:
        assert self.settler.write(self.db, None) == []


@pytest.fixture
def bare(db: Db) -> Bare:
    return Bare(db)


def test_after_a_standstill_only_what_is_still_ours_is_started(db: Db, bare: Bare) -> None:
    """SIGSTOP between the claim and the hand-over: the fence is asked first."""
    kept, given_away = add(db, "noop"), add(db, "noop")
    bare.claim(2)
    for held in bare.book.all():
        held.good_until = now() - 1
    bare.intake.serve_waiting()
    assert not bare.intake.waiting and len(bare.fates.verify) == 2
    db.run("update ingest_jobs set fencing_token = fencing_token + 1 where id = {id}", id=given_away)
    bare.intake.verify(db, now())
    assert [held.job.id for held in bare.intake.waiting] == [kept]
    assert bare.intake.waiting[0].good_until > now() + GOOD_FOR_S / 2
    bare.write()
    lost = history(db, given_away)[0]
    assert (lost["event_type"], lost["exit_code"]) == ("lost_claim", None)
    assert row(db, given_away)["status"] == "running" and len(bare.book) == 1


@pytest.mark.parametrize("begin", [True, False])
def test_what_waits_goes_back_unspent_when_the_lane_is_parked(db: Db, bare: Bare, begin: bool) -> None:
    job = add(db, "noop")
    bare.claim(1, begin=begin)
    bare.intake.give_up(bare.settler)
    bare.write()
    back = row(db, job)
    assert (back["status"], back["losses"], back["watchdog_retries"]) == ("queued", 0, 0)
    assert back["attempt"] == (1 if begin else 0)
    assert history(db, job)[0]["cause"] == ("operator_stop" if begin else "handed_back")
    assert len(bare.book) == 0 and bare.settler.empty


def test_nothing_is_claimed_while_draining_parked_or_without_the_lock(bare: Bare) -> None:
    """Q9."""
    from engine.queue.controls import Order

    bare.duty.order = Order("off", "drain")
    assert bare.intake.requests() == []
    bare.duty.order = Order()
    bare.duty.stop(0.0, 30.0)
    assert bare.intake.requests() == []


def test_fates_wait_for_the_database_and_are_written_once(db: Db, bare: Bare) -> None:
    from engine.errors import StoreUnavailable
    from engine.queue.finish import Outcome

    job = add(db, "noop")
    bare.claim(1)
    held = bare.book.all()[0]
    bare.settler.ended(held, Outcome(job, held.job.fencing_token, "completed", output_json='{"x": 1}'))
    bare.intake.waiting.clear()
    if db.kind == "postgresql":
        raw = db.raw
        raw.execute("select 1")
        raw.close()
        with pytest.raises(StoreUnavailable):
            bare.write()
        assert not bare.settler.empty and bare.book.tokens() == {job: 1}, "it is kept, and its lease is renewed"
    else:
        bare.write()
        assert row(db, job)["result"] == {"x": 1} and bare.settler.empty
