"""Scenario 10: a graph waits for a person; it holds no slot, survives the end of everything, and is resumed at once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.dag.runs import submit_run
from engine.errors import BadInput, Conflict
from engine.store import Db, Store
from tests.dag.fleet import Fleet
from tests.dag.steps import chain
from tests.support import Processes, eventually

SCHEMA = {"type": "object", "properties": {"publish": {"type": "boolean"}}, "required": ["publish"]}


@pytest.fixture
def fleet(store: Store, db: Db, processes: Processes, tmp_path: Path) -> Fleet:
    engine.configure(db_url=store.url)
    return Fleet(store, db, processes, tmp_path)


def post(fleet: Fleet) -> dict[str, Any]:
    after = fleet.node("after", ())
    after |= {"depends_on": ["ask"], "inputs": {**after["inputs"], "answer": {"$from": "ask.publish"}}}
    return chain(
        fleet.node("draft"),
        {
            "id": "ask",
            "depends_on": ["draft"],
            "input": {"prompt": "Publish it?", "schema": SCHEMA},
            "inputs": {"draft": {"$from": "draft.name"}},
        },
        after,
        name="post",
    )


def test_a_graph_that_waits_for_a_person_survives_the_end_of_everything(fleet: Fleet) -> None:
    processes = [fleet.orchestrator(), fleet.lane("cpu", "box1", slots=1)]
    first, second = submit_run(fleet.db, post(fleet)), submit_run(fleet.db, post(fleet))
    eventually(lambda: len(engine.awaiting_input()) == 2)
    asked = engine.awaiting_input()[0]
    assert (asked["prompt"], asked["schema"], asked["inputs"]) == ("Publish it?", SCHEMA, {"draft": "draft"})
    # The only slot is free: somebody else's graph runs to its end meanwhile.
    assert fleet.ended(submit_run(fleet.db, chain(fleet.node("other"))))["status"] == "completed"

    # While it runs, an answer is heard at once, through the outbox and through nothing else.
    engine.submit_input(first, "ask", {"publish": True})
    assert fleet.ended(first)["status"] == "completed"
    assert fleet.row(first, "after")["output"]["inputs"] == {"answer": True}
    ends = [("draft", "completed"), ("ask", "input"), ("after", "completed")]
    assert fleet.outbox(first) == Counter(dict.fromkeys(ends, 1))

    for process in processes:
        process.kill()
        process.wait(20)
    assert fleet.status(second, "ask") == "awaiting_input"
    with pytest.raises(BadInput, match=r"node 'ask' of run \d+: the input does not fit its schema"):
        engine.submit_input(second, "ask", {"publish": "yes"})
    given = engine.submit_input(second, "ask", {"publish": False}, requested_by="ana")
    with pytest.raises(Conflict, match=f"submission {given} is in flight"):
        engine.submit_input(second, "ask", {"publish": True})

    fleet.orchestrator()
    fleet.lane("cpu", "box1", slots=1)
    assert fleet.ended(second)["status"] == "completed"
    assert fleet.row(second, "after")["output"]["inputs"] == {"answer": False}
    assert fleet.outbox(second) == Counter(dict.fromkeys(ends, 1))
    assert fleet.ran() == Counter(("draft", "draft", "other", "after", "after"))
    with pytest.raises(Conflict, match="is completed: node 'ask' takes no input any more"):
        engine.submit_input(second, "ask", {"publish": True})
    statuses = fleet.db.all("select status from input_submissions")
    assert [row["status"] for row in statuses] == ["processed", "processed"]


@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
def test_an_orchestrator_killed_with_an_answer_in_hand_loses_and_doubles_nothing(fleet: Fleet) -> None:
    fleet.lane("cpu", "box1")
    run_id = submit_run(
        fleet.db, chain({"id": "ask", "input": {"prompt": "?"}}, {**fleet.node("b"), "depends_on": ["ask"]})
    )
    engine.submit_input(run_id, "ask", 7)
    for _ in range(2):
        process = fleet.orchestrator()
        eventually(
            lambda process=process: fleet.db.value("select count(*) from services where pid = {p}", p=process.pid)
        )  # type: ignore[misc]
        process.kill()
        process.wait(20)
    fleet.orchestrator()
    assert fleet.ended(run_id)["status"] == "completed"
    assert fleet.row(run_id, "ask")["output"] == {"value": 7}
    assert fleet.ran() == Counter("b")
