"""What a deck can read of the queue: lanes, orders, counts, running jobs, events. Cheap however long the queue is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from engine.queue import controls
from engine.queue.sections import (
    COUNT_CAP,
    JOB,
    LANE,
    QUEUED,
    SectionReader,
    Sections,
    Values,
    lanes_sql,
    queued_sqlite,
)
from engine.store import Db

Counts = dict[tuple[str, str], int]


def queue_view(db: Db, project: str | None = None) -> dict[str, Any]:
    """The queue as plain data; ``project`` None: all of them.

    Keys: ``at``; ``leader`` ({box, incarnation, last_seen_s} or None); ``projects`` [{project, queued, running,
    awaiting, capped}] (awaiting: nodes that wait for a person); ``queued`` {(queue, project): count}; ``lanes``; ``jobs`` (running, longest first, at most 200);
    ``events`` (newest first, at most 50). Counts stop at 10,000 per queue and project.
    """
    found = SectionReader(project).read(db)
    now, queued = found.at.timestamp(), count(found)
    return {
        "at": found.at,
        "leader": leader(found),
        "projects": projects(found, queued, project),
        "queued": queued,
        "lanes": [lane(row, found.orders, queued, now) for row in found.lanes],
        "jobs": [job(row, now) for row in found.jobs],
        "events": found.events,
    }


def leader(found: Sections) -> dict[str, Any] | None:
    """The orchestrator that leads: its box, incarnation and age of its last sign of life in seconds; or None."""
    for box, incarnation, seen in found.leader:
        return {"box": box, "incarnation": incarnation, "last_seen_s": age(seen, found.at.timestamp())}
    return None


def age(seen: Any, now: float) -> float | None:
    """Seconds since a time of a row (both in seconds of the epoch); None where it is none."""
    if isinstance(seen, str):  # JSON has no word for a time without end
        seen = float(seen)
    return None if seen is None else max(0.0, now - seen)


def count(found: Sections) -> Counts:
    """Queued rows by (queue, project)."""
    return _counts(found.queued, None, COUNT_CAP)


def _counts(rows: Iterable[Iterable[Any]], project: str | None, cap: int) -> Counts:
    counts: Counts = {}
    for queue, of, n in rows:
        if project is None or of == project:
            counts[queue, of] = min(cap, counts.get((queue, of), 0) + n)
    return counts


def queued_counts(db: Db, project: str | None, cap: int = COUNT_CAP) -> Counts:
    """Queued rows by (queue, project), each up to the cap."""
    rows = queued_sqlite(db, cap) if db.kind == "sqlite" else db.all(QUEUED, cap=cap)
    return _counts((row.values() for row in rows), project, cap)


def projects(found: Sections, queued: Counts, project: str | None = None) -> list[dict[str, Any]]:
    """What each project has queued, running and waiting for a person; ``project``: only that one, whether it has anything or not."""
    waiting = dict[str, list[int]]()
    for (_, of), n in queued.items():
        if project is None or of == project:
            waiting.setdefault(of, []).append(n)
    running, awaiting = dict(found.running), dict(found.awaiting)
    names = {*waiting, *running, *awaiting, *(row[_PROJECT] for row in found.lanes)} if project is None else {project}
    return [
        {
            "project": name,
            "queued": sum(waiting.get(name, ())),
            "running": running.get(name, 0),
            "awaiting": awaiting.get(name, 0),
            "capped": any(n >= COUNT_CAP for n in waiting.get(name, ())),
        }
        for name in sorted(names, key=str)
    ]


_BOX, _QUEUE, _PROJECT = (LANE.index(name) for name in ("box", "queue", "project"))


def lanes_view(db: Db, project: str | None, queued: Counts) -> list[dict[str, Any]]:
    """Every lane: what it is, what is wanted of it and by whom, what waits for it (of ``queued``)."""
    orders = controls.all_orders(db)
    rows = db.all(lanes_sql(db.kind), every=1 if project is None else 0, project=project or "")
    now = db.now().timestamp()
    return [lane(list(row.values()), orders, queued, now) for row in rows]


def lane(row: Values, orders: Iterable[Mapping[str, Any]], queued: Counts, now: float) -> dict[str, Any]:
    """One lane as plain data. ``now``: seconds of the epoch, by the database's clock."""
    it = dict(zip(LANE, row, strict=True))
    order = controls.pick(orders, it["box"], it["queue"], it["project"])
    return {
        "box": it["box"],
        "queue": it["queue"],
        "project": it["project"],
        "state": it["state"],
        "desired": order.desired,
        "policy": order.policy,
        "reason": order.reason,
        "requested_by": order.requested_by,
        "cordoned": order.desired == "off" and order.queue == "*",
        "slots": it["slots"],
        "busy": it["busy"],
        "queued": queued.get((it["queue"], it["project"]), 0),
        "current_model": it["current_model"],
        "incarnation": it["incarnation"],
        "last_seen_s": age(it["seen"], now),
        "flagged": bool(it["flagged"]),
        "last_exit_code": it["last_exit_code"],
        "last_exit_reason": it["last_exit_reason"],
        "version": it["version"],
    }


def job(row: Values, now: float) -> dict[str, Any]:
    """One running job as plain data."""
    it = dict(zip(JOB, row, strict=True))
    return {
        "id": str(it["id"]),
        "family": it["family"],
        "project": it["project"],
        "name": it["name"] or it["node_id"],
        "queue": it["queue"],
        "box": it["box"],
        "age_s": age(it["begun"], now),
        "progress_pct": None if isinstance(it["progress_pct"], str) else it["progress_pct"],  # JSON's NaN
        "progress_text": it["progress_text"],
        "run_id": None if it["run_id"] is None else str(it["run_id"]),
        "node_id": it["node_id"],
        "attempt": it["attempt"],
        "is_priority": bool(it["is_priority"]),
        "cancel_requested": bool(it["cancel_requested"]),
    }
