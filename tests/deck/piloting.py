"""Flying a deck in a test: an app without terminal, a clock that stands, orders that are written down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from textual.pilot import Pilot

from flightdeck.app import FlightDeckApp
from flightdeck.frame import screen_text, settle
from flightdeck.model.deck import Clock
from flightdeck.orders import Order, Outcome
from tests.deck.fleet_data import MONO, NOW, FleetData

Flight = Callable[[FlightDeckApp, Pilot[int]], Awaitable[None]]


class Crew(Pilot[int]):
    """Presses a key and waits until the screen that it may have opened stands."""

    async def press(self, *keys: str) -> None:
        for key in keys:
            await super().press(key)
            await settle(self.app, self)  # type: ignore[arg-type]


class Ledger:
    """An order desk that only writes down; the real one has tests on real databases."""

    def __init__(self) -> None:
        self.orders: list[Order] = []

    def submit(self, order: Order) -> bool:
        self.orders.append(order)
        return True

    def close(self) -> None:
        pass

    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        return [(call.name, call.arguments) for order in self.orders for call in order.calls]


class StandingClock(Clock):
    """Moves only when told to."""

    def __init__(self) -> None:
        self.passed = 0.0
        super().__init__(lambda: MONO + self.passed, lambda: NOW.astimezone(UTC) + timedelta(seconds=self.passed))

    def pass_by(self, seconds: float) -> None:
        self.passed += seconds


def fly(
    fleet: FleetData | None,
    flight: Flight,
    size: tuple[int, int] = (120, 40),
    clock: Clock | None = None,
    faults: bool = False,
    **options: Any,
) -> None:
    """Run ``flight`` on an app that has taken in ``fleet``. The app's ``desk`` is a Ledger unless it is read-only.
    ``faults``: defects that the deck outlives are what it is about; else they are raised."""

    async def run() -> None:
        app = FlightDeckApp(None, clock=clock or StandingClock(), **options)
        async with app.run_test(size=size) as pilot:
            pilot = Crew(app)
            await settle(app, pilot)
            if not app.read_only:
                app.desk = Ledger()  # type: ignore[assignment]
            if fleet is not None:
                app.take_in(fleet.first())
                app.flush()
            await settle(app, pilot)
            await flight(app, pilot)
            if not faults:
                app.faults.check()

    asyncio.run(run())


def ledger(app: FlightDeckApp) -> Ledger:
    assert isinstance(app.desk, Ledger)
    return app.desk


def carried_out(app: FlightDeckApp) -> None:
    """The last order was carried out."""
    order = ledger(app).orders[-1]
    app.operator.outcome(Outcome(order, True, order.text))


def seen(app: FlightDeckApp) -> str:
    return screen_text(app)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)
