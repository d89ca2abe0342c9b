"""What the simulated boxes say by name, as a real recorder's ``sensors`` do: fans, rails, disks, who holds the memory."""

from __future__ import annotations

from typing import Any

from flightdeck.demo.boxes import BoxProfile, GpuProfile
from flightdeck.demo.physics import BoxReading, GpuReading

_PCIE_LANE_BPS = {3: 0.98e9, 4: 1.97e9, 5: 3.94e9}
_HELD_MB = 600.0  # more than this in use: some process has a model there


def named(profile: BoxProfile, reading: BoxReading) -> dict[str, Any]:
    """The parts of ``sensors`` besides zones and reasons; see docs/telemetry.md for keys and units."""
    fans = {}
    if profile.fan_max_rpm is not None:
        fans = {
            "front": round(profile.fan_max_rpm * reading.fan),
            "rear": round(profile.fan_max_rpm * reading.fan * 0.86),
        }
    found: dict[str, Any] = {
        "fans": fans,
        "rails": _rails(profile, reading),
        "net": {"eno1": (round(reading.net_rx_bps), round(reading.net_tx_bps))},
        "disks": {"nvme0n1": (round(reading.disk_read_bps), round(reading.disk_write_bps))},
        "mounts": {"/": float(41 + profile.seed % 30)},
        "pressure": {"cpu": round(max(0.0, reading.load1 / profile.cores - 0.8) * 40.0, 1), "memory": 0.0, "io": 0.0},
        "gpus": {str(i): _gpu(gpu, reading.gpus[i]) for i, gpu in enumerate(profile.gpus)},
    }
    if any(gpu.vendor == "nvidia" for gpu in profile.gpus):  # other drivers do not tell whose the memory is
        found["processes"] = [
            {"pid": 4100 + i, "name": "python3 -m worker", "gpu_index": i, "mem_mb": round(gpu.mem_mb)}
            for i, gpu in enumerate(reading.gpus)
            if gpu.mem_mb > _HELD_MB
        ]
    return found


def _rails(profile: BoxProfile, reading: BoxReading) -> dict[str, float]:
    """A processor's own energy counter, where it is no part of the GPU's package."""
    if profile.shares_heat:
        return {}
    watts = profile.cpu_idle_w + (profile.cpu_full_w - profile.cpu_idle_w) * reading.cpu_pct / 100
    return {"rapl package-0": round(watts, 1)}


def _gpu(profile: GpuProfile, reading: GpuReading) -> dict[str, Any]:
    if profile.vendor != "nvidia":
        return {"hotspot_c": round(reading.temp_c + 4 + 0.08 * reading.util_pct, 1)}
    if profile.pcie is None:
        return {"health": "ok"}
    most = _PCIE_LANE_BPS.get(profile.pcie[0], 1e9) * profile.pcie[1]
    moved = round(most * 0.04 * reading.util_pct / 100)
    return {"health": "ok", "pcie_tx_bps": moved // 3, "pcie_rx_bps": moved, "pcie_replays": 0}
