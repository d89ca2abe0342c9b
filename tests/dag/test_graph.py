"""What makes a valid graph, and what a refusal says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.dag.graph import parse_graph
from engine.errors import GraphError


def n(id: Any = "a", **fields: Any) -> dict[str, Any]:
    return {"id": id, "node": "work", **fields}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_reads_every_field() -> None:
    graph = parse_graph(
        json.dumps(
            {
                "name": "g",
                "nodes": [
                    n("b", depends_on=["a", "a"], inputs={"x": {"$from": "a.y"}}, skip_if={"$eq": [{"$from": "a"}, 1]}),
                    n(gpu=True, model="m", avoid_boxes=["z", "y"], only_boxes=["b"], max_attempts=3, budget_s=5),
                    n("c", gpu=True, model_free=True, depends_on=["b"], inputs={"$from": "a.z"}),
                ],
            }
        )
    )
    assert (graph.name, graph.order) == ("g", ("a", "b", "c"))
    a, b, c = (graph.nodes[node_id] for node_id in "abc")
    assert (a.queue, a.model, a.avoid_boxes, a.only_boxes) == ("gpu", "m", ("y", "z"), ("b",))
    assert (a.max_attempts, a.budget_s) == (3, 5.0)
    assert (b.queue, b.model, b.depends_on, b.reads, b.budget_s) == ("cpu", None, ("a",), ("a",), None)
    assert (c.queue, c.model, c.reads) == ("gpu", None, ("a",))


def test_an_empty_graph_is_valid() -> None:
    assert parse_graph({"nodes": []}).order == ()


def test_contradictory_placement_is_allowed() -> None:
    assert parse_graph({"nodes": [n(avoid_boxes=["x"], only_boxes=["x"])]}).nodes["a"].only_boxes == ("x",)


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ([n("b"), n("b")], "node 'b': this id occurs twice"),
        (["text"], "node number 1: must be an object"),
        ([{"node": "x"}], "node number 1: id None"),
        ([n("with space")], "node number 1: id 'with space'"),
        ([n("newline\n")], "node number 1: id"),
        ([n(7)], "node number 1: id 7"),
        ([{"id": "a"}], "node 'a': node must be the name"),
        ([n(depend_on=[])], "node 'a': unknown field depend_on"),
        ([n(depends_on="b")], "node 'a': depends_on must be a list"),
        ([n(depends_on=["ghost"])], "node 'a': depends on 'ghost', which is not in the graph"),
        ([n(depends_on=["a"])], "node 'a': depends on itself (a cycle)"),
        ([n(depends_on=["b"]), n("b", depends_on=["a"]), n("c", depends_on=["b"])], "cycle: 'a' needs 'b' needs 'a'"),
        ([n(inputs=[1])], "node 'a': inputs must be an object"),
        ([n(inputs={"x": {"$from": "ghost.x"}})], "node 'a': refers to 'ghost', which is not in the graph"),
        ([n(inputs={"x": {"$from": "b.x"}}), n("b")], "node 'a': refers to 'b' without depending on it"),
        ([n(inputs={"x": {"$from": 1}})], "node 'a': $from wants"),
        ([n(skip_if={"$lt": [1, 2]})], "node 'a': skip_if wants"),
        ([n(skip_if={"$eq": [{"$from": "ghost"}, 2]})], "node 'a': refers to 'ghost'"),
        ([n(inputs={"x": nested(100)})], "node 'a': nested deeper"),
        ([n(gpu=True)], "node 'a': a gpu node needs a model"),
        ([n(gpu=True, model="m", model_free=True)], "node 'a': has a model and model_free"),
        ([n(model="m")], "node 'a': only a gpu node has a model"),
        ([n(gpu="yes")], "node 'a': gpu must be true or false"),
        ([n(gpu=True, model="")], "node 'a': model must be the id"),
        ([n(max_attempts=0)], "node 'a': max_attempts"),
        ([n(max_attempts=True)], "node 'a': max_attempts"),
        ([n(budget_s=float("nan"))], "node 'a': budget_s"),
        ([n(budget_s="1h")], "node 'a': budget_s"),
        ([n(avoid_boxes=[1])], "node 'a': avoid_boxes must be a list"),
        ([n(input="yes")], "node 'a': input must be"),
        ([n(input={"schema": {}})], "node 'a': input must be"),
        ([n(input={"prompt": "?", "title": "x"})], "node 'a': input: unknown field title"),
        ([n(input={"prompt": "ok?", "schema": 1})], "node 'a': input: schema must be an object"),
        ([n(input={"prompt": "ok?", "schema": {"type": "nope"}})], "node 'a': input: schema type: 'nope' is not"),
        (
            [n(input={"prompt": "?", "schema": {"pattern": "("}})],
            "node 'a': input: schema pattern: '(' is not a 'regex'",
        ),
        ([n(input={"prompt": "?", "schema": {"$ref": "http://x/y"}})], "'a': input: schema refers to 'http://x/y'"),
        ([n(input={"prompt": "?", "schema": {"$ref": "#/$defs/x"}})], "node 'a': input: schema cannot be used"),
        ([n(input={"prompt": "?", "schema": {"$ref": "#"}})], "refers to itself without an end"),
        ([n(input={"prompt": "?"}, gpu=True, model="m")], "waits for a person and runs nowhere; gpu, model cannot"),
        ([n(input={"prompt": "?"}, max_attempts=2)], "runs nowhere; max_attempts cannot be set"),
    ],
)
def test_refusals_name_the_node(nodes: list[Any], text: str) -> None:
    with pytest.raises(GraphError) as caught:
        parse_graph({"name": "g", "nodes": nodes})
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        (7, "got int"),
        ({"name": 3, "nodes": []}, "name must be a text"),
        ({"name": "g"}, "nodes must be a list, got None"),
        ({"nodes": "abc"}, "nodes must be a list"),
        ({"nodes": {"x" * 200: 1}}, "..."),
        ({"name": nested(100_000), "nodes": []}, "a deeply nested list"),
    ],
)
def test_what_is_no_graph_is_refused(value: Any, text: str) -> None:
    with pytest.raises(GraphError) as caught:
        parse_graph(value)
    assert text in str(caught.value)


def test_a_long_cycle_is_shown_in_part() -> None:
    nodes = [n(f"n{i:02}", depends_on=[f"n{(i + 1) % 30:02}"]) for i in range(30)]
    with pytest.raises(GraphError, match=r"node 'n00': is part of a cycle: .*'n09' needs \.\.\. needs 'n00'"):
        parse_graph({"nodes": nodes})


def test_a_chain_of_thousands_is_read_without_recursion() -> None:
    nodes = [n(f"n{i}", depends_on=[f"n{i - 1}"] if i else []) for i in range(5000)]
    assert len(parse_graph({"nodes": nodes}).order) == 5000


def test_a_node_may_read_any_ancestor() -> None:
    nodes = [
        n("a"),
        n("b", depends_on=["a"]),
        n("c", depends_on=["b", "b2"], inputs={"x": {"$from": "a"}}),
        n("b2", depends_on=["a"]),
    ]
    assert parse_graph({"nodes": nodes}).nodes["c"].reads == ("a",)


def test_a_long_detour_of_reads_is_checked_without_walking_it_each_time() -> None:
    nodes = [n("first"), *(n(f"n{i}", depends_on=[f"n{i - 1}"] if i else ["first"]) for i in range(3000))]
    for each in nodes[2:]:
        each["inputs"] = {"x": {"$from": "first"}}
    assert len(parse_graph({"nodes": nodes}).order) == 3001


def test_a_node_that_waits_for_a_person_needs_no_function_and_may_have_any_schema() -> None:
    asked = {
        "prompt": "ok?",
        "schema": {"$defs": {"a": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/a"}}},
    }
    (node,) = parse_graph({"nodes": [{"id": "a", "input": asked}]}).nodes.values()
    assert node.input is not None and (node.input.prompt, node.input.schema) == ("ok?", asked["schema"])
    (node,) = parse_graph({"nodes": [n(input={"prompt": ""})]}).nodes.values()
    assert node.input is not None and node.input.schema == {}


def test_a_graph_has_a_largest_size() -> None:
    nodes = [{"id": f"n{i}", "node": "w"} for i in range(10_001)]
    with pytest.raises(GraphError, match="graph 'big': 10,001 nodes, more than the 10,000 allowed"):
        parse_graph({"name": "big", "nodes": nodes})
    assert len(parse_graph({"name": "big", "nodes": nodes[1:]}).order) == 10_000
