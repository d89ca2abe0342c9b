"""Rows, lanes and tasks for the tests of the queue."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from engine import config, registry
from engine.queue.claim import ClaimedJob, ClaimRequest, claim
from engine.queue.family import find
from engine.queue.workers import Worker
from engine.store import Db
from engine.store.locks import new_incarnation

Row = dict[str, Any]

PAST = datetime(2020, 1, 1, tzinfo=UTC)
FUTURE = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def task() -> None:
    """One registered task, ``work``, and the queues ``default`` and ``other``."""
    config.configure(ingest_queues=("default", "other"))
    registry.register_ingest_task("work", lambda **_: None)


def lane(queue: str = "default", box: str = "b1", project: str = "") -> Worker:
    return Worker(box, queue, project, new_incarnation())


def ask(worker: Worker, n: int = 1, **values: Any) -> ClaimRequest:
    return ClaimRequest(worker=worker, n=n, lease_s=600.0, **values)


def take(db: Db, worker: Worker, n: int = 1, **values: Any) -> list[ClaimedJob]:
    return claim(db, ask(worker, n, **values))


def add_ingest(db: Db, **values: Any) -> int:
    """A plain SQL insert, as a foreign program would write it."""
    return _insert(db, "ingest_jobs", {"task_name": "work", **values})


def add_run(db: Db, status: str = "running", **values: Any) -> int:
    return _insert(db, "workflow_runs", {"status": status, **values})


def add_node(db: Db, run_id: int, node_id: str, **values: Any) -> int:
    return _insert(db, "workflow_node_jobs", {"run_id": run_id, "node_id": node_id, "node": "work", **values})


def _insert(db: Db, table: str, values: Row) -> int:
    shown = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in values.items()}
    # A list is an array on PostgreSQL and JSON text on SQLite, as the schema has it.
    names = ", ".join(shown)
    marks = ", ".join(f"{{{name}}}" for name in shown)
    found = db.value(f"insert into {table} ({names}) values ({marks}) returning id", **shown)
    assert isinstance(found, int)
    return found


def job(db: Db, job_id: int) -> Row:
    found = find(db, job_id)
    assert found is not None
    return found[1]


def events_of(db: Db, job_id: int) -> list[Row]:
    return db.all("select * from job_events where job_id = {id} order by id", id=job_id)


def kinds(db: Db, job_id: int) -> list[tuple[str, str | None]]:
    return [(row["event_type"], row["cause"]) for row in events_of(db, job_id)]


def add_many(db: Db, n: int, *, table: str = "ingest_jobs", **values: Any) -> None:
    """``n`` rows at once by a generating insert; created one microsecond after the other."""
    names = "".join(f", {name}" for name in values)
    marks = "".join(f", {{{name}}}" for name in values)
    task_column = "task_name" if table == "ingest_jobs" else "node"
    node = ", node_id" if table != "ingest_jobs" else ""
    if db.kind == "postgresql":
        serial = ", 'n' || i || '-' || random()" if node else ""
        db.run(
            f"insert into {table} ({task_column}, created_at{node}{names}) select 'work', "
            f"now() - interval '1 hour' + i * interval '1 microsecond'{serial}{marks} from generate_series(1, {{count}}) i",
            count=n,
            **values,
        )
    else:
        serial = ", 'n' || i || '-' || random()" if node else ""
        db.run(
            "with recursive s(i) as (select 1 union all select i + 1 from s where i < {count}) "
            f"insert into {table} ({task_column}, created_at{node}{names}) select 'work', "
            f"'2020-01-01T00:00:00.' || printf('%06d', i) || '+00:00'{serial}{marks} from s",
            count=n,
            **values,
        )
