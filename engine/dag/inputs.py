"""Human input on its way in: what a person says to a node that waits, checked against the node's schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.dag import schemas
from engine.errors import BadInput, Conflict, NotFound
from engine.queue import inputs
from engine.queue.family import row_id
from engine.queue.operate import Done, log_control
from engine.store import Db


def submit_input(db: Db, run_id: int | str, node_id: str, value: Any, requested_by: str | None = None) -> int:
    """Give a waiting node its input, in the caller's transaction if there is one; the submission's id.

    The node completes with it within a second, wherever the orchestrator runs. Before anything is written raises
    NotFound (no such run, no such node), Conflict (the run is over, the node does not wait, a submission is in flight),
    BadInput (the value does not fit the schema), PayloadError (no JSON, or too large).
    """
    number = row_id(run_id, "run")
    with db.transaction():
        run = db.one("select status, project, graph from workflow_runs where id = {id}", id=number)
        if run is None:
            raise NotFound(f"no run {run_id}")
        entry = _entry(run["graph"], node_id)
        row = inputs.lock_node(db, number, node_id) if isinstance(node_id, str) else None
        if entry is None and row is None:
            raise NotFound(f"run {number} has no node {node_id!r}")
        if run["status"] not in ("queued", "running"):
            raise Conflict(f"run {number} is {run['status']}: node {node_id!r} takes no input any more")
        if row is None or row["status"] != "awaiting_input":
            raise Conflict(f"node {node_id!r} of run {number} {_state(entry, row)}")
        if (earlier := inputs.in_flight(db, number, node_id)) is not None:
            raise _in_flight(number, node_id, earlier)
        text = inputs.encode_answer(value, node_id)
        asked = (entry or {}).get("input")
        schema = asked.get("schema", {}) if isinstance(asked, Mapping) else {}
        if problem := schemas.misfits(value, schema):
            raise BadInput(f"node {node_id!r} of run {number}: the input does not fit its schema: {problem}")
        submission = inputs.add(db, number, node_id, text)
        if submission is None:
            raise _in_flight(number, node_id, inputs.in_flight(db, number, node_id))
        log_control(
            db,
            "submit_input",
            Done(1, f"node {node_id!r} of run {number} was given its input", str(submission)),
            requested_by,
            project=run["project"],
            detail={"run_id": str(number), "node_id": node_id, "submission_id": str(submission)},
        )
    return submission


def give_input(db: Db, run_id: int | str, node_id: str, value: Any, requested_by: str | None = None) -> Done:
    """:func:`submit_input`, and what was done in words."""
    submission = submit_input(db, run_id, node_id, value, requested_by)
    return Done(1, f"node {node_id!r} of run {run_id} was given its input", str(submission))


def _entry(graph: Any, node_id: Any) -> Mapping[str, Any] | None:
    """The node as the run's snapshot has it; the whole graph need not be valid for that."""
    nodes = graph.get("nodes") if isinstance(graph, Mapping) else None
    for entry in nodes if isinstance(nodes, list) else ():
        if isinstance(entry, Mapping) and entry.get("id") == node_id:
            return entry
    return None


def _state(entry: Mapping[str, Any] | None, row: Mapping[str, Any] | None) -> str:
    if row is not None and row["status"] in ("completed", "skipped") and (entry or {}).get("input") is not None:
        return f"is {row['status']} already: it waits no more"
    if (entry or {}).get("input") is None:
        return "is no node that waits for input"
    return "does not wait yet: what it depends on has not ended" if row is None else f"is {row['status']}"


def _in_flight(run_id: int, node_id: str, submission: int | None) -> Conflict:
    return Conflict(f"node {node_id!r} of run {run_id}: submission {submission} is in flight; nothing was written")
