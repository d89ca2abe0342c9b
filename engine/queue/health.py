"""How the fleet's own parts fare, as the database knows it: services, sweeps, lanes, jobs that nobody could take."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from engine.queue import waiting
from engine.queue.family import FAMILIES
from engine.store import Db

COUNT_CAP = 100_000
LANE_SILENT_S = 45.0


def services(db: Db) -> list[dict[str, Any]]:
    """Orchestrators, schedulers, recorders, supervisors, web: each with ``age_s``, how long it has been silent."""
    rows = db.all(
        "select kind, box, incarnation, pid, version, is_leader, last_seen, last_error, detail from services "
        "order by kind, box, last_seen"
    )
    return _aged(rows, db.now())


def lanes(db: Db) -> list[dict[str, Any]]:
    """Every lane's heartbeat with ``age_s``. Those that ended in order say ``stopping``."""
    rows = db.all(
        "select box, queue, project, state, slots, busy, last_seen, flagged_dead_at, last_exit_code, last_exit_reason, "
        "detail from worker_heartbeats order by box, queue, project"
    )
    return _aged(rows, db.now())


def live(lane: dict[str, Any]) -> bool:
    """Whether one of ``lanes`` neither ended nor is silent."""
    return bool(lane["state"] != "stopping" and lane["age_s"] <= LANE_SILENT_S)


def unplaceable(db: Db) -> dict[str, int]:
    """Queued jobs that no live slot could hold, by reason; counting stops at 100,000."""
    counts: dict[str, int] = {}
    for family in FAMILIES:
        for due in ("run_after is null", "run_after is not null"):  # each is the condition of an index
            for row in db.all(
                f"select why, count(*) as n from (select unplaceable_reason as why from {family.table} "
                f"where status = 'queued' and {due} and unplaceable_reason is not null limit {{cap}}) u group by why",
                cap=COUNT_CAP,
            ):
                counts[row["why"]] = counts.get(row["why"], 0) + row["n"]
    return counts


def unserved(db: Db, lanes: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
    """Queued jobs that could start now and whose queue no live lane serves, by (queue, project); counted up to 100,000."""
    served = {(lane["queue"], lane["project"]) for lane in lanes if live(lane)}
    counts: dict[tuple[str, str], int] = {}
    for queue, project in waiting.pairs(db):
        if (queue, project) in served:
            continue
        for family in FAMILIES:
            for due in ("run_after is null", "run_after <= {now}"):  # each is the condition of an index
                n = db.value(
                    f"select count(*) as n from (select 1 as one from {family.table} where status = 'queued' and {due} "
                    "and queue = {queue} and project = {project} limit {cap}) c",
                    queue=queue,
                    project=project,
                    cap=COUNT_CAP,
                )
                if n:
                    counts[queue, project] = counts.get((queue, project), 0) + n
    return counts


def _aged(rows: list[dict[str, Any]], now: datetime) -> list[dict[str, Any]]:
    for row in rows:
        row["age_s"] = max(0.0, (now - row["last_seen"]).total_seconds())
        row["detail"] = row["detail"] if isinstance(row["detail"], dict) else {}
    return rows
