"""Everything about one job: its row, what went in and came out, its attempts, its log, its run, its hardware, why it waits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from engine.queue import controls, events, inputs
from engine.queue.family import INGEST, NODE, Family, row_id
from engine.queue.looking import by_index
from engine.queue.outline import run_outline
from engine.queue.queues import lane_state
from engine.queue.snapshot import lanes_view
from engine.queue.waiting import READY, WaitClass, classes
from engine.store import Db

PAYLOAD_SHOWN = 16_000  # characters of an input or output
LOG_SHOWN = 24_000  # of the end of a log
EVENTS_SHOWN = 200
AHEAD_CAP = 1_000
HARDWARE_FROM_S = 10.0  # shorter jobs have no share
ENDED = ("completed", "failed", "cancelled", "skipped")

_ROW = (  # the engine cuts texts; another writer's may be megabytes, and are asked for again and again
    f"id, queue, status, project, priority, is_priority, substr(error, 1, {PAYLOAD_SHOWN}) as error, attempt, "
    "failures, max_attempts, watchdog_retries, losses, budget_s, run_after, claimed_by, claimed_box, claimed_at, fencing_token, lease_expires_at, last_lost_box, last_lost_at, "
    "avoid_boxes, only_boxes, unplaceable_reason, cancel_requested, kill_requested, progress_pct, "
    "substr(progress_text, 1, 400) as progress_text, created_at, started_at, finished_at, band, place"
)
_OWN = {
    "node": "node as name, node_id, run_id, required_model as model, model_key",
    "ingest": "task_name as name, idempotency_key, retry_of",
}


def job_detail(db: Db, job_id: int | str) -> dict[str, Any] | None:
    """One job as plain data; None: there is no such job.

    Keys: ``at``; ``job`` (its columns; ids as text); ``input`` and ``output`` ({text: pretty JSON, size in characters, cut} or
    None); ``events`` (oldest first, the newest 200; ``events_cut``: there are older ones); ``log`` ({text, size in bytes,
    attempt, updated_at, cut} or None); ``run`` (see run_outline) or None; ``asked`` (prompt and schema of a node that waits
    for a person, and whether an answer is in flight) or None; ``execution`` (the committed effect) or None; ``hardware``
    ([{gpu_index, power_ms, ...}]) and ``hardware_why`` (why there is none); ``waits`` (reasons, one line each);
    ``ahead`` ({n, capped} jobs that go before it) or None. Raises BadInput.
    """
    number = row_id(job_id)
    with by_index(db):
        return _detail(db, number)


def _detail(db: Db, number: int) -> dict[str, Any] | None:
    found = _find(db, number)
    if found is None:
        return None
    family, row = found
    at = db.now()
    run = run_outline(db, row["run_id"], row["node_id"]) if family is NODE else None
    lanes = lanes_view(db, row["project"], {})
    ahead = _ahead(db, family, row) if row["status"] == "queued" and row["run_after"] is None else None
    past = db.all(
        f"select {events.SHOWN} from (select * from job_events where job_id = {{id}} order by id desc limit {{n}}) e "
        "where e.family = {family} order by e.id desc",
        id=number,
        family=family.name,
        n=EVENTS_SHOWN + 1,
    )
    hardware = db.all("select * from job_hardware where job_id = {id} order by gpu_index limit 64", id=number)
    for share in hardware:
        del share["job_id"]
    return {
        "at": at,
        "job": {**_ids(row), "family": family.name},
        "input": _payload(db, family, family.input_column, number),
        "output": _payload(db, family, family.output_column, number),
        "events": [events.shown(event) for event in reversed(past[:EVENTS_SHOWN])],
        "events_cut": len(past) > EVENTS_SHOWN,
        "log": _log(db, family, number),
        "run": run,
        "asked": _asked(db, row, run) if row["status"] == "awaiting_input" else None,
        "execution": _execution(db, number) if family is INGEST else None,
        "hardware": hardware,
        "hardware_why": None if hardware else why_no_hardware(row, at, _recorded(db, row["claimed_box"])),
        "waits": why_it_waits(row, at, run, lanes, controls.all_orders(db)) if row["status"] == "queued" else [],
        "ahead": ahead,
    }


def _find(db: Db, number: int) -> tuple[Family, dict[str, Any]] | None:
    for family in (NODE, INGEST):
        row = db.one(f"select {_ROW}, {_OWN[family.name]} from {family.table} where id = {{id}}", id=number)
        if row is not None:
            return family, row
    return None


def _ids(row: Mapping[str, Any]) -> dict[str, Any]:
    hidden = ("band", "place", "model_key")
    found = {name: value for name, value in row.items() if name not in hidden}
    for name in ("id", "run_id", "retry_of", "fencing_token"):
        if found.get(name) is not None:
            found[name] = str(found[name])
    return found


def _payload(db: Db, family: Family, column: str, number: int) -> dict[str, Any] | None:
    """A JSON column as text for people. A large one is not read whole: what is cut cannot be laid out either."""
    row = db.one(
        f"select substr({{text[{column}]}}, 1, {{most}}) as shown, length({{text[{column}]}}) as size "
        f"from {family.table} where id = {{id}}",
        id=number,
        most=PAYLOAD_SHOWN,
    )
    if row is None or row["shown"] is None:
        return None
    text, size = str(row["shown"]), int(row["size"])
    if size <= PAYLOAD_SHOWN:
        try:
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            pass  # a foreign writer's: as it is
    return {
        "text": text[: 2 * PAYLOAD_SHOWN],
        "size": size,
        "cut": size > PAYLOAD_SHOWN or len(text) > 2 * PAYLOAD_SHOWN,
    }


def _log(db: Db, family: Family, number: int) -> dict[str, Any] | None:
    tail = "right(tail, {most})" if db.kind == "postgresql" else "substr(tail, -{most})"
    row = db.one(
        f"select attempt, bytes, updated_at, length(tail) as length, {tail} as tail from job_logs "
        "where family = {family} and job_id = {id}",
        family=family.name,
        id=number,
        most=LOG_SHOWN,
    )
    if row is None:
        return None
    text, cut = str(row["tail"] or ""), row["length"] > LOG_SHOWN
    if cut:
        text = text.partition("\n")[2] or text  # from the start of a line
    return {
        "text": text,
        "size": row["bytes"],
        "attempt": row["attempt"],
        "updated_at": row["updated_at"],
        "cut": cut or row["bytes"] > len(text.encode("utf-8", "replace")),
    }


def _asked(db: Db, row: Mapping[str, Any], run: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a node wants to be told, and whether somebody has answered already."""
    asked = run["asked"] if run is not None and isinstance(run["asked"], Mapping) else {}
    in_flight = inputs.in_flight(db, row["run_id"], row["node_id"]) is not None
    return {"prompt": asked.get("prompt", ""), "schema": asked.get("schema", {}), "submitted": in_flight}


def _execution(db: Db, number: int) -> dict[str, Any] | None:
    row = db.one("select fencing_token, worker, committed_at from executions where job_id = {id}", id=number)
    return None if row is None else {**row, "fencing_token": str(row["fencing_token"])}


def _recorded(db: Db, box: str | None) -> bool:
    """Whether a recorder has ever reported from there."""
    return (
        box is not None
        and db.one("select 1 as found from flight_recorder where box = {box} limit 1", box=box) is not None
    )


def why_no_hardware(row: Mapping[str, Any], at: datetime, recorded: bool) -> str:
    """Why a job has no share of its hardware, in words."""
    if row["started_at"] is None:
        return "n/a: it has not run" if row["status"] not in ENDED else "n/a: it never ran"
    ran_s = ((row["finished_at"] or at) - row["started_at"]).total_seconds()
    if row["status"] == "running":
        return "n/a yet: it is written while a job runs, from its 10th second on" if recorded else _NO_RECORDER
    if ran_s < HARDWARE_FROM_S:
        return "n/a: shorter than 10 s"
    return "n/a: no sample of it was kept" if recorded else _NO_RECORDER


_NO_RECORDER = "n/a: no recorder on that box"


# -- why it waits

UNPLACEABLE = "no slot could hold it: "


def _ahead(db: Db, family: Family, row: Mapping[str, Any]) -> dict[str, Any]:
    """How many rows of its queue and project go before it by priority and age; each class by its index, up to a cap."""
    n, capped = 0, False
    here = classes(db, family, queue=row["queue"], project=row["project"], limit=100)
    for each in here:
        if family is NODE and each.model != row["model_key"]:
            continue  # another model's rows wait for other slots, or take turns by warmth
        found = int(db.value(ahead_statement(each), most=AHEAD_CAP, **each.key(), **_place(row)))
        n, capped = n + found, capped or found >= AHEAD_CAP
    return {"n": n, "capped": capped}


def _place(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"my_band": row["band"], "my_at": row["created_at"], "my_id": row["id"]}


def ahead_statement(of: WaitClass) -> str:
    """Rows of a class before a place in the claim's order: bands before its own, then its own up to it."""
    same = " and ".join(f"{column} = {{{column}}}" for column in of.key())
    rows = f"select 1 as one from {of.family.table} where status = 'queued' and {READY} and {same}"
    parts = (
        "band < {my_band}",
        "band = {my_band} and created_at < {my_at}",
        "band = {my_band} and created_at = {my_at} and id < {my_id}",
    )
    counted = " union all ".join(
        f"select * from ({rows} and {part} limit {{most}}) p{i}" for i, part in enumerate(parts)
    )
    return f"select count(*) as n from (select * from ({counted}) a limit {{most}}) b"


def why_it_waits(
    row: Mapping[str, Any],
    at: datetime,
    run: Mapping[str, Any] | None,
    lanes: list[dict[str, Any]],
    orders: list[dict[str, Any]],
) -> list[str]:
    """Why a queued job does not run, the strongest reason first, one line each."""
    reasons = []
    if run is not None and run["status"] not in ("queued", "running"):
        reasons.append(f"its run is {run['status']}: it will be cancelled")
    if row["unplaceable_reason"]:
        reasons.append(f"{UNPLACEABLE}{row['unplaceable_reason']}")
    if row["run_after"] is not None and row["run_after"] > at:
        reasons.append(f"not before {row['run_after']:%Y-%m-%d %H:%M:%S} UTC, in {_span(row['run_after'] - at)}")
    only, avoid = row["only_boxes"] or [], row["avoid_boxes"] or []
    if only:
        reasons.append(f"it may run only on {', '.join(map(str, only))}")
    if avoid:
        reasons.append(f"it may not run on {', '.join(map(str, avoid))}")
    if row["last_lost_at"] is not None and at - row["last_lost_at"] < timedelta(seconds=10):
        reasons.append(f"it was lost on {row['last_lost_box']}, which is not offered it for 10 s")
    here = _lane_reasons(row, lanes, orders)
    if any(one.startswith("no lane serves") for one in here):  # once is enough
        reasons = [one for one in reasons if not one.startswith(f"{UNPLACEABLE}no live lane of queue ")]
    return reasons + here


def _lane_reasons(row: Mapping[str, Any], lanes: list[dict[str, Any]], orders: list[dict[str, Any]]) -> list[str]:
    queue = row["queue"]
    mine = [lane for lane in lanes if lane["queue"] == queue and lane_state(lane) != "ended"]
    allowed = [lane for lane in mine if not row["only_boxes"] or lane["box"] in row["only_boxes"]]
    allowed = [lane for lane in allowed if lane["box"] not in (row["avoid_boxes"] or [])]
    if not mine:
        return [f"no lane serves queue {queue} of this project"]
    if not allowed:
        return [f"no lane of queue {queue} is on a box that it may use"]
    up = [lane for lane in allowed if lane_state(lane) == "on"]
    found = []
    for lane in allowed:
        state = lane_state(lane)
        if state == "down":
            found.append(f"{queue} on {lane['box']} is down")
        elif state in ("parked", "changing") and lane["desired"] == "off":
            order = controls.pick(orders, lane["box"], queue, lane["project"])
            by = f" by {order.requested_by}" if order.requested_by else ""
            why = f": {order.reason}" if order.reason else ""
            until = f", until {order.until:%Y-%m-%d %H:%M} UTC" if order.until else ""
            found.append(f"{queue} on {lane['box']} is ordered off{by}{until}{why}")
    free = sum(max(0, lane["slots"] - lane["busy"]) for lane in up)
    if up and not free:
        slots = sum(lane["slots"] for lane in up)
        found.append(f"every slot is busy: {slots} of {slots} on {', '.join(lane['box'] for lane in up[:5])}")
    return found[:8]


def _span(left: timedelta) -> str:
    total = max(0, int(left.total_seconds()))
    if total < 120:
        return f"{total} s"
    if total < 7200:
        return f"{total // 60} min"
    return f"{total // 3600} h" if total < 172_800 else f"{total // 86_400} days"
