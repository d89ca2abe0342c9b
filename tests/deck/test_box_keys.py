"""Flying the page of one box: keys, mouse, ticks, answers that come late or not at all."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from textual.pilot import Pilot

from flightdeck.app import FlightDeckApp
from flightdeck.reader import Canned, question_key
from flightdeck.screens.box import BoxScreen
from flightdeck.widgets.scene import Cursor
from tests.deck.box_data import answers, drawn_page, only, page, still
from tests.deck.fleet_data import KINDS, MONO, NOW, FleetData, box_row, lane, three_boxes, twelve_boxes, update
from tests.deck.piloting import StandingClock, fly, ledger, seen


def test_sixteen_gpus_can_all_be_reached_at_80x24() -> None:
    """D2."""
    kind = replace(KINDS["eight"], gpus=16)
    fleet = FleetData([(box_row("rack", kind, [lane("gpu")], []), kind)])

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("enter")
        for index in range(16):
            tabs = seen(app).split("\n")[2]
            assert f" {index:>2} " in tabs and len(tabs) <= 80
            assert f"GPU {index}  NVIDIA H200" in seen(app)
            await pilot.press("g")
        assert "GPU 0  NVIDIA H200" in seen(app)  # round and round
        await pilot.press("G")
        assert "GPU 15  NVIDIA H200" in seen(app)

    fly(fleet, flight, (80, 24), reader=Canned(answers(fleet, "rack")))


def test_keys_of_the_page() -> None:
    fleet = three_boxes()

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("right", "enter")  # spark
        assert isinstance(app.screen, BoxScreen) and "spark" in seen(app).split("\n")[1]
        await pilot.press("j")
        assert app.scene.cursor == Cursor("spark", "gpu")
        await pilot.press("j", "j", "j")  # to the job, and no further
        assert app.scene.cursor.job == "200" and app.scene.cursor.box == "spark"
        await pilot.press("k", "k", "p")  # its first lane
        assert [call[0] for call in ledger(app).calls()] == ["park"]
        first = seen(app).split("\n")[6]
        await pilot.press("c")
        assert seen(app).split("\n")[6] != first
        await pilot.press("C")
        assert seen(app).split("\n")[6] == first
        await pilot.press("g")
        assert "this box has one GPU" in seen(app)
        await pilot.press("l")
        assert "spark2" in seen(app).split("\n")[1]
        await pilot.press("h", "h")
        assert "beelink" in seen(app).split("\n")[1]
        await pilot.press("escape")
        assert app.screen is app.fleet_screen()

    fly(fleet, flight, (120, 40), reader=Canned(answers(fleet, "spark")))


def test_a_click_chooses_a_gpu_or_a_lane() -> None:
    fleet = only(twelve_boxes(), "hangar")

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("enter")
        tabs = seen(app).split("\n")[2]
        await pilot.click(offset=(tabs.index(" 6 ") + 1, 2))
        await pilot.pause()
        assert "GPU 6  NVIDIA H200" in seen(app)
        row = next(y for y, line in enumerate(seen(app).split("\n")) if "train_lora" in line and "40%" in line)
        await pilot.click(offset=(100, row))
        await pilot.pause()
        assert app.scene.cursor.job == "404"

    fly(fleet, flight, (120, 40), reader=Canned(answers(fleet, "hangar")))


def test_an_ordinary_tick_draws_no_chart_again() -> None:
    fleet = only(three_boxes(), "spark")
    clock = StandingClock()

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("enter")
        assert isinstance(app.screen, BoxScreen)
        view = app.screen.box_view
        steady = app.deck.histories["spark"].latest
        assert steady is not None and view.cache.drawn > 0
        drawn = view.cache.drawn
        for seconds in (0.2, 0.4, 0.6):
            clock.passed = seconds
            app.take_in(update(at=NOW + timedelta(seconds=seconds), mono=MONO + seconds,
                               samples=(replace(steady, at=NOW + timedelta(seconds=seconds)),)))  # fmt: skip
            app.flush()
            app.tick()
        await pilot.pause()
        assert view.cache.drawn == drawn
        hot = replace(steady, at=NOW + timedelta(seconds=0.8), gpus=(replace(steady.gpus[0], temp_c=99.0),))
        app.take_in(update(at=NOW + timedelta(seconds=0.8), mono=MONO + 0.8, samples=(hot,)))
        app.flush()
        await pilot.pause()
        assert view.cache.drawn == drawn + 1  # the one chart that looks different
        assert "GPU C  99   peak 99" in seen(app)

    fly(fleet, flight, (120, 40), clock, reader=Canned(answers(fleet, "spark")))


def test_an_answer_about_another_box_changes_nothing() -> None:
    fleet = three_boxes()
    late: list[Callable[[], None]] = []

    class Slow(Canned):
        def ask(self, name: str, arguments: Any, take: Any, every_s: Any = None, owner: Any = None) -> Any:
            ask = super().ask(name, arguments, take, every_s, owner)
            if name == "box_now" and arguments["box"] == "beelink":
                late.append(lambda: self._deliver(ask))
            return ask

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("enter", "l")
        assert "spark" in seen(app).split("\n")[1]
        before = seen(app)
        assert late
        for deliver in late:
            deliver()
        app.draw_now()
        await pilot.pause()
        assert seen(app) == before

    known = answers(fleet, "spark") | {
        question_key("box_now", {"box": "beelink"}): {
            "facts": {"kernel": "WRONG"},
            "sensors": {"zones": {"WRONG": 1.0}},
        }
    }
    fly(fleet, flight, (120, 40), reader=Slow(known))


def test_questions_that_fail_say_so_and_the_rest_stands() -> None:
    text = page(three_boxes(), "spark", answers={})
    assert "JOBS  not asked: there is no database here" in text
    assert re.search(r"GPU C  \d\d   peak \d\d", text)  # one GPU: the overview's own trace
    assert "GPU C worst of 8" in drawn_page(still(twelve_boxes(), "hangar", read=False))
