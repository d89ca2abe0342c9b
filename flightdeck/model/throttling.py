"""Throttling of the fleet by the hour, as the throttle page draws it: cells of hours, totals per cause, who suffered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from flightdeck.model.rows import moment
from flightdeck.model.rows import number as _number
from flightdeck.model.slots import SEVERITY
from flightdeck.model.text import clean

DAY_S, WEEK_S = 86_400, 604_800
HOUR_S = 3600
ALL = ""  # the raw name of the row that stands for all boxes
HIDDEN_S = 0.1  # less is noise of the counters
CAUSES = "PTBCS"
NAMES = {"P": "power cap", "T": "heat", "B": "brake", "C": "cpu", "S": "sync boost"}
_GROUPS = (1, 2, 3, 4, 6, 8, 12, 24)  # hours of one cell

Seconds = tuple[float | None, ...]


@dataclass(frozen=True)
class BoxHours:
    """One box. ``raw`` is its name as the database has it; ``minutes`` recorded in each hour."""

    raw: str
    name: str
    sampled: bool
    minutes: tuple[int, ...]
    causes: Mapping[str, Seconds]
    brakes: tuple[float | None, ...]

    @cached_property
    def totals(self) -> Mapping[str, float | None]:
        return {cause: _sum(seconds) for cause, seconds in self.causes.items()}

    def total(self, cause: str) -> float | None:
        """Seconds over all hours; None: nobody tells."""
        return self.totals.get(cause)

    @cached_property
    def brake_count(self) -> int | None:
        total = _sum(self.brakes)
        return None if total is None else round(total)


@dataclass(frozen=True)
class Hours:
    """All boxes. ``starts``: the beginning of each hour, the newest (which is not over) last."""

    starts: tuple[datetime, ...] = ()
    boxes: tuple[BoxHours, ...] = ()
    at: datetime | None = None  # when it was so

    def passed(self, first: int, count: int) -> int:
        """Minutes of these hours that are over."""
        if not self.starts or self.at is None:
            return count * 60
        return round(min(count * 60.0, max(0.0, (self.at - self.starts[first]).total_seconds() / 60.0 - 1.0)))


@dataclass(frozen=True)
class Cell:
    """Some hours of one box. ``letter``: the gravest cause; ``.`` nothing; ``?`` recorded, but nobody tells; blank: not
    recorded. ``share`` of the time recorded, ``seconds`` of that cause."""

    letter: str = " "
    share: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Suffered:
    """A job that was held back."""

    id: str
    name: str
    project: str
    queue: str
    box: str
    run_s: float | None
    seconds: Mapping[str, float | None]
    share: Mapping[str, float | None]
    temp_max_c: float | None
    mhz: float | None
    finished: datetime | None
    raw_box: str = field(default="", repr=False)


def read_hours(value: Any) -> Hours:
    """From the answer to the question "throttle"; what makes no sense is left out."""
    data = value if isinstance(value, Mapping) else {}
    starts = tuple(at for text in _list(data.get("hours")) if (at := _time(text)) is not None)
    boxes = []
    for row in _list(data.get("boxes")):
        if not isinstance(row, Mapping) or not isinstance(row.get("box"), str):
            continue
        raw_causes = row.get("causes")
        given: Mapping[str, Any] = raw_causes if isinstance(raw_causes, Mapping) else {}
        causes = {
            letter: _numbers(
                cause.get("hours") if isinstance(cause := given.get(letter), Mapping) else None, len(starts)
            )
            for letter in CAUSES
        }
        brakes = row.get("brakes")
        boxes.append(
            BoxHours(
                row["box"], clean(row["box"]), row.get("sampled") is True,
                tuple(int(n or 0) for n in _numbers(row.get("minutes"), len(starts))), causes,
                _numbers(brakes.get("hours") if isinstance(brakes, Mapping) else None, len(starts)),
            )
        )  # fmt: skip
    return Hours(starts, tuple(boxes), _time(data.get("at")))


def read_jobs(value: Any) -> list[Suffered]:
    """From the answer to the question "throttle_jobs"."""
    found = []
    for row in _list(value):
        if not isinstance(row, Mapping):
            continue
        seconds, share = (
            {letter: _number(part.get(letter)) for letter in "PTB"} if isinstance(part, Mapping) else {}
            for part in (row.get("seconds"), row.get("share"))
        )
        found.append(
            Suffered(
                clean(row.get("job_id")), clean(row.get("name")), clean(row.get("project")), clean(row.get("queue")),
                clean(row.get("box")), _number(row.get("run_s")), seconds, share, _number(row.get("temp_max_c")),
                _number(row.get("sm_mean_mhz")), _time(row.get("finished_at")), str(row.get("box") or ""),
            )
        )  # fmt: skip
    return found


def worst_of(boxes: Sequence[BoxHours]) -> BoxHours:
    """All of them in one row: for each hour and cause the box that was held back most, never a sum."""

    def worst(columns: Sequence[Seconds]) -> Seconds:
        return tuple(max((v for v in hour if v is not None), default=None) for hour in zip(*columns, strict=True))

    return BoxHours(
        ALL, "any box", any(box.sampled for box in boxes), tuple(map(max, zip(*(box.minutes for box in boxes), strict=True))),
        {cause: worst([box.causes[cause] for box in boxes]) for cause in CAUSES}, worst([box.brakes for box in boxes]),
    )  # fmt: skip


def cell(box: BoxHours, first: int, count: int, cause: str = "") -> Cell:
    """What ``count`` hours from ``first`` on come to; of one ``cause`` alone, when given."""
    recorded = sum(box.minutes[first : first + count])
    if not recorded:
        return Cell()
    brakes = _sum(box.brakes[first : first + count]) if cause in ("", "B") else None
    if brakes:  # of moments, whose seconds may be none
        braked = _sum(box.causes["B"][first : first + count]) or 0.0
        return Cell("B", min(1.0, braked / (recorded * 60.0)), braked)
    told = brakes is not None
    for letter in cause or SEVERITY:
        seconds = _sum(box.causes.get(letter, ())[first : first + count])
        if seconds is None:
            continue
        told = True
        if seconds >= HIDDEN_S:
            return Cell(letter, min(1.0, seconds / (recorded * 60.0)), seconds)
    return Cell("." if told else "?")


def layout(hours: int, room: int) -> tuple[int, int]:
    """Hours of one cell, and characters of it, for so many hours in ``room`` characters. Six characters have room for a
    time, two for an amount, one for a letter."""
    least = next((group for group in _GROUPS if -(-hours // group) <= room), _GROUPS[-1])
    if hours <= 24:
        for width in (6, 3, 2):
            if hours * width <= room:
                return 1, width
        return least, 1
    for group in _GROUPS[:6]:
        if -(-hours // group) * 2 <= room and group <= 2 * least:
            return group, 2
    return least, 1


def worst_first(boxes: Sequence[BoxHours], cause: str = "") -> list[BoxHours]:
    """By ``cause``; without one by what is no ordinary limit (heat, brakes, the processor), then by the power cap."""

    def weight(box: BoxHours) -> tuple[float, ...]:
        if cause:
            return (-(box.total(cause) or 0.0),)
        grave = max(box.total(letter) or 0.0 for letter in "TBC")
        return -grave, -float(box.brake_count or 0), -(box.total("P") or 0.0)

    return sorted(boxes, key=lambda box: (*weight(box), box.name))


def _sum(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) if found else None


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _numbers(value: Any, count: int) -> Seconds:
    """``count`` numbers, from the end; None where there is none."""
    found = tuple(_number(item) for item in _list(value))[-count:] if count else ()
    return (None,) * (count - len(found)) + found


def _time(value: Any) -> datetime | None:
    at = moment(value)
    return None if at is None else at.astimezone(UTC)
