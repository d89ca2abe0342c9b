"""GPUs of a lane: which device a slot sees, and what fits on it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from engine.errors import BadInput

_DEVICE = re.compile(r"\d{1,3}|(GPU|MIG)-[0-9a-fA-F-]{4,64}")


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


def environment(device: str | None) -> dict[str, str]:
    """What an executor's environment needs so that it sees its device only. None: whatever the lane sees."""
    if device is None:
        return {}
    return {"CUDA_VISIBLE_DEVICES": device, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def models_that_fit(known: Mapping[str, float], vram_mb: Iterable[float | None]) -> tuple[str, ...]:
    """Ids of the models (id -> GiB) that some slot's device can hold; a device of unknown memory counts as large enough."""
    rooms = list(vram_mb)
    return tuple(
        sorted(
            id for id, gib in known.items() if not rooms or any(room is None or gib * 1024 <= room for room in rooms)
        )
    )
