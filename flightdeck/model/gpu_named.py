"""What a GPU says besides its columns, out of ``sensors.gpus``: health, the last fault, its bus, its slices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flightdeck.model.text import clean
from flightdeck.model.units import known

SLICES = 16


@dataclass(frozen=True, slots=True)
class GpuNamed:
    """Celsius, watts, bytes per second; None: not offered. ``slices``: used and total MiB of each instance (MIG)."""

    health: str = ""
    hotspot_c: float | None = None
    module_w: float | None = None
    pcie_tx_bps: float | None = None
    pcie_rx_bps: float | None = None
    pcie_replays: float | None = None
    xid_last: int | None = None
    xid_age_s: float | None = None
    slices: tuple[tuple[float, float], ...] = ()


def read_gpu_named(data: object) -> dict[int, GpuNamed]:
    """By GPU index; whatever else a program wrote there is left out."""
    items = data.items() if isinstance(data, Mapping) else ()
    return {
        int(index): _one(values)
        for index, values in items
        if isinstance(index, str) and index.isdecimal() and isinstance(values, Mapping)
    }


def _one(values: Mapping[object, object]) -> GpuNamed:
    xid = _number(values.get("xid_last"))
    return GpuNamed(
        health=clean(values.get("health"), 60),
        hotspot_c=_number(values.get("hotspot_c")),
        module_w=_number(values.get("module_w")),
        pcie_tx_bps=_number(values.get("pcie_tx_bps")),
        pcie_rx_bps=_number(values.get("pcie_rx_bps")),
        pcie_replays=_number(values.get("pcie_replays")),
        xid_last=None if xid is None else int(xid),
        xid_age_s=_number(values.get("xid_age_s")),
        slices=_slices(values.get("mig")),
    )


def _slices(data: object) -> tuple[tuple[float, float], ...]:
    found = []
    for row in data[:SLICES] if isinstance(data, list) else ():
        if isinstance(row, Mapping):
            used, total = _number(row.get("used_mb")), _number(row.get("total_mb"))
            if used is not None and total:
                found.append((used, total))
    return tuple(found)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and known(value) else None
