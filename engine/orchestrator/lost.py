"""Work whose lane is gone: seen by the lane's session mark, by its heartbeat, and at last by the lease.

What proves a death, in the order of speed:

- the mark of a lane's session is missing for ``session_grace_seconds``: kill -9 of a lane, a box without power;
- the heartbeat is older than 42 s and has not moved for 30 s of our own clock: a frozen lane, a lane behind a pooler
  that cannot hold a mark (a live lane beats every 10 s, so a freeze of 30 s loses nothing and a death takes 45 s);
- a lapsed lease that has not moved for 30 s of our own clock: three renewals.

One :class:`LostWork` belongs to one database session of the leader. When that session ends, the server may have
restarted and every mark with it, so a new one starts from nothing and gives no verdict for ``leader_up_seconds``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from engine import config
from engine.errors import StoreUnavailable
from engine.orchestrator.sweeps import Clock, PartlyDone, Sweep, Watch
from engine.queue.family import FAMILIES, Family
from engine.queue.requeue import requeue_lost
from engine.store import Db, Store
from engine.store.locks import present
from engine.store.postgres import PostgresDb, is_pooled

log = logging.getLogger("engine.orchestrator")

TICK_S = 0.5
UNMOVED_S = 30.0  # how long a lease or heartbeat must stand still on our clock before it proves anything
STALE_HEARTBEAT_S = 42.0
FLAG_S = 30.0
RETRY_CAP_S = 60.0


@dataclass
class _Life:
    """One incarnation of a lane, as observed; times are our monotonic seconds."""

    changed: float  # when it last gave a sign of life
    last_seen: datetime | None = None
    lease: datetime | None = None
    missing_since: float | None = None
    markless: bool = False  # it lives without a mark

    def note(self, last_seen: datetime | None, lease: datetime | None, now: float) -> None:
        if last_seen is not None and last_seen != self.last_seen:
            self.last_seen, self.changed = last_seen, now
        if lease is not None and (self.lease is None or lease > self.lease):
            self.lease, self.changed = lease, now

    def mark_gone(self, now: float, grace: float) -> bool:
        """The mark is missing: has it been for long enough, without a sign of life since?"""
        if self.missing_since is None:
            self.missing_since = now
        if self.changed > self.missing_since:
            self.markless = True  # alive, so the missing mark proves nothing; the heartbeat decides
        return not self.markless and now - self.missing_since >= grace


class LostWork:
    """The observer of one leader session."""

    def __init__(self, store: Store, clock: Clock = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._began = clock()
        self._last_tick = self._began
        self._lives: dict[str, _Life] = {}
        self._lapsed = Watch(clock)
        self._put_off: dict[tuple[str, int], tuple[float, int]] = {}
        self._to_flag: dict[str, tuple[datetime, str]] = {}  # by owner: the last heartbeat, what is wrong
        self._pooled: bool | None = None

    def sweeps(self) -> list[Sweep]:
        return [
            Sweep("lost_lanes", TICK_S, self.lost_lanes, self._clock),
            Sweep("lapsed_leases", 2.0, self.lapsed_leases, self._clock),
            Sweep("dead_flags", 2.0, self.dead_flags, self._clock),
        ]

    def lost_lanes(self, db: Db) -> int:
        """Requeue what lanes hold that are gone. The number of jobs."""
        # Marks first: whatever a lane did before its mark went is then visible in what is read after them.
        # A lane that appears below is asked for its mark at the next tick.
        alive = present(self._store, db, self._lives)
        owners = _owners(db)
        beats = {row["incarnation"]: row for row in _heartbeats(db)}
        now = self._clock()
        if now - self._last_tick > 10 * TICK_S:  # we did not look: a mark that is missing now may have been there
            for life in self._lives.values():
                life.missing_since = None
        self._last_tick = now
        settled = now - self._began >= float(config.get("leader_up_seconds"))
        held: dict[str, list[str]] = {}
        for owner in owners:
            held.setdefault(owner.rsplit("/", 1)[-1], []).append(owner)
        lives: dict[str, _Life] = {}
        lost: dict[str, str] = {}
        doubtful: dict[str, tuple[datetime, str]] = {}
        for name in held.keys() | beats.keys():
            lives[name] = life = self._lives.get(name) or _Life(now)
            mine, beat = held.get(name, []), beats.get(name)
            leases = [lease for owner in mine if (lease := owners[owner]) is not None]
            life.note(beat["last_seen"] if beat else None, max(leases, default=None), now)
            reason = None
            if name in alive:
                life.markless, life.missing_since = False, None
            elif (
                name in self._lives
                and self._marks_count(db)
                and life.mark_gone(now, float(config.get("session_grace_seconds")))
            ):
                reason = "its session is gone"
            age = (beat["now_at"] - beat["last_seen"]).total_seconds() if beat else 0.0
            if now - life.changed >= UNMOVED_S and age >= STALE_HEARTBEAT_S:
                reason = reason or f"no heartbeat for {age:.0f} s"
            if reason and settled:
                lost.update(dict.fromkeys(mine, reason))
            overdue = age >= FLAG_S and now - life.changed >= FLAG_S
            if mine and beat and beat["flagged_dead_at"] is None and (overdue or (reason and settled)):
                text = f"{reason or 'no sign of life'}, last heartbeat {age:.0f} s ago"
                doubtful |= dict.fromkeys(mine, (beat["last_seen"], text))
        self._lives = lives
        rows = [
            (family, row) for family in FAMILIES for row in _rows_of(db, family, sorted(lost.keys() | doubtful.keys()))
        ]
        for owner, (last_seen, text) in doubtful.items():
            jobs = sorted(row["id"] for _, row in rows if row["claimed_by"] == owner)
            self._to_flag[owner] = (last_seen, f"{text}, running jobs {', '.join(map(str, jobs[:20])) or 'none'}")
        return self._give_back(
            db,
            [(family, row, "lane_lost", lost[row["claimed_by"]]) for family, row in rows if row["claimed_by"] in lost],
        )

    def _marks_count(self, db: Db) -> bool:
        """Whether a session's locks are its own: behind a pooler they are not, and the heartbeats decide alone."""
        if self._pooled is None:
            self._pooled = isinstance(db, PostgresDb) and is_pooled(db)
            if self._pooled:
                log.warning(
                    "a pooler stands before the database: lost lanes are seen by their heartbeats only, after 45 s"
                )
        return not self._pooled

    def lapsed_leases(self, db: Db) -> int:
        """Requeue what has a lapsed lease that nobody moves. The number of jobs."""
        rows = {(family.name, row["id"]): (family, row) for family in FAMILIES for row in _lapsed_rows(db, family)}
        stood = self._lapsed.look(
            {key: (row["fencing_token"], row["lease_expires_at"]) for key, (_, row) in rows.items()}
        )
        return self._give_back(
            db,
            [
                (
                    family,
                    row,
                    "lease_lapsed",
                    f"lease lapsed at {row['lease_expires_at'].isoformat(timespec='seconds')}",
                )
                for key, (family, row) in rows.items()
                if stood[key] >= UNMOVED_S
            ],
        )

    def dead_flags(self, db: Db) -> int:
        """Flag the heartbeat rows of lanes that look dead and own running work, one log line for each."""
        count = 0
        for owner, (last_seen, text) in self._to_flag.items():
            row = db.one(
                "update worker_heartbeats set flagged_dead_at = {now} where incarnation = {life} "
                "and last_seen = {last_seen} and flagged_dead_at is null returning box, queue, project",
                life=owner.rsplit("/", 1)[-1],
                last_seen=last_seen,
            )
            if row is not None:
                count += 1
                log.warning("lane %s/%s looks dead: %s (project %r)", row["box"], row["queue"], text, row["project"])
        self._to_flag = {}
        return count

    def _give_back(self, db: Db, work: Sequence[tuple[Family, Mapping[str, Any], str, str]]) -> int:
        """Requeue rows. One that fails is put off on its own, with its reason, and keeps no other waiting."""
        now = self._clock()
        self._put_off = {key: value for key, value in self._put_off.items() if value[0] > now - 2 * RETRY_CAP_S}
        count, errors, waiting = 0, [], 0
        groups: dict[tuple[Family, str, str], list[Mapping[str, Any]]] = {}
        for family, row, cause, reason in work:
            if self._put_off.get((family.name, row["id"]), (now, 0))[0] > now:
                waiting += 1
            else:
                groups.setdefault((family, cause, reason), []).append(row)
        for (family, cause, reason), rows in groups.items():
            try:
                count += _requeue(db, family, rows, cause, reason)
                continue
            except Exception as error:
                if isinstance(error, StoreUnavailable) and db.closed:
                    raise
            for row in rows:
                try:
                    count += _requeue(db, family, [row], cause, reason)
                except Exception as error:
                    if isinstance(error, StoreUnavailable) and db.closed:
                        raise
                    tries = self._put_off.get((family.name, row["id"]), (now, 0))[1] + 1
                    self._put_off[family.name, row["id"]] = (now + min(RETRY_CAP_S, 0.5 * 2**tries), tries)
                    errors.append(
                        f"{family.name} job {row['id']}: {type(error).__name__}: {' '.join(str(error).split())}"
                    )
        if errors or waiting:
            raise PartlyDone("; ".join(errors) or f"{waiting} jobs cannot be requeued, trying again later", count)
        return count


def _requeue(db: Db, family: Family, rows: Sequence[Mapping[str, Any]], cause: str, reason: str) -> int:
    done = requeue_lost(db, family, rows, cause, detail={"reason": reason})
    count = len(done.queued | done.failed | done.cancelled)
    if count:
        log.warning(
            "%d %s jobs of %s: %s (%s), %d queued again",
            count,
            family.name,
            ", ".join(sorted({str(row["claimed_by"]) for row in rows})),
            cause,
            reason,
            len(done.queued),
        )
    return count


def _owners(db: Db) -> dict[str, datetime | None]:
    """Who holds running rows, each with its latest lease."""
    rows = db.all(
        "select claimed_by, max(lease_expires_at) as lease_at from ("
        "select claimed_by, lease_expires_at from workflow_node_jobs where status = 'running' and claimed_by is not null "
        "union all select claimed_by, lease_expires_at from ingest_jobs where status = 'running' and claimed_by is not null"
        ") held group by claimed_by"
    )
    # Bytes (which a foreign writer can put into a text of SQLite) name no lane; such a row's lease lapses.
    return {row["claimed_by"]: row["lease_at"] for row in rows if isinstance(row["claimed_by"], str)}


def _heartbeats(db: Db) -> list[dict[str, Any]]:
    return db.all("select incarnation, last_seen, flagged_dead_at, {clock} as now_at from worker_heartbeats")


def _rows_of(db: Db, family: Family, owners: Sequence[str]) -> list[dict[str, Any]]:
    if not owners:
        return []
    return db.all(
        f"select id, fencing_token, claimed_by, lease_expires_at from {family.table} "
        "where status = 'running' and claimed_by {any[owners]}",
        owners=list(owners),
    )


def _lapsed_rows(db: Db, family: Family) -> list[dict[str, Any]]:
    return db.all(
        f"select id, fencing_token, claimed_by, lease_expires_at from {family.table} "
        "where status = 'running' and lease_expires_at < {clock} limit 10000"  # unordered: SQLite would scan the table
    )
