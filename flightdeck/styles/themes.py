"""The palettes as themes of Textual: grounds and the colours of its own few widgets."""

from __future__ import annotations

from textual.theme import Theme

from flightdeck.styles.palette import DARK, LIGHT


def _theme(name: str, colors: dict[str, str], ground: str, dark: bool) -> Theme:
    return Theme(
        name=name, primary=colors["info"], warning=colors["warn"], error=colors["bad"], success=colors["ok"],
        foreground=colors["text"], background=ground, surface=ground, panel=ground, dark=dark,
    )  # fmt: skip


THEMES = (_theme("deck-dark", DARK, "#0d1117", True), _theme("deck-light", LIGHT, "#ffffff", False))
