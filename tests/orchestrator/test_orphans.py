"""Nodes of runs that somebody ended by plain SQL, on both stores."""

from __future__ import annotations

import pytest

from engine.dag.runs import submit_run
from engine.orchestrator import orphans
from engine.store import Db
from tests.dag.steps import Hands, chain, node, statuses


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_what_is_queued_under_a_run_that_is_over_is_cancelled_and_what_runs_is_asked_to_stop(
    db: Db, status: str
) -> None:
    live = submit_run(db, chain(node("a"), node("b")))
    Hands(db).take(1)
    over = submit_run(db, chain(*(node(f"n{i}") for i in range(4))))
    db.run("update workflow_node_jobs set priority = 1 where run_id = {id}", id=over)
    hands = Hands(db)
    hands.take(1)
    db.run(
        "update workflow_node_jobs set run_after = {after[s]} where run_id = {id} and node_id = 'n3'", id=over, s=60.0
    )
    assert (orphans.stop_running(db), orphans.cancel_queued(db)) == (0, 0)
    db.run("update workflow_runs set status = {status}, finished_at = {now} where id = {id}", id=over, status=status)
    assert (orphans.stop_running(db), orphans.cancel_queued(db)) == (1, 3)
    assert (orphans.stop_running(db), orphans.cancel_queued(db)) == (0, 0)
    assert sorted(statuses(db, over).values()) == ["cancelled"] * 3 + ["running"]
    assert sorted(statuses(db, live).values()) == ["queued", "running"]
    asked = db.all("select run_id from workflow_node_jobs where cancel_requested = {true}")
    assert asked == [{"run_id": over}]
    events = db.all("select event_type, detail from job_events")
    assert events == 3 * [{"event_type": "cancelled", "detail": {"reason": "the run is over"}}]
