"""Slow without a reason: a GPU that is busy, far under its own clock, and says that nothing holds it back.

Some limits are hidden (firmware of unified boxes, a power supply that negotiated too little): 90-100 % use, a low clock,
not one reason bit. No sensor tells, so it is derived: use of 90 % and more, a clock under 60 % of the 95th percentile of
this GPU's own last 24 hours, and no reason, for 60 s. It is over when the clock is back at 70 %, the load is under 80 %
or a reason is given, for 60 s; or when nothing was read for two minutes.

The box's recorder judges, because it sees every sample, so that every deck says the same: the flag stands in the
detail row's ``sensors`` under ``slow``, and each episode is one row of ``control_events`` (action ``alert``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from engine.store import Db, Json
from engine.telemetry.sample import BoxSample, GpuSample
from engine.telemetry.throttle import CAUSES, IDLE, SHOWN_MS

WORDS = "slow without a reason"
KIND = "slow_without_reason"
BUSY_PCT, LOW_SHARE = 90.0, 0.60
CALM_PCT, BACK_SHARE = 80.0, 0.70
HOLD = timedelta(seconds=60)
GAP = timedelta(seconds=20)  # without a sample the minute begins anew
UNREAD = timedelta(seconds=120)
USUAL_HOURS = 24
USUAL_LEAST = 10  # minutes recorded, before anything counts as usual


@dataclass(frozen=True)
class Usual:
    """What is usual for a GPU: the 95th percentile of its clock, MHz, over so many minutes."""

    mhz: float
    minutes: int


@dataclass(frozen=True)
class Slow:
    """One GPU that is slow without a reason since ``since``."""

    gpu_index: int
    gpu_uuid: str | None
    since: datetime
    mhz: float
    usual_mhz: float

    @property
    def text(self) -> str:
        """``GPU 0 slow without a reason: 612 MHz, usually 2418, no reason bit since 13:41 UTC``."""
        return (
            f"GPU {self.gpu_index} {WORDS}: {self.mhz:.0f} MHz, usually {self.usual_mhz:.0f}, "
            f"no reason given since {self.since:%H:%M} UTC"
        )

    def values(self) -> dict[str, Any]:
        return {
            "gpu_index": self.gpu_index,
            "gpu_uuid": self.gpu_uuid,
            "since": self.since.isoformat(),
            "mhz": self.mhz,
            "usual_mhz": self.usual_mhz,
        }


@dataclass
class _State:
    since: datetime | None = None  # it looks like it, without a break
    flagged: Slow | None = None
    calm: datetime | None = None  # it no longer looks like it, without a break
    read: datetime | None = None


def reason_given(gpu: GpuSample) -> bool | None:
    """Whether the hardware gives any reason for a low clock; None: it cannot tell. Idle is no reason.

    Counters speak too: they reveal what the mask at the moment of reading misses.
    """
    held = [value for cause in CAUSES if (value := getattr(gpu, cause)) is not None]
    if any(value >= SHOWN_MS for value in held):
        return True
    if gpu.throttle_mask is not None:
        return bool(gpu.throttle_mask & ~IDLE)
    return False if held else None


def looks_slow(gpu: GpuSample, usual: Usual | None) -> bool | None:
    """Whether one reading is that of a GPU that is slow without a reason; None: it does not tell. Pure."""
    reason = reason_given(gpu)
    if gpu.state != "ok" or gpu.util_pct is None or gpu.sm_mhz is None or reason is None:
        return None
    if usual is None or usual.minutes < USUAL_LEAST:
        return None
    return gpu.util_pct >= BUSY_PCT and gpu.sm_mhz < LOW_SHARE * usual.mhz and not reason


def is_calm(gpu: GpuSample, usual: Usual) -> bool | None:
    """Whether one reading speaks against a flag that is set; None: it does not tell. Pure."""
    if gpu.state != "ok" or gpu.util_pct is None or gpu.sm_mhz is None:
        return None
    return gpu.util_pct < CALM_PCT or gpu.sm_mhz >= BACK_SHARE * usual.mhz or reason_given(gpu) is True


class SlowWatch:
    """Follows the GPUs of one box, sample by sample, in order of time. Pure: times come with the samples."""

    def __init__(self) -> None:
        self.usual: Mapping[str, Usual] = {}  # by identity; replaced as a whole, from any thread
        self._states: dict[str, _State] = {}

    def look(self, sample: BoxSample) -> tuple[list[Slow], list[Slow]]:
        """Take in one sample: the GPUs that are flagged now, and those whose episode begins with it."""
        begun = [slow for gpu in sample.gpus if (slow := self._one(gpu, sample.at)) is not None]
        listed = {identity(gpu) for gpu in sample.gpus}
        for name in [name for name in self._states if name not in listed]:
            self._unread(self._states[name], sample.at)
        return [state.flagged for state in self._states.values() if state.flagged is not None], begun

    def restore(self, flagged: Iterable[Slow], at: datetime) -> None:
        """Go on with episodes that a recorder before this one had begun."""
        for slow in flagged:
            name = slow.gpu_uuid or f"#{slow.gpu_index}"
            self._states[name] = _State(since=slow.since, flagged=slow, read=at)

    def _one(self, gpu: GpuSample, at: datetime) -> Slow | None:
        """The episode that begins with this reading, if one does."""
        state = self._states.setdefault(identity(gpu), _State())
        usual = self.usual.get(identity(gpu))
        if state.flagged is not None:
            # What is usual sinks while the episode lasts; it is measured against what it was.
            self._go_on(state, gpu, Usual(state.flagged.usual_mhz, USUAL_LEAST), at)
            return None
        slow = looks_slow(gpu, usual)
        if slow is None:
            return None  # one reading that failed breaks nothing; several in a row are a gap
        if not slow:
            state.since = None
            return None
        if state.since is None or state.read is None or at - state.read > GAP:
            state.since = at
        state.read = at
        if at - state.since < HOLD:
            return None
        assert usual is not None and gpu.sm_mhz is not None
        state.flagged = Slow(gpu.gpu_index, gpu.gpu_uuid, state.since, gpu.sm_mhz, round(usual.mhz, 1))
        state.calm = None
        return state.flagged

    def _go_on(self, state: _State, gpu: GpuSample, usual: Usual, at: datetime) -> None:
        assert state.flagged is not None
        calm = is_calm(gpu, usual)
        if calm is None:
            self._unread(state, at)
            return
        state.read = at
        state.calm = (state.calm or at) if calm else None
        if state.calm is not None and at - state.calm >= HOLD:
            state.since = state.flagged = state.calm = None
        elif not calm and gpu.sm_mhz is not None:
            state.flagged = replace(state.flagged, mhz=gpu.sm_mhz, gpu_index=gpu.gpu_index)

    def _unread(self, state: _State, at: datetime) -> None:
        if state.read is None or at - state.read > UNREAD:
            state.since = state.flagged = state.calm = None


def identity(gpu: GpuSample) -> str:
    """A GPU is its uuid; the index moves when a neighbour drops off the bus."""
    return gpu.gpu_uuid or f"#{gpu.gpu_index}"


def marked(sample: BoxSample, flagged: Sequence[Slow]) -> BoxSample:
    """The sample with the flag among its sensors."""
    if not flagged:
        return sample
    return replace(sample, sensors={**(sample.sensors or {}), "slow": [slow.values() for slow in flagged]})


def flags(sensors: Mapping[str, Any] | None) -> list[Slow]:
    """The flag as it stands in ``sensors``, from whatever program: what makes no sense is left out."""
    found = []
    entries = sensors.get("slow") if isinstance(sensors, Mapping) else None
    for entry in entries if isinstance(entries, list) else ():
        try:
            since = datetime.fromisoformat(entry["since"])
            uuid = entry.get("gpu_uuid")
            slow = Slow(
                int(entry["gpu_index"]), uuid if isinstance(uuid, str) else None, since, float(entry["mhz"]),
                float(entry["usual_mhz"]),
            )  # fmt: skip
        except (TypeError, ValueError, KeyError, AttributeError):
            continue
        if since.tzinfo is not None:
            found.append(slow)
    return found


def slow_of(sample: BoxSample | None, gpu: GpuSample) -> Slow | None:
    """The flag of one GPU in a sample."""
    found = flags(sample.sensors) if sample is not None else []
    return next((one for one in found if (one.gpu_uuid or f"#{one.gpu_index}") == identity(gpu)), None)


def usual_clocks(db: Db, box: str) -> dict[str, Usual]:
    """What is usual for each GPU of a box, by identity: from the minute rows of its last 24 hours."""
    rows = db.all(
        "select gpu_uuid, gpu_index, min(sm_mhz) as mhz, max(n) as n from (select gpu_uuid, gpu_index, sm_mhz, "
        "cume_dist() over (partition by gpu_uuid, gpu_index order by sm_mhz) as share, "
        "count(*) over (partition by gpu_uuid, gpu_index) as n from flight_recorder_gpu "
        "where box = {box} and tier = 'minute' and at > {before[back_s]} and sm_mhz is not null) s "
        "where share >= 0.95 group by gpu_uuid, gpu_index",
        box=box,
        back_s=USUAL_HOURS * 3600.0,
    )
    found: dict[str, Usual] = {}
    for row in rows:
        name = row["gpu_uuid"] or f"#{row['gpu_index']}"
        one = Usual(float(row["mhz"]), int(row["n"]))
        if name not in found or one.minutes > found[name].minutes:
            found[name] = one
    return found


def tell(db: Db, box: str, slow: Slow) -> None:
    """Write the episode's row of ``control_events``."""
    db.run(
        "insert into control_events (box, action, requested_by, detail) values ({box}, 'alert', {by}, {detail})",
        box=box,
        by=f"recorder@{box}",
        detail=Json({"kind": KIND, "text": f"{box}: {slow.text}", **slow.values()}),
    )
