"""Heat, fans and power rails: /sys/class/thermal and /sys/class/hwmon.

GPUs and drives have their own probes; their chips are left out here. A sensor that says what no running machine can
(see files.plausible_zone_c) is a gap, and named as one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.telemetry.probes import files, rails
from engine.telemetry.probes.disk import DRIVE_CHIPS

COLUMNS = ("cpu_temp_c", "fan_max_rpm")

GPU_CHIPS = ("amdgpu", "radeon", "nouveau", "nvidia", "i915", "xe")
CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal")
CPU_ZONES = re.compile(r"x86_pkg_temp|(cpu|soc|cluster|big|little).*[-_]?therm.*|cpuss.*|tcpu", re.IGNORECASE)
LOOK_AGAIN_S = 60.0  # chips come and go with their modules
FAN_MAX_RPM = 50_000

Reader = Callable[[], float | None]


class ThermalProbe:
    def __init__(self, root: Path) -> None:
        self._hwmon = f"{root}/sys/class/hwmon"
        self._thermal = f"{root}/sys/class/thermal"
        self._found_at = float("-inf")
        self._zones: dict[str, Reader] = {}
        self._fans: dict[str, Reader] = {}
        self._rails: dict[str, Reader] = {}
        self._cpu: list[str] = []  # the zones that are the processor's
        self._energy = rails.Energy(root)

    def read(self) -> dict[str, Any]:
        now = time.monotonic()
        if now - self._found_at >= LOOK_AGAIN_S:
            self._look()
            self._found_at = now
        zones, fans, watts = _all(self._zones), _all(self._fans), _all(self._rails)
        cpu = [zones[name] for name in self._cpu if name in zones]
        absent = dict.fromkeys(self._zones.keys() - zones.keys(), "no plausible reading")
        if not self._cpu:
            absent["cpu_temp_c"] = "no sensor (container or virtual machine?)"
        elif not cpu:
            absent["cpu_temp_c"] = "no plausible reading"
        if not self._fans:
            absent["fan_max_rpm"] = "no fan tach"
        elif not fans:
            absent["fan_max_rpm"] = "no plausible reading"
        return {
            "cpu_temp_c": max(cpu, default=None),
            "fan_max_rpm": max(fans.values(), default=None),
            "absent": absent,
            "zones": zones,
            "sensors": {"fans": fans, "rails": watts | self._energy.watts()},
        }

    def _look(self) -> None:
        self._zones, self._fans, self._rails, self._cpu = {}, {}, {}, []
        cpu_zones: list[str] = []
        for entry in files.children(self._thermal):
            path = f"{self._thermal}/{entry}"
            kind = files.text(f"{path}/type") if entry.startswith("thermal_zone") else None
            if kind:
                name = _unused(kind, self._zones)
                self._zones[name] = _celsius(f"{path}/temp")
                if CPU_ZONES.fullmatch(kind):
                    cpu_zones.append(name)
        acpi = [name for name in self._zones if name.startswith("acpitz")]
        for entry in files.children(self._hwmon):
            path = f"{self._hwmon}/{entry}"
            chip = files.text(f"{path}/name")
            if not chip or chip in GPU_CHIPS or chip in DRIVE_CHIPS or files.asleep(f"{path}/device"):
                continue
            self._chip(path, chip)
        # ARM boards such as GB10 have ACPI zones as the only thermometers of their processor.
        if not self._cpu:
            self._cpu = cpu_zones or (acpi if len(acpi) > 1 else [])

    def _chip(self, path: str, chip: str) -> None:
        inputs = [name for name in files.children(path) if name.endswith("_input")]
        labels = {name: files.text(f"{path}/{name.rsplit('_', 1)[0]}_label") for name in inputs}
        packages = any((label or "").startswith("Package") for label in labels.values())
        die = "Tdie" in labels.values()
        for rail, read in rails.of_chip(path, chip).items():
            self._rails[_unused(rail, self._rails)] = read
        for name in inputs:
            sensor = name.rsplit("_", 1)[0]
            label = f"{chip} {labels[name] or sensor}"
            if sensor.startswith("temp"):
                if chip == "coretemp" and packages and (labels[name] or "").startswith("Core"):
                    continue  # the package is the hottest of its cores
                if chip == "acpitz":
                    continue  # the thermal zone says the same
                if die and labels[name] == "Tctl":
                    continue  # the same die plus a constant, for the fan's sake
                label = _unused(label, self._zones)
                self._zones[label] = _celsius(f"{path}/{name}", f"{path}/{sensor}_fault")
                if chip in CPU_CHIPS:
                    self._cpu.append(label)
            elif sensor.startswith("fan"):
                self._fans[_unused(label, self._fans)] = _fan(f"{path}/{name}", f"{path}/{sensor}_fault")


def _all(readers: dict[str, Reader]) -> dict[str, float]:
    return {name: value for name, read in readers.items() if (value := read()) is not None}


def _celsius(path: str, fault: str | None = None) -> Reader:
    return lambda: None if fault and files.number(fault) == 1 else files.zone_c(path)


def _fan(path: str, fault: str) -> Reader:
    def read() -> float | None:
        value = files.number(path)
        return float(value) if value is not None and 0 <= value < FAN_MAX_RPM and files.number(fault) != 1 else None

    return read


def _unused(name: str, taken: dict[str, Any]) -> str:
    """The name, numbered when there is one already."""
    if name not in taken:
        return name
    count = 2
    while f"{name} {count}" in taken:
        count += 1
    return f"{name} {count}"
