"""What NVIDIA's boards with the GPU in the processor tell by files: NVML lists their GPU and supports none of it."""

from __future__ import annotations

from pathlib import Path

from engine.telemetry.probes import files
from engine.telemetry.probes.gpu import within

_DEVICES = ("sys/devices/platform/gpu.0", "sys/devices/gpu.0", "sys/devices/platform/bus@0/17000000.gpu")
_ZONES = ("gpu-thermal", "GPU-therm")


class Jetson:
    """Paths are looked for once."""

    def __init__(self, root: Path) -> None:
        device = next((f"{root}/{path}" for path in _DEVICES if files.number(f"{root}/{path}/load") is not None), None)
        self._load = f"{device}/load" if device else None
        self._clocks = [f"{device}/devfreq/{name}/cur_freq" for name in files.children(f"{device}/devfreq")]
        zones = f"{root}/sys/class/thermal"
        self._zone = next(
            (f"{zones}/{zone}/temp" for zone in files.children(zones) if files.text(f"{zones}/{zone}/type") in _ZONES),
            None,
        )

    def util_pct(self) -> float | None:
        return within(files.scaled(self._load, 10), 0, 100) if self._load else None  # per mille

    def temp_c(self) -> float | None:
        return files.celsius(self._zone) if self._zone else None

    def mhz(self) -> float | None:
        return next((mhz for path in self._clocks if (mhz := within(files.scaled(path, 1e6), 1, 6000))), None)
