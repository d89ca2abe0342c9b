"""Throttling as arithmetic: what the hardware's mask and time counters say, as milliseconds per cause. Pure.

The mask uses NVML's clock-event bits; AMD's are mapped onto them (probes/amd.py). Causes overlap: a GPU can be at its
power cap and too hot at once, so their times are never added up. Over several GPUs the worst one speaks for the box.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
_HARDWARE_CAUSES = ("hw_brake_ms", "hw_thermal_ms")

SHOWN_MS = 100.0  # under a tenth of a second of a sample nothing is worth a word (a counter's own grain)
MAX_SHARE = 1.05  # a counter cannot run faster than the clock, give or take its grain
GRAIN_MS = 250.0  # drivers refresh their counters that late
DISTRUST_AFTER = 3  # impossible deltas until a counter is given up
IGNORED_AFTER = 5  # samples in a row with a bit set whose counter stands still until the counters are given up


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
    before: int | None, now: int | None, gap_ms: float, *, per_ms: float, wraps: int = 0
) -> float | None:
    """Milliseconds that a time counter gained over a gap; ``per_ms`` is its ticks per millisecond.

    A counter that fell was reset with the driver and counts from zero; with ``wraps`` (its modulus) a fall that a wrap
    explains within the gap is a wrap. None: no reading on one side, or more time gained than has passed.
    """
    if before is None or now is None or gap_ms <= 0:
        return None
    limit = gap_ms * MAX_SHARE + GRAIN_MS
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


@dataclass(frozen=True)
class Reading:
    """What one GPU said at ``mono`` seconds: its mask, and per cause its counter in the hardware's own ticks."""

    mono: float
    mask: int | None = None
    counters: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Held:
    """What happened since the previous reading, in milliseconds per cause; a cause is None when nobody can tell."""

    ms: Mapping[str, float | None]
    source: str  # counter, mask, none
    brakes: int | None
    reset: bool = False  # the counters fell: driver reload, GPU reset


class Meter:
    """One GPU's throttling over time. Feed it readings in order; not for two threads.

    Per cause the time counter counts where there is one that can be believed, else the mask. A counter is given up
    for good when it gains more time than passed (ids or units changed with the driver), and all of them when the mask
    says throttled sample after sample while its counter stands still.
    """

    def __init__(self, cadence_s: float, *, per_ms: float = 1e6, wraps: int = 0) -> None:
        self._cadence_ms = cadence_s * 1000
        self._per_ms = per_ms
        self._wraps = wraps
        self._before: Reading | None = None
        self._last: dict[str, tuple[int, float]] = {}  # cause -> last counter value, when
        self._impossible: dict[str, int] = {}
        self._ignored: dict[str, int] = {}
        self._distrusted: set[str] = set()
        self._slowed: bool | None = None

    @property
    def distrusted(self) -> frozenset[str]:
        """The causes whose counters were given up."""
        return frozenset(self._distrusted)

    def feed(self, reading: Reading) -> Held:
        before, self._before = self._before, reading
        ms: dict[str, float | None] = {}
        counted, sampled, reset = 0, 0, False
        for cause, bit in CAUSES.items():
            value = reading.counters.get(cause)
            if value is not None and cause not in self._distrusted:
                gained, fell = self._gain(cause, value, reading, bit)
                reset |= fell
                if cause not in self._distrusted:
                    ms[cause] = gained
                    counted += 1
                    continue
            gap_ms = (reading.mono - before.mono) * 1000 if before else 0.0
            ms[cause] = mask_held_ms(reading.mask, bit, gap_ms, self._cadence_ms) if before else None
            sampled += reading.mask is not None
        source = "mask" if sampled else "counter" if counted else "none"
        return Held(ms=ms, source=source, brakes=self._brakes(reading.mask, ms), reset=reset)

    def _gain(self, cause: str, value: int, reading: Reading, bit: int) -> tuple[float | None, bool]:
        last = self._last.get(cause)
        self._last[cause] = (value, reading.mono)
        if last is None:
            return None, False
        gap_ms = (reading.mono - last[1]) * 1000
        gained = counter_delta_ms(last[0], value, gap_ms, per_ms=self._per_ms, wraps=self._wraps)
        if gained is None:
            self._impossible[cause] = self._impossible.get(cause, 0) + 1
            if self._impossible[cause] >= DISTRUST_AFTER:
                self._distrusted.add(cause)
            return None, False
        standing = reading.mask is not None and bool(reading.mask & bit) and gained < gap_ms * 0.01
        self._ignored[cause] = self._ignored.get(cause, 0) + 1 if standing else 0
        if self._ignored[cause] >= IGNORED_AFTER:
            self._distrusted.update(CAUSES)
        return gained, value < last[0]

    def _brakes(self, mask: int | None, ms: Mapping[str, float | None]) -> int | None:
        """Rising edges of hardware slowdown, by mask or by counter, against the last state that was known."""
        held = [ms[cause] for cause in _HARDWARE_CAUSES if ms[cause] is not None]
        if mask is None and not held:
            return None
        slowed = bool(mask and mask & SLOWDOWN) or any(value is not None and value >= 1.0 for value in held)
        before, self._slowed = self._slowed, slowed
        return int(slowed and before is False)


def power_ms(ms: Mapping[str, float | None]) -> float | None:
    """Time at the power cap."""
    return ms.get("sw_power_ms")


def thermal_ms(ms: Mapping[str, float | None]) -> float | None:
    """Time held back by heat: the longer of the software's and the hardware's, for they overlap."""
    return worst((ms.get("sw_thermal_ms"), ms.get("hw_thermal_ms")))
