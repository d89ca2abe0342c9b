"""The built-in trainer: always the same answer, progress, a cancel that is seen, arguments that are named when wrong."""

from __future__ import annotations

from typing import Any

import pytest

from engine import registry
from engine.errors import BadInput
from engine.queue import operate
from engine.queue.enqueue import enqueue
from engine.store import Db, Store
from engine.tasks.train import CURVE, train
from tests.lane.fleet import ended, row, status, stop
from tests.support import Processes, command, eventually


class Ctx:
    """What the task sees of its lane."""

    def __init__(self, cancel_after: int | None = None) -> None:
        self.reports: list[tuple[float | None, str | None]] = []
        self.beats = 0
        self._cancel_after = cancel_after

    def beat(self) -> None:
        self.beats += 1

    def progress(self, pct: float | None = None, text: str | None = None) -> None:
        self.reports.append((pct, text))

    def cancelled(self) -> bool:
        return self._cancel_after is not None and len(self.reports) >= self._cancel_after


def test_the_same_arguments_give_the_same_answer_and_the_loss_falls() -> None:
    ctx = Ctx()
    answer = train(ctx, steps=200, samples=500)
    assert answer == train(Ctx(), steps=200, samples=500)
    assert answer == {**answer, "steps": 200, "samples": 500, "weights": [2.998017008, -0.998241288]}
    assert len(answer["losses"]) == CURVE
    assert answer["losses"] == sorted(answer["losses"], reverse=True) and answer["loss"] < 0.001
    assert len(ctx.reports) == 200 and ctx.reports[-1][0] == 100.0


def test_a_cancel_stops_it_between_two_steps() -> None:
    assert train(Ctx(cancel_after=3), steps=1000, step_delay_seconds=0.001)["steps"] == 3


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": "ten"}, "steps"),
        ({"steps": True}, "steps"),
        ({"steps": 10**9}, "steps"),
        ({"samples": 1.5}, "samples"),
        ({"samples": None}, "samples"),
        ({"step_delay_seconds": -1}, "step_delay_seconds"),
        ({"step_delay_seconds": float("nan")}, "step_delay_seconds"),
        ({"epochs": 3}, "epochs"),
    ],
)
def test_a_wrong_argument_is_named(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(BadInput, match=f"train: .*{named}") as caught:
        train(Ctx(), **wrong)
    assert len(str(caught.value)) < 300


def test_every_program_knows_it_and_a_host_may_replace_it() -> None:
    assert registry.resolve_task("train").fn is train
    registry.register_ingest_task("train", print)
    assert registry.resolve_task("train").fn is print
    registry.reset()
    assert registry.resolve_task("train").fn is train


def test_a_lane_on_training_needs_no_app(store: Store, db: Db, processes: Processes) -> None:
    lane = processes.spawn(command("queue-claim-worker", "--queue", "training", "--db", store.url, "--box", "b1"))
    good = int(enqueue(db, task_name="train", queue="training", args={"steps": 20, "samples": 10}).id)
    bad = int(enqueue(db, task_name="train", queue="training", args={"steps": -1}).id)
    assert ended(db, good)["result"] == train(Ctx(), steps=20, samples=10)
    assert ended(db, bad)["error"] == "BadInput: train: steps must be a whole number from 1 to 1,000,000, got -1"
    slow = int(enqueue(db, task_name="train", queue="training", args={"step_delay_seconds": 0.05, "steps": 10_000}).id)
    eventually(lambda: row(db, slow)["progress_text"], what="progress")
    assert status(db, slow) == "running"
    operate.cancel_job(db, slow)
    assert ended(db, slow)["status"] == "cancelled"
    stop(lane)
