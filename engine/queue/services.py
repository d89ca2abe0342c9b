"""What a service (orchestrator, scheduler, recorder, web) tells of itself in ``services``: that it is there, what ails it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import metadata
from typing import Any

from engine.store import Db

ROW_KEPT_S = 3600.0  # how long the row of a service that is gone is kept


@dataclass(frozen=True)
class Service:
    """One life of one process."""

    kind: str
    box: str
    incarnation: str


# The only statement that writes a row; the recorder has it inside the one that writes its samples.
ROW = (
    "insert into services (kind, box, incarnation, pid, version, is_leader, last_seen, last_error, detail) "
    "values ({kind}, {box}, {incarnation}, {pid}, {version}, {leads}, {clock}, {error}, {detail}{json}) "
    "on conflict (kind, box, incarnation) do update set is_leader = excluded.is_leader, last_seen = excluded.last_seen, "
    "last_error = excluded.last_error, detail = excluded.detail"
)


def row(service: Service, detail: Mapping[str, Any], error: str | None, leads: bool = False) -> dict[str, Any]:
    """The parameters of :data:`ROW`, for this process."""
    return {
        "kind": service.kind,
        "box": service.box,
        "incarnation": service.incarnation,
        "pid": os.getpid(),
        "version": version(),
        "leads": leads,
        "error": error,
        "detail": json.dumps(dict(detail)),
    }


def beat(db: Db, service: Service, detail: Mapping[str, Any], error: str | None, leads: bool = False) -> None:
    """Write the service's row; rows of its kind that nobody wrote for an hour go."""
    db.run(ROW, **row(service, detail, error, leads))
    db.run(
        "delete from services where kind = {kind} and incarnation <> {incarnation} and last_seen < {before[kept]}",
        kind=service.kind,
        incarnation=service.incarnation,
        kept=ROW_KEPT_S,
    )


def leave(db: Db, service: Service) -> None:
    """Take the service's row away: an orderly end."""
    db.run(
        "delete from services where kind = {kind} and box = {box} and incarnation = {incarnation}",
        kind=service.kind,
        box=service.box,
        incarnation=service.incarnation,
    )


def services(db: Db) -> list[dict[str, Any]]:
    """Every service that has reported: kind, box, incarnation, pid, version, is_leader, last_error, last_seen_s (its age)."""
    rows = db.all(
        "select kind, box, incarnation, pid, version, is_leader, last_error, last_seen from services "
        "order by kind, box, incarnation limit 500"
    )
    now = db.now()
    for row in rows:
        seen = row.pop("last_seen")
        row["last_seen_s"] = max(0.0, (now - seen).total_seconds()) if isinstance(seen, datetime) else None
    return rows


@cache
def version() -> str:
    """The version of this installation; empty in a checkout that was never installed."""
    try:
        return metadata.version("flightdeck")
    except metadata.PackageNotFoundError:
        return ""
