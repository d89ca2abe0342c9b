"""Q20: a side loop of the leader that dies is started again, and what ails is seen in the services table."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from engine.orchestrator import loop, orphans
from engine.orchestrator.loop import run_orchestrator
from engine.orchestrator.side import SideLoop, SweepLoop
from engine.orchestrator.sweeps import Sweep
from engine.store import Db, Store
from tests.support import eventually


class Side(SideLoop):
    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__("side")
        self.act = act
        self.rounds = 0

    def work(self) -> None:
        while not self.stopping.wait(0.005):
            self.rounds += 1
            self.act()


def test_whatever_it_raises_it_goes_on_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    broken = threading.Event()
    broken.set()
    side = Side(lambda: 1 / 0 if broken.is_set() else None)
    side.start()
    try:
        eventually(lambda: side.rounds >= 3)
        assert side.state() == {"error": "ZeroDivisionError: division by zero", "restarts": 0}
        assert sum("unexpected error" in line for line in caplog.messages) == 1, "one line per change of state"
        assert not side.look_after()
    finally:
        side.stop()


# The very thing under test.
thread_dies = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def end_thread() -> None:
    raise SystemExit  # nothing catches this: the thread ends without a word


@thread_dies
def test_a_thread_that_ended_is_started_again_ever_less_often() -> None:
    side = Side(end_thread)
    side.start()
    try:
        for restarts in (1, 2, 3):
            eventually(side.look_after)
            assert side.state() == {
                "error": f"its thread ended; started again ({restarts} times)",
                "restarts": restarts,
            }
        assert side._pause_s == pytest.approx(0.8)
        side.act = lambda: None
        eventually(lambda: side.look_after() or side.rounds > 10)
        seen = side.rounds
        eventually(lambda: side.rounds > seen + 3)
        assert not side.look_after()
    finally:
        side.stop()
    assert not side.look_after(), "what was stopped stays stopped"


def test_sweeps_of_a_side_loop_survive_the_loss_of_their_session(pg_store: Store) -> None:
    """Q10: level-triggered, so the next round begins from the rows."""
    calls: list[int] = []
    side = SweepLoop("chores", pg_store, [Sweep("s", 0.0, lambda db: calls.append(1) or 0)], 5.0)
    side.start()
    try:
        eventually(lambda: calls)
        with pg_store.connect("test") as db:
            ended = db.value(
                "select count(pg_terminate_backend(pid)) as n from pg_stat_activity where datname = current_database() "
                "and application_name = 'flightdeck chores'"
            )
        assert ended == 1
        seen = len(calls)
        eventually(lambda: len(calls) > seen + 3)
        assert side.restarts == 0
        eventually(lambda: side.error is None)
    finally:
        side.stop()


@thread_dies
def test_the_leader_restarts_a_dead_thread_and_the_table_says_so(
    store: Store, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "BEAT_S", 0.1)
    died: list[int] = []

    def dies_once(db: Db) -> int:
        if not died:
            died.append(1)
            end_thread()
        return 0

    monkeypatch.setattr(orphans, "stop_running", dies_once)
    stop = threading.Event()
    thread = threading.Thread(target=run_orchestrator, args=(store, stop))
    thread.start()
    try:
        eventually(lambda: detail(db).get("chores", {}).get("restarts") == 1)
        eventually(lambda: detail(db)["chores"]["error"] is None)
        sweeps = eventually(
            lambda: all(s["last_run_at"] for s in detail(db)["sweeps"].values()) and detail(db)["sweeps"]
        )
        expected = {"lost_lanes", "lapsed_leases", "dead_flags", "runs_stuck", "orphans_running", "orphans_queued"}
        assert set(sweeps) >= expected | {"unplaceable", "retention"}
        assert ("vacuum" in sweeps) == (store.kind == "postgresql")
        for sweep in sweeps.values():
            assert sweep["last_run_at"].endswith("+00:00") and sweep["took_ms"] >= 0 and sweep["error"] is None
        leader = db.value("select incarnation from services")
        assert db.value("select count(*) from services where incarnation = {i}", i=leader) == 1, "it still leads"
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()


def detail(db: Db) -> dict[str, Any]:
    return db.value("select detail from services") or {}
