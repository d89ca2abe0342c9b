"""Our side: a migrated database, real lanes and orchestrators as processes, jobs as plain rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg

from benchmarks.harness import BenchError
from benchmarks.processes import Child, script, until
from benchmarks.server import Server

QUEUE = "default"


def template(server: Server) -> str:
    """A database with our schema and nothing in it, for others to be copied from."""
    from engine.store import open_store
    from engine.store.migrate import migrate

    url = server.create("flightdeck")
    migrate(open_store(url))
    return url


@contextlib.contextmanager
def connect(url: str) -> Iterator[psycopg.Connection[Any]]:
    """An autocommit connection of the benchmark's own."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def value(connection: psycopg.Connection[Any], statement: str, *args: Any) -> Any:
    row = connection.execute(statement, args or None).fetchone()
    return row[0] if row else None


@contextlib.contextmanager
def lane(
    server: Server,
    url: str,
    slots: int = 1,
    box: str = "bench",
    queue: str = QUEUE,
    ahead: bool = True,
) -> Iterator[Child]:
    """A `queue-claim-worker` process that is up: its heartbeat says running with all its slots."""
    child = start_lane(server, url, slots, box, queue, ahead)
    try:
        with connect(url) as connection:
            until(lambda: lane_is_up(connection, box, queue, slots), 60, f"lane {box}/{queue}", child=child)
        yield child
    finally:
        child.stop()


def start_lane(server: Server, url: str, slots: int, box: str, queue: str = QUEUE, ahead: bool = True) -> Child:
    args = [script("queue-claim-worker"), "--queue", queue, "--slots", str(slots), "--db", url]
    args += ["--box", box, "--app", "benchmarks.app", "--log-level", "warning"]
    if not ahead:
        args.append("--no-claims-ahead")
    return Child(args, server.log(f"lane-{box}"), {"XDG_DATA_HOME": str(server.work)})


def lane_is_up(connection: psycopg.Connection[Any], box: str, queue: str, slots: int) -> bool:
    return bool(
        value(
            connection,
            "select 1 from worker_heartbeats where box = %s and queue = %s and state = 'running' and slots = %s",
            box,
            queue,
            slots,
        )
    )


@contextlib.contextmanager
def orchestrator(server: Server, url: str) -> Iterator[Child]:
    """A `queue-orchestrator` process that leads."""
    args = [script("queue-orchestrator"), "--db", url, "--box", "bench", "--log-level", "warning"]
    child = Child(args, server.log("orchestrator"))
    try:
        with connect(url) as connection:
            look = "select 1 from services where kind = 'orchestrator' and is_leader"
            until(lambda: value(connection, look), 60, "leader", child=child)
        yield child
    finally:
        child.stop()


def load(connection: psycopg.Connection[Any], jobs: int, task: str = "noop", queue: str = QUEUE) -> None:
    """Queue ``jobs`` no-ops in one transaction, statistics included; commits, so that one notification goes out."""
    with connection.transaction(), connection.cursor() as cursor:
        with cursor.copy("copy ingest_jobs (task_name, queue) from stdin") as copy:
            for _ in range(jobs):
                copy.write_row((task, queue))
        cursor.execute("analyze ingest_jobs")


def finished(connection: psycopg.Connection[Any], jobs: int) -> bool:
    """True when ``jobs`` jobs have their committed effect."""
    return int(value(connection, "select count(*) from executions")) >= jobs


def verify(connection: psycopg.Connection[Any], jobs: int) -> None:
    """Every job ran once, fenced, with its effect and its history; BenchError otherwise."""
    found = connection.execute(
        """
        select (select count(*) from ingest_jobs where status = 'completed' and attempt = 1 and fencing_token > 0),
               (select count(*) from executions),
               (select count(distinct job_id) from job_events where event_type = 'completed')
        """
    ).fetchone()
    if found != (jobs, jobs, jobs):
        raise BenchError(f"of {jobs} jobs, (completed, effects, history) = {found}")
