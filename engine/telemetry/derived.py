"""What a recorder concludes from its samples: GPUs that are slow without a reason, and what the hardware did to each job."""

from __future__ import annotations

import time
from collections import deque
from datetime import datetime

from engine.store import Db
from engine.telemetry import slow
from engine.telemetry.job_hardware import JobShares
from engine.telemetry.sample import BoxSample

SHARES_S = 10.0  # between looks for jobs that have ended
USUAL_S = 600.0  # between looks at what clock is usual


class Derived:
    """Of one box. :meth:`judged` belongs to the thread that samples, the rest to the one that writes."""

    def __init__(self, box: str) -> None:
        self._box = box
        self._shares = JobShares(box)
        self._slow = slow.SlowWatch()
        self._untold: deque[slow.Slow] = deque()  # episodes that have no row yet
        self._told = self._learned = float("-inf")  # when, on the monotonic clock

    def judged(self, sample: BoxSample) -> BoxSample:
        """The sample with what follows from it and the ones before."""
        flagged, begun = self._slow.look(sample)
        self._untold.extend(begun)
        return slow.marked(sample, flagged)

    def restore(self, newest: BoxSample, now: datetime) -> None:
        """Go on with an episode that the last recorder of this box had begun."""
        if now - newest.at < slow.UNREAD:
            self._slow.restore(slow.flags(newest.sensors), newest.at)

    @property
    def due(self) -> bool:
        """It is time for :meth:`tell`."""
        return time.monotonic() - self._told >= SHARES_S

    def tell(self, db: Db, written: datetime | None) -> None:
        """Tell the jobs that have ended what the hardware did to them; every sample up to ``written`` is in the table. And
        what began to be slow without a reason."""
        self._told = time.monotonic()
        self._shares.catch_up(db, written)
        while self._untold:
            slow.tell(db, self._box, self._untold[0])
            self._untold.popleft()
        if time.monotonic() - self._learned >= USUAL_S:
            self._slow.usual = slow.usual_clocks(db, self._box)
            self._learned = time.monotonic()
