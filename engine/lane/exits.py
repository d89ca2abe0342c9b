"""The five ways in which a slot dies on purpose, by exit code (SPEC section 6)."""

from __future__ import annotations

BUDGET = 75
STALL = 76
LOST_CLAIM = 77
GPU_HEALTH = 78
OPERATOR_STOP = 79

NAMES = {
    BUDGET: "budget",
    STALL: "stall",
    LOST_CLAIM: "lost claim",
    GPU_HEALTH: "gpu health",
    OPERATOR_STOP: "operator stop",
}

TEXTS = {
    BUDGET: "the job ran longer than its wall-clock budget",
    STALL: "the node stopped beating and its GPU stood still",
    LOST_CLAIM: "the row is no longer ours; somebody else has it",
    GPU_HEALTH: "the GPU did nothing for a whole window",
    OPERATOR_STOP: "an operator stopped it; the job is queued again, nothing is spent",
}

# Codes whose job goes through the trip policy: queued again under the cap, failed at it.
TRIPS = frozenset({BUDGET, STALL, GPU_HEALTH})


def explain(code: int) -> str:
    """``75 budget: the job ran ...``; a code above 128 is a signal, as shells write it."""
    if code in NAMES:
        return f"{code} {NAMES[code]}: {TEXTS[code]}"
    if code > 128:
        import signal

        try:
            return f"{code}: killed by {signal.Signals(code - 128).name}"
        except ValueError:
            pass
    return f"{code}: the executor ended by itself"


def from_returncode(returncode: int) -> int:
    """The exit code of a subprocess as shells write it: 128 + N for signal N."""
    return 128 - returncode if returncode < 0 else returncode
