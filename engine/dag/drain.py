"""Draining the outbox: what finished nodes mean for their runs. Exactly once, however many drain."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.dag.runs import GraphCache, advance
from engine.errors import NotAllowed, StoreUnavailable
from engine.queue import outbox
from engine.queue.ends import end_run
from engine.store import Db

log = logging.getLogger("engine.dag")

LAG_S = 2.0
EXACT_EVERY_S = 1.0
MAX_ATTEMPTS = 10  # failed dispatches, after which an event is poison and its run fails


@dataclass
class Drained:
    """What one pass did: events closed, runs that another session holds, and what failed, as text."""

    events: int = 0
    busy: int = 0
    failed: list[str] = field(default_factory=list)


@dataclass
class Head:
    """Where the next look into the outbox begins, for one who drains all the time.

    While somebody holds an old snapshot no vacuum may remove from the index of open events what was closed since: every
    look from the beginning reads it again (25 ms after 100,000 events). So a look begins behind what was closed LAG_S ago.
    An event that was committed later than that, was put off, or whose run another session held for so long is found by a
    look from the beginning, once in EXACT_EVERY_S.
    """

    clock: Callable[[], float] = time.monotonic
    _closed: deque[tuple[float, int]] = field(default_factory=deque)  # when, up to which id
    _after: int = 0
    _exact_at: float = float("-inf")

    def start(self) -> int:
        """The id behind which to look now."""
        now = self.clock()
        while self._closed and now - self._closed[0][0] >= LAG_S:
            self._after = max(self._after, self._closed.popleft()[1])
        if now - self._exact_at < EXACT_EVERY_S:
            return self._after
        self._exact_at = now
        return 0

    def closed(self, id: int) -> None:
        self._closed.append((self.clock(), id))


def drain(db: Db, graphs: GraphCache, limit: int = 1000, head: Head | None = None) -> Drained:
    """Take up to ``limit`` due events, oldest first, and move their runs on, one transaction per run.

    A run that fails to move on is put off and keeps nobody else waiting. Raises StoreUnavailable when the connection
    is gone, NotAllowed when this login may not even put a run off. ``head``: where to begin, and what it learns; without one at the beginning.
    """
    by_run: dict[int, list[dict[str, Any]]] = {}
    for event in outbox.open_events(db, limit, head.start() if head is not None else 0):
        by_run.setdefault(event["run_id"], []).append(event)
    done = Drained()
    for run_id, group in by_run.items():
        try:
            answered = any(event["kind"] == "input" for event in group)
            outcome = advance(db, run_id, graphs, [event["id"] for event in group], answered)
        except Exception as error:
            if isinstance(error, StoreUnavailable) and db.closed:
                raise
            graphs.forget(run_id)
            done.failed.append(_put_off(db, run_id, group, error))
        else:
            if outcome == "busy":
                done.busy += 1
            else:
                done.events += len(group)
                if head is not None:
                    head.closed(group[-1]["id"])
    return done


def _put_off(db: Db, run_id: int, group: Sequence[Mapping[str, Any]], error: Exception) -> str:
    """Count a failed dispatch; past MAX_ATTEMPTS the run fails with the reason. Returns one line about it."""
    reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    attempts = 0
    try:
        with db.transaction():
            attempts = max(outbox.mark_failed(db, event["id"], reason) for event in group)
            if attempts >= MAX_ATTEMPTS:
                end_run(db, run_id, "failed", f"dispatch failed {attempts} times: {reason}")
                for event in group:
                    outbox.mark_processed(db, event["id"], reason)
    except Exception as second:  # cannot even be counted: it stays open and comes round again
        if isinstance(second, NotAllowed) or (isinstance(second, StoreUnavailable) and db.closed):
            raise
        reason += f" (and then {type(second).__name__}: {' '.join(str(second).split())})"
    line = f"run {run_id}: dispatch failed ({attempts} of {MAX_ATTEMPTS}): {reason}"
    log.warning("%s", line)
    return line
