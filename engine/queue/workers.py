"""Lanes as the database knows them: who owns rows, what a lane says of itself, what its predecessor left behind."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.queue.family import Family, family_of_queue
from engine.store import Db, Store
from engine.store.locks import present


@dataclass(frozen=True)
class Worker:
    """One life of one lane."""

    box: str
    queue: str
    project: str
    incarnation: str

    @property
    def owner(self) -> str:
        """What claimed_by holds; the incarnation tells two lives of the same lane apart."""
        return f"{self.box}/{self.queue}/{self.incarnation}"

    @property
    def family(self) -> Family:
        return family_of_queue(self.queue)


def beat(
    db: Db,
    worker: Worker,
    *,
    state: str,
    slots: int,
    busy: int,
    current_model: str | None = None,
    models_known: Sequence[str] = (),
    models_fit: Sequence[str] = (),
    vram_mb: float | None = None,
    last_exit_code: int | None = None,
    last_exit_reason: str | None = None,
    version: str = "",
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Write the lane's heartbeat row. The last exit stays until another one is given."""
    db.run(
        "insert into worker_heartbeats as h (box, queue, project, incarnation, state, slots, busy, current_model, "
        "models_known, models_fit, vram_mb, version, detail, last_seen, flagged_dead_at, last_exit_code, last_exit_reason) "
        "values ({box}, {queue}, {project}, {incarnation}, {state}, {slots}, {busy}, {current_model}, "
        "{models_known}{json}, {models_fit}{json}, {vram_mb}, {version}, {detail}{json}, {clock}, null, {code}, {reason}) "
        "on conflict (box, queue, project) do update set incarnation = excluded.incarnation, state = excluded.state, "
        "slots = excluded.slots, busy = excluded.busy, current_model = excluded.current_model, "
        "models_known = excluded.models_known, models_fit = excluded.models_fit, vram_mb = excluded.vram_mb, "
        "version = excluded.version, detail = excluded.detail, last_seen = excluded.last_seen, flagged_dead_at = null, "
        "last_exit_code = case when excluded.last_exit_code is null and excluded.last_exit_reason is null "
        "then h.last_exit_code else excluded.last_exit_code end, "
        "last_exit_reason = case when excluded.last_exit_code is null and excluded.last_exit_reason is null "
        "then h.last_exit_reason else excluded.last_exit_reason end",
        box=worker.box,
        queue=worker.queue,
        project=worker.project,
        incarnation=worker.incarnation,
        state=state,
        slots=slots,
        busy=busy,
        current_model=current_model,
        models_known=json.dumps(list(models_known)),
        models_fit=json.dumps(list(models_fit)),
        vram_mb=vram_mb,
        version=version,
        detail=json.dumps(dict(detail or {})),
        code=last_exit_code,
        reason=last_exit_reason,
    )


def alone(db: Db, worker: Worker) -> bool:
    """Whether no other life of this lane has given a sign for 45 s: for where no session lock can be held."""
    return not db.value(
        "select count(*) as n from worker_heartbeats where box = {box} and queue = {queue} and project = {project} "
        "and incarnation <> {incarnation} and state <> 'stopping' and last_seen > {clock} - interval '45 seconds'",
        box=worker.box,
        queue=worker.queue,
        project=worker.project,
        incarnation=worker.incarnation,
    )


def free_predecessors(store: Store, db: Db, worker: Worker) -> int:
    """Give back the rows of earlier lives of this very lane whose session is gone. Returns how many.

    For the start of a lane that holds the lane's lock: its own box may take them again at once (no shunning). Rows
    of an incarnation that is still there are left alone.
    """
    from engine.queue.requeue import requeue_lost  # it knows workers

    rows = db.all(
        f"select id, fencing_token, claimed_by from {worker.family.table} "
        "where queue = {queue} and project = {project} and status = 'running' and claimed_box = {box} "
        "and claimed_by <> {owner}",
        queue=worker.queue,
        project=worker.project,
        box=worker.box,
        owner=worker.owner,
    )
    lives = {str(row["claimed_by"]).rsplit("/", 1)[-1] for row in rows}
    if not lives:
        return 0
    alive = present(store, db, lives)
    gone = [row for row in rows if str(row["claimed_by"]).rsplit("/", 1)[-1] not in alive]
    freed = requeue_lost(db, worker.family, gone, "lane_lost", shun=False, detail={"reason": "lane restarted"})
    return len(freed.queued | freed.failed | freed.cancelled)
