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
        last, second = moment, moment.astimezone(UTC).replace(microsecond=0)
        for tick in self._wall_ticks(second) if self.by_wall_clock else self._rhythm_ticks(second):
            if tick > last:  # a gap makes several wall times one moment; a start in a repeated hour sees its first half
                last = tick
                yield tick

    # The iterator works on wall times without a zone; what the zone's clocks do is decided here.

    def _wall_ticks(self, moment: datetime) -> Iterator[datetime]:
        for wall in CronSim(self.cron, moment.astimezone(self.zone).replace(tzinfo=None)):
            tick = wall.replace(tzinfo=self.zone).astimezone(UTC)
            if tick.astimezone(self.zone).replace(tzinfo=None) != wall:  # left out: fold=1 lies before the change
                before = wall.replace(tzinfo=self.zone, fold=1).astimezone(UTC)
                tick = _first_change(self.zone, before, tick) or tick
            yield tick

    def _rhythm_ticks(self, moment: datetime) -> Iterator[datetime]:
        """Wall time by one offset until the zone changes it, then on from there by the next."""
        begin = moment  # from here on the offset holds
        while True:
            offset = _offset(self.zone, begin)
            for wall in CronSim(self.cron, (moment + offset).replace(tzinfo=None)):
                tick = wall.replace(tzinfo=UTC) - offset
                change = _first_change(self.zone, begin, tick)
                if change is not None:
                    begin, moment = change, change - timedelta(seconds=1)
                    break
                begin = tick
                yield tick
            else:
                return


def _offset(zone: tzinfo, moment: datetime) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta(0)


def _first_change(zone: tzinfo, begin: datetime, end: datetime) -> datetime | None:
    """The first moment of (begin, end] at which the clocks of ``zone`` are set, to the second; None: they are not."""
    offset = _offset(zone, begin)
    same, looked = begin, begin
    while looked < end:
        looked = min(looked + timedelta(days=1), end)
        if _offset(zone, looked) != offset:
            changed = looked
            while changed - same > timedelta(seconds=1):
                middle = same + timedelta(seconds=(changed - same) // timedelta(seconds=2))
                if _offset(zone, middle) == offset:
                    same = middle
                else:
                    changed = middle
            return changed
        same = looked
    return None


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
