"""One NVIDIA card through NVML: which call answers, which never will, and which answers make no sense."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.telemetry.probes import files
from engine.telemetry.probes.cpu import memory
from engine.telemetry.probes.gpu import within
from engine.telemetry.sample import GpuFacts, GpuSample
from engine.telemetry.throttle import Meter, Reading

MIB = 1024 * 1024

# nvmlReturn_t
UNINITIALIZED, NOT_SUPPORTED, DRIVER_NOT_LOADED = 1, 3, 9
FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, LIB_RM_VERSION_MISMATCH = 13, 15, 16, 18
ARGUMENT_VERSION_MISMATCH, DEPRECATED, GPU_NOT_FOUND = 25, 26, 28
_NEVER = (NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED)  # permanent: asked once
NOT_OFFERED = "not offered by this GPU or driver"

# nvmlClockType_t, nvmlTemperatureSensors_t, nvmlTemperatureThresholds_t and others: numbers are the ABI, names move.
CLOCK_GRAPHICS, CLOCK_SM = 0, 1
SENSOR_GPU = 0
THRESHOLD_SHUTDOWN, THRESHOLD_SLOWDOWN = 0, 1
UNCORRECTED, VOLATILE = 1, 0
ADDRESSING_ATS = 2
PSTATE_UNKNOWN = 32

FIELD_MEMORY_TEMP, FIELD_POWER_MAX_LIMIT, FIELD_POWER_INSTANT = 82, 188, 186
SLOW_EVERY = 5  # samples: what changes seldom or costs more

_VALUE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t
_UNIFIED = re.compile(r"GB10|Thor|Orin|Xavier|Tegra|Jetson|nvgpu", re.IGNORECASE)
_NO_LIMIT_W = 400.0  # the most that a card is believed which names no power limit
_MAX_MHZ = 6000


class Lost(Exception):
    """The card has fallen off the bus or needs a reset."""


class DriverGone(Exception):
    """NVML itself has to be started again."""


def bus_id(text: str) -> str:
    """NVML's ``00000000:01:00.0`` as sysfs writes it, ``0000:01:00.0``. Raises ValueError."""
    domain, bus, rest = text.lower().split(":")
    return f"{int(domain, 16):04x}:{bus}:{rest}"


def driver_tuple(version: str) -> tuple[int, ...]:
    """``580.95.05`` as (580, 95, 5); empty when it is no version."""
    return tuple(int(part) for part in version.split(".")) if re.fullmatch(r"\d+(\.\d+)*", version) else ()


def counter_fields(driver: tuple[int, ...]) -> dict[str, int]:
    """The field id of each cause's time counter (nanoseconds), by driver: ids moved twice, bindings name only one set.

    Drivers before 575 have no slowdown counters of their own; the thermal policy's stands for thermal there.
    """
    fields = {"sw_power_ms": 74, "sync_boost_ms": 76}
    if driver >= (580, 82):
        return fields | {"sw_thermal_ms": 269, "hw_thermal_ms": 270, "hw_brake_ms": 271}
    if driver >= (575,):
        return fields | {"sw_thermal_ms": 251, "hw_thermal_ms": 252, "hw_brake_ms": 253}
    return fields | {"sw_thermal_ms": 75}


class Card:
    """What is known about one card between readings."""

    def __init__(
        self, index: int, uuid: str, pci: str | None, handle: Any, driver: tuple[int, ...], cadence_s: float
    ) -> None:
        self.index = index
        self.uuid = uuid
        self.pci = pci
        self.handle = handle
        self.lost = False
        self.facts = GpuFacts(index=index, uuid=uuid, vendor="nvidia")
        self.absent: dict[str, str] = {}  # column -> why there is nothing to tell
        self._never: set[str] = set()  # calls and fields that this card or driver will never answer
        self._counters = counter_fields(driver)
        self._meter = Meter(cadence_s)
        self._round = 0
        self._slow: dict[str, Any] = {}
        self._slow_absent: dict[str, str] = {}
        self._asked = self._answered = False

    def without_values(self, state: str) -> GpuSample:
        """The row of a card that cannot or must not be read."""
        return GpuSample(gpu_index=self.index, gpu_uuid=self.uuid, state=state)

    def read(self, nvml: Any, now: float, root: Path) -> GpuSample:
        """One reading. Raises Lost, DriverGone."""
        self._asked = self._answered = False
        self.absent = {}
        util = self._call(nvml, "util_pct", "nvmlDeviceGetUtilizationRates")
        power = self._power(nvml)
        fields = self._fields(nvml, [FIELD_MEMORY_TEMP, FIELD_POWER_INSTANT, *self._counters.values()])
        mask = self._mask(nvml)
        if self._round % SLOW_EVERY == 0:
            before, self.absent = self.absent, {}
            self._slow = self._read_slow(nvml)
            self._slow_absent, self.absent = self.absent, before
        self._round += 1
        self.absent |= self._slow_absent
        used, total = self._memory(nvml, root)
        held = self._meter.feed(
            Reading(now, mask, {cause: _whole(fields.get(field)) for cause, field in self._counters.items()})
        )
        silent = self._asked and not self._answered
        if silent:
            self.absent["state"] = "no call answers"
        instant = fields.get(FIELD_POWER_INSTANT)
        values: dict[str, Any] = {**held.ms, **self._slow}
        return GpuSample(
            gpu_index=self.index,
            gpu_uuid=self.uuid,
            state="error" if silent else "ok",
            util_pct=within(getattr(util, "gpu", None), 0, 100),
            mem_used_mb=used,
            mem_total_mb=total,
            temp_c=self._temperature(self._call(nvml, "temp_c", "nvmlDeviceGetTemperature", SENSOR_GPU)),
            mem_temp_c=self._temperature(fields.get(FIELD_MEMORY_TEMP)),
            power_w=self._watts(power),
            power_inst_w=self._watts(instant),
            sm_mhz=within(self._call(nvml, "sm_mhz", "nvmlDeviceGetClockInfo", CLOCK_SM), 1, _MAX_MHZ),
            throttle_mask=mask,
            throttle_source=held.source,
            brakes=held.brakes,
            **values,
        )

    def learn_facts(self, nvml: Any, root: Path) -> None:
        """What does not change: name, limits, thresholds; whether its memory is the system's."""
        name = self._call(nvml, "name", "nvmlDeviceGetName")
        self.facts = replace(
            self.facts,
            name=name.decode("utf-8", "replace") if isinstance(name, bytes) else name,
            power_limit_w=self._limit(nvml),
            temp_slowdown_c=self._threshold(nvml, THRESHOLD_SLOWDOWN),
            temp_shutdown_c=self._threshold(nvml, THRESHOLD_SHUTDOWN),
            clock_max_mhz=within(
                max(
                    (
                        clock
                        for kind in (CLOCK_GRAPHICS, CLOCK_SM)
                        if (clock := self._call(nvml, f"max clock {kind}", "nvmlDeviceGetMaxClockInfo", kind))
                    ),
                    default=None,
                ),
                1,
                _MAX_MHZ,
            ),
        )
        _, total = self._memory(nvml, root)
        shared = total is not None and self._is_host(total, root) and self._addresses_host(nvml)
        self.facts = replace(self.facts, mem_mb=total, unified=self.facts.unified or shared)

    # One call, and what its failure means.

    def _call(self, nvml: Any, column: str, function: str, *args: Any) -> Any:
        key = f"{function}({', '.join(map(str, args))})" if function != "nvmlDeviceGetFieldValues" else function
        call: Callable[..., Any] | None = getattr(nvml, function, None)
        if key in self._never or call is None:
            self.absent.setdefault(column, NOT_OFFERED)
            return None
        self._asked = True
        try:
            answer = call(self.handle, *args)
        except nvml.NVMLError as error:
            self._failed(error.value, key, column, str(error))
            return None
        except UnicodeDecodeError:
            return None
        self._answered = True
        return answer

    def _failed(self, code: int, key: str, column: str, words: str) -> None:
        if code in (GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND):
            raise Lost(words)
        if code in (UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH):
            raise DriverGone(f"NVML: {words}")
        if code in _NEVER:
            self._never.add(key)
            self._answered = True  # a refusal is an answer: the card is there
        self.absent[column] = NOT_OFFERED if code in _NEVER else words

    def _fields(self, nvml: Any, ids: list[int]) -> dict[int, Any]:
        """Field values in one call. The call succeeds while single fields do not."""
        asked = [field for field in ids if f"field {field}" not in self._never]
        if not asked:
            return {}
        found: dict[int, Any] = {}
        for item in self._call(nvml, "counters", "nvmlDeviceGetFieldValues", asked) or ():
            if item.nvmlReturn == 0:
                if 0 <= item.valueType < len(_VALUE):
                    found[item.fieldId] = getattr(item.value, _VALUE[item.valueType])
            elif item.nvmlReturn in _NEVER:
                self._never.add(f"field {item.fieldId}")
        return found

    # What needs a second thought.

    def _mask(self, nvml: Any) -> int | None:
        for function in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            if (mask := self._call(nvml, "throttle_mask", function)) is not None:
                self.absent.pop("throttle_mask", None)
                return int(mask)
        return None

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
            return None, total or None
        return info.used / MIB, total

    def _addresses_host(self, nvml: Any) -> bool:
        return bool(self._call(nvml, "addressing", "nvmlDeviceGetAddressingMode") == ADDRESSING_ATS)

    @staticmethod
    def _is_host(total_mb: float, root: Path) -> bool:
        host = memory(f"{root}/proc")["mem_total_mb"]
        return bool(host and abs(total_mb - host) < 0.02 * host)

    def _power(self, nvml: Any) -> Any:
        return self._call(nvml, "power_w", "nvmlDeviceGetPowerUsage")

    def _watts(self, milliwatts: Any) -> float | None:
        """Nothing draws 0 W, and nothing half as much again as its limit."""
        limit = self._slow.get("power_limit_w") or self.facts.power_limit_w
        return within(None if milliwatts is None else milliwatts / 1000, 0.001, limit * 1.5 if limit else _NO_LIMIT_W)

    def _limit(self, nvml: Any) -> float | None:
        enforced = self._call(nvml, "power_limit_w", "nvmlDeviceGetEnforcedPowerLimit")
        if not enforced:
            enforced = self._fields(nvml, [FIELD_POWER_MAX_LIMIT]).get(FIELD_POWER_MAX_LIMIT)
        return within(enforced / 1000 if enforced else None, 1, 5000)

    def _threshold(self, nvml: Any, which: int) -> float | None:
        return self._temperature(
            self._call(nvml, f"threshold {which}", "nvmlDeviceGetTemperatureThreshold", which), 130
        )

    @staticmethod
    def _temperature(value: Any, limit: float = files.MAX_C) -> float | None:
        """0 is what a missing memory thermometer says."""
        return float(value) if value is not None and files.MIN_C < value < limit else None

    def _read_slow(self, nvml: Any) -> dict[str, Any]:
        pstate = self._call(nvml, "pstate", "nvmlDeviceGetPerformanceState")
        link = not self.facts.unified  # a card on the processor's own bus says Gen1 x1
        if not link:
            self.absent["pcie_gen"] = "not on PCIe"
        return {
            "power_limit_w": self._limit(nvml),
            "fan_pct": within(self._call(nvml, "fan_pct", "nvmlDeviceGetFanSpeed"), 0, 150),
            "fan_rpm": within(self._call(nvml, "fan_rpm", "nvmlDeviceGetFanSpeedRPM"), 0, 50_000),
            "pcie_gen": self._call(nvml, "pcie_gen", "nvmlDeviceGetCurrPcieLinkGeneration") if link else None,
            "pcie_width": self._call(nvml, "pcie_width", "nvmlDeviceGetCurrPcieLinkWidth") if link else None,
            "pstate": pstate if pstate != PSTATE_UNKNOWN else None,
            "ecc_uncorrected": self._call(
                nvml, "ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", UNCORRECTED, VOLATILE
            ),
        }


def _whole(value: Any) -> int | None:
    return int(value) if value is not None else None
