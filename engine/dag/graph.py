"""Graphs: reading and validating them. Pure; every refusal is a GraphError that names the node."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.dag import refs, schemas
from engine.errors import GraphError

_NODE_KEYS = frozenset(
    "id node depends_on inputs gpu model model_free skip_if input avoid_boxes only_boxes max_attempts budget_s".split()
)

# What only a node that runs somewhere can have; a node that waits for a person runs nowhere.
_RUN_KEYS = ("gpu", "model", "model_free", "budget_s", "avoid_boxes", "only_boxes")

MAX_NODES = 10_000


@dataclass(frozen=True)
class HumanInput:
    """What a node asks a person for. ``schema``: a JSON schema that the answer must fit."""

    prompt: str
    schema: Mapping[str, Any] | bool


@dataclass(frozen=True)
class Node:
    """One node of a graph.

    ``budget_s`` is wall clock in seconds, None the default; ``reads`` (in the order in which they are written) and
    ``reads_context``: what it refers to; ``input``: it runs nothing, it waits for a person.
    """

    id: str
    node: str
    depends_on: tuple[str, ...]
    inputs: Mapping[str, Any]
    queue: str
    model: str | None
    skip_if: Mapping[str, Any] | None
    avoid_boxes: tuple[str, ...]
    only_boxes: tuple[str, ...]
    max_attempts: int
    budget_s: float | None
    reads: tuple[str, ...]
    reads_context: bool
    input: HumanInput | None = None


@dataclass(frozen=True)
class Graph:
    """A valid graph; ``order`` lists the ids so that every node comes after what it depends on."""

    name: str
    nodes: Mapping[str, Node]
    order: tuple[str, ...]


def parse_graph(value: Any) -> Graph:
    """Read ``{"name": ..., "nodes": [...]}``, an object or its JSON text. Raises GraphError."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise GraphError(f"graph: not JSON ({error})") from None
    if not isinstance(value, Mapping):
        raise GraphError(f'graph: wants {{"name": ..., "nodes": [...]}}, got {type(value).__name__}')
    name = value.get("name", "")
    if not isinstance(name, str):
        raise GraphError(f"graph: name must be a text, got {_show(name)}")
    entries = value.get("nodes")
    if not isinstance(entries, Sequence) or isinstance(entries, str | bytes):
        raise GraphError(f"graph {name!r}: nodes must be a list, got {_show(entries)}")
    if len(entries) > MAX_NODES:
        raise GraphError(f"graph {name!r}: {len(entries):,} nodes, more than the {MAX_NODES:,} allowed")
    nodes: dict[str, Node] = {}
    for position, entry in enumerate(entries, 1):
        node = _node(entry, position)
        if node.id in nodes:
            raise GraphError(f"node {node.id!r}: this id occurs twice")
        nodes[node.id] = node
    _check_dependencies(nodes)
    order = _order(nodes)
    _check_reads(nodes, order)
    return Graph(name, nodes, order)


def _node(entry: Any, position: int) -> Node:
    if not isinstance(entry, Mapping):
        raise GraphError(f"node number {position}: must be an object, got {_show(entry)}")
    node_id = entry.get("id")
    if not isinstance(node_id, str) or not refs.NODE_ID.fullmatch(node_id):
        raise GraphError(
            f"node number {position}: id {_show(node_id)} must be 1 to 200 of the characters A-Z a-z 0-9 _ -"
        )

    def refuse(text: str) -> GraphError:
        return GraphError(f"node {node_id!r}: {text}")

    def flag(key: str) -> bool:
        if not isinstance(entry.get(key, False), bool):
            raise refuse(f"{key} must be true or false, got {_show(entry[key])}")
        return bool(entry.get(key, False))

    def texts(key: str) -> tuple[str, ...]:
        value = entry.get(key) or ()
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) and item for item in value):
            raise refuse(f"{key} must be a list of names, got {_show(value)}")
        return tuple(dict.fromkeys(value))

    if unknown := sorted(str(key) for key in entry if key not in _NODE_KEYS):
        raise refuse(f"unknown field {', '.join(unknown)} (known: {', '.join(sorted(_NODE_KEYS))})")
    human = _human_input(entry, refuse)
    function = entry.get("node", "" if human is not None else None)
    if not isinstance(function, str) or len(function) > 200 or not (function or human is not None):
        raise refuse(f"node must be the name of a registered node, got {_show(function)}")
    inputs = entry.get("inputs")
    inputs = {} if inputs is None else inputs
    if not isinstance(inputs, Mapping) or not all(isinstance(key, str) for key in inputs):
        raise refuse(f"inputs must be an object of named inputs, got {_show(inputs)}")
    gpu, model, model_free = flag("gpu"), entry.get("model"), flag("model_free")
    if model is not None and (not isinstance(model, str) or not model):
        raise refuse(f"model must be the id of a model, got {_show(model)}")
    if gpu and model is None and not model_free:
        raise refuse('a gpu node needs a model, or "model_free": true')
    if gpu and model is not None and model_free:
        raise refuse("has a model and model_free; it can be one of them")
    if not gpu and model is not None:
        raise refuse('only a gpu node has a model (say "gpu": true)')
    max_attempts = entry.get("max_attempts", 1)
    if not isinstance(max_attempts, int) or isinstance(max_attempts, bool) or not 1 <= max_attempts < 2**31:
        raise refuse(f"max_attempts must be a whole number of 1 or more, got {_show(max_attempts)}")
    budget_s = entry.get("budget_s")
    if budget_s is not None and not _is_seconds(budget_s):
        raise refuse(f"budget_s must be a positive number of seconds, got {_show(budget_s)}")
    skip_if = entry.get("skip_if")
    try:
        reads = dict.fromkeys(ref.node for ref in refs.refs_in(inputs))  # None: the context
        if skip_if is not None:
            refs.check_skip_if(skip_if)
            reads |= dict.fromkeys(ref.node for ref in refs.refs_in(skip_if))
    except refs.BadReference as error:
        raise refuse(str(error)) from None
    return Node(
        id=node_id,
        node=function,
        depends_on=texts("depends_on"),
        inputs=inputs,
        queue="gpu" if gpu else "cpu",
        model=model,
        skip_if=skip_if,
        avoid_boxes=tuple(sorted(texts("avoid_boxes"))),  # sorted: equal sets make one class of the claim
        only_boxes=tuple(sorted(texts("only_boxes"))),
        max_attempts=max_attempts,
        budget_s=None if budget_s is None else float(budget_s),
        reads=tuple(node for node in reads if node is not None),
        reads_context=None in reads,
        input=human,
    )


def _human_input(entry: Mapping[str, Any], refuse: Callable[[str], GraphError]) -> HumanInput | None:
    """The field ``input``, checked; None: the node has none."""
    value = entry.get("input")
    if value is None:
        return None
    if not isinstance(value, Mapping) or not isinstance(value.get("prompt"), str):
        raise refuse(f'input must be {{"prompt": "...", "schema": {{...}}}}, got {_show(value)}')
    if unknown := sorted(str(key) for key in value if key not in ("prompt", "schema")):
        raise refuse(f"input: unknown field {', '.join(unknown)} (known: prompt, schema)")
    schema = value.get("schema", {})
    if not isinstance(schema, Mapping | bool):
        raise refuse(f"input: schema must be an object, got {_show(schema)}")
    if problem := schemas.problem_of(schema):
        raise refuse(f"input: schema {problem}")
    if unfit := [key for key in _RUN_KEYS if entry.get(key)] + ["max_attempts"] * (entry.get("max_attempts", 1) != 1):
        raise refuse(f"waits for a person and runs nowhere; {', '.join(unfit)} cannot be set")
    return HumanInput(value["prompt"], schema)


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _check_dependencies(nodes: Mapping[str, Node]) -> None:
    for node in nodes.values():
        for dependency in node.depends_on:
            if dependency not in nodes:
                raise GraphError(f"node {node.id!r}: depends on {dependency!r}, which is not in the graph")
            if dependency == node.id:
                raise GraphError(f"node {node.id!r}: depends on itself (a cycle)")


def _order(nodes: Mapping[str, Node]) -> tuple[str, ...]:
    """The ids in an order that respects the dependencies; written order where they leave a choice."""
    waits = {node.id: len(node.depends_on) for node in nodes.values()}
    dependents: dict[str, list[str]] = {node_id: [] for node_id in nodes}
    for node in nodes.values():
        for dependency in node.depends_on:
            dependents[dependency].append(node.id)
    free = deque(node_id for node_id, count in waits.items() if count == 0)
    order = []
    while free:
        node_id = free.popleft()
        order.append(node_id)
        for dependent in dependents[node_id]:
            waits[dependent] -= 1
            if waits[dependent] == 0:
                free.append(dependent)
    if len(order) < len(nodes):
        raise GraphError(f"node {_cycle(nodes, set(nodes) - set(order))}")
    return tuple(order)


def _cycle(nodes: Mapping[str, Node], left: set[str]) -> str:
    """One cycle among nodes that all wait for each other, in words. Each of ``left`` depends on one of ``left``."""
    path: list[str] = []
    at = min(left)
    while at not in path:
        path.append(at)
        at = next(dependency for dependency in nodes[at].depends_on if dependency in left)
    cycle = path[path.index(at) :]
    shown = [repr(node_id) for node_id in cycle[:10]] + (["..."] if len(cycle) > 10 else []) + [repr(at)]
    return f"{at!r}: is part of a cycle: {' needs '.join(shown)}"


def _check_reads(nodes: Mapping[str, Node], order: Sequence[str]) -> None:
    """A node may only read what is certain to have ended before it starts."""
    indirect = False
    for node in nodes.values():
        for read in sorted(node.reads):
            if read not in nodes:
                raise GraphError(f"node {node.id!r}: refers to {read!r}, which is not in the graph")
        indirect = indirect or not set(node.depends_on).issuperset(node.reads)
    if not indirect:
        return
    bit = {node_id: 1 << position for position, node_id in enumerate(order)}
    before: dict[str, int] = {}  # for each node, the bits of everything that it waits for
    for node_id in order:
        node = nodes[node_id]
        ancestors = 0
        for dependency in node.depends_on:
            ancestors |= before[dependency] | bit[dependency]
        before[node_id] = ancestors
        if strangers := [read for read in node.reads if not ancestors & bit[read]]:
            raise GraphError(
                f"node {node_id!r}: refers to {min(strangers)!r} without depending on it (add it to depends_on)"
            )


def _show(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        text = f"a deeply nested {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."
