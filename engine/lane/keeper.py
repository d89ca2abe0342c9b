"""The keeper: a thread with a connection of its own that keeps the lane alive in the eyes of the fleet.

It holds the lane's lock and its presence mark, renews every lease in one statement, beats, and looks for orders and for
flags on what runs. It decides nothing: what it sees goes to the loop as news. A handler that holds its GIL, or a loop
that waits for the database, cannot stop it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from engine.errors import StoreError
from engine.lane.book import Book
from engine.lane.link import Backoff, Link
from engine.lane.tails import Tails
from engine.queue import controls, lease, requeue, workers
from engine.queue.workers import Worker
from engine.store import Db, Store
from engine.store.locks import Exclusive, Presence
from engine.store.postgres import PostgresDb, is_pooled

log = logging.getLogger("engine.lane")
LOOK_S = 1.0  # orders and flags are looked at this often, without any wake
CHANGE_S = 0.25  # beats on a change are at least so far apart
GIVE_UP_AFTER = 5  # unexpected errors in a row
STALL_S = 5.0  # a round later than this means that the process was stopped: renew at once


@dataclass(frozen=True)
class Face:
    """What the lane says of itself: the heartbeat's columns."""

    state: str
    slots: int
    busy: int
    current_model: str | None = None
    models_known: tuple[str, ...] = ()
    models_fit: tuple[str, ...] = ()
    vram_mb: float | None = None
    last_exit_code: int | None = None
    last_exit_reason: str | None = None
    version: str = ""
    detail: Mapping[str, Any] | None = None  # devices, slots by kind, side loops that ail


@dataclass(frozen=True)
class Timing:
    """Seconds."""

    lease_s: float
    renew_s: float
    beat_s: float


class Side(Protocol):
    """What else needs the keeper's connection: locks that must live as long as it does."""

    def tend(self, db: Db, look: bool) -> float:
        """A turn, ``look``: for orders, too. When the next one is due (monotonic). Raises StoreError."""
        ...

    def dropped(self) -> None:
        """The connection is gone, and what it carried."""
        ...

    def release(self) -> None:
        """The lane ends."""
        ...


class Keeper(threading.Thread):
    """``news(kind, value)`` is called on this thread: ``order`` Order, ``lost`` / ``cancel`` / ``kill`` {id: token},
    ``held`` None (the lane's lock is ours from now on)."""

    def __init__(
        self,
        store: Store,
        worker: Worker,
        book: Book,
        link: Link,
        timing: Timing,
        face: Callable[[], Face],
        news: Callable[[str, Any], None],
        side: Side | None = None,
        tails: Tails | None = None,
    ) -> None:
        super().__init__(name="keeper", daemon=True)
        self._store, self._worker, self._book, self._link = store, worker, book, link
        self._timing, self._face, self._news, self._side, self._tails = timing, face, news, side, tails
        self._presence = Presence(store, worker.incarnation)
        self._exclusive = Exclusive(store, f"lane:{worker.box}:{worker.queue}:{worker.project}")
        self._locks = True  # False behind a pooler: a lock would stay on its connection when we are gone
        self._pooler_told = False
        self._poked = threading.Event()
        self._ending = threading.Event()
        self._db: Db | None = None
        self._order: controls.Order | None = None
        self._next_renew = self._next_beat = self._next_look = 0.0
        self._last_beat = float("-inf")
        self._beaten: Face | None = None
        self._strays: dict[int, tuple[int, int]] = {}  # rows of ours that nobody here holds: token, seen in which turn
        self._look_now = False
        self._waiting_told = False
        self._ever_held = False
        self.holding = False  # the lane's lock is ours
        self.round_at = time.monotonic()  # when the last round began, for whoever supervises

    # --- from the loop ---

    def poke(self, look: bool = False) -> None:
        """Something changed: beat soon; ``look``: for orders and flags, too."""
        if look:
            self._look_now = True
        self._poked.set()

    def finish(self, timeout_s: float) -> None:
        """Beat a last time (state ``stopping``), let go of the locks, end. The heartbeat is the last thing to stop."""
        self._ending.set()
        self._poked.set()
        self.join(timeout_s)

    # --- the thread ---

    def run(self) -> None:
        backoff = Backoff()
        failures = 0
        while not self._ending.is_set():
            self.round_at = time.monotonic()
            try:
                if self._db is None:
                    self._connect()
                self._round()
                backoff.reset()
                failures = 0
                continue
            except StoreError as error:
                self._link.broken("keeper", error)
            except Exception as error:
                # A defect: start over with a new connection, say so on the deck; the loop ends the lane if it persists.
                failures += 1
                log.exception("%s: the keeper failed; starting over", self._lane)
                self._news("sick", f"keeper: {type(error).__name__}: {error}")
                if failures >= GIVE_UP_AFTER:
                    self._disconnect()
                    return
            self._disconnect()
            self._poked.wait(backoff.wait_s())
            self._poked.clear()
        self._say_goodbye()

    def _connect(self) -> None:
        name = f"lane {self._worker.queue} keeper"
        self._db = self._store.connect(name, direct=True, timeout_s=min(10.0, self._timing.renew_s))
        self._locks = not (isinstance(self._db, PostgresDb) and is_pooled(self._db))
        if self._locks:
            self._presence.hold(self._db)
        elif not self._pooler_told:
            self._pooler_told = True
            log.warning(
                "%s: a pooler stands before the database; set FLIGHTDECK_DB_DIRECT_URL to an address past it. Without one "
                "this lane holds no session lock: its death is seen by its heartbeat only, after 45 s, and work that "
                "comes in by the poll",
                self._lane,
            )
        self._next_renew = self._next_beat = self._next_look = 0.0

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        self.holding = self._exclusive.held
        if self._side is not None:
            self._side.dropped()

    def _round(self) -> None:
        """One pass over what is due, then a wait for the next."""
        db = self._db
        assert db is not None
        if not self.holding:
            self._take_lane(db)
        now = time.monotonic()
        if now >= self._next_renew:
            self._renew(db, now)
        look = self._look_now or now >= self._next_look
        if look and self._ever_held:
            self._look_now = False
            self._look(db)
        if now >= self._next_look:
            self._next_look = time.monotonic() + LOOK_S * random.uniform(0.7, 1.0)
        face = self._face()
        changed = self.holding and face != self._beaten
        # A new state is told at once; busy and idle may flicker, so those wait.
        urgent = changed and (self._beaten is None or face.state != self._beaten.state)
        now = time.monotonic()
        if self.holding and (now >= self._next_beat or urgent or (changed and now >= self._last_beat + CHANGE_S)):
            self._beat(db)
            changed = False
        self._link.works("keeper")
        due = min(self._next_renew, self._next_look)
        if self.holding:
            due = min(due, self._next_beat)
        if changed:
            due = min(due, self._last_beat + CHANGE_S)
        if self._side is not None:
            due = min(due, self._side.tend(db, look and self._ever_held))
        if self._tails is not None:
            due = min(due, self._tails.tend(db))
        self._wait(due)

    def _wait(self, due: float) -> None:
        began = time.monotonic()
        wait = max(0.0, due - began)
        if self._poked.wait(wait):
            self._poked.clear()
        if time.monotonic() - began > wait + STALL_S:
            log.warning(
                "%s: this process stood still for %.0f s; asking whose jobs these are",
                self._lane,
                time.monotonic() - began,
            )
            self._next_renew = 0.0

    @property
    def _lane(self) -> str:
        return f"{self._worker.box}/{self._worker.queue}"

    def _take_lane(self, db: Db) -> None:
        """Take the lane's lock, free what a predecessor left, read the first order; or wait for the lane that has it.

        Work that runs (the lock went with a connection) is renewed meanwhile: its fences are ours, whoever has the lock.
        """
        if not (self._exclusive.try_acquire(db) if self._locks else workers.alone(db, self._worker)):
            if not self._waiting_told:
                self._waiting_told = True
                project = f" (project {self._worker.project})" if self._worker.project else ""
                log.warning("another lane holds %s%s on this box; waiting for it to end", self._lane, project)
                self._news("waiting", None)
            return
        freed = workers.free_predecessors(self._store, db, self._worker)
        if freed:
            log.info("%s: freed %d job(s) that a predecessor left behind", self._lane, freed)
        if self._waiting_told:
            log.info("%s: the other lane is gone; taking over", self._lane)
        self._waiting_told = False
        self._order = None
        self._look(db)
        self.holding = self._ever_held = True
        self._news("held", None)
        self._beat(db)

    def _renew(self, db: Db, now: float) -> None:
        held = self._book.tokens()
        if held:
            answer = lease.renew(db, self._worker, held, self._timing.lease_s)
            self._book.renewed(answer.renewed, now)
            self._tell(held, answer.lost, answer.cancel, answer.kill)
        self._next_renew = now + self._timing.renew_s
        self._look_for_strays(db)

    def _look_for_strays(self, db: Db) -> None:
        """Rows of ours that no slot holds: the answer to their claim was lost with a connection. Give them back.

        Only what was seen two rounds of the loop ago counts: by then an answer would have been entered in the book.
        """
        turn = self._book.turns
        mine = lease.owned(db, self._worker)
        held = self._book.tokens()
        seen = {id: self._strays.get(id) for id in mine.keys() - held.keys()}
        self._strays = {}
        old: dict[int, int] = {}
        for id, before in seen.items():
            first = before if before is not None and before[0] == mine[id] else (mine[id], turn)
            if first[1] + 2 <= turn:
                old[id] = mine[id]
            else:
                self._strays[id] = first
        if old:
            log.warning("%s: giving back %d job(s) whose claim was not answered", self._lane, len(old))
            requeue.hand_back(db, self._worker, old, unanswered=True)

    def _look(self, db: Db) -> None:
        order = controls.order_for(db, self._worker.box, self._worker.queue, self._worker.project)
        if order != self._order:
            self._order = order
            self._news("order", order)
        held = self._book.tokens()
        if held:
            cancel, kill, lost = lease.flags(db, self._worker, held)
            self._tell(held, lost, cancel, kill)

    def _tell(self, held: dict[int, int], lost: set[int], cancel: set[int], kill: set[int]) -> None:
        for kind, ids in (("lost", lost), ("cancel", cancel), ("kill", kill)):
            if ids:
                self._news(kind, {id: held[id] for id in ids})

    def _beat(self, db: Db) -> None:
        face = self._face()
        workers.beat(db, self._worker, **vars(face))
        self._beaten = face
        self._last_beat = time.monotonic()
        self._next_beat = self._last_beat + self._timing.beat_s

    def _say_goodbye(self) -> None:
        try:
            if self._db is None:
                self._db = self._store.connect("lane keeper", direct=True, timeout_s=3.0)
            if self.holding or self._exclusive.held:
                self._beat(self._db)
            if self._tails is not None:
                self._tails.finish(self._db)
            if self._side is not None:
                self._side.release()
            self._exclusive.release()
            self._presence.release()
        except StoreError as error:
            log.warning("%s: the last heartbeat could not be written (%s)", self._lane, error)
        finally:
            if self._db is not None:
                self._db.close()
