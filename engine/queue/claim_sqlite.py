"""The claim on SQLite: the same classes and orders, the loose scan in Python inside the write transaction.

SQLite has neither LATERAL nor a round trip to save: a probe of the index costs a few microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.queue.claim_sql import DUE_LOOK
from engine.queue.family import LIVE_RUN, Family
from engine.store import Db

_HERE = "queue = {queue} and project = {project} and status = 'queued' and run_after is null"
_LATER = "queue = {queue} and project = {project} and status = 'queued' and run_after is not null"
_CREATED = "iif(typeof(created_at) = 'text', created_at, '') as created"  # bytes cannot be put in order among texts


@dataclass
class _Scan:
    db: Db
    family: Family
    given: dict[str, Any]
    wanted: list[str]
    by_model: bool
    newest: bool

    def __post_init__(self) -> None:
        self.with_model = " and model_key = {model}" if self.family.has_run else ""
        self.keys = f"id, band, {_CREATED}, " + ("model_key" if self.family.has_run else "'' as model_key")
        self.age = "created_at desc, id desc" if self.newest else "created_at, id"

    def models(self) -> list[str]:
        return self.wanted if self.by_model else [""]

    def classes(self, where: str, by_band: bool) -> Iterator[dict[str, Any]]:
        """One row per class (and band) that this box may take: a loose scan, one probe of the index each.

        A step goes to the next band of the same place, then to the next place: ``(place, band) > (...)`` would walk
        over every equal entry first (98 ms at 100,000).
        """
        for model in self.models():
            found = self._first(where, "", by_band, model=model)
            while found is not None:
                only, avoid, box = found["only_boxes"], found["avoid_boxes"], self.given["box"]
                if (not only or box in only) and box not in avoid:
                    yield {**found, "model_key": model}
                at = {"model": model, "place": found["place"], "band": found["band"]}
                found = self._first(where, "and place = {place} and band > {band}", True, **at) if by_band else None
                found = found or self._first(where, "and place > {place}", by_band, **at)

    def _first(self, where: str, past: str, by_band: bool, **at: Any) -> dict[str, Any] | None:
        order = "place, band, created_at, id" if by_band else "place"
        return self.db.one(
            f"select place, only_boxes, avoid_boxes, band, {_CREATED}, id from {self.family.table} "
            f"where {where}{self.with_model} {past} order by {order} limit 1",
            **self.given,
            **at,
        )

    def rows(self, where: str, order: str, limit: int, **values: Any) -> list[dict[str, Any]]:
        return self.db.all(
            f"select {self.keys} from {self.family.table} where {where}{self.with_model} order by {order} limit {{look}}",
            **self.given,
            look=limit,
            **values,
        )


def take_sqlite(
    db: Db, family: Family, given: dict[str, Any], *, newest: bool, by_model: bool, bands: bool, look: int
) -> tuple[list[dict[str, Any]], bool]:
    """Claim inside the caller's write transaction. The rows in order, and whether looking further may find more."""
    wanted = list(given["models"])
    given = {
        name: value for name, value in given.items() if name != "models"
    }  # bound once per statement: keep it short
    cutoff = db.value("select {before[wait_s]} as cutoff", wait_s=given["wait_s"]) if by_model else ""
    scan = _Scan(db, family, given, wanted, by_model, newest)
    found: list[dict[str, Any]] = []
    more = False
    warm = given["loaded"]

    def urgency(row: dict[str, Any]) -> tuple[bool, bool, int]:
        cold = by_model and row["model_key"] != warm and row["created"] > cutoff
        return (not row["band"] < -500000 if by_model else False, cold, row["band"])

    def look_at(where: str, order: str, limit: int, **values: Any) -> None:
        nonlocal more
        rows = scan.rows(where, order, limit, **values)
        more = more or len(rows) == limit
        found.extend(rows)

    for late in scan.classes(_LATER, by_band=False):
        due = f"{_LATER} and place = {{place}} and run_after <= {{now}}"
        look_at(due, "run_after", DUE_LOOK, place=late["place"], model=late["model_key"])
    classes = list(scan.classes(_HERE, by_band=bands))
    if bands:
        classes.sort(key=lambda row: (*urgency(row), row["created"], row["id"]))
        more = len(classes) > given["n"] + look
        classes = classes[: given["n"] + look]
    for one in classes:
        where, values = f"{_HERE} and place = {{place}}", {"place": one["place"], "model": one["model_key"]}
        if not bands:
            look_at(where, "band, created_at, id", look, **values)
            continue
        where += " and band = {band}"
        values["band"] = one["band"]
        if newest and by_model:  # aged rows of a cold model hide behind younger ones: look at both ends
            look_at(f"{where} and created_at <= {{before[wait_s]}}", scan.age, look, **values)
            look_at(f"{where} and created_at > {{before[wait_s]}}", scan.age, look, **values)
        else:
            look_at(where, scan.age, look, **values)

    found.sort(key=lambda row: (row["created"], row["id"]), reverse=newest)
    found.sort(key=urgency)
    chosen: list[int] = []
    for row in found:
        if len(chosen) == given["n"]:
            break
        if _takeable(db, family, given, row["id"]):
            chosen.append(row["id"])
    claimed = _claim(db, family, given, chosen)
    return claimed, more and len(claimed) < given["n"]


def _takeable(db: Db, family: Family, given: dict[str, Any], job_id: int) -> bool:
    """Not shunned here, and its run is still going."""
    alive = (
        f" and exists (select 1 from workflow_runs r where r.id = j.run_id and r.status in {LIVE_RUN})"
        if family.has_run
        else ""
    )
    return (
        db.value(
            f"select 1 from {family.table} j where j.id = {{id}} and (j.last_lost_box is null "
            f"or j.last_lost_box <> {{box}} or j.last_lost_at <= {{before[shun_s]}}){alive}",
            id=job_id,
            box=given["box"],
            shun_s=given["shun_s"],
        )
        is not None
    )


def _claim(db: Db, family: Family, given: dict[str, Any], chosen: list[int]) -> list[dict[str, Any]]:
    run = "run_id, node_id" if family.has_run else "null as run_id, null as node_id"
    model = "required_model" if family.has_run else "null as required_model"
    rows = []
    for job_id in chosen:
        rows += db.all(
            f"update {family.table} set status = 'running', claimed_by = {{owner}}, claimed_box = {{box}}, "
            "claimed_at = {now}, started_at = case when {begin} then {now} end, lease_expires_at = {after[lease_s]}, "
            "attempt = attempt + 1, fencing_token = fencing_token + 1, progress_pct = null, progress_text = null, "
            "unplaceable_reason = null, kill_requested = 0 where id = {id} and status = 'queued' returning "
            f"id, fencing_token, attempt, {family.name_column} as name, {run}, {family.input_column} as payload, {model}, "
            "priority, is_priority, queue, project, budget_s, failures, max_attempts, watchdog_retries, losses",
            **given,
            id=job_id,
        )
    return rows
