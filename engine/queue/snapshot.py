"""What a deck can read of the queue: lanes, orders, counts, running jobs, events. Cheap however long the queue is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.queue import controls, events
from engine.queue.family import FAMILIES, INGEST, Family
from engine.store import Db

COUNT_CAP = 10_000  # a longer queue reads as "10,000 or more": counting 100,000 rows costs 15 ms each time
JOBS_SHOWN = 200
EVENTS_SHOWN = 50
LEADER_STALE_S = 30.0


def queue_view(db: Db, project: str | None = None) -> dict[str, Any]:
    """The queue as plain data; ``project`` None: all of them.

    Keys: ``at``; ``leader`` ({box, incarnation, last_seen_s} or None); ``projects`` [{project, queued, running,
    capped}]; ``queued`` {(queue, project): count}; ``lanes``; ``jobs`` (running, longest first, at most 200);
    ``events`` (newest first, at most 50). Counts stop at 10,000 per queue and project.
    """
    now = db.now()
    queued = queued_counts(db, project)
    running = _running(db, project)
    lanes = lanes_view(db, project, queued)
    found = {
        "at": now,
        "leader": leader(db),
        "projects": _projects(project, queued, running, lanes),
        "queued": queued,
        "lanes": lanes,
        "jobs": [job for family in FAMILIES for job in _jobs(db, family, project)][:JOBS_SHOWN],
        "events": events.recent(db, EVENTS_SHOWN, project),
    }
    return found if db.kind == "postgresql" else _texts(found)


def _texts(value: Any) -> Any:
    """Names of bytes, which a foreign writer can put into SQLite's texts, as texts."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, dict):
        return {_texts(key): _texts(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_texts, value))
    return value


def leader(db: Db) -> dict[str, Any] | None:
    """The orchestrator that leads: its box, incarnation and age of its last sign of life in seconds; or None."""
    return db.one(
        f"select box, incarnation, {_age(db, 'last_seen')} as last_seen_s from services where kind = 'orchestrator' "
        "and is_leader = {true} and last_seen > {before[stale_s]} order by last_seen desc limit 1",
        stale_s=LEADER_STALE_S,
    )


def _age(db: Db, column: str) -> str:
    """Seconds since a time of a row, by the database's clock."""
    if db.kind == "postgresql":
        return f"greatest(0, extract(epoch from {{clock}} - {column}))::float8"
    return f"max(0.0, (julianday({{clock}}) - julianday({column})) * 86400.0)"


def queued_counts(db: Db, project: str | None, cap: int = COUNT_CAP) -> dict[tuple[str, str], int]:
    """Queued rows by (queue, project), each up to the cap: a loose scan of the claim indexes, one probe per pair."""
    counts: dict[tuple[str, str], int] = {}
    for row in _queued_sqlite(db, cap) if db.kind == "sqlite" else db.all(_QUEUED, cap=cap):
        pair = (row["queue"], row["project"])
        if project is None or row["project"] == project:
            counts[pair] = min(cap, counts.get(pair, 0) + row["n"])
    return counts


_WAITING = [(family.table, due) for family in FAMILIES for due in ("run_after is null", "run_after is not null")]

# One statement: the deck asks every second. The status is a literal, as in the indexes' predicates.
_QUEUED = "with recursive " + ", ".join(
    f"p{i}(queue, project) as ("
    f"(select queue, project from {table} where status = 'queued' and {due} order by queue, project limit 1) "
    f"union all select x.* from p{i} p cross join lateral (select t.queue, t.project from {table} t "
    f"where t.status = 'queued' and t.{due} and (t.queue, t.project) > (p.queue, p.project) "
    "order by t.queue, t.project limit 1) x)"
    for i, (table, due) in enumerate(_WAITING)
)
_QUEUED += " " + " union all ".join(
    f"select p.queue, p.project, (select count(*) from (select 1 from {table} t where t.status = 'queued' and t.{due} "
    f"and t.queue = p.queue and t.project = p.project limit {{cap}}) q) as n from p{i} p"
    for i, (table, due) in enumerate(_WAITING)
)


def _queued_sqlite(db: Db, cap: int) -> Iterator[dict[str, Any]]:
    for table, due in _WAITING:
        at: tuple[str, str] = ("", "")
        waiting = f"from {table} where status = 'queued' and {due}"
        while True:
            # Two probes instead of (queue, project) > (...): SQLite walks over every equal pair with that.
            pairs = db.all(
                f"select queue, project from (select queue, project {waiting} and queue = {{queue}} "
                "and project > {project} order by project limit 1) a union all "
                f"select queue, project from (select queue, project {waiting} and queue > {{queue}} "
                "order by queue, project limit 1) b",
                queue=at[0],
                project=at[1],
            )
            if not pairs:
                break
            pair = next((row for row in pairs if row["queue"] == at[0]), pairs[0])
            at = (pair["queue"], pair["project"])
            here = f"{waiting} and queue = {{queue}} and project = {{project}}"
            count = f"select count(*) as n from (select 1 as one {here} limit {{cap}}) q"
            yield {**pair, "n": db.value(count, queue=at[0], project=at[1], cap=cap)}


def _running(db: Db, project: str | None) -> dict[str, int]:
    """Begun rows by project (there are never more than slots); what is only claimed ahead does not count."""
    begun = " union all ".join(
        f"select project from {family.table} where status = 'running' and started_at is not null" for family in FAMILIES
    )
    rows = db.all(
        f"select project, count(*) as n from ({begun}) r where ({{every}} = 1 or project = {{project}}) group by project",
        every=1 if project is None else 0,
        project=project or "",
    )
    return {row["project"]: row["n"] for row in rows}


def _projects(
    project: str | None,
    queued: dict[tuple[str, str], int],
    running: dict[str, int],
    lanes: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    names = {name for _, name in queued} | set(running) | {lane["project"] for lane in lanes}
    if project is not None:
        names = {project}
    return [
        {
            "project": name,
            "queued": sum(n for (_, of), n in queued.items() if of == name),
            "running": running.get(name, 0),
            "capped": any(n >= COUNT_CAP for (_, of), n in queued.items() if of == name),
        }
        for name in sorted(names, key=str)
    ]


def lanes_view(db: Db, project: str | None, queued: dict[tuple[str, str], int]) -> list[dict[str, Any]]:
    """Every lane: what it is, what is wanted of it and by whom, what waits for it (of ``queued``)."""
    orders = controls.all_orders(db)
    lanes = []
    for row in db.all(
        "select box, queue, project, incarnation, state, slots, busy, current_model, "
        f"version, flagged_dead_at, last_exit_code, last_exit_reason, {_age(db, 'last_seen')} as last_seen_s "
        "from worker_heartbeats where ({every} = 1 or project = {project}) order by box, queue, project",
        every=1 if project is None else 0,
        project=project or "",
    ):
        order = controls.pick(orders, row["box"], row["queue"], row["project"])
        lanes.append(
            {
                "box": row["box"],
                "queue": row["queue"],
                "project": row["project"],
                "state": row["state"],
                "desired": order.desired,
                "policy": order.policy,
                "reason": order.reason,
                "requested_by": order.requested_by,
                "cordoned": order.desired == "off" and order.queue == "*",
                "slots": row["slots"],
                "busy": row["busy"],
                "queued": queued.get((row["queue"], row["project"]), 0),
                "current_model": row["current_model"],
                "incarnation": row["incarnation"],
                "last_seen_s": row["last_seen_s"],
                "flagged": row["flagged_dead_at"] is not None,
                "last_exit_code": row["last_exit_code"],
                "last_exit_reason": row["last_exit_reason"],
                "version": row["version"],
            }
        )
    return lanes


def _jobs(db: Db, family: Family, project: str | None) -> list[dict[str, Any]]:
    run = "null as run_id, null as node_id" if family is INGEST else "run_id, node_id"
    rows = db.all(
        f"select id, project, {family.name_column} as name, queue, claimed_box, {_age(db, 'coalesce(started_at, claimed_at)')} "
        f"as age_s, progress_pct, progress_text, {run}, attempt, is_priority, cancel_requested, claimed_by, priority "
        f"from {family.table} where status = 'running' and started_at is not null "
        "and ({every} = 1 or project = {project}) order by started_at, id limit {limit}",
        every=1 if project is None else 0,
        project=project or "",
        limit=JOBS_SHOWN,
    )
    return [
        {
            "id": str(row["id"]),
            "family": family.name,
            "project": row["project"],
            "name": row["name"] or row["node_id"],
            "queue": row["queue"],
            "box": row["claimed_box"],
            "age_s": row["age_s"],
            "progress_pct": row["progress_pct"],
            "progress_text": row["progress_text"],
            "run_id": None if row["run_id"] is None else str(row["run_id"]),
            "node_id": row["node_id"],
            "attempt": row["attempt"],
            "is_priority": row["is_priority"],
            "cancel_requested": row["cancel_requested"],
        }
        for row in rows
    ]
