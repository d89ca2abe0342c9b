"""Alerts and profiles on a deck that is flown: line of events, header, the key that says "seen", the bell, a key map."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from textual.pilot import Pilot

from flightdeck.app import FlightDeckApp
from flightdeck.profile import Profile
from tests.deck.fleet_data import MONO, NOW, FleetData, four_boxes, three_boxes, twelve_boxes, update
from tests.deck.piloting import StandingClock, fly, seen


def failed(number: int) -> dict[str, Any]:
    return {
        "id": str(number), "at": NOW.isoformat(), "family": "node", "job_id": "9", "run_id": str(number), "box": "spark",
        "queue": "gpu", "project": "", "type": "failed", "cause": None, "text": "node render failed: no disk",
    }  # fmt: skip


def fail(app: FlightDeckApp, clock: StandingClock, fleet: FleetData, number: int) -> None:
    clock.pass_by(2.0)
    fleet.events = [failed(number), *fleet.events]
    app.take_in(update(at=NOW + timedelta(seconds=clock.passed), mono=MONO + clock.passed, view=fleet.view()))
    app.flush()


def test_an_alert_stands_on_the_line_of_events_until_it_is_seen() -> None:
    fleet, clock = three_boxes(), StandingClock()

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        assert "alert" not in seen(app)
        fail(app, clock, fleet, 7)
        text = seen(app).split("\n")
        assert "1 alert" in text[0] and text[-2].startswith(" ! RUN FAILED 7: node render failed: no disk  (a: seen)")
        clock.pass_by(9.0)
        app.tick()
        assert "RUN FAILED" in seen(app).split("\n")[-2], "it does not go by itself"
        await pilot.press("a")
        text = seen(app).split("\n")
        assert "alert" not in text[0] and "1 alert seen" in text[-2]
        clock.pass_by(10.0)
        app.tick()
        assert "RUN FAILED" not in seen(app)
        await pilot.press("a")
        assert "no alerts" in seen(app)

    fly(fleet, flight, (210, 50), clock=clock, read_only=True)


def test_alerts_cover_no_data() -> None:
    """They stand on the line of events; every other row is as it would be without."""
    fleet = twelve_boxes()

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        before = seen(app).split("\n")
        assert "BOX DOWN" in before[-2]
        app.alerts.seen()
        app.draw_now()
        after = seen(app).split("\n")
        assert "BOX DOWN" not in after[-2] and before[1:-2] == after[1:-2]

    fly(fleet, flight, (120, 40))


def test_the_bell_rings_for_what_is_new_and_only_where_it_is_wanted() -> None:
    rung: list[str] = []

    def count(name: str, profile: Profile) -> None:
        fleet, clock = four_boxes(), StandingClock()

        async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
            app.bell = lambda: rung.append(name)  # type: ignore[method-assign]
            fail(app, clock, fleet, 8)

        fly(fleet, flight, clock=clock, profile=profile)

    count("quiet", Profile())
    assert rung == []
    count("loud", Profile(bell=True))
    assert rung == ["loud"]


def test_what_was_wrong_before_the_deck_opened_rings_no_bell() -> None:
    rung: list[str] = []

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        app.bell = lambda: rung.append("bell")  # type: ignore[method-assign]
        app.take_in(twelve_boxes().first())
        assert app.alerts.unseen() and rung == []

    fly(None, flight, profile=Profile(bell=True))


def test_alerts_go_on_while_the_picture_stands() -> None:
    fleet, clock = three_boxes(), StandingClock()

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("f")
        fail(app, clock, fleet, 9)
        text = seen(app)
        assert "FROZEN" in text and "RUN FAILED 9" in text

    fly(fleet, flight, (160, 40), clock=clock)


def test_a_profile_sets_keys_order_and_window() -> None:
    profile = Profile(sort="heat", window_s=21_600, keys={"freeze": ("F",), "seen": ("f",)})

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        text = seen(app)
        assert " 6h " in text.split("\n")[0] and "by heat" in text.split("\n")[-1]
        await pilot.press("f")
        assert "FROZEN" not in seen(app) and "no alerts" in seen(app)
        await pilot.press("F")
        assert "FROZEN" in seen(app)
        await pilot.press("question_mark")
        rows = [row for row in seen(app).split("\n") if "Freeze the picture" in row]
        assert not rows or rows[0].split()[0] == "F", "help tells the profile's key"

    fly(three_boxes(), flight, profile=profile)


def test_the_events_page_lists_open_alerts_and_says_which_were_seen() -> None:
    """D2: many of them take a third of the page at most, and say how many more there are."""
    fleet = twelve_boxes()
    for row, _ in fleet.boxes:
        fleet.dead_since[row["box"]] = 700.0
        for one in row["lanes"]:
            one["last_seen_s"] = 700.0

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("4")
        text = seen(app).split("\n")
        down = [row for row in text[2:-2] if "BOX DOWN" in row]
        assert all(row.startswith(" ! BOX DOWN") for row in down) and 4 <= len(down) <= 12
        assert any("more alerts" in row for row in text)
        await pilot.press("a")
        assert " ! BOX DOWN" not in seen(app) and "   BOX DOWN" in seen(app)

    fly(fleet, flight, (120, 40))
