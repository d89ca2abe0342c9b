"""An hour of every box at once: its minute rows, and for each box the detail since its last minute row.

60 rows and a tail of at most 30 per box or GPU instead of 1,800, and only the columns that the overview draws. Of a large
fleet the cards of a box are read as one (together.py): all of them only at the box's newest sample.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from engine.store import Db
from engine.store.db import Row
from engine.telemetry.rows import AHEAD_S, Key, assemble
from engine.telemetry.sample import BOX_FOLDED, BOX_RANGED, GPU_RANGED, BoxSample, GpuSample
from engine.telemetry.throttle import total, worst
from engine.telemetry.together import ADDED_UP, unfold
from engine.telemetry.writer import GPU_COLUMNS, SAMPLE_COLUMNS

LARGE_FLEET = 12  # boxes; of more than so many the cards are read together

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

    Columns that the overview does not draw are None unless ``every_column``. Of more boxes than LARGE_FLEET every row but
    the newest has two cards at most, which stand for all of them (their index is together.TOGETHER).
    """
    start = db.now() - timedelta(seconds=seconds)
    known = [row["box"] for row in db.all("select box from boxes") if isinstance(row["box"], str)]
    folded = not every_column and len(known if boxes is None else boxes) > LARGE_FLEET
    box_columns = SAMPLE_COLUMNS if every_column else (*_BOX_OVERVIEW, *BOX_FOLDED) if folded else _BOX_OVERVIEW
    box_rows = _minutes(db, "flight_recorder", box_columns, start, boxes)
    tails = dict.fromkeys(known, start)
    for row in box_rows:
        tails[row["box"]] = max(tails.get(row["box"], start), row["at"] + _MINUTE)
    if boxes is not None:
        tails = {box: tails.get(box, start) for box in boxes}
    box_rows += _tails(db, "flight_recorder", _of_tail(box_columns), tails)
    if folded:
        samples = _together(db, box_rows, start, tails)
    else:
        gpu_columns = GPU_COLUMNS if every_column else _GPU_OVERVIEW
        gpu_rows = _minutes(db, "flight_recorder_gpu", gpu_columns, start, boxes)
        samples = assemble(box_rows, gpu_rows + _tails(db, "flight_recorder_gpu", _of_tail(gpu_columns), tails))
    found: dict[str, list[BoxSample]] = {box: [] for box in tails}
    for sample in samples:
        found.setdefault(sample.box, []).append(sample)
    return found


def _together(db: Db, box_rows: list[Row], start: datetime, tails: Mapping[str, datetime]) -> list[BoxSample]:
    """Samples whose cards are one, but for the newest of each box."""
    newest: dict[str, tuple[str, datetime]] = {}
    unknown: set[str] = set()  # of these some row does not say what the cards did: no GPU, or a foreign writer
    for row in box_rows:
        if row["box"] not in newest or row["at"] >= newest[row["box"]][1]:
            newest[row["box"]] = row["tier"], row["at"]
        if row["box"] not in unknown and all(row[column] is None for column in BOX_FOLDED):
            unknown.add(row["box"])
    cards = {(row["box"], row["tier"], row["at"]): some for row in box_rows if (some := unfold(row))}
    cards |= _added_up(db, start, {box: tails[box] for box in unknown if box in tails}, len(tails))
    whole: list[Row] = []
    for tier in ("detail", "minute"):  # a minute is the newest where a recorder ended with it
        of = {box: at for box, (last, at) in newest.items() if last == tier}
        whole += _tails(db, "flight_recorder_gpu", _of_tail(_GPU_OVERVIEW), of, tier)
    return assemble(box_rows, whole, cards)


def _added_up(db: Db, start: datetime, tails: Mapping[str, datetime], of: int) -> dict[Key, tuple[GpuSample, ...]]:
    """The cards of boxes added up here, by box, tier and time. ``of`` how many boxes there are."""
    if not tails:
        return {}
    named = "and box {any[boxes]}" if len(tails) < of else ""
    params: dict[str, Any] = {"boxes": list(tails)} if named else {}
    rows = db.all(
        f"select box, 'minute' as tier, at, {ADDED_UP} from flight_recorder_gpu where tier = 'minute' and at >= {{start}} "
        f"and at <= {{after[ahead]}} {named} group by box, at",
        start=start,
        ahead=AHEAD_S,
        **params,
    )
    what = f"d.box, d.tier, d.at, {ADDED_UP}"
    rows += _tails(db, "flight_recorder_gpu", what, tails, group="group by d.box, d.tier, d.at")
    return {(row["box"], row["tier"], row["at"]): some for row in rows if (some := unfold(row))}


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


def _minutes(db: Db, table: str, columns: Sequence[str], start: datetime, boxes: Sequence[str] | None) -> list[Row]:
    """Unsorted: sorting tens of thousands of wide rows costs the server more than finding them."""
    named = "and box {any[boxes]}" if boxes is not None else ""
    params: dict[str, Any] = {"start": start, "ahead": AHEAD_S} | ({"boxes": list(boxes)} if boxes is not None else {})
    return db.all(
        f"select {', '.join(columns)} from {table} where tier = 'minute' and at >= {{start}} and at <= {{after[ahead]}} {named}",
        **params,
    )


def _of_tail(columns: Sequence[str]) -> str:
    return ", ".join(f"d.{column}" for column in columns)


def _tails(
    db: Db, table: str, what: str, tails: Mapping[str, datetime], tier: str = "detail", group: str = ""
) -> list[Row]:
    """Per box the rows of a tier from its own time on, one index range each; unsorted. ``what`` to select of ``d``."""
    if not tails:
        return []
    if db.kind == "postgresql":
        # "offset 0" keeps the planner from joining the whole table to the list of boxes instead.
        source = (
            "jsonb_to_recordset({tails}::text::jsonb) as t(box text, start_at timestamptz) cross join lateral "
            f"(select * from {table} f where f.box = t.box and f.tier = '{tier}' and f.at >= t.start_at "
            "and f.at <= {after[ahead]} offset 0) d"
        )
    else:
        source = (
            f"json_each({{tails}}) t cross join {table} d on d.box = json_extract(t.value, '$.box') "
            f"and d.tier = '{tier}' and d.at >= json_extract(t.value, '$.start_at') and d.at <= {{after[ahead]}}"
        )
    wanted = [
        {"box": box, "start_at": start.astimezone(UTC).isoformat(timespec="microseconds")}
        for box, start in tails.items()
    ]
    return db.all(f"select {what} from {source} {group}", tails=json.dumps(wanted), ahead=AHEAD_S)
