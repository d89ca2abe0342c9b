"""Taking jobs: one statement per claim, exactly once, in the order of the contract."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from engine import config
from engine.queue.claim_sql import claim_statement
from engine.queue.claim_sqlite import take_sqlite
from engine.queue.ends import cancel_orphans
from engine.queue.family import Family
from engine.queue.floor import EXACT, floor_of, is_exact
from engine.queue.workers import Worker
from engine.store import Db

CLASSES_FOR_S = 10.0  # after constrained or scheduled rows were met; then the short form is tried again
EXACT_EVERY_S = 10.0  # how late a job that has waited too long for its model may be found
MAX_LOOK = 1 << 15


@dataclass(frozen=True)
class ClaimRequest:
    """What a lane asks for.

    ``n`` rows at most, leased for ``lease_s`` seconds. ``host_priority`` negative: newest first inside a band. A gpu
    lane names the ``models`` that it knows and that fit; ``model_rows`` and ``free_rows`` say which of the two kinds of
    rows the free slots take; ``loaded_model`` is warm (None: rows without a model are). ``begin`` False: claimed ahead,
    started_at stays null.
    """

    worker: Worker
    n: int
    lease_s: float
    host_priority: int = 0
    models: tuple[str, ...] | None = None
    loaded_model: str | None = None
    affinity_max_wait_s: float = 600.0
    model_rows: bool = True
    free_rows: bool = True
    begin: bool = True

    @property
    def by_model(self) -> bool:
        """Whether rows of this queue may want a model."""
        return self.worker.queue == "gpu"

    @cached_property
    def params(self) -> dict[str, Any]:
        """The parameters of a claim statement."""
        return {
            "queue": self.worker.queue,
            "project": self.worker.project,
            "box": self.worker.box,
            "owner": self.worker.owner,
            "n": self.n,
            "lease_s": float(self.lease_s),
            "shun_s": float(config.get("shun_seconds")),
            "begin": self.begin,
            "models": list(self.wanted_models),
            "loaded": self.loaded_model or "",
            "wait_s": float(self.affinity_max_wait_s),
        }

    @property
    def wanted_models(self) -> tuple[str, ...]:
        """The models whose rows may be taken; '' stands for none."""
        named = tuple(dict.fromkeys(self.models or ())) if self.model_rows else ()
        return (("",) if self.free_rows else ()) + tuple(model for model in named if model)


@dataclass(frozen=True)
class ClaimedJob:
    """One attempt of one job, as claimed. ``payload`` is JSON text, unparsed; ``claimed_mono`` is time.monotonic()."""

    family: Family
    id: int
    fencing_token: int
    attempt: int
    name: str
    run_id: int | None
    node_id: str | None
    payload: str
    required_model: str | None
    priority: int
    is_priority: bool
    project: str
    queue: str
    budget_s: float | None
    failures: int
    max_attempts: int
    watchdog_retries: int
    losses: int
    ahead: bool
    claimed_mono: float


def claim(db: Db, request: ClaimRequest) -> list[ClaimedJob]:
    """Take up to ``n`` jobs, most urgent first. Raises StoreUnavailable."""
    if request.n <= 0:
        return []
    plan = Plan.for_request(db, request)
    began = time.monotonic()
    claimed, more = take(db, request, plan)
    return top_up(db, request, plan, jobs(request, claimed, began), more)


@dataclass(frozen=True)
class Plan:
    """How to look: rows per class, whether each band is opened, whether the short form may do (see claim_sql)."""

    look: int
    bands: bool
    plain: bool = False
    floor: Mapping[str, Any] | None = None  # parameters of the short form that may start behind a row

    @staticmethod
    def for_request(db: Db, request: ClaimRequest) -> Plan:
        look = 8
        while look < 2 * request.n:
            look *= 2
        plain = not request.by_model and request.host_priority >= 0 and time.monotonic() >= _classes_until.get(db, 0.0)
        return Plan(
            look,
            bands=request.host_priority < 0 or (request.by_model and _exact_due(db, request)),
            plain=plain,
            floor=floor_of(db, request.worker).start() if plain else None,
        )

    def shape(self, request: ClaimRequest) -> tuple[bool, bool, bool, int, bool, bool]:
        """Which statement that is, see claim_sql."""
        newest = request.host_priority < 0
        return request.by_model, newest, self.bands, self.look, self.plain, self.floor is not None

    def longer(self, db: Db, request: ClaimRequest) -> Plan:
        """The plan after this one fell short: from the head, by classes for a while, or twice the look."""
        if not is_exact(self.floor):
            return replace(self, floor=EXACT)
        if self.plain:
            _classes_until[db] = time.monotonic() + CLASSES_FOR_S
            return replace(self, plain=False, floor=None)
        return Plan(self.look * 2, bands=self.bands or request.by_model)


# Until when a connection claims by classes, because it met constrained or scheduled rows.
_classes_until: WeakKeyDictionary[Db, float] = WeakKeyDictionary()


# When a connection last made an exact claim by model, for slots of one kind (others are not offered the same rows). The cheap form looks at the head of each model's rows and can
# overlook an aged job behind a more urgent band of its own model; the exact form opens every band (twice the cost).
_exact_at: WeakKeyDictionary[Db, dict[tuple[str | None, tuple[str, ...]], float]] = WeakKeyDictionary()


def _exact_due(db: Db, request: ClaimRequest) -> bool:
    now, kind = time.monotonic(), (request.loaded_model, request.wanted_models)
    made = _exact_at.setdefault(db, {})
    if now - made.get(kind, float("-inf")) < EXACT_EVERY_S:
        return False
    made[kind] = now
    return True


def take(db: Db, request: ClaimRequest, plan: Plan) -> tuple[list[dict[str, Any]], bool]:
    """One look and its claim: the rows taken, in order, and whether looking further may find more."""
    if db.kind == "sqlite":
        with db.transaction():
            return take_sqlite(
                db,
                request.worker.family,
                request.params,
                newest=request.host_priority < 0,
                by_model=request.by_model,
                bands=plan.bands,
                look=plan.look,
            )
    sql = claim_statement(request.worker.family, *plan.shape(request))
    return split(db, request, plan, db.hot(sql, **request.params, **(plan.floor or {})))


def split(
    db: Db, request: ClaimRequest, plan: Plan, rows: Sequence[dict[str, Any]]
) -> tuple[list[dict[str, Any]], bool]:
    """The claimed rows of an answer in their order, and whether it said that there is more."""
    claimed = sorted((row for row in rows if row["kind"] == "claim"), key=lambda row: row["ord"])
    more = any(row["kind"] == "more" for row in rows)
    if plan.floor is not None:
        floor = floor_of(db, request.worker)
        last = next((row for row in rows if row["kind"] == "last"), None)
        floor.learn(plan.floor, last, len(claimed) >= request.n)
        more = more or (floor.owes and is_exact(floor.start()))
    elif more and len(claimed) >= request.n:
        floor_of(db, request.worker).needed()
    return claimed, more


def top_up(db: Db, request: ClaimRequest, plan: Plan, got: list[ClaimedJob], more: bool) -> list[ClaimedJob]:
    """Claim again while slots are free and the look-ahead was used up by rows that could not be taken.

    They are other lanes' (locked, taken meanwhile), shunned, or of runs that are over; the last are cancelled here.
    """
    while more and len(got) < request.n and plan.look < MAX_LOOK:
        worker = request.worker
        orphans = cancel_orphans(db, worker.queue, worker.project) if worker.family.has_run and not plan.plain else 0
        if not orphans:
            plan = plan.longer(db, request)
        rest = replace(request, n=request.n - len(got))
        began = time.monotonic()
        rows, more = take(db, rest, plan)
        got = got + jobs(rest, rows, began)
    return got


def jobs(request: ClaimRequest, rows: Sequence[Mapping[str, Any]], began: float) -> list[ClaimedJob]:
    """Claimed rows as jobs; ``began``: monotonic time before the statement, from which the lease counts at the latest."""
    return [
        ClaimedJob(
            family=request.worker.family,
            id=row["id"],
            fencing_token=row["fencing_token"],
            attempt=row["attempt"],
            name=row["name"],
            run_id=row["run_id"],
            node_id=row["node_id"],
            payload=row["payload"],
            required_model=row["required_model"],
            priority=row["priority"],
            is_priority=bool(row["is_priority"]),
            project=row["project"],
            queue=row["queue"],
            budget_s=row["budget_s"],
            failures=row["failures"],
            max_attempts=row["max_attempts"],
            watchdog_retries=row["watchdog_retries"],
            losses=row["losses"],
            ahead=not request.begin,
            claimed_mono=began,
        )
        for row in rows
    ]
