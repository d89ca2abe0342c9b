"""The orchestrator's process: wait for the lead, then drain the outbox on one thread and sweep on others.

Threads of their own, so that a sweep which waits for a lock holds up no graph, and old rows no recovery (see side.py).
The outbox is polled, not notified: a NOTIFY in the transaction that finishes jobs would serialise those commits
(measured: less than half the rate). The poll is quick after activity, ``node_job_ready`` (which commits with every
submission) makes it quick again, and it slows down to 250 ms where no run is live. On SQLite the change counter of the
file says when to look.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from engine import config
from engine.dag import runs
from engine.dag.drain import Head, drain
from engine.dag.runs import GraphCache
from engine.errors import NotAllowed, ReadOnlyStore, StoreUnavailable
from engine.orchestrator import ahead, orphans, vacuum
from engine.orchestrator.leader import Leader
from engine.orchestrator.lost import LostWork
from engine.orchestrator.notices import Notices, NoticesLoop
from engine.orchestrator.notify import Courier, parse_command
from engine.orchestrator.placement import Placement
from engine.orchestrator.retention import Retention
from engine.orchestrator.side import SideLoop, SweepLoop, prepare
from engine.orchestrator.sweeps import Sweep, run_sweeps
from engine.queue.sink import Sink
from engine.store import Db, Store
from engine.store.locks import new_incarnation
from engine.store.migrate import refuse_read_only
from engine.store.sqlite import SqliteDb
from engine.telemetry import limits_file

log = logging.getLogger("engine.orchestrator")

STEP_S = 0.5  # the main loop looks at its own state at least so often; sweeps have cadences of their own
CANDIDATE_S = 0.5  # how often a second one asks for the lead
BEAT_S = 2.0
STATEMENT_S = 5.0
SINK_S = 2.0  # at the end, events that wait for the host's sink may take so long

QUICK_S = 0.005  # pauses of the drain: after activity,
SLOWER = 1.25  # growing with the quiet, so that a fan-out waits for a fifth of its node's run time,
LIVE_S = 0.1  # at most so long while a run is live,
IDLE_S = 0.25  # and so long while none is
SQLITE_S = 0.05  # between two looks at SQLite's change counter


def run_orchestrator(store: Store, stop: threading.Event, once: bool = False) -> None:
    """Lead, or wait to lead, until ``stop`` is set; survives any outage of the database.

    ``once``: do what there is and return; raises StoreUnavailable, and returns at once where another one leads. Raises BadInput
    for an ``on_event`` that is no command, ConfigError for a ``profile`` that is none.
    """
    courier()
    limits_file.configured()
    hook = config.hook("event_sink")
    sink = Sink(store, hook).begin() if hook else None
    try:
        _run_once(store) if once else _run(store, stop)
    finally:
        if sink is not None:
            sink.end(SINK_S)


def courier() -> Courier | None:
    """What carries notices to the command of ``on_event``; None without one. Raises BadInput."""
    argv = parse_command(config.get("on_event"))
    if argv is None:
        return None
    return Courier(
        argv,
        float(config.get("on_event_seconds")),
        int(config.get("on_event_burst")),
        float(config.get("on_event_every_s")),
    )


def _run(store: Store, stop: threading.Event) -> None:
    incarnation = new_incarnation()
    told, refused = False, ""
    backoff = 0.1
    while not stop.is_set():
        try:
            with store.connect("orchestrator", direct=True, timeout_s=STATEMENT_S) as db:
                refuse_read_only(store, db)  # after a failover: a standby that is not promoted yet
                leader = Leader(store, db, incarnation)
                if told:
                    log.info("database is back")
                told, backoff = False, 0.1
                try:
                    _serve(store, leader, stop)
                finally:
                    leader.leave()
        except (StoreUnavailable, ReadOnlyStore) as error:
            if not told:
                log.warning("database lost, trying again: %s", error)
            told = True
            stop.wait(backoff * random.uniform(0.5, 1.5))
            backoff = min(1.0, backoff * 2)
        except NotAllowed as error:  # the connection is made and used, each time: this is no outage that ended
            if str(error) != refused:
                log.warning("the database refuses, trying again: %s", error)
            refused = str(error)
            stop.wait(1.0)
        except Exception:  # a defect must not end the orchestrator: say it, start over
            log.exception("orchestrator: unexpected error, starting over")
            stop.wait(1.0)


def _run_once(store: Store) -> None:
    with store.connect("orchestrator", direct=True, timeout_s=STATEMENT_S) as db:
        leader = Leader(store, db)
        try:
            if not leader.try_lead():
                log.info("another orchestrator leads; nothing to do")
                return
            graphs = GraphCache()
            runs.look_again(db, unexpanded=True)
            runs.look_again(db, unexpanded=False)
            while drain(db, graphs).events:
                pass
            prepare(db)
            notices = Notices(courier(), classes=limits_file.configured())
            for sweep in [*run_sweeps(), *LostWork(store).sweeps(), *_chores(), notices.sweep()]:
                sweep.run_if_due(db)
                if sweep.error:
                    log.error("sweep %s: %s", sweep.name, sweep.error)
            notices.end(store)
        finally:
            leader.leave()


def _serve(store: Store, leader: Leader, stop: threading.Event) -> None:
    """Wait for the lead on this session, then lead on it. Raises StoreUnavailable when the session ends."""
    lost_work = LostWork(store)  # its age is the session's: what a candidate has waited counts
    next_beat = 0.0
    told = False
    while not leader.try_lead():
        if not told:
            log.info("another orchestrator leads; waiting")
            told = True
        if time.monotonic() >= next_beat:
            leader.beat({}, None)
            next_beat = time.monotonic() + BEAT_S
        if stop.wait(CANDIDATE_S * random.uniform(0.8, 1.2)):
            return
    log.info("leading")
    dispatcher = Dispatcher(store)
    sides: list[SideLoop] = [
        dispatcher,
        SweepLoop("chores", store, _chores(), STATEMENT_S),
        NoticesLoop(store, courier(), STATEMENT_S),
    ]
    if store.kind == "postgresql":
        sides.append(SweepLoop("vacuum", store, [vacuum.Vacuum().sweep()], vacuum.STATEMENT_S))
    for side in sides:
        side.start()
    try:
        _lead(leader, lost_work, sides, stop)
    finally:
        for side in sides:
            side.stopping.set()
        for side in sides:
            side.stop()


def _chores() -> list[Sweep]:
    """What may take its time: it must not keep the news of a dead lane waiting."""
    return [
        Sweep("signs_ahead", 2.0, ahead.pull_back),
        Sweep("orphans_running", 2.0, orphans.stop_running),
        Sweep("orphans_queued", 5.0, orphans.cancel_queued),
        Placement().sweep(),
        Retention().sweep(),
    ]


def _lead(leader: Leader, lost_work: LostWork, sides: list[SideLoop], stop: threading.Event) -> None:
    sweeps = [*lost_work.sweeps(), *run_sweeps()]
    beat = Sweep("beat", BEAT_S, lambda db: _beat(leader, sweeps, sides))
    while not stop.is_set():
        for sweep in (*sweeps, beat):
            sweep.run_if_due(leader.db)
        for side in sides:
            side.look_after()
        due = min(sweep.due for sweep in (*sweeps, beat))
        stop.wait(max(0.01, min(STEP_S, due - time.monotonic())))


def _beat(leader: Leader, sweeps: list[Sweep], sides: list[SideLoop]) -> int:
    every = [*sweeps, *(sweep for side in sides if isinstance(side, SweepLoop) for sweep in side.sweeps)]
    detail = {
        "sweeps": {sweep.name: sweep.state() for sweep in every},
        **{side.name: side.state() for side in sides},
    }
    errors = [f"{side.name}: {side.error}" for side in sides if side.error]
    errors += [f"{sweep.name}: {sweep.error}" for sweep in every if sweep.error]
    leader.beat(detail, "; ".join(errors)[:1000] or None)
    return 0


class Dispatcher(SideLoop):
    """Drains the outbox on a connection of its own until stopped."""

    def __init__(self, store: Store) -> None:
        super().__init__("dispatch")
        self._store = store
        self.events = 0
        self.failures = 0

    def state(self) -> dict[str, Any]:
        return {"events": self.events, "failures": self.failures, **super().state()}

    def work(self) -> None:
        graphs, head = GraphCache(), Head()
        with ExitStack() as stack:
            db = stack.enter_context(self._store.connect("dispatch", timeout_s=STATEMENT_S))
            wait = _waiter(self._store, db, self.stopping, stack)
            pause = QUICK_S
            live, look_at_live = True, 0.0
            while not self.stopping.is_set():
                done = drain(db, graphs, head=head)
                self.events += done.events
                self.failures += len(done.failed)
                self.error = done.failed[0] if done.failed else None
                if done.events:
                    pause = QUICK_S
                    continue
                if time.monotonic() >= look_at_live:
                    live = bool(db.value("select 1 from workflow_runs where status in ('queued', 'running') limit 1"))
                    look_at_live = time.monotonic() + 1.0
                pause = min(pause * SLOWER, LIVE_S if live else IDLE_S)
                if wait(pause):
                    pause, live = QUICK_S, True


def _waiter(store: Store, db: Db, stopping: threading.Event, stack: ExitStack) -> Callable[[float], bool]:
    """A function that waits for so many seconds, or less; True when something came that makes a graph move soon."""
    if isinstance(db, SqliteDb):
        version = db.data_version()

        def until_changed(pause: float) -> bool:
            """Asking whether another connection committed costs 8 microseconds, looking into the outbox ten times that."""
            nonlocal version
            until = time.monotonic() + 1.0
            while time.monotonic() < until and not stopping.wait(min(pause, SQLITE_S)):
                seen = db.data_version()
                if seen != version:
                    version = seen
                    return False
            return False

        return until_changed
    wakes = stack.enter_context(store.wakes(("node_job_ready",), poll_s=1.0))
    return lambda pause: bool(wakes.wait(pause))
