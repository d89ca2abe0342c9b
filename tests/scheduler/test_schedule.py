"""When an entry is due, against a calculation of another kind: every second that the clocks of a zone ever showed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import BadInput
from engine.scheduler.schedule import (
    MOST,
    check_misfire,
    due,
    jitter,
    newest_ticks,
    next_tick,
    timetable,
    without_leap,
)

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def between(cron: str, tz: str, begin: datetime, end: datetime) -> list[datetime]:
    """The ticks of (begin, end] as the module under test has them."""
    return list(itertools.takewhile(lambda tick: tick <= end, timetable(cron, tz).after(begin)))


def local(ticks: list[datetime], tz: str) -> list[str]:
    return [tick.astimezone(ZoneInfo(tz)).strftime("%d %H:%M %z") for tick in ticks]


# The independent calculation: walk through real time minute by minute and ask the zone what its clocks show.


def _field(text: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        begin = low if first == "*" else int(first)
        end = high if first == "*" or (step and not last) else int(last or first)
        found |= set(range(begin, end + 1, int(step or 1)))
    return found


def walked(cron: str, tz: str, begin: datetime, end: datetime) -> list[datetime]:
    """The ticks of (begin, end], by the rules that docs/scheduling.md states."""
    minute, hour, day, month, weekday = cron.split()
    want = [_field(minute, 0, 59), _field(hour, 0, 23), _field(day, 1, 31), _field(month, 1, 12), _field(weekday, 0, 7)]
    zone = ZoneInfo(tz)

    def shows(wall: datetime) -> bool:
        sunday_first = wall.isoweekday() % 7
        in_day, in_week = wall.day in want[2], sunday_first in want[4] or (sunday_first == 0 and 7 in want[4])
        both = day.startswith("*") or weekday.startswith("*")
        on_day = (in_day and in_week) if both else (in_day or in_week)
        return wall.minute in want[0] and wall.hour in want[1] and on_day and wall.month in want[3]

    rhythm = minute.startswith("*") or hour.startswith("*")
    found = []
    for moment, wall, skipped, again in _minutes(zone, begin.replace(second=0, microsecond=0), end):
        if rhythm:
            hit = shows(wall)
        else:  # a wall time that was left out counts when the clocks go on, a repeated one the first time
            hit = (shows(wall) and not again) or any(shows(left_out) for left_out in skipped)
        if hit and moment > begin:
            found.append(moment)
    return found


def _minutes(
    zone: ZoneInfo, begin: datetime, end: datetime
) -> Iterator[tuple[datetime, datetime, list[datetime], bool]]:
    """Every minute: the moment, what the clocks show, the wall times just left out, whether they showed it before."""
    highest = (begin - 3 * HOUR).astimezone(zone).replace(tzinfo=None)
    moment = begin - 3 * HOUR
    while moment <= end:
        wall = moment.astimezone(zone).replace(tzinfo=None)
        skipped = []
        while highest + MINUTE < wall:
            highest += MINUTE
            skipped.append(highest)
        again = wall <= highest and moment > begin - 3 * HOUR
        highest = max(highest, wall)
        if moment >= begin:
            yield moment, wall, skipped, again
        moment += MINUTE


CHANGES = [  # zone, the days around a change
    ("Europe/Amsterdam", "2026-03-28", "2026-03-31"),  # 02:00 -> 03:00
    ("Europe/Amsterdam", "2026-10-24", "2026-10-27"),  # 03:00 -> 02:00
    ("America/Santiago", "2026-09-05", "2026-09-08"),  # 00:00 -> 01:00: a day without midnight
    ("America/Santiago", "2026-04-04", "2026-04-07"),  # 24:00 -> 23:00
    ("Australia/Lord_Howe", "2026-10-03", "2026-10-05"),  # half an hour
    ("Australia/Lord_Howe", "2026-04-04", "2026-04-06"),
]


@pytest.mark.parametrize(
    "cron", ["0 * * * *", "*/30 * * * *", "30 2 * * *", "0 0 * * *", "30 23 * * *", "*/30 * * * 0"]
)
@pytest.mark.parametrize(("tz", "begin", "end"), CHANGES)
def test_both_clock_changes_against_a_walk_through_every_minute(cron: str, tz: str, begin: str, end: str) -> None:
    """Q22: elsewhere a daily entry fires twice at the autumn change, or an hourly one pauses."""
    expected = walked(cron, tz, utc(begin), utc(end))
    assert between(cron, tz, utc(begin), utc(end)) == expected and len(expected) >= 2


def test_a_daily_entry_fires_once_and_an_hourly_one_in_both_repeated_hours() -> None:
    """Q22, spelled out for Amsterdam's autumn and spring."""
    autumn = utc("2026-10-24T22:00"), utc("2026-10-25T03:00")
    assert local(between("30 2 * * *", "Europe/Amsterdam", *autumn), "Europe/Amsterdam") == ["25 02:30 +0200"]
    assert local(between("0 * * * *", "Europe/Amsterdam", *autumn), "Europe/Amsterdam") == [
        "25 01:00 +0200", "25 02:00 +0200", "25 02:00 +0100", "25 03:00 +0100", "25 04:00 +0100",
    ]  # fmt: skip
    spring = utc("2026-03-28T23:00"), utc("2026-03-29T02:00")
    assert local(between("30 2 * * *", "Europe/Amsterdam", *spring), "Europe/Amsterdam") == ["29 03:00 +0200"]
    assert local(between("*/30 * * * *", "Europe/Amsterdam", *spring), "Europe/Amsterdam") == [
        "29 00:30 +0100", "29 01:00 +0100", "29 01:30 +0100", "29 03:00 +0200", "29 03:30 +0200", "29 04:00 +0200",
    ]  # fmt: skip


def test_a_day_without_midnight_keeps_its_daily_entry() -> None:
    """Santiago's clocks go forward at midnight."""
    days = utc("2026-09-05T05:00"), utc("2026-09-07T05:00")
    assert local(between("0 0 * * *", "America/Santiago", *days), "America/Santiago") == [
        "06 01:00 -0300",
        "07 00:00 -0300",
    ]
    assert local(between("0 */12 * * 0", "America/Santiago", *days), "America/Santiago") == ["06 12:00 -0300"]


def test_six_fields_begin_with_seconds_and_keep_to_the_wall_clock() -> None:
    autumn = utc("2026-10-24T22:00"), utc("2026-10-25T03:00")
    ticks = between("15 30 2 * * *", "Europe/Amsterdam", *autumn)
    assert [tick.isoformat() for tick in ticks] == ["2026-10-25T00:30:15+00:00"]
    assert len(between("*/20 * * * * *", "UTC", utc("2026-01-01"), utc("2026-01-01T00:01"))) == 3


def _fields(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    return st.one_of(
        st.just("*"),
        st.integers(2, 20).map(lambda n: f"*/{n}"),
        number.map(str),
        st.tuples(number, number).map(lambda ends: f"{min(ends)}-{max(ends)}"),
        st.sets(number, min_size=2, max_size=3).map(lambda values: ",".join(map(str, sorted(values)))),
    )


CRONS = st.tuples(_fields(0, 59), _fields(0, 23), st.just("*"), st.just("*"), st.one_of(st.just("*"), _fields(0, 7)))


@settings(max_examples=40, deadline=None)
@given(CRONS.map(" ".join), st.sampled_from(CHANGES), st.integers(0, 3 * 86_400))
def test_ticks_strictly_increase_none_is_missing_and_none_comes_twice(
    cron: str, change: tuple[str, str, str], offset_s: int
) -> None:
    """Q22, Q33: from wherever one starts to count."""
    tz, first, last = change
    begin, end = utc(first) + timedelta(seconds=offset_s % int((utc(last) - utc(first)).total_seconds())), utc(last)
    ticks = between(cron, tz, begin, end)
    assert ticks == walked(cron, tz, begin, end)
    assert all(a < b for a, b in itertools.pairwise(ticks))
    table = timetable(cron, tz)
    by_steps, at = [], begin
    while (following := next_tick(table, at)) is not None and following <= end and len(by_steps) < 50:
        by_steps.append(following)
        at = following
    assert by_steps == ticks[:50], "a scheduler that starts anew after each tick sees the same ones"
    assert newest_ticks(table, begin, end, 7) == ticks[-7:]


# What is fired of what is due.

MINUTELY = timetable("* * * * *", "UTC")
NOW = utc("2026-06-01T12:00:03")


def fired(misfire: str, missed: timedelta, table: object = MINUTELY) -> list[str]:
    found = due(table, misfire, NOW - missed, NOW, 10.0)  # type: ignore[arg-type]
    return [] if found is None else [tick.strftime("%H:%M:%S") for tick in found.fire]


def test_nothing_is_due_between_two_ticks() -> None:
    assert due(MINUTELY, "all", NOW - 2 * SECOND, NOW, 10.0) is None


@pytest.mark.parametrize("misfire", ["skip", "one", "all"])
def test_a_tick_that_is_seen_in_time_fires_whatever_the_policy(misfire: str) -> None:
    assert fired(misfire, 30 * SECOND) == ["12:00:00"]
    every_second = timetable("* * * * * *", "UTC")
    assert fired(misfire, 3 * SECOND, every_second) == ["12:00:01", "12:00:02", "12:00:03"]


def test_misfire_policies_after_an_hour_away() -> None:
    assert fired("one", HOUR) == ["12:00:00"]
    assert fired("skip", HOUR) == ["12:00:00"], "the newest is in time"
    assert len(fired("all", HOUR)) == 60
    hourly = timetable("30 * * * *", "UTC")
    assert fired("skip", 3 * HOUR, hourly) == []
    assert fired("one", 3 * HOUR, hourly) == ["11:30:00"]
    assert fired("all", 3 * HOUR, hourly) == ["09:30:00", "10:30:00", "11:30:00"]
    found = due(hourly, "skip", NOW - 3 * HOUR, NOW, 10.0)
    assert found is not None and found.missed and found.newest == utc("2026-06-01T11:30"), "done with, not fired"


def test_years_away_are_made_up_for_by_the_newest_hundred_at_most() -> None:
    every_second = timetable("* * * * * *", "UTC")
    found = due(every_second, "all", NOW - timedelta(days=3650), NOW, 10.0)
    assert found is not None and len(found.fire) == MOST and found.newest == NOW
    yearly = due(timetable("0 0 29 2 *", "UTC"), "all", utc("1970-01-01"), NOW, 10.0)
    assert yearly is not None and len(yearly.fire) == 14


def test_ticks_that_a_clock_left_out_count_as_one() -> None:
    ticks = [NOW - n * MINUTE for n in range(9, -1, -1)]
    assert without_leap(ticks, ticks[2], ticks[7]) == [*ticks[:3], ticks[7], *ticks[8:]]
    assert without_leap(ticks, NOW, NOW + HOUR) == ticks
    assert without_leap([], NOW, NOW + HOUR) == []


def test_jitter_is_the_same_for_everyone_and_spreads() -> None:
    ticks = [NOW + n * MINUTE for n in range(200)]
    waits = [jitter("p", "nightly", tick, 30.0) for tick in ticks]
    assert waits == [jitter("p", "nightly", tick.astimezone(ZoneInfo("Asia/Tokyo")), 30.0) for tick in ticks]
    assert all(timedelta(0) <= wait < timedelta(seconds=30) for wait in waits)
    assert len(set(waits)) == 200 and min(waits) < 3 * SECOND and max(waits) > 27 * SECOND
    assert jitter("q", "nightly", NOW, 30.0) != jitter("p", "nightly", NOW, 30.0) != jitter("p", "other", NOW, 30.0)
    assert jitter("p", "nightly", NOW, 0.0) == timedelta(0)


@pytest.mark.parametrize(
    ("cron", "tz", "said"),
    [
        ("", "UTC", "Wrong number of fields"),
        ("* * * *", "UTC", "Wrong number of fields"),
        ("@daily", "UTC", "Wrong number of fields"),
        ("61 * * * *", "UTC", "Bad minute"),
        ("* 25 * * *", "UTC", "Bad hour"),
        ("* * 30 2 *", "UTC", "Bad day-of-month"),
        ("* * */20 * 1L", "UTC", "never comes true"),
        ("* * * * *" + " " * 200, "UTC", "200 characters"),
        ("9" * 150 + " * * * *", "UTC", "Bad minute"),
        ("1 2/2#2 * * MON#1/2", "UTC", "cron"),
        (None, "UTC", "text"),
        ("* * * * *", "Mars/Olympus", "unknown time zone 'Mars/Olympus'"),
        ("* * * * *", "America", "unknown time zone"),
        ("* * * * *", "../../etc/passwd", "unknown time zone"),
        ("* * * * *", "", "unknown time zone"),
        ("* * * * *", None, "unknown time zone"),
    ],
)
def test_bad_times_are_one_line(cron: str, tz: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        timetable(cron, tz)
    assert len(str(caught.value).splitlines()) == 1


def test_a_misfire_policy_must_exist() -> None:
    with pytest.raises(BadInput, match="skip, one, all"):
        check_misfire("never")


@lru_cache(maxsize=1)
def _zones() -> list[str]:
    import zoneinfo

    return sorted(zoneinfo.available_timezones() - {"localtime"})


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_zone_every_day_of_years_a_daily_entry_fires_once_a_day(data: st.DataObject) -> None:
    tz = data.draw(st.sampled_from(_zones()))
    hour, minute = data.draw(st.integers(0, 23)), data.draw(st.integers(0, 59))
    begin = utc(f"{data.draw(st.integers(1975, 2035))}-01-01")
    ticks = between(f"{minute} {hour} * * *", tz, begin, begin + timedelta(days=365))
    assert 364 <= len(ticks) <= 366
    assert all(timedelta(0) < b - a <= timedelta(hours=27) for a, b in itertools.pairwise(ticks))
