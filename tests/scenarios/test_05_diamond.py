"""Scenario 5: cpu, then two in parallel (one on a gpu lane), then a merge. The merge runs once; no crash loses anything."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from engine.dag.runs import submit_run
from engine.store import Db, Store
from tests.dag.fleet import Fleet
from tests.dag.steps import chain, run_row
from tests.support import Processes, eventually


@pytest.fixture
def fleet(store: Store, db: Db, processes: Processes, tmp_path: Path) -> Fleet:
    return Fleet(store, db, processes, tmp_path)


def test_a_diamond_over_cpu_and_gpu_lanes_merges_once(fleet: Fleet) -> None:
    fleet.orchestrator()
    fleet.lane("cpu", "box1")
    fleet.lane("gpu", "box1", slots=1)
    run_id = fleet.diamond(held="bc")
    eventually(lambda: fleet.status(run_id, "b") == fleet.status(run_id, "c") == "running")  # side by side
    assert fleet.status(run_id, "d") is None
    fleet.gate("b").touch()
    eventually(lambda: fleet.status(run_id, "b") == "completed")
    assert fleet.status(run_id, "d") is None
    fleet.gate("c").touch()
    eventually(lambda: fleet.completed(run_id))
    assert fleet.ran() == Counter("abcd")
    output = fleet.db.value("select output from workflow_node_jobs where node_id = 'd'")
    assert output == {"name": "d", "inputs": {"from_b": "b", "from_c": "c"}}
    assert fleet.db.value("select count(*) from job_events where event_type = 'completed'") == 4
    row = run_row(fleet.db, run_id)
    assert row["created_at"] <= row["started_at"] <= row["finished_at"]
    # Each end wrote its own event: a run whose events are missing is moved on by a sweep, five seconds later.
    assert fleet.outbox(run_id) == Counter(dict.fromkeys([(node_id, "completed") for node_id in "abcd"], 1))


def test_a_lane_killed_before_its_commit_costs_one_attempt_of_one_node(fleet: Fleet) -> None:
    fleet.orchestrator()
    first = fleet.lane("cpu", "box1")
    fleet.lane("gpu", "box1", slots=1)
    run_id = fleet.diamond(held="b")
    eventually(lambda: fleet.ran()["b"] == 1)
    fleet.lane("cpu", "box2")
    first.kill()
    eventually(lambda: fleet.ran()["b"] == 2, timeout_s=60, what="b is run again by the other lane")
    fleet.gate("b").touch()
    eventually(lambda: fleet.completed(run_id))
    assert fleet.ran() == Counter("abbcd")
    assert fleet.db.value("select losses from workflow_node_jobs where node_id = 'b'") == 1
    assert fleet.db.value("select claimed_box from workflow_node_jobs where node_id = 'b'") == "box2"
    assert fleet.outbox(run_id) == Counter(dict.fromkeys([(node_id, "completed") for node_id in "abcd"], 1))


def test_an_executor_killed_before_its_commit_costs_one_attempt_of_one_node(fleet: Fleet) -> None:
    fleet.orchestrator()
    fleet.lane("cpu", "box1")
    fleet.lane("gpu", "box1", slots=1)
    run_id = fleet.diamond(held="c")
    eventually(lambda: fleet.ran()["c"] == 1)
    pid = next(int(line.split()[1]) for line in fleet.notes.read_text().splitlines() if line.startswith("c "))
    subprocess.run(["kill", "-9", str(pid)], check=True)
    fleet.gate("c").touch()
    eventually(lambda: fleet.completed(run_id))
    assert fleet.ran() == Counter("abccd")


def test_an_orchestrator_killed_after_the_commit_loses_no_event(fleet: Fleet) -> None:
    """The nodes end while nobody leads: their events wait in the outbox, and the merge is enqueued once."""
    first = fleet.orchestrator()
    fleet.lane("cpu", "box1")
    fleet.lane("gpu", "box1", slots=1)
    run_id = fleet.diamond(held="bc")
    eventually(lambda: fleet.status(run_id, "b") == fleet.status(run_id, "c") == "running")
    first.kill()
    first.wait(20)
    fleet.gate("b").touch()
    fleet.gate("c").touch()
    eventually(lambda: fleet.status(run_id, "b") == fleet.status(run_id, "c") == "completed")
    assert fleet.status(run_id, "d") is None
    fleet.orchestrator()
    fleet.orchestrator()
    eventually(lambda: fleet.completed(run_id))
    assert fleet.ran() == Counter("abcd")


def test_an_orchestrator_killed_inside_its_transaction_loses_and_doubles_nothing(
    pg_store: Store, processes: Processes, tmp_path: Path
) -> None:
    """The merge is inserted and its event marked, but not committed, when the process dies."""
    with pg_store.connect("test") as db:
        fleet = Fleet(pg_store, db, processes, tmp_path)
        first = fleet.orchestrator()
        fleet.lane("cpu", "box1")
        fleet.lane("gpu", "box1", slots=1)
        run_id = fleet.diamond(held="bc")
        eventually(lambda: fleet.status(run_id, "b") == fleet.status(run_id, "c") == "running")
        db.run(
            "create function hold() returns trigger language plpgsql as $$ begin perform pg_sleep(60); return new; end $$"
        )
        db.run(
            "create trigger hold before update on workflow_dispatch_events for each row "
            "when (old.processed_at is null) execute function hold()"
        )
        fleet.gate("b").touch()
        fleet.gate("c").touch()
        eventually(
            lambda: db.value(
                "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'"
            )
        )
        first.kill()
        first.wait(20)
        # The dead client's transaction ends when the server notices (it looks every second).
        eventually(
            lambda: (
                not db.value(
                    "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'"
                )
            )
        )
        assert fleet.status(run_id, "d") is None
        db.run("drop trigger hold on workflow_dispatch_events")
        fleet.orchestrator()
        eventually(lambda: fleet.completed(run_id))
        assert fleet.ran() == Counter("abcd")


def test_orchestrators_killed_again_and_again_run_every_node_once(fleet: Fleet) -> None:
    fleet.lane("cpu", "box1", slots=4)
    middle = tuple(f"m{i}" for i in range(30))
    run_id = submit_run(
        fleet.db,
        chain(fleet.node("a"), *(fleet.node(m, ("a",)) for m in middle), fleet.node("z", middle)),
    )
    seen = 0
    for step in (1, 5, 15, 25):
        process = fleet.orchestrator()
        eventually(lambda step=step: fleet.ran().total() >= step)  # type: ignore[misc]
        process.send_signal(signal.SIGKILL)
        process.wait(20)
        assert fleet.ran().total() >= seen
        seen = fleet.ran().total()
    fleet.orchestrator()
    eventually(lambda: fleet.completed(run_id))
    assert fleet.ran() == Counter(["a", *middle, "z"])
