"""What the feed lets in: hw_metrics payloads of any program and rows of the recorder, once each, cleaned. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from engine.telemetry.rows import AHEAD_S
from engine.telemetry.sample import BoxSample

PAYLOAD_MOST = 8000  # bytes; PostgreSQL sends no longer ones
BOXES_MOST = 1000  # names that a stranger can make us remember
KEPT = timedelta(hours=1)
SKEW = timedelta(seconds=5)
GAP = timedelta(seconds=15)
AHEAD = timedelta(seconds=AHEAD_S)

# What engine.config accepts as a box name; control characters never come further than this.
_BOX = re.compile(r"[^\x00-\x1f\x7f-\x9f:/*,|]{1,100}")


class Intake:
    """Remembers the newest sample of each box, so that a sample counts once, whichever way it came."""

    def __init__(self) -> None:
        self.last: dict[str, datetime] = {}  # box -> time of its newest sample
        self.dropped = 0  # payloads that were no samples
        self.gaps: set[str] = set()  # boxes whose newest sample came after a hole: their past is worth another look
        self.cut: set[str] = set()  # boxes whose payload had no room for everything: the row has it
        self.backfilled: set[str] = set()  # boxes whose recorder has just written rows of the past

    def payload(self, text: str, now: datetime) -> BoxSample | None:
        """The sample in a notification; None (and counted in ``dropped``) when it is none. ``now``: database clock."""
        try:
            if len(text.encode()) > PAYLOAD_MOST:
                raise ValueError("too long")
            data = json.loads(text)
            if not isinstance(data, dict):
                raise ValueError("not an object")
            sample = BoxSample.from_payload(data, now)
        except (ValueError, TypeError, RecursionError, OverflowError):
            self.dropped += 1
            return None
        if sample.at > now + SKEW:
            sample = replace(sample, at=now)  # a clock that runs ahead must not draw into the future
        if not _BOX.fullmatch(sample.box) or sample.at < now - KEPT:
            self.dropped += 1
            return None
        if sample.box not in self.last and len(self.last) >= BOXES_MOST:
            self.dropped += 1
            return None
        self._set_back(sample.box, now)
        if isinstance(data.get("backfill_since"), str):
            self.backfilled.add(sample.box)
        if sample.truncated:
            self.cut.add(sample.box)
            return None
        return self._once(sample)

    def rows(self, samples: Iterable[BoxSample], now: datetime | None = None) -> list[BoxSample]:
        """The detail rows among ``samples`` that are news, oldest first. ``now``: database clock."""
        samples = list(samples)
        if now is not None:
            for box in {sample.box for sample in samples}:
                self._set_back(box, now)
        fresh = [s for s in sorted(samples, key=lambda s: s.at) if s.tier == "detail" and self._once(s) is not None]
        for sample in fresh:
            self.cut.discard(sample.box)
        return fresh

    def seen(self, box: str, at: datetime) -> None:
        """Note what came by another way (the history)."""
        if box not in self.last or at > self.last[box]:
            self.last[box] = at

    def _set_back(self, box: str, now: datetime) -> None:
        """The database's clock was set back: what is newest then would keep out everything until the clock is there again."""
        before = self.last.get(box)
        if before is not None and before > now + AHEAD:
            del self.last[box]
            self.gaps.add(box)

    def _once(self, sample: BoxSample) -> BoxSample | None:
        before = self.last.get(sample.box)
        if before is not None:
            if sample.at <= before:
                return None
            if sample.at - before > GAP:
                self.gaps.add(sample.box)
        self.last[sample.box] = sample.at
        return sample
