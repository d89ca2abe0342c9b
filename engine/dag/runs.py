"""Runs as rows: submitting a graph, moving it on, ending it.

:func:`advance` is the only way in which a run moves on. It looks at the present state under the run's row lock and
does what is missing, so that it may be called by anyone, any number of times, for any event or none.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from engine import registry
from engine.dag.dispatch import Decision, decide, wanted
from engine.dag.graph import Graph, Node, parse_graph
from engine.dag.outputs import Outputs
from engine.errors import BadInput, GraphError, NotAllowed, NotFound
from engine.queue import events, inputs
from engine.queue.ends import cancel_rows, end_run
from engine.queue.enqueue import PRIORITY_LIMIT, insert_node_jobs
from engine.queue.family import NODE
from engine.queue.texts import clean_text, encode_payload, payload_limit, project_name
from engine.store import Db

log = logging.getLogger("engine.dag")

LIVE = ("queued", "running")


@dataclass
class GraphCache:
    """Parsed graphs by run id (a run's graph never changes), the least used dropped beyond ``max_nodes`` nodes."""

    max_nodes: int = 50_000
    _graphs: OrderedDict[int, Graph] = field(default_factory=OrderedDict)
    _nodes: int = 0

    def get(self, db: Db, run_id: int) -> Graph:
        """The graph of a run, read when it is not here. Raises GraphError."""
        graph = self._graphs.get(run_id)
        if graph is None:
            graph = parse_graph(db.value("select graph from workflow_runs where id = {id}", id=run_id))
            self._graphs[run_id] = graph
            self._nodes += len(graph.order)
            while self._nodes > self.max_nodes and len(self._graphs) > 1:
                _, dropped = self._graphs.popitem(last=False)
                self._nodes -= len(dropped.order)
        self._graphs.move_to_end(run_id)
        return graph

    def forget(self, run_id: int) -> None:
        if graph := self._graphs.pop(run_id, None):
            self._nodes -= len(graph.order)


def submit_run(
    db: Db,
    graph_or_name: Any,
    context: Mapping[str, Any] | None = None,
    priority: int = 100,
    project: str | None = None,
) -> int:
    """Insert a run and its first nodes, in the caller's transaction if there is one; the run's id.

    ``graph_or_name``: a graph (an object or its JSON text), or the name of a registered workflow. Lower priorities go
    sooner. Raises GraphError, PayloadError, BadInput, NotFound (unknown workflow) before anything is written.
    """
    value, known_as = _graph_of(graph_or_name)
    graph = parse_graph(value)
    if context is not None and not isinstance(context, Mapping):
        raise BadInput(f"context must be an object, got {type(context).__name__}")
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > PRIORITY_LIMIT:
        raise BadInput(f"priority must be a whole number within {PRIORITY_LIMIT:,} of zero, got {priority!r}")
    graph_json = encode_payload(json.loads(value) if isinstance(value, str) else value, f"graph {graph.name!r}")
    context_json = encode_payload(dict(context or {}), "context")
    where = project_name(project)
    row = {
        "name": clean_text(graph.name or known_as, 200),
        "graph": graph_json,
        "priority": priority,
        "context": context_json,
        "project": where,
    }
    try:
        with db.transaction():
            run_id = _insert_run(db, row)
            cache = GraphCache()
            cache._graphs[run_id] = graph
            advance(db, run_id, cache)
    except NotAllowed:
        # Who may submit may not end what cannot begin (a node without its inputs): the run stands, and the orchestrator,
        # which looks for runs without a node, moves it on. Who may not submit is refused here again.
        run_id = _insert_run(db, row)
        log.info("run %s: its first nodes are left to the orchestrator", run_id)
    return run_id


def _insert_run(db: Db, row: Mapping[str, Any]) -> int:
    return int(
        db.value(
            "insert into workflow_runs (workflow_name, graph, priority, context, project) "
            "values ({name}, {graph}{json}, {priority}, {context}{json}, {project}) returning id",
            **row,
        )
    )


def _graph_of(graph_or_name: Any) -> tuple[Any, str]:
    """The graph, and the name by which it was asked for."""
    if not isinstance(graph_or_name, str) or graph_or_name.lstrip().startswith("{"):
        return graph_or_name, ""
    if graph_or_name in registry.workflows:
        return registry.workflows[graph_or_name], graph_or_name
    if (graph := registry.call_hook("workflow_provider", graph_or_name)) is not None:
        return graph, graph_or_name
    known = ", ".join(sorted(registry.workflows)[:20]) or "none"
    raise NotFound(f"workflow {graph_or_name!r} is not registered (known: {known})")


Outcome = Literal["advanced", "over", "busy", "gone"]


def advance(db: Db, run_id: int, graphs: GraphCache, event_ids: Sequence[int] = (), answered: bool = False) -> Outcome:
    """Do in one transaction what the run needs now, and close the outbox events that led here.

    ``over``: the run had ended before; ``busy``: another session holds the run, nothing was done; ``gone``: no such
    run. Statements per call are bounded, whatever the size of the graph. ``answered``: one of the events is human input.
    """
    with db.transaction():
        run = db.one(
            f"select id, status, priority, project from workflow_runs where id = {{id}} {_lock_or_skip(db)}", id=run_id
        )
        if run is None:
            if db.value("select 1 from workflow_runs where id = {id}", id=run_id):
                return "busy"
            outcome: Outcome = "gone"
            inputs.fail_pending(db, run_id, "there is no such run")
        elif run["status"] in LIVE:
            _move_on(db, run, graphs, answered)
            outcome = "advanced"
        else:
            outcome = "over"
            inputs.fail_pending(db, run_id, f"the run was {run['status']} before the input reached its node")
        if outcome != "gone":
            close_runs(db, run_id)
        if event_ids:
            _mark_processed(db, event_ids)
    if outcome != "advanced":
        graphs.forget(run_id)
    return outcome


def _lock_or_skip(db: Db) -> str:
    """The run's row lock: nobody waits for it (the work comes round again), and inserting nodes does not conflict."""
    return "for no key update skip locked" if db.kind == "postgresql" else ""


def _move_on(db: Db, run: Mapping[str, Any], graphs: GraphCache, answered: bool) -> None:
    run_id = run["id"]
    try:
        graph = graphs.get(db, run_id)
    except GraphError as error:  # written by somebody who did not validate it
        end_run(db, run_id, "failed", f"the graph is not valid: {error}")
        return
    rows = db.all("select node_id, status from workflow_node_jobs where run_id = {run_id}", run_id=run_id)
    statuses = {row["node_id"]: row["status"] for row in rows}
    if answered or "awaiting_input" in statuses.values():
        statuses |= inputs.answer_waiting(db, run_id)
    context: Any = None
    while True:
        wants = wanted(graph, statuses)
        if wants.context and context is None:
            context = db.value("select context from workflow_runs where id = {id}", id=run_id)
        decision = decide(
            graph,
            statuses,
            context if isinstance(context, Mapping) else {},
            Outputs(db, run_id, wants.outputs),
            encode_payload,
            payload_limit(),
        )
        _write(db, run, decision)
        statuses |= {node.id: _status(node) for node, _ in decision.ready}
        if not decision.more:
            break
        statuses |= {node.id: "skipped" for node in decision.skipped}
    if decision.lost:
        _end_lost(db, run_id, decision.lost[0], statuses[decision.lost[0]])
    elif decision.failed:
        node, reason = decision.failed[0]
        end_run(db, run_id, "failed", f"node {node.id!r} failed: {reason}")
    elif decision.complete:
        _complete(db, run_id)
    elif run["status"] == "queued" and not _BEGUN.isdisjoint(statuses.values()):
        mark_started(db, run_id)


_BEGUN = frozenset(("running", "completed", "awaiting_input"))


def _status(node: Node) -> str:
    return "queued" if node.input is None else "awaiting_input"


def _write(db: Db, run: Mapping[str, Any], decision: Decision) -> None:
    """Insert the rows of a decision; a row that is there already stays as it is."""
    insert_node_jobs(
        db,
        [_row(run, node, inputs=text, status=_status(node)) for node, text in decision.ready]
        + [_row(run, node, status="skipped") for node in decision.skipped],
    )
    for node, reason in decision.failed:
        row = db.one(
            "insert into workflow_node_jobs (run_id, node_id, node, queue, required_model, status, error, priority, "
            "max_attempts, project, finished_at) values ({run_id}, {node_id}, {node}, {queue}, {required_model}, "
            "'failed', {error}, {priority}, {max_attempts}, {project}, {now}) "
            "on conflict (run_id, node_id) do nothing returning *",
            **{
                key: value
                for key, value in _row(run, node).items()
                if key not in ("budget_s", "avoid_boxes", "only_boxes")
            },
            error=clean_text(reason),
        )
        if row is not None:
            events.record_for(db, NODE, row, "failed", detail={"error": reason})


def _row(run: Mapping[str, Any], node: Node, **more: Any) -> dict[str, Any]:
    return {
        "run_id": run["id"],
        "node_id": node.id,
        "node": node.node,
        "queue": node.queue,
        "required_model": node.model,
        "priority": run["priority"],
        "max_attempts": node.max_attempts,
        "budget_s": node.budget_s,
        "avoid_boxes": list(node.avoid_boxes),
        "only_boxes": list(node.only_boxes),
        "project": run["project"],
        **more,
    }


def _end_lost(db: Db, run_id: int, node_id: str, status: str) -> None:
    """A node ended as failed or cancelled: so does the run, with that node's reason."""
    if status == "cancelled":
        end_run(db, run_id, "cancelled", f"node {node_id!r} was cancelled")
        return
    error = db.value(
        "select error from workflow_node_jobs where run_id = {run_id} and node_id = {node_id}",
        run_id=run_id,
        node_id=node_id,
    )
    end_run(db, run_id, "failed", f"node {node_id!r} failed: {error or 'no reason given'}")


def _complete(db: Db, run_id: int) -> None:
    db.run(
        "update workflow_runs set status = 'completed', finished_at = {now}, started_at = coalesce(started_at, "
        "(select min(j.started_at) from workflow_node_jobs j where j.run_id = {id}), {now}) "
        "where id = {id} and status in ('queued', 'running')",
        id=run_id,
    )


def mark_started(db: Db, run_id: int) -> None:
    """The run's first node has begun (and may have ended). Guarded: only a queued run becomes running."""
    db.run(
        "update workflow_runs set status = 'running', started_at = coalesce(started_at, "
        "(select min(j.started_at) from workflow_node_jobs j where j.run_id = {id}), {now}) "
        "where id = {id} and status = 'queued'",
        id=run_id,
    )


def mark_all_started(db: Db) -> int:
    """Every queued run with a node that runs becomes running; how many. Reads only what runs now."""
    return db.run(
        "update workflow_runs set status = 'running', started_at = coalesce(started_at, "
        "(select min(j.started_at) from workflow_node_jobs j where j.run_id = workflow_runs.id), {now}) "
        "where status = 'queued' and id in (select run_id from workflow_node_jobs "
        "where status = 'running' and started_at is not null)"
    )


def close_runs(db: Db, run_id: int | None = None) -> int:
    """Set ``finished_at`` of failed and cancelled runs whose last node has ended; of one run or of all. How many."""
    return db.run(
        # A scalar subquery: the planner cannot turn it into a join over the whole history.
        "update workflow_runs set finished_at = {now} where status in ('failed', 'cancelled') and finished_at is null "
        "and (select 1 from workflow_node_jobs j where j.run_id = workflow_runs.id "
        "and j.status in ('queued', 'running', 'awaiting_input') limit 1) is null "
        + ("" if run_id is None else "and id = {id}"),
        id=run_id,
    )


def look_again(db: Db, *, unexpanded: bool, limit: int = 1000) -> int:
    """Put an outbox event behind live runs that nothing would move on otherwise; how many.

    ``unexpanded``: runs without a single node (inserted by plain SQL), else runs without an open node (a graph whose
    last event was lost, a node that was cancelled on its own). From there on they take the ordinary way, with its
    retries and its end. The first also does so for human input that somebody inserted by plain SQL.
    """
    still_open = "" if unexpanded else "and j.status in ('queued', 'running', 'awaiting_input') "
    unheard = inputs.look_again(db, limit) if unexpanded else 0
    return unheard + db.run(
        "insert into workflow_dispatch_events (run_id, node_id, kind) "
        "select r.id, '', 'skipped' from workflow_runs r where r.status in ('queued', 'running') "
        f"and (select 1 from workflow_node_jobs j where j.run_id = r.id {still_open}limit 1) is null "
        "and not exists (select 1 from workflow_dispatch_events e where e.run_id = r.id and e.processed_at is null) "
        "order by r.id limit {limit}",
        limit=limit,
    )


def end_leftovers(db: Db, limit: int = 2000) -> int:
    """Cancel queued nodes under a run that is over, and ask running ones to stop; how many rows.

    Ending a run does this by itself; this is for runs that were ended by plain SQL.
    """
    with db.transaction():
        rows = db.all(
            "select j.id, j.status, j.claimed_box, j.queue from workflow_runs r cross join workflow_node_jobs j "
            "where j.run_id = r.id and r.status in ('failed', 'cancelled') and r.finished_at is null and (j.status in "
            "('queued', 'awaiting_input') or (j.status = 'running' and not j.cancel_requested)) "
            f"limit {{limit}} {'for update of j skip locked' if db.kind == 'postgresql' else ''}",
            limit=limit,
        )
        cancel_rows(db, NODE, [row["id"] for row in rows if row["status"] != "running"], "the run is over")
        if running := [row for row in rows if row["status"] == "running"]:
            db.run(
                "update workflow_node_jobs set cancel_requested = {true} where id {any[ids]} and status = 'running'",
                ids=[row["id"] for row in running],
            )
            for box, queue in sorted({(row["claimed_box"] or "*", row["queue"]) for row in running}):
                db.notify("worker_control", f"{box}:{queue}")
    return len(rows)


def _mark_processed(db: Db, event_ids: Sequence[int]) -> int:
    return db.run(
        "update workflow_dispatch_events set processed_at = {now} where id {any[ids]} and processed_at is null",
        ids=list(event_ids),
    )
