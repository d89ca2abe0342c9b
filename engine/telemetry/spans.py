"""One box over hours and days: its minute rows in buckets, each with minimum, maximum and mean, so that every spike stays.

The database adds up; what comes back is at most 720 buckets, however long the span and however many GPUs.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from engine.errors import BadInput
from engine.store import Db
from engine.telemetry.history import last_minute
from engine.telemetry.rows import AHEAD_S, MOST, summed
from engine.telemetry.sample import BOX_RANGED, GPU_RANGED

BUCKETS = 720
LONGEST_S = 8 * 86_400  # minute rows are kept seven days
MINUTE_S = 60

# What the overview draws; more than it draws would only make the days slow.
BOX_VALUES = (
    "cpu_pct", "core_max_pct", "cpu_mhz", "cpu_temp_c", "zone_max_c", "mem_used_mb", "net_rx_bps", "net_tx_bps",
)  # fmt: skip
GPU_VALUES = ("util_pct", "temp_c", "power_w", "sm_mhz")
BOX_SUMS = ("power_ms", "thermal_ms", "cpu_throttle_ms", "brakes")
GPU_SUMS = ("sw_power_ms", "sw_thermal_ms", "hw_thermal_ms", "hw_brake_ms", "sync_boost_ms", "brakes")


def span(db: Db, *, box: str, span_s: int, gpu: int | None = None) -> dict[str, Any]:
    """The last ``span_s`` seconds of a box. ``gpu``: of that GPU alone, by its index; None: over all of them.

    ``{"box", "end" (ISO text), "step_s", "at": [start of each bucket, seconds of the epoch], "box_values": {metric:
    [[min, max, mean] or None, ...]}, "gpu_values": likewise, "box_sums": {column: [sum or None, ...]}, "gpu_sums":
    likewise, "mask": [whether any of it was sampled from a mask, ...]}``. Per bucket: over several GPUs a value is the
    lowest, the highest and the highest mean; milliseconds are those of the worst GPU of each row. Minute rows, and the
    details since the last of them. Raises BadInput.
    """
    if not isinstance(span_s, int) or not 60 <= span_s <= LONGEST_S:
        raise BadInput(f"span: {span_s!r} s is not between a minute and {LONGEST_S // 86_400} days")
    step = max(MINUTE_S, -(-span_s // BUCKETS))
    end = db.now()
    start = _floor(end - timedelta(seconds=span_s), step)
    newest = last_minute(db, box)
    tail = start if newest is None else max(start, newest + timedelta(seconds=MINUTE_S))
    where = {"box": box, "start": start, "tail": tail, "until": end + timedelta(seconds=AHEAD_S)}
    boxes = {row["bucket"]: row for row in db.all(_box_sql(db, step), **where) if row["bucket"] is not None}
    cards = {
        row["bucket"]: row for row in db.all(_gpu_sql(db, step, gpu), **where, gpu=gpu) if row["bucket"] is not None
    }
    buckets = sorted({*boxes, *cards})
    return {
        "box": box,
        "end": end.astimezone(UTC).isoformat(),
        "step_s": step,
        "at": [int(bucket) * step for bucket in buckets],
        "box_values": {name: [_triple(boxes.get(b), name) for b in buckets] for name in BOX_VALUES},
        "gpu_values": {name: [_triple(cards.get(b), name) for b in buckets] for name in GPU_VALUES},
        "box_sums": {name: [_value(boxes.get(b), name) for b in buckets] for name in BOX_SUMS},
        "gpu_sums": {name: [_value(cards.get(b), name) for b in buckets] for name in GPU_SUMS},
        "mask": [bool(_value(cards.get(b), "masked")) for b in buckets],
    }


def _floor(at: datetime, step: int) -> datetime:
    return datetime.fromtimestamp(int(at.timestamp()) // step * step, UTC)


_ROWS = (
    "(select {columns} from {table} where box = {{box}} and tier = 'minute' and at >= {{start}} and at <= {{until}}{more} union all "
    "select {columns} from {table} where box = {{box}} and tier = 'detail' and at >= {{tail}} and at <= {{until}}{more}) r"
)


def _box_sql(db: Db, step: int) -> str:
    ranged = [name for name in BOX_VALUES if name in BOX_RANGED]
    columns = ", ".join(["at", *BOX_VALUES, *BOX_SUMS, *(f"{name}_{end}" for name in ranged for end in ("min", "max"))])
    values = [_folded(name, name in BOX_RANGED) for name in BOX_VALUES]
    sums = [f"{summed(name)} as {name}" for name in BOX_SUMS]
    rows = _ROWS.format(columns=columns, table="flight_recorder", more="")
    return f"select {_bucket(db, step)} as bucket, {', '.join([*values, *sums])} from {rows} group by 1"


def _gpu_sql(db: Db, step: int, gpu: int | None) -> str:
    """First over the GPUs of each row, then over the rows of each bucket."""
    ranged = [name for name in GPU_VALUES if name in GPU_RANGED]
    columns = ", ".join(
        ["at", "throttle_source", *GPU_VALUES, *GPU_SUMS, *(f"{n}_{end}" for n in ranged for end in ("min", "max"))]
    )
    more = "" if gpu is None else " and gpu_index = {gpu}"
    rows = _ROWS.format(columns=columns, table="flight_recorder_gpu", more=more)
    each = [
        f"min(coalesce({low}, {name})) as {name}_min, max(coalesce({high}, {name})) as {name}_max, max({name}) as {name}"
        for name in GPU_VALUES
        for low, high in [(f"{name}_min", f"{name}_max") if name in GPU_RANGED else (name, name)]
    ]
    sums = [f"max({name}) as {name}" for name in GPU_SUMS]
    masked = "max(case when throttle_source = 'mask' then 1 else 0 end) as masked"
    inner = f"select at, {', '.join([*each, *sums, masked])} from {rows} group by at"
    outer = [_folded(name, True) for name in GPU_VALUES] + [f"{summed(name)} as {name}" for name in GPU_SUMS]
    return f"select {_bucket(db, step)} as bucket, {', '.join([*outer, 'max(masked) as masked'])} from ({inner}) g group by 1"


def _folded(name: str, ranged: bool) -> str:
    low, high = (f"coalesce({name}_min, {name})", f"coalesce({name}_max, {name})") if ranged else (name, name)
    mean = f"avg(case when abs({name}) <= {MOST:.0f} then {name} end)"
    return f"min({low}) as {name}_low, max({high}) as {name}_high, {mean} as {name}_mean"


def _bucket(db: Db, step: int) -> str:
    """The number of the bucket that a row is in; ``step`` is a whole number of ours, not a text of anybody."""
    if db.kind == "postgresql":
        return f"floor(extract(epoch from at) / {step:d})::bigint"
    return f"cast(strftime('%s', at) as integer) / {step:d}"


def _value(row: dict[str, Any] | None, name: str) -> Any:
    return None if row is None else row[name]


def _triple(row: dict[str, Any] | None, name: str) -> list[float | None] | None:
    if row is None or not all(isinstance(row[f"{name}_{end}"], int | float) for end in ("low", "high")):
        return None  # SQLite keeps a text in a column of numbers
    mean = row[f"{name}_mean"]
    return [round(row[f"{name}_low"], 3), round(row[f"{name}_high"], 3), round(mean, 3) if mean is not None else None]
