"""The lane's loop: claim for free slots, hand jobs to executors, commit what became of them, obey orders.

One thread, one selector, one database connection; it never runs user code. What lives as long as the lane and must not
wait for this loop (renewals, heartbeats, looking for orders) is the keeper's.
"""

from __future__ import annotations

import gc
import logging
import os
import selectors
import signal
import sys
import time
from collections import deque
from dataclasses import replace
from types import FrameType
from typing import Any

from engine import config
from engine.errors import BadInput
from engine.lane import exits, logs, tree
from engine.lane.ahead import COMPANY_S, Ahead
from engine.lane.book import Book
from engine.lane.crew import Crew
from engine.lane.desk import Desk
from engine.lane.duty import Duty
from engine.lane.fates import Fates
from engine.lane.guard import Guard
from engine.lane.intake import Intake
from engine.lane.keeper import Face, Keeper, Timing
from engine.lane.link import Link
from engine.lane.options import LaneOptions
from engine.lane.outdirs import OutDirs
from engine.lane.round import Round
from engine.lane.settle import Settler
from engine.lane.sink import LaneSink
from engine.lane.slot import Slot, Spec, Why, stuck
from engine.lane.tails import Tails
from engine.lane.watch import Watch
from engine.queue.controls import Order
from engine.queue.floor import look_at_the_head, owes_a_look
from engine.queue.workers import Worker
from engine.store import Store

log = logging.getLogger("engine.lane")
TICK_S = 0.1
HOUSEKEEPING_S = 5.0
GOODBYE_S = 1.0  # executors may take so long to drop their models at the end
LAST_WRITE_S = 5.0  # at the end, what waits for an unreachable database is waited for so long


class Lane:
    """One life of one lane. :meth:`run` returns the process's exit code."""

    def __init__(self, store: Store, worker: Worker, options: LaneOptions, spec: Spec) -> None:
        self.store, self.worker, self.options, self.spec = store, worker, options, spec
        self.name = f"{worker.box}/{worker.queue}" + (f" ({worker.project})" if worker.project else "")
        self.gpu = worker.queue == "gpu"
        self.selector = selectors.DefaultSelector()
        self.duty = Duty()
        self.book = Book()
        self.link = Link(self.name)
        self.settler = Settler(worker, self.book)
        self.guard = Guard(worker.incarnation)
        slots = options.make_slots(replace(spec, guard=self.guard))
        self.ahead = Ahead(0 if self.gpu else options.claims_ahead, len(slots))
        self.fates = Fates(
            self.name,
            self.book,
            self.settler,
            self.ahead,
            lambda slot, end: slot.read(end, self.selector),
            self._on_ready,
        )
        self.crew = self.fates.crew = Crew(slots, self.selector, self.fates.read, self.fates.ended)
        timing = Timing(options.lease_seconds, options.renew_seconds, options.beat_seconds)
        self.desk: Desk | None = None
        if self.gpu:
            self.desk = Desk(store, worker, self.crew, options.share_gpu, lambda: self.fates.models, self._post)
            self.fates.on_answer = self.desk.errands.answered
        self.tails = Tails(worker, spec.log_dir, self.book, lambda: self.keeper.poke())
        self.fates.printed = self.tails.ended
        self.keeper = Keeper(
            store, worker, self.book, self.link, timing, lambda: self._face, self._post, self.desk, self.tails
        )
        self.intake = Intake(
            worker,
            options.lease_seconds,
            options.host_priority,
            self.duty,
            self.book,
            self.crew,
            self.fates,
            self.ahead,
            lambda: self.keeper.holding,
            self.desk.gpus if self.desk is not None else None,
        )
        self.watch = Watch(worker, self.book, self.crew, self.fates, options.cancel_grace)
        self.round = Round(
            store,
            worker,
            self.duty,
            self.link,
            self.crew,
            self.ahead,
            self.fates,
            self.settler,
            self.intake,
            self.watch,
            self.desk,
            self._pump,
        )
        self.done = False
        self._changed = False
        self._empty = True  # no executor, and nothing that one has left behind
        self._stop_signals = 0
        self._news: deque[tuple[str, Any]] = deque()
        self._news_read, self._news_write = os.pipe()
        for fd in (self._news_read, self._news_write):
            os.set_blocking(fd, False)
        self._tick_at = self._housekeeping_at = 0.0
        self._face = self._make_face()
        self.wakes = store.wakes((worker.family.channel, "worker_control"), poll_s=1.0)
        self.sink = LaneSink(store, spec.environment)
        self.out_dirs = OutDirs(spec.out_dir, float(config.get("out_keep_days")), self.book.tokens)
        self.fates.on_sink = self.sink.told

    # --- the loop ---

    def run(self) -> int:
        """Work until told to stop (or, with ``once``, until there is nothing left). Signals: drain, then hard."""
        tree.become_subreaper()
        sys.setswitchinterval(0.001)  # the loop and the keeper are both short of breath, neither computes for long
        gc.collect()
        gc.freeze()  # what is here now stays: collections that come every few jobs need not walk over it
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.set_wakeup_fd(self._news_write, warn_on_full_buffer=False)
        self.selector.register(self._news_read, selectors.EVENT_READ, "news")
        self.selector.register(self.wakes.fileno(), selectors.EVENT_READ, "wakes")
        logs.prune(self.spec.log_dir)
        self.guard.start()
        self.keeper.start()
        try:
            while not self.done:
                self.book.turns += 1
                self._wait()
                self._turn()
        finally:
            self._close()
        if self.fates.bad_app is not None:
            raise BadInput(self.fates.bad_app)
        return self.duty.exit_code

    def _wait(self) -> None:
        due = self._tick_at
        if self.settler.outcomes and self.round.db is not None:
            due = min(due, self.settler.oldest + COMPANY_S)
        for key, events in self.selector.select(max(0.0, due - time.monotonic())):
            if key.data == "news":
                os.read(self._news_read, 4096)
            elif key.data == "wakes":
                self._wake()
            else:
                slot, what = key.data
                if what == "death":
                    self.crew.ended(slot)
                    continue
                if events & selectors.EVENT_READ:
                    self.fates.read(slot, what)
                if events & selectors.EVENT_WRITE:
                    slot.pump(self.selector)

    def _turn(self) -> None:
        now = time.monotonic()
        while self.duty.stops < self._stop_signals:
            self._stop(now)
        while self._news:
            kind, value = self._news.popleft()
            self._on_news(kind, value, now)
        ticks = now >= self._tick_at
        if ticks:
            self._tick(now)
        if self.intake.waiting and self.duty.claiming:
            self.intake.serve_waiting()
            self._pump()
        self.round.turn(now)
        if self.desk is not None:
            waiting = [held.job.required_model for held in (*self.intake.waiting, *self.fates.verify)]
            if self.desk.turn(self.duty.claiming, self.fates.ever_ready, waiting):
                self.keeper.poke()
        if ticks or self._state() != self._face.state:  # slots that flicker between two ticks are not worth a look
            face = self._make_face()
            if face != self._face:
                self._face = face
                self.keeper.poke()
        self.done = self.done or self._is_done()

    def _wake(self) -> None:
        notes = self.wakes.drain()
        if not notes:
            self.round.look = True  # the poll, or a change of a SQLite file: look at everything
            self._changed = self.store.kind == "sqlite"  # maybe an order; our own commits show here too
        for note in notes:
            if note.channel == "worker_control":
                box, _, queue = note.payload.rpartition(":")
                if box in (self.worker.box, "*") and queue in (self.worker.queue, "*"):
                    look_at_the_head(self.round.db)
                    self.keeper.poke(look=True)
            elif note.payload == self.worker.queue:
                self.round.look = True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop_signals += 1

    def _post(self, kind: str, value: Any) -> None:
        """News from the keeper's thread."""
        self._news.append((kind, value))
        try:
            os.write(self._news_write, b"n")
        except BlockingIOError:
            pass  # it is full, so the loop will wake

    # --- orders and time ---

    def _on_news(self, kind: str, value: Any, now: float) -> None:
        if kind == "order":
            self._on_order(value)
        elif kind == "held":
            self.duty.holding = self.round.look = True
        elif kind == "devices":
            self.round.look = True
        elif kind == "models" and self.desk is not None:
            self.desk.errands.ordered(value)
        elif kind == "waiting":
            self.duty.holding = False
            if self.options.once and not self.book:
                self.duty.exit_code, self.done = 1, True
        elif kind == "sick":
            self.fates.last_exit = (None, str(value)[:200])
        elif kind == "lost":
            self.watch.lost(value)
            self.intake.forget_lost()
        elif kind == "cancel":
            self.watch.cancel(value)
        elif kind == "kill":
            self.watch.kill(value)

    def _on_order(self, order: Order) -> None:
        before, self.duty.order = self.duty.order, order
        if (order.desired, order.policy) == (before.desired, before.policy):
            return
        if order.desired == "on":
            log.info("%s: resumed", self.name)
            self.round.look = True
            return
        reason = f" ({order.reason})" if order.reason else ""
        log.info("%s: ordered off, %s%s", self.name, order.policy, reason)
        if self.duty.parking:
            self._kill_all(exits.OPERATOR_STOP, "operator_stop", f"parked{reason}")
        else:
            self.watch.revoke_ahead()

    def _stop(self, now: float) -> None:
        self.duty.stop(now, self.options.grace)
        if self.duty.stops == 1:
            log.info("%s: draining, %d running, at most %.0f s", self.name, self.crew.busy, self.options.grace)
            self.watch.revoke_ahead()

    def _kill_all(self, code: int | None, cause: str, reason: str) -> None:
        self.crew.kill(self.crew.alive, Why(code, cause, {"reason": reason}))

    def _tick(self, now: float) -> None:
        self._tick_at = now + TICK_S
        if self._changed:
            self._changed = False
            self.keeper.poke(look=True)
        self.round.look = self.round.look or owes_a_look(self.round.db)
        self.crew.look_for_the_dying(now)
        self.watch.tick(now)
        if not self.duty.claiming:
            self.intake.give_up(self.settler)
        self.intake.give_back_stranded(self.settler)
        if self.duty.stops and now >= self.duty.stop_by and self.crew.has_jobs:
            at_once = self.duty.stops > 1
            why = "the lane was told to stop at once" if at_once else "the lane was stopped and its grace is over"
            self._kill_all(None, "drain", why)
        if self.link.offline_s > self.options.max_offline and self.crew.has_jobs:
            log.error("%s: no database for %.0f s; stopping what runs", self.name, self.link.offline_s)
            self._kill_all(None, "drain", f"no database for {self.link.offline_s:.0f} s")
        if self.fates.tripped is not None and self.options.exit_on_trip and len(self.crew.slots) == 1:
            self.duty.exit_code = self.fates.tripped
            self._stop_signals = max(1, self._stop_signals)
        if self.fates.bad_app is not None:
            self.done = True
        elif self.duty.holding and not self.duty.off and not self.duty.stops:
            self._empty = False
            self.crew.start_due(now)
        elif self.duty.off and not self.crew.has_jobs and not self._empty:
            self._dismiss(GOODBYE_S / 2)
        if now >= self._housekeeping_at:
            self._housekeeping_at = now + HOUSEKEEPING_S
            self._keep_house()

    def _dismiss(self, timeout_s: float) -> None:
        """All executors leave, and what they left behind goes with them."""
        self._empty = True
        self.crew.dismiss(timeout_s)
        tree.kill_adopted({self.guard.pid or 0, self.sink.pid} | self.watch.pids)

    def _keep_house(self) -> None:
        self.guard.check()
        ours = {self.guard.pid or 0, self.sink.pid} | self.watch.pids
        ours |= {slot.pid for slot in self.crew.slots if slot.pid}
        tree.reap_orphans(ours)
        if self.guard.replaced:  # nobody else is above what the executors of the old one leave behind
            tree.kill_adopted(ours)
        self.crew.bound_logs()
        self.out_dirs.tidy(time.monotonic())
        if not self.keeper.is_alive():
            log.critical("%s: the keeper has ended for good; so does this lane", self.name)
            self.duty.exit_code = 1
            self._stop_signals += 2  # nobody renews any more: give everything back at once

    # --- executors ---

    def _on_ready(self, slot: Slot) -> None:
        """An executor can take jobs."""
        self.round.look = True

    def _pump(self) -> None:
        for slot in self.crew.slots:
            slot.pump(self.selector)

    # --- what others see, and the end ---

    def _state(self) -> str:
        return self.duty.state(ever_ready=self.fates.ever_ready, executors=bool(self.crew.alive), work=bool(self.book))

    def _make_face(self) -> Face:
        loaded = sorted({slot.says for slot in self.crew.slots if slot.says})
        gpus = self.desk.gpus if self.desk is not None else None
        known = tuple(sorted(self.fates.models))
        return Face(
            state=self._state(),
            slots=len(self.crew.slots),
            busy=self.crew.busy,
            current_model=", ".join(loaded) or None,
            models_known=known,
            models_fit=gpus.models_fit if gpus is not None else (),
            vram_mb=gpus.vram_mb if gpus is not None else None,
            detail=(gpus.detail() if gpus is not None else {})
            | self.watch.detail()
            | ({"stuck": pids} if (pids := stuck()) else {}),
            last_exit_code=self.fates.last_exit[0],
            last_exit_reason=self.fates.last_exit[1],
            version=self.options.version,
        )

    def _is_done(self) -> bool:
        if self.duty.stops:
            return not self.book or time.monotonic() > self.duty.stop_by + LAST_WRITE_S
        if not self.options.once or self.book or self.round.look or (self.desk is not None and self.desk.gpus.seeking):
            return False
        if owes_a_look(self.round.db):
            return False
        return self.duty.off or (self.duty.holding and bool(self.crew.idle))

    def _close(self) -> None:
        """End what runs, let the heartbeat stop last. Every step is bounded."""
        self._dismiss(GOODBYE_S)
        self.watch.close()
        if self.book:
            log.warning("%s: leaving %d job(s) to the fleet's sweeps: no database", self.name, len(self.book))
        self.duty.stops = max(1, self.duty.stops)
        self._face = self._make_face()
        self.sink.end()
        self.keeper.finish(timeout_s=10.0)
        self.wakes.close()
        if self.round.db is not None:
            self.round.db.close()
        self.guard.end()
        log.info("%s: ended", self.name)
