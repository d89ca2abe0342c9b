"""Which queued jobs no live slot could hold: the verdict as a pure function, the flags and events on both stores."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine import config
from engine.orchestrator import placement
from engine.orchestrator.placement import JobClass, LiveLane, Placement, reason
from engine.queue.family import INGEST, NODE
from engine.queue.workers import Worker, beat
from engine.store import Db
from engine.store.locks import new_incarnation
from tests.lane.fleet import add, add_node


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def gpu(model: str = "", project: str = "", only: tuple[str, ...] = (), avoid: tuple[str, ...] = ()) -> JobClass:
    return JobClass(NODE, "gpu", project, model, f"{only}{avoid}" if only or avoid else "", only, avoid)


def lane(box: str = "a", fits: tuple[str, ...] = (), known: tuple[str, ...] = (), **more: Any) -> LiveLane:
    return LiveLane(box, "gpu", "", frozenset(known), frozenset(fits), **more)


@pytest.mark.parametrize(
    ("job", "lanes", "why"),
    [
        (gpu(), [lane()], None),
        (gpu(), [], "no live lane of queue gpu"),
        (gpu(project="p"), [lane()], "no live lane of queue gpu of project p"),
        (JobClass(INGEST, "imports", "", "", ""), [lane()], "no live lane of queue imports"),
        (gpu(only=("b",)), [lane("a")], "only_boxes: no live lane of queue gpu on b"),
        (gpu(only=("a", "b")), [lane("a")], None),
        (gpu(avoid=("a",)), [lane("a")], "avoid_boxes (a): no live lane of queue gpu on any other box"),
        (gpu(avoid=("a",)), [lane("a"), lane("b")], None),
        (gpu(only=("a", "b"), avoid=("a",)), [lane("a")], "only_boxes: no live lane of queue gpu on b"),
        (
            gpu(only=("a",), avoid=("a", "b")),
            [lane("a")],
            "only_boxes (a) and avoid_boxes (a, b) contradict each other: no box is left",
        ),
        (gpu("m"), [lane(fits=("m",))], None),
        (gpu("m"), [lane(known=("n",))], "model m: no live lane of queue gpu has registered it"),
        (gpu("m"), [lane(known=("m",))], "model m fits on no device of a live lane of queue gpu"),
        (
            gpu("m", only=("b",)),
            [lane("a", fits=("m",)), lane("b", known=("m",))],
            "model m fits on no device of a live lane of queue gpu on the boxes that it may use",
        ),
        (
            gpu("m"),
            [lane(fits=("m",), for_models=False)],
            "model m: no live lane of queue gpu that could load it takes jobs with a model",
        ),
        (gpu(), [lane(for_free=False)], "no live lane of queue gpu takes jobs without a model"),
        (gpu(), [lane(for_free=False), lane("b")], None),
        (gpu(only=tuple("bcdefgh")), [lane("a")], "only_boxes: no live lane of queue gpu on b, c, d, e, f and 2 more"),
    ],
)
def test_why_no_slot_could_hold_it(job: JobClass, lanes: list[LiveLane], why: str | None) -> None:
    assert reason(job, lanes) == why


def show(db: Db, box: str = "a", queue: str = "gpu", state: str = "running", **more: Any) -> None:
    beat(db, Worker(box, queue, "", new_incarnation()), state=state, slots=1, busy=0, **more)


class Sweeper:
    def __init__(self, db: Db) -> None:
        self.db = db
        self.clock = Clock()
        self.placement = Placement(self.clock)

    def after(self, seconds: float) -> int:
        """Look now and again after so many seconds; the rows changed."""
        count = self.placement.flag(self.db)
        self.clock.now += seconds
        return count + self.placement.flag(self.db)


@pytest.fixture
def sweeper(db: Db) -> Sweeper:
    return Sweeper(db)


def flags(db: Db, table: str = "workflow_node_jobs") -> list[str | None]:
    return [row["why"] for row in db.all(f"select unplaceable_reason as why from {table} order by id")]


def told(db: Db) -> list[dict[str, Any]]:
    return db.all("select job_id, family, detail from job_events where event_type = 'unplaceable' order by id")


def test_a_job_is_flagged_with_one_event_and_unflagged_when_a_slot_appears(db: Db, sweeper: Sweeper) -> None:
    show(db, models_known=["small"], models_fit=["small"])
    ids = [add_node(db, "x", queue="gpu", required_model=model) for model in ("big", "small", "big")]
    assert sweeper.after(8.5) == 0  # lanes that restart are away for so long
    assert sweeper.after(1.0) == 2
    why = "model big: no live lane of queue gpu has registered it"
    assert flags(db) == [why, None, why]
    assert told(db) == [{"job_id": id, "family": "node", "detail": {"reason": why}} for id in (ids[0], ids[2])]
    add_node(db, "x", queue="gpu", required_model="big")
    assert sweeper.after(5.0) == 1  # a row that came later
    show(db, "b", models_known=["big"], models_fit=["big"])
    assert sweeper.after(0.0) == 3  # at once
    assert flags(db) == [None] * 4
    db.run("delete from worker_heartbeats where box = 'b'")
    assert sweeper.after(10.0) == 3
    assert len(told(db)) == 3, "once for each attempt that it waits for"


def test_ingest_jobs_and_scheduled_ones_are_flagged_too(db: Db, sweeper: Sweeper) -> None:
    show(db, queue="default")
    add(db, "t")
    add(db, "t", run_after="2099-01-01T00:00:00.000000+00:00", queue="nobody")
    add(db, "t", queue="nobody")
    assert sweeper.after(10.0) == 2
    assert flags(db, "ingest_jobs") == [None, *["no live lane of queue nobody"] * 2]


@pytest.mark.parametrize(
    ("state", "holds"),
    [
        ("running", True),
        ("starting", True),
        ("parked", True),
        ("draining", True),
        ("refused", False),
        ("stopping", False),
    ],
)
def test_a_parked_lane_could_hold_it_a_refused_one_could_not(db: Db, sweeper: Sweeper, state: str, holds: bool) -> None:
    """An order to park is the operator's and stands on the deck; it says nothing about the job."""
    show(db, state=state)
    add_node(db, "x", queue="gpu")
    assert sweeper.after(10.0) == (0 if holds else 1)


@pytest.mark.parametrize("how", ["last_seen = {before[s]}", "flagged_dead_at = {before[s]}"])
def test_a_silent_or_flagged_lane_holds_nothing(db: Db, sweeper: Sweeper, how: str) -> None:
    show(db)
    add_node(db, "x", queue="gpu")
    assert sweeper.after(10.0) == 0
    db.run(f"update worker_heartbeats set {how}", s=31.0)
    assert sweeper.after(10.0) == 1
    show(db)
    assert sweeper.after(0.0) == 1


def test_slots_for_rows_with_and_without_a_model_are_told_apart(db: Db, sweeper: Sweeper) -> None:
    show(db, models_known=["m"], models_fit=["m"], detail={"model_slots": 1, "free_slots": 0, "any_slots": 0})
    add_node(db, "x", queue="gpu")
    add_node(db, "x", queue="gpu", required_model="m")
    assert sweeper.after(10.0) == 1
    assert flags(db) == ["no live lane of queue gpu takes jobs without a model", None]


def test_placement_that_contradicts_itself_is_said_whatever_lanes_there_are(db: Db, sweeper: Sweeper) -> None:
    show(db)
    boxes = (["a"], ["a"])
    only, avoid = (json.dumps(b) for b in boxes) if db.kind == "sqlite" else boxes
    add_node(db, "x", queue="gpu", only_boxes=only, avoid_boxes=avoid)
    assert sweeper.after(10.0) == 1
    assert "contradict" in str(flags(db)[0])


def test_a_restart_of_every_lane_writes_no_row(db: Db, sweeper: Sweeper) -> None:
    show(db)
    add_node(db, "x", queue="gpu")
    show(db, state="stopping")
    assert sweeper.after(5.0) == 0
    show(db)
    assert sweeper.after(3.0) == 0
    show(db, state="stopping")
    assert sweeper.after(5.0) == 0
    assert told(db) == []


def test_a_long_queue_is_flagged_batch_by_batch_and_a_short_time_each(
    db: Db, sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "BATCH", {"postgresql": 10, "sqlite": 10})
    add_many = "insert into ingest_jobs (task_name, queue) values ('t', 'nobody')" + ", ('t', 'nobody')" * 44
    db.run(add_many)
    monkeypatch.setattr(placement, "PASS_S", 0.0)
    assert sweeper.after(10.0) == 0  # no time at all: the next pass goes on
    monkeypatch.setattr(placement, "PASS_S", 60.0)
    assert sweeper.placement.flag(db) == 45
    assert len(told(db)) == 45
    assert sweeper.placement.flag(db) == 0


def test_very_many_classes_are_looked_at_in_turns(db: Db, sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch) -> None:
    config.configure(unplaceable_after=0)
    monkeypatch.setattr(placement, "CLASSES_AT_ONCE", 4)
    for i in range(10):
        add(db, "t", queue=f"q{i}", project=f"p{i % 3}")
    assert [sweeper.placement.flag(db) for _ in range(4)] == [4, 4, 2, 0]
    assert None not in flags(db, "ingest_jobs")


def test_a_claim_takes_the_flag_away(db: Db, sweeper: Sweeper) -> None:
    from tests.dag.steps import Hands

    add_node(db, "x", queue="gpu", required_model="m")
    assert sweeper.after(10.0) == 1
    assert len(Hands(db, "gpu", models=("m",)).take()) == 1
    assert flags(db) == [None]
