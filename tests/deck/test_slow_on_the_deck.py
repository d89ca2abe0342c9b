"""The flag "slow without a reason" where people see it: cards, rows, the box page."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from engine.telemetry import slow
from flightdeck.frame import Shot, render_frames
from tests.deck.fleet_data import MONO, NOW, four_boxes, update


def test_slow_without_a_reason_is_said_in_words() -> None:
    """D29: on the card, in the row, on the box page."""
    fleet = four_boxes()
    first = fleet.first()
    newest = next(rows[-1] for box, rows in first.history.items() if box == "spark")
    gpu = newest.gpus[0]
    flag = slow.Slow(gpu.gpu_index, gpu.gpu_uuid, NOW - timedelta(minutes=2), 612.0, 2418.0)
    sample = slow.marked(replace(newest, at=NOW + timedelta(seconds=2)), [flag])
    shots = {
        "cards": Shot(size=(210, 50)),
        "rows": Shot(size=(80, 24)),
        "box": Shot("box", {"box": "spark"}, size=(120, 40)),
    }
    frames = render_frames([first, update(at=sample.at, mono=MONO + 2, samples=(sample,))], shots, svg=False)
    assert "slow without a reason" in frames["cards"].text
    (row,) = [line for line in frames["rows"].text.split("\n") if "spark " in line and "CPU" in line]
    assert "SLOW" in row
    assert "slow without a reason: 612 of 2418 MHz" in frames["box"].text
    calm = render_frames(first, {"calm": Shot(size=(210, 50))}, svg=False)["calm"]
    assert "slow without" not in calm.text
