"""The devices of a lane, locked against other lanes of the box.

The loop says which devices it wants; the keeper's thread, whose connection carries the locks, takes them and gives them
back, and the loop is told when that changed. A lock dies with the keeper's connection, and is asked for again on the
next; a lane that did not have it before lets the one that did come first.

Lanes take turns: who waits holds a mark beside the lock, and a lane that has had a device for ``gpu_turn_seconds`` and sees a
mark :meth:`DeviceLocks.yields` it: it begins nothing more there, lets it go as soon as nothing runs, and lets the other come
first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from engine import config
from engine.store import Db, Store
from engine.store.locks import Exclusive

log = logging.getLogger("engine.lane")
RETRY_S = 0.25  # a lock that another lane has is tried again; on PostgreSQL its release is told as well
APART_S = 0.02  # but never more often than so
LOOK_S = 1.0  # how often a lane whose turn is over looks whether another one waits
STAND_BACK_S = 2.0  # after a turn: so long the other may take the device

ASKED, WAITING, HELD, SHARED = "asked", "waiting", "held", "shared"


class DeviceLocks:
    """Locks by device key. ``changed()`` is called on the keeper's thread when a lock was got, refused or lost."""

    def __init__(
        self, store: Store, box: str, queue: str, keys: Iterable[str], share: bool, changed: Callable[[], None]
    ) -> None:
        self._box, self._queue, self._changed = box, queue, changed
        self._got = SHARED if share else HELD
        self._locks = {key: Exclusive(store, f"gpu:{box}:{key}", shared=share) for key in dict.fromkeys(keys)}
        # Who waits for a device holds its mark together with others who wait; who has the device tries to have it alone.
        self._marks = {key: Exclusive(store, f"gpu-wait:{box}:{key}", shared=True) for key in self._locks}
        self._probes = {key: Exclusive(store, f"gpu-wait:{box}:{key}") for key in self._locks}
        self._turn_s = 0.0 if share else float(config.get("gpu_turn_seconds"))
        self._since: dict[str, float] = {}  # when a device became ours (monotonic)
        self._looked: dict[str, float] = {}  # when we last looked whether another lane waits for it
        self._not_before: dict[
            str, float
        ] = {}  # a device that we have let go: not before the other had the time to come
        self._yields: frozenset[str] = frozenset()
        self._guard = threading.Lock()
        self._wanted: frozenset[str] = frozenset()
        self._states: dict[str, str] = {}
        self._tried: dict[str, float] = {}
        self._had: frozenset[str] = frozenset()  # when the last connection was lost
        self._others_first_until = 0.0

    # --- the loop's side ---

    def want(self, keys: Iterable[str]) -> bool:
        """Say which devices are wanted from now on. True: that is new, the keeper should look."""
        wanted = frozenset(keys) & self._locks.keys()
        with self._guard:
            if wanted == self._wanted:
                return False
            for key in wanted - self._wanted:
                self._states.setdefault(key, ASKED)
            self._wanted = wanted
        return True

    def state(self, key: str | None) -> str | None:
        """asked (no answer yet), waiting (another lane has it), held or shared (it is ours), None (not wanted)."""
        return self._states.get(key) if key is not None else None

    def ours(self, key: str | None) -> bool:
        """Work may start there. A device without a name cannot be locked, and always is."""
        return key is None or (self._states.get(key) == self._got and self._locks[key].held)

    def yields(self, key: str | None) -> bool:
        """Our turn is over and another lane waits: begin nothing more there, and stop wanting it once nothing runs."""
        return key in self._yields

    # --- the keeper's side ---

    def tend(self, db: Db) -> float:
        """Take what is wanted and free, give back what is not wanted any more. When to come again (monotonic)."""
        with self._guard:
            wanted = self._wanted
        now, before, freed = time.monotonic(), dict(self._states), False
        yielded = self._yields
        due = float("inf")
        for key, lock in self._locks.items():
            if key not in wanted:
                if key in self._yields and lock.held:
                    self._not_before[key] = now + STAND_BACK_S
                freed = freed or lock.held
                lock.release()
                self._marks[key].release()
                self._forget_turn(key)
                self._set(key, None)
                continue
            if not lock.held:
                again = self._tried.get(key, 0.0) + APART_S
                if key not in self._had:
                    again = max(again, self._others_first_until, self._not_before.get(key, 0.0))
                if now < again:
                    due = min(due, again)
                    continue
                self._tried[key] = now
                lock.try_acquire(db)
            self._set(key, self._got if lock.held else WAITING)
            if lock.held:
                self._marks[key].release()
                due = min(due, self._tend_turn(db, key, now))
            else:
                self._marks[key].try_acquire(db)
                due = min(due, now + RETRY_S)
        if freed:
            db.notify("worker_control", f"{self._box}:{self._queue}")
        if before != self._states:
            self._tell(before)
        if before != self._states or yielded != self._yields:
            self._changed()
        return due

    def _tend_turn(self, db: Db, key: str, now: float) -> float:
        """Whether our turn on a device is over because another lane waits. When to look again (monotonic)."""
        since = self._since.setdefault(key, now)
        if not self._turn_s:
            return float("inf")
        due = max(since + self._turn_s, self._looked.get(key, 0.0) + LOOK_S)
        if now < due:
            return due
        self._looked[key] = now
        alone = self._probes[key].try_acquire(db)
        self._probes[key].release()
        self._yields = self._yields - {key} if alone else self._yields | {key}
        return now + LOOK_S

    def _forget_turn(self, key: str) -> None:
        self._since.pop(key, None)
        self._yields -= {key}

    def dropped(self) -> None:
        """The connection is gone, and with it its locks."""
        lost = frozenset(key for key, state in self._states.items() if state == self._got and not self._locks[key].held)
        self._had |= lost
        for key in self._locks:
            self._forget_turn(key)
        self._others_first_until = time.monotonic() + float(config.get("session_grace_seconds"))
        for key in lost:
            self._set(key, ASKED)
        if lost:
            self._changed()

    def release(self) -> None:
        """Let go of all of them: the lane ends."""
        self.want(())
        for lock in (*self._locks.values(), *self._marks.values()):
            lock.release()
        self._states.clear()

    def _set(self, key: str, state: str | None) -> None:
        with self._guard:
            if state is not None and key in self._wanted:
                self._states[key] = state
                if state == self._got:
                    self._had |= {key}
            elif key not in self._wanted:
                self._states.pop(key, None)
                self._had -= {key}

    def _tell(self, before: dict[str, str]) -> None:
        for key, state in self._states.items():
            if state == WAITING and before.get(key) != WAITING:
                log.info("GPU %s: another lane of this box has it; waiting", key)
            elif state == self._got and before.get(key) == WAITING:
                log.info("GPU %s: ours now", key)
