"""What a run needs next."""

from __future__ import annotations

import json
from typing import Any

from engine.dag.dispatch import Decision, Wanted, decide, wanted
from engine.dag.graph import Graph, parse_graph
from engine.errors import PayloadError


def graph(**nodes: dict[str, Any]) -> Graph:
    return parse_graph({"nodes": [{"id": node_id, "node": "w", **fields} for node_id, fields in nodes.items()]})


def encode(value: object, what: str) -> str:
    text = json.dumps(value)
    if len(text) > 100:
        raise PayloadError(f"{what}: too large")
    return text


def ask(g: Graph, statuses: dict[str, str], outputs: dict[str, Any] | None = None, **context: Any) -> Decision:
    return decide(g, statuses, context, outputs or {}, encode)


def ids(decision: Decision) -> list[str]:
    return [node.id for node, _ in decision.ready]


DIAMOND = graph(a={}, b={"depends_on": ["a"]}, c={"depends_on": ["a"]}, d={"depends_on": ["b", "c"]})


def test_a_diamond_step_by_step() -> None:
    assert ids(ask(DIAMOND, {})) == ["a"]
    assert ids(ask(DIAMOND, {"a": "running"})) == []
    assert ids(ask(DIAMOND, {"a": "completed"})) == ["b", "c"]
    assert ids(ask(DIAMOND, {"a": "completed", "b": "completed", "c": "queued"})) == []
    assert ids(ask(DIAMOND, {"a": "completed", "b": "completed", "c": "skipped"})) == ["d"]
    assert not ask(DIAMOND, {"a": "completed"}).complete
    assert ask(DIAMOND, dict.fromkeys("abcd", "completed")) == Decision(complete=True)


def test_an_empty_graph_is_complete() -> None:
    assert ask(graph(), {}).complete


def test_a_failed_or_cancelled_node_stops_everything() -> None:
    decision = ask(DIAMOND, {"a": "completed", "b": "failed", "c": "cancelled"})
    assert decision == Decision(lost=("b", "c"))


def test_rows_that_are_not_in_the_graph_count_too() -> None:
    everything = dict.fromkeys("abcd", "completed")
    assert not ask(DIAMOND, {**everything, "more": "running"}).complete
    assert ask(DIAMOND, {**everything, "more": "completed"}).complete
    assert ask(DIAMOND, {**everything, "more": "failed"}).lost == ("more",)


def test_skips_cascade_in_one_answer() -> None:
    skip = {"$eq": [{"$context": "skip"}, True]}
    g = graph(a={"skip_if": skip}, b={"depends_on": ["a"], "skip_if": skip}, c={"depends_on": ["b"]})
    decision = ask(g, {}, skip=True)
    assert ([node.id for node in decision.skipped], ids(decision)) == (["a", "b"], ["c"])
    assert ids(ask(g, {}, skip=False)) == ["a"]
    everything = graph(a={"skip_if": skip}, b={"depends_on": ["a"], "skip_if": skip})
    assert ask(everything, {}, skip=True).complete


def test_a_skipped_node_has_no_output_but_a_default_helps() -> None:
    g = graph(
        a={"skip_if": {"$eq": [1, 1]}},
        b={"depends_on": ["a"], "inputs": {"x": {"$from": "a.x", "$default": 5}}},
        c={"depends_on": ["a"], "inputs": {"x": {"$from": "a.x"}}},
    )
    assert (
        ask(
            graph(a={}, b={"depends_on": ["a"], "inputs": {"x": {"$from": "a.x", "$default": 5}}}), {"a": "skipped"}
        ).ready[0][1]
        == '{"x": 5}'
    )
    decision = ask(g, {})
    assert [(node.id, reason.endswith("(it was skipped)")) for node, reason in decision.failed] == [("c", True)]
    assert decision.ready == ()


def test_inputs_are_resolved() -> None:
    g = graph(a={}, b={"depends_on": ["a"], "inputs": {"x": {"$from": "a.rows.0"}, "y": {"$context": "k"}}})
    assert ask(g, {"a": "completed"}, {"a": {"rows": [3]}}, k="v").ready[0][1] == '{"x": 3, "y": "v"}'


def test_all_inputs_may_be_one_reference_to_an_object() -> None:
    g = graph(a={}, b={"depends_on": ["a"], "inputs": {"$from": "a"}})
    assert ask(g, {"a": "completed"}, {"a": {"x": 1}}).ready[0][1] == '{"x": 1}'
    assert "must be an object" in ask(g, {"a": "completed"}, {"a": [1]}).failed[0][1]


def test_inputs_that_are_too_large_fail_the_node() -> None:
    g = graph(a={}, b={"depends_on": ["a"], "inputs": {"x": {"$from": "a"}}})
    assert ask(g, {"a": "completed"}, {"a": "x" * 200}).failed[0][1] == "inputs of node 'b': too large"


def test_only_outputs_that_may_be_read_now_are_wanted() -> None:
    reads_a = {"inputs": {"x": {"$from": "a"}}}
    g = graph(
        a={},
        z={},
        b={"depends_on": ["a"], "skip_if": {"$eq": [1, 1]}},
        c={"depends_on": ["b"], **reads_a},
        d={"depends_on": ["a", "z"], "inputs": {"x": {"$from": "z"}}},
    )
    assert wanted(g, {}) == Wanted((), context=False)
    assert wanted(g, {"a": "completed", "z": "running"}).outputs == ("a",)  # c is up at once if b skips
    assert wanted(g, {"a": "completed", "z": "completed", "b": "queued"}).outputs == ("z",)
    assert wanted(g, {"a": "completed", "z": "skipped", "b": "queued"}).outputs == ()


def test_the_context_is_wanted_only_by_who_reads_it_now() -> None:
    g = graph(a={}, b={"depends_on": ["a"], "skip_if": {"$eq": [{"$context": "x"}, 1]}})
    assert not wanted(g, {"a": "running"}).context
    assert wanted(g, {"a": "completed"}).context
    assert not wanted(g, {"a": "completed", "b": "queued"}).context
