"""A box's GPUs as one: what the overview of a large fleet draws of a time. Pure, but for the SQL that says the same.

``flight_recorder`` keeps it in columns (``sample.BOX_FOLDED``), so that an hour of a hundred boxes with eight GPUs each is
read without touching 48,000 rows of cards. Rows of programs that do not write these columns are added up by :data:`ADDED_UP`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.telemetry.sample import FOLDED_RANGES, FOLDED_WORST, GpuSample, clean
from engine.telemetry.throttle import worst

TOGETHER = -1  # the index of a card that stands for all of them
_SOURCES = ("mask", "smi", "counter", "none")  # the least exact one speaks for all
_MORE_WORST = ("sw_power_ms", "sw_thermal_ms", "hw_thermal_ms", "brakes")  # the box's row has these, if its writer knew

# The same from rows of cards, to be grouped by box and time; columns named as in sample.BOX_FOLDED, and _MORE_WORST.
ADDED_UP = ", ".join(
    [f"min(coalesce({metric}_min, {metric})) as gpu_{metric}_min, max(coalesce({metric}_max, {metric})) as gpu_{metric}_max"
     for metric in FOLDED_RANGES]
    + [f"max({cause}) as gpu_{cause}" for cause in (*FOLDED_WORST, *_MORE_WORST)]
    + ["max(case when throttle_source = 'mask' then 'mask' end) as gpu_throttle_source"]
)  # fmt: skip


def fold(gpus: Sequence[GpuSample]) -> dict[str, Any]:
    """The columns of ``sample.BOX_FOLDED`` for the GPUs of one row; what no GPU has is left out."""
    found: dict[str, Any] = {}
    for metric in FOLDED_RANGES:
        plain = [getattr(gpu, metric) for gpu in gpus]
        lows = (clean(metric, gpu.low.get(metric, value)) for gpu, value in zip(gpus, plain, strict=True))
        highs = (clean(metric, gpu.high.get(metric, value)) for gpu, value in zip(gpus, plain, strict=True))
        found[f"gpu_{metric}_min"] = min((value for value in lows if value is not None), default=None)
        found[f"gpu_{metric}_max"] = worst(highs)
    for cause in FOLDED_WORST:
        found[f"gpu_{cause}"] = worst(clean(cause, getattr(gpu, cause)) for gpu in gpus)
    sources = {gpu.throttle_source for gpu in gpus}
    found["gpu_throttle_source"] = next((source for source in _SOURCES if source in sources), None)
    return {name: value for name, value in found.items() if value is not None}


def unfold(row: Mapping[str, Any]) -> tuple[GpuSample, ...]:
    """Two cards that stand for all: one with what is highest, and the worst of causes, one with what is lowest. One where
    these are the same; none when the row knows of no card."""
    low = {metric: value for metric in FOLDED_RANGES if (value := row[f"gpu_{metric}_min"]) is not None}
    high = {metric: value for metric in FOLDED_RANGES if (value := row[f"gpu_{metric}_max"]) is not None}
    rest: dict[str, Any] = {
        name: value
        for name in (*FOLDED_WORST, *_MORE_WORST, "throttle_source")
        if (value := row.get(f"gpu_{name}")) is not None
    }
    if not low and not high and not rest:
        return ()
    highest = GpuSample(TOGETHER, **high, **rest)
    return (highest,) if low == high else (highest, GpuSample(TOGETHER, **low))
