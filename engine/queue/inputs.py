"""What people say to nodes that wait for them: rows of input_submissions, and the nodes whose output they become."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engine.errors import PayloadError
from engine.queue import events, outbox
from engine.queue.family import LIVE_RUN, NODE, for_update
from engine.queue.texts import clean_text, encode_payload
from engine.store import Db


def as_output(value: Any) -> dict[str, Any]:
    """The output of a node that was given ``value``: an object is the output itself, else ``{"value": value}``."""
    return dict(value) if isinstance(value, Mapping) else {"value": value}


def encode_answer(value: Any, node_id: str) -> str:
    """``value`` as JSON text, small enough to become an output. Raises PayloadError."""
    what = f"the input of node {node_id!r}"
    encode_payload(as_output(value), what)
    return encode_payload(value, what)


def lock_node(db: Db, run_id: int, node_id: str) -> dict[str, Any] | None:
    """The row of one node, locked until the transaction ends; None: there is none (yet)."""
    return db.one(
        "select id, status, queue, project, claimed_box from workflow_node_jobs "
        f"where run_id = {{run_id}} and node_id = {{node_id}} {for_update(db)}",
        run_id=run_id,
        node_id=node_id,
    )


def add(db: Db, run_id: int, node_id: str, value_json: str) -> int | None:
    """Write a submission and the outbox event that brings it to its node; None: one is in flight already.

    In the caller's transaction: both or neither.
    """
    submission: int | None = db.value(
        "insert into input_submissions (run_id, node_id, value) values ({run_id}, {node_id}, {answer}{json}) "
        "on conflict (run_id, node_id) where status = 'pending' do nothing returning id",
        run_id=run_id,
        node_id=node_id,
        answer=value_json,
    )
    if submission is not None:
        outbox.emit(db, run_id, node_id, "input")
    return submission


def in_flight(db: Db, run_id: int, node_id: str) -> int | None:
    """The submission for this node that has not been processed yet."""
    found: int | None = db.value(
        "select id from input_submissions where run_id = {run_id} and node_id = {node_id} and status = 'pending'",
        run_id=run_id,
        node_id=node_id,
    )
    return found


def answer_waiting(db: Db, run_id: int) -> dict[str, str]:
    """Complete the nodes of a run that were given their input; the new status of each. The caller holds the run.

    A submission that no node waits for becomes failed, with the reason.
    """
    answered: dict[str, str] = {}
    for row in db.all(
        "select id, node_id, {text[value]} as answer from input_submissions "
        "where run_id = {run_id} and status = 'pending' order by id",
        run_id=run_id,
    ):
        node_id = row["node_id"]
        try:
            output = encode_payload(as_output(json.loads(row["answer"] or "null")), f"the input of node {node_id!r}")
        except (ValueError, PayloadError) as error:  # written by plain SQL: nobody has looked at it
            _settle(db, row["id"], str(error))
            continue
        node = db.one(
            "update workflow_node_jobs set status = 'completed', output = {output}{json}, error = null, "
            "started_at = coalesce(started_at, {now}), finished_at = {now} "
            "where run_id = {run_id} and node_id = {node_id} and status = 'awaiting_input' returning *",
            run_id=run_id,
            node_id=node_id,
            output=output,
        )
        if node is None:
            _settle(db, row["id"], f"node {node_id!r} does not wait for input")
            continue
        answered[node_id] = "completed"
        _settle(db, row["id"], None)
        waited_s = max(0.0, (db.now() - node["created_at"]).total_seconds())
        events.record_for(db, NODE, node, "completed", elapsed_s=waited_s, detail={"input_submission": str(row["id"])})
    return answered


def _settle(db: Db, submission: int, error: str | None) -> None:
    db.run(
        "update input_submissions set status = {status}, error = {error}, processed_at = {now} "
        "where id = {id} and status = 'pending'",
        id=submission,
        status="failed" if error else "processed",
        error=clean_text(error),
    )


def fail_pending(db: Db, run_id: int, reason: str) -> int:
    """The run is over: what was submitted for it in vain becomes failed with the reason. How many."""
    return db.run(
        "update input_submissions set status = 'failed', error = {error}, processed_at = {now} "
        "where run_id = {run_id} and status = 'pending'",
        run_id=run_id,
        error=clean_text(reason),
    )


def look_again(db: Db, limit: int = 1000) -> int:
    """Put an outbox event behind submissions that have none (written by plain SQL); how many."""
    return db.run(
        "insert into workflow_dispatch_events (run_id, node_id, kind) "
        "select s.run_id, '', 'input' from input_submissions s where s.status = 'pending' and not exists "
        "(select 1 from workflow_dispatch_events e where e.run_id = s.run_id and e.processed_at is null) "
        "order by s.id limit {limit}",
        limit=limit,
    )


def awaiting(db: Db, project: str | None = None, limit: int = 1000) -> list[dict[str, Any]]:
    """What waits for a person, the oldest first, up to ``limit``; ``project`` None: of all projects.

    Keys: run_id, workflow, project, node_id, prompt, schema, inputs (resolved), since (aware), submitted (an answer is
    in flight). Reads only what waits, however long the history is.
    """
    if db.kind == "postgresql":
        asked = "jsonb_path_query_first(r.graph, '$.nodes[*] ? (@.id == $id).input', jsonb_build_object('id', j.node_id))::text"
    else:
        asked = (
            "(select json_extract(n.value, '$.input') from json_each(r.graph, '$.nodes') n "
            "where json_extract(n.value, '$.id') = j.node_id)"
        )
    rows = db.all(
        f"select j.run_id, r.workflow_name, j.project, j.node_id, j.inputs, j.created_at, {asked} as asked, "
        "(select 1 from input_submissions s where s.run_id = j.run_id and s.node_id = j.node_id "
        "and s.status = 'pending') as submitted from workflow_node_jobs j join workflow_runs r on r.id = j.run_id "
        f"where j.status = 'awaiting_input' and r.status in {LIVE_RUN} and ({{every}} = 1 or j.project = {{project}}) "
        "order by j.created_at, j.id limit {limit}",
        every=1 if project is None else 0,
        project=project or "",
        limit=limit,
    )
    found = []
    for row in rows:
        asked_for = json.loads(row["asked"] or "{}")
        found.append(
            {
                "run_id": str(row["run_id"]),
                "workflow": row["workflow_name"],
                "project": row["project"],
                "node_id": row["node_id"],
                "prompt": asked_for.get("prompt", ""),
                "schema": asked_for.get("schema", {}),
                "inputs": row["inputs"],
                "since": row["created_at"],
                "submitted": row["submitted"] is not None,
            }
        )
    return found
