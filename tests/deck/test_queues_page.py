"""The page of queues: what waits, who serves it, what is wanted and what is; and orders to a whole queue."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot

from flightdeck.app import FlightDeckApp
from flightdeck.frame import render_frame
from flightdeck.model.queue_rows import QueueRow, actual, read_queues
from flightdeck.reader import Answer, Canned
from flightdeck.screens.queues import QueuesScreen
from flightdeck.widgets import queue_table
from flightdeck.widgets.lines import UNICODE, plain
from tests.deck.fleet_data import HOSTILE, NOW, four_boxes
from tests.deck.jobs_data import ANSWERS, QUEUES, ago, answers, job_list, queue, waiting
from tests.deck.piloting import carried_out, fly, ledger, seen


def row(name: str = "gpu", project: str = "p", **over: Any) -> QueueRow:
    return read_queues({"queues": [queue(name, project, **over)]}).queues[0]


def lanes(**counts: int) -> dict[str, Any]:
    return {"lanes": {"on": 0, "parked": 0, "down": 0, "changing": 0, "slots": 1, "busy": 0} | counts}


def page(app: FlightDeckApp) -> QueuesScreen:
    assert isinstance(app.screen, QueuesScreen)
    return app.screen


WORDS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "ON", "ok"),
    (lanes(on=2) | {"desired": "off"}, "ON", "ok"),  # wanted off, still on: the row says both
    (lanes(parked=2) | {"desired": "off"}, "PARKED", "warn"),
    (lanes(parked=2) | {"desired": "on"}, "PARKED", "warn"),
    (lanes(changing=1) | {"desired": "off"}, "parking...", "wait"),
    (lanes(changing=1) | {"desired": "on"}, "resuming...", "wait"),
    (lanes(on=1, parked=2) | {"desired": "mixed"}, "1 of 3 ON", "warn"),
    (lanes(down=1), "DOWN", "bad"),
    (lanes() | {"queued": 3}, "no lane", "bad"),
    (lanes(), "no lane", "dim"),
]


@pytest.mark.parametrize(("over", "word", "tone"), WORDS)
def test_actual_is_what_the_lanes_do(over: dict[str, Any], word: str, tone: str) -> None:
    found = actual(row(**over))
    assert (found.text, found.tone) == (word, tone) and len(word) <= queue_table.STATE_CELLS


def test_wanted_stands_beside_actual() -> None:
    shown = plain(queue_table.queue_row(row(**lanes(on=1), desired="off"), 120, UNICODE, NOW, False))
    assert shown.split()[-2:] == ["off", "ON"]


@pytest.mark.parametrize("width", [52, 60, 80, 100, 120, 150, 210, 300])
def test_columns_stand_still_whatever_is_in_them(width: int) -> None:
    """D18, D20: rows and what stands below them have the width of the screen, whatever their names are."""
    odd = [
        queue(
            text,
            text,
            reason=text,
            unplaceable=1,
            models=[{"model": text, "queued": 1}],
            orders=[{"reason": text, "box": text}],
        )
        for text in HOSTILE
    ]
    found = read_queues({"queues": QUEUES + odd}).queues
    rows = [queue_table.queue_row(one, width, UNICODE, NOW, False) for one in found]
    below = [line for one in found for line in queue_table.detail_lines(one, width, 8, UNICODE, NOW)]
    assert {cell_len(plain(line)) for line in [*rows, *below, queue_table.heading(width)]} == {width}
    named = zip(rows[: len(QUEUES)], found, strict=False)
    ends = {plain(line).rstrip().rfind(" ON") for line, one in named if actual(one).text == "ON"}
    assert len(ends) == 1
    size = queue_table.columns(width)
    before = (size.queue, size.project, size.queued, size.oldest, size.running)
    at = 2 + sum(cells + 1 for cells in before if cells)
    slots = [plain(line)[at : at + size.slots].strip() for line in rows[: len(QUEUES)]]
    assert slots == ["24/53", "0/8", "2/8", "0/1", "1/3", "2/2", "0/0"]


def test_short_times() -> None:
    times = [queue_table.short_time(value) for value in (None, 0.0, 0.034, 0.9999, 4.21, 9.97, 22.0, 362.0, 40_000.0)]
    assert times == ["-", "0ms", "34ms", "1.0s", "4.2s", "9s", "22s", "6m02", "11h06"]


def test_what_is_said_of_the_chosen_queue() -> None:
    found = {(one.queue, one.project): one for one in read_queues({"queues": QUEUES}).queues}

    def below(name: str, project: str) -> str:
        return "\n".join(
            plain(line).rstrip() for line in queue_table.detail_lines(found[name, project], 120, 8, UNICODE, NOW)
        )

    assert "ordered off on spark2, drain, by ops (deck), 42 s ago, for 2h00 more: new disk" in below("cpu", "ai_leads")
    stuck = below("gpu", "ai_leads")
    assert (
        "no slot could hold 28 of them: model flux-dev fits on no device" in stuck
        and "flux-dev 28 queued, cold" in stuck
    )
    assert "comfyui 28 queued, 1 warm" in below(
        "gpu", "lm_content"
    ) and "3 of the queued are for later, the first in 1h00" in below("gpu", "lm_content")
    assert "nobody serves it" in below("mail", "ai_leads") and "1 nodes wait for a person" in below("cpu", "video_gen")


def test_figures_of_less_than_an_hour_say_so() -> None:
    """D25: more ends than are read."""
    short = read_queues({"queues": QUEUES, "window_s": 12.0, "backlog_limit": 5000})
    note = plain(queue_table.note_line(short, "all projects", 120))
    assert "of the last 12s, more was not read" in note and "backlog limit 5,000" in note


@pytest.mark.parametrize(
    "odd", [None, 7, {"queues": 3}, {"queues": [{}, None, {"queue": 7, "lanes": 3, "ended": [], "orders": {}}]}]
)
def test_an_odd_answer_is_read_all_the_same(odd: object) -> None:
    for one in read_queues(odd).queues:
        assert "None" not in plain(queue_table.queue_row(one, 80, UNICODE, NOW, False))


def test_orders_go_to_a_whole_queue_with_one_question_where_work_runs() -> None:
    """p and r: that queue of that project on every box; P and R: of every project; u takes it back."""

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        who = app.operator.who
        await pilot.press("5", "p")
        assert "Park cpu on every box, project lm_content?" in seen(app)
        assert "24 jobs run there:" in seen(app) and "compute_storm_grids" in seen(app)
        await pilot.press("d")
        where = {"box": "*", "queue": "cpu", "project": "lm_content", "requested_by": who}
        assert ledger(app).calls() == [("park", {**where, "policy": "drain"})]
        carried_out(app)
        await pilot.press("r")
        assert ledger(app).calls()[-1] == ("resume", where)
        await pilot.press("j", "p")
        assert (
            ledger(app).calls()[-1][0] == "park" and ledger(app).calls()[-1][1]["project"] == "ai_leads"
        )  # idle: at once
        ledger(app).orders.clear()
        await pilot.press("R")
        assert {call[1]["project"] for call in ledger(app).calls()} == {"ai_leads", "lm_content", "video_gen"}
        assert {(call[0], call[1]["box"], call[1]["queue"]) for call in ledger(app).calls()} == {("resume", "*", "cpu")}
        await pilot.press("u")
        assert ledger(app).orders[-1].takes_back

    fly(four_boxes(), flight, reader=Canned(ANSWERS))


def test_the_cursor_stays_on_its_queue_and_enter_shows_its_jobs() -> None:
    asked = (
        "jobs",
        {"status": "queued", "project": "ai_leads", "queue": "gpu"},
        job_list([waiting(7, "train")], "queued"),
    )

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("5", "j", "j", "j")
        assert page(app).chosen == ("gpu", "ai_leads")
        page(app).take(Answer("queues", {}, {"queues": [queue("cpu", "a"), queue("cpu", "b"), *QUEUES]}, "", 0.0))
        assert page(app).index == 5 and page(app).chosen == ("gpu", "ai_leads")
        await pilot.press("s")
        assert page(app).queues[0].queued == 5000 and page(app).queues[page(app).index].project == "ai_leads"
        page(app).take(Answer("queues", {}, None, "no answer within 4 s", 0.0))
        assert "no answer within 4 s" in seen(app) and page(app).queues
        await pilot.press("enter")
        assert app.screen_page() == "jobs" and "train" in seen(app) and "queue gpu, project ai_leads" in seen(app)

    fly(four_boxes(), flight, reader=Canned(ANSWERS | answers(asked)))


def test_no_queue_is_no_target() -> None:
    """An order must not fall on whatever lane the fleet's cursor stands on."""
    known = answers(("queues", {"project": None}, {"queues": []}))

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("5", "p", "r", "P", "R")
        assert ledger(app).orders == [] and "no queue here" in seen(app)

    fly(four_boxes(), flight, reader=Canned(known))


def test_read_only_parks_nothing() -> None:
    """D17"""

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("5", "p", "P", "r", "R")
        assert isinstance(app.screen, QueuesScreen) and "park" not in seen(app).split("\n")[-1]

    fly(four_boxes(), flight, reader=Canned(ANSWERS), read_only=True)


def test_ascii_and_small() -> None:
    known = ANSWERS | answers(
        ("queues", {"project": None}, {"queues": [queue(t, t, oldest_at=ago(5)) for t in HOSTILE]})
    )
    shown = render_frame(four_boxes().first(), (80, 24), keys=["5"], answers=known, ascii=True).text
    assert shown.isascii() and "[bold]x" in shown
