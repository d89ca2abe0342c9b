"""The claims that a lane holds, from the claim's answer until what became of them is committed.

The loop writes this book; the keeper, on its own thread, reads who is to be renewed and extends what was.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.queue.claim import ClaimedJob

if TYPE_CHECKING:
    from engine.lane.slot import Slot

GOOD_FOR_S = 20.0  # a renewed claim is certainly ours for so long: silent lanes lose their jobs after 30 s
AHEAD_GOOD_FOR_S = 1.0  # a job claimed ahead that has not begun by then is given back
AHEAD_MARGIN_S = 0.1  # how long past that the lane looks for a ``began`` that was written in time


@dataclass(slots=True, eq=False)
class Held:
    """One claim. Times are monotonic seconds."""

    job: ClaimedJob
    good_until: float  # user code may start until then without asking the database again
    slot: Slot | None = None
    number: int = 0  # of its hand-over to the slot
    began: float | None = None  # user code started (as far as the lane knows)
    begun_written: bool = True  # the row has its started_at
    cancel_since: float | None = None
    cancel_sent: bool = False
    budget_s: float | None = None
    settling: bool = False  # what became of it is on its way to the database
    lost: bool = False  # the row is somebody else's


class Book:
    """All claims of this lane by job id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, Held] = {}
        self.turns = 0  # rounds of the loop: a claim that committed two rounds ago is in this book

    def add(self, jobs: Iterable[ClaimedJob]) -> list[Held]:
        """Enter what a claim brought. Claims ahead are good for a second only."""
        entered = [
            Held(
                job,
                good_until=job.claimed_mono + (AHEAD_GOOD_FOR_S if job.ahead else GOOD_FOR_S),
                begun_written=not job.ahead,
            )
            for job in jobs
        ]
        with self._lock:
            for held in entered:
                self._held[held.job.id] = held
        return entered

    def drop(self, held: Held) -> None:
        """Its fate is committed, or it is no longer ours."""
        with self._lock:
            if self._held.get(held.job.id) is held:
                del self._held[held.job.id]

    def get(self, id: int) -> Held | None:
        return self._held.get(id)

    def all(self) -> list[Held]:
        with self._lock:
            return list(self._held.values())

    def tokens(self) -> dict[int, int]:
        """id -> fence of everything held, for a renew: results that wait for the database keep their lease too."""
        with self._lock:
            return {id: held.job.fencing_token for id, held in self._held.items() if not held.lost}

    def renewed(self, ids: Iterable[int], asked_at: float) -> None:
        """These leases were extended by a statement sent at ``asked_at``."""
        with self._lock:
            for id in ids:
                held = self._held.get(id)
                if held is not None and not (held.job.ahead and held.began is None):
                    held.good_until = max(held.good_until, asked_at + GOOD_FOR_S)

    def __len__(self) -> int:
        return len(self._held)


def now() -> float:
    """The clock of this book."""
    return time.monotonic()
