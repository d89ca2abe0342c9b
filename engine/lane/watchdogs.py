"""Verdicts about what a slot runs, as functions of values: no clock, no I/O. Times are monotonic seconds, memory MiB.

Three dogs: budget (75), stall (76), gpu health (78). What they share: an unknown is never idle. A reading that is
missing, or readings that lie too far apart, can delay a verdict and never bring one about.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from engine import config
from engine.errors import ConfigError
from engine.lane import exits

AWAY_S = 5.0  # a lane whose loop comes round later than this stood still: what it did not see is nobody's fault
FEWEST_LOOKS = 5  # in a window, however short


@dataclass(frozen=True)
class Verdict:
    """Kill what the slot runs: the exit code that says why, and the evidence for the event."""

    code: int
    evidence: dict[str, Any]


@dataclass(frozen=True)
class Dismissed:
    """A suspicion that was not confirmed: the evidence for the event ``stall_suspected``."""

    evidence: dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """The thresholds; see the settings of the same names in engine/config.py. 0 seconds: that dog is off."""

    stall_seconds: float = 120.0
    stall_samples: int = 3
    stall_sample_gap: float = 1.0
    health_window: float = 1200.0
    health_window_beating: float = 300.0
    gpu_idle_pct: float = 5.0
    gpu_move_gib: float = 5.0
    gpu_io_mib: float = 1.0
    probe_seconds: float = 2.0

    @classmethod
    def configured(cls) -> Limits:
        """As the settings say. Raises ConfigError for what makes no sense."""
        limits = cls(**{field.name: config.get(field.name) for field in fields(cls)})
        if limits.stall_samples < 1:
            raise ConfigError(f"stall_samples must be 1 or more, got {limits.stall_samples}")
        if limits.probe_seconds < 0.05:
            raise ConfigError(f"probe_seconds must be 0.05 or more, got {limits.probe_seconds:g}")
        for name in ("health_window", "health_window_beating"):
            window = getattr(limits, name)
            if 0 < window < FEWEST_LOOKS * limits.probe_seconds:
                raise ConfigError(f"{name} must hold {FEWEST_LOOKS} readings, one each {limits.probe_seconds:g} s")
        return limits

    @property
    def furthest(self) -> float:
        """Two readings further apart than this leave a gap in a window."""
        return 3 * self.probe_seconds + 0.5

    @property
    def patience(self) -> float:
        """So long a suspicion waits for readings that do not come."""
        return max(2.0, 5 * self.probe_seconds)


@dataclass(frozen=True, slots=True)
class Look:
    """One reading of what a slot's job does. None: not known."""

    at: float
    use_pct: float | None = None  # of its device
    host_mb: float | None = None  # of its processes
    vram_mb: float | None = None  # of its processes, else of its device
    io_bytes: float | None = None  # files and TCP of its processes, a counter
    why: str | None = None  # something is not known

    @property
    def known(self) -> bool:
        return None not in (self.use_pct, self.host_mb, self.vram_mb, self.io_bytes)

    def told(self) -> dict[str, Any]:
        """For the evidence."""
        return {
            name: round(value, 1) if isinstance(value, float) else value
            for name, value in asdict(self).items()
            if value is not None
        }


# --- 75 ---


def budget(elapsed_s: float, budget_s: float | None) -> Verdict | None:
    """75: the wall clock is over the budget. None as budget: no limit. For cpu and ingest only."""
    if budget_s is None or budget_s <= 0 or elapsed_s <= budget_s:
        return None
    return Verdict(
        exits.BUDGET,
        {
            "reason": f"ran {elapsed_s:.0f} s, budget {budget_s:.0f} s",
            "elapsed_s": round(elapsed_s, 1),
            "budget_s": budget_s,
        },
    )


def budget_for(gpu: bool, row_s: float | None, task_s: float | None, default_s: float) -> float | None:
    """The budget that holds: the row's, else the task's, else the default; none on gpu queues."""
    if gpu:
        return None
    return row_s or task_s or default_s


# --- 76 ---


def moved_mb(looks: Sequence[Look]) -> float:
    """How far memory went up or down over these readings: on the host or on the device, whichever more."""
    spans = []
    for values in ([look.host_mb for look in looks], [look.vram_mb for look in looks]):
        seen = [value for value in values if value is not None]
        spans.append(max(seen) - min(seen) if seen else 0.0)
    return max(spans)


def stall(looks: Sequence[Look], silent_s: float, limits: Limits) -> Verdict | Dismissed | None:
    """76: what the readings since a suspicion say. ``silent_s``: how long no beat has come. None: too few yet."""
    evidence: dict[str, Any] = {
        "silent_s": round(silent_s, 1),
        "stall_seconds": limits.stall_seconds,
        "gpu_idle_pct": limits.gpu_idle_pct,
        "gpu_move_gib": limits.gpu_move_gib,
        "samples": [look.told() for look in looks],
    }
    for look in looks:
        if None in (look.use_pct, look.host_mb, look.vram_mb):
            why = look.why or "a reading is missing"
            return Dismissed({"reason": f"no beat for {silent_s:.0f} s, not killed: {why}", **evidence})
        if look.use_pct is not None and look.use_pct > limits.gpu_idle_pct:
            said = f"its GPU is at {look.use_pct:.0f} %"
            return Dismissed({"reason": f"no beat for {silent_s:.0f} s, not killed: {said}", **evidence})
    moved = moved_mb(looks)
    if moved >= limits.gpu_move_gib * 1024:
        said = f"its memory moved by {moved / 1024:.1f} GiB"
        return Dismissed({"reason": f"no beat for {silent_s:.0f} s, not killed: {said}", **evidence})
    if len(looks) < limits.stall_samples:
        return None
    use = max(look.use_pct or 0.0 for look in looks)
    reason = f"no beat for {silent_s:.0f} s, GPU {use:.0f} %, memory moved {moved / 1024:.1f} GiB"
    return Verdict(exits.STALL, {"reason": reason, "moved_mb": round(moved, 1), **evidence})


# --- 78 ---


def gpu_health(looks: Sequence[Look], last_beat: float | None, limits: Limits) -> Verdict | None:
    """78: nothing lived over a whole window that ends with the last of these readings, oldest first."""
    window_s = limits.health_window if last_beat is None else limits.health_window_beating
    if window_s <= 0 or not looks:
        return None
    start = looks[-1].at - window_s
    first = next((index for index in range(len(looks) - 1, -1, -1) if looks[index].at <= start), None)
    if first is None:
        return None  # not watched for so long
    window = looks[first:]
    if len(window) < FEWEST_LOOKS or not all(look.known for look in window):
        return None
    if any(after.at - before.at > limits.furthest for before, after in itertools.pairwise(window)):
        return None
    if last_beat is not None and last_beat > window[0].at:
        return None
    use = max(look.use_pct or 0.0 for look in window)
    moved = moved_mb(window)
    counters = [look.io_bytes or 0.0 for look in window]
    io_mib = (max(counters) - min(counters)) / 1024**2
    if use > limits.gpu_idle_pct or moved >= limits.gpu_move_gib * 1024 or io_mib >= limits.gpu_io_mib:
        return None
    return Verdict(
        exits.GPU_HEALTH,
        {
            "reason": f"GPU at {use:.0f} % or less for {window_s:.0f} s, memory moved {moved / 1024:.1f} GiB, "
            f"no beat, {io_mib:.1f} MiB of I/O",
            "window_s": window_s,
            "samples": len(window),
            "use_pct_max": use,
            "moved_mb": round(moved, 1),
            "io_mib": round(io_mib, 2),
            "gpu_idle_pct": limits.gpu_idle_pct,
            "gpu_move_gib": limits.gpu_move_gib,
            "gpu_io_mib": limits.gpu_io_mib,
            "first": window[0].told(),
            "last": window[-1].told(),
        },
    )


# --- one job, watched ---


class Vigil:
    """What is remembered of one running job. Every method is told the time."""

    def __init__(self, began: float, limits: Limits) -> None:
        self.began = began
        self._limits = limits
        self._looks: deque[Look] = deque()
        self._excused_s = 0.0
        self._quiet_since = began  # no silence is older than this
        self._suspected_at: float | None = None
        self._samples: list[Look] = []
        self._next_look = began + min(1.0, limits.probe_seconds)

    def away(self, now: float, gap_s: float) -> None:
        """The lane did not look for ``gap_s`` until ``now``: that counts for nothing."""
        self._excused_s += min(gap_s, max(0.0, now - self.began))
        self._quiet_since = now
        self._suspected_at = None
        self._looks.clear()

    def elapsed_s(self, now: float) -> float:
        """How long the job has run, as far as the lane can tell."""
        return now - self.began - self._excused_s

    @property
    def next_look(self) -> float:
        """When a reading is wanted."""
        return self._next_look

    def tick(self, now: float, last_beat: float | None) -> Dismissed | None:
        """Time passed: a missed beat makes a suspicion; one that gets no readings is dismissed."""
        limits = self._limits
        if limits.stall_seconds <= 0 or last_beat is None:
            return None
        silent_s = now - max(last_beat, self._quiet_since)
        if self._suspected_at is None:
            if silent_s > limits.stall_seconds:
                self._suspected_at, self._samples, self._next_look = now, [], now
            return None
        if now - self._suspected_at > limits.stall_samples * limits.stall_sample_gap + limits.patience:
            return self._dismiss(now, last_beat, "no reading of its GPU")
        return None

    def look(self, look: Look, last_beat: float | None) -> Verdict | Dismissed | None:
        """A reading has come."""
        verdict = self._suspicion(look, last_beat) if self._suspected_at is not None else None
        gap_s = self._limits.probe_seconds if self._suspected_at is None else self._limits.stall_sample_gap
        self._next_look = look.at + gap_s
        return verdict or self._health(look, last_beat)

    def _suspicion(self, look: Look, last_beat: float | None) -> Verdict | Dismissed | None:
        assert self._suspected_at is not None
        last_beat = self.began if last_beat is None else last_beat
        if last_beat > self._suspected_at:
            return self._dismiss(look.at, last_beat, "it beats again")
        previous = self._samples[-1].at if self._samples else float("-inf")
        if look.at < self._suspected_at or look.at - previous < 0.9 * self._limits.stall_sample_gap:
            return None
        self._samples.append(look)
        found = stall(self._samples, look.at - last_beat, self._limits)
        if isinstance(found, Dismissed):
            self._rearm(look.at)
        return found

    def _dismiss(self, now: float, last_beat: float, why: str) -> Dismissed:
        since = self._suspected_at if self._suspected_at is not None else now
        evidence = {
            "reason": f"no beat for {min(now, since) - min(last_beat, since):.0f} s, not killed: {why}",
            "stall_seconds": self._limits.stall_seconds,
            "samples": [look.told() for look in self._samples],
        }
        self._rearm(now)
        return Dismissed(evidence)

    def _rearm(self, now: float) -> None:
        self._suspected_at = None
        self._quiet_since = now

    def _health(self, look: Look, last_beat: float | None) -> Verdict | None:
        limits = self._limits
        if self._looks and not 0 < look.at - self._looks[-1].at <= limits.furthest:
            self._looks.clear()
        if not look.known or (look.use_pct or 0.0) > limits.gpu_idle_pct:
            self._looks.clear()  # no window that holds it can trip
            return None
        self._looks.append(look)
        oldest = look.at - max(limits.health_window, limits.health_window_beating)
        while len(self._looks) > 1 and self._looks[1].at <= oldest:
            self._looks.popleft()
        start = look.at - (limits.health_window if last_beat is None else limits.health_window_beating)
        if self._looks[0].at > start or (last_beat is not None and last_beat > start):
            return None  # not a whole window yet
        return gpu_health(tuple(self._looks), last_beat, limits)
