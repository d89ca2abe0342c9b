"""What happened, newest first: events of jobs and orders of people as one list, in pages that go back in time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import BadInput
from engine.queue.events import SHOWN as EVENT_COLUMNS
from engine.queue.events import shown as event_shown
from engine.queue.events import without_bytes
from engine.queue.looking import by_index
from engine.store import Db

SHOWN = 200  # rows of one answer
LOOKED = 5_000  # rows of either table that a filter looks at

# Which rows of job_events and of control_events each kind means; None: none. Other words name an event type or an action.
KINDS: dict[str, tuple[str | None, str | None]] = {
    "all": ("1 = 1", "1 = 1"),
    "telling": ("event_type <> 'completed'", "1 = 1"),
    "trouble": ("event_type <> 'completed'", "1 = 1"),
    "jobs": ("1 = 1", None),
    "orders": (None, "1 = 1"),
}
_TROUBLE = {
    "job": " and (e.event_type in ('failed', 'stall_suspected', 'trip', 'lost_claim', 'stale_write', 'refused', "
    "'unplaceable') or e.cause in ('executor_died', 'lane_lost', 'lease_lapsed', 'trip'))",
    "control": " and e.action = 'alert'",
}


def happened(
    db: Db,
    kind: str = "telling",
    project: str | None = None,
    box: str | None = None,
    queue: str | None = None,
    text: str = "",
    limit: int = SHOWN,
    after: Mapping[str, int | str] | None = None,
) -> dict[str, Any]:
    """Events and orders as plain data, newest first; None for a filter: any.

    ``kind``: ``all``, ``telling`` (all but jobs that completed), ``trouble``, ``jobs``, ``orders``, or the name of one
    event type or action. ``text``: every word of it is somewhere on the row. ``after``: the ``next`` of the page before.

    Keys: ``at``; ``events`` [{id, at, source (job or control), job_id, run_id, node_id, attempt, box, queue, project,
    type, cause, exit_code, by, text}]; ``more``; ``next``: where the next page begins, None: there is none; ``whole``:
    False when a filter gave up after ``LOOKED`` rows. Raises BadInput.
    """
    if not isinstance(kind, str) or len(kind) > 60:
        raise BadInput("kind: a word of up to 60 characters")
    limit = min(max(1, limit), SHOWN)
    behind = {name: int((after or {}).get(name, 2**62)) for name in ("job", "control")}
    words = text.lower().split()[:8]
    with by_index(db):
        at = db.now()
        jobs, jobs_whole = _read(db, "job", kind, project, box, queue, words, limit + 1, behind["job"])
        orders, orders_whole = _read(db, "control", kind, project, box, queue, words, limit + 1, behind["control"])
    rows = _merged(jobs, orders, limit + 1)
    more = len(rows) > limit
    rows = rows[:limit]
    for row in rows:
        behind[row["source"]] = int(row["id"])
    return {
        "at": at,
        "events": rows,
        "more": more,
        "next": {name: str(value) for name, value in behind.items()} if more else None,
        "whole": jobs_whole and orders_whole,
    }


_TABLES = {"job": "job_events", "control": "control_events"}
_COLUMNS = {"job": EVENT_COLUMNS, "control": "id, at, project, box, queue, action, policy, requested_by, detail"}
_TEXTS = {
    "job": (
        "cast(e.job_id as text)", "cast(e.run_id as text)", "e.node_id", "replace(e.event_type, '_', ' ')",
        "replace(e.cause, '_', ' ')", "e.box", "e.queue", "e.project", "cast(e.exit_code as text)",
        "substr(cast(e.detail as text), 1, 2000)",
        "(select task_name from ingest_jobs j where j.id = e.job_id and e.family = 'ingest')",
    ),
    "control": (
        "replace(e.action, '_', ' ')", "e.policy", "e.requested_by", "e.box", "e.queue", "e.project",
        "substr(cast(e.detail as text), 1, 2000)",
    ),
}  # fmt: skip


def _read(
    db: Db,
    source: str,
    kind: str,
    project: str | None,
    box: str | None,
    queue: str | None,
    words: list[str],
    n: int,
    behind: int,
) -> tuple[list[dict[str, Any]], bool]:
    """One table's part, newest first, and whether nothing was left unlooked."""
    among = _among(source, kind)
    if among is None:
        return [], True
    where, given = "", {}
    for name, value in (("project", project), ("box", box), ("queue", queue)):
        if value is not None:
            # An order for every box is about each of them.
            star = f" or e.{name} = '*'" if source == "control" and name != "project" else ""
            where += f" and (e.{name} = {{one_{name}}}{star})"
            given[f"one_{name}"] = value
    for number, word in enumerate(words):
        hay = " || ' ' || ".join(f"coalesce({part}, '')" for part in _TEXTS[source])
        where += f" and {'strpos' if db.kind == 'postgresql' else 'instr'}(lower({hay}), {{word{number}}}) > 0"
        given[f"word{number}"] = word
    if kind not in KINDS:
        where += f" and e.{'event_type' if source == 'job' else 'action'} = {{one_kind}}"
        given["one_kind"] = kind
    elif kind == "trouble":
        where += _TROUBLE[source]
    depth = LOOKED if where else n
    rows = db.all(read_statement(source, among, where), behind=behind, depth=depth, n=n, **given)
    whole = True
    if depth > n and len(rows) < n:
        seen = db.value(
            f"select count(*) as n from (select 1 as one from {_TABLES[source]} e where id < {{behind}} and {among} "
            "order by id desc limit {depth}) c",
            behind=behind,
            depth=depth + 1,
        )
        whole = seen <= depth
    return [_job_shown(row) if source == "job" else _order_shown(row) for row in rows], whole


def _among(source: str, kind: str) -> str | None:
    """Which rows of a table are walked for a kind; job_events has an index of all that are telling."""
    job, control = KINDS.get(kind, ("1 = 1" if kind == "completed" else "event_type <> 'completed'", "1 = 1"))
    return job if source == "job" else control


def read_statement(source: str, among: str, where: str) -> str:
    """The newest rows behind an id, along the primary key or the index of telling events."""
    return (
        f"select {_COLUMNS[source]} from (select * from {_TABLES[source]} e where id < {{behind}} and {among} "
        f"order by id desc limit {{depth}}) e where 1 = 1{where} order by e.id desc limit {{n}}"
    )


def _merged(jobs: list[dict[str, Any]], orders: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Both as one list, newest first, each in its own order, so that a page can go on behind it."""
    merged: list[dict[str, Any]] = []
    i = j = 0
    while len(merged) < most and (i < len(jobs) or j < len(orders)):
        if j >= len(orders) or (i < len(jobs) and jobs[i]["at"] >= orders[j]["at"]):
            merged.append(jobs[i])
            i += 1
        else:
            merged.append(orders[j])
            j += 1
    return merged


def _job_shown(row: Mapping[str, Any]) -> dict[str, Any]:
    found = event_shown(row)
    names = (
        "id", "at", "family", "job_id", "run_id", "node_id", "attempt", "box", "queue", "project", "type", "cause",
        "exit_code", "elapsed_s", "text",
    )  # fmt: skip
    return {"source": "job", **{name: found[name] for name in names}, "by": None}


def _order_shown(row: Mapping[str, Any]) -> dict[str, Any]:
    row = without_bytes(row)
    detail = row["detail"] if isinstance(row["detail"], Mapping) else {}
    return {
        "source": "control",
        "id": str(row["id"]),
        "at": row["at"],
        "job_id": detail.get("job_id"),
        "run_id": detail.get("run_id"),
        "box": row["box"],
        "queue": row["queue"],
        "project": row["project"],
        "type": row["action"],
        "cause": detail.get("kind") if row["action"] == "alert" else row["policy"],
        "by": row["requested_by"],
        "text": order_line(row["action"], row["requested_by"], detail),
    }


def order_line(action: str, by: str | None, detail: Mapping[str, Any]) -> str:
    """One line for people: who wanted what, and what came of it."""
    lines = str(detail.get("message") or detail.get("text") or action.replace("_", " ")).splitlines()
    text = lines[0][:300] if lines else action
    if action == "alert":
        return text
    if detail.get("reason") and str(detail["reason"]) not in text:
        text += f" ({str(detail['reason']).splitlines()[0][:120]})"
    return f"{text}, by {by}" if by and str(by) not in text else text
