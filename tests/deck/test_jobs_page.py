"""The page of jobs: what it asks, what it shows, what its keys do."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot

from engine.queue.browse import SORTS as ENGINE_SORTS
from engine.store import Db
from flightdeck.app import FlightDeckApp
from flightdeck.frame import render_frame
from flightdeck.model.jobs import SORTS, STATUSES, Count, read_counts, read_job, read_jobs, sort_words
from flightdeck.questions import QUESTIONS
from flightdeck.reader import Answer, Canned
from flightdeck.screens.jobs import JobsScreen
from flightdeck.widgets import job_table
from flightdeck.widgets.lines import ASCII, UNICODE, plain
from tests.deck.fleet_data import HOSTILE, NOW, four_boxes, update
from tests.deck.jobs_data import ANSWERS, COUNTS, FAILED, LIVE, ago, answers, ended, job, job_list, waiting
from tests.deck.piloting import fly, ledger, seen


class Database(Canned):
    """Answers lists by their status, and writes down what was asked."""

    def __init__(self, **lists: dict[str, Any]) -> None:
        super().__init__(ANSWERS)
        self.lists = {"live": job_list(LIVE), "failed": job_list(FAILED, "failed", sort="newest")} | lists
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def look_up(self, name: str, arguments: Mapping[str, Any]) -> tuple[Any, str]:
        self.asked.append((name, dict(arguments)))
        if name == "jobs":
            return self.lists.get(arguments["status"], job_list([], arguments["status"])), ""
        return super().look_up(name, arguments)

    def last(self, name: str = "jobs") -> dict[str, Any]:
        return next(arguments for asked, arguments in reversed(self.asked) if asked == name)


def page(app: FlightDeckApp) -> JobsScreen:
    assert isinstance(app.screen, JobsScreen)
    return app.screen


# -- rows


def test_the_deck_and_the_engine_know_the_same_lists() -> None:
    assert [name for name, _ in STATUSES] == list(ENGINE_SORTS)
    assert {name: sorts for name, sorts in ENGINE_SORTS.items() if len(sorts) > 1} == SORTS


@pytest.mark.parametrize("width", [60, 80, 99, 120, 150, 210, 300])
def test_columns_stand_still_whatever_is_in_them(width: int) -> None:
    """D18: a state, a name or an error that comes and goes moves nothing."""
    jobs = read_jobs(job_list([*LIVE, *FAILED, job(7, "x" * 300, error="y" * 900, progress_text="z" * 200)])).jobs
    jobs += tuple(read_job(job(8, text, progress_text=text, queue=text, claimed_box=text)) for text in HOSTILE)
    size = job_table.columns(width, False)
    rows = [job_table.job_row(one, size, width, UNICODE, NOW, at == 1) for at, one in enumerate(jobs)]
    assert {cell_len(plain(row)) for row in rows} == {width}
    start = len("> ") + job_table.STATE_CELLS + 1
    ids = [plain(row)[start : start + size.id].strip() for row in rows[: len(LIVE)]]
    assert ids == [one["id"] for one in LIVE]
    assert cell_len(plain(job_table.heading(width, size, "live"))) == width


@pytest.mark.parametrize("status", [name for name, _ in STATUSES])
def test_an_order_is_told_as_it_is(status: str) -> None:
    """Lists of what has ended are in the order of enqueuing, whatever stands in the column "ended"."""
    for sort in ENGINE_SORTS[status]:
        words = sort_words(status, sort)
        assert words and "newest" not in words
        assert ("enqueued" in words) == (sort == "newest" and status != "running")
    row = plain(
        job_table.note_line(read_jobs(job_list(FAILED * 100, status, sort="newest", more=True)), "all projects", 80)
    )
    assert sort_words(status, "newest") in row and "~" not in row


@pytest.mark.parametrize(("width", "words"), [(80, "W 2 wait "), (210, "W 2 wait for you")])
def test_what_waits_for_a_person_is_told_on_every_page_and_one_key_away(width: int, words: str) -> None:
    """Of the project of the tab; where nothing waits nothing is said."""
    fleet = four_boxes()
    asked = update(view=fleet.view() | {"projects": [
        {"project": "p1", "queued": 1, "running": 0, "awaiting": 2}, {"project": "p2", "queued": 0, "running": 0, "awaiting": 1},
        {"project": "p3", "queued": 0, "running": 0}]})  # fmt: skip

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        head = lambda: seen(app).split("\n")[0] + " "  # noqa: E731
        assert " W " not in head()
        app.take_in(asked)
        app.flush()
        await pilot.press("n")
        assert words in head()
        await pilot.press("n")
        assert "W 1 waits" in head()
        await pilot.press("n")
        assert " W " not in head()
        await pilot.press("n", "5")
        assert "W 3 wait" in head()
        for _ in range(2):  # the second time it is there already
            await pilot.press("W")
            assert page(app).status == "awaiting_input"

    fly(fleet, flight, size=(width, 24), read_only=True)


@pytest.mark.parametrize("width", [80, 120, 210])
def test_the_statuses_fit_with_their_counts(width: int) -> None:
    """D25: a count that stopped says so."""
    line, places = job_table.status_line("failed", read_counts(COUNTS), width)
    text = plain(line)
    assert len(text) == width and not text.rstrip().endswith("~")
    assert ("5,140+" in text) == (width > 80) and ("5k+" in text) == (width == 80)
    assert [text[start:stop].split()[0] for start, stop, _ in places] == [word for _, word in STATUSES]


def test_counts_in_words() -> None:
    assert (Count(5000, True).text, Count(5000, True).short, Count(12, False).text) == ("5,000+", "5k+", "12")


WORDS: list[tuple[dict[str, Any], str, str]] = [
    (job(1), "running", ""),
    (job(1, progress_text="frame 3"), "running", "frame 3"),
    (job(1, started_at=None), "claimed", ""),
    (job(1, cancel_requested=True), "stopping", ""),
    (job(1, kill_requested=True), "killing", ""),
    (waiting(1), "queued", ""),
    (waiting(1, is_priority=True), "queued", "runs next"),
    (waiting(1, unplaceable_reason="nowhere"), "queued", "nowhere"),
    (waiting(1, run_after=(NOW + timedelta(minutes=5)).isoformat()), "later", "in 5m00"),
    (waiting(1, run_after=(NOW + timedelta(seconds=0.4)).isoformat()), "later", "now"),
    (waiting(1, run_after=ago(5)), "queued", ""),
    (waiting(1, status="awaiting_input"), "input?", "waits for a person: enter"),
    (ended(1, "failed", error="boom"), "failed", "boom"),
    (ended(1, "failed", error=None), "failed", "no error was kept"),
    (ended(1, "cancelled", error="by ops"), "cancelled", "by ops"),
    (ended(1, "completed"), "done", ""),
]


@pytest.mark.parametrize(("row", "word", "note"), WORDS)
def test_a_job_in_words(row: dict[str, Any], word: str, note: str) -> None:
    read = read_job(row)
    assert (read.word(NOW), job_table.note_text(read, NOW)[0]) == (word, note)
    assert len(word) <= job_table.STATE_CELLS and word in job_table.TONES


def test_times_of_a_job() -> None:
    running, over = read_job(job(1)), read_job(ended(1, "failed", started_at=ago(80)))
    assert (running.ran_s(NOW), running.since_s(NOW)) == (60.0, 60.0)
    assert (over.ran_s(NOW), over.since_s(NOW)) == (60.0, 20.0)
    assert (read_job(waiting(1)).ran_s(NOW), read_job(waiting(1)).since_s(NOW)) == (None, 90.0)


@pytest.mark.parametrize(
    "odd", [None, 7, [], {"jobs": 3}, {"jobs": [None, {}, {"id": {}, "attempt": "x", "created_at": "no"}]}]
)
def test_an_odd_answer_is_read_all_the_same(odd: object) -> None:
    found = read_jobs(odd)
    size = job_table.columns(80, False)
    for one in found.jobs:
        assert "None" not in plain(job_table.job_row(one, size, 80, UNICODE, NOW, False))
    assert read_counts(odd) == {} or odd


# -- the page


def test_it_asks_for_what_is_to_be_seen() -> None:
    """Status by tab, words by /, order by s, project by its tab; esc takes the filter back."""
    database = Database(running=job_list(LIVE[:2], "running"))

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("2")
        assert database.last() == {"status": "live", "project": None}
        assert database.last("job_counts") == {"project": None}
        assert "comfyui_video (render)" in seen(app) and "runs next" in seen(app)
        await pilot.press("tab")
        assert database.last() == {"status": "running", "project": None}
        await pilot.press("s")
        assert database.last() == {"status": "running", "project": None, "sort": "newest"}
        await pilot.press("slash", *"Rain", "enter")
        assert database.last() == {"status": "running", "project": None, "sort": "newest", "text": "rain"}
        assert "/rain" in seen(app)
        await pilot.press("escape")
        assert page(app).filter_text == ""
        await pilot.press("shift+tab", "n")
        assert database.last() == {"status": "live", "project": "ai_leads"}
        assert "project ai_leads" in seen(app)

    fly(four_boxes(), flight, reader=database)


def test_pages_go_back_in_time_and_to_the_newest() -> None:
    first = job_list(FAILED, "failed", sort="newest", more=True, next={"node": "99", "ingest": "98"})
    database = Database(failed=first)

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("2", "shift+tab", "shift+tab", "shift+tab", "shift+tab")
        assert page(app).status == "failed" and "more behind" in seen(app)
        await pilot.press("greater_than_sign")
        assert database.last()["after"] == {"node": "99", "ingest": "98"}
        assert "older page" in seen(app)
        await pilot.press("less_than_sign")
        assert "after" not in database.last()
        page(app).take_jobs(Answer("jobs", {}, job_list(LIVE, more=True), "", 0.0))
        await pilot.press("greater_than_sign")
        assert "narrow by /" in seen(app) and "after" not in database.last()

    fly(four_boxes(), flight, reader=database)


def test_what_a_list_leaves_out_is_said() -> None:
    """D25: never a guess."""
    found = read_jobs(job_list(LIVE, more=True, whole=False, looked=10_000))
    text = plain(job_table.note_line(found, "all projects", 120))
    assert f"the first {len(LIVE)}, more behind: narrow by /" in text and "looked through 10,000 rows only" in text


def test_run_next_needs_no_typing_and_a_failed_job_runs_again() -> None:
    """The chosen queued job at once; a failed node with its run, a failed job by itself; cancel names no project '-'."""

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("2", "j", "j", "j", "j", "j", "exclamation_mark")
        assert ledger(app).calls()[-1][0] == "run_next" and ledger(app).calls()[-1][1]["job_id"] == "210"
        assert isinstance(app.screen, JobsScreen)
        await pilot.press("k", "k", "k", "x")
        assert "Cancel job 301 fetch_sources (default on beelink)?" in seen(app)
        await pilot.press("c")
        assert ledger(app).calls()[-1] == ("cancel_job", {"job_id": "301", "requested_by": app.operator.who})
        await pilot.press("shift+tab", "shift+tab", "shift+tab", "shift+tab", "e")
        assert ledger(app).calls()[-1][0] == "retry_run" and ledger(app).calls()[-1][1]["run_id"] == "50"
        await pilot.press("j", "e")
        assert ledger(app).calls()[-1][0] == "retry_job" and ledger(app).calls()[-1][1]["job_id"] == "98"
        await pilot.press("enter")
        assert app.screen_page() == "job"
        asked = len(database.asked)
        app.draw_now()
        assert all(
            name == "job" or name == "job_hardware" for name, _ in database.asked[asked:]
        )  # nobody sees the list
        await pilot.press("escape")
        assert app.screen_page() == "jobs" and database.last() == {"status": "failed", "project": None}
        assert len([name for name, _ in database.asked[asked:] if name == "jobs"]) == 1

    database = Database()
    fly(four_boxes(), flight, reader=database)


def test_read_only_offers_nothing_that_writes() -> None:
    """D17"""

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("2", "j", "j", "j", "j", "j", "exclamation_mark", "x", "X", "e")
        assert isinstance(app.screen, JobsScreen) and app.desk is None
        assert not {"cancel", "kill", "retry"} & set(seen(app).split("\n")[-1].split())

    fly(four_boxes(), flight, reader=Database(), read_only=True)


def test_a_frozen_list_stands_and_an_error_keeps_what_was_there() -> None:
    """D13: rows stay on the screen while the database is away."""

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("2", "f")
        page(app).take_jobs(Answer("jobs", {}, job_list([job(9, "newcomer")]), "", 0.0))
        assert "newcomer" not in seen(app) and "comfyui_video" in seen(app)
        await pilot.press("f")
        page(app).take_jobs(Answer("jobs", {}, None, "fleet@postgres: no answer within 4 s", 0.0))
        assert "no answer within 4 s" in seen(app) and "comfyui_video" in seen(app)
        page(app).take_jobs(Answer("jobs", {}, job_list([job(9, "newcomer")]), "", 0.0))
        assert "newcomer" in seen(app) and "no answer" not in seen(app)

    fly(four_boxes(), flight, reader=Database())


def test_names_of_jobs_are_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """D19, D20: neither markup nor control bytes; --ascii stays ascii."""
    hostile = [job(n, text, progress_text=text, queue=text, project=text, error=text) for n, text in enumerate(HOSTILE)]
    known = answers(
        ("jobs", {"status": "live", "project": None}, job_list(hostile)), ("job_counts", {"project": None}, COUNTS)
    )
    text = render_frame(four_boxes().first(), (210, 50), keys=["2"], answers=known).text
    assert "[bold]x" in text and "[@click=app.quit]run[/]" in text
    assert not any(ord(char) < 32 and char != "\n" for char in text) and "\x9b" not in text and "\u202e" not in text
    assert render_frame(four_boxes().first(), (120, 40), keys=["2"], answers=known, ascii=True).text.isascii()
    assert ASCII.ascii


def test_the_real_database_answers_what_the_pages_ask(db: Db) -> None:
    """Every status, order, kind; nothing but plain data."""
    import json

    from tests.queue.conftest import add_ingest, add_node, add_run

    number = add_ingest(db)
    add_node(db, add_run(db), "a", status="awaiting_input")
    asked: list[tuple[str, dict[str, Any]]] = [("jobs", {"status": name, "project": None}) for name, _ in STATUSES]
    asked += [("jobs", {"status": "all", "project": "", "text": "work", "after": {"node": "5", "ingest": "99"}})]
    asked += [("job_counts", {"project": None}), ("job", {"job_id": str(number)}), ("job", {"job_id": "999999"})]
    asked += [("job_hardware", {"job_id": str(number)}), ("queues", {"project": None})]
    asked += [("events", {"kind": kind, "project": None}) for kind in ("telling", "trouble", "orders", "jobs", "all")]
    for name, arguments in asked:
        json.dumps(QUESTIONS[name](db, **arguments))
    (found,) = read_jobs(QUESTIONS["jobs"](db, status="queued", project=None)).jobs
    assert (found.id, found.name, found.status) == (str(number), "work", "queued")
