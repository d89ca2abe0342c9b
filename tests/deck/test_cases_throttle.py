"""Throttling that is none: noise of counters, seconds that nobody knows."""

from __future__ import annotations

from datetime import timedelta

import pytest

from engine.telemetry.sample import BoxSample
from flightdeck.alerts import Alerts
from flightdeck.model.deck import Deck
from flightdeck.model.traces import History
from tests.deck.fleet_data import KINDS, MONO, NOW, FleetData, box_row, lane, update
from tests.deck.piloting import StandingClock


@pytest.mark.parametrize(
    ("ms", "letter"), [(0.0, "."), (60.0, "."), (99.0, "."), (100.0, "T"), (2000.0, "T"), (None, ".")]
)
def test_0_0_seconds_of_thermal_violation_are_no_letter(ms: float | None, letter: str) -> None:
    """D9: under a tenth of a second is the grain of the counter; from there on it counts."""
    history = History()
    history.add(BoxSample(box="attic", at=NOW, thermal_ms=ms, power_ms=0.0, brakes=0))
    slot = int(NOW.timestamp() // 5)
    assert history.throttle.cell(slot, 1) == letter


def test_grains_of_a_counter_do_not_add_up_to_an_alert_of_a_calm_box() -> None:
    """D9: 60 ms in each of thirty samples are 1.8 s of a minute: under every class's level."""
    clock = StandingClock()
    deck, alerts = Deck(clock), Alerts()
    fleet = FleetData([(box_row("attic", KINDS["rtx"], [lane("gpu")], []), KINDS["rtx"])])
    for _ in range(40):
        clock.pass_by(2.0)
        at = NOW + timedelta(seconds=clock.passed)
        sample = BoxSample(box="attic", at=at, thermal_ms=60.0)
        news = update(at=at, mono=MONO + clock.passed, view=fleet.view(), samples=(sample,))
        deck.apply(news)
        alerts.take(news, deck)
        assert alerts.look(deck) == []
