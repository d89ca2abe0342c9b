"""The whole fleet as plain data: what the deck draws, what ``fleet_snapshot()`` returns (SPEC, appendix)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from engine.queue.snapshot import queue_view
from engine.store import Db
from engine.telemetry.sample import BOX_METRICS, GPU_METRICS, BoxFacts, BoxSample

OK_S = 10.0  # the newest sample may be that old
STALE_S = 30.0  # and the newest sign of life that old, before the box counts as down
HOUR_S = 3600.0

_AGES = frozenset({"age_s", "sample_age_s", "last_seen_s"})


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
    newest = latest_samples(db)
    last = {box: row["at"] for box, row in newest.items()}
    gpus = _latest_gpus(db, last)
    facts = box_facts(db)
    if look is not None:
        known, sample = look
        newest[sample.box] = {"at": sample.at, **sample.values()}
        last[sample.box] = sample.at
        gpus[sample.box] = [{k: v for k, v in gpu.values().items() if v is not None} for gpu in sample.gpus]
        facts[sample.box] = facts_row(known)
    found, _ = view(db, project, facts, last)
    hours = _hours(db)
    for box in found["boxes"]:
        row = newest.get(box["box"])
        box["now"] = {k: v for k, v in row.items() if k in BOX_METRICS and v is not None} if row else None
        box["gpus"] = gpus.get(box["box"], [])
        box["hour"] = hours.get(box["box"]) or {
            "power_s": None,
            "thermal_s": None,
            "brakes": None,
            "power_max_w": None,
            "temp_max_c": None,
        }
    return jsonable(found)  # type: ignore[no-any-return]


def view(
    db: Db, project: str | None, facts: Mapping[str, Mapping[str, Any]], last: Mapping[str, datetime]
) -> tuple[dict[str, Any], datetime]:
    """The queue's side of the snapshot, box by box, and the database's time.

    ``facts``: rows of ``boxes``; ``last``: when each box was sampled last. A box is known by either, or by a lane.
    """
    found = queue_view(db, project)
    at: datetime = found["at"]
    lanes: dict[str, list[dict[str, Any]]] = {}
    jobs: dict[str, list[dict[str, Any]]] = {}
    for lane in found["lanes"]:
        lanes.setdefault(lane["box"], []).append({k: v for k, v in lane.items() if k != "box"})
    for job in found["jobs"]:
        jobs.setdefault(job["box"] or "", []).append(job)
    names = sorted({*facts, *last, *lanes, *(box for box in jobs if box)})
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
            for (queue, name), count in sorted(found["queued"].items())
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


def signature(found: Any, at: datetime) -> Any:
    """What of a view must differ for it to be worth sending: all of it, with ages turned into the times they count from."""
    if isinstance(found, dict):
        return tuple(
            (key, _since(at, value) if key in _AGES else signature(value, at))
            for key, value in found.items()
            if key not in ("at", "sample_age_s")
        )
    if isinstance(found, list | tuple):
        return tuple(signature(value, at) for value in found)
    return found


def _since(at: datetime, age_s: Any) -> Any:
    return None if age_s is None else round((at.timestamp() - float(age_s)) / 2.0)


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
    return {row.pop("box"): row for row in rows}


def facts_row(known: BoxFacts) -> dict[str, Any]:
    """A box's facts as its row of ``boxes`` has them."""
    row = {f.name: getattr(known, f.name) for f in fields(known) if f.name not in ("box", "machine_id", "gpus")}
    return row | {"gpus": [gpu.values() for gpu in known.gpus]}


def latest_samples(db: Db, seconds: float = HOUR_S) -> dict[str, dict[str, Any]]:
    """The newest detail row of each box, out of the last hour."""
    columns = ", ".join(f"r.{name}" for name in BOX_METRICS)
    rows = db.all(
        f"select r.box, r.at, {columns} from flight_recorder r join (select box, max(at) as newest from flight_recorder "
        "where tier = 'detail' and at > {before[seconds]} group by box) n on n.box = r.box and n.newest = r.at "
        "where r.tier = 'detail'",
        seconds=seconds,
    )
    return {row.pop("box"): row for row in rows}


def _latest_gpus(db: Db, last: Mapping[str, datetime]) -> dict[str, list[dict[str, Any]]]:
    """The GPU rows of those samples."""
    found: dict[str, list[dict[str, Any]]] = {}
    columns = ", ".join(GPU_METRICS)
    for box, at in last.items():
        rows = db.all(
            f"select {columns} from flight_recorder_gpu where box = {{box}} and tier = 'detail' and at = {{at}} "
            "order by gpu_index",
            box=box,
            at=at,
        )
        found[box] = [{k: v for k, v in row.items() if v is not None} for row in rows]
    return found


def _hours(db: Db) -> dict[str, dict[str, Any]]:
    """Per box what the past hour held back and how far it went, out of the minute rows. Causes are never added up."""
    rows = db.all(
        "select box, sum(power_ms) as power_ms, sum(thermal_ms) as thermal_ms, sum(brakes) as brakes "
        "from flight_recorder where tier = 'minute' and at > {before[seconds]} group by box",
        seconds=HOUR_S,
    )
    peaks = {
        row["box"]: row
        for row in db.all(
            "select box, max(power_w_max) as power_max_w, max(temp_c_max) as temp_max_c "
            "from flight_recorder_gpu where tier = 'minute' and at > {before[seconds]} group by box",
            seconds=HOUR_S,
        )
    }
    found = {}
    for row in rows:
        peak = peaks.get(row["box"], {})
        found[row["box"]] = {
            "power_s": _seconds(row["power_ms"]),
            "thermal_s": _seconds(row["thermal_ms"]),
            "brakes": None if row["brakes"] is None else int(row["brakes"]),
            "power_max_w": peak.get("power_max_w"),
            "temp_max_c": peak.get("temp_max_c"),
        }
    return found


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else round(float(ms) / 1000.0, 1)


def jsonable(value: Any) -> Any:
    """Times as ISO text in UTC; everything else as it is."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return value
