"""How sweeps take turns, fail alone and come back."""

from __future__ import annotations

from typing import Any, cast

import pytest

from engine.errors import StoreUnavailable
from engine.orchestrator.sweeps import PartlyDone, Sweep, Watch
from engine.store import Db


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Session:
    """Only whether the session is gone matters to a sweep's error handling."""

    closed = False


def session() -> Any:
    return cast(Db, Session())


def test_a_value_that_moves_is_young() -> None:
    clock = Clock()
    watch = Watch(clock)
    assert watch.look({"a": 1, "b": 1}) == {"a": 0, "b": 0}
    clock.now += 10
    assert watch.look({"a": 1, "b": 2}) == {"a": 10, "b": 0}
    clock.now += 10
    assert watch.look({"b": 2}) == {"b": 10}
    assert watch.look({"a": 1}) == {"a": 0}  # forgotten while it was gone


def test_a_sweep_runs_when_it_is_due_and_counts() -> None:
    clock = Clock()
    sweep = Sweep("s", 2.0, lambda db: 3, clock)
    assert sweep.run_if_due(session())
    assert not sweep.run_if_due(session())
    clock.now += 2.0
    assert sweep.run_if_due(session())
    assert sweep.acted == 6


def test_a_slow_sweep_comes_round_less_often() -> None:
    clock = Clock()

    def slow(db: Db) -> int:
        clock.now += 1.0
        return 0

    sweep = Sweep("s", 2.0, slow, clock)
    sweep.run_if_due(session())
    assert sweep.due == pytest.approx(150.0)


def test_a_failing_sweep_backs_off_keeps_its_error_and_recovers(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    broken = True

    def act(db: Db) -> int:
        if broken:
            raise ValueError("two\nlines")
        return 1

    sweep = Sweep("s", 1.0, act, clock)
    pauses = []
    for _ in range(12):
        sweep.run_if_due(session())
        pauses.append(sweep.due - clock.now)
        clock.now = sweep.due
    assert sweep.error == "ValueError: two lines"
    assert pauses[0] <= 2.0 and 45.0 <= pauses[-1] <= 60.0
    assert len(caplog.messages) == 1  # one line per change of state
    broken = False
    sweep.run_if_due(session())
    assert (sweep.error, sweep.failures) == (None, 0)


def test_a_sweep_that_did_part_of_its_work_does_not_back_off() -> None:
    clock = Clock()

    def act(db: Db) -> int:
        raise PartlyDone("job 7: no", 2)

    sweep = Sweep("s", 1.0, act, clock)
    sweep.run_if_due(session())
    sweep.due = 0
    sweep.run_if_due(session())
    assert (sweep.error, sweep.acted, sweep.due) == ("job 7: no", 4, 101.0)


def test_only_a_lost_session_gets_out() -> None:
    def act(db: Db) -> int:
        raise StoreUnavailable("gone")

    open_session, gone = session(), session()
    gone.closed = True
    assert Sweep("s", 1.0, act, Clock()).run_if_due(open_session)  # a statement that took too long
    with pytest.raises(StoreUnavailable):
        Sweep("s", 1.0, act, Clock()).run_if_due(gone)
