"""The traces there are: where their readings come from, and the range in which they are drawn. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from flightdeck.model.slots import Pair
from flightdeck.model.units import known

if TYPE_CHECKING:
    from engine.telemetry.sample import BoxSample

Span = tuple[float, float, float]  # lowest, highest, value


@dataclass(frozen=True)
class Metric:
    """One trace: where its readings come from and how its range is found."""

    key: str
    label: str
    kind: str  # temp | watts | mhz | ghz | pct | rate | mem
    gpu: bool
    column: str


METRICS = (
    Metric("gpu_c", "GPU C", "temp", True, "temp_c"),
    Metric("cpu_c", "CPU C", "temp", False, "cpu_temp_c"),
    Metric("zone_c", "ZONE C", "temp", False, "zone_max_c"),
    Metric("gpu_w", "GPU W", "watts", True, "power_w"),
    Metric("gpu_mhz", "GPU MHz", "mhz", True, "sm_mhz"),
    Metric("cpu_mhz", "CPU GHz", "ghz", False, "cpu_mhz"),
    Metric("cpu_pct", "CPU %", "pct", False, "cpu_pct"),
    Metric("net_rx", "NET in", "rate", False, "net_rx_bps"),
    Metric("net_tx", "NET out", "rate", False, "net_tx_bps"),
    Metric("core", "CORE %", "pct", False, "core_max_pct"),
    Metric("mem", "MEM G", "mem", False, "mem_used_mb"),
    Metric("gpu_pct", "GPU %", "pct", True, "util_pct"),
)
BY_KEY = {metric.key: metric for metric in METRICS}
_OF_GPUS = [metric.gpu for metric in METRICS]
_of_box = attrgetter(*(metric.column for metric in METRICS if not metric.gpu))
_of_gpu = attrgetter(*(metric.column for metric in METRICS if metric.gpu))


def spans(sample: BoxSample) -> list[Span | None]:
    """(lowest, highest, value) of every metric in one row, over the GPUs where it is one of theirs. None: no reading.

    Hundreds of rows a second come from a large fleet: the values are taken out of each row and of each card at once.
    """
    if sample.tier == "minute" or sample.low or sample.high:
        return [_span(sample, metric) for metric in METRICS]
    box = iter(_of_box(sample))
    gpus = zip(*map(_of_gpu, sample.gpus), strict=True) if sample.gpus else None
    found: list[Span | None] = []
    for of_gpu in _OF_GPUS:
        if not of_gpu:
            value = next(box)
            found.append((value, value, value) if value is not None and known(value) else None)
        else:
            found.append(None if gpus is None else _over(next(gpus)))
    return found


def _over(values: Sequence[float | None]) -> Span | None:
    """The span of the cards' values."""
    if None in values:
        values = [value for value in values if value is not None]
        if not values:
            return None
    if not -math.inf < sum(values) < math.inf:  # type: ignore[arg-type]  # one of them is no number
        values = [value for value in values if known(value)]
        if not values:
            return None
    high = max(values)  # type: ignore[type-var]
    return min(values), high, high  # type: ignore[return-value,type-var]


def _span(sample: BoxSample, metric: Metric) -> Span | None:
    """The same of one metric, with the ends that a minute row has."""
    column = metric.column
    found: Span | None = None
    for source in sample.gpus if metric.gpu else (sample,):
        value = getattr(source, column)
        low = source.low.get(column, value) if source.low else value
        high = source.high.get(column, value) if source.high else value
        if low is None or high is None or not known(low) or not known(high):
            continue
        if low > high:
            low, high = high, low
        middle = float(value if known(value) else high)
        if found is None:
            found = (low, high, middle)
        else:
            found = (min(found[0], low), max(found[1], high), max(found[2], middle))
    return found


def find_range(kind: str, low: float, high: float, hint: float | None = None) -> Pair:
    """A range that informs, with round ends."""
    if kind == "pct":
        return 0.0, 100.0
    if kind == "temp":
        bottom = 40.0 if low >= 40.0 else math.floor(low / 20.0) * 20.0
        return bottom, max(100.0, math.ceil(high / 10.0) * 10.0)
    if kind == "watts":
        return 0.0, _round_up(max(high, hint or 0.0, 10.0))
    if kind == "rate":
        return 0.0, _round_up(max(high, 1e5))
    if kind == "mem":
        return 0.0, max(high, hint or 1024.0)
    step = 1000.0 if kind == "ghz" else 300.0
    bottom, top = math.floor(low / step) * step, math.ceil(high / step) * step
    if top - bottom < 2 * step:
        bottom = max(0.0, bottom - step)
        top = max(top, bottom + 2 * step)
    return bottom, top


def _round_up(value: float) -> float:
    """The next of 1, 1.2, 1.4, 1.6, 2, 2.5, 3, 4, 5, 6, 8 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    for step in (1, 1.2, 1.4, 1.6, 2, 2.5, 3, 4, 5, 6, 8, 10):
        if value <= step * power * (1.0 + 1e-12):  # 1.2 times a power of ten may be a hair below it
            return max(float(step * power), value)
    return 10.0 * power
