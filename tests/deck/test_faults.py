"""A defect of ours in one page: the deck outlives it, says so and tells the details when it ends."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from flightdeck.app import FlightDeckApp
from flightdeck.frame import settle
from flightdeck.screens import fleet as fleet_screen
from flightdeck.screens.queues import QueuesScreen
from flightdeck.widgets.box_card import card
from tests.deck.fleet_data import three_boxes
from tests.deck.piloting import fly, seen


def test_a_page_that_cannot_be_drawn_takes_nothing_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says in one line what failed, keys and the other pages go on, and it is there again when it can be drawn."""

    def broken(*_: object) -> list[object]:
        raise KeyError("a planted \x1b[31m fault")

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(QueuesScreen, "body", broken)
            await pilot.press("5")
            assert "This page cannot be drawn: KeyError" in seen(app) and "a planted" in seen(app)
            assert "5 queues" in seen(app).splitlines()[0] and "esc" in seen(app).splitlines()[-1]
            await pilot.press("1")
            assert "beelink" in seen(app) and "cannot be drawn" not in seen(app)
            await pilot.press("5")
            await pilot.resize_terminal(20, 3)
            await settle(app, pilot)
            assert seen(app).startswith("flightdeck: 20x3 is") and "cannot" not in seen(app)
            await pilot.resize_terminal(120, 40)
            await settle(app, pilot)
        app.draw_now()
        await settle(app, pilot)
        assert "cannot be drawn" not in seen(app)
        report = app.faults.report()
        assert report.count("Traceback") == 1 and "\x1b" not in report and "in broken" in report
        assert app.return_code is None and app.faults.count >= 2

    fly(three_boxes(), flight, faults=True)


def test_a_box_that_cannot_be_drawn_leaves_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(scene: object, box: object, *size: int) -> object:
        if getattr(box, "raw", "") == "spark":
            raise ZeroDivisionError("of spark")
        return card(scene, box, *size)  # type: ignore[arg-type]

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        monkeypatch.setattr(fleet_screen, "card", odd)
        app.draw_now()
        await settle(app, pilot)
        assert "spark: cannot be drawn: ZeroDivisionError" in seen(app)
        assert "comfyui" not in seen(app) and "compute_storm" in seen(app) and "spark2" in seen(app)

    fly(three_boxes(), flight, size=(150, 40), faults=True)


def test_a_key_or_an_update_that_fails_is_said_and_the_deck_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("planted")

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(app.looker, "do_freeze", fails)
            await pilot.press("f")
            assert "failed: ValueError: planted" in seen(app)
        app.guarded(fails)
        await pilot.press("f")
        assert "FROZEN" in seen(app) and app.return_code is None and app.faults.count == 2

    fly(three_boxes(), flight, faults=True)
