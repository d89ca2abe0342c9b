"""The floor of a claim: where to start reading when the head of the claim's index is full of what is dead.

While somebody holds an old snapshot (a forgotten transaction, a long report, a dump), what was claimed since stays in
the index, before everything that still waits, and no vacuum may remove it: every claim reads all of it again. After a
minute at 4,000 jobs a second that is 50 ms. So a connection remembers the last row that its claim took, in order, and
starts behind it, once the server has counted that a claim read FAR entries of the index or more.

What comes to lie before the floor (rows flagged to run next, more urgent ones, rows of transactions that committed
late, constrained and scheduled ones) is found by an exact claim: every second, after an answer that was short, and when
an operator did something. Exact claims after short answers take a tenth of the time at most: lanes with slots to spare
get nothing but short answers. Without a floor the order is exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from engine.queue.workers import Worker
from engine.store import Db

EXACT_EVERY_S = 1.0
FAR = 1000  # index entries read by one claim: about a quarter of a millisecond
STILL_FAR = FAR // 2
REST_S = 2.5e-6  # per entry that the last exact claim read, before the next one: ten times what it took

# The statement's parameters: behind which row to look; it tells its ``last`` row when it read more than {far} entries.
EXACT: Mapping[str, Any] = {"floor_band": -(2**31), "floor_at": "-infinity", "floor_id": 0, "far": STILL_FAR}


@dataclass(slots=True)
class Floor:
    """What one connection knows about the head of one queue. ``clock``: monotonic seconds."""

    clock: Callable[[], float] = time.monotonic
    on: bool = False
    owes: bool = False  # the last answer was short and not from the head: an exact claim has to follow
    _behind: Mapping[str, Any] | None = None  # the last row that was taken
    _exact_at: float = float("-inf")
    _walked: int = 0

    def start(self) -> Mapping[str, Any] | None:
        """The parameters of the next claim; None: the usual statement, which has none."""
        if not self.on:
            return None
        rest = min(EXACT_EVERY_S, self._walked * REST_S) if self.owes else EXACT_EVERY_S
        if self._behind is None or self.clock() - self._exact_at >= rest:
            return EXACT
        return self._behind

    def needed(self) -> None:
        """A claim read FAR entries."""
        self.on = True

    def learn(self, given: Mapping[str, Any], last: Mapping[str, Any] | None, full: bool) -> None:
        """What a claim with the parameters ``given`` answered: its ``last`` row, if it told one, and whether it got all
        that it had asked for."""
        if is_exact(given):
            self.on, self._exact_at = last is not None, self.clock()
            self._walked = last["fencing_token"] if last is not None else 0  # this and more in columns of claimed rows
        self.owes = not full and not is_exact(given)
        if last is not None and last["id"] is not None:
            self._behind = {"floor_band": last["attempt"], "floor_at": last["name"], "floor_id": last["id"], "far": -1}

    def forget(self) -> None:
        """The next claim is an exact one."""
        self._behind = None


def is_exact(given: Mapping[str, Any] | None) -> bool:
    """A claim with these parameters reads from the head."""
    return given is None or given["far"] >= 0


_floors: WeakKeyDictionary[Db, dict[tuple[str, str], Floor]] = WeakKeyDictionary()


def floor_of(db: Db, worker: Worker) -> Floor:
    """What this connection knows of the worker's queue."""
    known = _floors.get(db)
    if known is None:
        known = _floors[db] = {}
    key = (worker.queue, worker.project)
    found = known.get(key)
    if found is None:
        found = known[key] = Floor()
    return found


def owes_a_look(db: Db | None) -> bool:
    """Something may lie before a floor of this connection and nobody has looked since its last answer fell short."""
    return db is not None and any(floor.on and floor.owes for floor in _floors.get(db, {}).values())


def look_at_the_head(db: Db | None) -> None:
    """An operator did something: the connection's next claims are exact, whatever they are for."""
    for floor in (_floors.get(db, {}) if db is not None else {}).values():
        floor.forget()
