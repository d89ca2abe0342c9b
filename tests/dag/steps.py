"""A lane in miniature: claims and ends node jobs through the queue's own functions, in the test's process."""

from __future__ import annotations

import json
from typing import Any

from engine.dag.drain import Drained, drain
from engine.dag.runs import GraphCache
from engine.queue.claim import ClaimedJob, ClaimRequest, claim
from engine.queue.finish import Finished, Outcome, finish
from engine.queue.workers import Worker
from engine.store import Db
from engine.store.locks import new_incarnation


def node(id: str, **fields: Any) -> dict[str, Any]:
    return {"id": id, "node": "work", **fields}


def chain(*nodes: dict[str, Any], name: str = "g") -> dict[str, Any]:
    return {"name": name, "nodes": list(nodes)}


DIAMOND = chain(
    node("a"),
    node("b", depends_on=["a"]),
    node("c", depends_on=["a"]),
    node("d", depends_on=["b", "c"]),
    name="diamond",
)


class Hands:
    """Takes and ends jobs of one queue."""

    def __init__(
        self, db: Db, queue: str = "cpu", box: str = "box1", project: str = "", models: tuple[str, ...] = ()
    ) -> None:
        self.db = db
        self.worker = Worker(box, queue, project, new_incarnation())
        self.models = models

    def take(self, n: int = 1000, lease_s: float = 600.0) -> list[ClaimedJob]:
        return claim(self.db, ClaimRequest(self.worker, n, lease_s, models=self.models or None))

    def take_named(self, n: int = 1000) -> dict[str, ClaimedJob]:
        """By node id; for tests of one run."""
        return {str(job.node_id): job for job in self.take(n)}

    def end(
        self, *jobs: ClaimedJob, output: Any = None, error: str | None = None, status: str | None = None
    ) -> Finished:
        outcomes = [
            Outcome(
                job.id,
                job.fencing_token,
                status or ("failed" if error else "completed"),
                output_json=None if error else json.dumps(output),
                error=error,
            )
            for job in jobs
        ]
        return finish(self.db, self.worker, outcomes)

    def run_all(self, output: Any = None) -> set[str]:
        """Take everything that is queued and complete it; the node ids."""
        jobs = self.take()
        self.end(*jobs, output=output)
        return {str(job.node_id) for job in jobs}


def drain_all(db: Db) -> Drained:
    """Drain until nothing is due."""
    total = Drained()
    while True:
        done = drain(db, GraphCache())
        total.events += done.events
        total.busy += done.busy
        total.failed += done.failed
        if not done.events:
            return total


def statuses(db: Db, run_id: int) -> dict[str, str]:
    rows = db.all("select node_id, status from workflow_node_jobs where run_id = {id}", id=run_id)
    return {row["node_id"]: row["status"] for row in rows}


def run_row(db: Db, run_id: int) -> dict[str, Any]:
    row = db.one("select * from workflow_runs where id = {id}", id=run_id)
    assert row is not None
    return row
