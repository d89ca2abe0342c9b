"""amdgpu's binary ``gpu_metrics`` table: what its many formats say about throttling, in one shape. Pure.

Three kinds: a status word of the moment (1.3, 2.2 to 2.4); time counters (3.0 from 264 bytes on: Strix Halo); residencies
against a cycle counter (1.6 to 1.8: MI300). Offsets are those of the kernel's kgd_pp_interface.h. A field of all ones is
none, and so is what lies behind the end of a shorter table.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.telemetry.throttle import HW_BRAKE, MAX_SHARE, SW_POWER, SW_THERMAL

WRAP = 2**32
HOTSPOT = 1 << 36

# indep_throttle_status, kernel amdgpu_smu.h.
_POWER_BITS = sum(1 << bit for bit in (*range(8), *range(16, 24)))  # PPT, SPL, FPPT, SPPT; TDC, EDC, APCC
_THERMAL_BITS = sum(1 << bit for bit in range(32, 46))  # temperatures of the chip, its memory, its regulators
_PROCHOT_BITS = 1 << 46 | 1 << 47  # somebody outside pulls the brake
_NONE = {"H": 0xFFFF, "I": 0xFFFFFFFF, "Q": 0xFFFFFFFFFFFFFFFF}

# Residencies in their order in the tables, each with the cause that it counts for.
_V3_BYTES = 264
_V3 = (
    ("prochot", "hw_brake_ms"),
    ("spl", "sw_power_ms"),
    ("fppt", "sw_power_ms"),
    ("sppt", "sw_power_ms"),
    ("thm_core", "sw_thermal_ms"),
    ("thm_gfx", "sw_thermal_ms"),
    ("thm_soc", "sw_thermal_ms"),
)
_V1 = (
    ("prochot", "hw_brake_ms"),
    ("ppt", "sw_power_ms"),
    ("socket_thm", "sw_thermal_ms"),
    ("vr_thm", "sw_thermal_ms"),
    ("hbm_thm", "sw_thermal_ms"),
)
CAUSE_OF: Mapping[str, str] = dict(_V3) | dict(_V1)


@dataclass(frozen=True)
class Metrics:
    """``residencies`` by name: microseconds, or with ``cycles`` parts of that counter. None: the table has no such field."""

    form: int = 0
    content: int = 0
    status: int | None = None
    residencies: Mapping[str, int | None] = field(default_factory=dict)
    cycles: int | None = None
    power_w: float | None = None

    @property
    def of_processor(self) -> bool:
        """Tables of format 2 and 3 are those of processors with graphics, whose memory is the system's."""
        return self.form >= 2


def decode(table: bytes) -> Metrics:
    """An empty reading when it is no table, or shorter than it says."""
    if len(table) < 4:
        return Metrics()
    size, form, content = struct.unpack_from("<HBB", table)
    if size > len(table):
        return Metrics()
    if form == 3 and size >= _V3_BYTES:
        milliwatts = value(table, 112, "I")
        return Metrics(
            form,
            content,
            residencies={name: value(table, 228 + 4 * place, "I") for place, (name, _) in enumerate(_V3)},
            power_w=None if milliwatts is None else milliwatts / 1000,
        )
    if form == 1 and content in (6, 7, 8):
        first = 32 if content == 6 else 40  # 1.7 put the memory's bandwidth before
        watts = value(table, 10, "H")
        return Metrics(
            form,
            content,
            residencies={name: value(table, first + 4 + 4 * place, "I") for place, (name, _) in enumerate(_V1)},
            cycles=value(table, first, "I"),
            power_w=None if watts is None else float(watts),
        )
    if form == 1 and content == 3:
        return Metrics(form, content, status=value(table, 112, "Q"))
    if form == 2 and content in (2, 3, 4):
        return Metrics(form, content, status=value(table, 120, "Q"))
    return Metrics(form, content)


def value(table: bytes, offset: int, kind: str) -> int | None:
    """A field of the table; all bits set means that there is none."""
    if len(table) < offset + struct.calcsize(f"<{kind}"):
        return None
    found = int(struct.unpack_from(f"<{kind}", table, offset)[0])
    return None if found == _NONE[kind] else found


def mask_of(status: int, hot: bool) -> int:
    """AMD's status word in NVML's bits.

    RDNA3 and RDNA4 always set the hotspot bit: alone it counts only when the chip is ``hot``.
    """
    thermal = status & _THERMAL_BITS
    if thermal == HOTSPOT and not status & ~HOTSPOT and not hot:
        thermal = 0
    return (
        (SW_POWER if status & _POWER_BITS else 0)
        | (SW_THERMAL if thermal else 0)
        | (HW_BRAKE if status & _PROCHOT_BITS else 0)
    )


class CycleShare:
    """One residency of MI300 as a time counter: of every gap the share of its cycles that were throttled."""

    def __init__(self) -> None:
        self._before: tuple[float, int, int] | None = None  # seconds, cycles, throttled cycles
        self._per_s: float | None = None  # cycles in a second, as last seen
        self._total_us = 0.0

    def feed(self, now: float, cycles: int | None, throttled: int | None) -> int | None:
        """Microseconds since the first reading; None when this reading says nothing that can be believed."""
        if cycles is None or throttled is None:
            return None
        before = self._before
        if before is None:
            self._before = (now, cycles, throttled)
            return 0
        gap_s, passed, held = now - before[0], (cycles - before[1]) % WRAP, (throttled - before[2]) % WRAP
        if passed == 0:
            return int(self._total_us)  # the firmware has not added anything since: the base stays
        self._before = (now, cycles, throttled)
        if cycles < before[1] and not self._wrapped(passed, gap_s):
            passed, held = cycles, throttled  # a reset: since then, as far as that fits into the gap
            gap_s = min(gap_s, passed / self._per_s) if self._per_s else gap_s
        elif gap_s > 0:
            self._per_s = passed / gap_s
        if passed == 0:
            return int(self._total_us)
        if held > passed * MAX_SHARE:
            return None
        self._total_us += min(1.0, held / passed) * gap_s * 1e6
        return int(self._total_us)

    def _wrapped(self, passed: int, gap_s: float) -> bool:
        return self._per_s is not None and passed <= 2 * self._per_s * gap_s
