"""Which role of deploy/roles.sql may do what PostgreSQL has just refused to a login."""

from __future__ import annotations

import re

from engine.errors import NotAllowed
from engine.store.db import Db

READ, SUBMIT, OPERATOR, WORKER = (f"flightdeck_{role}" for role in ("read", "submit", "operator", "worker"))

_OBJECT = re.compile(r"permission denied for (?:table|sequence|relation|view) \"?(\w+)")
_OWNER = re.compile(r"permission denied (?:for schema|to create)|must be (?:able to|owner)")
# What tells an attempt that is begun, kept or ended from an order about a job.
_ATTEMPT = re.compile(r"\bset\b[^;]*?\b(?:fencing_token|claimed_by|progress_pct|result|started_at) = ", re.DOTALL)
_ORDERS = frozenset(("worker_controls", "model_orders", "input_submissions"))
_BOTH = frozenset(("schedules", "control_events", "services", "job_events", "workflow_dispatch_events"))
_WORK = frozenset(("ingest_jobs", "workflow_node_jobs", "workflow_runs"))


def who_may(said: str, sql: str) -> str:
    """The roles that may do it, in words. ``said``: what the server said, one line; ``sql``: the statement it refused."""
    named = _OBJECT.search(said)
    if _OWNER.search(said) or (named and "schema_version" in named[1]):
        return "the schema's owner"
    table = named[1] if named else ""
    if table == "job_id_seq":
        return _any_of(SUBMIT, OPERATOR, WORKER)
    verb = _verb(table, sql)
    if table in _ORDERS:  # also where they are only looked at: that is how an order begins
        return OPERATOR
    if verb == "select":
        return _any_of(READ, OPERATOR, WORKER)
    if table in _BOTH:
        return _any_of(OPERATOR, WORKER)
    if table in _WORK and verb == "insert into":
        return _any_of(SUBMIT, OPERATOR, WORKER)
    if table in _WORK and verb == "update" and not _ATTEMPT.search(sql):
        return _any_of(OPERATOR, WORKER)
    return WORKER


def refuse_login(db: Db, right: str, table: str) -> None:
    """Raise NotAllowed where this login lacks a right (``insert``, ``update``) that a process needs all the time: better at
    its start, in one line, than with each of its loops."""
    if db.kind != "postgresql":
        return
    if not db.value("select has_table_privilege({table}, {right})", table=table, right=right):
        login = db.value("select current_user::text")
        raise NotAllowed(f"permission denied: login {login} may not {right} {table}, {WORKER} may (deploy/roles.sql)")


def _verb(table: str, sql: str) -> str:
    """What the statement would do to the table."""
    for verb in ("insert into", "update", "delete from", "copy"):
        if re.search(rf"\b{verb}\s+{re.escape(table)}\b", sql, re.IGNORECASE):
            return "insert into" if verb == "copy" else verb
    return "select"


def _any_of(*roles: str) -> str:
    return f"{', '.join(roles[:-1])} or {roles[-1]}"
