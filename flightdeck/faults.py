"""Defects that the deck outlives: a page that cannot be drawn, a key that fails. One line says so at once, the traceback is
printed when the deck ends."""

from __future__ import annotations

import traceback

from flightdeck.model.text import clean

MOST = 8  # different ones that are kept


class Faults:
    """What went wrong, each place once. Values of local variables are not kept as text: they may hold a password."""

    def __init__(self) -> None:
        self.first: Exception | None = None
        self.count = 0
        self._texts: dict[tuple[str, str, int], str] = {}

    def note(self, where: str, error: Exception) -> str:
        """Keep it; returns what failed in one line."""
        self.count += 1
        self.first = self.first or error
        frames = traceback.extract_tb(error.__traceback__)
        place = (type(error).__name__, frames[-1].filename, frames[-1].lineno or 0) if frames else (where, "", 0)
        if place not in self._texts and len(self._texts) < MOST:
            told = "".join(traceback.format_exception(error)).splitlines()
            self._texts[place] = "\n".join([f"flightdeck: {where} failed", *(clean(line) for line in told)])
        return clean(f"{type(error).__name__}: {error}", 200)

    def report(self) -> str:
        """All of them with their tracebacks, to be printed once the terminal is free; empty: nothing went wrong."""
        if not self._texts:
            return ""
        return "\n\n".join([*self._texts.values(), f"flightdeck: went on after {self.count} defects like these"]) + "\n"

    def check(self) -> None:
        """Raise the first of them: for pictures and tests, where nobody looks at the line that says so."""
        if self.first is not None:
            raise self.first
