"""Reading the little files under /proc and /sys: a file that is missing, empty or refuses is None, never 0."""

from __future__ import annotations

import os
from pathlib import Path

MIN_C, MAX_C = 0.0, 125.0  # exclusive, of a chip at work: 0, -273 and 127/128 are what broken sensors say
ZONE_MIN_C, ZONE_MAX_C = -40.0, 150.0  # exclusive, of any place in a box: its inlet may be cold, its regulators hot
UNCONNECTED_C = (127.0, 128.0)  # inclusive: eight bits without a sensor


def text(path: Path | str) -> str | None:
    """The stripped text of a small file; None when it cannot be read or is empty."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, 4096).decode("utf-8", "replace").strip("\0 \t\n") or None
    except OSError:  # a sensor that is not connected answers ENODATA, a sleeping device EIO
        return None
    finally:
        os.close(fd)


def number(path: Path | str) -> int | None:
    """A whole number in a file, or None."""
    found = text(path)
    try:
        return int(found) if found is not None else None
    except ValueError:
        return None


def scaled(path: Path | str, divisor: float) -> float | None:
    """A number in a file, divided; None when there is none."""
    found = number(path)
    return None if found is None else found / divisor


def celsius(path: Path | str) -> float | None:
    """A temperature in thousandths of a degree; None when it is not plausible."""
    value = scaled(path, 1000)
    return value if plausible_c(value) else None


def zone_c(path: Path | str) -> float | None:
    """The same for any place in a box."""
    value = scaled(path, 1000)
    return value if plausible_zone_c(value) else None


def plausible_zone_c(value: float | None) -> bool:
    """Whether a place in a box can be so warm. Exactly 0 is a sensor that is stuck or was never written."""
    if value is None or value == 0 or UNCONNECTED_C[0] <= value <= UNCONNECTED_C[1]:
        return False
    return ZONE_MIN_C < value < ZONE_MAX_C


def plausible_c(value: float | None) -> bool:
    """Whether a thermometer inside a running machine can say this."""
    return value is not None and MIN_C < value < MAX_C


def everything(path: Path | str) -> str | None:
    """A whole file, however long; None when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return None


def children(path: Path | str) -> list[str]:
    """The sorted names in a directory; empty when there is none."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def asleep(device: Path | str) -> bool:
    """Whether a device is runtime-suspended: reading its sensors would wake it."""
    return text(f"{device}/power/runtime_status") == "suspended"
