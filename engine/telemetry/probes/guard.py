"""A deadline around a reader: what hangs or fails loses its own values and nothing else.

Each reader has a thread. The thread is asked for a reading and waited for up to the deadline; one that does not come
back is left alone (a system call on a sick driver cannot be interrupted) and not asked again until it does, and then
only after a pause. The recorder asks all its readers first and collects afterwards, so that their times overlap.

``Guard`` is all that the source knows of a reader: one that lives in a process of its own can take its place.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

PAUSE_S = 2.0  # after a hang or failures, doubling
PAUSE_MAX_S = 60.0
FAILURES = 3  # in a row before a reader that raises is given a pause


class Guard(Generic[T]):
    """Runs ``read`` in a thread of its own. Not for two callers at once."""

    def __init__(self, name: str, read: Callable[[], T], clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._read = read
        self._clock = clock
        self._ask = threading.Event()
        self._done = threading.Event()
        self._done.set()
        self._closed = False
        self._result: T | None = None
        self._failure: BaseException | None = None
        self._asked = False  # by the present round
        self._asked_at = 0.0
        self._hung = False
        self._bad = 0  # hangs and failures in a row
        self._not_before = 0.0
        self._thread: threading.Thread | None = None
        self.error: str | None = None  # why there are no values now, or None

    def ask(self) -> None:
        """Start a reading, unless the last one still hangs or a pause is on."""
        self._asked = False
        if not self._done.is_set():
            return
        if self._hung:  # it came back, long after its round: drop what it says, and wait a little
            self._hung = False
            self._pause()
        if self._clock() < self._not_before:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"probe {self.name}", daemon=True)
            self._thread.start()
        self._asked = True
        self._asked_at = self._clock()
        self._done.clear()
        self._ask.set()

    def collect(self, deadline: float) -> T | None:
        """The reading asked for, by ``deadline`` on the clock; None: there is none, see ``error``."""
        if not self._asked:
            return None
        if not self._done.wait(max(0.0, deadline - self._clock())):
            self._hung = True
            self._say(f"{self.name}: no answer in time")
            return None
        if self._failure is not None:
            self._bad += 1
            self._say(f"{self.name}: {type(self._failure).__name__}: {self._failure}")
            if self._bad >= FAILURES:
                self._pause()
            return None
        self._bad = 0
        self._say(None)
        return self._result

    @property
    def hung_s(self) -> float:
        """For how long the present reading has not come back, seconds; 0 when none is late."""
        return self._clock() - self._asked_at if self._hung and not self._done.is_set() else 0.0

    def close(self, timeout_s: float = 0.5) -> None:
        """End the thread; one that hangs is left to end with the process."""
        self._closed = True
        self._ask.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _pause(self) -> None:
        self._bad += 1
        self._not_before = self._clock() + min(PAUSE_MAX_S, PAUSE_S * 2 ** min(self._bad - 1, 10))

    def _say(self, error: str | None) -> None:
        """One log line per change of state."""
        if (error is None) != (self.error is None):
            log.warning("probe %s", error) if error else log.info("probe %s: answers again", self.name)
        self.error = error

    def _work(self) -> None:
        while True:
            self._ask.wait()
            self._ask.clear()
            if self._closed:
                return
            self._result, self._failure = None, None
            try:
                self._result = self._read()
            except Exception as failure:  # whatever a driver throws: it is this reader's loss alone
                self._failure = failure
            self._done.set()
