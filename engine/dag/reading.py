"""A run with all its nodes, as a client of the job API reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.store import Db

OUTPUT_MOST = 64 * 1024  # bytes of one node's output,
OUTPUTS_MOST = 4 * 1024 * 1024  # and of all that are read with one run
NODES_MOST = 10_000


def run_with_nodes(db: Db, project: str, run_id: int) -> dict[str, Any] | None:
    """A run of the project, or None. ``nodes``: in the order of its graph, each {id, node, status, queue, depends_on,
    job_id, attempt, progress, output (JSON text), output_bytes, error, started_at, finished_at}; ``waiting`` before it has a row.

    An output that is larger than 64 KiB is left out, and those of the last nodes where they all come to more than 4 MiB.
    """
    run = db.one(
        "select id, workflow_name, graph, status, priority, substr(error, 1, 8000) as error, retry_of, created_at, "
        "started_at, finished_at from workflow_runs where id = {id} and project = {project}",
        id=run_id,
        project=project,
    )
    if run is None:
        return None
    text, size = "output::text", "octet_length(text)"
    if db.kind == "sqlite":
        text = "case when json_valid(output) then cast(output as text) else json_quote(cast(output as text)) end"
        size = "length(cast(text as blob))"
    short = "case when size <= {most} then size else 0 end"
    rows = db.all(
        "select id, node_id, node, status, queue, attempt, progress_pct, substr(error, 1, 8000) as error, started_at, "
        f"finished_at, size, case when size <= {{most}} and sum({short}) over (order by id) <= {{all}} then text end as output_text "
        f"from (select o.*, {size} as size from (select j.*, {text} as text from workflow_node_jobs j where run_id = {{id}} "
        "order by id limit {n}) o) s order by id",
        id=run_id,
        most=OUTPUT_MOST,
        all=OUTPUTS_MOST,
        n=NODES_MOST,
    )
    run["nodes"] = _in_order(run.pop("graph"), {str(row["node_id"]): row for row in rows})
    return run


def _in_order(graph: Any, rows: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    entries = graph.get("nodes") if isinstance(graph, Mapping) else None
    listed = [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, Sequence) else []
    nodes = {str(entry.get("id")): _node(entry, rows.get(str(entry.get("id")))) for entry in listed[:NODES_MOST]}
    for node_id, row in rows.items():  # of a graph that somebody wrote without them
        if node_id not in nodes:
            nodes[node_id] = _node({"id": node_id}, row)
    return list(nodes.values())


def _node(entry: Mapping[str, Any], row: Mapping[str, Any] | None) -> dict[str, Any]:
    needs = entry.get("depends_on")
    gpu = entry.get("gpu") is True
    found: dict[str, Any] = {
        "id": str(entry.get("id")),
        "node": str(entry.get("node") or ""),
        "status": "waiting",
        "queue": "gpu" if gpu else "cpu",
        "depends_on": [str(need) for need in needs] if isinstance(needs, list | tuple) else [],
        "job_id": None,
        "attempt": 0,
        "progress": None,
        "output": None,
        "output_bytes": None,
        "error": None,
        "started_at": None,
        "finished_at": None,
    }
    if row is not None:
        found |= {
            name: row[name] for name in ("node", "status", "queue", "attempt", "error", "started_at", "finished_at")
        }
        found |= {
            "job_id": str(row["id"]),
            "progress": row["progress_pct"],
            "output": row["output_text"],
            "output_bytes": row["size"],
        }
    return found
