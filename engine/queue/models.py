"""model_orders: what operators want loaded or dropped, and what each lane answered. And the look before a lane locks a GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import BadInput
from engine.queue.operate import Done, log_control
from engine.queue.texts import check_word, clean_text, project_name
from engine.queue.workers import Worker
from engine.store import Db

KEPT_S = 7 * 86400.0  # orders are kept for reading so long
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")
_WORDS = {"load": "preload", "unload": "unload"}


@dataclass(frozen=True)
class ModelOrder:
    """One order as a lane sees it. ``action``: load or unload."""

    id: int
    model: str
    action: str


def order_model(
    db: Db,
    action: str,
    model: str,
    *,
    box: str,
    queue: str = "gpu",
    project: str | None = None,
    requested_by: str | None = None,
) -> Done:
    """Ask lanes to load a model into a free slot, or to drop it; ``box`` and ``queue`` may be ``*``. Good for ten minutes.

    ``id`` of the answer is the order's, under which :func:`answers` tells what the lanes did. Raises BadInput.
    """
    if action not in _WORDS:
        raise BadInput(f"an order about a model is load or unload, not {action!r}")
    if not isinstance(model, str) or not _ID.fullmatch(model):
        raise BadInput(f"{_WORDS[action]}: {model!r} is not a model's id")
    check_word(box, "box")
    check_word(queue, "queue")
    project = project_name(project)
    requested_by = clean_text(requested_by)
    with db.transaction():
        lanes = db.all(
            "select models_known, models_fit from worker_heartbeats where ({box} = '*' or box = {box}) "
            "and ({queue} = '*' or queue = {queue}) and project = {project} and last_seen > {before[fresh_s]}",
            box=box,
            queue=queue,
            project=project,
            fresh_s=30.0,
        )
        db.run("delete from model_orders where expires_at < {before[kept_s]}", kept_s=KEPT_S)
        number = db.value(
            "insert into model_orders (box, queue, project, model, action, requested_by) "
            "values ({box}, {queue}, {project}, {model}, {action}, {requested_by}) returning id",
            box=box,
            queue=queue,
            project=project,
            model=model,
            action=action,
            requested_by=requested_by,
        )
        where = f"{'every queue' if queue == '*' else queue} on {'every box' if box == '*' else box}"
        where += f" (project {project})" if project else ""
        done = Done(
            1, f"{where}: {_WORDS[action]} of model {model} ordered{_chances(action, model, lanes)}", str(number)
        )
        log_control(
            db,
            f"{_WORDS[action]}_model",
            done,
            requested_by,
            project=project,
            box=box,
            queue=queue,
            detail={"model": model, "order_id": str(number)},
        )
    return done


def _chances(action: str, model: str, lanes: Sequence[dict[str, Any]]) -> str:
    """What may be said before any lane has answered."""
    if not lanes:
        return "; no such lane is up, the order stands for ten minutes"
    if action == "unload":
        return ""
    knowing = [lane for lane in lanes if model in lane["models_known"]]
    if not knowing:
        return "; no lane there knows that model"
    if not any(model in lane["models_fit"] for lane in knowing):
        return "; it fits on no device there"
    return ""


def open_orders(db: Db, worker: Worker) -> list[ModelOrder]:
    """The orders that mean this lane and still hold, oldest first."""
    rows = db.all(
        "select id, model, action from model_orders where expires_at > {clock} and box in ({box}, '*') "
        "and queue in ({queue}, '*') and project = {project} order by id",
        box=worker.box,
        queue=worker.queue,
        project=worker.project,
    )
    return [ModelOrder(row["id"], row["model"], row["action"]) for row in rows]


def answer(db: Db, order_id: int, owner: str, text: str) -> None:
    """Write what a lane did about an order, or why it has not yet; a later answer of the same lane replaces it."""
    if db.kind == "postgresql":
        kept = "case when jsonb_typeof(answers) = 'object' then answers else '{{}}' end"
        added = f"{kept} || jsonb_build_object({{owner}}::text, {{said}}::text)"
    else:
        kept = "case when json_valid(answers) then iif(json_type(answers) = 'object', answers, '{{}}') else '{{}}' end"
        added = f"json_patch({kept}, json_object({{owner}}, {{said}}))"
    db.run(f"update model_orders set answers = {added} where id = {{id}}", id=order_id, owner=owner, said=text)


def answers(db: Db, order_id: int | str) -> dict[str, str]:
    """What the lanes said about an order so far: ``box/queue/incarnation`` -> text."""
    found = db.value("select answers from model_orders where id = {id}", id=int(order_id))
    return dict(found) if isinstance(found, dict) else {}


def runs_next(db: Db, worker: Worker, wanted: Sequence[str]) -> bool:
    """Whether a row that wants one of these models ('' = none) is flagged to run next, and so goes before warm ones.

    A loose scan over each model's places, for rows of other boxes may stand in front in any number.
    """
    here = "queue = {queue} and project = {project} and status = 'queued' and run_after is null and model_key = {model}"
    table = worker.family.table
    sql = (
        f"with recursive p(place) as (select min(place) from {table} where {here} union all "
        f"select (select min(place) from {table} where {here} and place > p.place) from p where p.place is not null) "
        f"select 1 as found from p where exists (select 1 from {table} t where {here} and t.place = p.place "
        "and t.band < -500000) limit 1"
    )
    return any(db.value(sql, queue=worker.queue, project=worker.project, model=model) for model in wanted)


def work_waits(db: Db, worker: Worker, wanted: Sequence[str]) -> bool:
    """Whether a row is queued that wants one of these models ('' = none). One descent of the claim's index each.

    It may still be for other boxes: a lane asks this before it locks a device, and only the claim knows for sure.
    """
    return bool(
        wanted
        and db.value(
            f"select 1 as found from {worker.family.table} where queue = {{queue}} and project = {{project}} "
            "and status = 'queued' and model_key {any[wanted]} and (run_after is null or run_after <= {now}) limit 1",
            queue=worker.queue,
            project=worker.project,
            wanted=list(wanted),
        )
    )
