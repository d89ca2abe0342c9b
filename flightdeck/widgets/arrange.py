"""Where boxes go: as many cards as fit next to each other, else one row per box with the focused one opened. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

CARD_MIN_W = 46
CARD_MIN_H = 12  # meters, three lanes, a job, two traces, the throttle strip
OPEN_MIN_H = 9
OPEN_MANY_H = 16  # on a high terminal the opened one gets so much, however many others there are


@dataclass(frozen=True, slots=True)
class Place:
    """A box's rectangle; ``kind`` is ``card``, ``row`` or ``open``."""

    index: int
    kind: str
    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Arrangement:
    places: tuple[Place, ...]
    columns: int  # 1 in rows
    above: int = 0  # boxes scrolled out at the top
    below: int = 0

    @property
    def cards(self) -> bool:
        return bool(self.places) and self.places[0].kind == "card"


@lru_cache(maxsize=64)
def arrange(boxes: int, focus: int, width: int, height: int) -> Arrangement:
    """Places for ``boxes`` boxes of which ``focus`` has the cursor."""
    if boxes <= 0 or width < 20 or height < 3:
        return Arrangement((), 1)
    focus = min(max(0, focus), boxes - 1)
    best = _cards(boxes, width, height)
    if best is not None:
        return best
    return _rows(boxes, focus, width, height)


def _cards(boxes: int, width: int, height: int) -> Arrangement | None:
    most = min(boxes, width // CARD_MIN_W)
    if most < 1:
        return None
    lines = -(-boxes // most)
    columns = -(-boxes // lines)  # evenly: 4 boxes on 3 columns are 2 x 2
    if height // lines < CARD_MIN_H:
        return None
    places = []
    for index in range(boxes):
        column, line = index % columns, index // columns
        across = min(columns, boxes - line * columns)  # the last line shares the whole width too
        x, y = width * column // across, height * line // lines
        right, bottom = width * (column + 1) // across, height * (line + 1) // lines
        gap = 1 if column < across - 1 else 0
        places.append(Place(index, "card", x, y, right - x - gap, bottom - y))
    return Arrangement(tuple(places), columns)


def _rows(boxes: int, focus: int, width: int, height: int) -> Arrangement:
    opened = min(max(OPEN_MIN_H, min(height // 3, OPEN_MANY_H), height - (boxes - 1)), height)
    room = height - opened  # rows for the others
    first = 0
    if boxes - 1 > room:
        first = min(max(0, focus - room // 2), boxes - 1 - room)
    places = []
    y = 0
    for index in range(first, min(boxes, first + room + 1)):
        tall = opened if index == focus else 1
        places.append(Place(index, "open" if index == focus else "row", 0, y, width, tall))
        y += tall
    return Arrangement(tuple(places), 1, first, boxes - len(places) - first)
