"""How values of PostgreSQL become Python values where the driver would raise: a row of others must not stop a reader."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import psycopg
from psycopg.abc import AdaptContext
from psycopg.adapt import AdaptersMap, Loader
from psycopg.pq import Format
from psycopg.types.json import set_json_loads

from engine.store.dialect import EARLIEST, LATEST

_TIMESTAMPTZ = psycopg.adapters.types["timestamptz"].oid
_driver_loader = psycopg.adapters.get_loader(_TIMESTAMPTZ, Format.TEXT)
assert _driver_loader is not None
_DriverLoader = _driver_loader


class AnyTime(Loader):
    """A timestamptz; ``infinity``, and years that Python lacks, read as the latest or the earliest moment it has."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        self._load = _DriverLoader(oid, context).load

    def load(self, data: Any) -> datetime:
        try:
            moment: datetime = self._load(data)
        except psycopg.DataError:
            text = bytes(data)
            return EARLIEST if text.startswith(b"-") or text.endswith(b"BC") else LATEST
        return moment


def any_json(text: str | bytes) -> Any:
    """JSON; a number of thousands of digits (jsonb writes 1e5000 out) reads as infinite, which nothing of ours writes back."""
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 1000 else float(digits))


class _Context:
    """What a new connection takes over."""

    adapters = AdaptersMap(psycopg.adapters)
    connection: psycopg.Connection[Any] | None = None


CONTEXT = _Context()
CONTEXT.adapters.register_loader(_TIMESTAMPTZ, AnyTime)
set_json_loads(any_json, CONTEXT)
