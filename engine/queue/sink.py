"""Passing on the events that this process writes: the hook ``event_sink``, called after their commit.

Whoever writes events only notes their ids; a thread reads the rows on a connection of its own once they are committed
and hands them over. What it cannot pass on in time is dropped and counted: a sink that is slow, or a database that is
away, holds up no job. An event may come twice (its ``id`` tells), one that was rolled back never comes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from engine.errors import StoreError
from engine.queue import events
from engine.store import Db, Store

log = logging.getLogger("engine.sink")

WAITING = 10_000  # events that may wait to be passed on
AT_ONCE = 500
LOOK_S = 0.05  # between two looks for events that are not committed yet
GIVE_UP_S = 60.0  # an event that nobody can see for so long was rolled back

Deliver = Callable[[dict[str, Any]], None]


class Sink(threading.Thread):
    """The thread. ``deliver`` gets each event as plain data and may take its time; whatever it raises is contained.
    ``prepare`` is called once before, on this thread."""

    def __init__(
        self, store: Store, deliver: Deliver, waiting: int = WAITING, prepare: Callable[[], None] | None = None
    ) -> None:
        super().__init__(name="event sink", daemon=True)
        self._store, self._deliver, self._most, self._prepare = store, deliver, waiting, prepare
        self._noted: deque[tuple[int, float]] = deque()  # event id, monotonic time
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self.passed_on = 0
        self.dropped = 0
        self.failures = 0

    def listen(self) -> Sink:
        """Take note of the events of this process from now on."""
        events.listen(self.note)
        return self

    def begin(self) -> Sink:
        """Pass them on. Once is enough."""
        if not self.is_alive() and not self._ending.is_set():
            self.listen()
            self.start()
        return self

    def forget(self) -> None:
        """Nobody wants them (unless it was begun)."""
        if not self.is_alive():
            events.listen(None)
            self._noted.clear()

    def note(self, ids: Sequence[int]) -> None:
        """Remember events to pass on; from any thread, at once."""
        now = time.monotonic()
        with self._lock:
            room = self._most - len(self._noted)
            self._noted.extend((id, now) for id in ids[: max(0, room)])
            lost = max(0, len(ids) - room)
            first = lost > 0 and self.dropped == 0
            self.dropped += lost
        if first:
            log.warning("the event sink is too slow: events are dropped from now on (%d wait)", self._most)
        self._wake.set()

    def end(self, timeout_s: float) -> None:
        """Stop listening; what was noted is passed on first, if that takes no longer than ``timeout_s``."""
        events.listen(None)
        self._ending.set()
        self._wake.set()
        if self.is_alive():
            self.join(timeout_s)
        if self.dropped:
            log.warning("the event sink dropped %d event(s)", self.dropped)

    def run(self) -> None:
        db: Db | None = None
        if self._prepare is not None:
            try:
                self._prepare()
            except Exception as error:  # whoever delivers tries again
                log.warning("the event sink cannot be prepared (%s: %s)", type(error).__name__, error)
        while True:
            self._wake.wait(1.0)
            self._wake.clear()
            while self._noted:
                try:
                    db = db or self._store.connect("event sink")
                    found = self._pass_on(db)
                except StoreError:  # the lane or the orchestrator says in the log that the database is away
                    if db is not None:
                        db.close()
                    db, found = None, 0
                if self._ending.is_set() and not found:
                    break
                if not found:
                    time.sleep(LOOK_S)
            if self._ending.is_set():
                break
        if db is not None:
            db.close()

    def _pass_on(self, db: Db) -> int:
        with self._lock:
            batch = [self._noted.popleft() for _ in range(min(AT_ONCE, len(self._noted)))]
        try:
            found = events.by_ids(db, [id for id, _ in batch])
        except BaseException:
            with self._lock:
                self._noted.extendleft(reversed(batch))
            raise
        seen = {int(event["id"]) for event in found}
        limit = time.monotonic() - GIVE_UP_S
        with self._lock:  # they come last: others are not held up by a long transaction
            self._noted.extend(each for each in batch if each[0] not in seen and each[1] > limit)
        for event in found:
            event["at"] = event["at"].isoformat()
            self._hand_over(event)
        return len(found)

    def _hand_over(self, event: dict[str, Any]) -> None:
        try:
            self._deliver(event)
            self.passed_on += 1
        except Exception as error:
            self.failures += 1
            if self.failures == 1:
                log.error(
                    "hook event_sink failed for event %s: %s: %s (told once)",
                    event["id"],
                    type(error).__name__,
                    " ".join(str(error).split())[:300],
                )
