"""Reads the hours and days that the deck does not remember itself, for the boxes that are on screen, about once a minute."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from flightdeck.reader import Answer, Ask

if TYPE_CHECKING:
    from flightdeck.app import FlightDeckApp

EVERY_S = 60.0


class Pasts:
    """Asks the question "span" for what is looked at, and puts the answers into the read model."""

    def __init__(self, app: FlightDeckApp) -> None:
        self.app = app
        self._asks: dict[tuple[str, int], Ask] = {}

    def want(self, boxes: Iterable[str]) -> None:
        """These boxes' traces are on screen (raw names). Cheap when nothing is new."""
        app = self.app
        span_s = app.scene.window.span_s
        wanted = {(raw, span_s) for raw in boxes} if app.scene.window.long else set()
        for key in self._asks.keys() - wanted:
            self._asks.pop(key).stop()
            app.deck.pasts.pop(key, None)
            app.scene.deck.pasts.pop(key, None)
        for raw, seconds in sorted(wanted - self._asks.keys()):
            question = {"box": raw, "span_s": seconds}
            self._asks[(raw, seconds)] = app.reader.ask("span", question, self._take, EVERY_S, owner=(raw, seconds))

    def _take(self, answer: Answer) -> None:
        app = self.app
        raw, span_s = answer.arguments["box"], answer.arguments["span_s"]
        if not isinstance(answer.value, dict):
            app.say(f"the last {app.scene.window.words}: {answer.error}", "bad", 20.0)
            return
        for deck in {id(deck): deck for deck in (app.deck, app.scene.deck)}.values():
            deck.take_past(raw, span_s, answer.value)
        app.draw_now({raw})
