"""Verdicts about what a slot runs: functions of values, no clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.lane import exits


@dataclass(frozen=True)
class Verdict:
    """Kill what the slot runs: the exit code that says why, and the evidence for the event."""

    code: int
    evidence: dict[str, Any]


def budget(elapsed_s: float, budget_s: float | None) -> Verdict | None:
    """75: the wall clock is over the budget. None as budget: no limit. For cpu and ingest only."""
    if budget_s is None or budget_s <= 0 or elapsed_s <= budget_s:
        return None
    return Verdict(
        exits.BUDGET,
        {
            "reason": f"ran {elapsed_s:.0f} s, budget {budget_s:.0f} s",
            "elapsed_s": round(elapsed_s, 1),
            "budget_s": budget_s,
        },
    )


def budget_for(gpu: bool, row_s: float | None, task_s: float | None, default_s: float) -> float | None:
    """The budget that holds: the row's, else the task's, else the default; none on gpu queues."""
    if gpu:
        return None
    return row_s or task_s or default_s
