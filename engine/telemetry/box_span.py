"""The GPUs of one box over a span of time: lowest and highest reading per bucket, seconds throttled per cause.

An hour and less is read from the details, so that a bucket may be shorter than a minute; what has no details any more,
and longer spans, from the minute rows, whose ranges keep every spike. Buckets are snapped to the epoch: they do not
wander between two readings. A GPU is its uuid; its index is only where it stands now.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from engine.store import Db
from engine.store.db import Row
from engine.telemetry.rows import AHEAD_S, summed

SERIES = ("util_pct", "mem_used_mb", "temp_c", "mem_temp_c", "power_w", "sm_mhz", "fan_pct", "fan_rpm")
CAUSES = ("sw_power_ms", "sw_thermal_ms", "hw_thermal_ms", "hw_brake_ms", "sync_boost_ms")
LONGEST_S = 7 * 86400.0
DETAIL_S = 3600.0
MOST_BUCKETS = 1024
_MINUTE_S = 60.0


def box_span(
    db: Db, box: str, seconds: float = 3600.0, bucket_s: float = 30.0, gpu: str | None = None
) -> dict[str, Any]:
    """Series of the GPUs of ``box`` for the last ``seconds``, in buckets of ``bucket_s`` (at least 1 s).

    ``gpu``: the uuid of the one card that is wanted, or ``#`` and its index where cards have no uuid. JSON-able:
    ``{box, at, bucket_s, first, count, gpus: [{uuid, index, series: {metric: [[low, high] or None, ...]}, held: {cause:
    [ms or None, ...]}, brakes: [n or None, ...], source, xid, xid_at}]}``. Bucket i of ``count`` starts at
    ``(first + i) * bucket_s`` seconds of the epoch. A metric without any reading is left out.
    """
    seconds = min(max(10.0, float(seconds)), LONGEST_S)
    bucket_s = max(1.0, float(bucket_s), seconds / MOST_BUCKETS)
    now = db.now()
    last = math.floor(now.timestamp() / bucket_s)
    first = math.floor((now.timestamp() - seconds) / bucket_s) + 1
    start = datetime.fromtimestamp(first * bucket_s, UTC)
    cards: dict[str, Card] = {}

    def take(tier: str, since: datetime, until: datetime | None, wide: int = 1, gaps_only: bool = False) -> None:
        for row in _buckets(db, box, tier, since, until, bucket_s, gpu):
            uuid = row["gpu_uuid"] or f"#{row['gpu_index']}"
            card = cards.setdefault(uuid, Card(uuid, last - first + 1))
            card.take(row, row["bucket"] - first, wide, gaps_only)

    wide = max(1, math.ceil(_MINUTE_S / bucket_s))
    if seconds <= DETAIL_S:
        take("detail", start, None)
        begin = _edge(db, box, "min", "detail", start)
        if begin is None or begin > start + timedelta(seconds=_MINUTE_S):
            take("minute", start - timedelta(seconds=_MINUTE_S), begin, wide, gaps_only=True)
    else:
        take("minute", start, None, wide)
        end = _edge(db, box, "max", "minute", start)
        take("detail", start if end is None else end + timedelta(seconds=_MINUTE_S), None)
    gpus = sorted(cards.values(), key=lambda card: (card.index, -card.seen.timestamp()))
    return {
        "box": box,
        "at": now.astimezone(UTC).isoformat(),
        "bucket_s": bucket_s,
        "first": first,
        "count": last - first + 1,
        "gpus": [card.plain(_xid_since(db, box, card, start) if card.xid else None) for card in gpus],
    }


class Card:
    """One GPU's buckets while they are filled."""

    def __init__(self, uuid: str, count: int) -> None:
        self.uuid = uuid
        self.index = 0
        self.seen = datetime(1, 1, 1, tzinfo=UTC)
        self.source: str | None = None
        self.xid: int | None = None
        self._count = count
        self._series: dict[str, list[list[float] | None]] = {name: [None] * count for name in SERIES}
        self._ends = [(f"{name}_low", f"{name}_high", series) for name, series in self._series.items()]
        self._held: dict[str, list[float | None]] = {name: [None] * count for name in (*CAUSES, "brakes")}

    def take(self, row: Row, at: int, wide: int, gaps_only: bool) -> None:
        """Add a row of bucket ``at`` that stands for ``wide`` buckets; ``gaps_only``: where nothing is known yet."""
        if row["last_at"] >= self.seen:
            self.seen, self.index = row["last_at"], row["gpu_index"]
            self.source = row["source"] or self.source
            self.xid = row["xid"] or self.xid
        for bucket in range(max(0, at), min(at + wide, self._count)):
            for lowest, highest, series in self._ends:
                low, high = row[lowest], row[highest]
                if low is None or high is None:
                    continue
                before = series[bucket]
                if before is None:
                    series[bucket] = [low, high]
                elif not gaps_only:
                    series[bucket] = [min(before[0], low), max(before[1], high)]
            for name, sums in self._held.items():
                value = row[name]
                if value is None or (gaps_only and sums[bucket] is not None):
                    continue
                sums[bucket] = round((sums[bucket] or 0.0) + float(value) / wide, 3)

    def plain(self, xid_at: str | None) -> dict[str, Any]:
        brakes = self._held["brakes"]
        return {
            "uuid": self.uuid,
            "index": self.index,
            "series": {name: series for name, series in self._series.items() if any(series)},
            "held": {name: self._held[name] for name in CAUSES},
            "brakes": brakes,
            "source": self.source,
            "xid": self.xid,
            "xid_at": xid_at,
        }


def _edge(db: Db, box: str, end: str, tier: str, start: datetime) -> datetime | None:
    """The first (``min``) or last (``max``) row of a tier since ``start``."""
    found = db.value(
        f"select {end}(at) as edge_at from flight_recorder where box = {{box}} and tier = '{tier}' and at >= {{start}} "
        "and at <= {after[ahead]}",
        box=box,
        start=start,
        ahead=AHEAD_S,
    )
    return found if isinstance(found, datetime) else None


def _buckets(
    db: Db, box: str, tier: str, since: datetime, until: datetime | None, bucket_s: float, gpu: str | None
) -> list[Row]:
    """One row per card and bucket; ``tier`` is a constant of this module."""
    bucket = (
        "floor(extract(epoch from at)::float8 / {size})::bigint"
        if db.kind == "postgresql"
        else "cast(strftime('%s', at) / {size} as integer)"
    )
    low, high = ("_min", "_max") if tier == "minute" else ("", "")
    ends = ", ".join(f"min({name}{low}) as {name}_low, max({name}{high}) as {name}_high" for name in SERIES)
    held = ", ".join(f"{summed(name)} as {name}" for name in (*CAUSES, "brakes"))
    params: dict[str, Any] = {"since": since, "until": until or db.now() + timedelta(seconds=AHEAD_S)}
    one = ""
    if gpu is not None and gpu.startswith("#"):
        one = "and gpu_uuid is null and gpu_index = {number}"
        params["number"] = int(gpu[1:]) if gpu[1:].isdecimal() and len(gpu) < 9 else -1
    elif gpu is not None:
        one, params["gpu"] = "and gpu_uuid = {gpu}", gpu
    return db.all(
        f"select {bucket} as bucket, gpu_index, gpu_uuid, max(at) as last_at, {ends}, {held}, max(xid) as xid, "
        "min(throttle_source) as source from flight_recorder_gpu "
        f"where box = {{box}} and tier = '{tier}' and at >= {{since}} and at < {{until}} {one} "
        "group by 1, gpu_index, gpu_uuid order by 1",
        box=box,
        size=bucket_s,
        **params,
    )


def _xid_since(db: Db, box: str, card: Card, start: datetime) -> str | None:
    """When the card's last error was first told within the span."""
    at = db.value(
        "select min(at) as first_at from flight_recorder_gpu where box = {box} and tier {any[tiers]} and at >= {start} "
        "and gpu_index = {number} and xid = {xid}",
        box=box,
        tiers=["detail", "minute"],
        start=start,
        number=card.index,
        xid=card.xid,
    )
    return at.astimezone(UTC).isoformat() if isinstance(at, datetime) else None
