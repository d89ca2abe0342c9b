"""Rows of the flight recorder's two tables as samples. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from engine.store.db import Row
from engine.telemetry.sample import BOX_METRICS, GPU_METRICS, BoxSample, GpuSample

Key = tuple[str, str, datetime]  # box, tier, time
AHEAD_S = 60.0  # a row that is further ahead of the database's clock is not read before its time
MOST = 1e15  # no reading is beyond it; sums of such numbers make PostgreSQL refuse the whole question


def summed(column: str) -> str:
    """SQL: the sum of a column over what may be a reading (NaN and infinity are none)."""
    return f"sum(case when {column} <= {MOST:.0f} then {column} end)"


def assemble(
    box_rows: Sequence[Row], gpu_rows: Sequence[Row], together: Mapping[Key, tuple[GpuSample, ...]] | None = None
) -> list[BoxSample]:
    """Rows of the two tables as samples, oldest first, their GPUs by index.

    ``together``: what stands for all GPUs of a row that has none among ``gpu_rows``.
    """
    instead = together or {}
    cards: dict[Key, list[GpuSample]] = {}
    if gpu_rows:
        names, lows, highs = _columns(gpu_rows[0], GPU_METRICS)
        for row in gpu_rows:
            card = {name: row[name] for name in names}
            if row["tier"] == "minute":
                card["low"], card["high"] = _ends(row, lows), _ends(row, highs)
            cards.setdefault((row["box"], row["tier"], row["at"]), []).append(GpuSample(**card))
    for some in cards.values():
        if len(some) > 1:
            some.sort(key=lambda card: card.gpu_index)
    if not box_rows:
        return []
    names, lows, highs = _columns(box_rows[0], (*BOX_METRICS, "sensors"))
    samples = []
    for row in box_rows:
        box = {name: row[name] for name in names}
        if row["tier"] == "minute":
            box["low"], box["high"] = _ends(row, lows), _ends(row, highs)
        key = row["box"], row["tier"], row["at"]
        gpus = tuple(cards[key]) if key in cards else instead.get(key, ())
        samples.append(BoxSample(row["box"], row["at"], row["tier"], gpus=gpus, **box))
    samples.sort(key=lambda sample: sample.at)
    return samples


def _columns(row: Row, metrics: Sequence[str]) -> tuple[list[str], list[tuple[str, str]], list[tuple[str, str]]]:
    """Which columns a row has: the plain ones, and (column, metric) of the lower and of the upper ends."""
    return (
        [name for name in metrics if name in row],
        [(f"{name}_min", name) for name in metrics if f"{name}_min" in row],
        [(f"{name}_max", name) for name in metrics if f"{name}_max" in row],
    )


def _ends(row: Row, columns: Sequence[tuple[str, str]]) -> dict[str, float]:
    return {metric: value for column, metric in columns if (value := row[column]) is not None}
