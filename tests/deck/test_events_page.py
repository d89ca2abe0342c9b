"""The page of events: live at the top, as far back as one pages, by kind and by words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot

from engine.queue.timeline import KINDS as ENGINE_KINDS
from flightdeck.app import FlightDeckApp
from flightdeck.frame import render_frame
from flightdeck.model.happenings import KINDS, Happening, read_happenings, with_newer
from flightdeck.reader import Answer, Canned
from flightdeck.screens.events import EventsScreen
from flightdeck.widgets import event_table
from flightdeck.widgets.lines import UNICODE, plain
from tests.deck.fleet_data import HOSTILE, NOW, four_boxes
from tests.deck.jobs_data import ANSWERS, EVENTS, ago, answers
from tests.deck.piloting import fly, ledger, seen


def event(number: int, kind: str = "failed", **over: Any) -> dict[str, Any]:
    return {
        "source": "job",
        "id": str(number),
        "at": ago(1000 - number),
        "type": kind,
        "text": f"event {number}",
        "job_id": str(number),
    } | over


def answer(events: list[dict[str, Any]], more: bool = False) -> Answer:
    behind = {"job": events[-1]["id"], "control": "1"} if more and events else None
    return Answer("events", {}, {"events": events, "more": more, "next": behind, "whole": True}, "", 0.0)


def page(app: FlightDeckApp) -> EventsScreen:
    assert isinstance(app.screen, EventsScreen)
    return app.screen


def rows(*numbers: int) -> tuple[Happening, ...]:
    return read_happenings({"events": [event(number) for number in numbers]}).events


def test_the_deck_and_the_engine_know_the_same_kinds() -> None:
    assert {name for name, _ in KINDS} == set(ENGINE_KINDS)


def test_what_is_new_goes_in_front_and_a_gap_is_noticed() -> None:
    """D15: what happened while nobody looked is not passed over."""
    kept = rows(5, 4, 3)
    assert with_newer(kept, rows(7, 6, 5, 4)) == rows(7, 6, 5, 4, 3)
    assert with_newer(kept, rows(5, 4)) == kept and with_newer((), rows(2)) == rows(2)
    assert with_newer(kept, ()) == kept
    assert with_newer(kept, rows(9, 8)) is None


@pytest.mark.parametrize("width", [60, 80, 120, 210])
def test_columns_stand_still_whatever_is_in_them(width: int) -> None:
    """D12, D18, D20: the viewer's time of day, with the date where it is another day."""
    odd = [event(n, text, text=text, box=text, queue=text, cause=text) for n, text in enumerate(HOSTILE)]
    found = read_happenings({"events": EVENTS + odd}).events
    lines = [plain(event_table.event_row(one, width, UNICODE, NOW, at == 0)) for at, one in enumerate(found)]
    assert {cell_len(line) for line in lines} == {width}
    assert lines[0][2:10] == "14:02:51" and lines[5][2:16] == "03-03 13:03:22"
    assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for line in lines for char in line)


def test_tones_and_words() -> None:
    found = {one.kind: one for one in read_happenings({"events": EVENTS}).events}
    tones = {kind: one.tone for kind, one in found.items()}
    assert tones == {
        "stall_suspected": "warn", "park": "warn", "alert": "bad", "requeued": "bad", "failed": "bad", "trip": "bad", "run_next": "ok",
    }  # fmt: skip
    assert (found["alert"].word, found["stall_suspected"].word) == ("box dead", "stall?")
    assert found["failed"].text == "grid-x failed: ValueError: negative rainfall in tile 17"  # its place has columns


@pytest.mark.parametrize("odd", [None, 7, {"events": 3}, {"events": [{}, None, {"at": 7, "text": None}]}])
def test_an_odd_answer_is_read_all_the_same(odd: object) -> None:
    for one in read_happenings(odd).events:
        assert "None" not in plain(event_table.event_row(one, 80, UNICODE, NOW, False))


class Database(Canned):
    """Ninety events in pages of thirty, and what was asked."""

    def __init__(self) -> None:
        super().__init__(ANSWERS)
        self.asked: list[dict[str, Any]] = []

    def look_up(self, name: str, arguments: Mapping[str, Any]) -> tuple[Any, str]:
        if name != "events":
            return super().look_up(name, arguments)
        self.asked.append(dict(arguments))
        behind = int(arguments.get("after", {"job": "91"})["job"])
        found = [event(number) for number in range(behind - 1, max(0, behind - 31), -1)]
        return answer(found, more=bool(found) and found[-1]["id"] != "1").value, ""


def test_it_is_live_at_the_top_and_goes_back_at_the_end() -> None:
    database = Database()

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("4")
        assert database.asked == [{"kind": "telling", "project": None}] and "event 90" in seen(app)
        newest = [event(number) for number in range(93, 63, -1)]
        page(app).take_top(answer(newest))
        assert page(app).index == 0 and "event 93" in seen(app)  # at the top it shows what is new
        await pilot.press("j", "j")
        chosen = page(app).events[page(app).index]
        page(app).take_top(answer([event(94), *newest[:-1]]))
        assert page(app).events[page(app).index] == chosen  # further down the row stays
        await pilot.press("end")
        assert database.asked[-1] == {"kind": "telling", "project": None, "after": {"job": "61", "control": "1"}}
        await pilot.press("end", "end")
        assert page(app).events[-1].id == "1" and page(app).older is None
        assert [one.id for one in page(app).events] == [str(number) for number in range(94, 0, -1)]
        asked = len(database.asked)
        await pilot.press("end")
        assert len(database.asked) == asked  # nothing is behind the first
        page(app).take_top(answer([event(number) for number in range(400, 370, -1)], more=True))
        assert page(app).events[0].id == "400" and len(page(app).events) == 30  # they do not meet: from the top

    fly(four_boxes(), flight, reader=database)


def test_kinds_words_projects_and_the_other_pages() -> None:
    """1, 2 and 5 lead elsewhere from here, too."""
    database = Database()

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("4", "tab")
        assert database.asked[-1] == {"kind": "trouble", "project": None}
        await pilot.press("slash", *"fan", "enter")
        assert database.asked[-1] == {"kind": "trouble", "project": None, "text": "fan"}
        await pilot.press("escape", "n")
        assert database.asked[-1] == {"kind": "trouble", "project": "ai_leads"}
        for key, name in (("2", "jobs"), ("4", "events"), ("5", "queues"), ("4", "events"), ("1", "fleet")):
            await pilot.press(key)
            assert app.screen_page() == name

    fly(four_boxes(), flight, reader=database)


def test_enter_opens_the_job_of_an_event_and_keys_act_on_it() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("4", "j", "enter")
        assert "this is about no job" in seen(app)
        await pilot.press("j", "j", "j", "e")
        assert ledger(app).calls()[-1][0] == "retry_run" and ledger(app).calls()[-1][1]["run_id"] == "50"
        await pilot.press("home", "enter")
        assert app.screen_page() == "job" and "comfyui_video (render)" in seen(app)
        await pilot.press("escape")
        assert app.screen_page() == "events"
        await pilot.press("f")
        page(app).take_top(answer([event(999)]))
        assert "event 999" not in seen(app)

    fly(four_boxes(), flight, reader=Canned(ANSWERS))


def test_names_are_data_and_an_error_is_said() -> None:
    """D19"""
    odd = [event(n, text, text=text, box=text) for n, text in enumerate(HOSTILE)]
    known = answers(("events", {"kind": "telling", "project": None}, {"events": odd}))
    shown = render_frame(four_boxes().first(), (120, 40), keys=["4"], answers=known).text
    assert "[@click=app.quit]run[/]" in shown and "\x1b" not in shown and "\u202e" not in shown
    assert render_frame(four_boxes().first(), (80, 24), keys=["4"], answers=known, ascii=True).text.isascii()
    assert "there is no database" in render_frame(four_boxes().first(), (80, 24), keys=["4"]).text
