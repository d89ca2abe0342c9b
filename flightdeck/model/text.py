"""Texts as cells of a terminal; what makes them harmless is the engine's (engine/display/text.py)."""

from __future__ import annotations

import unicodedata

from rich.cells import cell_len

from engine.display.text import STAND_IN, clean

__all__ = ["STAND_IN", "ascii_only", "clean", "short_hardware"]


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
