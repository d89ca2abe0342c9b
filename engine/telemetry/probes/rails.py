"""Power rails in watts: hwmon chips that measure them, current and voltage monitors, the processor's energy counters.

None of these is to be expected. A box that measures its supply (GB10's out-of-tree ``spbm``, INA3221 on Jetson boards, a
server's power monitor) shows it by the label that the chip gives it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from engine.telemetry.probes import files

MOST_W = 20_000.0
Reader = Callable[[], float | None]


def of_chip(path: str, chip: str) -> dict[str, Reader]:
    """The rails of one hwmon chip: its power inputs, else products of voltage and current inputs of the same number."""
    found: dict[str, Reader] = {}
    names = files.children(path)
    for name in names:
        sensor, _, kind = name.rpartition("_")
        if (
            sensor.startswith("power")
            and kind in ("input", "average")
            and f"{chip} {_label(path, sensor)}" not in found
        ):
            found[f"{chip} {_label(path, sensor)}"] = _power(f"{path}/{name}")
    if not found:
        for name in names:
            number = name.removeprefix("curr").removesuffix("_input")
            if name.startswith("curr") and number.isdigit() and f"in{number}_input" in names:
                label = _label(path, f"in{number}", _label(path, f"curr{number}"))
                found[f"{chip} {label}"] = _product(f"{path}/in{number}_input", f"{path}/{name}")
    return found


class Energy:
    """RAPL: joules that a package, its cores or its memory took; readable by root only, mostly."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._before: dict[str, tuple[float, int]] = {}
        self._zones: dict[str, tuple[str, int]] = {}  # name -> file, modulus
        base = f"{root}/sys/class/powercap"
        for entry in files.children(base):
            if not entry.startswith("intel-rapl:"):  # AMD's too; intel-rapl-mmio counts the same once more
                continue
            path = f"{base}/{entry}"
            name, most = files.text(f"{path}/name"), files.number(f"{path}/max_energy_range_uj")
            if name and most and files.number(f"{path}/energy_uj") is not None:
                package = entry.split(":")[1]
                self._zones[f"rapl {name}" if name.startswith("package") else f"rapl {name} {package}"] = (
                    f"{path}/energy_uj",
                    most + 1,
                )

    def watts(self) -> dict[str, float]:
        """By zone, since the last call; a counter that wrapped is followed."""
        found = {}
        for name, (path, modulus) in self._zones.items():
            now, energy = self._clock(), files.number(path)
            before = self._before.pop(name, None)
            if energy is None:
                continue
            self._before[name] = (now, energy)
            if before is not None and now > before[0]:
                watts = (energy - before[1]) % modulus / (now - before[0]) / 1e6
                if watts < MOST_W:
                    found[name] = round(watts, 2)
        return found


def _label(path: str, sensor: str, otherwise: str | None = None) -> str:
    return files.text(f"{path}/{sensor}_label") or otherwise or sensor


def _power(path: str) -> Reader:
    def read() -> float | None:
        value = files.scaled(path, 1e6)
        return value if value is not None and 0 < value < MOST_W else None

    return read


def _product(volts: str, amperes: str) -> Reader:
    """Thousandths of each."""

    def read() -> float | None:
        millivolts, milliamperes = files.number(volts), files.number(amperes)
        if millivolts is None or milliamperes is None:
            return None
        value = millivolts * milliamperes / 1e6
        return round(value, 3) if 0 < value < MOST_W else None

    return read
