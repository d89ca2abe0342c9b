"""Each queue of each project in one row: what waits, what runs, how the last hour went, which lanes serve it and why not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from engine import config
from engine.queue import controls
from engine.queue.family import FAMILIES, INGEST, NODE, family_of_queue
from engine.queue.looking import by_index
from engine.queue.snapshot import lanes_view, queued_counts
from engine.queue.waiting import WaitClass, classes, counts_of, pairs, share_of
from engine.store import Db

QUEUED_CAP = 5_000
HOUR_S = 3600.0
ENDS_READ = 4_000  # ends of attempts that the figures of the last hour are taken from
WAITS_READ = 300  # of each queue and project: how long their jobs had waited, a look at the job's row each
CLASSES = 300
MODELS_COUNTED = 40
MODEL_CAP = 1_000
LANE_SILENT_S = 30.0

Key = tuple[str, str]  # queue, project


def queues_view(db: Db, project: str | None = None) -> dict[str, Any]:
    """The queues as plain data; ``project`` None: of all.

    Keys: ``at``; ``window_s``: of how many of the last 3,600 seconds ``ended`` tells (fewer where more than ``ENDS_READ``
    attempts ended; of waits at most ``WAITS_READ`` a queue and project); ``backlog_limit``: as this process is
    configured, 0: none; ``queues``: [{queue, project, family, queued, capped, scheduled, next_at (of those), running, awaiting, oldest_at (of what waits and may run), ended: {done,
    failed, run_mean_s, run_p95_s, wait_mean_s, wait_p95_s (None: nothing to tell)}, lanes: {on, parked, down, changing,
    slots, busy}, desired (on, off, mixed, none), orders: [{box, queue, desired, policy, reason, requested_by, until,
    updated_at}], models: [{model, queued, capped, warm}], unplaceable, unplaceable_capped, reason}].
    """
    with by_index(db):
        return _view(db, project)


def _view(db: Db, project: str | None) -> dict[str, Any]:
    at = db.now()
    cap = share_of(len(pairs(db)), QUEUED_CAP)
    queued = queued_counts(db, project, cap)
    running, awaiting = _running(db, project), _awaiting(db, project)
    waiting = _waiting(db, project)
    timed = _timed(db, project, cap)
    lanes: dict[Key, list[dict[str, Any]]] = {}
    for lane in lanes_view(db, project, queued):
        lanes.setdefault((lane["queue"], lane["project"]), []).append(lane)
    orders = controls.all_orders(db)
    ended, window_s = _ended(db, at, project)
    telling = [each for key in waiting for each in _telling(waiting[key])[:MODELS_COUNTED]]
    class_cap = share_of(len(telling), MODEL_CAP)
    counted = counts_of(db, telling, class_cap)
    keys = {*queued, *running, *awaiting, *lanes, *ended}
    return {
        "at": at,
        "window_s": window_s,
        "backlog_limit": int(config.get("backlog_limit")),
        "queues": [
            {
                "queue": key[0],
                "project": key[1],
                "family": family_of_queue(str(key[0])).name,
                "queued": queued.get(key, 0),
                "capped": queued.get(key, 0) >= cap,
                "scheduled": timed[key]["scheduled"] if key in timed else 0,
                "next_at": timed[key]["next_at"] if key in timed else None,
                "running": running.get(key, 0),
                "awaiting": awaiting.get(key, 0),
                "oldest_at": _earliest(
                    timed[key]["due_at"] if key in timed else None, *(c.first_at for c in waiting.get(key, ()))
                ),
                "ended": ended.get(key, dict(_NOTHING)),
                **_served(lanes.get(key, [])),
                "orders": [_order(row) for row in orders if _about(row, key, lanes.get(key, []))],
                **_wants(waiting.get(key, []), lanes.get(key, []), counted, class_cap),
            }
            for key in sorted(keys, key=lambda key: (_FIRST.get(key[0], 2), str(key[0]), str(key[1])))
        ],
    }


_FIRST = {"cpu": 0, "gpu": 1}
_NOTHING: dict[str, Any] = {
    "done": 0, "failed": 0, "run_mean_s": None, "run_p95_s": None, "wait_mean_s": None, "wait_p95_s": None
}  # fmt: skip


def _running(db: Db, project: str | None) -> dict[Key, int]:
    begun = " union all ".join(
        f"select queue, project from {family.table} where status = 'running' and started_at is not null"
        for family in FAMILIES
    )
    return _by_key(
        db.all(
            f"select queue, project, count(*) as n from ({begun}) r where ({{every}} = 1 or project = {{project}}) "
            "group by queue, project",
            every=1 if project is None else 0,
            project=project or "",
        )
    )


def _awaiting(db: Db, project: str | None) -> dict[Key, int]:
    return _by_key(
        db.all(
            "select queue, project, count(*) as n from (select queue, project from workflow_node_jobs "
            "where status = 'awaiting_input' limit {most}) a where ({every} = 1 or project = {project}) "
            "group by queue, project",
            every=1 if project is None else 0,
            project=project or "",
            most=QUEUED_CAP,
        )
    )


def _by_key(rows: Iterable[Mapping[str, Any]]) -> dict[Key, int]:
    return {(row["queue"], row["project"]): row["n"] for row in rows}


def _waiting(db: Db, project: str | None) -> dict[Key, list[WaitClass]]:
    found: dict[Key, list[WaitClass]] = {}
    for family in FAMILIES:
        for each in classes(db, family, bands=True, project=project, limit=CLASSES):
            found.setdefault((each.queue, each.project), []).append(each)
    return found


def _timed(db: Db, project: str | None, cap: int) -> dict[Key, dict[str, Any]]:
    """How much waits for its time, when the first of it comes, and since when the first waits whose time has come."""
    found: dict[Key, dict[str, Any]] = {}
    for family in FAMILIES:
        for each in classes(db, family, timed=True, project=project, limit=CLASSES):
            same = " and ".join(f"{column} = {{{column}}}" for column in each.key())
            rows = f"from {family.table} where status = 'queued' and run_after is not null and {same}"
            later = db.one(f"select run_after {rows} and run_after > {{now}} order by run_after limit 1", **each.key())
            due = db.one(f"select created_at {rows} and run_after <= {{now}} order by run_after limit 1", **each.key())
            n = 0
            if later is not None:
                n = db.value(
                    f"select count(*) as n from (select 1 as one {rows} and run_after > {{now}} limit {{most}}) c",
                    most=cap,
                    **each.key(),
                )
            row = found.setdefault((each.queue, each.project), {"scheduled": 0, "next_at": None, "due_at": None})
            row["scheduled"] = min(cap, row["scheduled"] + n)
            row["next_at"] = _earliest(row["next_at"], None if later is None else later["run_after"])
            row["due_at"] = _earliest(row["due_at"], None if due is None else due["created_at"])
    return found


def _earliest(*times: datetime | None) -> datetime | None:
    return min((at for at in times if at is not None), default=None)


# -- how the last hour went


def _ended(db: Db, at: datetime, project: str | None) -> tuple[dict[Key, dict[str, Any]], float]:
    """Figures of the attempts that ended in the last hour, by queue and project, and of how many seconds they tell."""
    rows = _ended_rows(db)
    window_s = HOUR_S
    if len(rows) == ENDS_READ and rows[-1]["created_at"] is not None:
        window_s = min(HOUR_S, max(1.0, (at - rows[-1]["created_at"]).total_seconds()))
    grouped: dict[Key, list[dict[str, Any]]] = {}
    for row in rows:
        if row["event_type"] in ("completed", "failed") and project in (None, row["project"]):
            grouped.setdefault((row["queue"], row["project"]), []).append(row)
    return {key: figures(part) for key, part in grouped.items()}, window_s


def _ended_rows(db: Db) -> list[dict[str, Any]]:
    return db.all(ended_statement(db), n=ENDS_READ, hour_s=HOUR_S)


def ended_statement(db: Db) -> str:
    """The newest events of the last hour, each with how long its job waited before its first attempt began.

    The row of a job is looked up only for those, the newest of each queue and project: a join would read the whole table.
    """
    if db.kind == "postgresql":
        # Others may write endless times, which no server subtracts from each other.
        waited = (
            "case when isfinite(j.started_at) and isfinite(j.created_at) "
            "then extract(epoch from j.started_at - j.created_at)::float8 end"
        )
    else:
        waited = "(julianday(j.started_at) - julianday(j.created_at)) * 86400.0"
    looked_up = " ".join(
        f"when e.family = '{family.name}' then (select {waited} from {family.table} j where j.id = e.job_id)"
        for family in (NODE, INGEST)
    )
    return (
        "select e.queue, e.project, e.event_type, e.elapsed_s, e.created_at, "
        f"case when e.attempt <> 1 or e.nth > {WAITS_READ} then null {looked_up} end as waited_s from "
        "(select l.*, row_number() over (partition by l.queue, l.project order by l.id desc) as nth from "
        "(select id, family, job_id, attempt, queue, project, event_type, elapsed_s, created_at from job_events "
        "order by id desc limit {n}) l where l.created_at > {before[hour_s]}) e order by e.id desc"
    )


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts, means and 95 % of these ends. Only completed attempts tell how long a job runs: failed ones end early."""
    ran = _numbers(row["elapsed_s"] for row in rows if row["event_type"] == "completed")
    waited = [max(0.0, waited) for waited in _numbers(row["waited_s"] for row in rows)]
    return {
        "done": sum(row["event_type"] == "completed" for row in rows),
        "failed": sum(row["event_type"] == "failed" for row in rows),
        "run_mean_s": _mean(ran),
        "run_p95_s": percentile(ran, 0.95),
        "wait_mean_s": _mean(waited),
        "wait_p95_s": percentile(waited, 0.95),
    }


def _numbers(values: Iterable[Any]) -> list[float]:
    """Those that are numbers: SQLite keeps whatever a foreign program writes into a column."""
    return [value for value in values if isinstance(value, int | float) and math.isfinite(value)]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that ``share`` of them do not exceed; None of none."""
    if not values:
        return None
    ranked = sorted(values)
    return ranked[max(0, -int(-share * len(ranked) // 1) - 1)]


# -- who serves it


def _served(lanes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Lanes by what they are, not by what is wanted of them; beside it what is wanted."""
    counted = {"on": 0, "parked": 0, "down": 0, "changing": 0, "slots": 0, "busy": 0}
    wanted: set[str] = set()
    for lane in lanes:
        state = lane_state(lane)
        if state == "ended":
            continue
        counted[state] += 1
        wanted.add(lane["desired"])
        if state != "down":
            for name in ("slots", "busy"):
                counted[name] += sum(int(n) for n in _numbers([lane[name]]))
    desired = "none" if not wanted else wanted.pop() if len(wanted) == 1 else "mixed"
    return {"lanes": counted, "desired": desired}


def lane_state(lane: Mapping[str, Any]) -> str:
    """``on``, ``parked``, ``changing`` (between the two, draining, starting), ``down`` (silent, refused) or ``ended``."""
    if lane["state"] == "stopping":
        return "ended"
    if lane["flagged"] or lane["state"] == "refused" or (lane["last_seen_s"] or 0.0) > LANE_SILENT_S:
        return "down"
    if lane["state"] == "parked" and lane["desired"] == "off":
        return "parked"
    return "on" if lane["state"] == "running" and lane["desired"] == "on" else "changing"


def _about(order: Mapping[str, Any], key: Key, lanes: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an order is about this queue: by name, or by the box of one of its lanes; what is on anyway is no news."""
    if order["project"] != key[1] or order["queue"] not in ("*", key[0]):
        return False
    if order["desired"] == "on":
        return False
    return order["queue"] == key[0] or order["box"] == "*" or any(lane["box"] == order["box"] for lane in lanes)


def _order(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("box", "queue", "desired", "policy", "reason", "requested_by", "until", "updated_at")
    return {name: row[name] for name in names}


def _telling(waiting: Iterable[WaitClass]) -> list[WaitClass]:
    """The classes of which more is said than that they wait."""
    return [each for each in waiting if (each.family is NODE and each.model) or each.reason is not None]


def _wants(
    waiting: Sequence[WaitClass], lanes: Sequence[Mapping[str, Any]], counted: Mapping[WaitClass, int], cap: int
) -> dict[str, Any]:
    """Models that wait against those that are warm, and what no live slot could hold, by class."""
    models: dict[str, dict[str, Any]] = {}
    unplaceable, capped, reason = 0, False, None
    for each in _telling(waiting):
        n = counted.get(each, 1)
        full = n >= cap or each not in counted
        if each.family is NODE and each.model:
            row = models.setdefault(each.model, {"model": each.model, "queued": 0, "capped": False, "warm": 0})
            row["queued"], row["capped"] = row["queued"] + n, row["capped"] or full
        if each.reason is not None:
            unplaceable, capped, reason = unplaceable + n, capped or full, reason or each.reason
    for lane in lanes:
        warm = lane["current_model"]
        if warm and lane_state(lane) in ("on", "changing"):
            row = models.setdefault(warm, {"model": warm, "queued": 0, "capped": False, "warm": 0})
            row["warm"] += 1
    return {
        "models": sorted(models.values(), key=lambda row: (-row["queued"], -row["warm"], row["model"])),
        "unplaceable": unplaceable,
        "unplaceable_capped": capped,
        "reason": reason,
    }
