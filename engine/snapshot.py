"""The whole fleet as plain data: what the deck draws, what ``fleet_snapshot()`` returns (SPEC, appendix)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from engine.queue.sections import JOB, LANE, SectionReader, Sections, Values
from engine.queue.snapshot import Counts, age, count, job, lane, leader, projects
from engine.store import Db
from engine.telemetry import history
from engine.telemetry.sample import BoxFacts, BoxSample

OK_S = 10.0  # the newest sample may be that old
STALE_S = 30.0  # and the newest sign of life that old, before the box counts as down


Look = tuple[BoxFacts, BoxSample]


def fleet_snapshot(project: str | None = None, db: Db | None = None, look: Look | None = None) -> dict[str, Any]:
    """Everything at this moment; JSON-able: times as ISO text, ids as text. ``project`` None: all of them.

    Opens the configured store unless given a connection. ``look``: a box that was looked at just now, because no
    recorder reports for it. Raises StoreUnavailable, SchemaMismatch.
    """
    if db is None:
        from engine.store import open_store
        from engine.store.migrate import check_schema

        store = open_store()
        with store.connect("snapshot", read_only=True) as own:
            check_schema(store, own)
            return fleet_snapshot(project, own, look)
    newest = history.latest(db)
    facts = history.box_facts(db)
    hour = history.hour(db)
    if look is not None:
        known, sample = look
        facts[sample.box], newest[sample.box] = known, sample
        hour.setdefault(sample.box, []).append(sample)
    found, _ = view(db, project, facts_rows(facts), {box: sample.at for box, sample in newest.items()})
    for box in found["boxes"]:
        del box["at"]  # the snapshot has one time
        now = newest.get(box["box"])
        box["now"] = _offered(now.values()) if now else None
        box["gpus"] = [_offered(gpu.values()) for gpu in now.gpus] if now else []
        box["hour"] = history.hour_summary(hour.get(box["box"], ())).values()
    return jsonable(found)  # type: ignore[no-any-return]


def _offered(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def view(
    db: Db, project: str | None, facts: Mapping[str, Mapping[str, Any]], last: Mapping[str, datetime]
) -> tuple[dict[str, Any], datetime]:
    """The queue's side of the snapshot, box by box, and the database's time.

    ``facts``: see :func:`facts_rows`; ``last``: when each box was sampled last. A box is known by either, or by a lane.
    """
    found, at, _ = FleetView(project).read(db, facts, last)
    return found, at


@dataclass(slots=True)
class _Made:
    """A box's row, and what it was made of."""

    row: dict[str, Any]
    lanes: list[Values]
    jobs: list[Values]
    queued: list[int]
    facts: Mapping[str, Any] | None
    state: str


class FleetView:
    """Reads the view again and again, and makes anew what is different.

    A box of which nothing changed is the same object as before, with the ages of then: they count from its own ``at``.
    """

    def __init__(self, project: str | None = None) -> None:
        self._project = project
        self._reader = SectionReader(project)
        self._before: Sections | None = None
        self._queued: Counts = {}
        self._grouped: dict[str, tuple[list[Values], list[Values]]] = {}  # lanes and jobs by box
        self._projects: list[dict[str, Any]] = []
        self._made: dict[str, _Made] = {}

    def read(
        self, db: Db, facts: Mapping[str, Mapping[str, Any]], last: Mapping[str, datetime]
    ) -> tuple[dict[str, Any], datetime, bool]:
        """As :func:`view`, and whether it says something else than the reading before (ages aside)."""
        found, before = self._reader.read(db), self._before
        counted = before is not None and found.queued is before.queued
        ordered = before is not None and found.orders is before.orders
        if not counted:
            self._queued = count(found)
        if before is None or found.lanes is not before.lanes or found.jobs is not before.jobs:
            self._grouped = _by_box(found)
        if before is None or not (counted and all(getattr(found, part) is getattr(before, part) for part in _PROJECTS)):
            self._projects = projects(found, self._queued, self._project)
        self._before = found
        at, now = found.at, found.at.timestamp()
        iso = at.isoformat()
        names = sorted({*facts, *last, *(name for name in self._grouped if name)}, key=str)
        made, changed = {}, before is None or [*self._made] != names
        for name in names:
            lanes, jobs = self._grouped.get(name, _NOTHING)
            state = _state(now, last.get(name), lanes)
            known = self._made.get(name) if ordered else None
            fact = facts.get(name)
            queued = known.queued if counted and known and len(known.queued) == len(lanes) else self._waiting(lanes)
            if (
                known is not None
                and (known.facts is fact or known.facts == fact)
                and known.state == state
                and known.lanes == lanes
                and known.jobs == jobs
                and known.queued == queued
            ):
                known.facts = fact
                made[name] = known
                continue
            changed = True
            row = {
                "box": name,
                "at": iso,
                "state": state,
                "sample_age_s": None if name not in last else round(max(0.0, (at - last[name]).total_seconds()), 1),
                "simulated": bool((fact or {}).get("simulated")),
                "description": (fact or {}).get("description"),
                "facts": None if fact is None else dict(fact),
                "lanes": [_without_box(lane(row, found.orders, self._queued, now)) for row in lanes],
                "jobs": [job(row, now) for row in jobs],
            }
            made[name] = _Made(row, lanes, jobs, queued, fact, state)
        self._made = made
        changed = changed or before is None or any(getattr(found, part) is not getattr(before, part) for part in _REST)
        return {
            "at": iso,
            "store": db.kind,
            "leader": leader(found),
            "projects": self._projects,
            "queues": [
                {"queue": queue, "project": name, "queued": n}
                for (queue, name), n in sorted(self._queued.items(), key=str)
            ],
            "boxes": [one.row for one in made.values()],
            "events": found.events,
        }, at, changed  # fmt: skip

    def _waiting(self, lanes: list[Values]) -> list[int]:
        return [self._queued.get((row[_QUEUE], row[_PROJECT]), 0) for row in lanes]


_REST = ("leader", "queued", "running", "awaiting", "events")  # what is said of the fleet, not of a box
_PROJECTS = ("running", "awaiting", "lanes")  # and of its projects, besides what is queued
_NOTHING: tuple[list[Values], list[Values]] = ([], [])
_BOX, _QUEUE, _PROJECT, _SEEN = (LANE.index(name) for name in ("box", "queue", "project", "seen"))
_JOBS_BOX = JOB.index("box")


def _by_box(found: Sections) -> dict[str, tuple[list[Values], list[Values]]]:
    grouped: dict[str, tuple[list[Values], list[Values]]] = {}
    for part, (rows, column) in enumerate(((found.lanes, _BOX), (found.jobs, _JOBS_BOX))):
        for row in rows:
            name = row[column] or ""
            if name not in grouped:
                grouped[name] = [], []
            grouped[name][part].append(row)
    return grouped


def _without_box(row: dict[str, Any]) -> dict[str, Any]:
    del row["box"]
    return row


def _state(now: float, sampled: datetime | None, lanes: list[Values]) -> str:
    """``ok``: fresh samples; ``stale``: alive, but its recorder is late; ``down``: silent; ``never``: not heard of yet."""
    since = None if sampled is None else max(0.0, now - sampled.timestamp())
    if since is not None and since <= OK_S:
        return "ok"
    ages = [since, *(age(row[_SEEN], now) for row in lanes)]
    heard = min((one for one in ages if one is not None), default=None)
    if heard is None:
        return "never"
    return "stale" if heard <= STALE_S else "down"


def box_facts(db: Db) -> dict[str, dict[str, Any]]:
    """The rows of ``boxes`` by name."""
    rows = db.all(
        "select box, description, cpu_model, cores, mem_mb, gpus, driver, kernel, simulated, updated_at from boxes"
    )
    return {row.pop("box"): row for row in rows if isinstance(row["box"], str)}  # SQLite takes bytes


def facts_rows(known: Mapping[str, BoxFacts]) -> dict[str, dict[str, Any]]:
    """Boxes' facts as plain data, by name."""
    return {
        box: {f.name: getattr(facts, f.name) for f in fields(facts) if f.name not in ("box", "machine_id", "gpus")}
        | {"gpus": [gpu.values() for gpu in facts.gpus]}
        for box, facts in known.items()
    }


def jsonable(value: Any) -> Any:
    """Times as ISO text in UTC, bytes (SQLite keeps them in any column) as text, what is no finite number as None (JSON has no
    word for it, and a column of numbers may hold it); everything else as it is."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, dict):
        return {jsonable(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
