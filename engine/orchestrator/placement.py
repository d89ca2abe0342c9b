"""Queued jobs that no live slot could hold: flagged with the reason, once said as an event, unflagged when one appears.

Decided per class, never per row: a class is what rows of one queue have in common for a claim (project, model, boxes). A
lane is live when it beats and neither stops nor was refused. A parked one is: its order is the operator's, stands on the
deck, and is no property of the job. A reason must stand for ``unplaceable_after`` seconds before rows are flagged, so
that lanes which restart do not make a queue of 100,000 rows be written twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from engine import config
from engine.orchestrator.sweeps import Clock, Sweep
from engine.queue import events
from engine.queue.family import FAMILIES, NODE, Family
from engine.store import Db

STALE_S = 30.0  # a lane that has not beaten for so long holds nothing
BATCH = {"postgresql": 2000, "sqlite": 1000}  # rows of one transaction
PASS_S = 1.0  # of flagging, in one pass
CLASSES_AT_ONCE = 5000
AGAIN_FLAGGED_S = 4.0  # a class that is flagged is looked at again: new rows came
AGAIN_CLEAN_S = 60.0  # and one that is not: somebody else may have written
FORGET_S = 120.0


@dataclass(frozen=True)
class JobClass:
    """What decides about a queued row. ``model`` '' is none; ``only`` and ``avoid`` are boxes, sorted."""

    family: Family
    queue: str
    project: str
    model: str
    place: str
    only: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()


@dataclass(frozen=True)
class LiveLane:
    """What a live lane could hold. ``for_models`` and ``for_free``: it has slots for rows with and without a model."""

    box: str
    queue: str
    project: str
    known: frozenset[str] = frozenset()
    fits: frozenset[str] = frozenset()
    for_models: bool = True
    for_free: bool = True


def reason(job: JobClass, lanes: Sequence[LiveLane]) -> str | None:
    """Why no slot could hold a job of this class; None when one could.

    The text names what the job asks for and no lane by name, so that it stays the same while lanes come and go.
    """
    if job.only and not set(job.only) - set(job.avoid):
        return f"only_boxes ({_names(job.only)}) and avoid_boxes ({_names(job.avoid)}) contradict each other: no box is left"
    of = f"queue {job.queue}" + (f" of project {job.project}" if job.project else "")
    here = [lane for lane in lanes if (lane.queue, lane.project) == (job.queue, job.project)]
    if not here:
        return f"no live lane of {of}"
    allowed = [lane for lane in here if (not job.only or lane.box in job.only) and lane.box not in job.avoid]
    if not allowed:
        if job.only:
            return f"only_boxes: no live lane of {of} on {_names(tuple(b for b in job.only if b not in job.avoid))}"
        return f"avoid_boxes ({_names(job.avoid)}): no live lane of {of} on any other box"
    where = " on the boxes that it may use" if job.place else ""
    if not job.model:
        return (
            None
            if any(lane.for_free for lane in allowed)
            else f"no live lane of {of}{where} takes jobs without a model"
        )
    if not any(job.model in lane.known | lane.fits for lane in allowed):
        return f"model {job.model}: no live lane of {of}{where} has registered it"
    fitting = [lane for lane in allowed if job.model in lane.fits]
    if not fitting:
        return f"model {job.model} fits on no device of a live lane of {of}{where}"
    if not any(lane.for_models for lane in fitting):
        return f"model {job.model}: no live lane of {of}{where} that could load it takes jobs with a model"
    return None


def _names(boxes: Sequence[str]) -> str:
    more = f" and {len(boxes) - 5} more" if len(boxes) > 5 else ""
    return ", ".join(boxes[:5]) + more


def live_lanes(db: Db) -> list[LiveLane]:
    """The lanes that could take work now, or when they are resumed."""
    rows = db.all(
        "select box, queue, project, slots, models_known, models_fit, detail from worker_heartbeats "
        "where state not in ('refused', 'stopping') and flagged_dead_at is null and last_seen > {before[stale_s]}",
        stale_s=STALE_S,
    )
    return [_lane(row) for row in rows]


def _lane(row: dict[str, Any]) -> LiveLane:
    detail = row["detail"] if isinstance(row["detail"], dict) else {}
    kinds = [detail.get(key) for key in ("model_slots", "free_slots", "any_slots")]
    with_model, free, both = (int(n) if isinstance(n, int | float) else 0 for n in kinds)
    if not with_model + free + both:  # a lane that does not tell: any slot takes anything
        both = 1
    return LiveLane(
        box=row["box"],
        queue=row["queue"],
        project=row["project"],
        known=_ids(row["models_known"]),
        fits=_ids(row["models_fit"]),
        for_models=with_model + both > 0,
        for_free=free + both > 0,
    )


def _ids(value: Any) -> frozenset[str]:
    return frozenset(str(id) for id in value) if isinstance(value, list) else frozenset()


@dataclass
class _Seen:
    """What we know of a class; times are monotonic seconds."""

    why: str | None
    since: float
    at: float
    done_at: float | None = None  # when every row had this reason


class Placement:
    """The sweep, and what it remembers: since when each class has had its reason, and whether its rows say so."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[JobClass, _Seen] = {}
        self._at: dict[tuple[Family, str], tuple[str, ...]] = {}  # where a walk over very many classes was cut

    def sweep(self) -> Sweep:
        # Flagging a long queue takes several passes of a second, so it may have two thirds of this thread's time.
        return Sweep("unplaceable", 1.0, self.flag, self._clock, duty=1.5)

    def flag(self, db: Db) -> int:
        """Flag and unflag; the number of rows changed."""
        lanes = live_lanes(db)
        now, after = self._clock(), float(config.get("unplaceable_after"))
        until = time.monotonic() + PASS_S
        count = 0
        for job in self._classes(db):
            why = reason(job, lanes)
            seen = self._seen.get(job)
            if seen is None or seen.why != why:
                seen = self._seen[job] = _Seen(why, now, now)
            seen.at = now
            if (why is not None and now - seen.since < after) or not _due(seen, now):
                continue
            while time.monotonic() < until:
                changed, whole = _mark(db, job, why)
                count += changed
                if whole:
                    seen.done_at = now
                    break
        self._seen = {job: seen for job, seen in self._seen.items() if now - seen.at < FORGET_S}
        return count

    def _classes(self, db: Db) -> list[JobClass]:
        found: dict[JobClass, None] = {}
        for family in FAMILIES:
            for due in ("run_after is null", "run_after is not null"):
                rows = list(_walk(db, family, due, self._at.get((family, due)), CLASSES_AT_ONCE))
                self._at.pop((family, due), None)
                if len(rows) == CLASSES_AT_ONCE:  # go on from there the next time
                    self._at[family, due] = tuple(rows[-1][column] for column in _columns(family))
                found |= dict.fromkeys(_class_of(family, row) for row in rows)
        return list(found)


def _due(seen: _Seen, now: float) -> bool:
    again = AGAIN_CLEAN_S if seen.why is None else AGAIN_FLAGGED_S
    return seen.done_at is None or now - seen.done_at >= again


def _columns(family: Family) -> tuple[str, ...]:
    """The columns of a class, in the order of the claim's indexes."""
    return ("queue", "project", "model_key", "place") if family is NODE else ("queue", "project", "place")


def _class_of(family: Family, row: dict[str, Any]) -> JobClass:
    only, avoid = (row[name] if isinstance(row[name], list) else [] for name in ("only_boxes", "avoid_boxes"))
    return JobClass(
        family=family,
        queue=row["queue"],
        project=row["project"],
        model=row.get("model_key") or "",
        place=row["place"],
        only=tuple(sorted(map(str, only))),
        avoid=tuple(sorted(map(str, avoid))),
    )


def _walk(db: Db, family: Family, due: str, after: tuple[str, ...] | None, limit: int) -> Iterator[dict[str, Any]]:
    """One row of every class that is queued: a loose scan of the claim's index, a probe or two for each."""
    columns = _columns(family)
    key = dict(zip(columns, after or ("",) * len(columns), strict=True))
    if db.kind == "postgresql":
        yield from db.all(_loose_scan(family, due), n=limit, **key)
        return
    for _ in range(limit):
        row = next(filter(None, (_next_sqlite(db, family, due, key, i) for i in reversed(range(len(columns))))), None)
        if row is None:
            return
        yield row
        key = {column: row[column] for column in columns}


def _loose_scan(family: Family, due: str) -> str:
    columns = _columns(family)
    names = ", ".join(columns)
    start = ", ".join(f"{{{column}}}" for column in columns)
    past = ", ".join(f"c.{column}" for column in columns)
    row = (
        f"(select {names}, only_boxes, avoid_boxes from {family.table} j where status = 'queued' and {due} "
        f"and ({names}) > ({{key}}) order by {names} limit 1)"
    )
    return (
        f"with recursive c({names}, only_boxes, avoid_boxes) as ({row.replace('{key}', start)} union all "
        f"select x.* from c cross join lateral {row.replace('{key}', past)} x) select * from c limit {{n}}"
    )


def _next_sqlite(db: Db, family: Family, due: str, key: dict[str, str], level: int) -> dict[str, Any] | None:
    """The next class that agrees with ``key`` in the first ``level`` columns (a row comparison would walk equal rows)."""
    columns = _columns(family)
    same = "".join(f" and {column} = {{{column}}}" for column in columns[:level])
    return db.one(
        f"select {', '.join(columns)}, only_boxes, avoid_boxes from {family.table} where status = 'queued' and {due}"
        f"{same} and {columns[level]} > {{{columns[level]}}} order by {', '.join(columns[level:])} limit 1",
        **{column: key[column] for column in columns[: level + 1]},
    )


def _mark(db: Db, job: JobClass, why: str | None) -> tuple[int, bool]:
    """Give up to a batch of rows of the class this reason, with an event for those that had none; (rows, was that all)."""
    family, n = job.family, BATCH[db.kind]
    other = "unplaceable_reason is not null" if why is None else "coalesce(unplaceable_reason, '') <> {why}"
    same = " and ".join(f"{column} = {{{column}}}" for column in _columns(family))
    key = {"queue": job.queue, "project": job.project, "model_key": job.model, "place": job.place}
    changed = 0
    for due in ("run_after is null", "run_after is not null"):
        # Found outside of the transaction: a look at 100,000 rows must not hold SQLite's write lock.
        found = db.all(
            f"select id from {family.table} where status = 'queued' and {due} and {same} and {other} limit {{n}}",
            n=n - changed,
            **{column: key[column] for column in _columns(family)},
            **({} if why is None else {"why": why}),
        )
        if found:
            _write(db, family, [row["id"] for row in found], why)
        changed += len(found)
        if changed >= n:
            return changed, False
    if db.kind == "sqlite" and changed:
        time.sleep(0.002)  # others write, too
    return changed, True


def _write(db: Db, family: Family, ids: Sequence[int], why: str | None) -> None:
    """Those of these rows that are queued still; a row that is locked is being claimed."""
    with db.transaction():
        rows = db.all(
            f"select id, unplaceable_reason from {family.table} where id {{any[ids]}} and status = 'queued' "
            "order by id {skip_locked}",
            ids=list(ids),
        )
        # priority: without an assignment that a generated column depends on the update costs twice as much.
        db.run(
            f"update {family.table} set unplaceable_reason = {{why}}, priority = priority where id {{any[ids]}}",
            ids=[row["id"] for row in rows],
            why=why,
        )
        if why is not None:
            _tell(db, family, [row["id"] for row in rows if row["unplaceable_reason"] is None], why)


def _tell(db: Db, family: Family, ids: Sequence[int], why: str) -> None:
    """One event for each job, once for every attempt that it waits for."""
    rows = db.all(
        f"select j.id from {family.table} j where j.id {{any[ids]}} and not exists (select 1 from job_events e "
        "where e.job_id = j.id and e.event_type = 'unplaceable' and e.attempt = j.attempt)",
        ids=list(ids),
    )
    if rows:
        events.record_rows(db, family, [row["id"] for row in rows], "unplaceable", detail={"reason": why})
