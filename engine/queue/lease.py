"""What a lane does to the rows it holds while they run: renew, look, report progress, begin. All fenced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.errors import ConfigError
from engine.queue.claim_sql import KEEP_GENERATED
from engine.queue.family import Family
from engine.queue.texts import clean_text
from engine.queue.workers import Worker
from engine.store import Db

PROGRESS_TEXT_LIMIT = 500


def check_lease(lease_s: float, renew_s: float) -> None:
    """A lease must outlive two missed renewals, or live jobs run twice. Raises ConfigError."""
    if not lease_s > 0 or not renew_s > 0:
        raise ConfigError(f"lease ({lease_s:g} s) and renewal ({renew_s:g} s) must be positive")
    if renew_s > lease_s / 3:
        raise ConfigError(
            f"a lease of {lease_s:g} s renewed every {renew_s:g} s is too short: "
            f"the renewal may be at most a third of the lease ({lease_s / 3:g} s)"
        )


@dataclass
class Renewal:
    """The answer to a renewal. An id in none of ``renewed`` and ``lost`` was locked by somebody: try again next time."""

    renewed: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    cancel: set[int] = field(default_factory=set)
    kill: set[int] = field(default_factory=set)


def renew(db: Db, worker: Worker, held: Mapping[int, int], lease_s: float) -> Renewal:
    """Extend the lease of every held row ``{id: fencing_token}`` by ``lease_s`` seconds from now.

    One statement; rows that it did not touch get a second look, because SKIP LOCKED also passes over rows that are
    just being finished or probed. Without SKIP LOCKED and the order a renewal deadlocks with the finish.
    """
    answer = Renewal()
    if not held:
        return answer
    table = worker.family.table
    rows = db.all(
        f"update {table} as j set {_keep(db)}lease_expires_at = {{after[lease_s]}} where id in (select j.id from {table} j "
        f"where j.id {{any[ids]}} and j.status = 'running' and j.claimed_by = {{owner}} and {_fence(db)} "
        "order by j.id {skip_locked}) returning id, cancel_requested, kill_requested",
        lease_s=float(lease_s),
        owner=worker.owner,
        **_held(db, held),
    )
    answer.renewed = {row["id"] for row in rows}
    untouched = {job_id: token for job_id, token in held.items() if job_id not in answer.renewed}
    if untouched:
        seen = _look(db, worker.family, untouched)
        answer.lost = _lost(worker, untouched, seen)
        rows = [*rows, *(row for row in seen if row["id"] not in answer.lost)]
    answer.cancel = {row["id"] for row in rows if row["cancel_requested"]}
    answer.kill = {row["id"] for row in rows if row["kill_requested"]}
    return answer


def flags(db: Db, worker: Worker, held: Mapping[int, int]) -> tuple[set[int], set[int], set[int]]:
    """A look at held rows without touching them: which are to be cancelled, which killed, which are lost."""
    if not held:
        return set(), set(), set()
    seen = _look(db, worker.family, held)
    lost = _lost(worker, held, seen)
    ours = [row for row in seen if row["id"] not in lost]
    return (
        {row["id"] for row in ours if row["cancel_requested"]},
        {row["id"] for row in ours if row["kill_requested"]},
        lost,
    )


def owned(db: Db, worker: Worker) -> dict[int, int]:
    """Every running row of this incarnation, ``{id: fencing_token}``.

    After a connection that died inside a claim, the rows that are here and not in the lane's hands are the ones whose
    answer was lost: hand them back.
    """
    rows = db.all(
        f"select id, fencing_token from {worker.family.table} where queue = {{queue}} and project = {{project}} "
        "and status = 'running' and claimed_by = {owner}",
        queue=worker.queue,
        project=worker.project,
        owner=worker.owner,
    )
    return {row["id"]: row["fencing_token"] for row in rows}


def progress(db: Db, worker: Worker, reports: Iterable[tuple[int, int, float | None, str | None]]) -> set[int]:
    """Write progress ``(id, fencing_token, percent, text)``. Returns the ids that are no longer this lane's.

    The owner is asked for beside the fence: see UNSYNCED in claim_sql.
    """
    lost = set()
    rows = sorted(reports, key=lambda report: report[0])
    with db.transaction():
        for job_id, token, percent, text in rows:
            touched = db.run(
                f"update {worker.family.table} as j set {_keep(db)}progress_pct = {{percent}}, progress_text = {{note}} "
                "where id = {id} and fencing_token = {token} and status = 'running' and claimed_by = {owner}",
                id=job_id,
                owner=worker.owner,
                token=token,
                percent=None if percent is None else min(100.0, max(0.0, float(percent))),
                note=clean_text(text, PROGRESS_TEXT_LIMIT),
            )
            if not touched and not _completed_itself(db, worker.family, job_id, token):
                lost.add(job_id)
    return lost


def begin(db: Db, worker: Worker, held: Mapping[int, int]) -> set[int]:
    """Set started_at on rows that were claimed ahead and start now. Returns the ids that are lost: do not start those."""
    if not held:
        return set()
    table = worker.family.table
    lock = "for update" if db.kind == "postgresql" else ""
    rows = db.all(
        f"update {table} as j set {_keep(db)}started_at = coalesce(started_at, {{now}}) where id in (select j.id from {table} j "
        f"where j.id {{any[ids]}} and j.status = 'running' and j.claimed_by = {{owner}} and {_fence(db)} "
        f"order by j.id {lock}) returning id",
        owner=worker.owner,
        **_held(db, held),
    )
    begun = {row["id"] for row in rows}
    return {id for id in held if id not in begun and not _completed_itself(db, worker.family, id, held[id])}


def _completed_itself(db: Db, family: Family, job_id: int, token: int) -> bool:
    """The attempt committed its own completion (complete_job) and goes on for a moment: it is over, but not lost."""
    row = db.one(f"select status, fencing_token from {family.table} where id = {{id}}", id=job_id)
    return row is not None and row["status"] == "completed" and row["fencing_token"] == token


def _keep(db: Db) -> str:
    """See KEEP_GENERATED; SQLite would write its index anew instead."""
    return f"{KEEP_GENERATED}, " if db.kind == "postgresql" else ""


def _fence(db: Db) -> str:
    """The pair (id, token) is one of those that are held."""
    if db.kind == "postgresql":
        return "(j.id, j.fencing_token) in (select * from unnest({ids}::bigint[], {tokens}::bigint[]))"
    return "j.fencing_token = json_extract({by_id}, '$.\"' || j.id || '\"')"


def _held(db: Db, held: Mapping[int, int]) -> dict[str, Any]:
    if db.kind == "postgresql":
        return {"ids": list(held), "tokens": list(held.values())}
    return {"ids": list(held), "by_id": {str(job_id): token for job_id, token in held.items()}}


def _look(db: Db, family: Family, held: Mapping[int, int]) -> list[dict[str, Any]]:
    return db.all(
        "select id, status, fencing_token, claimed_by, cancel_requested, kill_requested "
        f"from {family.table} where id {{any[ids]}}",
        ids=list(held),
    )


def _lost(worker: Worker, held: Mapping[int, int], seen: Iterable[Mapping[str, Any]]) -> set[int]:
    ours = {
        row["id"]
        for row in seen
        if row["status"] in ("running", "completed")  # by itself, see complete_job: nobody else has it
        and row["fencing_token"] == held[row["id"]]
        and row["claimed_by"] == worker.owner
    }
    return set(held) - ours
