"""What one NVIDIA card says besides its columns: health, traffic on its bus, its slices, whose memory it holds.

All of it changes seldom or costs more, so it is asked for every few looks; see ``SLOW_EVERY`` in nvml_card.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from engine.telemetry.probes import files
from engine.telemetry.probes import nvml_fields as ids
from engine.telemetry.probes.gpu import within
from engine.telemetry.probes.nvml_calls import Calls, text

MIB = 1024 * 1024
PROCESSES = 8  # of one card, those with the most memory
_MAX_BPS = 500e9  # more than any bus between a card and its host carries

_ACTIONS = {
    1: "reset the GPU",
    2: "reboot",
    3: "drain peer-to-peer",
    4: "drain and reset",
    6: "reset the bus",
    7: "reboot the system",
}
_HEALTH = (ids.RECOVERY_ACTION, ids.REMAPPED_FAILURE, ids.REMAPPED_PENDING, ids.RETIRED_PENDING)
_TRAFFIC = (ids.PCIE_REPLAYS, ids.PCIE_TX_BYTES, ids.PCIE_RX_BYTES)
_SCOPED = {
    "module_w": (ids.POWER_INSTANT, ids.SCOPE_MODULE),
    "memory_w": (ids.POWER_INSTANT, ids.SCOPE_MEMORY),
}


class Extras(Calls):
    def __init__(self, handle: Any) -> None:
        super().__init__(handle)
        self.extra: dict[str, Any] = {}  # named values besides the columns
        self.processes: tuple[dict[str, Any], ...] = ()
        self._traffic: dict[int, int] = {}
        self._traffic_at = 0.0

    def _read_extras(self, nvml: Any, now: float, root: Path, on_pcie: bool) -> dict[str, Any]:
        """The named values; a value that is not offered is left out, its reason is in ``absent``."""
        fields = self._fields(nvml, [*_HEALTH, *(_TRAFFIC if on_pcie else ()), *_SCOPED.values()])
        self.processes = self._holders(nvml, root)
        values: dict[str, Any] = {"health": self._health(nvml, fields), "mig": self._slices(nvml)}
        for name, field in _SCOPED.items():
            values[name] = within(None if fields.get(field) is None else fields[field] / 1000, 0.001, 5000)
        if on_pcie:
            values |= self._rates(fields, now)
        return {name: value for name, value in values.items() if value is not None and value != []}

    def _health(self, nvml: Any, fields: Any) -> str | None:
        """One word or phrase: ok, what is pending, what the driver wants done. None: it tells nothing of that kind."""
        known = [fields[field] for field in _HEALTH if fields.get(field) is not None]
        pending, failed = bool(fields.get(ids.REMAPPED_PENDING)), bool(fields.get(ids.REMAPPED_FAILURE))
        if fields.get(ids.REMAPPED_PENDING) is None and (rows := self._call(nvml, "rows", "nvmlDeviceGetRemappedRows")):
            known += rows
            pending, failed = bool(rows[2]), bool(rows[3])
        self.absent.pop("rows", None)
        if action := fields.get(ids.RECOVERY_ACTION):
            return f"action: {_ACTIONS.get(int(action), f'code {int(action)}')}"
        if failed:
            return "action: a memory row could not be replaced"
        if pending or fields.get(ids.RETIRED_PENDING):
            return "pending: reset to retire memory"
        if not known:
            self.absent["health"] = "no ECC, retired pages or recovery action on this GPU"
            return None
        return "ok"

    def _rates(self, fields: Any, now: float) -> dict[str, Any]:
        """Bytes per second from the bus's own counters; a counter that wrapped has no rate this once."""
        counts = {field: int(fields[field]) for field in _TRAFFIC if fields.get(field) is not None}
        before, passed = self._traffic, now - self._traffic_at
        self._traffic, self._traffic_at = counts, now

        def rate(field: int) -> float | None:
            if field not in counts or field not in before or passed <= 0:
                return None
            return within((counts[field] - before[field]) / passed, 0, _MAX_BPS)

        return {
            "pcie_tx_bps": rate(ids.PCIE_TX_BYTES),
            "pcie_rx_bps": rate(ids.PCIE_RX_BYTES),
            "pcie_replays": counts.get(ids.PCIE_REPLAYS),
        }

    def _slices(self, nvml: Any) -> list[dict[str, Any]] | None:
        """Used and total MiB of each instance of a card in MIG mode; None when it is not."""
        mode = self._call(nvml, "mig", "nvmlDeviceGetMigMode")
        self.absent.pop("mig", None)
        if not mode or mode[0] != ids.MIG_ENABLED:
            return None
        most = self._call(nvml, "mig", "nvmlDeviceGetMaxMigDeviceCount") or 0
        found = []
        for place in range(most):
            try:
                part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(self.handle, place)
                memory, uuid = nvml.nvmlDeviceGetMemoryInfo(part), nvml.nvmlDeviceGetUUID(part)
            except nvml.NVMLError:
                continue  # an empty place
            found.append(
                {"uuid": text(uuid), "used_mb": round(memory.used / MIB), "total_mb": round(memory.total / MIB)}
            )
        return found

    def _holders(self, nvml: Any, root: Path) -> tuple[dict[str, Any], ...]:
        """The processes that hold most of its memory, most first; ``mem_mb`` None where the driver does not say."""
        held: dict[int, float | None] = {}
        for kind in ("Compute", "Graphics"):
            for process in self._call(nvml, "processes", f"nvmlDeviceGet{kind}RunningProcesses") or ():
                used = getattr(process, "usedGpuMemory", None)
                mb = None if used is None else used / MIB
                before = held.get(int(process.pid))
                held[int(process.pid)] = mb if before is None else max(before, mb or 0.0)  # both lists name it
        self.absent.pop("processes", None)
        most = sorted(held.items(), key=lambda item: (-(item[1] or 0.0), item[0]))[:PROCESSES]
        return tuple(
            {"pid": pid, "name": process_name(root, pid), "mem_mb": None if mb is None else round(mb)}
            for pid, mb in most
        )


def process_name(root: Path, pid: int) -> str | None:
    """What a process is called; of an interpreter the script or module that it runs. Arguments are nobody's business."""
    name = files.text(f"{root}/proc/{pid}/comm")
    if name is None or not name.startswith(("python", "pypy")):
        return name
    words = (files.everything(f"{root}/proc/{pid}/cmdline") or "").split("\0")
    for place, word in enumerate(words[1:], 1):
        if word == "-m" and place + 1 < len(words):
            return f"{name} -m {words[place + 1][:60]}"
        if word in ("-c", "-") or not word:
            break
        if not word.startswith("-"):
            return f"{name} {os.path.basename(word)[:60]}"
    return name
