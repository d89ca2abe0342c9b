"""What one claim costs with 100 and with 100,000 rows queued: cpu, cpu behind a wall, ingest, gpu with ten models.

Two databases per form, samples alternating; after each sample, outside the clock, the claimed row is replaced by a
new one, so that the depth stays. One connection, n = 1, autocommit, the lane's own statement and planner pins.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from benchmarks import ours
from benchmarks.harness import Report, alternate, median, percentile
from benchmarks.server import Server

SHALLOW, MODELS = 100, 10
RUN = "insert into workflow_runs (id, workflow_name, status) overriding system value values (1, 'bench', 'running')"
# Rows of one form; the numbers $1..$2 give them their names. A wall is rows that only another box may take.
FORMS = {
    "cpu": """insert into workflow_node_jobs (run_id, node_id, node, queue)
              select 1, 'n' || i, 'noop', 'cpu' from generate_series(%(first)s::int, %(last)s::int) i""",
    "ingest": """insert into ingest_jobs (task_name, queue)
                 select 'noop', 'default' from generate_series(%(first)s::int, %(last)s::int) i""",
    "gpu": """insert into workflow_node_jobs (run_id, node_id, node, queue, required_model)
              select 1, 'n' || i, 'noop', 'gpu', 'model-' || (i %% 10) from generate_series(%(first)s::int, %(last)s::int) i""",
}
WALL = """insert into workflow_node_jobs (run_id, node_id, node, queue, only_boxes, created_at)
          select 1, 'w' || i, 'noop', 'cpu', '{elsewhere}', now() - interval '1 hour'
          from generate_series(1, %(rows)s::int) i"""


@dataclass(frozen=True)
class Sizes:
    deep: int = 100_000
    wall: int = 50_000
    samples: int = 60
    rounds: int = 5


QUICK = Sizes(deep=10_000, wall=5000, samples=20, rounds=2)


class Depth:
    """A database that holds so many queued rows of a form, and the lane's view of it."""

    def __init__(self, server: Server, template: str, form: str, rows: int, wall: int = 0) -> None:
        from engine.queue.workers import Worker
        from engine.store import open_store

        self.form, self.next = form, rows + 1
        self.url = server.create(f"claim_{form}", template)
        self.plain = psycopg.connect(self.url, autocommit=True)
        self.plain.execute(RUN)
        if wall:
            self.plain.execute(WALL, {"rows": wall})
        self.plain.execute(FORMS[form], {"first": 1, "last": rows})
        self.plain.execute("vacuum analyze")
        self.db = open_store(self.url).connect("lane", claims=True)
        self.worker = Worker("bench", "default" if form == "ingest" else form, "", "0" * 16)

    def request(self) -> Any:
        from engine.queue.claim import ClaimRequest

        models = tuple(f"model-{n}" for n in range(MODELS)) if self.form == "gpu" else None
        loaded = "model-3" if self.form == "gpu" else None
        return ClaimRequest(
            worker=self.worker, n=1, lease_s=600.0, models=models, loaded_model=loaded, affinity_max_wait_s=600.0
        )

    def sample(self) -> float:
        """Milliseconds of one claim; the depth is as before when it returns."""
        from engine.queue.claim import claim

        request = self.request()
        begun = time.perf_counter()
        jobs = claim(self.db, request)
        took = (time.perf_counter() - begun) * 1000
        assert len(jobs) == 1, f"{self.form}: claimed {len(jobs)}"
        table = "ingest_jobs" if self.form == "ingest" else "workflow_node_jobs"
        self.plain.execute(f"delete from {table} where id = %s", [jobs[0].id])
        self.plain.execute(FORMS[self.form], {"first": self.next, "last": self.next})
        self.next += 1
        return took

    def close(self, server: Server) -> None:
        self.db.close()
        self.plain.close()
        server.drop(self.url)


def compare(
    server: Server, template: str, form: str, sizes: Sizes, wall: int = 0
) -> tuple[list[float], list[float], list[float]]:
    """Per-round medians of the shallow and the deep side, and all samples of the deep one (milliseconds)."""
    shallow = Depth(server, template, form, SHALLOW)
    deep = Depth(server, template, form, SHALLOW if wall else sizes.deep, wall)
    everything: list[float] = []
    try:
        for depth in (shallow, deep):
            for _ in range(20):  # prepares the statement, warms the cache
                depth.sample()
        medians: tuple[list[float], list[float]] = ([], [])
        for _ in range(sizes.rounds):
            took = alternate({"shallow": shallow.sample, "deep": deep.sample}, sizes.samples)
            medians[0].append(median(took["shallow"]))
            medians[1].append(median(took["deep"]))
            everything += took["deep"]
        return (*medians, everything)
    finally:
        shallow.close(server)
        deep.close(server)


def measure(server: Server, report: Report, sizes: Sizes, say: Callable[[str], None]) -> None:
    template = ours.template(server)
    for form, wall in (("cpu", 0), ("cpu", sizes.wall), ("ingest", 0), ("gpu", 0)):
        name = f"{form}, {SHALLOW} behind a wall of {wall:,}" if wall else f"{form}, {sizes.deep:,} queued"
        shallow, deep, samples = compare(server, template, form, sizes, wall)
        note = f"p99 {percentile(samples, 99):.2f} ms"
        few = report.line("claim", f"{form}, {SHALLOW} queued (beside {wall or sizes.deep:,})", "ms", shallow)
        many = report.line("claim", name, "ms", deep, note)
        report.ratio(many, few, at_most=2.0)
        say(f"{name}: {many.median:.2f} ms against {few.median:.2f} ms")
