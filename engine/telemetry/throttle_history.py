"""Throttling of all boxes by the hour, and which jobs ran under it.

An hour of a box is the sum of its minute rows, each of which is the worst of its GPUs; causes overlap and are never
added up. The boxes' rows are summed on the server out of an index that holds nothing else (flight_recorder_held):
100 boxes for a week are a million minutes and 16,800 hours. Minutes of programs that know only rows of cards are summed
from those, of the worst card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from engine.queue.family import FAMILIES
from engine.store import Db
from engine.store.db import Row
from engine.telemetry.rows import summed
from engine.telemetry.throttle import worst

HOUR_S = 3600
SPANS_S = (86_400, 604_800)
CAUSES = "PTBCS"  # power cap, thermal, hardware brake, cpu, sync boost: the letters of the strip
JOBS = 50
JOBS_READ = 5_000  # long attempts that are looked at, all boxes together; of each box the newest

_SUMS = (
    f"count(*) as minutes, {summed('power_ms')} as p, {summed('thermal_ms')} as t, {summed('gpu_hw_brake_ms')} as b, "
    f"{summed('cpu_throttle_ms')} as c, {summed('gpu_sync_boost_ms')} as s, sum(brakes) as brakes, "
    "max(case when gpu_throttle_source = 'mask' then 2 when gpu_throttle_source is not null then 1 end) as source"
)
_WORSE_HEAT = (
    "(case when coalesce(sw_thermal_ms, 0) > coalesce(hw_thermal_ms, 0) then sw_thermal_ms "
    "else coalesce(hw_thermal_ms, sw_thermal_ms) end)"
)
_CARD_SUMS = (
    f"{summed('sw_power_ms')} as p, {summed(_WORSE_HEAT)} as t, "
    f"{summed('hw_brake_ms')} as b, {summed('sync_boost_ms')} as s, sum(brakes) as brakes, "
    "max(case when throttle_source = 'mask' then 2 when throttle_source is not null then 1 end) as source"
)


def _hour(db: Db) -> str:
    """The hour of a row; on PostgreSQL whatever the session's zone is, on SQLite the text up to it."""
    if db.kind == "postgresql":
        return "date_bin('1 hour', at, timestamptz '2000-01-01 00:00:00+00')"  # extract() counts in numerics: twice the time
    return "substr(at, 1, 13)"


def _hour_number(value: Any) -> int:
    at = value if isinstance(value, datetime) else datetime.fromisoformat(f"{value}:00:00+00:00")
    return int(at.timestamp()) // HOUR_S


def history(db: Db, span_s: float = 86_400.0, until: str | None = None) -> dict[str, Any]:
    """The last ``span_s`` of every box by the hour, the newest hour (which is not over) last; JSON-able. ``until``: an ISO
    time with a zone, in place of now.

    ``{at, hours: [start of each], boxes: [{box, sampled, minutes: [recorded in each hour], brakes: {total, hours},
    causes: {letter: {total_s, hours: [seconds]}}}]}``. None: nobody knows; 0.0: nothing held it back. ``sampled``: some
    of it comes from a mask and is a lower bound. Raises ValueError for a naive time.
    """
    now = _aware(until) or db.now()
    count = max(1, round(span_s / HOUR_S))
    last = int(now.timestamp()) // HOUR_S
    first = last - count + 1
    start = datetime.fromtimestamp(first * HOUR_S, UTC)
    rows = db.all(
        f"select box, {_hour(db)} as hour, {_SUMS} from flight_recorder where tier = 'minute' and at >= {{start}} "
        "and at <= {now_at} group by 1, 2",
        start=start,
        now_at=now,
    )
    hours: dict[str, dict[int, Row]] = {}
    for row in rows:
        if isinstance(row["box"], str):
            hours.setdefault(row["box"], {})[_hour_number(row["hour"])] = row
    _add_cards(db, hours, start, now)
    return {
        "at": now.astimezone(UTC).isoformat(),
        "hours": [datetime.fromtimestamp(hour * HOUR_S, UTC).isoformat() for hour in range(first, last + 1)],
        "boxes": [_box(name, hours[name], range(first, last + 1)) for name in sorted(hours)],
    }


def _add_cards(db: Db, hours: dict[str, dict[int, Row]], start: datetime, now: datetime) -> None:
    """Fill hours whose rows say nothing of their GPUs from the rows of those: per cause the worst card."""
    silent = [box for box, some in hours.items() if any(row["source"] is None for row in some.values())]
    if not silent:
        return
    rows = db.all(
        f"select box, {_hour(db)} as hour, gpu_index, {_CARD_SUMS} from flight_recorder_gpu "
        "where box {any[boxes]} and tier = 'minute' and at >= {start} and at <= {now_at} group by 1, 2, 3",
        boxes=silent,
        start=start,
        now_at=now,
    )
    cards: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        cards.setdefault((row["box"], _hour_number(row["hour"])), []).append(row)
    for (box, hour), some in cards.items():
        found = hours[box].get(hour)
        if found is None or found["source"] is not None:
            continue
        for name in ("p", "t", "b", "s", "brakes"):
            if found[name] is None:
                found[name] = worst(row[name] for row in some)
        found["source"] = worst(row["source"] for row in some)


def _box(name: str, hours: Mapping[int, Row], wanted: range) -> dict[str, Any]:
    def series(column: str) -> list[float | None]:
        return [
            None if (row := hours.get(hour)) is None or row[column] is None else float(row[column]) for hour in wanted
        ]

    causes = {}
    for letter in CAUSES:
        seconds = [None if ms is None else round(max(0.0, ms) / 1000.0, 3) for ms in series(letter.lower())]
        causes[letter] = {"total_s": _total(seconds), "hours": seconds}
    brakes = [None if n is None else int(n) for n in series("brakes")]
    return {
        "box": name,
        "sampled": any(row["source"] == 2 for row in hours.values()),
        "minutes": [int(hours[hour]["minutes"]) if hour in hours else 0 for hour in wanted],
        "brakes": {"total": None if (n := _total(brakes)) is None else int(n), "hours": brakes},
        "causes": causes,
    }


def _total(values: Sequence[float | int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known), 3) if known else None


# --- which jobs ---


def jobs(
    db: Db,
    span_s: float = 86_400.0,
    box: str | None = None,
    since: str | None = None,
    until: str | None = None,
    cause: str | None = None,
) -> list[dict[str, Any]]:
    """The 50 jobs that were held back most and that ended within the last ``span_s``, JSON-able.

    Of ``box`` alone, and of those that ran between ``since`` and ``until`` (ISO times with a zone) when given. Worst first:
    by ``cause`` (P, T, B), else by heat and brakes, and the power cap after them. Of a job with several GPUs the worst
    one counts for each cause. ``seconds`` by letter; ``share`` of the job's run time. Raises ValueError for a naive time.
    """
    now = db.now()
    start = now - timedelta(seconds=span_s)
    begin, end = _aware(since) or start, _aware(until) or now
    boxes = [box] if box is not None else [row["box"] for row in db.all("select box from boxes order by box")]
    each = max(JOBS, JOBS_READ // max(1, len(boxes)))
    held = [
        row
        for row in _held(db, boxes, max(start, begin), each)
        if row["created_at"] - timedelta(seconds=row["elapsed_s"]) <= end
    ]
    if cause in ("P", "T", "B"):
        held = [row for row in held if (row[cause.lower()] or 0.0) >= 100.0]
        held.sort(key=lambda row: -(row[cause.lower()] or 0.0))
    else:
        held.sort(key=lambda row: (-max(row["t"] or 0.0, row["b"] or 0.0), -(row["p"] or 0.0)))
    held = held[:JOBS]
    names = _names(db, [(row["family"], row["job_id"]) for row in held])
    return [_job(row, names.get(row["job_id"], "")) for row in held]


_ATTEMPT = "family, job_id, box, queue, project, elapsed_s, created_at"
_ENDED = "elapsed_s >= 9 and elapsed_s <= 3e8 and created_at >= {start} and event_type in ('completed', 'failed', 'cancelled')"


def _held(db: Db, boxes: Sequence[str], start: datetime, each: int) -> list[Row]:
    """Of the newest ``each`` long attempts of every box (an index range each) those that were held back."""
    newest = (
        f"select {_ATTEMPT} from job_events where box = {{of}} and {_ENDED} order by created_at desc limit {{each}}"
    )
    share = (
        f"select {', '.join(f'e.{column}' for column in _ATTEMPT.split(', '))}, max(h.power_ms) as p, max(h.thermal_ms) as t, "
        "max(h.brake_ms) as b, max(h.temp_max_c) as temp_max_c, max(h.power_max_w) as power_max_w, "
        "min(h.sm_mean_mhz) as sm_mean_mhz, max(h.gpu_index) as gpu_index from ({attempts}) e "
        "join job_hardware h on h.job_id = e.job_id "
        "where h.power_ms >= 100 or h.thermal_ms >= 100 or h.brake_ms >= 100 group by 1, 2, 3, 4, 5, 6, 7"
    )
    if db.kind == "postgresql":
        source = f"select x.* from unnest({{boxes}}::text[]) b(name) cross join lateral ({newest.replace('{of}', 'b.name')}) x"
        return db.all(share.replace("{attempts}", source), boxes=list(boxes), start=start, each=each)
    return [row for box in boxes for row in db.all(share.replace("{attempts}", newest), of=box, start=start, each=each)]


def _names(db: Db, wanted: Sequence[tuple[str, int]]) -> dict[int, str]:
    found: dict[int, str] = {}
    for family in FAMILIES:
        ids = [number for name, number in wanted if name == family.name]
        if ids:
            rows = db.all(f"select id, {family.name_column} as name from {family.table} where id {{any[ids]}}", ids=ids)
            found |= {row["id"]: row["name"] for row in rows}
    return found


def _job(row: Row, name: str) -> dict[str, Any]:
    seconds = {letter: None if (ms := row[letter.lower()]) is None else round(ms / 1000.0, 3) for letter in "PTB"}
    run_s = float(row["elapsed_s"])
    return {
        "job_id": str(row["job_id"]),
        "family": row["family"],
        "name": name,
        "project": row["project"],
        "queue": row["queue"],
        "box": row["box"],
        "started_at": (row["created_at"] - timedelta(seconds=run_s)).astimezone(UTC).isoformat(),
        "finished_at": row["created_at"].astimezone(UTC).isoformat(),
        "run_s": round(run_s, 1),
        "gpu_index": row["gpu_index"],
        "seconds": seconds,
        "share": {
            letter: None if held is None else min(1.0, round(held / run_s, 4)) for letter, held in seconds.items()
        },
        "temp_max_c": row["temp_max_c"],
        "power_max_w": row["power_max_w"],
        "sm_mean_mhz": row["sm_mean_mhz"],
    }


def _aware(text: str | None) -> datetime | None:
    if text is None:
        return None
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text}: a time without a zone")
    return at
