"""What has been recorded and not been written yet: bounded, in order of time, shared by two threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from engine.telemetry.rollup import minute_of, roll_up
from engine.telemetry.sample import BoxSample

DETAIL_S = 660.0  # an outage of ten minutes leaves no hole, with a minute to spare
MINUTES = 1440  # minute rows outlive their details: a day of them is smaller than ten minutes of details


class Ring:
    """Samples come in by :meth:`add`; closed minutes are rolled up as they pass. Oldest details are dropped first."""

    def __init__(self, cadence_s: float) -> None:
        self._details: deque[BoxSample] = deque(maxlen=max(1, int(DETAIL_S / cadence_s)))
        self._minutes: deque[BoxSample] = deque(maxlen=MINUTES)
        self._open: list[BoxSample] = []  # the samples of the minute that is not over
        self._untold: datetime | None = None  # the oldest sample written without a notification since the last one
        self._changed = threading.Condition()
        self._woken = False
        self.dropped = 0
        self.written: datetime | None = None  # the newest detail that is in the database

    def __len__(self) -> int:
        return len(self._details)

    def empty(self) -> bool:
        return not self._details and not self._minutes

    def add(self, sample: BoxSample) -> None:
        with self._changed:
            if self._open and minute_of(sample.at) != minute_of(self._open[0].at):
                self._minutes.append(roll_up(self._open))
                self._open = []
            self._open.append(sample)
            self.dropped += len(self._details) == self._details.maxlen
            self._details.append(sample)
            self._woken = True
            self._changed.notify_all()

    def add_minute(self, row: BoxSample) -> None:
        """A minute row that was made elsewhere."""
        with self._changed:
            self._minutes.append(row)

    def open_minute(self, samples: Sequence[BoxSample]) -> None:
        """Samples of the present minute that are in the table already: they count in its roll-up."""
        with self._changed:
            self._open = [*samples, *self._open]

    def peek(self, count: int) -> list[BoxSample]:
        """The oldest rows, at most ``count`` of each tier; they stay until :meth:`done`."""
        with self._changed:
            return [*list(self._minutes)[:count], *list(self._details)[:count]]

    def newest(self) -> BoxSample | None:
        with self._changed:
            return self._details[-1] if self._details else None

    def backlog(self) -> dict[str, Any]:
        """``backfill_since`` for a notification that speaks for more rows than its own; else nothing."""
        with self._changed:
            first = self._untold or (self._details[0].at if len(self._details) > 1 else None)
        return {} if first is None else {"backfill_since": first.astimezone(UTC).isoformat()}

    def done(self, samples: Sequence[BoxSample], told: bool) -> None:
        """These rows are in the database; with ``told`` their notification went out with them."""
        written = {id(sample) for sample in samples}
        with self._changed:
            for queue in (self._minutes, self._details):
                while queue and id(queue[0]) in written:
                    queue.popleft()
            first = next((sample.at for sample in samples if sample.tier == "detail"), None)
            last = next((sample.at for sample in reversed(samples) if sample.tier == "detail"), None)
            self.written = last or self.written
            self._untold = None if told else self._untold or first

    def forget(self, until: datetime) -> None:
        """Drop the details up to a time: they are in the table already."""
        with self._changed:
            while self._details and self._details[0].at <= until:
                self._details.popleft()

    def wait(self, timeout_s: float) -> None:
        """Until something was added since the last call, or :meth:`wake`, or the time is over."""
        with self._changed:
            if not self._woken:
                self._changed.wait(timeout_s)
            self._woken = False

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()
