"""Values as JSON on their way out: strict JSON whatever a row holds, times as RFC 3339 in UTC."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str).encode


def dumps(value: Any) -> str:
    """``value`` as JSON text; what JSON has no number for (a row of others may read as infinite) becomes null."""
    try:
        return _ENCODE(value)
    except ValueError:
        return _ENCODE(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def moment(at: datetime | None) -> str | None:
    """``2026-01-31T12:00:00.123456Z``."""
    return None if at is None else at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def json_text(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer of JSON that is text already; half a character (of a row of others) becomes a question mark."""
    return Response(
        text.encode("utf-8", "replace"), status, None if headers is None else dict(headers), "application/json"
    )


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return json_text(dumps(value), status, headers)
