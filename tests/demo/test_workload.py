"""The demo's work: valid, the same every time, refilled when it runs low."""

from __future__ import annotations

import importlib

import pytest

import engine
from engine import registry
from engine.dag.graph import parse_graph
from engine.store import Db
from flightdeck.demo import jobs, launch, workload
from flightdeck.demo.boxes import PROFILES
from flightdeck.demo.workload import Writer, refill


@pytest.fixture(autouse=True)
def host_app() -> None:
    importlib.reload(jobs)  # registers again what the last test's end has forgotten
    engine.configure(ingest_queues=launch.INGEST_QUEUES)


def test_every_graph_is_valid_and_names_what_is_registered() -> None:
    writer = Writer()
    for number in range(60):
        graph = parse_graph(writer.graph("render" if number % 2 else "speech"))
        for node in graph.order:
            spec = graph.nodes[node]
            assert spec.node in registry.nodes and spec.node in jobs.EFFECTS
            assert spec.model is None or spec.model in registry.models


def test_the_same_seed_writes_the_same_work() -> None:
    first, second = Writer(), Writer()
    assert [first.graph("render") for _ in range(20)] == [second.graph("render") for _ in range(20)]


def test_some_runs_crash_once_and_some_fan_out() -> None:
    writer = Writer()
    graphs = [writer.graph("render") for _ in range(30)]
    crashing = [g for g in graphs if any(n["inputs"].get("crash") for n in g["nodes"])]
    assert 0 < len(crashing) < 10
    assert any(len(g["nodes"]) >= 7 for g in graphs) and any(len(g["nodes"]) == 2 for g in graphs)


def test_empty_queues_are_filled_once(db: Db) -> None:
    writer = Writer()
    assert refill(db, writer) > 50
    assert refill(db, writer) == 0
    db.run("update workflow_runs set status = 'cancelled' where project = 'render'")
    assert refill(db, writer) == workload.RUNS_FULL


def test_every_lane_has_work_and_every_gpu_a_lane() -> None:
    projects = {"render", "speech", ""}
    assert {project for _, _, project, _ in launch.LANES} == projects
    for profile in PROFILES:
        lanes = [(p, q) for box, q, p, _ in launch.LANES if box == profile.name]
        assert {p for p, q in lanes if q == "gpu"} == {p for p, _ in profile.gpu_of_project}
