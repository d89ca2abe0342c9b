"""How a lane stands, in a word; and why a process ended. Desired against actual, never confused."""

from __future__ import annotations

from collections.abc import Iterable

from engine.display.lanes import EXIT_CODES, LaneWord, cause_text, exit_text
from engine.display.lanes import lane_word as word_of
from flightdeck.model.fleet import Box, Lane

__all__ = ["EXIT_CODES", "LaneWord", "cause_text", "counts", "exit_text", "lane_word"]


def lane_word(lane: Lane, since_view_s: float = 0.0) -> LaneWord:
    """Desired against actual, never confused: ``PARKED`` only when the lane itself says parked."""
    if lane.merged:
        words = [lane_word(part, since_view_s) for part in lane.merged]
        if len({word.text for word in words}) == 1:
            return words[0]
        if all(word.text.startswith("draining") for word in words):
            return LaneWord(f"draining {lane.busy}", "warn")
        on = sum(word.text == "ON" for word in words)
        tone = "bad" if any(word.tone == "bad" for word in words) else "warn"
        return LaneWord(f"{on} of {len(words)} ON", tone)
    return word_of(lane.state, lane.desired, lane.policy, lane.busy, lane.flagged, lane.silent(since_view_s))


def counts(boxes: Iterable[Box], since_view_s: float = 0.0) -> tuple[int, int, int]:
    """(parked, draining, down) lanes, each lane of each project counted once."""
    words = [lane_word(lane, since_view_s).text for box in boxes for lane in box.lanes]
    return (
        sum(word == "PARKED" for word in words),
        sum(word.startswith("draining") for word in words),
        sum(word in ("DOWN", "REFUSED") for word in words),
    )
