"""Colours by meaning. Widgets name a meaning; the palette turns it into a terminal style.

A name is a base and modifiers after ``+``: ``warn+b``. Modifiers: ``b`` bold, ``s`` the selected row's ground, ``r``
reverse. Meaning never rests on a colour alone: words and letters carry it (16 colours, NO_COLOR, colour blindness).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.color import Color
from rich.style import Style

DARK = {
    "text": "#c9d1d9", "bright": "#f0f6fc", "dim": "#9aa4af", "faint": "#7f8893", "ok": "#3fb950", "warn": "#d6a032",
    "bad": "#f8635a", "info": "#58a6ff", "accent": "#b08cf5", "cyan": "#3fc3cd", "frame": "#3a424d", "focus": "#58a6ff",
    "track": "#30363d",
}  # fmt: skip
LIGHT = {
    "text": "#24292f", "bright": "#0b1016", "dim": "#4d555e", "faint": "#667079", "ok": "#1a7f37", "warn": "#8a5a00",
    "bad": "#c4202c", "info": "#0757c0", "accent": "#7440c9", "cyan": "#0c7480", "frame": "#b6bec8", "focus": "#0757c0",
    "track": "#d0d7de",
}  # fmt: skip
ANSI = {
    "text": "default", "bright": "default", "dim": "default", "faint": "bright_black", "ok": "green", "warn": "yellow",
    "bad": "red", "info": "blue", "accent": "magenta", "cyan": "cyan", "frame": "bright_black", "focus": "blue",
    "track": "bright_black",
}  # fmt: skip
PLAIN = dict.fromkeys(DARK, "default")

_BOLD = frozenset({"bright", "title", "key", "banner"})


@dataclass
class Palette:
    """One set of colours. ``ground`` and ``row`` are backgrounds; None leaves the terminal's own."""

    name: str
    colors: Mapping[str, str]
    ground: str | None
    row: str | None
    ansi: bool = False
    greyed: bool = False
    _cache: dict[str, Style] = field(default_factory=dict)

    def style(self, name: str) -> Style:
        found = self._cache.get(name)
        if found is None:
            found = self._cache[name] = self._make(name)
        return found

    def grey(self) -> Palette:
        """The same, for data that may be old: one calm grey, letters and weights kept."""
        return Palette(self.name, self.colors, self.ground, self.row, self.ansi, greyed=True)

    def _make(self, name: str) -> Style:
        base, _, modifiers = name.partition("+")
        bold = "b" in modifiers or base in _BOLD
        reverse = "r" in modifiers
        ground = self.row if "s" in modifiers else self.ground
        dim = False
        if self.greyed and base not in ("title", "banner", "key"):
            base = "faint"
            bold = False
        if base in ("title", "key", "banner"):
            if self.ansi:
                return Style(bold=bold, reverse=True)
            color = {"title": "info", "banner": "bad", "key": "track"}[base]
            ink = self.colors["bright"] if base == "key" else self.ground
            return Style(color=ink, bgcolor=self.colors[color], bold=True)
        color = self.colors.get(base, self.colors["text"])
        if self.ansi:
            if base == "bright":
                bold = True
            if base in ("dim", "faint", "frame", "track") and color == "default":
                dim = True
            return Style(
                color=None if color == "default" else Color.parse(color),
                bold=bold,
                dim=dim or None,
                reverse=reverse or None,
            )
        return Style(color=color, bgcolor=ground, bold=bold, reverse=reverse or None)


def palette(theme: str, plain: bool = False) -> Palette:
    """``dark``, ``light`` or ``ansi`` (16 colours); ``plain`` has none at all (NO_COLOR)."""
    if plain:
        return Palette("plain", PLAIN, None, None, ansi=True)
    if theme == "ansi":
        return Palette("ansi", ANSI, None, None, ansi=True)
    if theme == "light":
        return Palette("light", LIGHT, "#ffffff", "#eef3fa")
    return Palette("dark", DARK, "#0d1117", "#18202b")
