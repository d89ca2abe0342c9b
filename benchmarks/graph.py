"""How long a graph of 1,000 nodes takes to expand: one root, 998 that wait for it, one that waits for all of them.

Expansion is what the leader does when the root's completion lies in the outbox: 998 rows inserted, the event closed,
committed. Submitting 1,000 nodes that wait for nothing is timed too. A new graph every time: no cache is warm.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import ours
from benchmarks.harness import Report, alternate
from benchmarks.server import Server


@dataclass(frozen=True)
class Sizes:
    nodes: int = 1000
    rounds: int = 7


QUICK = Sizes(nodes=1000, rounds=2)


def fan(nodes: int) -> dict[str, Any]:
    middle = [{"id": f"part-{n}", "node": "noop", "depends_on": ["root"]} for n in range(nodes - 2)]
    merge = {"id": "merge", "node": "noop", "depends_on": [node["id"] for node in middle]}
    return {"name": "fan", "nodes": [{"id": "root", "node": "noop"}, *middle, merge]}


def flat(nodes: int) -> dict[str, Any]:
    return {"name": "flat", "nodes": [{"id": f"part-{n}", "node": "noop"} for n in range(nodes)]}


def expand(url: str, nodes: int) -> float:
    """Seconds from the root's completion in the outbox until all that wait for it are queued."""
    from engine.dag.drain import drain
    from engine.dag.runs import GraphCache, submit_run
    from engine.queue.claim import ClaimRequest, claim
    from engine.queue.finish import Outcome, finish
    from engine.queue.workers import Worker
    from engine.store import open_store

    store, worker = open_store(url), Worker("bench", "cpu", "", "0" * 16)
    with store.connect("lane", claims=True) as lane, store.connect("leader") as db:
        run_id = submit_run(db, fan(nodes))
        (root,) = claim(lane, ClaimRequest(worker=worker, n=1, lease_s=600.0))
        finish(lane, worker, [Outcome(root.id, root.fencing_token, "completed", output_json="{}")])
        begun = time.perf_counter()
        drain(db, GraphCache())
        took = time.perf_counter() - begun
        queued = db.value(
            "select count(*) from workflow_node_jobs where run_id = {id} and status = 'queued'", id=run_id
        )
        assert queued == nodes - 2, f"{queued} of {nodes - 2} nodes were queued"
        db.run("delete from workflow_runs where id = {id}", id=run_id)
    return took


def submit(url: str, nodes: int) -> float:
    """Seconds of submit_run() for a graph without dependencies."""
    from engine.dag.runs import submit_run
    from engine.store import open_store

    with open_store(url).connect("client") as db:
        begun = time.perf_counter()
        run_id = submit_run(db, flat(nodes))
        took = time.perf_counter() - begun
        db.run("delete from workflow_runs where id = {id}", id=run_id)
    return took


def measure(server: Server, report: Report, sizes: Sizes, say: Callable[[str], None]) -> None:
    with server.scratch("graph", ours.template(server)) as url:
        values = alternate(
            {"expand": lambda: expand(url, sizes.nodes), "submit": lambda: submit(url, sizes.nodes)},
            sizes.rounds,
            say,
        )
    expanded = report.line("graph", f"expand {sizes.nodes:,} nodes", "s", values["expand"])
    report.line("graph", f"submit {sizes.nodes:,} nodes without dependencies", "s", values["submit"])
    report.check("graph", f"expand {sizes.nodes:,} nodes, s", expanded.median, at_most=1.0)
