"""Numbers of NVML's interface: field ids, which moved with drivers, and the enumerations, which are its ABI.

Names in the bindings are those of whatever version got installed; numbers follow the driver.
"""

from __future__ import annotations

import re

# nvmlClockType_t, nvmlTemperatureSensors_t, nvmlTemperatureThresholds_t and others.
CLOCK_GRAPHICS, CLOCK_SM = 0, 1
SENSOR_GPU = 0
THRESHOLD_SHUTDOWN, THRESHOLD_SLOWDOWN = 0, 1
UNCORRECTED, VOLATILE = 1, 0
ADDRESSING_ATS = 2
PSTATE_UNKNOWN = 32
MIG_ENABLED = 1
EVENT_XID, EVENT_UNAVAILABLE, EVENT_RECOVERY = 0x8, 0x4000, 0x8000
POLICY_POWER, POLICY_THERMAL, POLICY_SYNC_BOOST = 0, 1, 2

RETIRED_PENDING = 31
MEMORY_TEMP = 82
PCIE_REPLAYS = 94
REMAPPED_PENDING, REMAPPED_FAILURE = 144, 145
POWER_AVERAGE, POWER_INSTANT = 185, 186
POWER_MAX_LIMIT, POWER_CURRENT_LIMIT = 188, 190
SHUTDOWN_TLIMIT, SLOWDOWN_TLIMIT = 193, 194
PCIE_TX_BYTES, PCIE_RX_BYTES = 197, 198
RECOVERY_ACTION = 230
SCOPE_GPU, SCOPE_MODULE, SCOPE_MEMORY = 0, 1, 2

# Causes whose counter an older call gives, where their field is not offered: nvmlDeviceGetViolationStatus.
POLICIES = {"sw_power_ms": POLICY_POWER, "sync_boost_ms": POLICY_SYNC_BOOST, "sw_thermal_ms": POLICY_THERMAL}

_MAX_TLIMIT_C = 130.0


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


def from_margin(temp_c: float | None, margin_c: float | None, tlimit_c: float | None) -> float | None:
    """A threshold in Celsius of a card that tells only how far it is away: its temperature, what is left, and the limit.

    New cards count down to 0 at their maximum; a slowdown limit of -2 is two degrees past that.
    """
    if temp_c is None or margin_c is None or tlimit_c is None:
        return None
    found = temp_c + margin_c - tlimit_c
    return found if 50.0 <= found <= _MAX_TLIMIT_C else None
