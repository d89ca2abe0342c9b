"""What to do next in a run, from its graph and the statuses of its rows. Pure.

The answer depends only on the present state, not on which event led here: asking twice, or once for many events,
gives the same answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.dag import refs
from engine.dag.graph import Graph, Node
from engine.errors import PayloadError

DONE = frozenset(("completed", "skipped"))
ROOM = 16 * 1024 * 1024  # bytes of inputs in one decision; what is ready beyond that is for the next


@dataclass(frozen=True)
class Decision:
    """``ready`` nodes with their inputs (JSON text), nodes to record as ``skipped``, as ``failed`` with the reason.

    A ready node that asks for human input waits for it, any other is queued. ``more``: others are ready too, ask again.
    ``complete``: every node of the graph is completed or skipped, counting those above. ``lost``: nodes that ended
    as failed or cancelled, so that the run cannot complete.
    """

    ready: tuple[tuple[Node, str], ...] = ()
    skipped: tuple[Node, ...] = ()
    failed: tuple[tuple[Node, str], ...] = ()
    complete: bool = False
    lost: tuple[str, ...] = ()
    more: bool = False


@dataclass(frozen=True)
class Wanted:
    """What a decision may read: the outputs of these completed nodes (in the order of reading), the context or not."""

    outputs: tuple[str, ...]
    context: bool


def wanted(graph: Graph, statuses: Mapping[str, str]) -> Wanted:
    """What :func:`decide` may read now (more than it will read where nodes may skip)."""
    passed = {node_id for node_id, status in statuses.items() if status in DONE}
    outputs: dict[str, None] = {}
    context = False
    for node_id in graph.order:
        node = graph.nodes[node_id]
        if node_id not in statuses and passed.issuperset(node.depends_on):
            outputs |= dict.fromkeys(node.reads)
            context = context or node.reads_context
            if node.skip_if is not None:
                passed.add(node_id)  # if it skips, its dependents are up at once
    return Wanted(tuple(node_id for node_id in outputs if statuses.get(node_id) == "completed"), context)


def decide(
    graph: Graph,
    statuses: Mapping[str, str],
    context: Mapping[str, object],
    outputs: Mapping[str, object],
    encode: Callable[[object, str], str],
    limit: int | None = None,
    room: int = ROOM,
) -> Decision:
    """What the run needs now.

    ``statuses``: of the rows that exist; ``context`` and ``outputs``: at least what :func:`wanted` names, asked for one
    by one and in that order; ``encode`` turns inputs into JSON text and raises PayloadError where they are too large.
    ``limit``: their largest size in bytes, so that a node is given up before everything that it refers to was read.
    """
    everything = (*graph.order, *(node_id for node_id in statuses if node_id not in graph.nodes))  # others may add rows
    lost = tuple(node_id for node_id in everything if statuses.get(node_id) in ("failed", "cancelled"))
    if lost:
        return Decision(lost=lost)
    passed = {node_id for node_id, status in statuses.items() if status in DONE}
    ready: list[tuple[Node, str]] = []
    skipped: list[Node] = []
    failed: list[tuple[Node, str]] = []
    more = False
    for node_id in graph.order:
        node = graph.nodes[node_id]
        if node_id in statuses or not passed.issuperset(node.depends_on):
            continue
        if room <= 0:
            more = True
            break
        what = f"inputs of node {node_id!r}"
        try:
            if node.skip_if is not None and refs.skips(node.skip_if, context, outputs):
                skipped.append(node)
                passed.add(node_id)
                continue
            inputs = refs.resolve(
                node.inputs, context, outputs, None if limit is None else _scales(encode, what, limit)
            )
            if not isinstance(inputs, Mapping):  # inputs as a whole may be one reference
                raise refs.Unresolved(f"inputs must be an object, {json.dumps(node.inputs)[:200]} is none")
            text = encode(inputs, what)
            room -= len(text)
            ready.append((node, text))
        except (refs.Unresolved, PayloadError) as error:
            failed.append((node, str(error)))
    return Decision(
        ready=() if failed else tuple(ready),  # the run is about to fail: start nothing more
        skipped=tuple(skipped),
        failed=tuple(failed),
        complete=passed.issuperset(everything),
        more=more and not failed,
    )


def _scales(encode: Callable[[object, str], str], what: str, limit: int) -> Callable[[object], None]:
    """A function that adds up the sizes of what it is shown; raises PayloadError once they are more than ``limit``."""
    total = 0
    known: dict[int, int] = {}  # a large context may be referred to a thousand times

    def weigh(found: object) -> None:
        nonlocal total
        if (size := known.get(id(found))) is None:
            size = known[id(found)] = len(encode(found, what))
        total += size
        if total > limit:
            raise PayloadError(f"{what} are more than the {limit:,} bytes of JSON allowed")

    return weigh
