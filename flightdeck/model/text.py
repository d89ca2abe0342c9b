"""Names and texts that came from a database, made safe to show. Every text passes here once, where it enters the model."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from rich.cells import cell_len

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


def ascii_only(text: str) -> str:
    """For ``--ascii``: what is not ASCII becomes question marks, as many as it had cells."""
    if text.isascii():
        return text
    return "".join(char if char.isascii() else "?" * _cells(char) for char in text)


def _cells(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


_FILLERS = ("(R)", "(TM)", "(r)", "(tm)")
_GENERIC = ("NVIDIA", "AMD", "Intel", "Graphics", "Processor", "CPU", "with")


def short_hardware(name: str, room: int) -> str:
    """The telling words of a hardware's name, as many as fit: ``RTX 6000`` of ``NVIDIA RTX 6000 Ada Generation``."""
    if cell_len(name) <= room:
        return name
    for filler in _FILLERS:
        name = name.replace(filler, "")
    words = [word for word in name.split() if word not in _GENERIC] or name.split()
    while len(words) > 1 and cell_len(" ".join(words)) > room:
        words.pop()
    return " ".join(words)
