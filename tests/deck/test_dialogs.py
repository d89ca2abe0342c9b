"""Small boxes over a page: the question, its scope and every answer are there on the smallest terminal, for keys and mouse."""

from __future__ import annotations

from textual.pilot import Pilot

from flightdeck.app import FlightDeckApp
from flightdeck.frame import settle
from flightdeck.orders import JobTarget
from flightdeck.screens.dialog import Choice, ConfirmScreen, PromptScreen
from tests.deck.fleet_data import three_boxes
from tests.deck.piloting import fly, ledger, seen

SIZES = [(40, 8), (50, 9), (80, 24)]


def words(app: FlightDeckApp) -> str:
    """What of the box stands on the screen, as one line."""
    assert isinstance(app.screen, ConfirmScreen)
    x, y, width, height = app.screen.view.region
    assert x >= 0 and y >= 0 and x + width <= app.size.width and y + height <= app.size.height
    rows = seen(app).split("\n")[y + 1 : y + height - 1]
    return " ".join(" ".join(row[x + 1 : x + width - 1] for row in rows).split())


async def shrink(app: FlightDeckApp, pilot: Pilot[int], size: tuple[int, int]) -> None:
    await pilot.resize_terminal(*size)
    await settle(app, pilot)


def test_a_question_its_scope_and_its_answers_fit_the_smallest_terminal() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        for key, question in (
            ("p", "Park cpu on beelink, project lm_content?"),
            ("P", "Park cpu on every box, all 2 projects: ai_leads, lm_content?"),
        ):
            await pilot.press(key)
            for size in SIZES:
                await shrink(app, pilot, size)
                text = words(app)
                assert question in text
                assert all(answer in text for answer in ("d drain", "h hard", "> b back"))
                assert "run there:" in text or "page down" in text
                assert size[0] < 80 or ("24 jobs run there" in text and "and 16 more" in text)
            await shrink(app, pilot, SIZES[0])
            await pilot.press("left", "left")
            assert "> d drain" in words(app)
            await pilot.press("escape")
            await shrink(app, pilot, SIZES[-1])
        assert not ledger(app).orders

    fly(three_boxes(), flight)


def test_what_does_not_fit_is_read_page_by_page() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("p")
        await shrink(app, pilot, (60, 10))
        read = words(app)
        assert "24 jobs run there:" in read and "more lines: page down" in read
        while "page down" in words(app):
            before = words(app)
            await pilot.press("pagedown")
            assert words(app) != before
        assert "and 16 more" in words(app) and "Park cpu on beelink" in words(app)
        await pilot.press("pageup", "pageup", "pageup", "pageup", "pageup", "pageup")
        assert words(app) == read

    fly(three_boxes(), flight)


def test_more_answers_than_a_row_holds_can_all_be_clicked() -> None:
    """The question of `q` in `up` has four, one of them long."""
    answers: list[str | None] = []
    choices = [
        Choice("leave", "w", "leave working"),
        Choice("drain", "d", "drain"),
        Choice("stop", "s", "stop"),
    ]

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await shrink(app, pilot, SIZES[0])
        for choice in [*choices, Choice("", "b", "back")]:
            details = [("stop: jobs go back to the front of the queue", "text")] * 3
            app.push_screen(ConfirmScreen("Leave kestrel working?", details, choices), answers.append)
            await settle(app, pilot)
            assert "Leave kestrel working?" in words(app) and f"{choice.key} {choice.label}" in words(app)
            lines = seen(app).split("\n")
            y = next(y for y, line in enumerate(lines) if f" {choice.key} {choice.label} " in line)
            await pilot.click(offset=(lines[y].index(f" {choice.key} {choice.label} ") + 2, y))
            await settle(app, pilot)

    fly(three_boxes(), flight)
    assert answers == ["leave", "drain", "stop", ""]


def test_a_scope_of_any_length_leaves_the_answers_where_they_are() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        name = "x" * 200
        job = JobTarget("17", "node", f"{name} {'long ' * 90}", "gpu", name, name, "3", "running")
        app.chosen_job = lambda: job  # type: ignore[method-assign]
        await shrink(app, pilot, (40, 8))
        await pilot.press("x")
        assert "Cancel job 17" in words(app) and "c cancel the job" in words(app) and "> b back" in words(app)
        assert "~" in words(app)

    fly(three_boxes(), flight)


def test_the_question_of_a_node_is_read_whole_before_it_is_answered() -> None:
    """It was cut at the width of the line to type into."""
    prompt = "Is the storm over the bay dark enough, or shall the grids be drawn again with another seed?"

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await shrink(app, pilot, (40, 8))
        app.push_screen(PromptScreen("ANSWER", "", prompt))
        await settle(app, pilot)
        await pilot.press(*"typed")
        lines = seen(app).split("\n")
        assert prompt in " ".join(" ".join(lines).split()) and any("typed" in line for line in lines)
        app.push_screen(PromptScreen("ANSWER", "", prompt * 9))
        await settle(app, pilot)
        await pilot.press(*"again")
        lines = seen(app).split("\n")
        assert any(line.rstrip().endswith("~") for line in lines) and any("again" in line for line in lines)

    fly(three_boxes(), flight)
