"""A request's body on its way in: JSON, strictly. What is ambiguous is refused, in words, before anything is done with it.

Refused are NaN and infinities, an object that names a key twice (parsers disagree which one counts), text that is not
UTF-8, and nesting that a database would choke on.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from engine.errors import BadInput
from engine.web.problems import invalid_body

DEPTH_MOST = 200

Model = TypeVar("Model", bound=BaseModel)


class BadBody(BadInput):
    """The body is not what this call takes."""


def parse(raw: bytes, content_type: str | None) -> Any:
    """The JSON value of a body. Raises BadBody, one line that says what is wrong."""
    kind = (content_type or "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise BadBody(
            f"the body is {kind[:60] or 'of no type'}: send JSON with the header Content-Type: application/json"
        )
    if not raw.strip():
        raise BadBody("the body is empty: send a JSON object")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise BadBody(f"the body is not UTF-8 (byte {error.start})") from None
    try:
        value = _DECODE(text)
    except json.JSONDecodeError as error:
        raise BadBody(f"the body is not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise BadBody(_TOO_DEEP) from None
    except ValueError as error:
        raise BadBody(f"the body is not JSON that can be used: {str(error)[:200]}") from None
    if raw.count(b"[") + raw.count(b"{") > DEPTH_MOST and _deeper(value, DEPTH_MOST):
        raise BadBody(_TOO_DEEP)
    return value


def valid(model: type[Model], value: Any) -> Model:
    """``value`` as the model has it. Raises Invalid."""
    if not isinstance(value, dict):
        raise BadBody("the body must be a JSON object")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise Invalid(error) from None


class Invalid(BadBody):
    """Fields are wrong: each is named in ``response``."""

    def __init__(self, error: ValidationError) -> None:
        super().__init__("the body is not valid")
        self.response = invalid_body(error.errors(include_url=False, include_input=False, include_context=False))


def single(request: Request, *known: str) -> dict[str, str]:
    """The query parameters, each at most once and none that this call does not know. Raises BadBody with its name."""
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise BadBody(f"unknown parameter {name[:60]!r} (known: {', '.join(known)})")
        if name in found:
            raise BadBody(f"parameter {name} is given twice")
        found[name] = value
    return found


def whole(given: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    """A whole number out of the query. Raises BadBody with its bounds."""
    text = given.get(name)
    if text is None:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 30 or not least <= int(text) <= most:
        raise BadBody(f"{name} must be a whole number from {least} to {most}, got {text[:40]!r}")
    return int(text)


def chosen(given: dict[str, str], name: str, among: tuple[str, ...]) -> str | None:
    """One of these words, or None where there is none. Raises BadBody."""
    text = given.get(name)
    if text is not None and text not in among:
        raise BadBody(f"{name} must be one of {', '.join(among)}, got {text[:40]!r}")
    return text


def row_number(text: str) -> int | None:
    """An id out of a path as the 64-bit number of a row; None for what is none, of which there is no row either."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 19 and int(text) < 2**63 else None


_TOO_DEEP = f"the body is nested deeper than {DEPTH_MOST} levels"


def _deeper(value: Any, left: int) -> bool:
    level = [value]
    while level and left >= 0:
        level = [
            item
            for each in level
            for item in (each.values() if isinstance(each, dict) else each)
            if isinstance(item, dict | list)
        ]
        left -= 1
    return bool(level)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the key {name[:60]!r} stands twice in one object")
            seen.add(name)
    return found


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


_DECODE = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_number).decode
