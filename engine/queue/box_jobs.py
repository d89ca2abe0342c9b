"""The jobs that ran on one box in a window of time, attempt by attempt: what is laid over its charts.

What runs now stands on the jobs' own rows; what has ended, in the event that ended it. Only attempts of some seconds are
looked for (index ``job_events_long``): shorter ones are less than a column, and there may be a thousand of them a second.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from engine.queue.family import FAMILIES, INGEST, Family
from engine.store import Db

SHORTEST_S = 9.0  # the predicate of the index, which stands in the statement as a literal
JOBS_SHOWN = 80
RUNNING_SHOWN = 200
LONGEST_S = 7 * 86400.0

_ENDS = "('completed', 'failed', 'cancelled', 'requeued')"


def box_jobs(db: Db, box: str, seconds: float = 3600.0, limit: int = JOBS_SHOWN) -> dict[str, Any]:
    """Attempts on ``box`` that ran within the last ``seconds``; JSON-able: times as ISO text, ids as text.

    ``{box, at, start, more, jobs: [{id, family, name, queue, project, attempt, run_id, node_id, started_at, finished_at,
    outcome, cause, exit_code, progress_pct, power_ms, thermal_ms, brake_ms}]}``, newest start first. ``outcome`` is
    ``running`` or what ended the attempt; ``more``: there were more than ``limit``. The milliseconds are those of the
    job's worst GPU, None when the hardware's share is not known.
    """
    seconds = min(max(1.0, float(seconds)), LONGEST_S)
    limit = min(max(1, int(limit)), 500)
    now = db.now()
    start = now - timedelta(seconds=seconds)
    running = [row for family in FAMILIES for row in _running(db, family, box)]
    ended = _ended(db, box, start, limit)
    jobs = sorted([*running, *ended], key=lambda job: job["started_at"], reverse=True)
    shown = jobs[:limit]
    held = _held(db, [job["id"] for job in shown])
    return {
        "box": box,
        "at": _text(now),
        "start": _text(start),
        "more": len(jobs) > limit or len(ended) >= limit,
        "jobs": [_plain(job, held.get(job["id"], {})) for job in shown],
    }


def _running(db: Db, family: Family, box: str) -> list[dict[str, Any]]:
    run = "null as run_id, null as node_id" if family is INGEST else "run_id, node_id"
    rows = db.all(
        f"select id, {family.name_column} as name, queue, project, attempt, {run}, started_at, progress_pct "
        f"from {family.table} where status = 'running' and started_at is not null and claimed_box = {{box}} "
        "order by started_at desc limit {limit}",
        box=box,
        limit=RUNNING_SHOWN,
    )
    return [
        {**row, "family": family.name, "finished_at": None, "outcome": "running", "cause": None, "exit_code": None}
        for row in rows
    ]


def _ended(db: Db, box: str, start: datetime, limit: int) -> list[dict[str, Any]]:
    """Attempts that ended since ``start``, newest end first. Their names stand on the jobs' rows, if these still exist."""
    rows = db.all(
        "select e.job_id as id, e.family, e.queue, e.project, e.attempt, e.run_id, e.node_id, e.created_at, e.elapsed_s, "
        "e.event_type as outcome, e.cause, e.exit_code, "
        "case e.family when 'ingest' then (select i.task_name from ingest_jobs i where i.id = e.job_id) "
        "else (select n.node from workflow_node_jobs n where n.id = e.job_id) end as name "
        "from job_events e where e.box = {box} and e.elapsed_s >= 9 and e.created_at >= {start} "
        f"and e.event_type in {_ENDS} order by e.created_at desc limit {{limit}}",
        box=box,
        start=start,
        limit=limit,
    )
    return [
        {
            **row,
            "started_at": row["created_at"] - timedelta(seconds=min(float(row["elapsed_s"]), 400 * 86400.0)),
            "finished_at": row["created_at"],
            "progress_pct": None,
        }
        for row in rows
    ]


def _held(db: Db, ids: list[int]) -> dict[int, dict[str, Any]]:
    """How long the hardware held each job back, on its worst GPU."""
    if not ids:
        return {}
    rows = db.all(
        "select job_id, max(power_ms) as power_ms, max(thermal_ms) as thermal_ms, max(brake_ms) as brake_ms "
        "from job_hardware where job_id {any[ids]} group by job_id",
        ids=ids,
    )
    return {row["job_id"]: row for row in rows}


def _plain(job: dict[str, Any], held: dict[str, Any]) -> dict[str, Any]:
    finished = job["finished_at"]
    return {
        "id": str(job["id"]),
        "family": job["family"],
        "name": _name(job["name"]) or _name(job["node_id"]),
        "queue": _name(job["queue"]),
        "project": _name(job["project"]),
        "attempt": job["attempt"],
        "run_id": None if job["run_id"] is None else str(job["run_id"]),
        "node_id": _name(job["node_id"]) or None,
        "started_at": _text(job["started_at"]),
        "finished_at": None if finished is None else _text(finished),
        "outcome": job["outcome"],
        "cause": job["cause"],
        "exit_code": job["exit_code"],
        "progress_pct": job["progress_pct"],
        "power_ms": held.get("power_ms"),
        "thermal_ms": held.get("thermal_ms"),
        "brake_ms": held.get("brake_ms"),
    }


def _name(value: Any) -> str:
    """A text of a row; SQLite also takes bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()
