"""A run's graph as an indented list: in the order of dependencies, each node with its state. Pure, but for the reading."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from engine.store import Db

NODES_SHOWN = 200
NODES_READ = 5_000


def run_outline(db: Db, run_id: int, node_id: str | None = None) -> dict[str, Any] | None:
    """A run and its nodes; None: there is no such run. ``node_id``: of a long graph its neighbourhood is kept first.

    Keys: id, workflow, status, priority, project, error, retry_of, created_at, started_at, finished_at; ``states`` (how
    many nodes are in which); ``nodes`` (see :func:`outline`); ``hidden``: nodes that are not listed; ``asked``: what the
    graph says of the input that ``node_id`` wants.
    """
    run = db.one(
        "select id, workflow_name as workflow, graph, status, priority, project, error, retry_of, created_at, started_at, "
        "finished_at from workflow_runs where id = {id}",
        id=run_id,
    )
    if run is None:
        return None
    rows = db.all(
        "select id, node_id, status, queue, required_model as model, claimed_box as box, attempt, progress_pct, "
        "started_at, finished_at, unplaceable_reason, substr(error, 1, 200) as error from workflow_node_jobs "
        "where run_id = {id} order by node_id limit {most}",
        id=run_id,
        most=NODES_READ,
    )
    graph = run.pop("graph")
    graph = graph if isinstance(graph, Mapping) else {}
    nodes = outline(graph, rows)
    kept = _kept(nodes, node_id, NODES_SHOWN)
    return {
        **run,
        "id": str(run["id"]),
        "retry_of": None if run["retry_of"] is None else str(run["retry_of"]),
        "states": dict(Counter(node["status"] for node in nodes)),
        "nodes": kept,
        "hidden": len(nodes) - len(kept),
        "asked": next((entry.get("input") for entry in _entries(graph) if entry["id"] == node_id), None),
    }


def outline(graph: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Nodes after what they depend on: {node_id, depth, depends_on, waits_for, id, status, queue, model, box, ...}.

    ``depth``: length of the longest way to it. A node without a row is ``not yet`` and ``waits_for`` what has not ended;
    a row without a node (a foreign writer's) stands at the end. A circle, which no submit lets in, ends at depth 0.
    """
    by_id = {str(row["node_id"]): row for row in rows}
    entries: dict[str, list[str]] = {}
    for entry in _entries(graph):
        needs = entry.get("depends_on")
        entries[entry["id"]] = [str(need) for need in needs] if isinstance(needs, list) else []
    for node_id in by_id:
        entries.setdefault(node_id, [])
    depths = _depths(entries)
    order = {node_id: position for position, node_id in enumerate(entries)}
    found = []
    for node_id in sorted(entries, key=lambda name: (depths[name], order[name])):
        row = by_id.get(node_id)
        ended = ("completed", "skipped")
        waits = [need for need in entries[node_id] if by_id.get(need, {}).get("status") not in ended]
        found.append(
            {
                "node_id": node_id,
                "depth": depths[node_id],
                "depends_on": entries[node_id],
                "waits_for": waits if row is None else [],
                "id": None if row is None else str(row["id"]),
                "status": "not yet" if row is None else row["status"],
                **{name: None if row is None else row[name] for name in _SHOWN},
            }
        )
    return found


def _entries(graph: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The nodes of a graph that have an id; it need not be valid for that."""
    listed = graph.get("nodes")
    return [
        entry
        for entry in (listed if isinstance(listed, list) else ())
        if isinstance(entry, Mapping) and isinstance(entry.get("id"), str)
    ]


_SHOWN = (
    "queue",
    "model",
    "box",
    "attempt",
    "progress_pct",
    "started_at",
    "finished_at",
    "unplaceable_reason",
    "error",
)


def _depths(entries: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Longest ways from the start, without recursion: a chain may be a thousand nodes long."""
    open_needs = {name: len({need for need in needs if need in entries}) for name, needs in entries.items()}
    dependents: dict[str, list[str]] = {}
    for name, needs in entries.items():
        for need in set(needs):
            dependents.setdefault(need, []).append(name)
    depths = dict.fromkeys(entries, 0)
    ready = [name for name, n in open_needs.items() if n == 0]
    while ready:
        name = ready.pop()
        for other in dependents.get(name, ()):
            depths[other] = max(depths[other], depths[name] + 1)
            open_needs[other] -= 1
            if open_needs[other] == 0:
                ready.append(other)
    return depths


def _kept(nodes: list[dict[str, Any]], node_id: str | None, most: int) -> list[dict[str, Any]]:
    """Up to ``most`` nodes in their order: first the one asked for and its neighbours, then what has not ended well."""
    if len(nodes) <= most:
        return nodes
    here = next((node for node in nodes if node["node_id"] == node_id), None)
    near = {node_id, *(here["depends_on"] if here else ())}
    near |= {node["node_id"] for node in nodes if node_id in node["depends_on"]}

    def rank(position: int) -> tuple[int, int]:
        node = nodes[position]
        if node["node_id"] == node_id:
            return (0, 0)
        if node["node_id"] in near:
            return (1, position)
        return (3 if node["status"] in ("completed", "skipped", "not yet") else 2, position)

    return [nodes[i] for i in sorted(sorted(range(len(nodes)), key=rank)[:most])]
