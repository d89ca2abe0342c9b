"""``train``: a small trainer that always gives the same answer. For first steps, demonstrations and checks of a fleet.

It fits a line to made-up points by gradient descent, so the loss falls step by step; the time per step is the caller's.
"""

from __future__ import annotations

import math
import time
from typing import Any, Protocol

from engine.errors import BadInput

MAX_STEPS = 1_000_000
MAX_SAMPLES = 100_000
MAX_DELAY_S = 3600.0
CURVE = 50  # points of the loss curve in the result, at most
_DEFAULTS: dict[str, Any] = {"steps": 10, "step_delay_seconds": 0.0, "samples": 100}
_RATE = 0.1
_SLICE_S = 0.1  # a cancel is seen within this


class Reports(Protocol):
    """What this task needs of its ``ctx``."""

    def beat(self) -> None: ...
    def progress(self, pct: float | None = None, text: str | None = None) -> None: ...
    def cancelled(self) -> bool: ...


def check_args(args: dict[str, Any]) -> tuple[int, float, int]:
    """(steps, step_delay_seconds, samples) with their defaults. Raises BadInput that names the argument."""
    unknown = sorted(set(args) - set(_DEFAULTS))
    if unknown:
        raise BadInput(f"train: unknown argument {unknown[0]!r} (known: {', '.join(_DEFAULTS)})")
    given = {**_DEFAULTS, **args}
    steps = _whole("steps", given["steps"], MAX_STEPS)
    samples = _whole("samples", given["samples"], MAX_SAMPLES)
    delay = given["step_delay_seconds"]
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay <= MAX_DELAY_S:
        raise BadInput(f"train: step_delay_seconds must be a number from 0 to {MAX_DELAY_S:g}, got {delay!r:.100}")
    return steps, float(delay), samples


def _whole(name: str, value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise BadInput(f"train: {name} must be a whole number from 1 to {most:,}, got {value!r:.100}")
    return value


def train(ctx: Reports, **args: Any) -> dict[str, Any]:
    """Fit ``y = weight x + bias`` to ``samples`` seeded points in ``steps`` steps, ``step_delay_seconds`` apart.

    The same arguments give the same result on every machine. Reports progress; stops early when it is cancelled.
    """
    steps, delay_s, samples = check_args(args)
    # The sums are all that gradient descent needs, so a step costs the same however many samples there are. They are
    # exact ones: the plain sum() of one release of Python is not that of the next.
    xs = [2.0 * i / samples - 1.0 for i in range(samples)]
    ys = [3.0 * x - 1.0 + 0.1 * noise for x, noise in zip(xs, _noise(samples), strict=True)]
    x1, y1 = math.fsum(xs) / samples, math.fsum(ys) / samples
    x2, y2 = math.fsum(x * x for x in xs) / samples, math.fsum(y * y for y in ys) / samples
    xy = math.fsum(x * y for x, y in zip(xs, ys, strict=True)) / samples
    weight = bias = 0.0
    every = -(-steps // CURVE)
    curve: list[float] = []
    done = 0
    for step in range(steps):
        _pause(ctx, delay_s)
        if ctx.cancelled():
            break
        loss = weight * weight * x2 + bias * bias + y2 + 2 * (weight * bias * x1 - weight * xy - bias * y1)
        if step % every == 0:
            curve.append(round(loss, 9))
        slope, shift = weight * x2 + bias * x1 - xy, weight * x1 + bias - y1
        weight, bias = weight - 2 * _RATE * slope, bias - 2 * _RATE * shift
        done = step + 1
        ctx.progress(100.0 * done / steps, f"step {done} of {steps}, loss {loss:.4f}")
    loss = weight * weight * x2 + bias * bias + y2 + 2 * (weight * bias * x1 - weight * xy - bias * y1)
    return {
        "steps": done,
        "samples": samples,
        "loss": round(loss, 9),
        "losses": curve,
        "weights": [round(weight, 9), round(bias, 9)],
    }


def _noise(count: int) -> list[float]:
    """``count`` numbers from -0.5 to 0.5: a generator that no library's next release changes."""
    state, found = count, []
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        found.append(state / 2**31 - 0.5)
    return found


def _pause(ctx: Reports, seconds: float) -> None:
    """Wait, beating, until the time is over or a cancel came."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not ctx.cancelled():
        ctx.beat()
        time.sleep(min(left, _SLICE_S))
