"""The throttle strip: for each minute the letter of the gravest cause that held a box back, and seconds per cause. Pure.

Causes overlap and are never added up. ``.`` nothing, blank not sampled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from engine.display.units import known
from engine.telemetry.sample import BoxSample

CAUSES = "PTBCS"
SEVERITY = "BTPCS"  # which letter a cell shows when several causes share it
NAMES = {"P": "power cap", "T": "heat", "B": "brake", "C": "cpu", "S": "sync boost"}
HIDDEN_MS = 100.0  # less than a tenth of a second is noise of the counters
MINUTE_S = 60


@dataclass(frozen=True)
class Strip:
    """``letters``: one a minute, the newest last. ``seconds`` by cause, ``brakes``: None where nobody tells. ``sampled``:
    some of it comes from a mask and is a lower bound."""

    letters: str
    seconds: Mapping[str, float | None]
    brakes: int | None
    sampled: bool


def causes(sample: BoxSample) -> tuple[dict[str, float], float | None]:
    """Milliseconds per cause of one row, worst over its GPUs, and brakes; what nobody tells is left out, brakes None."""
    gpus = sample.gpus
    found = {
        "P": sample.power_ms if known(sample.power_ms) else worst_of(gpu.sw_power_ms for gpu in gpus),
        "T": sample.thermal_ms
        if known(sample.thermal_ms)
        else worst_of(value for gpu in gpus for value in (gpu.sw_thermal_ms, gpu.hw_thermal_ms)),
        "B": worst_of(gpu.hw_brake_ms for gpu in gpus),
        "S": worst_of(gpu.sync_boost_ms for gpu in gpus),
        "C": sample.cpu_throttle_ms,
    }
    brakes = sample.brakes if known(sample.brakes) else worst_of(gpu.brakes for gpu in gpus)
    ms = {cause: max(0.0, value) for cause, value in found.items() if value is not None and known(value)}
    return ms, None if brakes is None else float(brakes)


def worst_of(values: Iterable[float | int | None]) -> float | None:
    """The largest finite number; None when there is none."""
    found = [value for value in values if value is not None]
    if not found:
        return None
    if -math.inf < sum(found) < math.inf:
        return float(max(found))
    return max((float(value) for value in found if known(value)), default=None)


def strip(samples: Sequence[BoxSample], now: datetime, minutes: int = 60) -> Strip:
    """The last ``minutes`` minutes of one box; the last cell is the minute that is not over."""
    last = int(now.timestamp()) // MINUTE_S
    cells: list[dict[str, float] | None] = [None] * minutes
    braked = [0.0] * minutes
    total: dict[str, float | None] = dict.fromkeys(CAUSES)
    brakes: float | None = None
    masked = False
    for sample in samples:
        at = int(sample.at.timestamp()) // MINUTE_S - last + minutes - 1
        if not 0 <= at < minutes:
            continue
        ms, own_brakes = causes(sample)
        cell = cells[at]
        if cell is None:
            cell = cells[at] = {}
        for cause, value in ms.items():
            cell[cause] = cell.get(cause, 0.0) + value
            total[cause] = (total[cause] or 0.0) + value
        if own_brakes is not None:
            braked[at] += own_brakes
            brakes = (brakes or 0.0) + own_brakes
        masked = masked or any(gpu.throttle_source == "mask" for gpu in sample.gpus)
    return Strip(
        "".join(_letter(cell, braked[at]) for at, cell in enumerate(cells)),
        {cause: None if value is None else value / 1000.0 for cause, value in total.items()},
        None if brakes is None else round(brakes),
        masked,
    )


def _letter(cell: Mapping[str, float] | None, brakes: float) -> str:
    if cell is None:
        return " "
    if brakes >= 0.5:
        return "B"
    return next((cause for cause in SEVERITY if cell.get(cause, 0.0) >= HIDDEN_MS), ".")


def runs(letters: str) -> list[tuple[str, str]]:
    """The same as (letter, text) of equal neighbours: what is drawn in one colour."""
    found: list[tuple[str, str]] = []
    for letter in letters:
        if found and found[-1][0] == letter:
            found[-1] = (letter, found[-1][1] + letter)
        else:
            found.append((letter, letter))
    return found
