"""When an entry is due: pure functions of cron text, time zone and two moments. All moments are aware and UTC.

An entry whose minute and hour fields both name values (``30 2 * * *``) follows the wall clock, as Debian's cron has it:
a wall time that the spring change leaves out counts at the end of the gap, one that the autumn change repeats counts
once, at its first occurrence. An entry with ``*`` or ``*/n`` in either field is a rhythm: every real minute whose wall
time matches, so that an hourly one runs in both of the repeated hours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import get_args
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from engine.errors import BadInput
from engine.registry import Misfire

MOST = 100  # ticks of one entry that are ever made up for
CRON_LIMIT = 200  # characters

_FIELDS = "minute hour day month weekday"


@dataclass(frozen=True)
class Timetable:
    """A cron text that was checked, in its time zone."""

    cron: str
    zone: tzinfo

    @property
    def by_wall_clock(self) -> bool:
        minute, hour = self.cron.split()[-5:-3]
        return not minute.startswith("*") and not hour.startswith("*")

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Every tick later than ``moment``, in order, each once. Ends when there is none for fifty years."""
        last = moment
        for tick in self._wall_ticks(moment) if self.by_wall_clock else self._rhythm_ticks(moment):
            if tick > last:  # a gap makes several wall times one moment; a start in a repeated hour sees its first half
                last = tick
                yield tick

    def _wall_ticks(self, moment: datetime) -> Iterator[datetime]:
        # The iterator works on wall times without a zone: it knows neither gaps nor repetitions.
        for wall in CronSim(self.cron, moment.astimezone(self.zone).replace(tzinfo=None, fold=0)):
            tick = wall.replace(tzinfo=self.zone).astimezone(UTC)
            if tick.astimezone(self.zone).replace(tzinfo=None) != wall:
                tick = _end_of_gap(wall, self.zone)
            yield tick

    def _rhythm_ticks(self, moment: datetime) -> Iterator[datetime]:
        # In UTC and back, so that both halves of a repeated hour come.
        sim = CronSim(self.cron, moment.astimezone(self.zone))
        for wall in sim:
            tick = wall.astimezone(UTC)
            real = tick.astimezone(self.zone)
            if real != wall and not _matches(sim, real):
                continue  # the iterator starts every day at midnight, also where that is in a gap
            yield tick


def _matches(sim: CronSim, moment: datetime) -> bool:
    return moment.hour in sim.hours and moment.minute in sim.minutes and moment.second in sim.seconds


def _end_of_gap(wall: datetime, zone: tzinfo) -> datetime:
    """The moment at which the clocks went forward over ``wall``."""
    # fold=0 reads the wall time by the offset before the change, fold=1 by the one after it: between them it lies.
    before = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    after = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    offset = before.astimezone(zone).utcoffset()
    low, high = 0, int((after - before).total_seconds())
    while low < high:
        middle = (low + high) // 2
        if (before + timedelta(seconds=middle)).astimezone(zone).utcoffset() == offset:
            low = middle + 1
        else:
            high = middle
    return before + timedelta(seconds=low)


@lru_cache(maxsize=4096)
def timetable(cron: str, tz: str) -> Timetable:
    """Check an entry's times. Raises BadInput: not a cron text, one that never comes true, an unknown time zone."""
    zone = _zone(tz)
    if not isinstance(cron, str) or len(cron) > CRON_LIMIT:
        raise BadInput(f"cron must be a text of at most {CRON_LIMIT} characters")
    table = Timetable(" ".join(cron.split()), zone)
    try:
        CronSim(table.cron, datetime(2000, 1, 1))
    except CronSimError as error:
        raise BadInput(f"cron {cron!r}: {error} (fields: {_FIELDS}; with six, seconds come first)") from None
    except Exception:
        raise BadInput(f"cron {cron!r} is not understood (fields: {_FIELDS})") from None
    if next(table.after(datetime(2000, 1, 1, tzinfo=UTC)), None) is None:
        raise BadInput(f"cron {cron!r} never comes true")
    return table


def _zone(tz: str) -> tzinfo:
    if tz == "UTC":
        return UTC
    try:
        return ZoneInfo(tz)
    except Exception:  # of many kinds: not found, a directory, not a text, a path that leads out
        raise BadInput(f"unknown time zone {tz!r} (like Europe/Amsterdam)") from None


def check_misfire(misfire: str) -> None:
    """Raise BadInput for a policy that does not exist."""
    if misfire not in get_args(Misfire):
        raise BadInput(f"misfire must be one of {', '.join(get_args(Misfire))}, got {misfire!r}")


@lru_cache(maxsize=4096)
def next_tick(table: Timetable, moment: datetime) -> datetime | None:
    """The first tick later than ``moment``; None when there is none any more."""
    return next(table.after(moment), None)


def newest_ticks(table: Timetable, after: datetime, until: datetime, most: int = MOST) -> list[datetime]:
    """The newest ``most`` ticks in (after, until], oldest first; cheap also when millions lie between."""
    first = next_tick(table, after)
    if first is None or first > until:
        return []
    span = timedelta(seconds=most)  # the shortest time in which so many ticks can lie
    while True:
        begin = max(after, until - span)
        ticks = []
        for tick in table.after(begin):
            if tick > until:
                break
            ticks.append(tick)
        if len(ticks) >= most or begin <= after:
            return ticks[-most:]
        span *= 4


@dataclass(frozen=True)
class Due:
    """What to fire now, oldest first, and up to where the entry is then dealt with."""

    fire: Sequence[datetime]
    newest: datetime
    missed: bool


def due(table: Timetable, misfire: str, after: datetime, now: datetime, grace_s: float) -> Due | None:
    """What is due of an entry that is dealt with up to ``after``; None: nothing yet.

    A tick that is seen within ``grace_s`` seconds is in time and fires. Was any missed, the policy decides: ``skip``
    leaves the missed ones out, ``one`` fires the newest alone, ``all`` makes up for them (the newest hundred).
    """
    ticks = newest_ticks(table, after, now)
    if not ticks:
        return None
    in_time = [tick for tick in ticks if tick >= now - timedelta(seconds=grace_s)]
    missed = len(in_time) < len(ticks)
    fire = ticks
    if missed and misfire != "all":
        fire = in_time if misfire == "skip" else ticks[-1:]
    return Due(fire, ticks[-1], missed)


def without_leap(fire: Sequence[datetime], begin: datetime, end: datetime) -> Sequence[datetime]:
    """``fire`` with at most one tick, the newest, of a stretch that a clock left out when it was set forward."""
    inside = [tick for tick in fire if begin < tick <= end]
    return [tick for tick in fire if tick not in inside[:-1]]


def jitter(project: str, name: str, tick: datetime, jitter_s: float) -> timedelta:
    """How long the job of a tick waits, 0 to ``jitter_s``: the same for whoever computes it."""
    seed = f"{project}\x00{name}\x00{tick.astimezone(UTC).isoformat()}".encode()
    share = int.from_bytes(hashlib.sha256(seed).digest()[:8]) / 2**64
    return timedelta(seconds=share * jitter_s)
