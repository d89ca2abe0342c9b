"""Disks: bytes per second of whole disks, how full the file systems are, and the drives' own thermometers."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.telemetry.probes import files
from engine.telemetry.throttle import worst

COLUMNS = ("disk_read_bps", "disk_write_bps", "disk_used_pct")

_WHOLE = re.compile(r"(sd|vd|xvd|hd)[a-z]+|nvme\d+n\d+|mmcblk\d+|pmem\d+|dasd[a-z]+")
_SECTOR = 512  # bytes, whatever the disk's own sector
DRIVE_CHIPS = ("nvme", "drivetemp")
DRIVE_EVERY_S = 10.0  # asking a drive for its temperature is a command to the drive: seldom, and held in between


class DiskProbe:
    """Rates between two calls. ``mounts`` are directories whose file systems are watched; the fullest one counts."""

    def __init__(self, root: Path, mounts: Sequence[str] = ("/",)) -> None:
        self._root = root
        self._mounts = mounts
        self._before: dict[str, tuple[int, int]] = {}
        self._before_at = 0.0
        self._drives: dict[str, float] = {}
        self._drives_at = float("-inf")

    def read(self) -> dict[str, Any]:
        now, counts = time.monotonic(), self._counts()
        passed, before = now - self._before_at, self._before
        self._before, self._before_at = counts, now
        rates = {
            name: (round((done[0] - before[name][0]) / passed, 1), round((done[1] - before[name][1]) / passed, 1))
            for name, done in counts.items()
            if name in before and passed > 0 and done[0] >= before[name][0] and done[1] >= before[name][1]
        }
        used = {mount: share for mount in self._mounts if (share := self._used(mount)) is not None}
        if now - self._drives_at >= DRIVE_EVERY_S:
            self._drives, self._drives_at = self._temperatures(), now
        return {
            "disk_read_bps": sum(read for read, _ in rates.values()) if rates else None,
            "disk_write_bps": sum(written for _, written in rates.values()) if rates else None,
            "disk_used_pct": worst(used.values()),
            "absent": {} if counts else dict.fromkeys(COLUMNS[:2], "no disk of its own"),
            "sensors": {"disks": rates, "mounts": {mount: round(share, 1) for mount, share in used.items()}},
            "zones": dict(self._drives),
        }

    def _counts(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for line in (files.everything(f"{self._root}/proc/diskstats") or "").splitlines():
            fields = line.split()
            if len(fields) >= 10 and _WHOLE.fullmatch(fields[2]):
                found[fields[2]] = (int(fields[5]) * _SECTOR, int(fields[9]) * _SECTOR)
        return found

    def _used(self, mount: str) -> float | None:
        """Percent in use of what a plain user can have, like df."""
        try:
            stat = os.statvfs(f"{self._root}{mount}")
        except OSError:
            return None
        used = stat.f_blocks - stat.f_bfree
        return 100.0 * used / (used + stat.f_bavail) if used + stat.f_bavail > 0 else None

    def _temperatures(self) -> dict[str, float]:
        found: dict[str, float] = {}
        base = f"{self._root}/sys/class/hwmon"
        for chip in files.children(base):
            path = f"{base}/{chip}"
            if files.text(f"{path}/name") not in DRIVE_CHIPS or files.asleep(f"{path}/device"):
                continue
            if (value := files.celsius(f"{path}/temp1_input")) is not None:
                found[os.path.basename(os.path.realpath(f"{path}/device"))] = value
        return found
