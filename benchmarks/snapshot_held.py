"""What one forgotten transaction costs: claims at 100 jobs a second, a full drain, and whether `doctor` names it.

A repeatable-read transaction is opened and left alone: nothing that dies after it can be removed.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from benchmarks import ours
from benchmarks.harness import BenchError, Report, percentile
from benchmarks.processes import ROOT, script, until
from benchmarks.server import Server

FORGETFUL = "forgotten report"  # the application name of the session that holds the snapshot
SLOTS = 8


@dataclass(frozen=True)
class Sizes:
    held_s: float = 60.0
    free_s: float = 20.0
    rate: float = 100.0
    backlog: int = 700_000


QUICK = Sizes(held_s=6.0, free_s=3.0, backlog=20_000)


@contextlib.contextmanager
def held(url: str) -> Iterator[None]:
    with psycopg.connect(url, application_name=FORGETFUL) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select count(*) from ingest_jobs where status = 'queued' limit 1")
        yield
        connection.rollback()


def paced(url: str, seconds: float, rate: float) -> list[float]:
    """Milliseconds of each claim, ``rate`` jobs a second: one is enqueued, claimed, finished."""
    from engine.queue.claim import ClaimRequest, claim
    from engine.queue.finish import Outcome, finish
    from engine.queue.workers import Worker
    from engine.store import open_store

    worker = Worker("bench", ours.QUEUE, "", "0" * 16)
    took: list[float] = []
    with open_store(url).connect("lane", claims=True) as db, ours.connect(url) as other:
        begun = time.perf_counter()
        while (now := time.perf_counter()) - begun < seconds:
            other.execute("insert into ingest_jobs (task_name, queue) values ('noop', 'default')")
            asked = time.perf_counter()
            jobs = claim(db, ClaimRequest(worker, 1, 600.0))
            took.append((time.perf_counter() - asked) * 1000)
            finish(db, worker, [Outcome(job.id, job.fencing_token, "completed") for job in jobs])
            time.sleep(max(0.0, now + 1.0 / rate - time.perf_counter()))
    return took


def drained(connection: psycopg.Connection[Any], seconds: float) -> float:
    """Jobs a second over the next ``seconds``."""
    count = "select count(*) from executions"
    before, begun = ours.value(connection, count), time.monotonic()
    time.sleep(seconds)
    return float(ours.value(connection, count) - before) / (time.monotonic() - begun)


def doctor(url: str) -> str:
    done = subprocess.run(
        [script("flightdeck"), "doctor", "--db", url], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    return done.stdout + done.stderr


def measure(server: Server, report: Report, sizes: Sizes, say: Callable[[str], None]) -> None:
    template = ours.template(server)
    with server.scratch("held", template) as url:
        free = paced(url, sizes.free_s, sizes.rate)
        with held(url):
            burdened = paced(url, sizes.held_s, sizes.rate)
            said = doctor(url)
        late = burdened[len(burdened) // 2 :]
        one = report.line("snapshot", f"claim at {sizes.rate:g} jobs/s, free, p99", "ms", [percentile(free, 99)])
        two = report.line(
            "snapshot", f"claim, snapshot held for {sizes.held_s:g} s, second half, p99", "ms", [percentile(late, 99)]
        )
        report.ratio(two, one, at_most=3.0)
        named = FORGETFUL in said
        report.check("snapshot", "doctor names the session (1: yes)", float(named), at_least=1.0)
        say(f"claim p99 {two.median:.2f} ms held, {one.median:.2f} ms free; doctor names it: {named}")
    with (
        server.scratch("heldfull", template) as url,
        ours.lane(server, url, SLOTS) as child,
        ours.connect(url) as connection,
    ):
        ours.load(connection, sizes.backlog)
        until(lambda: ours.finished(connection, 200), 60, "first jobs", child=child)
        rate_free = drained(connection, sizes.free_s)
        with held(url):
            time.sleep(max(0.0, sizes.held_s - sizes.free_s))
            rate_held = drained(connection, sizes.free_s)
        left = ours.value(connection, "select count(*) from ingest_jobs where status = 'queued'")
        if not left:
            raise BenchError("the backlog was empty before the snapshot was let go: use more rows")
        one = report.line("snapshot", f"full drain, {SLOTS} slots, free", "jobs/s", [rate_free])
        two = report.line(
            "snapshot", f"full drain, at the end of {sizes.held_s:g} s with a snapshot held", "jobs/s", [rate_held]
        )
        report.ratio(two, one, at_least=0.5)
        say(f"full drain {rate_held:,.0f} jobs/s held, {rate_free:,.0f} free")
