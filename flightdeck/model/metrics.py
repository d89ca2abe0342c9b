"""The traces there are: where their readings come from, and the range in which they are drawn. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flightdeck.model.slots import Pair


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
        if value <= step * power * 1.0000001:
            return float(step * power)
    return 10.0 * power
