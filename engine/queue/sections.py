"""The rows behind a view of the queue: all of them in one statement on PostgreSQL, and nothing read twice that says the same.

A deck asks every second. A round trip costs it a third of a millisecond whatever is asked, and making values of rows costs
more than finding them: so the server sends each section as one JSON text, with times that stand (seconds of the epoch)
instead of ages that move, and a text that was sent before is not read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from engine.queue import controls, events
from engine.queue.family import FAMILIES, INGEST, Family
from engine.store import Db
from engine.store.adapters import any_json
from engine.store.dialect import decode_time

COUNT_CAP = 10_000  # a longer queue reads as "10,000 or more": counting 100,000 rows costs 15 ms each time
JOBS_SHOWN = 200
EVENTS_SHOWN = 50
LEADER_STALE_S = 30.0

Values = list[Any]  # of one row, in the order of LANE, JOB or LEADER


@dataclass(frozen=True)
class Sections:
    """What one reading found. Of two readings of one reader a section that says the same is the same object.

    ``queued``: [queue, project, count]; ``running``: [project, count] of begun jobs; ``awaiting``: the same of nodes that wait
    for a person; ``orders``: rows of worker_controls,
    newest first; ``events``: newest first, as :func:`engine.queue.events.shown`.
    """

    at: datetime
    leader: list[Values]
    orders: list[dict[str, Any]]
    queued: list[Values]
    running: list[Values]
    awaiting: list[Values]
    lanes: list[Values]
    jobs: list[Values]
    events: list[dict[str, Any]]


def epoch(kind: str, column: str) -> str:
    """SQL: a time of a row in seconds of the epoch; null where it is none."""
    if kind == "postgresql":
        return f"extract(epoch from {column})::float8"
    return f"((julianday({column}) - 2440587.5) * 86400.0)"


def lane_columns(kind: str) -> dict[str, str]:
    """What is read of a lane: names, and their expressions."""
    plain = (
        "box", "queue", "project", "incarnation", "state", "slots", "busy", "current_model", "version", "last_exit_code",
        "last_exit_reason",
    )  # fmt: skip
    return {name: name for name in plain} | {
        "flagged": "flagged_dead_at is not null",
        "seen": epoch(kind, "last_seen"),
    }


def job_columns(kind: str, family: Family) -> dict[str, str]:
    """What is read of a running job."""
    run = {"run_id": "null", "node_id": "null"} if family is INGEST else {"run_id": "run_id", "node_id": "node_id"}
    return {
        "family": f"'{family.name}'", "id": "id", "project": "project", "name": family.name_column, "queue": "queue",
        "box": "claimed_box", "begun": epoch(kind, "started_at"), "progress_pct": "progress_pct",
        "progress_text": "progress_text", **run, "attempt": "attempt", "is_priority": "is_priority",
        "cancel_requested": "cancel_requested",
    }  # fmt: skip


LANE = tuple(lane_columns(""))
JOB = tuple(job_columns("", INGEST))

_OF_PROJECT = "({every} = 1 or project = {project})"


def _named(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{expression} as {name}" for name, expression in columns.items())


def lanes_sql(kind: str) -> str:
    return (
        f"select {_named(lane_columns(kind))} from worker_heartbeats where {_OF_PROJECT} order by box, queue, project"
    )


def _leader_sql(kind: str) -> str:
    return (
        f"select box, incarnation, {epoch(kind, 'last_seen')} as seen from services where kind = 'orchestrator' "
        "and is_leader = {true} and last_seen > {before[stale_s]} order by last_seen desc limit 1"
    )


def _running_sql() -> str:
    begun = " union all ".join(
        f"select project from {family.table} where status = 'running' and started_at is not null" for family in FAMILIES
    )
    return f"select project, count(*) as n from ({begun}) r where {_OF_PROJECT} group by project order by project"


def _awaiting_sql() -> str:
    return (
        "select project, count(*) as n from (select project from workflow_node_jobs where status = 'awaiting_input' "
        f"limit {{cap}}) a where {_OF_PROJECT} group by project order by project"
    )


def _jobs_sql(kind: str, family: Family) -> str:
    return (
        f"select {_named(job_columns(kind, family))} from {family.table} where status = 'running' "
        f"and started_at is not null and {_OF_PROJECT} order by started_at, id limit {{limit}}"
    )


_WAITING = [(family.table, due) for family in FAMILIES for due in ("run_after is null", "run_after is not null")]

# Queued rows by (queue, project), each up to the cap: a loose scan of the claim indexes, one probe per pair. The status is a
# literal, as in the indexes' predicates.
QUEUED = "with recursive " + ", ".join(
    f"p{i}(queue, project) as ("
    f"(select queue, project from {table} where status = 'queued' and {due} order by queue, project limit 1) "
    f"union all select x.* from p{i} p cross join lateral (select t.queue, t.project from {table} t "
    f"where t.status = 'queued' and t.{due} and (t.queue, t.project) > (p.queue, p.project) "
    "order by t.queue, t.project limit 1) x)"
    for i, (table, due) in enumerate(_WAITING)
)
QUEUED += " " + " union all ".join(
    f"select p.queue, p.project, (select count(*) from (select 1 from {table} t where t.status = 'queued' and t.{due} "
    f"and t.queue = p.queue and t.project = p.project limit {{cap}}) q) as n from p{i} p"
    for i, (table, due) in enumerate(_WAITING)
)


def queued_sqlite(db: Db, cap: int) -> Iterator[dict[str, Any]]:
    for table, due in _WAITING:
        at: tuple[str, str] = ("", "")
        waiting = f"from {table} where status = 'queued' and {due}"
        while True:
            # Two probes instead of (queue, project) > (...): SQLite walks over every equal pair with that.
            pairs = db.all(
                f"select queue, project from (select queue, project {waiting} and queue = {{queue}} "
                "and project > {project} order by project limit 1) a union all "
                f"select queue, project from (select queue, project {waiting} and queue > {{queue}} "
                "order by queue, project limit 1) b",
                queue=at[0],
                project=at[1],
            )
            if not pairs:
                break
            pair = next((row for row in pairs if row["queue"] == at[0]), pairs[0])
            at = (pair["queue"], pair["project"])
            here = f"{waiting} and queue = {{queue}} and project = {{project}}"
            count = f"select count(*) as n from (select 1 as one {here} limit {{cap}}) q"
            yield {**pair, "n": db.value(count, queue=at[0], project=at[1], cap=cap)}


def _statement() -> str:
    """Every section of PostgreSQL as a column of one row."""

    def lists(columns: tuple[str, ...], source: str, alias: str) -> str:
        return f"(select json_agg(json_build_array({', '.join(columns)})) from ({source}) q)::text as {alias}"

    kind = "postgresql"
    jobs = " union all ".join(f"({_jobs_sql(kind, family)})" for family in FAMILIES)
    leader = _leader_sql(kind)
    return (
        "select {clock} as at, "
        + ", ".join(
            [
                lists(("box", "incarnation", "seen"), leader, "leader"),
                f"(select json_agg(q) from ({controls.HOLDING}) q)::text as orders",
                lists(("queue", "project", "n"), QUEUED, "queued"),
                lists(("project", "n"), _running_sql(), "running"),
                lists(("project", "n"), _awaiting_sql(), "awaiting"),
                lists(LANE, lanes_sql(kind), "lanes"),
                lists(JOB, f"select * from ({jobs}) j order by family desc, begun, id limit {{limit}}", "jobs"),
                f"case when k.ids = {{known}} then null else (select json_agg(q) from ({events.RECENT}) q)::text end as events",
                "k.ids as event_ids",
            ]
        )
        + " from (select coalesce((select json_agg(id) from (select id from job_events order by id desc limit {shown}) i)"
        "::text, '') as ids) k"
    )


_STATEMENT = _statement()
_NEVER = "never"  # no list of ids reads like that


class SectionReader:
    """Reads one store again and again. ``project`` None: all of them."""

    def __init__(self, project: str | None = None) -> None:
        self._project = project
        self._texts: dict[str, str | None] = {}
        self._before: Sections | None = None
        self._shown: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}  # events as they came and as they are shown

    def read(self, db: Db) -> Sections:
        """The sections as they are now."""
        found = self._postgres(db) if db.kind == "postgresql" else self._sqlite(db)
        self._before = found
        return found

    def _parameters(self) -> dict[str, Any]:
        recent = events.recent_parameters(EVENTS_SHOWN, self._project)
        return {**recent, "cap": COUNT_CAP, "limit": JOBS_SHOWN, "stale_s": LEADER_STALE_S}

    def _postgres(self, db: Db) -> Sections:
        before, texts = self._before, self._texts
        row = db.one(
            _STATEMENT,
            **self._parameters(),
            known=_NEVER if before is None or self._project is not None else texts["event_ids"],
        )
        assert row is not None

        def section(name: str, read: Callable[[Any], Any] = lambda value: value) -> Any:
            if before is not None and row[name] == texts[name]:
                return getattr(before, name)
            return read(any_json(row[name]) if row[name] else [])

        same_events = before is not None and row["events"] is None and row["event_ids"] == texts["event_ids"]
        found = Sections(
            at=row["at"],
            leader=section("leader"),
            orders=section("orders"),
            queued=section("queued"),
            running=section("running"),
            awaiting=section("awaiting"),
            lanes=section("lanes"),
            jobs=section("jobs"),
            events=before.events if before is not None and same_events else section("events", self._events),
        )
        self._texts = row if row["events"] is not None else {**row, "events": texts.get("events")}
        return found

    def _events(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Most of them were shown before."""
        before, self._shown = self._shown, {}
        for row in rows:
            known = before.get(row["id"])
            self._shown[row["id"]] = known if known is not None and known[0] == row else (row, _shown(row))
        return [known[1] for known in self._shown.values()]

    def _sqlite(self, db: Db) -> Sections:
        given = self._parameters()
        jobs = [job for family in FAMILIES for job in db.all(_jobs_sql("sqlite", family), **given)]
        found = Sections(
            at=db.now(),
            leader=_lists(db.all(_leader_sql("sqlite"), **given)),
            orders=[events.without_bytes(row) for row in controls.all_orders(db)],
            queued=_lists(queued_sqlite(db, COUNT_CAP)),
            running=_lists(db.all(_running_sql(), **given)),
            awaiting=_lists(db.all(_awaiting_sql(), **given)),
            lanes=_lists(db.all(lanes_sql("sqlite"), **given)),
            jobs=_lists(jobs[:JOBS_SHOWN]),
            events=events.recent(db, EVENTS_SHOWN, self._project),
        )
        before = self._before
        if before is None:
            return found
        same = {name: getattr(before, name) for name in _SECTIONS if getattr(found, name) == getattr(before, name)}
        return replace(found, **same)


_SECTIONS = tuple(name for name in Sections.__dataclass_fields__ if name != "at")


def _lists(rows: Any) -> list[Values]:
    return [list(events.without_bytes(row).values()) for row in rows]


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """An event out of JSON, which has no word for NaN."""
    elapsed_s = None if isinstance(row["elapsed_s"], str) else row["elapsed_s"]
    return events.shown({**row, "created_at": decode_time(row["created_at"]), "elapsed_s": elapsed_s})
