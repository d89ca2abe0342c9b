"""Which questions a recording answers: those that the deck's pages would ask about the fleet as it is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Question = tuple[str, dict[str, Any]]


def questions(view: Mapping[str, Any]) -> list[Question]:
    """What each page asks when it is opened on this view, most telling first."""
    return []
