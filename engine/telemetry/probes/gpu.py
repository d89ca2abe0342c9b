"""What the probes of GPUs have in common: the shape of a reading, and the range in which a number is believed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from engine.telemetry.sample import GpuFacts, GpuSample


@dataclass
class GpuReading:
    """What the GPUs of one vendor said; ``absent`` has reasons by index and column, ``extra`` named values by index.

    ``processes``: ``{pid, name, gpu_index, mem_mb}`` of those that hold most memory; None: this driver does not tell.
    """

    gpus: tuple[GpuSample, ...] = ()
    facts: tuple[GpuFacts, ...] = ()
    driver: str | None = None
    absent: dict[int, dict[str, str]] = field(default_factory=dict)
    extra: dict[int, dict[str, Any]] = field(default_factory=dict)
    processes: tuple[dict[str, Any], ...] | None = None


def within(value: float | None, low: float, high: float) -> float | None:
    """The value when it is plausible, else None."""
    return float(value) if value is not None and low <= value <= high else None


# Columns that a card may lack; every one that is null has its reason in ``absent``.
EXPLAINED = (
    "util_pct", "mem_used_mb", "temp_c", "mem_temp_c", "power_w", "power_inst_w", "power_limit_w", "sm_mhz", "fan_pct",
    "fan_rpm", "pcie_gen", "pcie_width", "pstate", "throttle_mask", "ecc_uncorrected",
)  # fmt: skip


def explain(row: GpuSample, absent: dict[str, str], columns: Iterable[str] = EXPLAINED) -> None:
    """Give every null column a reason, where nobody has given a better one."""
    for column in columns:
        if getattr(row, column) is None and column not in absent:
            absent[column] = "no plausible reading"
