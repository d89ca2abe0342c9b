"""What the probes of GPUs have in common: the shape of a reading, and the range in which a number is believed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.telemetry.sample import GpuFacts, GpuSample


@dataclass
class GpuReading:
    """What the GPUs of one vendor said; ``absent`` has reasons by index and column, ``extra`` named values by index.

    ``processes``: ``{pid, name, gpu_index, mem_mb}`` of those that hold most memory.
    """

    gpus: tuple[GpuSample, ...] = ()
    facts: tuple[GpuFacts, ...] = ()
    driver: str | None = None
    absent: dict[int, dict[str, str]] = field(default_factory=dict)
    extra: dict[int, dict[str, Any]] = field(default_factory=dict)
    processes: tuple[dict[str, Any], ...] = ()


def within(value: float | None, low: float, high: float) -> float | None:
    """The value when it is plausible, else None."""
    return float(value) if value is not None and low <= value <= high else None
