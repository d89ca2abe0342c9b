"""The two families of jobs over one claimable shape, and how to find a job by its id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.errors import BadInput
from engine.store import Db

LIVE_RUN = "('queued', 'running')"  # a run in any other state is over: nothing under it may start
TERMINAL = ("completed", "failed", "cancelled", "skipped")
# Ingest jobs that have not ended. A branch for each partial index: a condition that fits none of them reads the history.
LIVE_INGEST = (
    "status = 'queued' and run_after is null",
    "status = 'queued' and run_after is not null",
    "status = 'running'",
)


@dataclass(frozen=True)
class Family:
    """One table of jobs and its names. SQL is built from these constants only, never from a caller's text."""

    name: str  # "node" | "ingest": job_events.family
    table: str
    name_column: str
    input_column: str
    output_column: str
    channel: str  # the notification that says: something is ready

    @property
    def has_run(self) -> bool:
        """Node jobs belong to a run and write the outbox; ingest jobs write executions."""
        return self.name == "node"


NODE = Family("node", "workflow_node_jobs", "node", "inputs", "output", "node_job_ready")
INGEST = Family("ingest", "ingest_jobs", "task_name", "args", "result", "ingest_job_ready")
FAMILIES = (NODE, INGEST)


def family_of_queue(queue: str) -> Family:
    """``cpu`` and ``gpu`` hold node jobs, every other queue ingest jobs."""
    return NODE if queue in ("cpu", "gpu") else INGEST


def family_named(name: str) -> Family:
    """The family called ``node`` or ``ingest``."""
    return NODE if name == "node" else INGEST


def row_id(value: int | str, what: str = "job") -> int:
    """An id as given by a caller (text or number) as the number that rows hold. Raises BadInput."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{value!r} is not a {what} id") from None
    if not 0 <= number < 2**63 or isinstance(value, (bool, float)):
        raise BadInput(f"{value!r} is not a {what} id")
    return number


def find(db: Db, job_id: int | str) -> tuple[Family, dict[str, Any]] | None:
    """The family and the whole row of one job; None when there is no such job."""
    number = row_id(job_id)
    for family in FAMILIES:
        row = db.one(f"select * from {family.table} where id = {{id}}", id=number)
        if row is not None:
            return family, row
    return None


def for_update(db: Db, of: str = "") -> str:
    """The row lock that waits; SQLite's write transaction has the whole file locked already."""
    if db.kind != "postgresql":
        return ""
    return f"for update of {of}" if of else "for update"
