"""What a claim costs beside two million finished rows, and behind rows that this slot may not take.

Two databases per form, samples alternating, as in claim.py, whose measuring this uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import ours
from benchmarks.claim import Depth
from benchmarks.harness import Report, alternate, median, percentile
from benchmarks.server import Server

QUEUED = 1000
FINISHED = {
    "ingest": """insert into ingest_jobs (task_name, queue, status, attempt, fencing_token, claimed_by, claimed_box,
                 started_at, finished_at, result)
                 select 'noop', 'default', 'completed', 1, 1, 'old/default/0', 'old', now(), now(), '{"a": 1}'
                 from generate_series(1, %(rows)s::int) i""",
    "cpu": """insert into workflow_node_jobs (run_id, node_id, node, queue, status, attempt, fencing_token, claimed_by,
              claimed_box, started_at, finished_at, output)
              select 1, 'f' || i, 'noop', 'cpu', 'completed', 1, 1, 'old/cpu/0', 'old', now(), now(), '{"a": 1}'
              from generate_series(1, %(rows)s::int) i""",
}
WALLS = {
    "ingest": """insert into ingest_jobs (task_name, queue, only_boxes, created_at)
                 select 'noop', 'default', '{elsewhere}', now() - interval '1 hour' from generate_series(1, %(rows)s::int) i""",
    "gpu": """insert into workflow_node_jobs (run_id, node_id, node, queue, required_model, created_at)
              select 1, 'u' || i, 'noop', 'gpu', 'unknown-' || (i %% 5), now() - interval '1 hour'
              from generate_series(1, %(rows)s::int) i""",
}


@dataclass(frozen=True)
class Sizes:
    finished: int = 2_000_000
    wall: int = 50_000
    samples: int = 60
    rounds: int = 6


QUICK = Sizes(finished=50_000, wall=5000, samples=20, rounds=2)


def beside(
    server: Server, template: str, form: str, sizes: Sizes, statement: str, rows: int
) -> tuple[list[float], list[float], float]:
    """Per-round medians without and with those rows, and the p99 with them (milliseconds)."""
    plain, burdened = Depth(server, template, form, QUEUED), Depth(server, template, form, QUEUED)
    everything: list[float] = []
    medians: tuple[list[float], list[float]] = ([], [])
    try:
        burdened.plain.execute(statement, {"rows": rows})
        burdened.plain.execute("vacuum analyze")
        for depth in (plain, burdened):
            for _ in range(30):
                depth.sample()
        for _ in range(sizes.rounds):
            took = alternate({"plain": plain.sample, "burdened": burdened.sample}, sizes.samples)
            medians[0].append(median(took["plain"]))
            medians[1].append(median(took["burdened"]))
            everything += took["burdened"]
    finally:
        plain.close(server)
        burdened.close(server)
    return (*medians, percentile(everything, 99))


def measure(server: Server, report: Report, sizes: Sizes, say: Callable[[str], None]) -> None:
    template = ours.template(server)
    cases = [
        (form, f"beside {sizes.finished:,} finished", text, sizes.finished, 1.2) for form, text in FINISHED.items()
    ]
    cases += [
        (form, f"behind {sizes.wall:,} that it may not take", text, sizes.wall, 2.0) for form, text in WALLS.items()
    ]
    for form, name, statement, rows, at_most in cases:
        without, with_them, p99 = beside(server, template, form, sizes, statement, rows)
        few = report.line("history", f"{form}, {QUEUED:,} queued, nothing else ({name})", "ms", without)
        many = report.line("history", f"{form}, {QUEUED:,} queued {name}", "ms", with_them, f"p99 {p99:.2f} ms")
        report.ratio(many, few, at_most=at_most)
        say(f"{form} {name}: {many.median:.2f} ms against {few.median:.2f} ms")
