"""The backlog limit: how many ingest jobs of one queue and project may wait (setting ``backlog_limit``, 0: any number).

It is there to push back, not to count: up to EXACT the limit is exact (but for requests in the same instant); beyond,
a count is believed for a moment, because counting 100,000 index entries at every insert would cost more than the insert.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from engine import config
from engine.store import Db

EXACT = 2000
BELIEVED_S = 0.5  # a count that left room is used again for so long
SHARE = 16  # and for this part of the room that it found

_rooms: dict[tuple[Any, ...], tuple[float, int]] = {}  # what was counted -> believed until (monotonic), inserts left
_lock = threading.Lock()
_KNOWN = 1000  # queues remembered


def refusal(db: Db, queue: str, project: str, more: int) -> str | None:
    """Why ``more`` jobs cannot be queued now, as one line; None when they can. Costs nothing without a limit."""
    limit = int(config.get("backlog_limit"))
    if limit <= 0:
        return None
    key = _place(db, queue, project, limit)
    if key is not None and _believed(key, more):
        return None
    waiting = count(db, queue, project, limit)
    if waiting + more > limit:
        shown = f"{waiting:,}" if waiting < limit else f"{limit:,} or more"
        whose = f" of project {project}" if project else ""
        many = "" if more == 1 else f" and {more:,} more would pass it"
        return f"queue {queue}{whose} is full: {shown} jobs wait, the limit is {limit:,}{many}; nothing enqueued"
    if key is not None:
        with _lock:
            if len(_rooms) >= _KNOWN:
                _rooms.clear()
            _rooms[key] = (time.monotonic() + BELIEVED_S, (limit - waiting) // SHARE - more)
    return None


def count(db: Db, queue: str, project: str, most: int) -> int:
    """Jobs queued there, counted up to ``most``; each half by an index of its own."""
    found: int = db.value(
        "select (select count(*) from (select 1 from ingest_jobs where queue = {queue} and project = {project} "
        "and status = 'queued' and run_after is null limit {most}) a) "
        "+ (select count(*) from (select 1 from ingest_jobs where queue = {queue} and project = {project} "
        "and status = 'queued' and run_after is not null limit {most}) b) as n",
        queue=queue,
        project=project,
        most=most,
    )
    return min(found, most)


def _place(db: Db, queue: str, project: str, limit: int) -> tuple[Any, ...] | None:
    """What a count may be remembered under; None: count every time (SQLite counts 100,000 in a millisecond or two)."""
    if limit <= EXACT or db.kind != "postgresql":
        return None
    info = db.raw.info
    return info.host, info.port, info.dbname, queue, project, limit


def _believed(key: tuple[Any, ...], more: int) -> bool:
    with _lock:
        until, left = _rooms.get(key, (0.0, 0))
        if time.monotonic() >= until or left < more:
            return False
        _rooms[key] = (until, left - more)
        return True
