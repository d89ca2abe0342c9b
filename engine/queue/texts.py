"""Payloads and error texts on their way into a row: serialised, checked, cut, before any state changes."""

from __future__ import annotations

import json
import re
from typing import Any

from engine import config
from engine.errors import BadInput, PayloadError, PayloadTooLarge

# PostgreSQL's jsonb has no NUL; an even number of backslashes before it means a literal "\u0000".
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def encode_payload(value: Any, what: str) -> str:
    """``value`` as JSON text of at most ``payload_limit`` bytes (1 MiB). ``what`` names it in the error.

    Raises PayloadError for what JSON or the database cannot hold (NaN, NUL, lone surrogates, other objects).
    """
    return encode_within(value, what, payload_limit())


def payload_limit() -> int:
    """The largest payload in bytes of JSON text."""
    return int(config.get("payload_limit"))


_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def encode_within(value: Any, what: str, limit: int) -> str:
    """:func:`encode_payload` with the limit at hand: bulk inserts ask the configuration once, not per row."""
    try:
        text = _ENCODE(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(f"{what} does not serialise to JSON: {error}") from None
    check_payload(text, what, limit)
    return text


def check_payload(text: str, what: str, limit: int | None = None) -> None:
    """Refuse JSON text that is too large or that no database would store. Raises PayloadError."""
    if limit is None:
        limit = payload_limit()
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise PayloadError(f"{what} holds half a character (a lone surrogate), which cannot be stored") from None
    if size > limit:
        raise PayloadTooLarge(f"{what} is {size:,} bytes of JSON, more than the {limit:,} allowed")
    if "\\u0000" in text and _NUL.search(text):
        raise PayloadError(f"{what} holds a NUL character, which cannot be stored")


def clean_text(text: str | None, limit: int | None = None) -> str | None:
    """``text`` as a row can hold it: no NUL, no lone surrogates, at most ``limit`` characters (error_limit)."""
    if text is None:
        return None
    if limit is None:
        limit = int(config.get("error_limit"))
    return str(text)[:limit].replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def check_word(value: Any, what: str, limit: int = 200) -> str:
    """``value`` if it is a text that can name something in a row; ``what`` names it in the error. Raises BadInput."""
    if not isinstance(value, str) or not value or len(value) > limit or not _is_plain(value):
        raise BadInput(f"{str(value)[:100]!r} is not a {what} (1 to {limit} characters, no control characters)")
    return value


def project_name(project: str | None) -> str:
    """``project``, or for None the configured one, as rows hold it. Raises BadInput."""
    name = config.project_name() if project is None else project
    return name if name == "" else check_word(name, "project name")


def _is_plain(text: str) -> bool:
    return not any(c < " " or "\ud800" <= c <= "\udfff" for c in text)
