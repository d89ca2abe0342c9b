"""Human input: nodes that wait, what is said to them, and what is refused; on both stores."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import engine
from engine.dag import runs, schemas
from engine.dag.drain import MAX_ATTEMPTS, drain
from engine.dag.inputs import submit_input
from engine.dag.runs import GraphCache, advance, submit_run
from engine.errors import BadInput, Conflict, EngineError, NotFound, PayloadError
from engine.queue import inputs
from engine.queue.ends import end_run
from engine.queue.operate import cancel_job
from engine.store import Db, Store
from tests.dag.steps import Hands, chain, drain_all, node, run_row, statuses

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "note": {"type": "string"}},
    "required": ["ok"],
    "additionalProperties": False,
}


def ask(id: str = "ask", schema: Any = SCHEMA, **fields: Any) -> dict[str, Any]:
    return {"id": id, "input": {"prompt": "Publish it?", "schema": schema}, **fields}


def draft_ask_publish(schema: Any = SCHEMA) -> dict[str, Any]:
    return chain(
        node("draft"),
        ask(schema=schema, depends_on=["draft"], inputs={"text": {"$from": "draft.text"}}),
        node("publish", depends_on=["ask"], inputs={"answer": {"$from": "ask"}}),
        name="post",
    )


def parked(db: Db, schema: Any = SCHEMA) -> int:
    run_id = submit_run(db, draft_ask_publish(schema))
    Hands(db).run_all({"text": "hello"})
    drain_all(db)
    assert statuses(db, run_id) == {"draft": "completed", "ask": "awaiting_input"}
    return run_id


def submission(db: Db) -> dict[str, Any]:
    row = db.one("select status, error, processed_at from input_submissions order by id desc limit 1")
    assert row is not None
    return row


def test_a_node_waits_for_a_person_and_goes_on_with_the_answer(db: Db) -> None:
    run_id = parked(db)
    assert Hands(db).take() == []  # no lane can take it: it holds no slot
    assert run_row(db, run_id)["status"] == "running"
    (waits,) = inputs.awaiting(db)
    since = waits.pop("since")
    assert since == db.value("select created_at from workflow_node_jobs where node_id = 'ask'")
    assert waits == {
        "run_id": str(run_id), "workflow": "post", "project": "", "node_id": "ask", "prompt": "Publish it?",
        "schema": SCHEMA, "inputs": {"text": "hello"}, "submitted": False,
    }  # fmt: skip
    submit_input(db, run_id, "ask", {"ok": True}, requested_by="ana")
    assert inputs.awaiting(db)[0]["submitted"]
    drain_all(db)
    assert inputs.awaiting(db) == []
    assert statuses(db, run_id) == {"draft": "completed", "ask": "completed", "publish": "queued"}
    assert db.value("select inputs from workflow_node_jobs where node_id = 'publish'") == {"answer": {"ok": True}}
    assert submission(db)["status"] == "processed" and submission(db)["processed_at"] is not None
    row = db.one("select requested_by, detail from control_events where action = 'submit_input'")
    assert row is not None and (row["requested_by"], row["detail"]["node_id"]) == ("ana", "ask")
    event = db.one("select event_type, detail from job_events where node_id = 'ask'")
    assert event is not None and event["event_type"] == "completed"
    Hands(db).run_all()
    drain_all(db)
    assert run_row(db, run_id)["status"] == "completed"


@pytest.mark.parametrize(
    ("value", "output"), [("yes", {"value": "yes"}), ([1], {"value": [1]}), (None, {"value": None}), ({}, {})]
)
def test_what_is_no_object_becomes_the_value_of_one(db: Db, value: Any, output: Any) -> None:
    run_id = submit_run(db, chain({"id": "ask", "input": {"prompt": "?"}}))
    submit_input(db, run_id, "ask", value)
    drain_all(db)
    assert db.value("select output from workflow_node_jobs where node_id = 'ask'") == output
    assert run_row(db, run_id)["status"] == "completed"


def test_nothing_is_written_for_what_is_refused(db: Db) -> None:
    run_id = parked(db)
    over = submit_run(db, chain(ask()))
    end_run(db, over, "cancelled", "stop")
    refused: list[tuple[Any, Any, Any, type[EngineError], str]] = [
        (10**6, "ask", {"ok": True}, NotFound, "no run 1000000"),
        ("x", "ask", {"ok": True}, BadInput, "not a run id"),
        (run_id, "ghost", {"ok": True}, NotFound, "has no node 'ghost'"),
        (run_id, 7, {"ok": True}, NotFound, "has no node 7"),
        (run_id, "draft", {"ok": True}, Conflict, "'draft' of run"),
        (run_id, "publish", {"ok": True}, Conflict, "is no node that waits for input"),
        (over, "ask", {"ok": True}, Conflict, "is cancelled: node 'ask' takes no input any more"),
        (run_id, "ask", {"ok": "yes"}, BadInput, "node 'ask' of run"),
        (run_id, "ask", {"ok": "yes"}, BadInput, "ok: 'yes' is not of type 'boolean'"),
        (run_id, "ask", {}, BadInput, "'ok' is a required property"),
        (run_id, "ask", {"ok": True, "note": "x" * (1 << 20)}, PayloadError, "more than the"),
        (run_id, "ask", {"ok": object()}, PayloadError, "does not serialise"),
    ]
    for run, node_id, value, error, text in refused:
        with pytest.raises(error) as caught:
            submit_input(db, run, node_id, value)
        assert text in str(caught.value) and "\n" not in str(caught.value)
    for table in ("input_submissions", "control_events"):
        assert db.value(f"select count(*) from {table}") == 0
    assert db.value("select count(*) from workflow_dispatch_events where kind = 'input'") == 0


def test_a_node_whose_turn_has_not_come_takes_no_input(db: Db) -> None:
    run_id = submit_run(db, draft_ask_publish())
    with pytest.raises(Conflict, match="does not wait yet: what it depends on has not ended"):
        submit_input(db, run_id, "ask", {"ok": True})


def test_a_second_submission_in_flight_is_refused_and_so_is_one_that_comes_late(db: Db) -> None:
    run_id = parked(db)
    first = submit_input(db, run_id, "ask", {"ok": True})
    with pytest.raises(Conflict, match=f"submission {first} is in flight"):
        submit_input(db, run_id, "ask", {"ok": False})
    drain_all(db)
    with pytest.raises(Conflict, match="is completed already: it waits no more"):
        submit_input(db, run_id, "ask", {"ok": False})
    assert db.value("select output from workflow_node_jobs where node_id = 'ask'") == {"ok": True}


def test_of_many_who_answer_at_once_one_is_heard(store: Store, db: Db) -> None:
    run_id = parked(db)
    begin = threading.Barrier(4)
    heard: list[int] = []
    refused: list[str] = []

    def answer(n: int) -> None:
        with store.connect(f"person {n}") as mine:
            begin.wait(10)
            try:
                submit_input(mine, run_id, "ask", {"ok": True, "note": str(n)})
                heard.append(n)
            except Conflict as error:
                refused.append(str(error))

    threads = [threading.Thread(target=answer, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (len(heard), len(refused)) == (1, 3)
    drain_all(db)
    assert db.value("select output from workflow_node_jobs where node_id = 'ask'")["note"] == str(heard[0])


def test_a_submission_joins_the_callers_transaction(store: Store, db: Db) -> None:
    run_id = parked(db)
    engine.configure(db_url=store.url)
    with store.connect("host") as host:
        with pytest.raises(RuntimeError):
            with host.transaction():
                engine.submit_input(str(run_id), "ask", {"ok": True}, conn=host.raw)
                raise RuntimeError("the host changes its mind")
    assert drain_all(db).events == 0
    assert engine.awaiting_input()[0]["submitted"] is False
    assert isinstance(engine.submit_input(run_id, "ask", {"ok": True}), str)
    drain_all(db)
    assert statuses(db, run_id)["ask"] == "completed"


def test_a_cancelled_run_ends_with_its_waiting_nodes_and_says_so_to_who_answered(db: Db) -> None:
    """Q27: terminal, finished_at set, although a person was waited for; the answer in flight is not lost silently."""
    run_id = parked(db)
    submit_input(db, run_id, "ask", {"ok": True})
    assert end_run(db, run_id, "cancelled", "not wanted")
    row = run_row(db, run_id)
    assert (row["status"], row["finished_at"] is not None) == ("cancelled", True)
    assert statuses(db, run_id)["ask"] == "cancelled"
    assert (submission(db)["status"], submission(db)["error"]) == ("failed", "run cancelled: not wanted")
    drain_all(db)
    assert statuses(db, run_id) == {"draft": "completed", "ask": "cancelled"}
    assert db.value("select count(*) from workflow_dispatch_events where processed_at is null") == 0


def test_a_failing_branch_ends_a_run_that_waits_for_a_person(db: Db) -> None:
    """Q27, by failure."""
    run_id = submit_run(db, chain(ask(), node("work"), node("both", depends_on=["ask", "work"])))
    hands = Hands(db)
    hands.end(*hands.take(), error="boom")
    drain_all(db)
    row = run_row(db, run_id)
    assert (row["status"], row["finished_at"] is not None) == ("failed", True)
    assert statuses(db, run_id) == {"ask": "cancelled", "work": "failed"}


def test_a_poisonous_dispatch_ends_a_run_that_waits_for_a_person(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q27 and Q21: the answer cannot be brought to its node; the run fails with the reason, others go on."""
    bad, good = parked(db), parked(db)
    submit_input(db, bad, "ask", {"ok": True})
    original = inputs.answer_waiting
    monkeypatch.setattr(inputs, "answer_waiting", lambda db, run_id: 1 / 0 if run_id == bad else original(db, run_id))
    submit_input(db, good, "ask", {"ok": True})
    for _ in range(MAX_ATTEMPTS):
        drain(db, GraphCache())
        db.run("update workflow_dispatch_events set not_before = null")
    row = run_row(db, bad)
    assert (row["status"], row["finished_at"] is not None) == ("failed", True)
    assert row["error"].startswith("dispatch failed 10 times: ZeroDivisionError")
    failed = db.one("select status, error from input_submissions where run_id = {id}", id=bad)
    assert failed is not None and failed["status"] == "failed" and "dispatch failed" in failed["error"]
    assert statuses(db, good)["publish"] == "queued"


def test_a_waiting_node_can_be_cancelled_on_its_own(db: Db) -> None:
    run_id = parked(db)
    submit_input(db, run_id, "ask", {"ok": True})
    assert cancel_job(db, db.value("select id from workflow_node_jobs where node_id = 'ask'")).changed == 1
    drain_all(db)
    row = run_row(db, run_id)
    assert (row["status"], row["finished_at"] is not None) == ("cancelled", True)
    assert submission(db)["status"] == "failed"


def test_a_waiting_node_may_be_skipped(db: Db) -> None:
    run_id = submit_run(
        db,
        chain(
            ask(skip_if={"$eq": [{"$context": "auto"}, True]}),
            node("go", depends_on=["ask"], inputs={"ok": {"$from": "ask.ok", "$default": "nobody was asked"}}),
        ),
        {"auto": True},
    )
    assert statuses(db, run_id) == {"ask": "skipped", "go": "queued"}
    assert db.value("select inputs from workflow_node_jobs where node_id = 'go'") == {"ok": "nobody was asked"}
    with pytest.raises(Conflict, match="is skipped already"):
        submit_input(db, run_id, "ask", {"ok": True})


def test_an_answer_written_by_plain_sql_is_heard_too(db: Db) -> None:
    run_id = parked(db)
    db.run("insert into input_submissions (run_id, node_id, value) values ({r}, 'ask', {v}{json})", r=run_id, v='"go"')
    assert runs.look_again(db, unexpanded=True) == 1
    assert runs.look_again(db, unexpanded=True) == 0
    drain_all(db)
    assert db.value("select output from workflow_node_jobs where node_id = 'ask'") == {"value": "go"}


def test_an_answer_that_no_node_waits_for_fails_with_the_reason(db: Db) -> None:
    run_id = submit_run(db, chain(ask(), node("other"), name="two"))
    db.run("insert into input_submissions (run_id, node_id, value) values ({r}, 'other', {v}{json})", r=run_id, v="1")
    advance(db, run_id, GraphCache())
    assert (submission(db)["status"], submission(db)["error"]) == ("failed", "node 'other' does not wait for input")
    assert statuses(db, run_id) == {"ask": "awaiting_input", "other": "queued"}


def test_an_answer_to_nobody_is_dealt_with_once(db: Db) -> None:
    """Written by plain SQL: to a node that never waits, to a run that does not exist. No sweep comes back to it."""
    run_id = submit_run(db, chain(node("work")))
    for run in (run_id, 4711):
        db.run("insert into input_submissions (run_id, node_id, value) values ({r}, 'work', {v}{json})", r=run, v="1")
    assert runs.look_again(db, unexpanded=True) == 2
    drain_all(db)
    rows = db.all("select error from input_submissions where status = 'failed' order by id")
    assert [row["error"] for row in rows] == ["node 'work' does not wait for input", "there is no such run"]
    assert runs.look_again(db, unexpanded=True) == 0


def test_an_answer_that_reaches_a_run_that_is_over_fails_with_the_reason(db: Db) -> None:
    """Ended by plain SQL, between the submission and the dispatch."""
    run_id = parked(db)
    submit_input(db, run_id, "ask", {"ok": True})
    db.run("update workflow_runs set status = 'cancelled'")
    drain_all(db)
    assert submission(db)["status"] == "failed" and "the run was cancelled" in submission(db)["error"]
    runs.end_leftovers(db)
    runs.close_runs(db)
    assert run_row(db, run_id)["finished_at"] is not None


def test_what_waits_is_listed_by_project(db: Db) -> None:
    for project in ("a", "b"):
        submit_run(db, chain(ask(schema={})), project=project)
    assert [row["project"] for row in inputs.awaiting(db)] == ["a", "b"]
    assert [row["project"] for row in inputs.awaiting(db, "b")] == ["b"]


def test_what_is_nested_without_an_end_is_told_in_one_line() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    inner: Any = {"type": "object"}
    for _ in range(5000):
        inner = {"properties": {"a": inner}}
    assert schemas.misfits(deep, {"properties": {"a": {"$ref": "#"}}}) == "it is nested too deeply"
    assert "nested too deeply" in str(schemas.problem_of(inner))


def test_an_answer_with_many_faults_is_told_of_three() -> None:
    wants = {"required": ["a", "b", "c", "d", "e"]}
    assert str(schemas.misfits({}, wants)).endswith("and 2 more")
