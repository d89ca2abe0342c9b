"""Draining the outbox: what finished nodes mean for their runs. Exactly once, however many drain."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.dag.runs import GraphCache, advance
from engine.errors import StoreUnavailable
from engine.queue import outbox
from engine.queue.ends import end_run
from engine.store import Db

log = logging.getLogger("engine.dag")

MAX_ATTEMPTS = 10  # failed dispatches, after which an event is poison and its run fails


@dataclass
class Drained:
    """What one pass did: events closed, runs that another session holds, and what failed, as text."""

    events: int = 0
    busy: int = 0
    failed: list[str] = field(default_factory=list)


def drain(db: Db, graphs: GraphCache, limit: int = 1000) -> Drained:
    """Take up to ``limit`` due events, oldest first, and move their runs on, one transaction per run.

    A run that fails to move on is put off and keeps nobody else waiting. Raises StoreUnavailable when the connection
    is gone.
    """
    by_run: dict[int, list[dict[str, Any]]] = {}
    for event in outbox.open_events(db, limit):
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
        if isinstance(second, StoreUnavailable) and db.closed:
            raise
        reason += f" (and then {type(second).__name__}: {' '.join(str(second).split())})"
    line = f"run {run_id}: dispatch failed ({attempts} of {MAX_ATTEMPTS}): {reason}"
    log.warning("%s", line)
    return line
