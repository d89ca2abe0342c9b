"""Pages: one first and last line for all, keys that work from every one of them, and only there where they mean something."""

from __future__ import annotations

from datetime import timedelta

import pytest
from textual.pilot import Pilot

from flightdeck import actions
from flightdeck.app import FlightDeckApp
from flightdeck.frame import render_frame
from flightdeck.model.fleet import Box
from flightdeck.orders import JobTarget
from flightdeck.screens.asking import AskingSheet
from flightdeck.screens.dialog import ConfirmScreen, PromptScreen
from flightdeck.screens.fleet import BoxPane
from flightdeck.screens.page import Page
from flightdeck.screens.pages import PAGES, TOP
from flightdeck.screens.sheet import Sheet
from flightdeck.widgets.arrange import Place
from flightdeck.widgets.lines import Line, Row
from flightdeck.widgets.scene import Cursor
from tests.deck.fleet_data import MONO, FleetData, hostile_fleet, three_boxes, twelve_boxes, update
from tests.deck.piloting import StandingClock, fly, ledger, seen

NUMBERS = {name: actions.PAGE_KEYS[name] for name in TOP}


def test_every_number_works_from_every_page() -> None:
    """A walk in which each page follows each other one, and help and the same page twice."""
    walk = "1234513524142531543215"

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        for key in walk:
            await pilot.press(key)
            assert NUMBERS[app.screen_page()] == key
            assert len(app.screen_stack) <= 3
            lines = seen(app).split("\n")  # one first and last line for all
            assert f"{key} {app.screen_page()}" in lines[0] and "live" in lines[0] and "14:03" in lines[0]
            assert "quit" in lines[-1] and "help" in lines[-1]
        for key in "245":
            await pilot.press("question_mark", key, key)
            assert NUMBERS[app.screen_page()] == key

    assert {walk[i : i + 2] for i in range(len(walk) - 1)} >= {a + b for a in "12345" for b in "12345" if a != b}
    fly(three_boxes(), flight, size=(80, 24))


def test_escape_leads_back_to_where_one_came_from() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("enter")
        assert app.screen_page() == "box"
        await pilot.press("2", "4")  # numbers take each other's place
        assert [screen.PAGE for screen in app.screen_stack if isinstance(screen, Page)] == ["fleet", "box", "events"]
        await pilot.press("escape")
        assert app.screen_page() == "box"
        await pilot.press("escape", "escape")
        assert app.screen_page() == "fleet"

    fly(three_boxes(), flight)


def test_enter_on_a_job_opens_the_job() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        app.point_at(Cursor("spark", "", "200"))
        await pilot.press("enter")
        assert app.screen_page() == "job"
        app.show_page("job", job_id="100")  # another one takes its place
        await pilot.pause()
        assert [screen.PAGE for screen in app.screen_stack if isinstance(screen, Page)] == ["fleet", "job"]

    fly(three_boxes(), flight)


def test_a_key_of_another_page_does_nothing() -> None:
    """On the page of events no lane is under the cursor: p must not park the one that the fleet page had."""

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("tab", "4", "p", "space", "B", "P")
        assert app.screen_page() == "events" and not ledger(app).orders
        await pilot.press("question_mark", "p", "x", "u")
        assert app.screen_page() == "help" and not ledger(app).orders

    fly(three_boxes(), flight)


def test_a_small_box_keeps_keys_to_itself() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("p")
        assert isinstance(app.screen, ConfirmScreen)
        await pilot.press("1", "4", "f", "s")
        assert isinstance(app.screen, ConfirmScreen) and app.frozen is None
        await pilot.press("escape", "slash", "4", "p")
        assert isinstance(app.screen, PromptScreen)
        await pilot.press("enter")
        assert app.page() is not None and app.page().filter_text == "4p"  # type: ignore[union-attr]

    fly(three_boxes(), flight)


def test_the_command_list_offers_what_the_page_offers() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("4", "ctrl+p")
        text = seen(app)
        assert "Park the lane" not in text and "Fleet" in text
        await pilot.press(*"queues", "enter")
        assert app.screen_page() == "queues"

    fly(three_boxes(), flight)


def test_a_click_on_a_page_tab_shows_the_page() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        head = seen(app).split("\n")[0]
        await pilot.click(offset=(head.index("4 events") + 2, 0))
        assert app.screen_page() == "events"
        await pilot.click(offset=(seen(app).split("\n")[0].index("1 fleet"), 0))
        assert app.screen_page() == "fleet"

    fly(three_boxes(), flight, size=(210, 50))


@pytest.mark.parametrize("name", PAGES)
def test_every_page_survives_everything(name: str) -> None:
    """D3, D5, D19, D20: hostile names, no data at all, a terminal that is too small, and back."""
    arguments = {"box": {"box": "[/]"}, "job": {"job_id": "3"}}.get(name, {})

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        if name != "fleet":
            app.show_page(name, **arguments)
        for key in ("pagedown", "end", "comma"):
            await pilot.press(key)
            assert app.screen_page() == name
        for size in ((1, 1), (120, 40)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert len(seen(app).split("\n")) == size[1]
        app.take_in(update(view={"boxes": [], "events": [{}], "projects": []}))
        app.flush()
        app.tick()
        assert app.is_running

    fly(hostile_fleet(), flight, size=(80, 24))


class Listed(Sheet):
    PAGE = "jobs"

    def rows(self, width: int) -> list[Line]:
        return [Row(width).add(f"row {index}").done() for index in range(100)]

    def heading(self, width: int) -> Line:
        return Row(width).add("HEAD").done()

    def chosen_job(self) -> JobTarget:
        return JobTarget("77", "ingest", "sum", "training", "", "-", "", "failed" if self.index else "queued")


def test_a_list_scrolls_with_its_heading_and_says_how_far() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        app.push_screen(Listed())
        await pilot.pause()
        await pilot.press("end")
        text = seen(app)
        assert "row 99" in text and "row 0 " not in text and "HEAD" in text and "100 of 100" in text
        await pilot.press("g", "pagedown")
        assert isinstance(app.screen, Listed) and 10 < app.screen.index < 40

    fly(three_boxes(), flight)


def test_run_next_and_retry_act_on_the_chosen_job() -> None:
    """``!`` on a queued one asks for no id; ``e`` runs a failed one again; what is not known is not said."""

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        app.push_screen(Listed())
        await pilot.pause()
        await pilot.press("!", "e", "j", "e")
        assert ledger(app).calls() == [
            ("run_next", {"job_id": "77", "requested_by": app.operator.who}),
            ("retry_job", {"job_id": "77", "requested_by": app.operator.who}),
        ]
        await pilot.press("x")
        assert "Cancel job 77 sum (training)?" in seen(app) and "run fails" not in seen(app)

    fly(three_boxes(), flight)


def test_a_failed_node_is_run_again_with_its_run() -> None:
    class Node(Listed):
        def chosen_job(self) -> JobTarget:
            return JobTarget("8", "node", "merge", "cpu", "spark", "p", "12", "failed")

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        app.push_screen(Node())
        await pilot.pause()
        await pilot.press("e")
        assert ledger(app).calls() == [("retry_run", {"run_id": "12", "requested_by": app.operator.who})]

    fly(three_boxes(), flight)


def test_a_model_is_loaded_and_dropped_by_the_command_list() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        app.point_at(Cursor("beelink", "cpu"))
        await pilot.press("ctrl+p", *"load a model", "enter", *"m1", "enter")
        name, arguments = ledger(app).calls()[0]
        assert (name, arguments["action"], arguments["model"]) == ("order_model", "load", "m1")
        assert (arguments["box"], arguments["queue"], arguments["project"]) == ("beelink", "gpu", "lm_content")
        await pilot.press("ctrl+p", *"unload", "enter")
        assert "qwen2.5:7b" in seen(app)
        await pilot.press("escape")

    fly(three_boxes(), flight)


def test_help_leaves_nothing_out_at_120_columns() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("question_mark")
        shown = seen(app)
        for _ in range(3):
            await pilot.press("pagedown")
            shown += seen(app)
        assert "~ " not in shown.replace("    ~ ", "")
        words = " ".join(shown.split())
        for action in actions.on_page(actions.ACTIONS, "fleet"):
            assert action.about.split()[-1] in words, action.id

    fly(three_boxes(), flight)


def test_rows_do_not_change_places_at_every_sample() -> None:
    """D24 for the order of boxes: it is found anew every ten seconds, and at once on ``s``."""
    fleet = twelve_boxes()
    clock = StandingClock()

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("s")
        before = [box.raw for box in app.boxes()]
        for ring in app.deck.histories[before[0]].rings.values():
            ring.last = None
        assert [box.raw for box in app.boxes()] == before
        clock.pass_by(11.0)
        assert app.boxes()[0].raw == before[1] and before[0] != app.boxes()[0].raw

    fly(fleet, flight, clock=clock)


@pytest.mark.parametrize("size", [(80, 24), (300, 100)])
def test_sixteen_gpus_in_a_box_are_drawn(size: tuple[int, int]) -> None:
    """D2: neither blank nor hung."""
    from dataclasses import replace

    from tests.deck.fleet_data import KINDS, box_row, lane

    kind = replace(KINDS["eight"], gpus=16)
    fleet = FleetData([(box_row(name, kind, [lane("gpu", slots=16, busy=3)], []), kind) for name in ("a", "b", "c")])
    text = render_frame(fleet.first(), size).text
    assert "x16" in text and "GPU C" in text
    assert all(len(line) <= size[0] for line in text.split("\n"))


def test_a_toggled_lane_moves_nothing_in_a_row() -> None:
    """D18: in the one-line form of a box every lane's word has cells of its own."""

    def frame(**over: object) -> list[str]:
        fleet = twelve_boxes()
        fleet.boxes[1][0]["lanes"][0].update(over)
        return render_frame(fleet.first(), (150, 30), read_only=False).text.split("\n")

    on = next(line for line in frame() if line.startswith("  spark "))
    off = next(line for line in frame(state="parked", desired="off") if line.startswith("  spark "))
    assert "PARKED" in off and len(on) == len(off)
    assert on.index("cpu") == off.index("cpu") and on.index("gpu ") == off.index("gpu ")


def test_of_a_hundred_boxes_only_those_in_sight_are_drawn() -> None:
    """One sample of one box: its row if it can be seen, nothing else; few widgets however many boxes."""
    from tests.deck.fleet_data import KINDS, NOW, box_row, lane, sample

    kind = KINDS["rtx"]
    fleet = FleetData([(box_row(f"rack{i:03d}", kind, [lane("gpu")], []), kind) for i in range(100)])
    drawn: list[str] = []

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        app.take_in(update(view=fleet.view(), samples=tuple(sample(row["box"], k, NOW) for row, k in fleet.boxes)))
        app.flush()
        await pilot.pause()
        assert "box 1 of 100" in seen(app) and len(list(app.screen.walk_children())) < 60
        page = app.fleet_screen()
        assert page is not None
        original = page._draw_pane

        def counting(pane: BoxPane, place: Place, box: Box) -> None:
            drawn.append(box.raw)
            original(pane, place, box)

        page._draw_pane = counting  # type: ignore[method-assign]
        for number in (3, 99, 5, 80):
            app.take_in(update(samples=(sample(f"rack{number:03d}", kind, NOW + timedelta(seconds=2)),)))
            app.flush()
        assert drawn == ["rack003", "rack005"]
        app.point_at(Cursor("rack060"))
        await pilot.press("l")
        assert "box 62 of 100" in seen(app) and "rack061" in seen(app) and "rack000" not in seen(app)

    fly(None, flight)


def test_a_list_is_grey_as_soon_as_the_database_is_away() -> None:
    """D13: and it is not drawn again for every sample that some box sends."""
    fleet = three_boxes()

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        page = Listed()
        app.push_screen(page)
        await pilot.pause()
        drawn: list[int] = []
        original = page.body
        page.body = lambda width, height: drawn.append(height) or original(width, height)  # type: ignore[method-assign, func-returns-value]
        app.take_in(fleet.tick(2))
        app.flush()
        assert not drawn
        app.take_in(update(state="lost", at=None, mono=MONO, error="gone", next_try_s=1.0, lost_since_mono=MONO))
        app.flush()
        assert page.view._colors.greyed and drawn == [36]
        await pilot.pause()
        assert "DATABASE LOST" in seen(app)

    fly(fleet, flight)


def test_a_page_without_a_middle_cannot_be_made() -> None:
    """What every page must give is told when it is made, not when it is drawn."""
    for page in (Page, AskingSheet):
        with pytest.raises(TypeError, match="abstract"):
            page()


@pytest.mark.parametrize(("key", "page"), [("2", "jobs"), ("4", "events"), ("5", "queues")])
def test_a_list_asks_of_the_project_of_the_tab_and_nothing_while_it_is_covered(key: str, page: str) -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press(key)
        top = app.screen
        assert isinstance(top, AskingSheet) and page in top.asks
        first = top.asks[page]
        assert first.arguments["project"] is None and first.live
        await pilot.press("n")
        assert not first.live and top.asks[page].arguments["project"] == app.scene.project is not None
        asked = list(top.asks.values())
        await pilot.press("question_mark")
        assert not top.asks and not any(ask.live for ask in asked)
        await pilot.press("escape")
        assert app.screen is top and top.asks[page].live

    fly(three_boxes(), flight, read_only=True)
