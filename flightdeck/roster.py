"""The boxes on screen: which, in which order, and the one under the cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flightdeck.model.fleet import Box
from flightdeck.navigate import settle
from flightdeck.sorting import SORTS, matches

if TYPE_CHECKING:
    from flightdeck.app import FlightDeckApp

ORDER_S = 10.0  # so long an order stands: rows that change places at every sample cannot be read, nor aimed at


class Roster:
    """Filter, project and order of the fleet page. ``sort_index``: which of ``sorting.SORTS``."""

    def __init__(self, app: FlightDeckApp, sort: str = "") -> None:
        self.app = app
        self.sort_index = next((index for index, known in enumerate(SORTS) if known.name == sort), 0)
        self._ranks: dict[str, int] = {}
        self._ranked = (-1, float("-inf"))  # by which sort, and when

    def next_sort(self) -> str:
        """Go on to the next order; its name."""
        self.sort_index = (self.sort_index + 1) % len(SORTS)
        return SORTS[self.sort_index].name

    def boxes(self) -> tuple[Box, ...]:
        """The boxes of the project that match the filter, in the chosen order."""
        scene = self.app.scene
        fleet = self.app.fleet_screen()
        text = fleet.filter_text if fleet is not None else ""
        boxes = [box for box in scene.deck.boxes() if matches(box, text)]
        if scene.project is not None:
            mine = [box for box in boxes if scene.lanes(box) or scene.jobs(box)]
            boxes = mine or boxes
        if SORTS[self.sort_index].key is not None:
            ranks = self._order()
            boxes.sort(key=lambda box: ranks.get(box.raw, len(ranks)))
        return tuple(boxes)

    def _order(self) -> dict[str, int]:
        """The place of each box; found anew every few seconds, and at once for boxes that were not there."""
        deck, now = self.app.scene.deck, self.app.clock.mono()
        key = SORTS[self.sort_index].key
        boxes = deck.boxes()
        old = self._ranked[0] != self.sort_index or not 0.0 <= now - self._ranked[1] < ORDER_S
        if key is not None and (old or len(boxes) != len(self._ranks)):
            found = sorted(boxes, key=lambda box: key(deck, box))
            self._ranks = {box.raw: place for place, box in enumerate(found)}
            self._ranked = (self.sort_index, now)
        return self._ranks

    def settle(self) -> bool:
        """Put the cursor on something that exists; whether it had to move."""
        scene = self.app.scene
        found = settle(scene, self.boxes(), scene.cursor)
        moved = found != scene.cursor
        scene.cursor = found
        return moved

    def current(self) -> Box | None:
        """The box under the cursor."""
        return next((box for box in self.boxes() if box.raw == self.app.scene.cursor.box), None)
