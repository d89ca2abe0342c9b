"""One SQL text, two dialects: named fragments and parameters, rendered by ``str.format_map``.

``{name}`` is a parameter, unless it is one of the fragments below. Braces in SQL literals are doubled.

===================  ============================================  ==========================================
fragment             PostgreSQL                                    SQLite
===================  ============================================  ==========================================
``{now}``            ``now()`` (start of the transaction)          UTC ISO text with six decimals
``{clock}``          ``clock_timestamp()``                         the same
``{after[p]}``       now plus parameter p, seconds                 the same
``{before[p]}``      now minus parameter p, seconds                the same
``{any[p]}``         ``= any(p)``                                  ``in (select value from json_each(p))``
``{json}``           ``::jsonb``                                   nothing
``{text[column]}``   ``column::text``                              ``column``
``{skip_locked}``    ``for update skip locked``                    nothing (one writer at a time)
``{true} {false}``   ``true false``                                ``1 0``
===================  ============================================  ==========================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal

Kind = Literal["postgresql", "sqlite"]


@dataclass(frozen=True)
class Json:
    """A parameter that is to be stored as JSON."""

    value: Any


class _Call:
    """A fragment with an argument: ``{after[seconds]}``."""

    def __init__(self, render: Callable[[str], str]) -> None:
        self._render = render

    def __getitem__(self, argument: str) -> str:
        return self._render(argument)


class _Fragments(dict[str, Any]):
    def __init__(self, parameter: Callable[[str], str], fragments: dict[str, Any]) -> None:
        super().__init__(fragments)
        self._parameter = parameter

    def __missing__(self, name: str) -> str:
        return self._parameter(name)


def _postgres(parameter: Callable[[str], str]) -> _Fragments:
    return _Fragments(
        parameter,
        {
            "now": "now()",
            "clock": "clock_timestamp()",
            "after": _Call(lambda p: f"(now() + make_interval(secs => {parameter(p)}))"),
            "before": _Call(lambda p: f"(now() - make_interval(secs => {parameter(p)}))"),
            "any": _Call(lambda p: f"= any({parameter(p)})"),
            "json": "::jsonb",
            "text": _Call(lambda column: f"{column}::text"),
            "skip_locked": "for update skip locked",
            "true": "true",
            "false": "false",
        },
    )


_ISO = "'%Y-%m-%dT%H:%M:%f000+00:00'"
_SQLITE_NOW = f"strftime({_ISO}, 'now')"

_SQLITE = _Fragments(
    lambda name: f":{name}",
    {
        "now": _SQLITE_NOW,
        "clock": _SQLITE_NOW,
        "after": _Call(lambda p: f"strftime({_ISO}, 'now', printf('%+.6f seconds', :{p}))"),
        "before": _Call(lambda p: f"strftime({_ISO}, 'now', printf('%+.6f seconds', -(:{p})))"),
        "any": _Call(lambda p: f"in (select value from json_each(:{p}))"),
        "json": "",
        "text": _Call(lambda column: column),
        "skip_locked": "",
        "true": "1",
        "false": "0",
    },
)


def check_names(params: Mapping[str, Any]) -> None:
    """Refuse parameters that are named like a fragment: the text would silently mean something else."""
    if not _SQLITE.keys().isdisjoint(params):
        taken = ", ".join(sorted(_SQLITE.keys() & params.keys()))
        raise ValueError(f"a parameter may not be named like a fragment: {taken}")


@lru_cache(maxsize=4096)
def render_postgres(sql: str) -> tuple[str, tuple[str, ...]]:
    """The text of ``sql`` for PostgreSQL with its parameters as $1, $2, ..., and their names in that order.

    The server's own form, because the driver reads `%(name)s` anew at every call when a statement has more than
    4,096 characters: 0.3 ms for a claim.
    """
    names: dict[str, str] = {}
    text = sql.format_map(_postgres(lambda name: names.setdefault(name, f"${len(names) + 1}")))
    return text, tuple(names)


@lru_cache(maxsize=4096)
def render_sqlite(sql: str) -> str:
    """The text of ``sql`` for SQLite, parameters as :name."""
    return sql.format_map(_SQLITE)


# SQLite has no types for these; rows are decoded by column name. Aliases ``x_json`` keep the raw text.
JSON_COLUMNS = frozenset(
    "graph context inputs output args result detail models_known models_fit gpus sensors avoid_boxes only_boxes answers".split()
)
TIME_COLUMNS = frozenset("at run_after until last_seen tick last_tick not_before".split())
BOOLEAN_COLUMNS = frozenset("is_priority cancel_requested kill_requested is_leader enabled simulated".split())


def decode_json(value: Any) -> Any:
    """JSON text to a value; a text that is not JSON (a foreign writer's) stays as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


LATEST = datetime(9999, 12, 30, tzinfo=UTC)  # a day from the end: every zone can show it
EARLIEST = datetime(1, 1, 3, tzinfo=UTC)


def decode_time(value: Any) -> datetime | None:
    """ISO text to an aware datetime; a text without a zone is UTC, as the contract says.

    What is no time (a foreign writer's) reads as the earliest, ``infinity`` as the latest: nobody has to expect a text.
    """
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return LATEST if value == "infinity" else EARLIEST
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def decode_boolean(value: Any) -> Any:
    return None if value is None else bool(value)


@lru_cache(maxsize=1024)
def sqlite_decoder(column: str) -> Callable[[Any], Any] | None:
    """How values of a column of SQLite become Python values; None: they are already."""
    if column in JSON_COLUMNS:
        return decode_json
    if column in TIME_COLUMNS or column.endswith("_at"):
        return decode_time
    if column in BOOLEAN_COLUMNS:
        return decode_boolean
    return None


def sqlite_value(value: Any) -> Any:
    """A parameter as SQLite stores it: ISO text, JSON text, 0/1. Refuses naive datetimes."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Json):
        return json.dumps(value.value, separators=(",", ":"))
    if isinstance(value, list | tuple | dict | set | frozenset):
        return json.dumps(list(value) if isinstance(value, set | frozenset) else value, separators=(",", ":"))
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    return value
