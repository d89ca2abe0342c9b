"""What an operator can do to the fleet. Each says what it did, or why it did nothing, and leaves a control_events row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from engine.errors import BadInput, NotFound
from engine.queue import backlog, controls, outbox
from engine.queue.ends import cancel_rows, end_run
from engine.queue.family import INGEST, LIVE_INGEST, Family, find, for_update, row_id
from engine.queue.texts import check_word, clean_text, project_name
from engine.store import Db, Json

__all__ = [
    "Done",
    "cancel_job",
    "cancel_run",
    "cordon",
    "end_run",
    "kill_job",
    "log_control",
    "park",
    "resume",
    "retry_job",
    "run_next",
    "uncordon",
]


@dataclass(frozen=True)
class Done:
    """What an operation changed (rows), in words, and the id that it made, if any."""

    changed: int
    message: str
    id: str | None = None


def park(
    db: Db,
    *,
    box: str,
    queue: str,
    policy: str = "hard",
    project: str | None = None,
    reason: str | None = None,
    until: datetime | None = None,
    requested_by: str | None = None,
) -> Done:
    """Order lanes off; ``box`` and ``queue`` may be ``*``. ``until``: when the order lapses by itself.

    hard: running jobs are killed and queued again at the front. drain: they end, nothing new is taken. Raises BadInput.
    """
    return _order(db, "park", box, queue, "off", policy, project, reason, until, requested_by)


def resume(
    db: Db,
    *,
    box: str,
    queue: str,
    project: str | None = None,
    reason: str | None = None,
    requested_by: str | None = None,
) -> Done:
    """Order lanes on; the newest order counts, so that this also overrides an older cordon for these lanes."""
    return _order(db, "resume", box, queue, "on", "hard", project, reason, None, requested_by)


def cordon(
    db: Db,
    *,
    box: str,
    policy: str = "hard",
    project: str | None = None,
    reason: str | None = None,
    until: datetime | None = None,
    requested_by: str | None = None,
) -> Done:
    """Order every lane of a box off, by one row that :func:`uncordon` removes."""
    return _order(db, "cordon", box, "*", "off", policy, project, reason, until, requested_by)


def uncordon(db: Db, *, box: str, project: str | None = None, requested_by: str | None = None) -> Done:
    """Remove the order for a whole box, so that earlier orders for its lanes count again."""
    check_word(box, "box")
    project, requested_by = project_name(project), clean_text(requested_by)
    with db.transaction():
        if controls.clear_order(db, box, "*", project):
            off = [
                lane["queue"]
                for lane in _lanes(db, box, "*", project)
                if controls.order_for(db, lane["box"], lane["queue"], project).desired == "off"
            ]
            rest = f"; still off by an order of its own: {', '.join(sorted(set(off)))}" if off else ""
            done = Done(1, f"{box} uncordoned{_of(project)}: earlier orders count again{rest}")
        else:
            done = Done(0, f"{box} is not cordoned{_of(project)}: nothing to do")
        log_control(db, "uncordon", done, requested_by, project=project, box=box, queue="*")
    return done


def run_next(db: Db, job_id: int | str, requested_by: str | None = None) -> Done:
    """Flag a queued job to be claimed before everything else, at once. Raises NotFound."""
    with db.transaction():
        family, row = _locked(db, job_id)
        name = _name(row)
        if row["status"] == "queued":
            if row["is_priority"] and row["run_after"] is None:
                done = Done(0, f"{name} is flagged to run next already: nothing to do")
            else:
                db.run(
                    f"update {family.table} set is_priority = {{true}}, run_after = null where id = {{id}}",
                    id=row["id"],
                )
                db.notify("worker_control", f"*:{row['queue']}")  # lanes look at the head of the queue
                db.notify(family.channel, row["queue"])
                done = Done(1, f"{name} runs next on queue {row['queue']}")
        elif row["status"] == "running":
            done = Done(0, f"{name} is running on {row['claimed_box']} already: nothing to do")
        else:
            done = Done(0, f"{name} is {row['status']}: nothing to do")
        _log_job(db, "run_next", done, requested_by, row)
    return done


def cancel_job(db: Db, job_id: int | str, requested_by: str | None = None) -> Done:
    """Cancel a queued job at once; ask a running one to stop (hard after the lane's grace). Raises NotFound.

    A cancelled node fails its run, as a failed one does.
    """
    with db.transaction():
        family, row = _locked(db, job_id)
        name = _name(row)
        if row["status"] in ("queued", "awaiting_input"):
            by = f" by {requested_by}" if requested_by else ""
            cancel_rows(db, family, [row["id"]], f"cancelled{by} before it ran", requested_by)
            if family.has_run:
                outbox.emit(db, row["run_id"], row["node_id"], "failed")
            done = Done(1, f"{name} cancelled; it had not begun")
        elif row["status"] == "running":
            if row["cancel_requested"]:
                done = Done(0, f"{name} was asked to stop already: nothing to do")
            else:
                db.run(f"update {family.table} set cancel_requested = {{true}} where id = {{id}}", id=row["id"])
                _wake(db, row)
                done = Done(1, f"{name} is running on {row['claimed_box']}: asked to stop")
        else:
            done = Done(0, f"{name} is {row['status']} already: nothing to cancel")
        _log_job(db, "cancel_job", done, requested_by, row)
    return done


def kill_job(db: Db, job_id: int | str, requested_by: str | None = None) -> Done:
    """Have the executor of a running job killed; the job is queued again at the front, nothing spent. Raises NotFound."""
    with db.transaction():
        family, row = _locked(db, job_id)
        name = _name(row)
        if row["status"] != "running":
            done = Done(0, f"{name} is {row['status']}, it has no executor: nothing to kill")
        elif row["kill_requested"]:
            done = Done(0, f"{name} is being killed already: nothing to do")
        else:
            db.run(f"update {family.table} set kill_requested = {{true}} where id = {{id}}", id=row["id"])
            _wake(db, row)
            done = Done(1, f"{name}: its executor on {row['claimed_box']} is being killed; it will be queued again")
        _log_job(db, "kill_job", done, requested_by, row)
    return done


def retry_job(db: Db, job_id: int | str, requested_by: str | None = None) -> Done:
    """Enqueue a failed or cancelled ingest job once more, as a new job with ``retry_of``. Raises NotFound.

    ``id`` of the answer is the new job's; None when there was nothing to retry, or the queue is full, with the reason. Of
    two that ask at once, one is told about the other's job; once that has ended too, the old one can be retried again.
    """
    with db.transaction():
        family, row = _locked(db, job_id)
        name = _name(row)
        if family is not INGEST:
            done = Done(0, f"{name} is a node of run {row['run_id']}: retry the run instead")
        elif row["status"] not in ("failed", "cancelled"):
            done = Done(0, f"{name} is {row['status']}: only a failed or cancelled job can be retried")
        elif (live := _live_retry(db, row["id"])) is not None:
            done = Done(0, f"{name} is being retried already, as job {live}")
        elif (full := backlog.refusal(db, row["queue"], row["project"], 1)) is not None:
            done = Done(0, f"{name} cannot be retried now: {full}")
        else:
            new = db.value(
                "insert into ingest_jobs (task_name, queue, args, priority, max_attempts, budget_s, only_boxes, "
                "avoid_boxes, project, retry_of) select task_name, queue, args, priority, max_attempts, budget_s, "
                "only_boxes, avoid_boxes, project, id from ingest_jobs where id = {id} returning id",
                id=row["id"],
            )
            done = Done(1, f"{name} enqueued again as job {new}", str(new))
        _log_job(db, "retry_job", done, requested_by, row)
    return done


def _live_retry(db: Db, job_id: int) -> int | None:
    """A retry of this job that has not ended."""
    live = " union all ".join(
        f"select id from ingest_jobs where {which} and retry_of = {{id}}" for which in LIVE_INGEST
    )
    found: int | None = db.value(f"{live} limit 1", id=job_id)
    return found


def cancel_run(db: Db, run_id: int | str, requested_by: str | None = None) -> Done:
    """Cancel a live run: its status changes at once, queued nodes are cancelled, running ones asked to stop.

    Raises NotFound.
    """
    number = row_id(run_id, "run")
    by = f"cancelled by {requested_by}" if requested_by else "cancelled"
    with db.transaction():
        row = db.one("select id, project, status from workflow_runs where id = {id}", id=number)
        if row is None:
            raise NotFound(f"no run {run_id}")
        if end_run(db, number, "cancelled", by, requested_by):
            running = db.value(
                "select count(*) as n from workflow_node_jobs where run_id = {id} and status = 'running'", id=number
            )
            done = Done(1, f"run {number} cancelled" + (f"; {running} running asked to stop" if running else ""))
        else:
            status = db.value("select status from workflow_runs where id = {id}", id=number)
            done = Done(0, f"run {number} is {status} already: nothing to cancel")
        log_control(db, "cancel_run", done, requested_by, project=row["project"], detail={"run_id": str(number)})
    return done


def _order(
    db: Db,
    action: str,
    box: str,
    queue: str,
    desired: str,
    policy: str,
    project: str | None,
    reason: str | None,
    until: datetime | None,
    requested_by: str | None,
) -> Done:
    reason, requested_by = clean_text(reason), clean_text(requested_by)
    check_word(box, "box")
    check_word(queue, "queue")
    if policy not in ("hard", "drain"):
        raise BadInput(f"{action}: policy must be hard or drain, got {policy!r}")
    if until is not None and (not isinstance(until, datetime) or until.tzinfo is None):
        raise BadInput(f"{action}: until must be a time that carries a time zone, got {until!r}")
    project = project_name(project)
    where = f"{_queues(queue)} on {_boxes(box)}{_of(project)}"
    with db.transaction():
        if until is not None and until <= db.now():
            raise BadInput(f"{action}: until {until.isoformat()} is in the past")
        stands = controls.standing(db, box, queue, project)
        if stands and (stands.desired, stands.policy, stands.until) == (desired, policy, until):
            since = f" since {stands.updated_at:%Y-%m-%d %H:%M:%S} UTC" if stands.updated_at else ""
            by = f" by {stands.requested_by}" if stands.requested_by else ""
            done = Done(0, f"{where} ordered {desired} already{since}{by}: nothing to do")
        else:
            controls.set_order(
                db,
                box,
                queue,
                project,
                desired=desired,
                policy=policy,
                reason=reason,
                until=until,
                requested_by=requested_by,
            )
            done = Done(1, f"{where} ordered {desired}{_effect(db, box, queue, project, desired, policy)}")
        log_control(
            db,
            action,
            done,
            requested_by,
            project=project,
            box=box,
            queue=queue,
            policy=policy if desired == "off" else None,
            detail={"reason": reason, "until": until.isoformat() if until else None},
        )
    return done


def _effect(db: Db, box: str, queue: str, project: str, desired: str, policy: str) -> str:
    lanes = _lanes(db, box, queue, project)
    if not lanes:
        others = db.all(
            "select distinct project from worker_heartbeats where ({box} = '*' or box = {box}) "
            "and ({queue} = '*' or queue = {queue}) order by project",
            box=box,
            queue=queue,
        )
        there = ", ".join(row["project"] or "none" for row in others)
        more = f"; lanes there are of project {there} (--project)" if there else ""
        return f"; no such lane has reported yet, the order stands for when it does{more}"
    busy = sum(lane["busy"] for lane in lanes)
    text = f" ({policy})" if desired == "off" else ""
    text += f": {len(lanes)} {'lane' if len(lanes) == 1 else 'lanes'}"
    if desired == "off" and busy:
        jobs = "1 running job" if busy == 1 else f"{busy} running jobs"
        text += f", {jobs} {'will finish first' if policy == 'drain' else 'back to the front of the queue'}"
    return text


def _lanes(db: Db, box: str, queue: str, project: str) -> list[dict[str, Any]]:
    return db.all(
        "select box, queue, busy from worker_heartbeats where ({box} = '*' or box = {box}) "
        "and ({queue} = '*' or queue = {queue}) and project = {project} order by box, queue",
        box=box,
        queue=queue,
        project=project,
    )


def _locked(db: Db, job_id: int | str) -> tuple[Family, dict[str, Any]]:
    found = find(db, job_id)
    if found is None:
        raise NotFound(f"no job {job_id}")
    family = found[0]
    row = db.one(f"select * from {family.table} where id = {{id}} {for_update(db)}", id=row_id(job_id))
    if row is None:
        raise NotFound(f"no job {job_id}")
    return family, row


def _wake(db: Db, row: Mapping[str, Any]) -> None:
    db.notify("worker_control", f"{row['claimed_box']}:{row['queue']}")


def _log_job(db: Db, action: str, done: Done, requested_by: str | None, row: Mapping[str, Any]) -> None:
    log_control(
        db,
        action,
        done,
        requested_by,
        project=row["project"],
        box=row["claimed_box"],
        queue=row["queue"],
        detail={"job_id": str(row["id"]), **({"new_id": done.id} if done.id else {})},
    )


def log_control(
    db: Db,
    action: str,
    done: Done,
    requested_by: str | None,
    *,
    project: str,
    box: str | None = None,
    queue: str | None = None,
    policy: str | None = None,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Append to control_events who did what, in the caller's transaction: for every function that an operator calls."""
    kept = {key: value for key, value in (detail or {}).items() if value is not None}
    db.run(
        "insert into control_events (at, project, box, queue, action, policy, requested_by, detail) "
        "values ({clock}, {project}, {box}, {queue}, {action}, {policy}, {requested_by}, {detail})",
        project=project,
        box=box,
        queue=queue,
        action=action,
        policy=policy,
        requested_by=requested_by,
        detail=Json({**kept, "changed": done.changed, "message": done.message}),
    )


def _name(row: Mapping[str, Any]) -> str:
    return f"job {row['id']} ({row.get('node_id') or row.get('task_name')})"


def _queues(queue: str) -> str:
    return "every queue" if queue == "*" else queue


def _boxes(box: str) -> str:
    return "every box" if box == "*" else box


def _of(project: str) -> str:
    return f" (project {project})" if project else ""
