"""GPUs of a lane: which there are, which slot sees which, and what fits on it.

They are looked for in a process of its own with a deadline, because a sick driver may never answer. Where nothing
tells of GPUs (no NVML, no amdgpu) a lane works with one device of which nothing is known.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine import config
from engine.errors import BadInput

MIB = 1024 * 1024
UNIFIED_RESERVE = 8  # where the GPU shares the system's memory, so many times the reserve is left to the system
_DEVICE = re.compile(r"\d{1,3}|(GPU|MIG)-[0-9a-zA-Z/-]{1,80}|(pci|amd)-[0-9a-zA-Z:.]{4,40}")
_NONE = (9, 12)  # NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIBRARY_NOT_FOUND: there is no such GPU here


@dataclass(frozen=True)
class Device:
    """One GPU, or one slice of it. None: not known.

    ``index``: its place among those of its vendor, in the order of the bus; ``vram_mb``: all of its memory in MiB, the
    machine's where it has none of its own (``unified``).
    """

    index: int | None = None
    uuid: str | None = None
    vendor: str | None = None
    name: str | None = None
    vram_mb: float | None = None
    unified: bool = False

    @property
    def key(self) -> str | None:
        """What names it on this box, the same for every lane; None: nothing does."""
        if self.uuid is not None:
            return self.uuid
        return None if self.index is None else str(self.index)

    def __str__(self) -> str:
        return " ".join(part for part in (self.key or "unknown GPU", f"({self.name})" if self.name else "") if part)

    def environment(self) -> dict[str, str]:
        """What makes an executor see this device only. Nothing known: it sees whatever the lane sees."""
        if self.vendor == "amd":
            # HIP counts among those that ROCR leaves over.
            return {"ROCR_VISIBLE_DEVICES": str(self.index), "HIP_VISIBLE_DEVICES": "0"}
        if self.key is None:
            return {}
        return {"CUDA_VISIBLE_DEVICES": self.key, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def room_mb(self, reserve_mb: float) -> float | None:
        """MiB that models may take; None: unknown."""
        if self.vram_mb is None:
            return None
        return self.vram_mb - reserve_mb * (UNIFIED_RESERVE if self.unified else 1)


UNKNOWN = Device()


def parse_devices(text: str | None) -> tuple[str, ...]:
    """``0,1`` or GPU uuids as a tuple; empty when not given. Raises BadInput."""
    if not text:
        return ()
    devices = tuple(part.strip() for part in text.split(","))
    for device in devices:
        if not _DEVICE.fullmatch(device):
            raise BadInput(f"--devices: {device!r} is neither a device number nor a GPU uuid")
    if len(set(devices)) != len(devices):
        raise BadInput(f"--devices: {text} names a device twice")
    return devices


def models_that_fit(known: Mapping[str, float], rooms_mb: Iterable[float | None]) -> tuple[str, ...]:
    """Ids of the models (id -> GiB) that one of these rooms can hold; a room of unknown size counts as large enough."""
    rooms = list(rooms_mb)
    return tuple(
        sorted(
            id for id, gib in known.items() if not rooms or any(room is None or gib * 1024 <= room for room in rooms)
        )
    )


# --- which of them a lane uses ---


@dataclass(frozen=True)
class Found:
    """What a look at the machine found, and why it may be incomplete."""

    devices: tuple[Device, ...] = ()
    error: str | None = None


def choose(found: Sequence[Device], named: Sequence[str], environ: Mapping[str, str]) -> tuple[Device, ...]:
    """The devices of a lane: those named, else all that it sees; never empty.

    Sees: what CUDA_VISIBLE_DEVICES (or its AMD likes) of the lane leaves over; of two vendors NVIDIA's; a processor's
    own graphics only where there is nothing else. Raises BadInput for a name that is not there.
    """
    ours = [device for device in found if device.vendor == ("nvidia" if _has(found, "nvidia") else "amd")]
    if named:
        return _distinct(tuple(_named(name, found, ours) for name in named))
    if _has(found, "nvidia"):
        seen = _visible(ours, environ.get("CUDA_VISIBLE_DEVICES"))
    else:
        cards = [device for device in ours if not device.unified] or ours
        seen = _visible(cards, environ.get("ROCR_VISIBLE_DEVICES") or environ.get("HIP_VISIBLE_DEVICES"))
    return tuple(seen) or (UNKNOWN,)


def _has(found: Iterable[Device], vendor: str) -> bool:
    return any(device.vendor == vendor for device in found)


def _named(name: str, found: Sequence[Device], ours: Sequence[Device]) -> Device:
    if name.isdigit():
        hit = [device for device in ours if device.index == int(name) and not (device.uuid or "").startswith("MIG-")]
    else:
        hit = [device for device in found if (device.uuid or "").startswith(name)]
    if len(hit) == 1:
        return hit[0]
    if len(hit) > 1:
        raise BadInput(f"--devices: {name} is the beginning of {len(hit)} uuids ({', '.join(map(str, hit))})")
    if not found:  # nothing can be looked at: it is taken at its word
        return Device(index=int(name)) if name.isdigit() else Device(uuid=name)
    raise BadInput(f"--devices: there is no GPU {name} (there are: {', '.join(_menu(found))})")


def _menu(found: Iterable[Device]) -> list[str]:
    return [f"{device.index} = {device}" for device in found]


def _distinct(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    if len({device.key for device in devices}) < len(devices):
        raise BadInput(f"--devices names a device twice: {', '.join(map(str, devices))}")
    return devices


def _visible(devices: list[Device], text: str | None) -> list[Device]:
    """Those that such a variable leaves over: numbers or beginnings of uuids, up to the first that is neither."""
    if text is None:
        return devices
    seen: list[Device] = []
    for part in (part.strip() for part in text.split(",")):
        hit = [
            device
            for device in devices
            if (device.index == int(part) if part.isdigit() else part and (device.uuid or "").startswith(part))
        ]
        if not hit:
            break
        seen += [device for device in hit if device not in seen]
    return seen


# --- the look itself ---


def look(timeout_s: float | None = None, root: Path | None = None) -> Found:
    """Which GPUs this machine has, asked in a process of its own that may take ``timeout_s``."""
    limit = float(config.get("device_look_seconds")) if timeout_s is None else timeout_s
    environment = dict(os.environ) | {"FLIGHTDECK_PROBE_ROOT": str(root or config.get("probe_root"))}
    process = subprocess.Popen(
        [sys.executable, "-m", "engine.lane.devices"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    try:
        out, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)  # it may stand in the driver, and cannot be killed then
        return Found(error=f"the driver gave no answer within {limit:g} s")
    try:
        data = json.loads(out)
    except ValueError:
        return Found(error=f"the look at the GPUs ended with code {process.returncode}")
    return Found(tuple(Device(**device) for device in data["devices"]), data["error"])


def look_here(root: Path, load: Callable[[], Any]) -> Found:
    """The same, in this process. ``load`` gives NVIDIA's bindings or None; ``root`` is where /proc and /sys are."""
    devices: list[Device] = []
    error = None
    nvml = load()
    if nvml is not None:
        try:
            devices += _nvidia(nvml, root)
        except nvml.NVMLError as failure:
            error = None if failure.value in _NONE else f"NVML: {failure}"
    devices += _amd(root)
    return Found(tuple(devices), error)


def _nvidia(nvml: Any, root: Path) -> list[Device]:
    """Every NVIDIA device that answers, in the order of the bus; a card in slices (MIG) is its slices."""
    from engine.telemetry.probes.nvml_card import Card, DriverGone, Lost

    nvml.nvmlInit()
    found: list[Device] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            card = Card(index, _text(nvml.nvmlDeviceGetUUID(handle)), None, handle, (), 2.0)
            card.learn_facts(nvml, root)
        except (nvml.NVMLError, Lost, DriverGone):
            continue  # lost, or on its way: that one alone
        whole = Device(index, card.uuid, "nvidia", card.facts.name, card.facts.mem_mb, card.facts.unified)
        found += _slices(nvml, handle, whole) or [whole]
    return found


def _slices(nvml: Any, handle: Any, card: Device) -> list[Device]:
    try:
        if not nvml.nvmlDeviceGetMigMode(handle)[0]:
            return []
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except (nvml.NVMLError, AttributeError):
        return []
    found = []
    for number in range(most):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            uuid, memory = _text(nvml.nvmlDeviceGetUUID(part)), nvml.nvmlDeviceGetMemoryInfo(part)
        except nvml.NVMLError:
            continue  # an empty place
        found.append(Device(card.index, uuid, "nvidia", card.name, memory.total / MIB or None))
    return found


def _amd(root: Path) -> list[Device]:
    from engine.telemetry.probes.amd import AmdProbe

    facts = AmdProbe(root, 2.0).read().facts
    return [Device(fact.index, fact.uuid, "amd", fact.name, fact.mem_mb, fact.unified) for fact in facts]


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def main() -> None:
    from engine.telemetry.probes.nvidia import load_pynvml

    found = look_here(Path(config.get("probe_root")), load_pynvml)
    sys.stdout.write(json.dumps({"devices": [asdict(device) for device in found.devices], "error": found.error}))
    sys.stdout.flush()
    os._exit(0)  # nothing of the driver is waited for


if __name__ == "__main__":
    main()
