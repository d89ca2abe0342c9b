"""Boxes never overlap, never leave the screen, and the focused one is always on it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flightdeck.widgets.arrange import arrange


@given(st.integers(0, 120), st.integers(0, 130), st.integers(0, 320), st.integers(0, 110))
def test_every_arrangement_is_sound(boxes: int, focus: int, width: int, height: int) -> None:
    found = arrange(boxes, focus, width, height)
    taken: set[tuple[int, int]] = set()
    for place in found.places:
        assert place.x >= 0 and place.y >= 0
        assert place.x + place.width <= width and place.y + place.height <= height
        corners = {(x, y) for x in (place.x, place.x + place.width - 1) for y in range(place.y, place.y + place.height)}
        assert not taken & corners
        taken |= corners
    if boxes and width >= 20 and height >= 3:
        assert min(focus, boxes - 1) in [place.index for place in found.places]
        assert found.above + found.below + len(found.places) == boxes


@pytest.mark.parametrize(
    ("boxes", "size", "columns", "kind"),
    [(4, (210, 47), 4, "card"), (4, (120, 37), 2, "card"), (3, (166, 33), 3, "card"), (1, (80, 21), 1, "card"),
     (4, (80, 21), 1, "open"), (12, (120, 37), 1, "open"), (2, (80, 40), 1, "card"),
     (5, (120, 37), 2, "card"), (4, (100, 27), 2, "card"), (12, (210, 47), 4, "card"), (3, (80, 30), 1, "open")],
)  # fmt: skip
def test_as_many_columns_as_fit(boxes: int, size: tuple[int, int], columns: int, kind: str) -> None:
    found = arrange(boxes, 0, *size)
    assert (found.columns, found.places[0].kind) == (columns, kind)
