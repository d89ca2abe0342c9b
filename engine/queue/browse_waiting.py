"""The queued part of a list of jobs: every class in its own order, by the claim's indexes, merged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.queue.family import FAMILIES, NODE, Family
from engine.queue.looking import Found, Row, Wanted, columns, stamp
from engine.queue.waiting import WaitClass, class_arrays, classes, count
from engine.store import Db

LOOKED = 5_000  # rows of one family that a filter looks at
CLASSES = 200


def queued(db: Db, wanted: Wanted) -> Found:
    found = Found([], 0)
    for family in FAMILIES:
        part = _ready(db, family, wanted)
        due = _timed(db, family, wanted, "<=")
        found = Found(
            [*found.rows, *part.rows, *due.rows],
            found.looked + part.looked + due.looked,
            found.whole and part.whole and due.whole,
        )
    return Found(sorted(found.rows, key=_WAITING_KEYS[wanted.sort]), found.looked, found.whole)


_WAITING_KEYS: dict[str, Callable[[Row], Any]] = {
    "oldest": lambda row: (row["created_at"], row["id"]),
    "newest": lambda row: (-stamp(row["created_at"]), -row["id"]),
    "priority": lambda row: (not row["is_priority"], row["priority"], row["created_at"], row["id"]),
}


def _ready(db: Db, family: Family, wanted: Wanted) -> Found:
    """Rows without a time: each class is read in its own order, by its index."""
    of = classes(
        db, family, bands=wanted.sort != "priority", queue=wanted.queue, project=wanted.project, limit=CLASSES + 1
    )
    whole = len(of) <= CLASSES
    of = of[:CLASSES]
    if not of:
        return Found([], 0)
    depth = max(wanted.limit + 1, LOOKED // len(of)) if wanted.filtered else wanted.limit + 1
    where, given = wanted.where(db, family)
    given |= {"depth": depth, "n": wanted.limit + 1}
    if db.kind == "postgresql":
        rows = db.all(ready_statement(db, family, wanted.sort, where), **given, **class_arrays(of))
    else:
        rows = [row for part in of for row in _ready_sqlite(db, part, wanted.sort, where, given)]
    # Fewer than asked for although filtered: the rest of the classes was not looked at, unless they were short.
    short = len(rows) <= wanted.limit and wanted.filtered and any(_longer(db, part, depth) for part in of[:20])
    return Found(rows, depth * len(of) if short else len(rows), whole and not short)


def _longer(db: Db, part: WaitClass, depth: int, timed: bool = False) -> bool:
    return count(db, part, timed=timed, most=depth + 1) > depth


_ORDERS = {"oldest": "created_at, id", "newest": "created_at desc, id desc", "priority": "band, created_at, id"}


def ready_statement(db: Db, family: Family, sort: str, where: str = "") -> str:
    """PostgreSQL: the first rows of every class, merged, and of those the ones that the filter lets through."""
    order = _ORDERS[sort]
    same = "t.queue = c.queue and t.project = c.project and t.place = c.place"
    if family is NODE:
        same += " and t.model_key = c.model_key"
    if sort != "priority":
        same += " and t.band = c.band"
    head = (
        "select h.* from unnest({queues}::text[], {projects}::text[], {models}::text[], {places}::text[], {bands}::int[]) "
        "as c(queue, project, model_key, place, band) cross join lateral (select t.id, t.band, t.created_at "
        f"from {family.table} t where t.status = 'queued' and t.run_after is null and {same} "
        f"order by {', '.join('t.' + part for part in order.split(', '))} limit {{depth}}) h"
    )
    # limit 1: one probe of the primary key for each, whatever the planner thinks of their number.
    return (
        f"select j.* from (select * from ({head}) a order by {order}{'' if where else ' limit {n}'}) h "
        f"cross join lateral (select {columns(db, family)} from {family.table} j where j.id = h.id{where} limit 1) j "
        f"order by {', '.join('h.' + part for part in order.split(', '))} limit {{n}}"
    )


def _ready_sqlite(db: Db, of: WaitClass, sort: str, where: str, given: dict[str, Any]) -> list[Row]:
    same = " and ".join(f"{column} = {{class_{column}}}" for column in of.key())
    order = _ORDERS[sort]
    head = (
        f"select id from {of.family.table} where status = 'queued' and run_after is null and {same} "
        f"order by {order} limit {{depth}}"
    )
    return db.all(
        f"select {columns(db, of.family)} from ({head}) h cross join {of.family.table} j "
        f"where j.id = h.id{where} limit {{n}}",
        **given,
        **{f"class_{column}": value for column, value in of.key().items()},
    )


def scheduled(db: Db, wanted: Wanted) -> Found:
    parts = [_timed(db, family, wanted, ">") for family in FAMILIES]
    rows = sorted((row for part in parts for row in part.rows), key=lambda row: (row["run_after"], row["id"]))
    return Found(rows, sum(part.looked for part in parts), all(part.whole for part in parts))


def _timed(db: Db, family: Family, wanted: Wanted, when: str) -> Found:
    """Rows whose time has come (``<=``) or not (``>``), each class by its index, the earliest first."""
    of = classes(db, family, timed=True, queue=wanted.queue, project=wanted.project, limit=CLASSES + 1)
    where, given = wanted.where(db, family)
    depth = max(wanted.limit + 1, LOOKED // len(of)) if of and wanted.filtered else wanted.limit + 1
    rows: list[Row] = []
    for part in of[:CLASSES]:
        rows += db.all(
            timed_statement(db, part, when, where),
            **given,
            **{f"class_{column}": value for column, value in part.key().items()},
            depth=depth,
            n=wanted.limit + 1,
        )
    short = len(rows) <= wanted.limit and wanted.filtered and any(_longer(db, part, depth, True) for part in of[:20])
    return Found(rows, depth * len(of) if short else len(rows), len(of) <= CLASSES and not short)


def timed_statement(db: Db, of: WaitClass, when: str, where: str = "") -> str:
    same = " and ".join(f"{column} = {{class_{column}}}" for column in of.key())
    return (
        f"select {columns(db, of.family)} from (select * from {of.family.table} where status = 'queued' "
        f"and run_after is not null and {same} and run_after {when} {{now}} order by run_after limit {{depth}}) j "
        f"where 1 = 1{where} order by j.run_after limit {{n}}"
    )
