"""What the GPU probe's process reads: the use of each executor's device, and memory and bytes of its processes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.lane.usage import Meter, Use
from engine.telemetry.probes import files
from engine.telemetry.probes.amd import AmdProbe
from engine.telemetry.probes.gpu import within
from engine.telemetry.probes.nvidia import NvidiaProbe
from engine.telemetry.probes.nvml_card import MIB, Card
from engine.telemetry.sample import GpuSample

if TYPE_CHECKING:
    from engine.lane.gpu_probe import Subject

_JETSON = "sys/devices/platform/gpu.0/load"  # per mille; NVML does not tell there


@dataclass(frozen=True)
class Device:
    """One card now. ``owners``: MiB by pid; None: the driver does not say whose its memory is."""

    index: int
    uuid: str
    use_pct: float | None
    used_mb: float | None
    owners: Mapping[int, float] | None
    why: str | None


class LeanCard(Card):
    """Only what the watchdogs need of a card: three calls."""

    owners: Mapping[int, float] | None = None

    def read(self, nvml: Any, now: float, root: Path) -> GpuSample:
        """One reading. Raises Lost, DriverGone."""
        self.absent = {}
        util = self._call(nvml, "util_pct", "nvmlDeviceGetUtilizationRates")
        used, total = self._memory(nvml, root)
        self.owners = self._owners(nvml)
        use = within(getattr(util, "gpu", None), 0, 100)
        if use is None and self.facts.unified:
            use = within(files.scaled(f"{root}/{_JETSON}", 10), 0, 100)
        return GpuSample(
            gpu_index=self.index, gpu_uuid=self.uuid, state="ok", util_pct=use, mem_used_mb=used, mem_total_mb=total
        )

    def _owners(self, nvml: Any) -> Mapping[int, float] | None:
        found: dict[int, float] = {}
        for process in self._call(nvml, "processes", "nvmlDeviceGetComputeRunningProcesses") or ():
            if process.usedGpuMemory is None:
                return None
            found[int(process.pid)] = found.get(int(process.pid), 0.0) + process.usedGpuMemory / MIB
        return found if "processes" not in self.absent else None


class LeanNvidia(NvidiaProbe):
    """The cards that are looked at, between readings."""

    card_type = LeanCard

    def owners(self, index: int) -> Mapping[int, float] | None:
        """Memory by pid on one card, as last read."""
        return next(
            (card.owners for card in self._ordered() if card.index == index and isinstance(card, LeanCard)), None
        )


class Reader:
    """Reads all devices and all executors at once. ``root`` is where probes look for /proc, /sys and /dev."""

    def __init__(self, root: Path, every_s: float, lane: int) -> None:
        self._nvidia = LeanNvidia(root, every_s)
        self._amd = AmdProbe(root, every_s)
        self._meter = Meter(lane)

    def read(self, subjects: Mapping[int, Subject]) -> tuple[dict[int, dict[str, Any]], str | None]:
        """The fields of a Look by slot, and what is wrong with the devices, if anything."""
        at = time.monotonic()
        uses = self._meter.read([subject.target for subject in subjects.values()])
        devices = self._devices()
        looks = {
            index: look(at, uses[subject.target.cookie], chosen(devices, subject.device, uses[subject.target.cookie]))
            for index, subject in subjects.items()
        }
        ill = sorted({f"GPU {device.index}: {device.why}" for device in devices if device.why})
        return looks, "; ".join(ill) or (None if devices else "no GPU can be read")

    def _devices(self) -> list[Device]:
        found: list[Device] = []
        for probe in (self._nvidia, self._amd):
            reading = probe.read()
            offset = max((device.index + 1 for device in found), default=0)
            for gpu in reading.gpus:
                absent = reading.absent.get(gpu.gpu_index, {})
                why = None
                if gpu.state != "ok":
                    why = absent.get("state", gpu.state)
                elif gpu.util_pct is None:
                    why = f"its use is not known ({absent.get('util_pct', 'no value')})"
                found.append(
                    Device(
                        gpu.gpu_index + offset,
                        gpu.gpu_uuid or "",
                        gpu.util_pct if gpu.state == "ok" else None,
                        gpu.mem_used_mb if gpu.state == "ok" else None,
                        probe.owners(gpu.gpu_index) if isinstance(probe, LeanNvidia) and gpu.state == "ok" else None,
                        why,
                    )
                )
        return found


def chosen(devices: Sequence[Device], wanted: str | None, use: Use) -> list[Device]:
    """The devices that an executor uses: the one it was given; else those that hold memory of it; else all it may see."""
    if wanted is None:
        mine = [device for device in devices if device.owners and use.pids & device.owners.keys()]
        return mine or visible(devices, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return [device for device in devices if wanted in (str(device.index), device.uuid)]


def visible(devices: Sequence[Device], listed: str | None) -> list[Device]:
    """The devices that a process sees whose environment lists these."""
    if listed is None:
        return list(devices)
    names = {name.strip() for name in listed.split(",")} - {""}
    return [device for device in devices if str(device.index) in names or device.uuid in names]


def look(at: float, use: Use, devices: Sequence[Device]) -> dict[str, Any]:
    """One reading of one executor on its devices. What one device does not tell is not known of all."""
    why = None
    gpu = vram = None
    if not devices:
        why = "its GPU cannot be read"
    else:
        uses = [device.use_pct for device in devices]
        gpu = None if None in uses else max(use for use in uses if use is not None)
        parts = [_memory(device, use) for device in devices]
        vram = None if None in parts else sum(part for part in parts if part is not None)
        if gpu is None or vram is None:
            why = next(
                (f"GPU {device.index}: {device.why}" for device in devices if device.why), "its GPU is not known"
            )
    if use.host_mb is None or use.io_bytes is None:
        why = why or "its processes cannot be read"
    return {
        "at": at,
        "use_pct": gpu,
        "host_mb": use.host_mb,
        "vram_mb": vram,
        "io_bytes": use.io_bytes,
        "why": why,
    }


def _memory(device: Device, use: Use) -> float | None:
    """What the executor's processes hold of a device; all that is in use there when the driver does not say whose."""
    if device.owners is not None and (mine := use.pids & device.owners.keys()):
        return sum(device.owners[pid] for pid in mine)
    return device.used_mb
