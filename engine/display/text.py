"""Names and texts that came from a database, made safe to show. Every text passes here once, on its way to a screen."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

# A control byte becomes a visible, narrow stand-in, so that a hostile name looks odd instead of doing something.
STAND_IN = "?"
_SPACES = {"\t": " ", "\n": " ", "\r": " ", "\v": " ", "\f": " ", "\u2028": " ", "\u2029": " "}
_LIMIT = 400  # no cell on any screen is longer; a megabyte of error text must not be kept per event


def clean(value: object, limit: int = _LIMIT) -> str:
    """One line of harmless text: control, format (bidi, zero-width), surrogate, private and unassigned characters replaced.

    ``None`` becomes ``""``. Markup is left as typed: nothing downstream parses it.
    """
    if value is None:
        return ""
    text = value if isinstance(value, str) else str(value)
    return _clean(text[:limit])


@lru_cache(maxsize=4096)
def _clean(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    out: list[str] = []
    for char in text:
        if char.isascii() and char.isprintable():
            out.append(char)
        elif char in _SPACES:
            out.append(" ")
        elif unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
            out.append(STAND_IN)
        elif unicodedata.category(char) in ("Mn", "Me", "Mc") and (not out or _marks(out) >= 2):
            out.append(STAND_IN)  # a tower of combining marks covers its neighbours
        elif unicodedata.category(char) == "Zs":
            out.append(" ")
        else:
            out.append(char)
    return "".join(out)


def _marks(out: list[str]) -> int:
    """How many combining marks ``out`` ends with."""
    count = 0
    for char in reversed(out):
        if unicodedata.category(char) not in ("Mn", "Me", "Mc"):
            break
        count += 1
    return count


def clean_lines(value: object, most: int = 2000, limit: int = _LIMIT) -> str:
    """The last ``most`` lines of a text, each made harmless by itself: for logs and what is laid out in lines."""
    if value is None:
        return ""
    lines = str(value).split("\n")
    return "\n".join(clean(line.removesuffix("\r").replace("\t", "    "), limit) for line in lines[-most:])


def show_project(value: object) -> str:
    """The unnamed project has a visible name."""
    return clean(value, 60) or "-"
