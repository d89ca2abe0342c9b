"""Whether the database answers: one log line per change, however many loops notice."""

from __future__ import annotations

import logging
import random
import threading
import time

log = logging.getLogger("engine.lane")
BACKOFF_CAP_S = 1.0


class Backoff:
    """Waits that double from 50 ms to a second, with jitter, until something works again."""

    def __init__(self) -> None:
        self._next = 0.05

    def wait_s(self) -> float:
        """How long to wait after one more failure, in seconds."""
        wait, self._next = self._next, min(BACKOFF_CAP_S, self._next * 2)
        return wait * random.uniform(0.7, 1.3)

    def reset(self) -> None:
        self._next = 0.05


class Link:
    """The lane's view of its database, shared by the loop and the keeper."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._broken: set[str] = set()
        self.down_since: float | None = None
        self.last_ok = time.monotonic()

    def broken(self, who: str, error: BaseException) -> None:
        """A loop lost its connection, or could not connect."""
        with self._lock:
            self._broken.add(who)
            if self.down_since is None:
                self.down_since = time.monotonic()
                log.warning("%s: database unreachable, work goes on (%s)", self.name, " ".join(str(error).split()))

    def works(self, who: str) -> None:
        """A loop has talked to the database."""
        self.last_ok = time.monotonic()
        if self.down_since is None:
            return
        with self._lock:
            self._broken.discard(who)
            if self.down_since is not None and not self._broken:
                log.info("%s: database back after %.1f s", self.name, time.monotonic() - self.down_since)
                self.down_since = None

    @property
    def offline_s(self) -> float:
        """Seconds since any loop last heard from the database."""
        return time.monotonic() - self.last_ok
