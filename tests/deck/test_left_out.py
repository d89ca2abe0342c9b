"""Frames that a slow link could not take: afterwards only their cells are drawn, as they are then."""

from __future__ import annotations

import os
import pty
import time
import tty
from collections.abc import Callable, Iterator

import pytest
from rich.console import RenderableType
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.geometry import Region
from textual.pilot import Pilot

from flightdeck.app import FlightDeckApp
from flightdeck.frame import settle
from flightdeck.term.outlet import Outlet
from flightdeck.widgets.lines import LineView
from tests.deck.fleet_data import four_boxes
from tests.deck.piloting import fly


@pytest.fixture
def late() -> Iterator[Outlet]:
    """The way to a terminal whose answer is overdue."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    outlet = Outlet(slave, lambda whole: None, lambda: b"", lambda: 100.0)
    outlet.answers.came(0.0)
    outlet.answers.ask(90.0)
    yield outlet
    os.close(master)
    os.close(slave)


async def until(pilot: Pilot[int], seen: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60.0
    while not seen():
        assert time.monotonic() < deadline
        await pilot.pause()


def placed(app: FlightDeckApp) -> LineView:
    """Some view that stands on the screen."""
    return next(view for view in app.screen.query(LineView) if view.region.width > 10)


def sent_by(app: FlightDeckApp, monkeypatch: pytest.MonkeyPatch) -> list[RenderableType]:
    """The frames that leave, from now on; the size stays."""
    monkeypatch.setattr(app, "look_at_size", lambda: None)
    sent: list[RenderableType] = []
    monkeypatch.setattr(app, "_send", lambda screen, frame: None if frame is None else sent.append(frame))
    return sent


def test_a_small_frame_that_was_left_out_does_not_cost_a_whole_page(
    late: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D23: a page is 14 kB, three seconds of a slow link, in which no key is answered."""

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        sent = sent_by(app, monkeypatch)
        view = placed(app)
        app.outlet = late
        view.refresh(Region(3, 0, 5, 1))
        await until(pilot, lambda: app._missing)
        assert not sent
        late.answered()
        app.output_flows(False)
        (frame,) = sent
        assert isinstance(frame, ChopsUpdate)
        at = view.region
        drawn = {(x, y) for y, start, end in frame.spans for x in range(start, end)}
        assert drawn >= {(at.x + x, at.y) for x in range(3, 8)}
        assert len(drawn) < app.size.width * app.size.height / 4
        assert not app._missing

    fly(four_boxes(), flight)


def test_a_page_that_was_left_out_is_drawn_whole(late: Outlet, monkeypatch: pytest.MonkeyPatch) -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        sent = sent_by(app, monkeypatch)
        app.outlet = late
        placed(app).refresh(Region(3, 0, 5, 1))
        await until(pilot, lambda: app._missing)
        await pilot.press("2")
        await settle(app, pilot)
        await until(pilot, lambda: app.repaint_due)
        assert not sent
        late.answered()
        app.output_flows(False)
        await until(pilot, lambda: sent)
        assert isinstance(sent[0], LayoutUpdate)

    fly(four_boxes(), flight)


def test_what_a_page_missed_is_forgotten_when_another_is_on_top(late: Outlet, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is drawn whole when somebody comes back to it."""

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        sent = sent_by(app, monkeypatch)
        app.outlet = late
        placed(app).refresh(Region(3, 0, 5, 1))
        await until(pilot, lambda: app._missing)
        late.answered()
        await pilot.press("2")
        await until(pilot, lambda: any(isinstance(frame, LayoutUpdate) for frame in sent))
        drawn = len(sent)
        app.output_flows(False)
        assert len(sent) == drawn and not app._missing and not app.repaint_due
        await pilot.press("escape")
        await until(pilot, lambda: any(isinstance(frame, LayoutUpdate) for frame in sent[drawn:]))

    fly(four_boxes(), flight)
