"""This machine's sensors as one source: every probe behind its own deadline, their answers merged into a sample."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine import config
from engine.telemetry import throttle
from engine.telemetry.probes import cpu, disk, files, net, thermal
from engine.telemetry.probes.amd import AmdProbe
from engine.telemetry.probes.cpu import CpuProbe, memory
from engine.telemetry.probes.disk import DiskProbe
from engine.telemetry.probes.gpu import GpuReading
from engine.telemetry.probes.guard import Guard
from engine.telemetry.probes.intel import IntelProbe
from engine.telemetry.probes.net import NetProbe
from engine.telemetry.probes.nvidia import NvidiaProbe, load_pynvml
from engine.telemetry.probes.thermal import ThermalProbe
from engine.telemetry.sample import BOX_METRICS, BoxFacts, BoxSample, GpuFacts, GpuSample

DEADLINE_S = 1.0  # for one sample, all probes together
PROCESSES = 16  # of one sample, those that hold most of a GPU's memory
PRIME_S = 0.5  # how far apart two looks must be at least for rates to mean anything

_COLUMNS = {"cpu": cpu.COLUMNS, "net": net.COLUMNS, "disk": disk.COLUMNS, "thermal": (*thermal.COLUMNS, "zone_max_c")}


class RealSource:
    """Probes of this box. ``root`` is where /proc, /sys and /dev are looked for; ``load`` gives the NVML bindings."""

    def __init__(
        self,
        box: str | None = None,
        *,
        root: Path | str = "/",
        cadence_s: float = 2.0,
        load: Callable[[], Any] = load_pynvml,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.box = box or config.box_name()
        self._root = Path(root)
        self._deadline_s = min(deadline_s, cadence_s / 2)
        self._nvidia = NvidiaProbe(self._root, cadence_s, load, watch=True)
        self._amd = AmdProbe(self._root, cadence_s)
        mounts = ("/", data) if (data := _data_mount(self._root)) else ("/",)
        self._host: tuple[Guard[dict[str, Any]], ...] = (
            Guard("cpu", CpuProbe(self._root).read),
            Guard("net", NetProbe(self._root).read),
            Guard("disk", DiskProbe(self._root, mounts).read),
            Guard("thermal", ThermalProbe(self._root).read),
        )
        self._cards: tuple[Guard[GpuReading], ...] = (
            Guard("nvidia", self._nvidia.read),
            Guard("amd", self._amd.read),
            Guard("intel", IntelProbe(self._root, cadence_s).read),
        )
        self._guards: tuple[Guard[Any], ...] = (*self._host, *self._cards)
        self._known: dict[str, GpuReading] = {}  # the last answer of each vendor
        self._looked_at: float | None = None

    def facts(self) -> BoxFacts:
        """What this box is. Reads the GPUs once when nothing is known of them yet."""
        if self._looked_at is None:
            self._look()
        readings = [self._known[guard.name] for guard in self._cards if guard.name in self._known]
        return BoxFacts(
            box=self.box,
            machine_id=machine_id(self._root),
            cpu_model=_cpu_model(self._root),
            cores=_cores(self._root),
            mem_mb=memory(f"{self._root}/proc")["mem_total_mb"],
            gpus=tuple(fact for _, fact in _numbered_facts(readings)),
            driver=", ".join(reading.driver for reading in readings if reading.driver) or None,
            kernel=files.text(f"{self._root}/proc/sys/kernel/osrelease") or platform.release(),
        )

    def sample(self, dt_s: float) -> BoxSample:
        """One look. The first one looks twice, so that it has rates to tell."""
        if self._looked_at is None:
            self._look()
        if (soon := PRIME_S - (time.monotonic() - (self._looked_at or 0.0))) > 0:
            time.sleep(soon)
        host, readings = self._look()
        values: dict[str, Any] = {}
        zones: dict[str, float] = {}
        sensors: dict[str, Any] = {}
        absent: dict[str, str] = {}
        for guard, part in zip(self._host, host, strict=True):
            if part is None:
                absent |= dict.fromkeys(_COLUMNS[guard.name], guard.error or f"{guard.name}: waiting after a failure")
                continue
            values |= {name: value for name, value in part.items() if name in BOX_METRICS}
            zones |= part.get("zones", {})
            sensors |= part.get("sensors", {})
            absent |= part["absent"]
        hottest = max(zones.items(), key=lambda zone: zone[1], default=None)
        if hottest:
            values["zone_max_name"], values["zone_max_c"] = hottest
        else:
            absent.setdefault("zone_max_c", "no thermal zone or hwmon chip")
        gpus, named = self._gpus(readings)
        values |= over_gpus(gpus)
        sensors |= named | {"zones": zones, "absent": absent}
        return BoxSample(
            box=self.box,
            at=datetime.now(UTC),
            gpus=gpus,
            sensors={name: part for name, part in sensors.items() if part or name == "processes"},
            **values,
        )

    @property
    def problem(self) -> str | None:
        """The probes that do not answer now, in one line."""
        return "; ".join(guard.error for guard in self._guards if guard.error) or None

    @property
    def hung_s(self) -> float:
        """For how long the probe that hangs longest has hung, seconds."""
        return max(guard.hung_s for guard in self._guards)

    def close(self) -> None:
        for guard in self._guards:
            guard.close()
        self._nvidia.close(hangs=self._cards[0].error is not None)
        self._amd.close()

    def _look(self) -> tuple[list[dict[str, Any] | None], dict[str, GpuReading | None]]:
        for guard in self._guards:
            guard.ask()
        deadline = time.monotonic() + self._deadline_s
        host = [guard.collect(deadline) for guard in self._host]
        readings = {guard.name: guard.collect(deadline) for guard in self._cards}
        self._known |= {name: reading for name, reading in readings.items() if reading is not None}
        self._looked_at = time.monotonic()
        return host, readings

    def _gpus(self, readings: Mapping[str, GpuReading | None]) -> tuple[tuple[GpuSample, ...], dict[str, Any]]:
        """The cards of all vendors under one numbering, and their named values; a probe that is silent has errors."""
        gpus: list[GpuSample] = []
        extra: dict[str, Any] = {}
        absent: dict[str, Any] = {}
        processes: list[dict[str, Any]] | None = None
        offset = 0
        for guard in self._cards:
            known = self._known.get(guard.name)
            reading = readings[guard.name] or _silent(known, guard.error or "waiting after a failure")
            for card in reading.gpus:
                gpus.append(replace(card, gpu_index=card.gpu_index + offset) if offset else card)
            extra |= {str(index + offset): part for index, part in reading.extra.items()}
            absent |= {str(index + offset): part for index, part in reading.absent.items()}
            if reading.processes is not None:
                held = [part | {"gpu_index": part["gpu_index"] + offset} for part in reading.processes]
                processes = (processes or []) + held
            offset = _next_index(known, offset)
        named: dict[str, Any] = {"gpus": extra, "gpu_absent": absent}
        if processes is not None:  # else no driver tells of processes: nobody looked, which is not none
            named["processes"] = sorted(processes, key=lambda part: -(part["mem_mb"] or 0.0))[:PROCESSES]
        return tuple(gpus), named


def over_gpus(gpus: tuple[GpuSample, ...]) -> dict[str, Any]:
    """The box's own throttle columns: the worst of its GPUs, and all their brakes. None: no GPU can tell."""
    spoken = [{cause: getattr(gpu, cause) for cause in throttle.CAUSES} for gpu in gpus]
    brakes = throttle.total(gpu.brakes for gpu in gpus)
    return {
        "throttle_index": throttle.worst(
            throttle.index_of(gpu.throttle_mask, ms) for gpu, ms in zip(gpus, spoken, strict=True)
        ),
        "power_ms": throttle.worst(throttle.power_ms(ms) for ms in spoken),
        "thermal_ms": throttle.worst(throttle.thermal_ms(ms) for ms in spoken),
        "brakes": None if brakes is None else int(brakes),
    }


def machine_id(root: Path) -> str:
    """The identity of this installation; empty when the system has none."""
    for path in ("etc/machine-id", "var/lib/dbus/machine-id"):
        if found := files.text(f"{root}/{path}"):
            return found
    return ""


def _silent(known: GpuReading | None, why: str) -> GpuReading:
    """The cards of a probe that does not answer."""
    cards = tuple(
        GpuSample(gpu_index=card.gpu_index, gpu_uuid=card.gpu_uuid, state="error")
        for card in (known.gpus if known else ())
    )
    return GpuReading(cards, absent={card.gpu_index: {"state": why} for card in cards})


def _numbered_facts(readings: list[GpuReading]) -> list[tuple[int, GpuFacts]]:
    numbered: list[tuple[int, GpuFacts]] = []
    offset = 0
    for reading in readings:
        numbered += [(fact.index + offset, replace(fact, index=fact.index + offset)) for fact in reading.facts]
        offset = _next_index(reading, offset)
    return numbered


def _next_index(reading: GpuReading | None, offset: int) -> int:
    return offset + max((card.gpu_index + 1 for card in reading.gpus), default=0) if reading else offset


def _data_mount(root: Path) -> str | None:
    """The nearest existing directory above the data directory, when it is not on the root's file system."""
    path = config.data_dir()
    while not Path(f"{root}{path}").exists() and path != path.parent:
        path = path.parent
    try:
        if os.stat(f"{root}{path}").st_dev == os.stat(f"{root}/").st_dev:
            return None
    except OSError:
        return None
    return str(path)


def _cpu_model(root: Path) -> str | None:
    for line in (files.everything(f"{root}/proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "Hardware") and value.strip():
            return value.strip()
    return files.text(f"{root}/sys/firmware/devicetree/base/model") or platform.machine() or None


def _cores(root: Path) -> int | None:
    """Logical processors."""
    lines = (files.everything(f"{root}/proc/stat") or "").splitlines()
    return sum(line.startswith("cpu") and line[3:4].isdigit() for line in lines) or None
