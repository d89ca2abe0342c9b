"""How a lane stands, in a word; and why a process ended. Desired against actual, never confused."""

from __future__ import annotations

from dataclasses import dataclass

LANE_SILENT_S = 30.0  # a heartbeat older than this is a lane that is gone (SPEC, liveness)

EXIT_CODES = {
    75: "over its budget",
    76: "stalled",
    77: "lost its claim",
    78: "gpu idle",
    79: "stopped by an operator",
}

# The engine's names of why an attempt was given back are a contract; these are for people.
_CAUSES = {
    "executor_died": "executor died",
    "lane_lost": "lane lost",
    "lease_lapsed": "lease lapsed",
    "operator_stop": "operator stop",
    "drain": "lane stopped it",  # its own end, in order; what an operator ordered is an operator stop
    "trip": "watchdog trip",
    "retry": "retry after an error",
    "handed_back": "handed back unbegun",
}


@dataclass(frozen=True, slots=True)
class LaneWord:
    """The state of a lane in at most 12 cells, and how it is meant: ok, warn, bad, wait or dim."""

    text: str
    tone: str


def lane_word(state: str, desired: str, policy: str, busy: int, flagged: bool, silent: bool) -> LaneWord:
    """``PARKED`` only when the lane itself says parked. ``silent``: not heard of for LANE_SILENT_S, or flagged."""
    if state == "stopping" and not busy and not flagged:
        return LaneWord("ended", "dim")  # its last heartbeat: it went in order, which is no fault
    if silent:
        return LaneWord("DOWN", "bad")
    if state == "refused":
        return LaneWord("REFUSED", "bad")
    if state == "stopping":
        return LaneWord("stopping", "warn")
    if desired == "off" and state != "starting":  # one that starts has nothing to park yet
        if state == "parked":
            return LaneWord("PARKED", "warn")
        if state == "draining" or (policy == "drain" and busy):
            return LaneWord(f"draining {busy}", "warn")
        return LaneWord("parking...", "wait")
    if state in ("parked", "parking"):
        return LaneWord("resuming...", "wait")
    if state == "starting":
        return LaneWord("starting...", "wait")
    if state == "draining":
        return LaneWord(f"draining {busy}", "warn")
    return LaneWord("ON", "ok")


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


def cause_text(cause: str) -> str:
    """Why an attempt was given back, in words."""
    return _CAUSES.get(cause, cause.replace("_", " "))
