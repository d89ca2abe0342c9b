"""Reading the flight recorder: an hour of every box at once (hour.py), then only what is new.

A row ahead of the database's clock (the clock was set back, or anybody wrote it) is not the newest one: it would hide all
that is recorded until its time has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from engine.store import Db
from engine.store.db import Row
from engine.telemetry.hour import HourSummary, hour, hour_summary
from engine.telemetry.rows import AHEAD_S, assemble
from engine.telemetry.sample import BoxFacts, BoxSample, GpuFacts
from engine.telemetry.writer import GPU_COLUMNS, SAMPLE_COLUMNS

__all__ = [
    "HourSummary",
    "assemble",
    "box_facts",
    "details",
    "hour",
    "hour_summary",
    "last_minute",
    "latest",
    "newest",
    "since",
]


def since(db: Db, at: datetime, boxes: Sequence[str] | None = None, limit: int = 20_000) -> list[BoxSample]:
    """Detail samples after a time, oldest first, at most ``limit`` of them. Raises ValueError for a naive time."""
    if at.tzinfo is None:
        raise ValueError(f"since: {at} has no time zone")
    named = "and box {any[boxes]}" if boxes is not None else ""
    where = f"where tier = 'detail' and at > {{at}} and at <= {{after[ahead]}} {named}"
    params: dict[str, Any] = {"at": at, "ahead": AHEAD_S} | ({"boxes": list(boxes)} if boxes is not None else {})
    rows = db.all(
        f"select {', '.join(SAMPLE_COLUMNS)} from flight_recorder {where} order by at limit {{n}}", n=limit, **params
    )
    if not rows:
        return []
    gpus = db.all(
        f"select {', '.join(GPU_COLUMNS)} from flight_recorder_gpu {where} and at <= {{until}} order by at, gpu_index",
        until=rows[-1]["at"],
        **params,
    )
    return assemble(rows, gpus)


def latest(db: Db, boxes: Sequence[str] | None = None) -> dict[str, BoxSample]:
    """The newest detail sample of each box."""
    named = "where b.box {any[boxes]}" if boxes is not None else ""
    params: dict[str, Any] = {"ahead": AHEAD_S} | ({"boxes": list(boxes)} if boxes is not None else {})
    newest = (  # an index look-up each
        "(select max(x.at) from flight_recorder x where x.box = b.box and x.tier = 'detail' and x.at <= {after[ahead]})"
    )
    rows = db.all(
        f"select {', '.join(f'f.{column}' for column in SAMPLE_COLUMNS)} from boxes b "
        f"join flight_recorder f on f.box = b.box and f.tier = 'detail' and f.at = {newest} {named}",
        **params,
    )
    gpus = db.all(
        f"select {', '.join(f'g.{column}' for column in GPU_COLUMNS)} from boxes b "
        f"join flight_recorder_gpu g on g.box = b.box and g.tier = 'detail' and g.at = {newest} {named} "
        "order by g.gpu_index",
        **params,
    )
    return {sample.box: sample for sample in assemble(rows, gpus)}


def details(db: Db, box: str, start: datetime) -> list[BoxSample]:
    """All detail samples of a box from ``start`` on, oldest first."""
    where = "where box = {box} and tier = 'detail' and at >= {start} order by at"
    return assemble(
        db.all(f"select {', '.join(SAMPLE_COLUMNS)} from flight_recorder {where}", box=box, start=start),
        db.all(f"select {', '.join(GPU_COLUMNS)} from flight_recorder_gpu {where}, gpu_index", box=box, start=start),
    )


def last_minute(db: Db, box: str) -> datetime | None:
    """The start of the last minute that was rolled up."""
    return _last(db, box, "minute")


def newest(db: Db, box: str) -> datetime | None:
    """The time of the box's last detail row."""
    return _last(db, box, "detail")


def _last(db: Db, box: str, tier: str) -> datetime | None:
    found = db.value(
        f"select max(at) as last_at from flight_recorder where box = {{box}} and tier = '{tier}' and at <= {{after[ahead]}}",
        box=box,
        ahead=AHEAD_S,
    )
    return found if isinstance(found, datetime) else None


def box_facts(db: Db) -> dict[str, BoxFacts]:
    """The rows of ``boxes``, by name."""
    return facts_of(box_rows(db))


def box_rows(db: Db) -> list[Row]:
    """The rows of ``boxes`` as they stand there."""
    return db.all(
        "select box, machine_id, description, cpu_model, cores, mem_mb, gpus, driver, kernel, simulated "
        "from boxes order by box"
    )


def facts_of(rows: Sequence[Row]) -> dict[str, BoxFacts]:
    """Rows of :func:`box_rows` as facts, by name."""
    return {row["box"]: BoxFacts(**(row | {"gpus": gpu_facts(row["gpus"])})) for row in rows}


def gpu_facts(value: Any) -> tuple[GpuFacts, ...]:
    """From the JSON of any program: what is no list of objects with an index is left out."""
    known = set(GpuFacts.__dataclass_fields__)
    return tuple(
        GpuFacts(**{name: part for name, part in entry.items() if name in known})
        for entry in (value if isinstance(value, list) else ())
        if isinstance(entry, dict) and isinstance(entry.get("index"), int)
    )
