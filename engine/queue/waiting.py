"""Queued rows by class: what rows of a queue have in common for a claim. A probe or two for each, however many rows.

The claim's indexes begin with the class, so that a loose scan finds every class and each can be read in its own order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from engine.queue.family import FAMILIES, NODE, Family
from engine.store import Db

READY = "run_after is null"
TIMED = "run_after is not null"
PAIRS_MOST = 200  # (queue, project)
COUNTED_MOST = 20_000  # rows of an index that one answer counts, over all its parts: some 10 ms
_CAPS = (5_000, 2_000, 1_000, 500, 200, 100)
EMPTY: dict[str, Any] = {}


@dataclass(frozen=True)
class WaitClass:
    """Rows of one family, queue, project, model ('' is none) and place; ``band``: of one priority, None: of all.

    ``first_at``: when the oldest row of the band was created, for a class with a band. ``reason``: why the first of them
    cannot be placed, None: it can.
    """

    family: Family
    queue: str
    project: str
    model: str
    place: str
    band: int | None = None
    first_at: datetime | None = None
    reason: str | None = None

    def key(self) -> dict[str, Any]:
        """The columns that name it."""
        found: dict[str, Any] = {"queue": self.queue, "project": self.project, "place": self.place}
        if self.family is NODE:
            found["model_key"] = self.model
        if self.band is not None:
            found["band"] = self.band
        return found


def classes(
    db: Db,
    family: Family,
    *,
    timed: bool = False,
    bands: bool = False,
    queue: str | None = None,
    project: str | None = None,
    limit: int = 300,
) -> list[WaitClass]:
    """Every class that has a queued row, in the order of the index, up to ``limit``; of a queue or project when given.

    ``timed``: the rows with a time before which they do not start; these have no bands.
    """
    due, bands = (TIMED, False) if timed else (READY, bands)
    find = _classes_sqlite if db.kind == "sqlite" else _classes_postgres
    return [
        WaitClass(
            family=family,
            queue=row["queue"],
            project=row["project"],
            model=row.get("model_key") or "",
            place=row["place"],
            band=row["band"] if bands else None,
            first_at=row["created_at"] if bands else None,
            reason=row["unplaceable_reason"],
        )
        for row in find(db, family, due, bands, queue, project, limit)
    ]


def pairs(db: Db) -> list[tuple[str, str]]:
    """Every (queue, project) that has a queued row, sorted."""
    found: set[tuple[str, str]] = set()
    for family in FAMILIES:
        for due in (READY, TIMED):
            if db.kind == "sqlite":
                rows: Iterator[dict[str, Any]] | list[dict[str, Any]] = _walk_sqlite(
                    db, family, due, ("queue", "project"), EMPTY, PAIRS_MOST
                )
            else:
                rows = db.all(f"{_pairs(family, due)} select queue, project from p", most=PAIRS_MOST)
            found |= {(row["queue"], row["project"]) for row in rows}
    return sorted(found, key=str)


def share_of(parts: int, most: int) -> int:
    """Up to how many rows each of so many parts is counted: ``most``, less where all of them together would be too many."""
    return next((cap for cap in _CAPS if cap <= most and cap * parts <= COUNTED_MOST), min(_CAPS[-1], most))


def counts_of(db: Db, of: Sequence[WaitClass], most: int) -> dict[WaitClass, int]:
    """Rows of these classes, each up to ``most``; without a time. One statement for each family on PostgreSQL."""
    if db.kind == "sqlite":
        return {each: count(db, each, most=most) for each in of}
    found: dict[WaitClass, int] = {}
    for family in FAMILIES:
        mine = [each for each in of if each.family is family]
        if not mine:
            continue
        same = "t.queue = c.queue and t.project = c.project and t.place = c.place and t.band = c.band"
        if family is NODE:
            same += " and t.model_key = c.model_key"
        rows = db.all(
            "select (select count(*) from (select 1 from "
            f"{family.table} t where t.status = 'queued' and t.{READY} and {same} limit {{most}}) n) as n "
            "from unnest({queues}::text[], {projects}::text[], {models}::text[], {places}::text[], {bands}::int[]) "
            "with ordinality as c(queue, project, model_key, place, band, nth) order by nth",
            most=most,
            **class_arrays(mine),
        )
        found |= {each: row["n"] for each, row in zip(mine, rows, strict=True)}
    return found


def class_arrays(of: Sequence[WaitClass]) -> dict[str, list[Any]]:
    """Classes as parameters: one array for each of their columns."""
    return {
        "queues": [part.queue for part in of],
        "projects": [part.project for part in of],
        "models": [part.model for part in of],
        "places": [part.place for part in of],
        "bands": [part.band for part in of],
    }


def count(db: Db, of: WaitClass, *, timed: bool = False, most: int) -> int:
    """Rows of a class, counted up to ``most``."""
    same = " and ".join(f"{column} = {{{column}}}" for column in of.key())
    due = TIMED if timed else READY
    found: int = db.value(
        f"select count(*) as n from (select 1 as one from {of.family.table} where status = 'queued' and {due} and {same} "
        "limit {most}) c",
        most=most,
        **of.key(),
    )
    return found


def _rest(family: Family, bands: bool) -> tuple[str, ...]:
    """The columns of a class behind queue and project, in the order of the index."""
    columns = ("model_key", "place") if family is NODE else ("place",)
    return (*columns, "band") if bands else columns


def _classes_postgres(
    db: Db, family: Family, due: str, bands: bool, queue: str | None, project: str | None, limit: int
) -> list[dict[str, Any]]:
    return db.all(
        class_scan(family, due, bands),
        every_queue=1 if queue is None else 0,
        one_queue=queue or "",
        every_project=1 if project is None else 0,
        one_project=project or "",
        most=PAIRS_MOST,
        limit=limit,
    )


@lru_cache(maxsize=16)
def class_scan(family: Family, due: str, bands: bool) -> str:
    """The statement for PostgreSQL: pairs by a loose scan, and for each of those wanted a loose scan of its classes."""
    rest = _rest(family, bands)
    names = ", ".join(rest)
    past = ", ".join(f"c.{column}" for column in rest)
    row = (
        f"(select {names}, created_at, unplaceable_reason from {family.table} t where status = 'queued' and {due} "
        f"and t.queue = p.queue and t.project = p.project{{past}} order by {names}{{tail}} limit 1)"
    )
    # The oldest of a band is the first behind it; without a band the first row of the class is any of it.
    tail = ", created_at, id" if bands else ""
    first = row.replace("{past}", "").replace("{tail}", tail)
    following = row.replace("{past}", f" and ({names}) > ({past})").replace("{tail}", tail)
    return (
        f"{_pairs(family, due)} select p.queue, p.project, k.* from p cross join lateral ("
        f"with recursive c({names}, created_at, unplaceable_reason) as ({first} union all "
        f"select x.* from c cross join lateral {following} x) select * from c limit {{limit}}) k "
        "where ({every_queue} = 1 or p.queue = {one_queue}) and ({every_project} = 1 or p.project = {one_project}) "
        "limit {limit}"
    )


def _pairs(family: Family, due: str) -> str:
    probe = f"select t.queue, t.project from {family.table} t where t.status = 'queued' and t.{due}"
    order = "order by t.queue, t.project limit 1"
    return (
        f"with recursive q(queue, project) as (({probe} {order}) union all select x.* from q cross join lateral "
        f"({probe} and (t.queue, t.project) > (q.queue, q.project) {order}) x), "
        "p as materialized (select * from q limit {most})"
    )


def _classes_sqlite(
    db: Db, family: Family, due: str, bands: bool, queue: str | None, project: str | None, limit: int
) -> Iterator[dict[str, Any]]:
    left = limit
    for pair in _walk_sqlite(db, family, due, ("queue", "project"), EMPTY, PAIRS_MOST):
        if (queue is not None and pair["queue"] != queue) or (project is not None and pair["project"] != project):
            continue
        fixed = {"queue": pair["queue"], "project": pair["project"]}
        for row in _walk_sqlite(db, family, due, _rest(family, bands), fixed, left):
            left -= 1
            yield {**fixed, **row}
        if left <= 0:
            return


def _walk_sqlite(
    db: Db, family: Family, due: str, columns: tuple[str, ...], fixed: dict[str, Any], limit: int
) -> Iterator[dict[str, Any]]:
    """The first row of every combination of ``columns`` where ``fixed`` holds, a probe for each level that may differ."""
    order = [*columns, *(("created_at", "id") if "band" in columns else ())]
    shown = ", ".join([*columns, "created_at", "unplaceable_reason"])
    key: dict[str, Any] | None = None
    for _ in range(limit):
        row = None
        # The next row agrees with the last one in as many columns as can be (a row comparison would walk equal rows).
        for level in reversed(range(len(columns))) if key is not None else (-1,):
            same = [*fixed, *columns[: max(0, level)]]
            where = "".join(f" and {column} = {{{column}}}" for column in same)
            if key is not None:
                where += f" and {columns[level]} > {{{columns[level]}}}"
            row = db.one(
                f"select {shown} from {family.table} where status = 'queued' and {due}{where} "
                f"order by {', '.join(order[max(0, level) :])} limit 1",
                **fixed,
                **({} if key is None else {column: key[column] for column in columns[: level + 1]}),
            )
            if row is not None:
                break
        if row is None:
            return
        yield row
        key = {column: row[column] for column in columns}
