"""The queue in numbers for whoever watches it by machine: bounded in time and size, however long queue and history are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from engine.queue.events import without_bytes
from engine.queue.family import FAMILIES
from engine.queue.listing import STATUSES, Filter, total
from engine.queue.looking import by_index
from engine.queue.snapshot import queued_counts
from engine.queue.tally import RUNNING, Pair, Pairs
from engine.queue.waiting import classes
from engine.store import Db

MEAN_OF = 5_000  # newest jobs that a mean run time is taken from
DEPTH_CAP = 100_000  # a queue and project that is deeper reads as so deep
CLASSES = 500
SILENT_S = 30.0
BOXES_MOST = 200


def project_metrics(db: Db, project: str) -> dict[str, Any]:
    """The project's ingest jobs that are kept: ``total queued running succeeded failed cancelled``, ``retried`` (attempts
    that ended with the job back in the queue), ``expired_leases`` (attempts taken from a lane that no longer renewed their
    lease), ``mean_run_s`` (of the newest 5,000 that succeeded; None: there is none)."""
    with by_index(db):
        counts = {status: total(db, Filter(project, status)) for status in STATUSES}
        caused = db.all(caused_statement(), project=project)
        mean = db.value(mean_statement(db), project=project, n=MEAN_OF)
    back = sum(row["n"] for row in caused if row["event_type"] == "requeued" and row["cause"] != "handed_back")
    lapsed = sum(row["n"] for row in caused if row["cause"] in ("lease_lapsed", "lane_lost"))
    return {
        "total": sum(counts.values()),
        "queued": counts["queued"],
        "running": counts["running"],
        "succeeded": counts["completed"],
        "failed": counts["failed"],
        "cancelled": counts["cancelled"],
        "retried": back,
        "expired_leases": lapsed,
        "mean_run_s": None if mean is None else round(float(mean), 6),
    }


def caused_statement() -> str:
    """Events that have a cause, of ingest jobs of a project, out of an index that holds nothing else."""
    return (
        "select event_type, cause, count(*) as n from job_events where project = {project} and family = 'ingest' "
        "and cause is not null group by event_type, cause"
    )


def mean_statement(db: Db) -> str:
    if db.kind == "postgresql":
        ran = (
            "case when isfinite(started_at) and isfinite(finished_at) and finished_at >= started_at "
            "then extract(epoch from finished_at - started_at)::float8 end"
        )
    else:
        ran = "max(0.0, (julianday(finished_at) - julianday(started_at)) * 86400.0)"
    return (
        f"select avg(ran_s) as mean_s from (select {ran} as ran_s from (select started_at, finished_at from ingest_jobs "
        # A range and no constant: an order that only the index has, or the planner walks the newest ids of all projects.
        "where project = {project} and status >= 'completed' and status <= 'completed' "
        "and status in ('completed', 'failed', 'cancelled') order by status desc, id desc limit {n}) j) r"
    )


def fleet_gauges(db: Db, pairs: Pairs) -> dict[str, Any]:
    """What is, of all projects.

    Keys: ``depth``, ``running``, ``oldest_s`` ({(queue, project): value}; depth up to 100,000; the age of what is due and
    waits), ``lanes`` ({(queue, project, state): how many}, ``silent``: not heard of for 30 s), ``slots`` and ``busy`` ({(queue,
    project): n} of lanes that are heard of), ``leader`` (0 or 1), ``services`` ({kind: n}), ``sample_age_s`` ({box: seconds}).
    """
    with by_index(db):
        now = db.now()
        depth: Counter[Pair] = Counter()
        for key, n in queued_counts(db, None, DEPTH_CAP).items():
            depth[pairs.of(*_text(key))] += n
        running: Counter[Pair] = Counter(pairs.of(*without_bytes(row).values()) for row in db.all(RUNNING))
        return {
            "depth": dict(depth),
            "running": dict(running),
            "oldest_s": _oldest(db, pairs, now),
            **_lanes(db, pairs),
            "leader": 1 if db.all(_LEADER, stale=SILENT_S) else 0,
            "services": _services(db),
            "sample_age_s": _samples(db, now),
        }


_LEADER = "select box from services where kind = 'orchestrator' and is_leader = {true} and last_seen > {before[stale]} limit 1"


def _text(key: tuple[Any, Any]) -> tuple[Any, Any]:
    found = without_bytes({"queue": key[0], "project": key[1]})
    return found["queue"], found["project"]


def _oldest(db: Db, pairs: Pairs, now: datetime) -> dict[Pair, float]:
    """Since when the first of what is due waits: since it was enqueued, or since its time came."""
    found: dict[Pair, float] = {}

    def seen(queue: str, project: str, since: datetime | None) -> None:
        if since is not None:
            pair = pairs.of(*_text((queue, project)))
            found[pair] = max(found.get(pair, 0.0), (now - since).total_seconds())

    for family in FAMILIES:
        for each in classes(db, family, bands=True, limit=CLASSES):
            seen(each.queue, each.project, each.first_at)
        for each in classes(db, family, timed=True, limit=CLASSES):
            same = " and ".join(f"{column} = {{{column}}}" for column in each.key())
            seen(
                each.queue,
                each.project,
                db.value(
                    f"select run_after from {family.table} where status = 'queued' and run_after is not null and {same} "
                    "and run_after <= {now} order by run_after limit 1",
                    **each.key(),
                ),
            )
    return found


def _lanes(db: Db, pairs: Pairs) -> dict[str, Any]:
    rows = db.all(
        "select queue, project, case when state <> 'stopping' and (flagged_dead_at is not null or last_seen < {before[silent]}) "
        "then 'silent' else state end as state, count(*) as n, sum(slots) as slots, sum(busy) as busy "
        "from worker_heartbeats group by 1, 2, 3",
        silent=SILENT_S,
    )
    lanes: Counter[tuple[str, str, str]] = Counter()
    slots: Counter[Pair] = Counter()
    busy: Counter[Pair] = Counter()
    for given in rows:
        row: Mapping[str, Any] = without_bytes(given)
        pair = pairs.of(row["queue"], row["project"])
        if row["state"] == "stopping":
            continue
        lanes[(*pair, row["state"])] += row["n"]
        if row["state"] != "silent":
            slots[pair] += row["slots"]
            busy[pair] += row["busy"]
    return {"lanes": dict(lanes), "slots": dict(slots), "busy": dict(busy)}


def _services(db: Db) -> dict[str, int]:
    rows = db.all(
        "select kind, count(*) as n from services where last_seen > {before[silent]} group by kind order by kind limit 50",
        silent=SILENT_S,
    )
    return {str(without_bytes(row)["kind"]): row["n"] for row in rows}


def _samples(db: Db, now: datetime) -> dict[str, float]:
    rows = db.all(
        "select b.box, (select max(f.at) from flight_recorder f where f.box = b.box and f.tier = 'detail' "
        "and f.at <= {after[ahead]}) as newest_at from (select box from boxes order by box limit {most}) b",
        ahead=60.0,
        most=BOXES_MOST,
    )
    return {
        str(without_bytes(row)["box"]): max(0.0, (now - row["newest_at"]).total_seconds())
        for row in rows
        if row["newest_at"] is not None
    }
