"""Runs over HTTP: a graph in, its nodes and their outputs out, cancel."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from engine import registry
from engine.dag import reading
from engine.dag.drain import drain
from engine.dag.runs import GraphCache, submit_run
from engine.queue.claim import ClaimRequest, claim
from engine.queue.finish import Outcome, finish
from engine.queue.workers import Worker
from engine.store import Db
from tests.web.test_jobs import refused

GRAPH: dict[str, Any] = {
    "name": "two",
    "nodes": [
        {"id": "merge", "node": "merge", "depends_on": ["fetch"], "inputs": {"rows": {"$from": "fetch.rows"}}},
        {"id": "fetch", "node": "fetch", "inputs": {"url": {"$context": "url"}}},
    ],
}
CONTEXT = {"url": "https://example.org"}
WORKER = Worker("b1", "cpu", "", "life-1")


def begin(db: Db) -> tuple[int, int]:
    (job,) = claim(db, ClaimRequest(worker=WORKER, n=1, lease_s=600.0))
    return job.id, job.fencing_token


def end(db: Db, job: tuple[int, int], output: str) -> None:
    finish(db, WORKER, [Outcome(*job, "completed", output)])
    drain(db, GraphCache())


def test_a_run_from_its_graph_to_its_outputs(app_client: TestClient, db: Db) -> None:
    answer = app_client.post("/runs", json={"graph": GRAPH, "context": CONTEXT, "priority": 50})
    run = answer.json()
    assert answer.status_code == 201 and answer.headers["location"] == f"/runs/{run['id']}"
    assert (run["workflow"], run["status"], run["priority"], run["finished_at"]) == ("two", "queued", 50, None)
    assert [(node["id"], node["status"], node["depends_on"]) for node in run["nodes"]] == [
        ("merge", "waiting", ["fetch"]),
        ("fetch", "queued", []),
    ]
    assert app_client.get(f"/runs/{run['id']}").json() == run
    end(db, begin(db), '{"rows": [1, 2]}')
    end(db, begin(db), '{"sum": 3}')
    over = app_client.get(f"/runs/{run['id']}").json()
    assert (over["status"], over["error"]) == ("succeeded", None) and over["finished_at"]
    merge, fetch = over["nodes"]
    assert (merge["status"], merge["output"], merge["attempt"]) == ("succeeded", {"sum": 3}, 1)
    assert fetch["output"] == {"rows": [1, 2]} and fetch["job_id"].isdigit() and fetch["output_bytes"] > 0
    refused(app_client.delete(f"/runs/{run['id']}"), 409, "completed")


def test_a_workflow_by_its_name_and_what_is_refused(app_client: TestClient, db: Db) -> None:
    registry.register_workflow("nightly", GRAPH)
    assert app_client.post("/runs", json={"workflow": "nightly", "context": CONTEXT}).json()["workflow"] == "two"
    two = [{"id": "a", "node": "n", "depends_on": ["b"]}, {"id": "b", "node": "n", "depends_on": ["a"]}]
    for body, *words in [
        ({"graph": {"nodes": two}}, "a", "b"), ({"graph": {"nodes": [{"id": "a b", "node": "n"}]}}, "a b"),
        ({"graph": {}}, "nodes"), ({"graph": []}, "graph"), ({"graph": None}, "graph"), ({}, "graph", "workflow"),
        ({"graph": GRAPH, "workflow": "nightly"}, "either"), ({"workflow": "weekly"}, "weekly"),
        ({"workflow": '{"nodes": []}'}, "not registered"), ({"workflow": "nightly", "context": []}, "context"),
        ({"workflow": "nightly", "priority": "high"}, "priority"), ({"workflow": "nightly", "project": "lab"}, "project"),
    ]:  # fmt: skip
        refused(app_client.post("/runs", json=body), 422, *words)
    refused(app_client.post("/runs", json={"workflow": "nightly", "context": {"a": "x" * 1024 * 1024}}), 413)
    assert db.value("select count(*) as n from workflow_runs") == 1


def test_cancel_a_run(app_client: TestClient, db: Db) -> None:
    waits = app_client.post("/runs", json={"graph": GRAPH, "context": CONTEXT}).json()["id"]
    answer = app_client.delete(f"/runs/{waits}")
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled") and answer.json()["finished_at"]
    refused(app_client.delete(f"/runs/{waits}"), 409, "cancelled")
    runs = app_client.post("/runs", json={"graph": GRAPH, "context": CONTEXT}).json()["id"]
    begin(db)
    answer = app_client.delete(f"/runs/{runs}")
    assert (answer.status_code, answer.json()["status"], answer.json()["finished_at"]) == (202, "cancelled", None)
    assert [node["status"] for node in answer.json()["nodes"]] == ["waiting", "running"]
    asked = db.all("select requested_by from control_events where action = 'cancel_run'")
    assert {row["requested_by"] for row in asked} == {"web:loopback"}


def test_a_run_of_another_project_or_of_none_is_404(app_client: TestClient, db: Db) -> None:
    other = submit_run(db, GRAPH, CONTEXT, project="lab")
    for number in (other, 999, 2**63, "abc", "-1"):
        for method in ("GET", "DELETE"):
            refused(app_client.request(method, f"/runs/{number}"), 404, str(number))


def test_outputs_are_bounded(app_client: TestClient, db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "OUTPUT_MOST", 100)
    monkeypatch.setattr(reading, "OUTPUTS_MOST", 150)
    graph = {"nodes": [{"id": name, "node": "n"} for name in "abc"]}
    run = app_client.post("/runs", json={"graph": graph}).json()["id"]
    for size in (80, 200, 80):
        end(db, begin(db), f'{{"x": "{"y" * size}"}}')
    outputs = [node["output"] for node in app_client.get(f"/runs/{run}").json()["nodes"]]
    assert [output is not None for output in outputs] == [True, False, False]
