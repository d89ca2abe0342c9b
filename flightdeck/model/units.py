"""Numbers as fixed cells: the engine's (engine/display/units.py)."""

from __future__ import annotations

from engine.display.units import NA, age, ago, count, gigabytes, gigahertz, known, number, percent, rate, seconds, watts

__all__ = [
    "NA",
    "age",
    "ago",
    "count",
    "gigabytes",
    "gigahertz",
    "known",
    "number",
    "percent",
    "rate",
    "seconds",
    "watts",
]
