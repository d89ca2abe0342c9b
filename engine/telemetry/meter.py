"""One GPU's throttling over time: from what its mask and its time counters say to milliseconds per cause. Pure.

Three witnesses, the best one that there is for each cause: the driver's time counters; the counters that the driver's own
program prints (``Text``), which cannot be confused with another field but are read seldom; the mask of the moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.telemetry.throttle import CAUSES, HARDWARE_CAUSES, SLOWDOWN, counter_delta_ms, mask_held_ms

DISTRUST_AFTER = 3  # impossible deltas until a counter is given up
IGNORED_AFTER = 5  # samples in a row with a bit set whose counter stands still until the counters are given up
COUNTER_KEEP_S = 60.0  # for so long a counter that does not answer is waited for
TEXT_GRAIN_MS = 1000.0  # how far counter and text may be apart besides the time between their readings
TEXT_PER_MS = 1e3  # the text counts microseconds

# Ids that moved together: when one of them is not what it was taken for, neither are the others.
_GROUPS = (frozenset({"sw_power_ms", "sync_boost_ms"}), frozenset({"sw_thermal_ms", "hw_thermal_ms", "hw_brake_ms"}))


@dataclass(frozen=True)
class Text:
    """The counters as the driver's program printed them, in microseconds, between ``began`` and ``mono`` (seconds).

    ``lasts_s``: for how long after ``mono`` a next one may be waited for.
    """

    began: float
    mono: float
    counters: Mapping[str, int | None]
    lasts_s: float = 60.0


@dataclass(frozen=True)
class Reading:
    """What one GPU said at ``mono`` seconds: its mask, per cause its counter in the hardware's own ticks, the last text."""

    mono: float
    mask: int | None = None
    counters: Mapping[str, int | None] = field(default_factory=dict)
    text: Text | None = None


@dataclass(frozen=True)
class Held:
    """What happened since the previous reading, in milliseconds per cause; a cause is None when nobody can tell (yet)."""

    ms: Mapping[str, float | None]
    source: str  # counter, smi, mask, none: the least exact one that took part
    brakes: int | None
    reset: bool = False  # the counters fell: driver reload, GPU reset


class Meter:
    """Feed it readings in order; not for two threads.

    A counter is given up when it gains more time than passed, when the mask says throttled sample after sample while it
    stands still, or when a text contradicts it; a text that agrees rehabilitates it. No time is counted twice: while an
    exact answer is waited for, a cause says None, and what the mask saw meanwhile counts only when the wait was in vain.
    A cause that stands at zero in the text is left to the mask, so that nobody has to be asked often; what the mask missed
    is added with the next text.
    """

    def __init__(self, cadence_s: float, *, per_ms: float = 1e6, wraps: int = 0) -> None:
        self._cadence_ms = cadence_s * 1000
        self._per_ms = per_ms
        self._wraps = wraps
        self._before: Reading | None = None
        self._last: dict[str, tuple[int, float]] = {}  # cause -> last counter value, when
        self._text: Text | None = None
        self._text_last: dict[str, tuple[int, float]] = {}  # causes of which texts are the source: last value, when
        self._text_slowed = False
        self._checked: dict[str, tuple[int, float]] = {}  # cause -> the last text's value, when, even if it is old
        self._since: dict[str, float] = {}  # cause -> what counter or mask told since then
        self._owed: dict[str, float] = {}  # cause -> what they had left out, as a text proved
        self._impossible: dict[str, int] = {}
        self._ignored: dict[str, int] = {}
        self._distrusted: set[str] = set()
        self._vouched: set[str] = set()  # a text agreed
        self._waiting: dict[str, float] = {}  # cause -> what the mask saw since an exact source last spoke
        self._slowed: bool | None = None
        self.suspicious = False  # a counter that contradicts the mask: a text would settle it

    @property
    def distrusted(self) -> frozenset[str]:
        """The causes whose counters were given up."""
        return frozenset(self._distrusted)

    @property
    def wants_text(self) -> bool:
        """Whether texts are the best that there is for some cause, or would settle a doubt."""
        missing = [cause for cause in CAUSES if cause not in self._last]
        if self._text is None or self.suspicious:
            return bool(missing) or self.suspicious
        mask = (self._before.mask if self._before else None) or 0
        return any(
            self._text.counters.get(cause) or mask & CAUSES[cause] for cause in missing if cause in self._checked
        )

    def forget(self) -> None:
        """The driver was replaced: its counters are others from now on, and may be believed again."""
        self._last.clear()
        self._text_last.clear()
        self._text = None
        for memory in (self._impossible, self._ignored, self._waiting, self._checked, self._since, self._owed):
            memory.clear()
        self._distrusted.clear()
        self._vouched.clear()

    def feed(self, reading: Reading) -> Held:
        before, self._before = self._before, reading
        gap_ms = (reading.mono - before.mono) * 1000 if before else 0.0
        printed = reading.text is not self._text
        told, begun = self._take_text(reading)
        ms: dict[str, float | None] = {}
        sources: dict[str, str] = {}
        reset = False
        for cause, bit in CAUSES.items():
            held = mask_held_ms(reading.mask, bit, gap_ms, self._cadence_ms) if before else None
            if self._counted(cause, reading):
                first = cause not in self._last
                gained, fell = self._gain(cause, reading, bit)
                reset |= fell
                if cause not in self._distrusted:
                    sources[cause] = "counter"
                    ms[cause] = told.get(cause) if first else gained
                    self._note(cause, ms[cause], printed)
                    standing = bool(self._ignored.get(cause))
                    self._wait(cause, held, over=gained is not None and not standing)
                    continue
            if cause in self._text_last and cause not in begun:
                sources[cause] = "smi"
                ms[cause] = told.get(cause)
                self._wait(cause, held, over=ms[cause] is not None)
                continue
            if cause in begun:  # from the text on it counts, until then the mask did
                sources[cause] = "smi"
                held = held * self._share(before, reading) if held is not None else None
            elif reading.mask is not None:
                proven = reading.text is not None and self._checked.get(cause, (1, 0.0))[0] == 0
                sources[cause] = "smi" if proven and not reading.mask & bit else "mask"
            waited = self._waiting.pop(cause, 0.0)
            ms[cause] = self._owed.pop(cause, held + waited if held is not None else None)
            self._note(cause, ms[cause], printed)
        source = next((word for word in ("mask", "smi", "counter") if word in sources.values()), "none")
        return Held(ms=ms, source=source, brakes=self._brakes(reading.mask, ms, sources), reset=reset)

    def _note(self, cause: str, ms: float | None, printed: bool) -> None:
        """Remember what was told since the last text; the row of a text is about the time before it."""
        if not printed and ms is not None:
            self._since[cause] = self._since.get(cause, 0.0) + ms

    @staticmethod
    def _share(before: Reading | None, reading: Reading) -> float:
        """How much of the time since the last reading had passed when the text was printed."""
        if before is None or reading.text is None or reading.mono <= before.mono:
            return 0.0
        return min(1.0, max(0.0, (reading.text.mono - before.mono) / (reading.mono - before.mono)))

    def _wait(self, cause: str, held: float | None, over: bool) -> None:
        self._waiting[cause] = 0.0 if over else self._waiting.get(cause, 0.0) + (held or 0.0)

    def _counted(self, cause: str, reading: Reading) -> bool:
        """Whether the time counter speaks for this cause; one that is silent for a while is waited for."""
        if cause in self._distrusted:
            return False
        if reading.counters.get(cause) is not None:
            return True
        if cause in self._last and reading.mono - self._last[cause][1] > COUNTER_KEEP_S:
            del self._last[cause]
            self._text_last.pop(cause, None)
        return cause in self._last

    def _gain(self, cause: str, reading: Reading, bit: int) -> tuple[float | None, bool]:
        value, last = reading.counters.get(cause), self._last.get(cause)
        if value is None:
            return None, False
        self._last[cause] = (value, reading.mono)
        if last is None:
            return None, False
        gap_ms = (reading.mono - last[1]) * 1000
        gained = counter_delta_ms(last[0], value, gap_ms, per_ms=self._per_ms, wraps=self._wraps)
        if gained is None:
            self._impossible[cause] = self._impossible.get(cause, 0) + 1
            if self._impossible[cause] >= DISTRUST_AFTER:
                self._give_up(cause)
            return None, False
        standing = reading.mask is not None and bool(reading.mask & bit) and gained < gap_ms * 0.01
        standing = standing and cause not in self._vouched
        self._ignored[cause] = self._ignored.get(cause, 0) + 1 if standing else 0
        self.suspicious = any(self._ignored.values())
        if self._ignored[cause] >= IGNORED_AFTER:
            for other in next((group for group in _GROUPS if cause in group), {cause}):
                self._give_up(other)
        return gained, value < last[0]

    def _give_up(self, cause: str) -> None:
        self._distrusted.add(cause)
        self._vouched.discard(cause)
        self._last.pop(cause, None)
        self._text_last.pop(cause, None)  # what it counted so far was told by the counter

    def _take_text(self, reading: Reading) -> tuple[dict[str, float | None], set[str]]:
        """What a new text adds, in milliseconds per cause, and for which causes texts begin with it to be the source.

        It also says which counters are right.
        """
        text = reading.text
        if text is None or reading.mono - text.mono > text.lasts_s:
            self._text_last.clear()  # nobody prints any more: the mask has to do
            self._text_slowed = False
            return {}, set()
        if text is self._text:
            return {}, set()
        self._text = text
        told: dict[str, float | None] = {}
        begun: set[str] = set()
        for cause in CAUSES:
            value, last = text.counters.get(cause), self._text_last.pop(cause, None)
            if value is None:
                self._checked.pop(cause, None)
                continue
            if last is not None:
                gap_ms = (text.mono - last[1]) * 1000
                slack_ms = TEXT_GRAIN_MS + (text.mono - text.began) * 1000
                told[cause] = counter_delta_ms(last[0], value, gap_ms, per_ms=TEXT_PER_MS, grain_ms=slack_ms)
            counter = reading.counters.get(cause)
            if counter is not None:
                self._judge(cause, counter / self._per_ms, value / TEXT_PER_MS, (reading.mono - text.began) * 1000)
            silent = counter is None and cause not in self._last
            if value > 0 and (silent or cause in self._distrusted):
                if cause not in told:
                    begun.add(cause)
                    self._settle(cause, value, text.mono)
                self._text_last[cause] = (value, text.mono)
            self._checked[cause] = (value, text.mono)
            self._since[cause] = 0.0
        self._text_slowed = any((told.get(cause) or 0.0) >= 1.0 for cause in HARDWARE_CAUSES)
        return told, begun

    def _settle(self, cause: str, value: int, mono: float) -> None:
        """What the two last texts have between them, and counter or mask did not tell, is owed."""
        if (last := self._checked.get(cause)) is not None:
            gained = counter_delta_ms(
                last[0], value, (mono - last[1]) * 1000, per_ms=TEXT_PER_MS, grain_ms=TEXT_GRAIN_MS
            )
            if gained is not None:
                self._owed[cause] = max(0.0, gained - self._since.get(cause, 0.0))

    def _judge(self, cause: str, counter_ms: float, text_ms: float, age_ms: float) -> None:
        """The text was printed before the counter was read, at most ``age_ms`` earlier."""
        agrees = -TEXT_GRAIN_MS <= counter_ms - text_ms <= age_ms + TEXT_GRAIN_MS
        if not agrees and cause not in self._distrusted:
            self._give_up(cause)
        elif agrees and text_ms > TEXT_GRAIN_MS:  # two zeros prove nothing
            self._distrusted.discard(cause)
            self._vouched.add(cause)
            self._impossible[cause] = self._ignored[cause] = 0
        self.suspicious = any(self._ignored.values())

    def _brakes(self, mask: int | None, ms: Mapping[str, float | None], sources: Mapping[str, str]) -> int | None:
        """Rising edges of hardware slowdown, by mask, counter or text, against the last state that was known."""
        counted = [cause for cause in HARDWARE_CAUSES if sources.get(cause) == "counter" and ms[cause] is not None]
        printed = [cause for cause in HARDWARE_CAUSES if sources.get(cause) == "smi"]
        if mask is None and not counted and not printed:
            return None
        slowed = bool(mask and mask & SLOWDOWN) or any((ms[cause] or 0.0) >= 1.0 for cause in counted)
        slowed |= bool(printed) and self._text_slowed
        before, self._slowed = self._slowed, slowed
        return int(slowed and before is False)
