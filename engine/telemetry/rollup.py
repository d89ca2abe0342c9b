"""A minute of samples as one row that keeps every spike: minimum, maximum and mean, sums of throttling. Pure.

A minute row is a function of the minute's detail rows and of nothing else, so that writing it again (after a restart,
an outage, late samples) neither doubles nor loses anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from engine.telemetry.sample import BOX_METRICS, BOX_RANGED, GPU_METRICS, GPU_RANGED, BoxSample, GpuSample
from engine.telemetry.throttle import total

_SUMMED = frozenset(
    {"cpu_throttle_ms", "power_ms", "thermal_ms", "sw_power_ms", "hw_brake_ms", "sw_thermal_ms", "hw_thermal_ms"}
    | {"sync_boost_ms", "brakes"}
)
_SOURCES = ("mask", "smi", "counter", "none")  # the least exact one that took part speaks for the minute
_SPECIAL = frozenset({"zone_max_name", "throttle_mask", "throttle_source"})


def minute_of(at: datetime) -> datetime:
    """The start of the minute that a time is in."""
    return at.replace(second=0, microsecond=0)


def by_minute(samples: Iterable[BoxSample]) -> dict[datetime, list[BoxSample]]:
    """The samples by their minute, in order of time."""
    minutes: dict[datetime, list[BoxSample]] = {}
    for sample in sorted(samples, key=lambda s: s.at):
        minutes.setdefault(minute_of(sample.at), []).append(sample)
    return minutes


def roll_up(samples: Sequence[BoxSample]) -> BoxSample:
    """The minute row of one box's samples of one minute, at the minute's start. Needs at least one sample."""
    plain: dict[str, Any] = {}
    low: dict[str, float] = {}
    high: dict[str, float] = {}
    for metric in BOX_METRICS:
        if metric not in _SPECIAL:
            _fold(metric, metric in BOX_RANGED, samples, plain, low, high)
    hottest = max((s for s in samples if s.zone_max_c is not None), key=lambda s: s.zone_max_c or 0.0, default=None)
    plain["zone_max_name"] = hottest.zone_max_name if hottest else None
    return BoxSample(
        box=samples[-1].box,
        at=minute_of(samples[0].at),
        tier="minute",
        gpus=tuple(_roll_up_gpu(gpus) for gpus in _by_gpu(samples)),
        low=low,
        high=high,
        **plain,
    )


def _by_gpu(samples: Sequence[BoxSample]) -> list[list[GpuSample]]:
    """The samples of each GPU by index; when another card took an index within the minute, those of the last one."""
    seen: dict[int, list[GpuSample]] = {}
    for sample in samples:
        for gpu in sample.gpus:
            seen.setdefault(gpu.gpu_index, []).append(gpu)
    return [
        [gpu for gpu in gpus if gpu.gpu_uuid in (gpus[-1].gpu_uuid, None)] for _, gpus in sorted(seen.items()) if gpus
    ]


def _roll_up_gpu(gpus: Sequence[GpuSample]) -> GpuSample:
    plain: dict[str, Any] = {}
    low: dict[str, float] = {}
    high: dict[str, float] = {}
    for metric in GPU_METRICS:
        if metric not in _SPECIAL:
            _fold(metric, metric in GPU_RANGED, gpus, plain, low, high)
    masks = [gpu.throttle_mask for gpu in gpus if gpu.throttle_mask is not None]
    every = 0
    for mask in masks:
        every |= mask
    sources = {gpu.throttle_source for gpu in gpus}
    plain["throttle_mask"] = every if masks else None  # every reason that was given within the minute
    plain["throttle_source"] = next((source for source in _SOURCES if source in sources), None)
    return GpuSample(low=low, high=high, **plain)


def _fold(
    metric: str,
    ranged: bool,
    samples: Sequence[Any],
    plain: dict[str, Any],
    low: dict[str, float],
    high: dict[str, float],
) -> None:
    """One metric: a sum, a mean with its range, or the last value known."""
    known = [value for sample in samples if (value := getattr(sample, metric)) is not None]
    if not known:
        plain[metric] = None
    elif metric in _SUMMED:
        plain[metric] = total(known)
    elif ranged:
        plain[metric] = sum(known) / len(known)
        low[metric], high[metric] = min(known), max(known)
    else:
        plain[metric] = known[-1]
