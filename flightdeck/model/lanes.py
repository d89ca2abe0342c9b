"""How a lane stands, in a word; and why a process ended. Desired against actual, never confused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flightdeck.model.fleet import Box, Lane

EXIT_CODES = {
    75: "over its budget",
    76: "stalled",
    77: "lost its claim",
    78: "gpu idle",
    79: "stopped by an operator",
}


@dataclass(frozen=True, slots=True)
class LaneWord:
    """The state of a lane in at most 12 cells, and how it is meant: ok, warn, bad, wait or dim."""

    text: str
    tone: str


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
    if lane.state == "stopping" and not lane.busy and not lane.flagged:
        return LaneWord("ended", "dim")  # its last heartbeat: it went in order, which is no fault
    if lane.silent(since_view_s):
        return LaneWord("DOWN", "bad")
    if lane.state == "refused":
        return LaneWord("REFUSED", "bad")
    if lane.state == "stopping":
        return LaneWord("stopping", "warn")
    if lane.desired == "off" and lane.state != "starting":  # one that starts has nothing to park yet
        if lane.state == "parked":
            return LaneWord("PARKED", "warn")
        if lane.state == "draining" or (lane.policy == "drain" and lane.busy):
            return LaneWord(f"draining {lane.busy}", "warn")
        return LaneWord("parking...", "wait")
    if lane.state in ("parked", "parking"):
        return LaneWord("resuming...", "wait")
    if lane.state == "starting":
        return LaneWord("starting...", "wait")
    if lane.state == "draining":
        return LaneWord(f"draining {lane.busy}", "warn")
    return LaneWord("ON", "ok")


def counts(boxes: Iterable[Box], since_view_s: float = 0.0) -> tuple[int, int, int]:
    """(parked, draining, down) lanes, each lane of each project counted once."""
    words = [lane_word(lane, since_view_s).text for box in boxes for lane in box.lanes]
    return (
        sum(word == "PARKED" for word in words),
        sum(word.startswith("draining") for word in words),
        sum(word in ("DOWN", "REFUSED") for word in words),
    )


def exit_text(code: int | None, reason: str = "") -> str:
    """Why a process ended, in words."""
    if code is None:
        return reason
    if code in EXIT_CODES:
        text = f"{EXIT_CODES[code]} ({code})"
    elif code < 0:
        text = f"killed by signal {-code}"
    else:
        text = f"exit code {code}"
    return f"{text}: {reason}" if reason and reason != text else text
