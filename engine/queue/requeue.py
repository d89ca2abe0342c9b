"""Work that comes back: to the front of the queue, or, when its retries are spent, to its end. All fenced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from engine import config
from engine.errors import BadInput
from engine.queue import events, outbox
from engine.queue.family import LIVE_RUN, Family, for_update
from engine.queue.texts import clean_text
from engine.queue.workers import Worker
from engine.store import Db

FRONT = 10  # the priority of work that comes back, unless its own is more urgent

# What each cause spends, and in words.
_SPENDS = {
    "executor_died": "watchdog_retries",
    "trip": "watchdog_retries",
    "lane_lost": "losses",
    "lease_lapsed": "losses",
}
_WORDS = {
    "executor_died": "the executor died",
    "trip": "a watchdog killed it",
    "lane_lost": "the lane was lost",
    "lease_lapsed": "the lease lapsed",
    "operator_stop": "stopped by an operator",
    "drain": "the lane shut down",
    "handed_back": "it never began",
}
_SHUNS = ("trip", "lane_lost", "lease_lapsed")


@dataclass
class Requeued:
    """What became of each job; ``stale``: the claim was no longer the one that was meant, nothing changed."""

    queued: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)
    stale: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Verdict:
    """What is to become of one job that came back: its status, and the counter that its return spends."""

    status: str  # "queued" | "failed" | "cancelled"
    spends: str | None
    error: str | None


def judge(
    row: Mapping[str, Any], cause: str, exit_code: int | None, reason: str | None, caps: Mapping[str, int]
) -> Verdict:
    """The policy for every return. ``row``: the counters, cancel_requested, and ``run_over`` (its run has ended)."""
    if row["cancel_requested"] or row["run_over"]:
        return Verdict("cancelled", None, "the run is over" if row["run_over"] else "cancelled while it ran")
    spends = _SPENDS.get(cause)
    if spends is None or row[spends] < caps[spends]:
        return Verdict("queued", spends, None)
    text = _WORDS[cause]
    if exit_code is not None and not (reason or "").startswith(f"{exit_code}:"):  # a signal's text names it already
        text += f" (exit {exit_code})"
    if reason:
        text += f": {reason}"
    return Verdict("failed", None, f"{text}; no retries left ({row[spends]} of {caps[spends]} spent)")


def requeue(
    db: Db,
    worker: Worker,
    jobs: Mapping[int, int],
    cause: str,
    *,
    exit_code: int | None = None,
    detail: Mapping[str, Any] | None = None,
) -> Requeued:
    """Give back jobs ``{id: fencing_token}`` that this lane holds; ``cause`` as in job_events.

    Queued again run-next and at priority 10 or better; failed (with the outbox event of a node) at the cap of
    watchdog_retries or losses; cancelled when a cancel was asked for or the run is over. One transaction with the
    events; wakes the queue's lanes. ``detail["reason"]`` is the text that a failed job keeps.
    """
    rows = [{"id": job_id, "fencing_token": token} for job_id, token in jobs.items()]
    return _give_back(db, worker.family, rows, cause, worker=worker, exit_code=exit_code, detail=detail)


def requeue_lost(
    db: Db,
    family: Family,
    rows: Iterable[Mapping[str, Any]],
    cause: str,
    *,
    shun: bool = True,
    exit_code: int | None = None,
    detail: Mapping[str, Any] | None = None,
) -> Requeued:
    """Give back jobs of lanes that are gone, as an observer saw them: rows with id, fencing_token and claimed_by.

    Guarded: still running, the same fence, the same owner; for ``lease_lapsed`` also lease_expires_at as seen and in
    the past, so that a job which completed or was renewed since it was read is left alone.
    """
    return _give_back(db, family, rows, cause, shun=shun, exit_code=exit_code, detail=detail)


def hand_back(db: Db, worker: Worker, jobs: Mapping[int, int], unanswered: bool = False) -> Requeued:
    """Return jobs that never began: attempt, priority and flag as before; the fence stays.

    They were claimed ahead; or the answer to their claim was lost (``unanswered``), and what the row says of its start
    is not so.
    """
    answer = Requeued()
    if not jobs:
        return answer
    family = worker.family
    with db.transaction():
        found = _locked(db, family, list(jobs))
        for row in found:
            if row["fencing_token"] != jobs[row["id"]] or row["claimed_by"] != worker.owner:
                continue
            if row["started_at"] is not None and not unanswered:
                continue
            over = row["cancel_requested"] or row["run_over"]
            db.run(
                f"update {family.table} set status = {{status}}, attempt = attempt - 1, claimed_by = null, started_at = null, "
                "claimed_box = null, claimed_at = null, lease_expires_at = null, kill_requested = {false}, "
                "error = case when {over} then {error} else error end, "
                "finished_at = case when {over} then {now} end where id = {id}",
                id=row["id"],
                over=bool(over),
                status="cancelled" if over else "queued",
                error="the run is over" if row["run_over"] else "cancelled before it began",
            )
            (answer.cancelled if over else answer.queued).add(row["id"])
            events.record_for(
                db,
                family,
                row,
                "cancelled" if over else "requeued",
                cause=None if over else "handed_back",
                box=worker.box,
            )
            if over and family.has_run:
                outbox.emit(db, row["run_id"], row["node_id"], "failed")
        if answer.queued:
            db.notify(family.channel, worker.queue)
    answer.stale = set(jobs) - answer.queued - answer.cancelled
    return answer


def _locked(db: Db, family: Family, ids: list[int]) -> list[dict[str, Any]]:
    """The running ones of these rows, locked in the order of their ids."""
    over = f"not exists (select 1 from workflow_runs r where r.id = j.run_id and r.status in {LIVE_RUN})"
    run = f"j.run_id, j.node_id, {over} as run_over" if family.has_run else "{false} as run_over"
    return db.all(
        f"select j.id, j.status, j.fencing_token, j.attempt, j.queue, j.project, j.claimed_by, j.claimed_box, {run}, "
        "j.cancel_requested, j.watchdog_retries, j.losses, j.started_at, j.claimed_at, j.lease_expires_at, "
        "case when j.lease_expires_at < {clock} then 1 else 0 end as lapsed "
        f"from {family.table} j where j.id {{any[ids]}} and j.status = 'running' order by j.id {for_update(db, 'j')}",
        ids=ids,
    )


def _give_back(
    db: Db,
    family: Family,
    rows: Iterable[Mapping[str, Any]],
    cause: str,
    *,
    worker: Worker | None = None,
    shun: bool = True,
    exit_code: int | None = None,
    detail: Mapping[str, Any] | None = None,
) -> Requeued:
    if cause not in _WORDS:
        raise BadInput(f"unknown cause {cause!r} (known: {', '.join(_WORDS)})")
    answer = Requeued()
    wanted = {row["id"]: row for row in rows}
    if not wanted:
        return answer
    caps = {
        "watchdog_retries": int(config.get("watchdog_retries_cap")),
        "losses": int(config.get("losses_cap")),
    }
    woken: set[str] = set()
    reason = clean_text(str(detail["reason"])) if detail and detail.get("reason") else None
    with db.transaction():
        now = db.now()
        for row in _locked(db, family, list(wanted)):
            seen = wanted[row["id"]]
            if not _same_claim(row, seen, cause, worker):
                continue
            verdict = judge(row, cause, exit_code, reason, caps)
            _settle(db, family, row, verdict, shun=shun and cause in _SHUNS)
            {"queued": answer.queued, "failed": answer.failed, "cancelled": answer.cancelled}[verdict.status].add(
                row["id"]
            )
            evidence = dict(detail or {})
            if verdict.error:
                evidence["error"] = verdict.error
            events.record_for(
                db,
                family,
                row,
                "requeued" if verdict.status == "queued" else verdict.status,
                cause=cause,
                exit_code=exit_code,
                elapsed_s=_elapsed(row, now),
                detail=evidence,
            )
            if verdict.status != "queued" and family.has_run:
                outbox.emit(db, row["run_id"], row["node_id"], "failed")
            if verdict.status == "queued":
                woken.add(row["queue"])
        for queue in sorted(woken):
            db.notify(family.channel, queue)
    answer.stale = set(wanted) - answer.queued - answer.failed - answer.cancelled
    return answer


def _same_claim(row: Mapping[str, Any], seen: Mapping[str, Any], cause: str, worker: Worker | None) -> bool:
    if row["fencing_token"] != seen["fencing_token"]:
        return False
    if worker is not None:
        return bool(row["claimed_by"] == worker.owner)
    if row["claimed_by"] != seen["claimed_by"]:
        return False
    return cause != "lease_lapsed" or bool(row["lapsed"] and row["lease_expires_at"] == seen["lease_expires_at"])


def _settle(db: Db, family: Family, row: Mapping[str, Any], verdict: Verdict, shun: bool) -> None:
    if verdict.status != "queued":
        db.run(
            f"update {family.table} set status = {{status}}, error = {{error}}, finished_at = {{now}}, "
            "lease_expires_at = null, kill_requested = {false} where id = {id}",
            id=row["id"],
            status=verdict.status,
            error=clean_text(verdict.error),
        )
        return
    spend = f"{verdict.spends} = {verdict.spends} + 1, " if verdict.spends else ""
    lost = "last_lost_box = claimed_box, last_lost_at = {now}, " if shun else ""
    db.run(
        f"update {family.table} set status = 'queued', {spend}{lost}is_priority = {{true}}, "
        f"priority = case when priority > {FRONT} then {FRONT} else priority end, run_after = null, claimed_by = null, "
        "claimed_box = null, claimed_at = null, lease_expires_at = null, started_at = null, progress_pct = null, "
        "progress_text = null, kill_requested = {false} where id = {id}",
        id=row["id"],
    )


def _elapsed(row: Mapping[str, Any], now: datetime) -> float | None:
    began = row["started_at"] or row["claimed_at"]
    return None if began is None else max(0.0, (now - began).total_seconds())
