"""Throttling as arithmetic: what the hardware's mask and time counters say, as milliseconds per cause. Pure.

The mask uses NVML's clock-event bits; AMD's are mapped onto them (probes/amd.py). Causes overlap: a GPU can be at its
power cap and too hot at once, so their times are never added up. Over several GPUs the worst one speaks for the box.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

IDLE = 0x001
CLOCK_SETTING = 0x002
SW_POWER = 0x004
HW_SLOWDOWN = 0x008
SYNC_BOOST = 0x010
SW_THERMAL = 0x020
HW_THERMAL = 0x040
HW_BRAKE = 0x080
DISPLAY_SETTING = 0x100
BOARD_LIMIT = 0x200
RELIABILITY = 0x400

# bit -> (name, letter of the strip, throttle_index). Idle and the settings of an operator are no throttling: no letter.
BITS: Mapping[int, tuple[str, str, float]] = {
    IDLE: ("idle", "", 0),
    CLOCK_SETTING: ("clock setting", "", 5),
    SW_POWER: ("power cap", "P", 30),
    HW_SLOWDOWN: ("hw slowdown", "B", 85),
    SYNC_BOOST: ("sync boost", "S", 5),
    SW_THERMAL: ("thermal", "T", 50),
    HW_THERMAL: ("hw thermal", "T", 100),
    HW_BRAKE: ("power brake", "B", 90),
    DISPLAY_SETTING: ("display clock setting", "", 5),
    BOARD_LIMIT: ("board limit", "P", 30),
    RELIABILITY: ("reliability", "P", 30),
}
_KNOWN = sum(BITS)
SLOWDOWN = HW_SLOWDOWN | HW_THERMAL | HW_BRAKE

# The columns of milliseconds, each with its bit.
CAUSES: Mapping[str, int] = {
    "sw_power_ms": SW_POWER,
    "hw_brake_ms": HW_BRAKE,
    "sw_thermal_ms": SW_THERMAL,
    "hw_thermal_ms": HW_THERMAL,
    "sync_boost_ms": SYNC_BOOST,
}
HARDWARE_CAUSES = ("hw_brake_ms", "hw_thermal_ms")

SHOWN_MS = 100.0  # under a tenth of a second of a sample nothing is worth a word (a counter's own grain)
MAX_SHARE = 1.05  # a counter cannot run faster than the clock, give or take its grain
GRAIN_MS = 250.0  # drivers refresh their counters that late


def names(mask: int | None) -> list[str]:
    """What the mask says, in words; unknown bits as ``0x...``; the umbrella bit only when it says something of its own."""
    if mask is None:
        return []
    said = [name for bit, (name, _, _) in BITS.items() if mask & bit]
    if mask & (HW_THERMAL | HW_BRAKE) and mask & HW_SLOWDOWN:
        said.remove("hw slowdown")
    if unknown := mask & ~_KNOWN:
        said.append(hex(unknown))
    return said


def letters(mask: int | None) -> str:
    """``P`` power, ``T`` thermal, ``B`` brake, ``S`` sync boost, ``?`` an unknown reason; empty: nothing holds it back."""
    if mask is None:
        return ""
    found = {letter for bit, (_, letter, _) in BITS.items() if letter and mask & bit}
    if mask & HW_SLOWDOWN and mask & HW_THERMAL and not mask & HW_BRAKE:
        found.discard("B")  # the umbrella of the thermal slowdown, no brake
    if mask & ~_KNOWN:
        found.add("?")
    return "".join(letter for letter in "PTBS?" if letter in found)


def index_of(mask: int | None, ms: Mapping[str, float | None] | None = None) -> float | None:
    """``throttle_index`` of one GPU: 0 free to 100 hardware thermal slowdown; None: unknown.

    ``ms`` are the sample's milliseconds per cause: counters reveal what the mask at the moment of reading misses.
    """
    worst: float | None = None
    if mask is not None and (mask & _KNOWN or not mask):
        worst = max([level for bit, (_, _, level) in BITS.items() if mask & bit], default=0.0)
    for cause, bit in CAUSES.items():
        held = (ms or {}).get(cause)
        if held is not None:
            worst = max(worst or 0.0, BITS[bit][2] if held >= SHOWN_MS else 0.0)
    return None if worst is None else float(worst)


def worst(values: Iterable[float | None]) -> float | None:
    """The largest of what is known; None when nothing is."""
    return max((value for value in values if value is not None), default=None)


def total(values: Iterable[float | None]) -> float | None:
    """The sum of what is known; None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def counter_delta_ms(
    before: int | None, now: int | None, gap_ms: float, *, per_ms: float, wraps: int = 0, grain_ms: float = GRAIN_MS
) -> float | None:
    """Milliseconds that a time counter gained over a gap; ``per_ms`` is its ticks per millisecond.

    A counter that fell was reset with the driver and counts from zero; with ``wraps`` (its modulus) a fall that a wrap
    explains within the gap is a wrap. None: no reading on one side, or more time gained than has passed.
    """
    if before is None or now is None or gap_ms <= 0:
        return None
    limit = gap_ms * MAX_SHARE + grain_ms
    gained = (now - before) / per_ms
    if gained >= 0:
        return gained if gained <= limit else None
    if wraps and (wrapped := (now - before + wraps) / per_ms) <= limit:
        return wrapped
    return min(now / per_ms, gap_ms)


def mask_held_ms(mask: int | None, bit: int, gap_ms: float, cadence_ms: float) -> float | None:
    """Milliseconds for which a bit is taken to have held since the previous sample: the gap, at most two cadences."""
    if mask is None:
        return None
    return min(gap_ms, 2 * cadence_ms) if mask & bit else 0.0


def power_ms(ms: Mapping[str, float | None]) -> float | None:
    """Time at the power cap."""
    return ms.get("sw_power_ms")


def thermal_ms(ms: Mapping[str, float | None]) -> float | None:
    """Time held back by heat: the longer of the software's and the hardware's, for they overlap."""
    return worst((ms.get("sw_thermal_ms"), ms.get("hw_thermal_ms")))
