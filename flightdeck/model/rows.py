"""Values out of answers of the database, whatever stands there: cleaned texts, real numbers, aware times, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from flightdeck.model.text import clean

MOST = 1e18  # no figure of ours is beyond it


def rows(value: object) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list | tuple) else []


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def raw(value: object) -> str:
    """A name as an order must write it."""
    return value if isinstance(value, str) else "" if value is None else str(value)


def number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -MOST < value < MOST else None  # compared before it is a float: JSON's integers know no end


def integer(value: object) -> int | None:
    found = number(value)
    return None if found is None else int(found)


def moment(value: object) -> datetime | None:
    """ISO text, or a time, with a zone; None for anything else, and at both ends of the calendar, where no other zone can
    show it."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime) or value.tzinfo is None or not 1 < value.year < 9999:
        return None
    return value


def seconds_since(at: datetime | None, now: datetime) -> float | None:
    return None if at is None else max(0.0, (now - at).total_seconds())


def texts(value: object, limit: int = 400) -> tuple[str, ...]:
    """A list of names."""
    return tuple(clean(item, limit) for item in value) if isinstance(value, list | tuple) else ()


def lines(value: object, most: int) -> tuple[str, ...]:
    """A text of many lines, each cleaned, the first ``most`` of them; tabs as spaces, lines of progress bars as the last."""
    if not isinstance(value, str):
        return ()
    parts = [part.rpartition("\r")[2] for part in value.replace("\r\n", "\n").expandtabs(4).split("\n")]
    return tuple(clean(part, 1000) for part in parts[:most])
