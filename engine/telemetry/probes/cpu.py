"""Processors and memory, from /proc and /sys/devices/system/cpu: load, clock, time held back by heat, pressure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.telemetry.probes import files
from engine.telemetry.throttle import counter_delta_ms, worst

CLOCKS = 64  # at most so many cores are asked for their clock, evenly spread
PRESSURES = ("cpu", "memory", "io")

COLUMNS = (
    "cpu_pct", "core_max_pct", "load1", "cpu_mhz", "mem_used_mb", "mem_total_mb", "swap_used_mb", "cpu_throttle_ms",
)  # fmt: skip


class CpuProbe:
    """Reads deltas between two calls; the first call has no utilisation to tell."""

    def __init__(self, root: Path) -> None:
        self._proc = f"{root}/proc"
        self._cpus = f"{root}/sys/devices/system/cpu"
        self._times: dict[str, tuple[int, int]] = {}
        self._virtual = " hypervisor" in (files.everything(f"{self._proc}/cpuinfo") or "")
        self._clock_files = self._find_clocks()
        self._heat_files = self._find_heat_counters("total_time_ms")
        self._count_files = [] if self._heat_files else self._find_heat_counters("count")
        self._count: int | None = None
        self._heat: dict[str, int | None] = {}
        self._heat_at = 0.0

    def read(self) -> dict[str, Any]:
        values: dict[str, Any] = dict.fromkeys(COLUMNS)
        absent: dict[str, str] = {}
        values["cpu_pct"], values["core_max_pct"] = self._utilisation()
        load = (files.text(f"{self._proc}/loadavg") or "").split()
        values["load1"] = float(load[0]) if load else None
        values["cpu_mhz"] = self._clock()
        if values["cpu_mhz"] is None:
            absent["cpu_mhz"] = "virtual machine, clock hidden" if self._virtual else "no cpufreq"
        values |= memory(self._proc)
        values["cpu_throttle_ms"] = self._held_back()
        sensors: dict[str, Any] = {"pressure": self._pressure()}
        if uptime := (files.text(f"{self._proc}/uptime") or "").partition(" ")[0]:
            sensors["uptime_s"] = round(float(uptime))
        if not self._heat_files:
            absent["cpu_throttle_ms"] = "no thermal_throttle counters"
        if self._count_files:
            absent["cpu_throttle_ms"] = "this kernel counts events only, see cpu_throttle_events"
            sensors["cpu_throttle_events"] = self._events()
        return values | {"absent": absent, "sensors": sensors}

    def _pressure(self) -> dict[str, float]:
        """Percent of the last ten seconds in which some task waited for it; empty on kernels that do not say."""
        found = {}
        for name in PRESSURES:
            line = (files.text(f"{self._proc}/pressure/{name}") or "").partition("\n")[0]
            if line.startswith("some avg10="):
                found[name] = float(line[11:].partition(" ")[0])
        return found

    def _events(self) -> int | None:
        """How often heat held a core or package back since the last call: not for how long."""
        before, self._count = self._count, sum(files.number(path) or 0 for path in self._count_files)
        return self._count - before if before is not None and self._count >= before else None

    def _utilisation(self) -> tuple[float | None, float | None]:
        """Busy share in percent over all cores, and of the busiest one."""
        times: dict[str, tuple[int, int]] = {}
        for line in (files.everything(f"{self._proc}/stat") or "").splitlines():
            if not line.startswith("cpu"):
                break  # the interrupt line that follows is long
            name, *fields = line.split()
            ticks = [int(field) for field in fields[:8]]  # guest time is part of user time
            times[name] = (sum(ticks) - ticks[3] - (ticks[4] if len(ticks) > 4 else 0), sum(ticks))
        before, self._times = self._times, times
        shares = {}
        for name, (busy, all_ticks) in times.items():
            if name in before and (passed := all_ticks - before[name][1]) > 0:
                shares[name] = min(100.0, max(0.0, 100.0 * (busy - before[name][0]) / passed))
        overall = shares.pop("cpu", None)
        return overall, worst((overall, *shares.values()))  # ticks are coarse: no core is idler than the mean

    def _find_clocks(self) -> list[str]:
        found = [
            path
            for name in files.children(self._cpus)
            if name.startswith("cpu") and name[3:].isdigit()
            if files.number(path := f"{self._cpus}/{name}/cpufreq/scaling_cur_freq")
        ]
        return found[:: max(1, -(-len(found) // CLOCKS))]

    def _clock(self) -> float | None:
        """Mean clock in MHz. A virtual machine's /proc/cpuinfo names a constant, which is no measurement."""
        clocks = [value / 1000 for path in self._clock_files if (value := files.number(path))]
        if not clocks and not self._virtual and not self._clock_files:
            clocks = [
                float(line.partition(":")[2])
                for line in (files.everything(f"{self._proc}/cpuinfo") or "").splitlines()
                if line.startswith("cpu MHz")
            ]
        return sum(clocks) / len(clocks) if clocks else None

    def _find_heat_counters(self, unit: str) -> list[str]:
        """One counter per package and one per physical core (siblings say the same)."""
        found: dict[tuple[str, ...], str] = {}
        for name in files.children(self._cpus):
            heat = f"{self._cpus}/{name}/thermal_throttle"
            package = files.text(f"{self._cpus}/{name}/topology/physical_package_id") or "0"
            core = files.text(f"{self._cpus}/{name}/topology/core_id") or name
            for key, file in (
                (("package", package), f"package_throttle_{unit}"),
                (("core", package, core), f"core_throttle_{unit}"),
            ):
                if key not in found and files.number(f"{heat}/{file}") is not None:
                    found[key] = f"{heat}/{file}"
        return list(found.values())

    def _held_back(self) -> float | None:
        """Milliseconds throttled since the last call, of the core or package that was throttled longest."""
        if not self._heat_files:
            return None
        now, before, before_at = time.monotonic(), self._heat, self._heat_at
        self._heat, self._heat_at = {path: files.number(path) for path in self._heat_files}, now
        gap_ms = (now - before_at) * 1000
        return worst(
            counter_delta_ms(before[path], self._heat[path], gap_ms, per_ms=1) for path in self._heat if path in before
        )


def memory(proc: str) -> dict[str, float | None]:
    """Memory in MiB: used is what is not available to programs; swap used is 0 where there is no swap."""
    table: Mapping[str, float] = {
        name: int(rest.split()[0]) / 1024
        for line in (files.everything(f"{proc}/meminfo") or "").splitlines()
        if (name := line.partition(":")[0]) in ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")
        if (rest := line.partition(":")[2])
    }
    total, available = table.get("MemTotal"), table.get("MemAvailable")
    swap, free = table.get("SwapTotal"), table.get("SwapFree")
    return {
        "mem_used_mb": total - available if total is not None and available is not None else None,
        "mem_total_mb": total,
        "swap_used_mb": swap - free if swap is not None and free is not None else None,
    }
