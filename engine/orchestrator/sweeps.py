"""The sweeps: what the leader puts right, over and over.

Each looks at the present state only, acts through one guarded statement, is harmless when run twice, and fails alone:
its error stands in ``services.detail`` while the others carry on. Nothing is remembered but how long a value has
stood still, and that on the monotonic clock of this process: a step of any other clock ends no job.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from engine.dag import runs
from engine.errors import StoreUnavailable
from engine.store import Db

log = logging.getLogger("engine.orchestrator")

Clock = Callable[[], float]

MAX_BACKOFF_S = 60.0
DUTY = 50.0  # a sweep may take a fiftieth of the time: one that is slow comes round less often


class PartlyDone(Exception):
    """A sweep did ``count`` rows and could not do others; the text says which and why."""

    def __init__(self, text: str, count: int) -> None:
        super().__init__(text)
        self.count = count


class Watch:
    """How long each value has stood unchanged, in seconds of this process's monotonic clock."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[Hashable, tuple[Hashable, float]] = {}

    def look(self, values: Mapping[Any, Hashable]) -> dict[Any, float]:
        """Take the present values; for each key since when it has had its value. Forgets keys that are gone."""
        now = self._clock()
        seen = {}
        for key, value in values.items():
            known = self._seen.get(key)
            seen[key] = known if known is not None and known[0] == value else (value, now)
        self._seen = seen
        return {key: now - since for key, (_, since) in seen.items()}


@dataclass
class Sweep:
    """One thing that is done every ``every_s`` seconds, and how it fares. ``duty``: see DUTY."""

    name: str
    every_s: float
    act: Callable[[Db], int]
    clock: Clock = time.monotonic
    duty: float = DUTY
    due: float = 0.0
    failures: int = 0
    error: str | None = None
    acted: int = 0
    last_run_at: str | None = None  # ISO, UTC, this process's clock: to be read, decides nothing
    took_ms: float | None = None

    def state(self) -> dict[str, Any]:
        """What ``services.detail`` says of it."""
        return {
            "failures": self.failures,
            "error": self.error,
            "acted": self.acted,
            "last_run_at": self.last_run_at,
            "took_ms": self.took_ms,
        }

    def run_if_due(self, db: Db) -> bool:
        """Run it when it is time; False: not yet. Raises StoreUnavailable when the connection is gone, nothing else."""
        began = self.clock()
        if began < self.due:
            return False
        self.last_run_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            self._run(db, began)
        finally:
            self.took_ms = round((self.clock() - began) * 1000.0, 1)
        return True

    def _run(self, db: Db, began: float) -> None:
        try:
            count = self.act(db)
        except PartlyDone as error:  # the others must not wait for the one that fails
            if self.error is None:
                log.warning("sweep %s: %s", self.name, error)
            self.error = str(error)[:500]
            self.acted += error.count
            self.due = began + self.every_s
            return
        except Exception as error:
            if isinstance(error, StoreUnavailable) and db.closed:
                raise
            self.failures += 1
            self.error = f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
            pause = min(self.every_s * 2 ** min(self.failures, 10), max(MAX_BACKOFF_S, self.every_s))
            self.due = self.clock() + pause * random.uniform(0.75, 1.0)
            if self.failures == 1:
                log.warning("sweep %s: %s", self.name, self.error)
            return
        if self.failures:
            log.info("sweep %s works again after %d failures", self.name, self.failures)
        self.failures, self.error = 0, None
        self.acted += count
        took = self.clock() - began
        self.due = began + max(self.every_s, self.duty * took)


def run_sweeps(clock: Clock = time.monotonic) -> list[Sweep]:
    """The sweeps over runs; those over lost work are in :mod:`engine.orchestrator.lost`."""
    return [
        Sweep("runs_started", 1.0, runs.mark_all_started, clock),
        Sweep("runs_unexpanded", 0.7, lambda db: runs.look_again(db, unexpanded=True), clock),
        Sweep("runs_stuck", 5.0, lambda db: runs.look_again(db, unexpanded=False), clock),
        Sweep("runs_leftovers", 1.0, runs.end_leftovers, clock),
        Sweep("runs_closing", 1.0, runs.close_runs, clock),
    ]
