"""A project's ingest jobs as a page of the job API shows them: newest first, and how many there are.

Ids are given in the order of enqueuing, so a page is a stretch of ids. Where the newest ids are mostly the project's own
they are walked along the primary key; else each status has an index that knows the project (jobs that have ended) or
holds no more than the fleet's slots and its backlog (the rest).

``total`` is counted anew for every page, in the indexes alone; of a million jobs that takes a tenth of a second. So a count
that took longer than ``QUICK_S`` is believed for a while, ``BELIEVED`` times as long as it took and at most ``BELIEVED_S``;
jobs enqueued since are added to it. Below some 200,000 jobs of a project it is exact, beyond it may be that old.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from engine.queue import events
from engine.queue.family import Family
from engine.queue.logs import TAIL_BYTES
from engine.queue.looking import by_index
from engine.store import Db

Row = dict[str, Any]

PAGE_BYTES = 8 * 1024 * 1024  # of payloads and results in one page: it ends early behind them
ERROR_SHOWN = 8_000  # characters; the engine cuts there, other writers may not
LOOKED = 2_000  # newest ids that are looked at before the indexes are
QUICK_S = 0.02
BELIEVED = 25.0
BELIEVED_S = 5.0

STATUSES = ("queued", "running", "completed", "failed", "cancelled")
_ENDED = "status in ('completed', 'failed', 'cancelled')"
# Each a condition that one partial index serves. Its own predicate stands there too: SQLite takes it for nothing else.
_BRANCHES: dict[str, tuple[str, ...]] = {
    "queued": ("status = 'queued' and run_after is null", "status = 'queued' and run_after is not null"),
    "running": ("status = 'running'",),
    **{status: (f"status = '{status}' and {_ENDED}",) for status in ("completed", "failed", "cancelled")},
}


@dataclass(frozen=True)
class Filter:
    """Whose jobs, and which of them; None: any."""

    project: str
    status: str | None = None
    task: str | None = None
    queue: str | None = None

    @property
    def branches(self) -> list[str]:
        """Conditions that together, each row once, mean the status."""
        return [branch for status in ([self.status] if self.status else STATUSES) for branch in _BRANCHES[status]]

    @property
    def where(self) -> str:
        """The other conditions, each after ``and``."""
        found = " and project = {project}"
        if self.task is not None:
            found += " and task_name = {task}"
        if self.queue is not None:
            found += " and queue = {queue}"
        return found

    @property
    def given(self) -> dict[str, Any]:
        named = {"project": self.project, "task": self.task, "queue": self.queue}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class Page:
    """``jobs`` as :func:`columns` has them. ``limit``: as asked, or how many there are where the page ended early, so that
    the next one begins at offset + limit. ``next``: the id behind which it goes on; None: these were the last."""

    jobs: list[Row]
    total: int
    limit: int
    next: int | None


def columns(db: Db) -> str:
    """A job as the API shows it. Payload and result are JSON texts, and valid ones whoever wrote the row."""
    payload, result = (_json_text(db, column) for column in ("args", "result"))
    return (
        f"id, task_name, queue, status, {payload} as payload, {result} as outcome, "
        f"substr(error, 1, {ERROR_SHOWN}) as error, attempt, max_attempts, progress_pct, created_at, started_at, finished_at"
    )


def _json_text(db: Db, column: str) -> str:
    if db.kind == "postgresql":
        return f"{column}::text"
    return f"case when json_valid({column}) then cast({column} as text) else json_quote(cast({column} as text)) end"


def one(db: Db, project: str, job_id: int) -> Row | None:
    """One job of the project, or None."""
    return db.one(
        f"select {columns(db)} from ingest_jobs where id = {{id}} and project = {{project}}", id=job_id, project=project
    )


def page(db: Db, wanted: Filter, limit: int = 50, offset: int = 0, after: int | None = None) -> Page:
    """The newest ``limit`` jobs, without the first ``offset`` of them; ``after``: only those before that id."""
    behind = 2**62 if after is None else after
    with by_index(db):
        ids = _newest(db, wanted, limit + 1, offset, behind)
        jobs = _rows(db, ids[:limit])
        n = total(db, wanted)
    if jobs and jobs[-1]["id"] != ids[:limit][-1]:  # cut, or the last of them was deleted meanwhile
        return Page(jobs, n, len(jobs), jobs[-1]["id"])
    return Page(jobs, n, limit, ids[limit - 1] if len(ids) > limit else None)


# -- which


def _newest(db: Db, wanted: Filter, n: int, offset: int, behind: int) -> list[int]:
    given = {**wanted.given, "behind": behind, "n": n, "skip": offset}
    if offset <= LOOKED and wanted.status in (None, "queued"):
        rows = db.all(walk_statement(wanted), looked=LOOKED + offset, **given)
        if len(rows) == n:
            return [row["id"] for row in rows]
    rows = db.all(newest_statement(wanted), depth=min(offset + n, 2**62), **given)
    return [row["id"] for row in rows]


def walk_statement(wanted: Filter) -> str:
    """Newest first along the ids, as far as they are looked at."""
    status = f" and status = '{wanted.status}'" if wanted.status else ""
    return (
        "select id from (select id, project, status, task_name, queue from ingest_jobs where id < {behind} "
        f"order by id desc limit {{looked}}) j where 1 = 1{status}{wanted.where} order by id desc limit {{n}} offset {{skip}}"
    )


def newest_statement(wanted: Filter) -> str:
    """Newest first out of the indexes by status, each as far as is needed."""
    parts = " union all ".join(
        f"select id from (select id from ingest_jobs where {branch}{wanted.where} and {key} < {{behind}} "
        f"order by {key} desc limit {{depth}}) b{i}"
        for i, branch in enumerate(wanted.branches)
        # No key of the table there: what waits or runs is little, and the planner would walk the whole table for it.
        for key in ("id" if _ENDED in branch else "id + 0",)
    )
    return f"select id from ({parts}) j order by id desc limit {{n}} offset {{skip}}"


def _rows(db: Db, ids: list[int]) -> list[Row]:
    """These jobs, as many as fit on a page, newest first."""
    if not ids:
        return []
    size = "octet_length({})" if db.kind == "postgresql" else "length(cast({} as blob))"
    each = f"{size.format('payload')} + coalesce({size.format('outcome')}, 0)"
    rows = db.all(
        f"select * from (select r.*, sum({each}) over (order by id desc) - ({each}) as before_it from (select {columns(db)} "
        "from ingest_jobs where id {any[ids]}) r) j where before_it < {most} order by id desc",
        ids=ids,
        most=PAGE_BYTES,
    )
    for row in rows:
        del row["before_it"]
    return rows


# -- how many

_believed: dict[tuple[Any, ...], tuple[float, int, int]] = {}  # until (monotonic), jobs, the newest id among them
_counting = threading.Lock()
_KNOWN = 500


def total(db: Db, wanted: Filter) -> int:
    """How many jobs there are, exact or a few seconds old: see above. To be called in :func:`by_index`."""
    key = (_place(db), wanted)
    if (known := _known(db, wanted, key)) is not None:
        return known
    if key not in _believed:  # quick until now: no reason to wait in line
        return _count(db, wanted, key)
    with _counting:
        known = _known(db, wanted, key)
        return _count(db, wanted, key) if known is None else known


def _known(db: Db, wanted: Filter, key: tuple[Any, ...]) -> int | None:
    until, jobs, newest = _believed.get(key, (0.0, 0, 0))
    if time.monotonic() >= until:
        return None
    if wanted.status is None:
        jobs += db.value(
            f"select count(*) as n from ingest_jobs where id > {{newest}}{wanted.where}", newest=newest, **wanted.given
        )
    return jobs


def _count(db: Db, wanted: Filter, key: tuple[Any, ...]) -> int:
    begun = time.monotonic()
    newest = int(db.value("select max(id) as newest from ingest_jobs") or 0) if wanted.status is None else 0
    bound = " and id + 0 <= {newest}" if wanted.status is None else ""  # not by the key: SQLite would walk the table
    jobs = int(db.value(count_statement(wanted, bound), newest=newest, **wanted.given))
    took = time.monotonic() - begun
    if took <= QUICK_S:
        _believed.pop(key, None)
    else:
        if len(_believed) >= _KNOWN:
            _believed.clear()
        _believed[key] = (time.monotonic() + min(BELIEVED_S, BELIEVED * took), jobs, newest)
    if bound:
        jobs += db.value(
            f"select count(*) as n from ingest_jobs where id > {{newest}}{wanted.where}", newest=newest, **wanted.given
        )
    return jobs


def count_statement(wanted: Filter, more: str = "") -> str:
    """How many, each part out of its index."""
    parts = " + ".join(
        f"(select count(*) from ingest_jobs where {branch}{wanted.where}{more})" for branch in wanted.branches
    )
    return f"select {parts} as n"


def _place(db: Db) -> tuple[Any, ...]:
    if db.kind == "postgresql":
        return db.raw.info.host, db.raw.info.port, db.raw.info.dbname
    return (db.value("select file from pragma_database_list where name = 'main'"),)


# -- what happened to one


def history(db: Db, family: Family, job_id: int, limit: int, after: int = 0) -> list[Row]:
    """Events of a job behind the id ``after``, oldest first, in the form of :func:`engine.queue.events.recent`."""
    rows = db.all(
        f"select {events.SHOWN} from (select * from job_events where job_id = {{id}} and id > {{past}} order by id "
        "limit {n}) e where e.family = {family} order by e.id",
        id=job_id,
        past=after,
        n=limit,
        family=family.name,
    )
    return [events.shown(row) for row in rows]


def printed(db: Db, family: Family, job_id: int) -> Row:
    """``tail`` (the newest 64 KiB), ``attempt`` that printed it, ``bytes`` that it printed in all; empty: nothing."""
    size = "right(tail, {most})" if db.kind == "postgresql" else "substr(tail, -{most})"
    row = db.one(
        f"select {size} as tail, attempt, bytes from job_logs where family = {{family}} and job_id = {{id}}",
        family=family.name,
        id=job_id,
        most=TAIL_BYTES,
    )
    return row or {"tail": "", "attempt": 0, "bytes": 0}
