"""The leader's side loops: threads with a connection of their own, started again when they end, and seen when they ail.

What may take long (a vacuum, old rows, a queue of 100,000 that must be flagged) or must never wait (the outbox) runs
beside the main loop, so that a lane's death is noticed on time whatever else goes on.
"""

from __future__ import annotations

import abc
import logging
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

from engine.errors import NotAllowed, StoreUnavailable
from engine.orchestrator.sweeps import Sweep
from engine.store import Db, Store

log = logging.getLogger("engine.orchestrator")

BACKOFF_MAX_S = 1.0
RESTART_MAX_S = 30.0
STEADY_S = 60.0  # a thread that lived so long starts afresh with the shortest pause


class SideLoop(abc.ABC):
    """Work that goes on until :meth:`stop`. Its owner calls :meth:`look_after` now and then."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stopping = threading.Event()
        self.error: str | None = None
        self.restarts = 0
        self._thread: threading.Thread | None = None
        self._started_at = 0.0
        self._pause_s = 0.1

    @abc.abstractmethod
    def work(self) -> None:
        """Until ``stopping`` is set; may raise anything. Called again after whatever it raised, with backoff."""

    def start(self) -> None:
        self._started_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 8.0) -> None:
        """Ask the thread to end and wait for it; one that is stuck is a daemon and ends with the process."""
        self.stopping.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def look_after(self) -> bool:
        """Start the thread again if it has ended; True when it had. Ever less often while it keeps ending."""
        if self.stopping.is_set() or (self._thread is not None and self._thread.is_alive()):
            return False
        lived = time.monotonic() - self._started_at
        if lived < self._pause_s:
            return False
        self._pause_s = 0.1 if lived >= STEADY_S else min(RESTART_MAX_S, self._pause_s * 2)
        self.restarts += 1
        self.error = f"its thread ended; started again ({self.restarts} times)"
        log.error("%s: %s", self.name, self.error)
        self.start()
        return True

    def state(self) -> dict[str, Any]:
        """What ``services.detail`` says of it."""
        return {"error": self.error, "restarts": self.restarts}

    def _run(self) -> None:
        backoff = 0.1
        while not self.stopping.is_set():
            try:
                self.work()
                return
            except StoreUnavailable as error:
                self.error = str(error)  # the main loop says it in the log, once
            except NotAllowed as error:
                if self.error != str(error):
                    log.warning("%s: %s", self.name, error)
                self.error = str(error)
            except Exception as error:
                if self.error is None:
                    log.exception("%s: unexpected error", self.name)
                self.error = f"{type(error).__name__}: {' '.join(str(error).split())}"
            self.stopping.wait(backoff * random.uniform(0.5, 1.5))
            backoff = min(BACKOFF_MAX_S, backoff * 2)


class SweepLoop(SideLoop):
    """Sweeps on a thread and a connection of their own. ``timeout_s``: deadline of one statement."""

    def __init__(self, name: str, store: Store, sweeps: Sequence[Sweep], timeout_s: float) -> None:
        super().__init__(name)
        self.sweeps = list(sweeps)
        self._store = store
        self._timeout_s = timeout_s

    def work(self) -> None:
        with self._store.connect(self.name, timeout_s=self._timeout_s) as db:
            prepare(db)
            while not self.stopping.is_set():
                for sweep in self.sweeps:
                    sweep.run_if_due(db)
                    if self.stopping.is_set():
                        return
                self.error = None
                due = min(sweep.due for sweep in self.sweeps)
                self.stopping.wait(max(0.05, min(1.0, due - time.monotonic())))


def prepare(db: Db) -> None:
    """Settings of a sweeping connection: a plan that was made while a table was empty must not read a history of it."""
    if db.kind == "postgresql":
        db.run("set enable_seqscan = off")
