"""Reading the flight recorder: an hour of every box at once, then only what is new.

An hour is its minute rows, and for each box the detail since its last minute row: 60 rows and a tail of at most
30 per box or GPU instead of 1,800. Only the columns that the overview draws are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from engine.store import Db
from engine.store.db import Row
from engine.telemetry.sample import (
    BOX_METRICS,
    BOX_RANGED,
    GPU_METRICS,
    GPU_RANGED,
    BoxFacts,
    BoxSample,
    GpuFacts,
    GpuSample,
)
from engine.telemetry.throttle import total, worst
from engine.telemetry.writer import BOX_COLUMNS, GPU_COLUMNS

_MINUTE = timedelta(minutes=1)

# What the overview draws of an hour.
_BOX_DRAWN = (
    "cpu_pct", "core_max_pct", "load1", "cpu_mhz", "cpu_temp_c", "mem_used_mb", "mem_total_mb", "zone_max_c", "net_rx_bps",
    "net_tx_bps", "disk_read_bps", "disk_write_bps", "cpu_throttle_ms", "throttle_index", "power_ms", "thermal_ms",
    "brakes",
)  # fmt: skip
_GPU_DRAWN = (
    "gpu_index", "gpu_uuid", "state", "util_pct", "mem_used_mb", "mem_total_mb", "temp_c", "power_w", "power_limit_w",
    "sm_mhz", "throttle_mask", "throttle_source", "sw_power_ms", "hw_brake_ms", "sw_thermal_ms", "hw_thermal_ms",
    "sync_boost_ms", "brakes",
)  # fmt: skip


def _with_ranges(metrics: Sequence[str], ranged: Sequence[str]) -> tuple[str, ...]:
    ends = (f"{metric}_{end}" for metric in metrics if metric in ranged for end in ("min", "max"))
    return ("box", "at", "tier", *metrics, *ends)


_BOX_OVERVIEW = _with_ranges(_BOX_DRAWN, BOX_RANGED)
_GPU_OVERVIEW = _with_ranges(_GPU_DRAWN, GPU_RANGED)


def hour(
    db: Db, boxes: Sequence[str] | None = None, seconds: float = 3600.0, *, every_column: bool = False
) -> dict[str, list[BoxSample]]:
    """The last ``seconds`` of every box (or of those named), oldest first: minute rows, then details.

    Columns that the overview does not draw are None unless ``every_column``.
    """
    box_columns = BOX_COLUMNS if every_column else _BOX_OVERVIEW
    gpu_columns = GPU_COLUMNS if every_column else _GPU_OVERVIEW
    start = db.now() - timedelta(seconds=seconds)
    box_rows = _minutes(db, "flight_recorder", box_columns, start, boxes)
    gpu_rows = _minutes(db, "flight_recorder_gpu", gpu_columns, start, boxes)
    tails = {row["box"]: start for row in db.all("select box from boxes") if isinstance(row["box"], str)}
    for row in box_rows:
        tails[row["box"]] = max(tails.get(row["box"], start), row["at"] + _MINUTE)
    if boxes is not None:
        tails = {box: tails.get(box, start) for box in boxes}
    box_rows += _tails(db, "flight_recorder", box_columns, tails)
    gpu_rows += _tails(db, "flight_recorder_gpu", gpu_columns, tails)
    found: dict[str, list[BoxSample]] = {box: [] for box in tails}
    for sample in assemble(box_rows, gpu_rows):
        found.setdefault(sample.box, []).append(sample)
    return found


def since(db: Db, at: datetime, boxes: Sequence[str] | None = None, limit: int = 20_000) -> list[BoxSample]:
    """Detail samples after a time, oldest first, at most ``limit`` of them. Raises ValueError for a naive time."""
    if at.tzinfo is None:
        raise ValueError(f"since: {at} has no time zone")
    named = "and box {any[boxes]}" if boxes is not None else ""
    where = f"where tier = 'detail' and at > {{at}} {named}"
    params: dict[str, Any] = {"at": at} | ({"boxes": list(boxes)} if boxes is not None else {})
    rows = db.all(
        f"select {', '.join(BOX_COLUMNS)} from flight_recorder {where} order by at limit {{n}}", n=limit, **params
    )
    if not rows:
        return []
    gpus = db.all(
        f"select {', '.join(GPU_COLUMNS)} from flight_recorder_gpu {where} and at <= {{until}} order by at, gpu_index",
        until=rows[-1]["at"],
        **params,
    )
    return assemble(rows, gpus)


def latest(db: Db, boxes: Sequence[str] | None = None) -> dict[str, BoxSample]:
    """The newest detail sample of each box."""
    named = "where b.box {any[boxes]}" if boxes is not None else ""
    params: dict[str, Any] = {"boxes": list(boxes)} if boxes is not None else {}
    newest = (
        "(select max(x.at) from flight_recorder x where x.box = b.box and x.tier = 'detail')"  # an index look-up each
    )
    rows = db.all(
        f"select {', '.join(f'f.{column}' for column in BOX_COLUMNS)} from boxes b "
        f"join flight_recorder f on f.box = b.box and f.tier = 'detail' and f.at = {newest} {named}",
        **params,
    )
    gpus = db.all(
        f"select {', '.join(f'g.{column}' for column in GPU_COLUMNS)} from boxes b "
        f"join flight_recorder_gpu g on g.box = b.box and g.tier = 'detail' and g.at = {newest} {named} "
        "order by g.gpu_index",
        **params,
    )
    return {sample.box: sample for sample in assemble(rows, gpus)}


def details(db: Db, box: str, start: datetime) -> list[BoxSample]:
    """All detail samples of a box from ``start`` on, oldest first."""
    where = "where box = {box} and tier = 'detail' and at >= {start} order by at"
    return assemble(
        db.all(f"select {', '.join(BOX_COLUMNS)} from flight_recorder {where}", box=box, start=start),
        db.all(f"select {', '.join(GPU_COLUMNS)} from flight_recorder_gpu {where}, gpu_index", box=box, start=start),
    )


def last_minute(db: Db, box: str) -> datetime | None:
    """The start of the last minute that was rolled up."""
    found = db.value("select max(at) as last_at from flight_recorder where box = {box} and tier = 'minute'", box=box)
    return found if isinstance(found, datetime) else None


def newest(db: Db, box: str) -> datetime | None:
    """The time of the box's last detail row."""
    found = db.value("select max(at) as last_at from flight_recorder where box = {box} and tier = 'detail'", box=box)
    return found if isinstance(found, datetime) else None


def box_facts(db: Db) -> dict[str, BoxFacts]:
    """The rows of ``boxes``, by name."""
    rows = db.all(
        "select box, machine_id, description, cpu_model, cores, mem_mb, gpus, driver, kernel, simulated "
        "from boxes order by box"
    )
    return {row["box"]: BoxFacts(**(row | {"gpus": _gpu_facts(row["gpus"])})) for row in rows}


@dataclass(frozen=True)
class HourSummary:
    """What the throttle strip says beside its letters; None: no reading at all."""

    power_s: float | None
    thermal_s: float | None
    brakes: int | None
    power_max_w: float | None
    temp_max_c: float | None

    def values(self) -> dict[str, float | int | None]:
        return {
            "power_s": self.power_s,
            "thermal_s": self.thermal_s,
            "brakes": self.brakes,
            "power_max_w": self.power_max_w,
            "temp_max_c": self.temp_max_c,
        }


def hour_summary(rows: Iterable[BoxSample]) -> HourSummary:
    """Seconds throttled (of the box's worst GPU), brakes, and the peaks over all GPUs. Pure."""
    samples = list(rows)
    power, thermal = total(s.power_ms for s in samples), total(s.thermal_ms for s in samples)
    brakes = total(s.brakes for s in samples)
    gpus = [gpu for sample in samples for gpu in sample.gpus]
    return HourSummary(
        power_s=None if power is None else round(power / 1000, 1),
        thermal_s=None if thermal is None else round(thermal / 1000, 1),
        brakes=None if brakes is None else int(brakes),
        power_max_w=worst(gpu.high.get("power_w", gpu.power_w) for gpu in gpus),
        temp_max_c=worst(gpu.high.get("temp_c", gpu.temp_c) for gpu in gpus),
    )


def assemble(box_rows: Sequence[Row], gpu_rows: Sequence[Row]) -> list[BoxSample]:
    """Rows of the two tables as samples, oldest first, their GPUs by index."""
    cards: dict[tuple[str, str, datetime], list[GpuSample]] = {}
    if gpu_rows:
        names, lows, highs = _columns(gpu_rows[0], GPU_METRICS)
        for row in gpu_rows:
            card = {name: row[name] for name in names}
            if row["tier"] == "minute":
                card["low"], card["high"] = _ends(row, lows), _ends(row, highs)
            cards.setdefault((row["box"], row["tier"], row["at"]), []).append(GpuSample(**card))
    for some in cards.values():
        if len(some) > 1:
            some.sort(key=lambda card: card.gpu_index)
    if not box_rows:
        return []
    names, lows, highs = _columns(box_rows[0], (*BOX_METRICS, "sensors"))
    samples = []
    for row in box_rows:
        box = {name: row[name] for name in names}
        if row["tier"] == "minute":
            box["low"], box["high"] = _ends(row, lows), _ends(row, highs)
        gpus = tuple(cards.get((row["box"], row["tier"], row["at"]), ()))
        samples.append(BoxSample(row["box"], row["at"], row["tier"], gpus=gpus, **box))
    samples.sort(key=lambda sample: sample.at)
    return samples


def _columns(row: Row, metrics: Sequence[str]) -> tuple[list[str], list[tuple[str, str]], list[tuple[str, str]]]:
    """Which columns a row has: the plain ones, and (column, metric) of the lower and of the upper ends."""
    return (
        [name for name in metrics if name in row],
        [(f"{name}_min", name) for name in metrics if f"{name}_min" in row],
        [(f"{name}_max", name) for name in metrics if f"{name}_max" in row],
    )


def _ends(row: Row, columns: Sequence[tuple[str, str]]) -> dict[str, float]:
    return {metric: value for column, metric in columns if (value := row[column]) is not None}


def _minutes(db: Db, table: str, columns: Sequence[str], start: datetime, boxes: Sequence[str] | None) -> list[Row]:
    """Unsorted: sorting tens of thousands of wide rows costs the server more than finding them."""
    named = "and box {any[boxes]}" if boxes is not None else ""
    params: dict[str, Any] = {"start": start} | ({"boxes": list(boxes)} if boxes is not None else {})
    return db.all(
        f"select {', '.join(columns)} from {table} where tier = 'minute' and at >= {{start}} {named}", **params
    )


def _tails(db: Db, table: str, columns: Sequence[str], tails: Mapping[str, datetime]) -> list[Row]:
    """Per box the details from its own time on, one index range each; unsorted."""
    if not tails:
        return []
    if db.kind == "postgresql":
        # "offset 0" keeps the planner from joining the whole table to the list of boxes instead.
        source = (
            "jsonb_to_recordset({tails}::text::jsonb) as t(box text, start_at timestamptz) cross join lateral "
            f"(select * from {table} f where f.box = t.box and f.tier = 'detail' and f.at >= t.start_at offset 0) d"
        )
    else:
        source = (
            f"json_each({{tails}}) t cross join {table} d on d.box = json_extract(t.value, '$.box') "
            "and d.tier = 'detail' and d.at >= json_extract(t.value, '$.start_at')"
        )
    wanted = [
        {"box": box, "start_at": start.astimezone(UTC).isoformat(timespec="microseconds")}
        for box, start in tails.items()
    ]
    return db.all(f"select {', '.join(f'd.{column}' for column in columns)} from {source}", tails=json.dumps(wanted))


def _gpu_facts(value: Any) -> tuple[GpuFacts, ...]:
    """From the JSON of any program: what is no list of objects with an index is left out."""
    known = set(GpuFacts.__dataclass_fields__)
    return tuple(
        GpuFacts(**{name: part for name, part in entry.items() if name in known})
        for entry in (value if isinstance(value, list) else ())
        if isinstance(entry, dict) and isinstance(entry.get("index"), int)
    )
