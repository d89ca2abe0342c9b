"""One notice: what it is about, in words and as data. ``key`` names the episode that it begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.queue.family import FAMILIES
from engine.store import Db
from engine.telemetry.throttle_now import Held


@dataclass(frozen=True)
class Notice:
    """One thing to tell. ``key`` names its episode; empty for what happens once."""

    kind: str  # box_dead box_back lane_lost run_failed poison_job throttling
    text: str
    key: str = ""
    box: str | None = None
    queue: str | None = None
    project: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


def dead_box(db: Db, box: str, silent: float, queues: list[str], key: str) -> Notice:
    held = sum(
        int(
            db.value(f"select count(*) from {family.table} where status = 'running' and claimed_box = {{box}}", box=box)
            or 0
        )
        for family in FAMILIES
    )
    lanes = f", lanes {', '.join(queues[:10])}" if queues else ""
    jobs = f", {held} running job{'s' if held != 1 else ''} not taken over yet" if held else ""
    return Notice(
        "box_dead", f"box {box} has been silent for {silent:.0f} s{lanes}{jobs}", key, box,
        detail={"silent_s": round(silent, 1), "queues": queues[:50], "jobs": held},
    )  # fmt: skip


def box_back(key: str) -> Notice:
    box = key.split("|", 1)[1]
    return Notice("box_back", f"box {box} is back", box=box)


def throttled(held: Held, key: str) -> Notice:
    causes = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in held.seconds.items())
    return Notice(
        "throttling", f"box {held.box} was held back in the last minute: {causes}", key, held.box,
        detail={"seconds": {name: round(value, 1) for name, value in held.seconds.items()}, "class": held.limits},
    )  # fmt: skip


def poison_job(row: Mapping[str, Any]) -> Notice:
    name = row["node_id"] or f"{row['family']} job"
    error = row["detail"].get("error") if isinstance(row["detail"], Mapping) else None
    return Notice(
        "poison_job", f"{name} ({row['job_id']}) is given up: {_first_line(error) or row['cause']}"[:500], "", row["box"], row["queue"],
        row["project"],
        {"family": row["family"], "job_id": str(row["job_id"]), "cause": row["cause"], "exit_code": row["exit_code"],
         "run_id": None if row["run_id"] is None else str(row["run_id"])},
    )  # fmt: skip


def failed_run(row: Mapping[str, Any]) -> Notice:
    name = row["workflow_name"] or "run"
    return Notice(
        "run_failed", f"{name} {row['id']} failed: {_first_line(row['error']) or 'no reason given'}"[:500], project=row["project"],
        detail={"run_id": str(row["id"]), "workflow": row["workflow_name"]},
    )  # fmt: skip


def _first_line(error: object) -> str:
    """What a pager can show: without the traceback."""
    return str(error or "").strip().partition("\n")[0]
