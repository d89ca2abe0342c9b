"""The whole fleet as plain data: what the deck draws, what ``fleet_snapshot()`` returns (SPEC, appendix)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from engine.queue.snapshot import queue_view
from engine.store import Db
from engine.telemetry import history
from engine.telemetry.sample import BoxFacts, BoxSample

OK_S = 10.0  # the newest sample may be that old
STALE_S = 30.0  # and the newest sign of life that old, before the box counts as down


Look = tuple[BoxFacts, BoxSample]


def fleet_snapshot(project: str | None = None, db: Db | None = None, look: Look | None = None) -> dict[str, Any]:
    """Everything at this moment; JSON-able: times as ISO text, ids as text. ``project`` None: all of them.

    Opens the configured store unless given a connection. ``look``: a box that was looked at just now, because no
    recorder reports for it. Raises StoreUnavailable, SchemaMismatch.
    """
    if db is None:
        from engine.store import open_store
        from engine.store.migrate import check_schema

        store = open_store()
        with store.connect("snapshot", read_only=True) as own:
            check_schema(store, own)
            return fleet_snapshot(project, own, look)
    newest = history.latest(db)
    facts = history.box_facts(db)
    hour = history.hour(db)
    if look is not None:
        known, sample = look
        facts[sample.box], newest[sample.box] = known, sample
        hour.setdefault(sample.box, []).append(sample)
    found, _ = view(db, project, facts_rows(facts), {box: sample.at for box, sample in newest.items()})
    for box in found["boxes"]:
        now = newest.get(box["box"])
        box["now"] = _offered(now.values()) if now else None
        box["gpus"] = [_offered(gpu.values()) for gpu in now.gpus] if now else []
        box["hour"] = history.hour_summary(hour.get(box["box"], ())).values()
    return jsonable(found)  # type: ignore[no-any-return]


def _offered(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def view(
    db: Db, project: str | None, facts: Mapping[str, Mapping[str, Any]], last: Mapping[str, datetime]
) -> tuple[dict[str, Any], datetime]:
    """The queue's side of the snapshot, box by box, and the database's time.

    ``facts``: see :func:`facts_rows`; ``last``: when each box was sampled last. A box is known by either, or by a lane.
    """
    found = queue_view(db, project)
    at: datetime = found["at"]
    lanes: dict[str, list[dict[str, Any]]] = {}
    jobs: dict[str, list[dict[str, Any]]] = {}
    for lane in found["lanes"]:
        lanes.setdefault(lane["box"], []).append({k: v for k, v in lane.items() if k != "box"})
    for job in found["jobs"]:
        jobs.setdefault(job["box"] or "", []).append(job)
    names = sorted({*facts, *last, *lanes, *(box for box in jobs if box)}, key=str)
    boxes = [
        {
            "box": name,
            **_life(at, last.get(name), lanes.get(name, [])),
            "simulated": bool(facts.get(name, {}).get("simulated")),
            "description": facts.get(name, {}).get("description"),
            "facts": dict(facts[name]) if name in facts else None,
            "lanes": lanes.get(name, []),
            "jobs": jobs.get(name, []),
        }
        for name in names
    ]
    return {
        "at": at.isoformat(),
        "store": db.kind,
        "leader": found["leader"],
        "projects": found["projects"],
        "queues": [
            {"queue": queue, "project": name, "queued": count}
            for (queue, name), count in sorted(found["queued"].items(), key=str)
        ],
        "boxes": boxes,
        "events": found["events"],
    }, at


def _life(at: datetime, sampled: datetime | None, lanes: list[dict[str, Any]]) -> dict[str, Any]:
    """``ok``: fresh samples; ``stale``: alive, but its recorder is late; ``down``: silent; ``never``: not heard of yet."""
    age = max(0.0, (at - sampled).total_seconds()) if sampled else None
    beat = min((lane["last_seen_s"] for lane in lanes if lane.get("last_seen_s") is not None), default=None)
    heard = min((x for x in (age, beat) if x is not None), default=None)
    if heard is None:
        state = "never"
    elif age is not None and age <= OK_S:
        state = "ok"
    else:
        state = "stale" if heard <= STALE_S else "down"
    return {"state": state, "sample_age_s": None if age is None else round(age, 1)}


def signature(found: Mapping[str, Any], at: datetime) -> Any:
    """What of a view must differ for it to be worth sending: all of it, with ages turned into the times they count from.

    To be compared with ``==``; shares what has no ages with the view.
    """
    now = at.timestamp()
    return {
        **found,
        "at": None,
        "leader": _timed(found["leader"], "last_seen_s", now),
        "boxes": [
            {
                **box,
                "sample_age_s": None,
                "lanes": [_timed(lane, "last_seen_s", now) for lane in box["lanes"]],
                "jobs": [_timed(job, "age_s", now) for job in box["jobs"]],
            }
            for box in found["boxes"]
        ],
    }


def _timed(row: Mapping[str, Any] | None, age: str, now: float) -> dict[str, Any] | None:
    """A row whose age in seconds is replaced by its time, coarse enough not to tremble."""
    if row is None or row[age] is None:
        return None if row is None else dict(row)
    return {**row, age: round((now - float(row[age])) / 2.0)}


def watermarks(db: Db) -> Any:
    """A few values that move whenever the view may have changed. Cheap: each is one index or one small table."""
    row = db.one(
        "select (select max(id) from job_events) as events, (select max(id) from control_events) as orders, "
        "(select max(last_seen) from worker_heartbeats) as beat_at, (select count(*) from worker_heartbeats) as lanes, "
        "(select max(updated_at) from worker_controls) as ordered_at, (select count(*) from worker_controls) as controls, "
        "(select count(*) from services where is_leader = {true}) as leaders"
    )
    return tuple(row.values()) if row else None


def box_facts(db: Db) -> dict[str, dict[str, Any]]:
    """The rows of ``boxes`` by name."""
    rows = db.all(
        "select box, description, cpu_model, cores, mem_mb, gpus, driver, kernel, simulated, updated_at from boxes"
    )
    return {row.pop("box"): row for row in rows if isinstance(row["box"], str)}  # SQLite takes bytes


def facts_rows(known: Mapping[str, BoxFacts]) -> dict[str, dict[str, Any]]:
    """Boxes' facts as plain data, by name."""
    return {
        box: {f.name: getattr(facts, f.name) for f in fields(facts) if f.name not in ("box", "machine_id", "gpus")}
        | {"gpus": [gpu.values() for gpu in facts.gpus]}
        for box, facts in known.items()
    }


def jsonable(value: Any) -> Any:
    """Times as ISO text in UTC, bytes (SQLite keeps them in any column) as text, what is no finite number as None (JSON has no
    word for it, and a column of numbers may hold it); everything else as it is."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, dict):
        return {jsonable(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
