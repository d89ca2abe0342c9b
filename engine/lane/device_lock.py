"""The devices of a lane, locked against other lanes of the box.

The loop says which devices it wants; the keeper's thread, whose connection carries the locks, takes them and gives them
back, and the loop is told when that changed. A lock dies with the keeper's connection, and is asked for again on the
next; a lane that did not have it before lets the one that did come first.
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

ASKED, WAITING, HELD, SHARED = "asked", "waiting", "held", "shared"


class DeviceLocks:
    """Locks by device key. ``changed()`` is called on the keeper's thread when a lock was got, refused or lost."""

    def __init__(
        self, store: Store, box: str, queue: str, keys: Iterable[str], share: bool, changed: Callable[[], None]
    ) -> None:
        self._box, self._queue, self._changed = box, queue, changed
        self._got = SHARED if share else HELD
        self._locks = {key: Exclusive(store, f"gpu:{box}:{key}", shared=share) for key in dict.fromkeys(keys)}
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

    # --- the keeper's side ---

    def tend(self, db: Db) -> float:
        """Take what is wanted and free, give back what is not wanted any more. When to come again (monotonic)."""
        with self._guard:
            wanted = self._wanted
        now, before, freed = time.monotonic(), dict(self._states), False
        due = float("inf")
        for key, lock in self._locks.items():
            if key not in wanted:
                freed = freed or lock.held
                lock.release()
                self._set(key, None)
                continue
            if not lock.held:
                again = self._tried.get(key, 0.0) + APART_S
                if key not in self._had:
                    again = max(again, self._others_first_until)
                if now < again:
                    due = min(due, again)
                    continue
                self._tried[key] = now
                lock.try_acquire(db)
            self._set(key, self._got if lock.held else WAITING)
            if not lock.held:
                due = min(due, now + RETRY_S)
        if freed:
            db.notify("worker_control", f"{self._box}:{self._queue}")
        if before != self._states:
            self._tell(before)
            self._changed()
        return due

    def dropped(self) -> None:
        """The connection is gone, and with it its locks."""
        lost = frozenset(key for key, state in self._states.items() if state == self._got and not self._locks[key].held)
        self._had |= lost
        self._others_first_until = time.monotonic() + float(config.get("session_grace_seconds"))
        for key in lost:
            self._set(key, ASKED)
        if lost:
            self._changed()

    def release(self) -> None:
        """Let go of all of them: the lane ends."""
        self.want(())
        for lock in self._locks.values():
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
