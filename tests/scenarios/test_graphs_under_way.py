"""Graphs on real lanes: attempts and budgets of single nodes, and how the end of a run reaches what runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from engine.dag.runs import submit_run
from engine.queue.operate import cancel_run
from engine.store import Db, Store
from tests.dag.fleet import Fleet
from tests.dag.steps import chain, statuses
from tests.support import Processes, eventually

LANE = {
    "FLIGHTDECK_WATCHDOG_RETRIES_CAP": "1",
    "FLIGHTDECK_SHUN_SECONDS": "0",
    "FLIGHTDECK_CANCEL_GRACE": "0.5",
}
on_postgres = pytest.mark.parametrize(
    "store", ["postgresql"], indirect=True
)  # the same code on both, and processes cost
on_sqlite = pytest.mark.parametrize("store", ["sqlite"], indirect=True)


@pytest.fixture
def fleet(store: Store, db: Db, processes: Processes, tmp_path: Path) -> Fleet:
    return Fleet(store, db, processes, tmp_path)


def test_a_node_that_raises_has_its_own_attempts_and_one_without_fails_the_run(fleet: Fleet) -> None:
    fleet.orchestrator()
    fleet.lane("cpu", "box1")
    notes = str(fleet.notes)
    patient = submit_run(
        fleet.db,
        chain(
            {"id": "a", "node": "fail_first", "max_attempts": 2, "inputs": {"path": notes, "name": "a", "times": 1}},
            {"id": "b", "node": "note", "depends_on": ["a"], "inputs": {"path": notes, "name": "b"}},
        ),
    )
    strict = submit_run(
        fleet.db, chain({"id": "c", "node": "fail_first", "inputs": {"path": notes, "name": "c", "times": 1}})
    )
    assert fleet.ended(patient)["status"] == "completed"
    row = fleet.row(patient, "a")
    assert (row["output"], row["attempt"], row["failures"]) == ({"attempt": 2}, 2, 1)
    causes = fleet.db.all("select event_type, cause from job_events where job_id = {id} order by id", id=row["id"])
    assert [(event["event_type"], event["cause"]) for event in causes] == [("requeued", "retry"), ("completed", None)]
    assert fleet.ended(strict)["error"].startswith("node 'c' failed: ValueError: attempt 1 of c fails")
    assert fleet.ran() == Counter("aabc")


@on_sqlite
def test_a_node_over_its_budget_is_stopped_with_75_and_at_the_cap_fails_the_run(fleet: Fleet) -> None:
    """Its own budget, not the lane's: its neighbour runs on."""
    fleet.orchestrator()
    fleet.lane("cpu", "box1", env=LANE)
    run_id = submit_run(fleet.db, chain(fleet.node("slow", held=True, budget_s=0.3), {**fleet.node("calm", held=True)}))
    row = fleet.ended(run_id)
    assert row["status"] == "failed" and "ran" in row["error"] and "no retries left" in row["error"]
    trips = fleet.db.all(
        "select event_type, exit_code, cause from job_events where job_id = {id} order by id",
        id=fleet.row(run_id, "slow")["id"],
    )
    assert [(event["event_type"], event["exit_code"], event["cause"]) for event in trips] == [
        ("requeued", 75, "trip"),
        ("failed", 75, "trip"),
    ]
    assert fleet.status(run_id, "calm") == "cancelled"
    assert fleet.ran()["calm"] == 1


@on_sqlite
def test_the_end_of_a_run_stops_what_runs_politely_and_then_by_force(fleet: Fleet) -> None:
    """Q27: its status changes at once, finished_at comes with the last node, be it a stubborn one."""
    fleet.orchestrator()
    fleet.lane("cpu", "box1", env=LANE)
    run_id = submit_run(
        fleet.db,
        chain(
            *(
                {"id": name, "node": "hold_on", "inputs": {"path": str(fleet.notes), "name": name, "heed": heed}}
                for name, heed in (("polite", True), ("stubborn", False))
            ),
            {"id": "waits", "input": {"prompt": "?"}},
            {"id": "last", "node": "note", "depends_on": ["polite"]},
        ),
    )
    eventually(lambda: fleet.ran().total() == 2)
    assert cancel_run(fleet.db, run_id, "ana").changed == 1
    row = fleet.ended(run_id)
    assert (row["status"], row["error"]) == ("cancelled", "cancelled by ana")
    assert statuses(fleet.db, run_id) == dict.fromkeys(("polite", "stubborn", "waits"), "cancelled")
    assert fleet.ran() == Counter(("polite", "stubborn", "polite-stopped"))
    assert "did not stop within 0.5 s" in fleet.row(run_id, "stubborn")["error"]


@on_postgres
def test_a_failed_node_stops_its_neighbours_and_no_other_run(fleet: Fleet) -> None:
    fleet.orchestrator()
    fleet.lane("cpu", "box1", slots=3)
    other = submit_run(fleet.db, chain(fleet.node("other", held=True)))
    notes = str(fleet.notes)
    run_id = submit_run(
        fleet.db,
        chain(
            {"id": "polite", "node": "hold_on", "inputs": {"path": notes, "name": "polite", "heed": True}},
            {"id": "bad", "node": "fail_first", "inputs": {"path": notes, "name": "bad", "times": 1}},
        ),
    )
    assert fleet.ended(run_id)["status"] == "failed"
    assert statuses(fleet.db, run_id) == {"polite": "cancelled", "bad": "failed"}
    assert fleet.status(other, "other") == "running"
    fleet.gate("other").touch()
    assert fleet.ended(other)["status"] == "completed"


def leads(db: Db, pid: int) -> bool:
    return bool(db.value("select count(*) from services where is_leader = {true} and pid = {pid}", pid=pid))


@on_postgres
def test_a_new_orchestrator_cancels_no_live_work(fleet: Fleet) -> None:
    """Q32: runs that wait for a person, that run, or that are queued are as they were; only what is over is closed."""
    first = fleet.orchestrator()
    fleet.lane("cpu", "box1", slots=1)
    runs = [submit_run(fleet.db, chain(fleet.node(name, held=True), fleet.node("b", (name,)))) for name in "ac"]
    waiting = submit_run(fleet.db, chain({"id": "ask", "input": {"prompt": "?"}}, fleet.node("d", ())))
    eventually(lambda: fleet.ran().total() == 1)
    first.kill()
    first.wait(20)
    for _ in range(2):
        again = fleet.orchestrator()
        eventually(lambda pid=again.pid: leads(fleet.db, pid))  # type: ignore[misc]
        again.kill()
        again.wait(20)
    fleet.orchestrator()
    for name in "ac":
        fleet.gate(name).touch()
    assert [fleet.ended(run_id)["status"] for run_id in runs] == ["completed"] * 2
    eventually(lambda: fleet.status(waiting, "d") == "completed")
    assert fleet.status(waiting, "ask") == "awaiting_input"
    assert fleet.ran() == Counter("aabbcd") - Counter("a")
    assert fleet.db.value("select count(*) from job_events where event_type in ('cancelled', 'requeued')") == 0
