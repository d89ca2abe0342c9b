"""Jobs of both families as an operator looks for them: by status, project, queue, box and text, sorted, 200 at a time.

Every list is read by an index, in its order, and stops: at the rows asked for, or after so many looked at. What was left
unlooked is told (``looked``, ``whole``), never guessed.

===============  ==========================================================  =================================
status           rows                                                        sorts, the first unless said
===============  ==========================================================  =================================
live             running, then awaiting_input, then queued                   (each its own first)
running          running                                                     longest, newest, priority
queued           queued and due                                              oldest, newest, priority
scheduled        queued, not before ``run_after``                            soonest
awaiting_input   nodes that wait for a person                                oldest
failed           failed                                                      newest
cancelled        cancelled                                                   newest
completed        completed and skipped                                       newest
all              all                                                         newest
===============  ==========================================================  =================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from engine.errors import BadInput
from engine.queue.browse_waiting import LOOKED, queued, scheduled
from engine.queue.family import FAMILIES, NODE, Family
from engine.queue.looking import Found, Row, Wanted, by_index, columns, in_order, stamp
from engine.queue.snapshot import queued_counts
from engine.queue.waiting import pairs, share_of
from engine.store import Db

SHOWN = 200  # rows of one answer
COUNT_CAP = 5_000
QUEUED_CAP = 2_000  # of one queue and project
RUNNING_MOST = 5_000

SORTS: dict[str, tuple[str, ...]] = {
    "live": ("oldest",),
    "running": ("longest", "newest", "priority"),
    "queued": ("oldest", "newest", "priority"),
    "scheduled": ("soonest",),
    "awaiting_input": ("oldest",),
    "failed": ("newest",),
    "cancelled": ("newest",),
    "completed": ("newest",),
    "all": ("newest",),
}


def browse(
    db: Db,
    status: str = "live",
    project: str | None = None,
    queue: str | None = None,
    box: str | None = None,
    text: str = "",
    sort: str | None = None,
    limit: int = SHOWN,
    after: Mapping[str, int | str] | None = None,
) -> dict[str, Any]:
    """Jobs as plain data; None for a filter: any. ``text``: every word of it is in name, node, id, run, model or error.

    ``box``: where it runs or ran; of queued rows those that may run only there. ``sort``: see above; another one counts
    as the first. ``after``: the ``next`` of the page before, for sort ``newest`` of what is no queue.

    Keys: ``at``; ``status``; ``sort``; ``jobs`` (see :func:`_shown`); ``more``: there are others behind; ``next``: where
    they begin, None: ask narrower; ``looked``: rows looked at; ``whole``: False when a filter gave up after
    ``LOOKED`` rows. Raises BadInput for an unknown status.
    """
    if status not in SORTS:
        raise BadInput(f"{status!r} is no status of jobs: use one of {', '.join(SORTS)}")
    sort = sort if sort in SORTS[status] else SORTS[status][0]
    wanted = Wanted(
        project, queue, box, tuple(text.lower().split()[:8]), sort, min(max(1, limit), SHOWN), dict(after or {})
    )
    with by_index(db):
        at = db.now()
        found = _READERS[status](db, wanted)
    jobs = found.rows[: wanted.limit]
    more = len(found.rows) > wanted.limit or found.more
    return {
        "at": at,
        "status": status,
        "sort": sort,
        "jobs": [_shown(row) for row in jobs],
        "more": more,
        "next": _next(jobs, wanted.after) if more and status in ("failed", "cancelled", "completed", "all") else None,
        "looked": found.looked,
        "whole": found.whole,
    }


# -- what runs


def _running(db: Db, wanted: Wanted) -> Found:
    rows: list[Row] = []
    for family in FAMILIES:
        where, given = wanted.where(db, family)
        rows += db.all(
            running_statement(db, family, wanted.sort, where), most=RUNNING_MOST, n=wanted.limit + 1, **given
        )
    keys: dict[str, Callable[[Row], Any]] = {
        "longest": lambda row: (row["started_at"] is None, row["started_at"] or row["created_at"], row["id"]),
        "newest": lambda row: (row["started_at"] is not None, -stamp(row["started_at"]), -row["id"]),
        "priority": lambda row: (not row["is_priority"], row["priority"], row["created_at"], row["id"]),
    }
    return Found(sorted(rows, key=keys[wanted.sort]), len(rows))


_RUNNING_ORDERS = {
    "longest": "j.started_at is null, j.started_at, j.id",
    "newest": "j.started_at is not null, j.started_at desc, j.id desc",
    "priority": "j.is_priority desc, j.priority, j.created_at, j.id",
}


def running_statement(db: Db, family: Family, sort: str, where: str = "") -> str:
    """Running rows by their own index, which holds no more than the fleet has slots."""
    return (
        f"select {columns(db, family)} from (select * from {family.table} where status = 'running' limit {{most}}) j "
        f"where 1 = 1{where} order by {_RUNNING_ORDERS[sort]} limit {{n}}"
    )


def _awaiting(db: Db, wanted: Wanted) -> Found:
    where, given = wanted.where(db, NODE)
    rows = db.all(awaiting_statement(db, where), most=LOOKED, n=wanted.limit + 1, **given)
    return Found(rows, len(rows))


def awaiting_statement(db: Db, where: str = "") -> str:
    return (
        f"select {columns(db, NODE)} from (select * from workflow_node_jobs where status = 'awaiting_input' "
        f"order by created_at, id limit {{most}}) j where 1 = 1{where} order by j.created_at, j.id limit {{n}}"
    )


def _live(db: Db, wanted: Wanted) -> Found:
    """What runs, what waits for a person, what waits for a slot."""
    running = _running(db, replace(wanted, sort="longest"))
    awaiting = _awaiting(db, wanted)
    left = wanted.limit - len(running.rows) - len(awaiting.rows)
    waiting = queued(db, wanted) if left > 0 else Found([], 0, more=True)
    return Found(
        [*running.rows, *awaiting.rows, *waiting.rows],
        running.looked + awaiting.looked + waiting.looked,
        waiting.whole,
        waiting.more,
    )


# -- what has ended


def _ended_badly(status: str) -> Callable[[Db, Wanted], Found]:
    def read(db: Db, wanted: Wanted) -> Found:
        with in_order(db):
            return _backwards(db, wanted, ended_badly(db, status), newest=NEWEST_BADLY)

    return read


NEWEST_BADLY = "status desc, id desc"


def ended_badly(db: Db, status: str) -> str:
    """The condition of failed or cancelled rows, of which by NEWEST_BADLY the newest are read first.

    Their index has (status, id). Told ``=``, PostgreSQL drops the status from the order and, as it takes such rows to be
    everywhere, walks the primary key back over all that has completed since; told a range it has one way to the order.
    The index's own condition stands in front: no partial index is taken for less.
    """
    which = f"= '{status}'" if db.kind == "sqlite" else f"between '{status}' and '{status}'"
    return f"status in ('failed', 'cancelled') and status {which}"


def _completed(db: Db, wanted: Wanted) -> Found:
    return _backwards(db, wanted, "", "j.status in ('completed', 'skipped')")


def _all(db: Db, wanted: Wanted) -> Found:
    return _backwards(db, wanted, "")


def _backwards(db: Db, wanted: Wanted, among: str, keep: str = "", newest: str = "id desc") -> Found:
    """Newest first along the ids, which are given in the order of enqueuing; a filter gives up after LOOKED rows."""
    heads: list[list[Row]] = []
    looked, whole = 0, True
    for family in FAMILIES:
        where, given = wanted.where(db, family)
        if keep:
            where += f" and {keep}"
        depth = LOOKED if where else wanted.limit + 1
        behind = int(wanted.after.get(family.name, 2**62))
        rows = db.all(
            backwards_statement(db, family, among, where, newest),
            behind=behind,
            depth=depth,
            n=wanted.limit + 1,
            **given,
        )
        heads.append(rows)
        if where and len(rows) <= wanted.limit:
            seen = db.value(backwards_count(family, among, newest), behind=behind, depth=depth + 1)
            looked, whole = looked + min(seen, depth), whole and seen <= depth
        else:
            looked += len(rows)
    return Found(_merged(heads, wanted.limit + 1), looked, whole)


def backwards_statement(db: Db, family: Family, among: str = "", where: str = "", newest: str = "id desc") -> str:
    return (
        f"select {columns(db, family)} from (select * from {family.table} where id < {{behind}}"
        f"{' and ' + among if among else ''} order by {newest} limit {{depth}}) j where 1 = 1{where} "
        f"order by {', '.join('j.' + part for part in newest.split(', '))} limit {{n}}"
    )


def backwards_count(family: Family, among: str = "", newest: str = "id desc") -> str:
    return (
        f"select count(*) as n from (select 1 as one from {family.table} where id < {{behind}}"
        f"{' and ' + among if among else ''} order by {newest} limit {{depth}}) c"
    )


def _merged(heads: list[list[Row]], most: int) -> list[Row]:
    """The families' rows as one list, newest first, each family in its own order, so that a page can go on behind it."""
    at = [0] * len(heads)
    merged: list[Row] = []
    while len(merged) < most:
        left = [i for i, rows in enumerate(heads) if at[i] < len(rows)]
        if not left:
            break
        best = max(left, key=lambda i: (heads[i][at[i]]["created_at"], i))
        merged.append(heads[best][at[best]])
        at[best] += 1
    return merged


def _next(rows: list[Row], before: dict[str, Any]) -> dict[str, str]:
    """Where the next page begins: behind the last row shown of each family."""
    found = {name: str(value) for name, value in before.items()}
    for row in rows:
        found[row["family"]] = str(row["id"])
    return found


_READERS: dict[str, Callable[[Db, Wanted], Found]] = {
    "live": _live,
    "running": _running,
    "queued": queued,
    "scheduled": scheduled,
    "awaiting_input": _awaiting,
    "failed": _ended_badly("failed"),
    "cancelled": _ended_badly("cancelled"),
    "completed": _completed,
    "all": _all,
}


# -- how many


def counts(db: Db, project: str | None = None) -> dict[str, dict[str, Any]]:
    """Jobs by status: {``n``, ``capped``}: there are more than n. What is completed is not counted: nobody may read it all.

    ``queued`` holds what is scheduled, too. Failed and cancelled ones of a project: among the newest 5,000 of all.
    """
    with by_index(db):
        return _counts(db, project)


def _counts(db: Db, project: str | None) -> dict[str, dict[str, Any]]:
    cap = share_of(len(pairs(db)), QUEUED_CAP)
    waiting = queued_counts(db, project, cap)
    found = {"queued": {"n": sum(waiting.values()), "capped": any(n >= cap for n in waiting.values())}}
    for status in ("running", "awaiting_input"):
        tables = FAMILIES if status == "running" else (NODE,)
        n = sum(_count(db, family, f"status = '{status}'", project) for family in tables)
        found[status] = {"n": n, "capped": n >= COUNT_CAP}
    with in_order(db):
        return found | {status: _count_badly(db, status, project) for status in ("failed", "cancelled")}


def _count_badly(db: Db, status: str, project: str | None) -> dict[str, Any]:
    n, capped = 0, False
    for family in FAMILIES:
        row = db.one(
            "select count(*) as seen, coalesce(sum(case when {every} = 1 or project = {project} then 1 else 0 end), 0) "
            f"as n from (select {'project' if project is not None else 'null as project'} from {family.table} "
            f"where {ended_badly(db, status)} order by {NEWEST_BADLY} limit {{most}}) c",
            every=1 if project is None else 0,
            project=project or "",
            most=COUNT_CAP + 1,
        )
        assert row is not None
        n, capped = n + min(row["n"], COUNT_CAP), capped or row["seen"] > COUNT_CAP
    return {"n": n, "capped": capped}


def _count(db: Db, family: Family, which: str, project: str | None) -> int:
    found: int = db.value(
        f"select count(*) as n from (select 1 as one from {family.table} where {which} "
        "and ({every} = 1 or project = {project}) limit {most}) c",
        every=1 if project is None else 0,
        project=project or "",
        most=COUNT_CAP,
    )
    return found


def _shown(row: Row) -> Row:
    """One job as plain data: ids as text, the times aware."""
    return {
        **row,
        "id": str(row["id"]),
        "run_id": None if row["run_id"] is None else str(row["run_id"]),
        "name": row["name"] or row["node_id"],
        "error": next(iter(str(row["error"] or "").strip().splitlines()), None),
    }
