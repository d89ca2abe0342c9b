"""One NVIDIA card through NVML: its columns, and which answers make no sense."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.telemetry.meter import Meter, Reading, Text
from engine.telemetry.probes import files
from engine.telemetry.probes import nvml_fields as ids
from engine.telemetry.probes.cpu import memory
from engine.telemetry.probes.gpu import explain, within
from engine.telemetry.probes.jetson import Jetson
from engine.telemetry.probes.nvml_calls import NOT_OFFERED, DriverGone, Field, Lost
from engine.telemetry.probes.nvml_extras import MIB, Extras
from engine.telemetry.probes.nvml_fields import counter_fields, driver_tuple
from engine.telemetry.sample import GpuFacts, GpuSample

__all__ = ["MIB", "Card", "DriverGone", "Lost", "bus_id", "counter_fields", "driver_tuple"]

SLOW_EVERY = 5  # samples: what changes seldom or costs more

_UNIFIED = re.compile(r"GB10|Thor|Orin|Xavier|Tegra|Jetson|nvgpu", re.IGNORECASE)
_NO_LIMIT_W = 400.0  # the most that a card is believed which names no power limit
_MAX_MHZ = 6000


def bus_id(text: str) -> str:
    """NVML's ``00000000:01:00.0`` as sysfs writes it, ``0000:01:00.0``. Raises ValueError."""
    domain, bus, rest = text.lower().split(":")
    return f"{int(domain, 16):04x}:{bus}:{rest}"


class Card(Extras):
    """What is known about one card between readings."""

    def __init__(
        self, index: int, uuid: str, pci: str | None, handle: Any, driver: tuple[int, ...], cadence_s: float
    ) -> None:
        super().__init__(handle)
        self.index = index
        self.uuid = uuid
        self.pci = pci
        self.lost = False
        self.facts = GpuFacts(index=index, uuid=uuid, vendor="nvidia")
        self.text: Text | None = None  # the counters as last printed by the driver's own program
        self._driver = driver
        self._counters = counter_fields(driver)
        self._meter = Meter(cadence_s)
        self._round = 0
        self._slow: dict[str, Any] = {}
        self._slow_absent: dict[str, str] = {}
        self._sliced = False
        self._jetson: Jetson | None = None

    @property
    def wants_text(self) -> bool:
        return self._meter.wants_text

    def driver_is(self, driver: tuple[int, ...]) -> None:
        """NVML was started anew: what a replaced driver never answered, this one may, and its ids are others."""
        if driver != self._driver:
            self._driver, self._counters = driver, counter_fields(driver)
            self._never.clear()
            self._meter.forget()

    def hurry(self) -> None:
        """Something happened to it: what changes seldom is due at the next look."""
        self._round = 0

    def without_values(self, state: str) -> GpuSample:
        """The row of a card that cannot or must not be read."""
        self.processes, self.extra = (), {}
        return GpuSample(gpu_index=self.index, gpu_uuid=self.uuid, state=state)

    def read(self, nvml: Any, now: float, root: Path) -> GpuSample:
        """One reading. Raises Lost, DriverGone."""
        self._asked = self._answered = False
        self.absent = {}
        util = self._call(nvml, "util_pct", "nvmlDeviceGetUtilizationRates")
        power = self._call(nvml, "power_w", "nvmlDeviceGetPowerUsage")
        wanted: list[Field] = [ids.MEMORY_TEMP, ids.POWER_INSTANT, *self._counters.values()]
        fields = self._fields(nvml, [*wanted, ids.POWER_AVERAGE] if power is None else wanted)
        if power is None and (power := fields.get(ids.POWER_AVERAGE)) is not None:
            self.absent.pop("power_w", None)
        mask = self._mask(nvml)
        if self._round % SLOW_EVERY == 0:
            before, self.absent = self.absent, {}
            self._slow = self._read_slow(nvml)
            self.extra = self._read_extras(nvml, now, root, on_pcie=not self.facts.unified)
            self._sliced = "mig" in self.extra
            self._slow_absent, self.absent = self.absent, before
        self._round += 1
        self.absent |= self._slow_absent
        used, total = self._memory(nvml, root)
        held = self._meter.feed(Reading(now, mask, self._ticks(nvml, fields), self.text))
        values: dict[str, Any] = {
            "util_pct": within(getattr(util, "gpu", None), 0, 100),
            "temp_c": self._believed_c(self._temperature(nvml), "temp_c"),
            "mem_temp_c": self._believed_c(fields.get(ids.MEMORY_TEMP), "mem_temp_c"),
            "power_w": self._watts(power, "power_w"),
            "power_inst_w": self._watts(fields.get(ids.POWER_INSTANT), "power_inst_w"),
            "sm_mhz": self._clock(nvml, "nvmlDeviceGetClockInfo", "sm_mhz"),
        }
        if self.facts.unified:
            self._from_files(values, root)
        if self._sliced and values["util_pct"] is None:
            self.absent["util_pct"] = "in slices (MIG): the card's use is not told"
        if held.source == "none":
            self.absent["throttle_source"] = "no counters and no mask on this GPU"
        silent = self._asked and not self._answered
        if silent:
            self.absent["state"] = "no call answers"
        row = GpuSample(
            gpu_index=self.index,
            gpu_uuid=self.uuid,
            state="error" if silent else "ok",
            mem_used_mb=used,
            mem_total_mb=total,
            throttle_mask=mask,
            throttle_source=held.source,
            brakes=held.brakes,
            **{**held.ms, **self._slow, **values},
        )
        explain(row, self.absent)
        return row

    def learn_facts(self, nvml: Any, root: Path) -> None:
        """What does not change: name, limits, thresholds; whether its memory is the system's."""
        name = self._call(nvml, "name", "nvmlDeviceGetName")
        self.facts = replace(
            self.facts,
            name=name.decode("utf-8", "replace") if isinstance(name, bytes) else name,
            power_limit_w=self._limit(nvml),
            temp_slowdown_c=self._threshold(nvml, ids.THRESHOLD_SLOWDOWN, ids.SLOWDOWN_TLIMIT),
            temp_shutdown_c=self._threshold(nvml, ids.THRESHOLD_SHUTDOWN, ids.SHUTDOWN_TLIMIT),
            clock_max_mhz=self._clock(nvml, "nvmlDeviceGetMaxClockInfo", "max clock"),
        )
        _, total = self._memory(nvml, root)
        shared = total is not None and self._is_host(total, root) and self._addresses_host(nvml)
        self.facts = replace(self.facts, mem_mb=total, unified=self.facts.unified or shared)

    # What needs a second thought.

    def _ticks(self, nvml: Any, fields: Mapping[Field, Any]) -> dict[str, int | None]:
        """Nanoseconds by cause: the fields of this driver, else the older call that some cards have instead."""
        found = {cause: _whole(fields.get(field)) for cause, field in self._counters.items()}
        for cause, policy in ids.POLICIES.items():
            if found.get(cause) is None and f"field {self._counters[cause]}" in self._never:
                status = self._call(nvml, f"policy {policy}", "nvmlDeviceGetViolationStatus", policy)
                self.absent.pop(f"policy {policy}", None)
                found[cause] = _whole(getattr(status, "violationTime", None))
        return found

    def _mask(self, nvml: Any) -> int | None:
        mask = self._first(
            nvml,
            "throttle_mask",
            ("nvmlDeviceGetCurrentClocksEventReasons",),
            ("nvmlDeviceGetCurrentClocksThrottleReasons",),
        )
        return None if mask is None else int(mask)

    def _temperature(self, nvml: Any) -> Any:
        return self._first(
            nvml,
            "temp_c",
            ("nvmlDeviceGetTemperature", ids.SENSOR_GPU),
            ("nvmlDeviceGetTemperatureV", ids.SENSOR_GPU),
        )

    def _clock(self, nvml: Any, function: str, column: str) -> float | None:
        """The shaders' clock, else the graphics clock."""
        found = self._first(nvml, column, (function, ids.CLOCK_SM), (function, ids.CLOCK_GRAPHICS))
        return within(found, 1, _MAX_MHZ)

    def _memory(self, nvml: Any, root: Path) -> tuple[float | None, float | None]:
        """Used and total in MiB. A card that shares the system's memory says 0, nothing, or the system's numbers."""
        info = self._call(nvml, "mem_used_mb", "nvmlDeviceGetMemoryInfo")
        total = info.total / MIB if info is not None else 0.0
        if total == 0 and not self.facts.unified and (info is not None or "nvmlDeviceGetMemoryInfo()" in self._never):
            known = bool(_UNIFIED.search(self.facts.name or "")) or self._addresses_host(nvml)
            self.facts = replace(self.facts, unified=known)
        if self.facts.unified:
            self.absent.pop("mem_used_mb", None)
            host = memory(f"{root}/proc")
            return host["mem_used_mb"], host["mem_total_mb"]
        if total == 0 or info.used > info.total:
            self.absent.setdefault("mem_used_mb", "not plausible")
            return None, total or None
        return info.used / MIB, total

    def _addresses_host(self, nvml: Any) -> bool:
        mode = self._call(nvml, "addressing", "nvmlDeviceGetAddressingMode")
        self.absent.pop("addressing", None)
        return bool(mode == ids.ADDRESSING_ATS)

    @staticmethod
    def _is_host(total_mb: float, root: Path) -> bool:
        host = memory(f"{root}/proc")["mem_total_mb"]
        return bool(host and abs(total_mb - host) < 0.02 * host)

    def _from_files(self, values: dict[str, Any], root: Path) -> None:
        """Boards whose GPU NVML lists without answers tell the rest by files."""
        if all(values[column] is not None for column in ("util_pct", "temp_c", "sm_mhz")):
            return
        self._jetson = self._jetson or Jetson(root)
        for column, read in (
            ("util_pct", self._jetson.util_pct),
            ("temp_c", self._jetson.temp_c),
            ("sm_mhz", self._jetson.mhz),
        ):
            if values[column] is None and (found := read()) is not None:
                values[column] = found
                self.absent.pop(column, None)

    def _watts(self, milliwatts: Any, column: str) -> float | None:
        """Nothing draws 0 W, and nothing half as much again as its limit."""
        limit = self._slow.get("power_limit_w") or self.facts.power_limit_w
        if milliwatts is None:
            self.absent.setdefault(column, NOT_OFFERED)
            return None
        found = within(milliwatts / 1000, 0.001, limit * 1.5 if limit else _NO_LIMIT_W)
        if found is None:
            self.absent[column] = f"not plausible: {milliwatts / 1000:.0f} W"
        return found

    def _limit(self, nvml: Any) -> float | None:
        enforced = self._call(nvml, "power_limit_w", "nvmlDeviceGetEnforcedPowerLimit")
        if not enforced:
            fields = self._fields(nvml, [ids.POWER_CURRENT_LIMIT, ids.POWER_MAX_LIMIT])
            enforced = fields.get(ids.POWER_CURRENT_LIMIT) or fields.get(ids.POWER_MAX_LIMIT)
        found = within(enforced / 1000 if enforced else None, 1, 5000)
        if found is not None:
            self.absent.pop("power_limit_w", None)
        return found

    def _threshold(self, nvml: Any, which: int, tlimit: int) -> float | None:
        told = self._call(nvml, f"threshold {which}", "nvmlDeviceGetTemperatureThreshold", which)
        if (found := self._plausible_c(told, 130)) is not None:
            return found
        margin = self._call(nvml, "margin", "nvmlDeviceGetMarginTemperature")
        return ids.from_margin(
            self._plausible_c(self._temperature(nvml)), margin, self._fields(nvml, [tlimit]).get(tlimit)
        )

    @staticmethod
    def _plausible_c(value: Any, limit: float = files.MAX_C) -> float | None:
        return float(value) if value is not None and files.MIN_C < value < limit else None

    def _believed_c(self, value: Any, column: str) -> float | None:
        """0 is what a missing memory thermometer says."""
        found = self._plausible_c(value)
        if found is None and value is not None:
            self.absent[column] = f"not plausible: {value} C"
        elif found is None:
            self.absent.setdefault(column, NOT_OFFERED)
        return found

    def _read_slow(self, nvml: Any) -> dict[str, Any]:
        pstate = self._call(nvml, "pstate", "nvmlDeviceGetPerformanceState")
        gen, width = self._link(nvml)
        rpm = self._call(nvml, "fan_rpm", "nvmlDeviceGetFanSpeedRPM")
        return {
            "power_limit_w": self._limit(nvml),
            "fan_pct": within(self._call(nvml, "fan_pct", "nvmlDeviceGetFanSpeed"), 0, 150),
            "fan_rpm": within(getattr(rpm, "speed", rpm), 0, 50_000),  # some bindings hand out the whole structure
            "pcie_gen": gen,
            "pcie_width": width,
            "pstate": pstate if pstate != ids.PSTATE_UNKNOWN else None,
            "ecc_uncorrected": self._call(
                nvml, "ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", ids.UNCORRECTED, ids.VOLATILE
            ),
        }

    def _link(self, nvml: Any) -> tuple[int | None, int | None]:
        """Generation and width; a card on the processor's own bus says Gen1 x1, which means nothing."""
        if not self.facts.unified:
            gen = self._call(nvml, "pcie_gen", "nvmlDeviceGetCurrPcieLinkGeneration")
            width = self._call(nvml, "pcie_width", "nvmlDeviceGetCurrPcieLinkWidth")
            if (gen, width) != (1, 1) or not self._addresses_host(nvml):
                return gen, width
        self.absent["pcie_gen"] = self.absent["pcie_width"] = "not on PCIe"
        return None, None


def _whole(value: Any) -> int | None:
    return int(value) if value is not None else None
