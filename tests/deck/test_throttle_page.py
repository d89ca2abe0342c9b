"""The throttle page: what its cells say, what its keys ask for, where they lead."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.pilot import Pilot

from engine.store import Db
from flightdeck.app import FlightDeckApp
from flightdeck.frame import Shot, render_frames
from flightdeck.model.throttling import BoxHours, Hours, cell, layout, read_hours, read_jobs, worst_first, worst_of
from flightdeck.questions import QUESTIONS
from flightdeck.reader import Canned, question_key
from flightdeck.screens.throttle import ThrottleScreen
from flightdeck.widgets import throttle_matrix as matrix
from flightdeck.widgets.lines import ASCII, UNICODE, plain
from tests.deck.fleet_data import NOW, four_boxes
from tests.deck.piloting import fly, seen
from tests.deck.throttle_data import answers, history, jobs

SIZES = {"80x24": (80, 24), "120x40": (120, 40), "210x50": (210, 50)}
NAMES = ("spark", "beelink", "xeon", "spark2", "old", "mill")


def box(minutes: int = 60, sampled: bool = False, brakes: float | None = 0.0, **causes: float | None) -> BoxHours:
    every = {cause: (causes.get(cause, 0.0),) for cause in "PTBCS"}
    return BoxHours("b", "b", sampled, (minutes,), every, (brakes,))


# What a cell says.


@pytest.mark.parametrize(
    ("one", "letter"),
    [
        (box(P=1800.0, T=1.0), "T"),  # the gravest cause, not the longest
        (box(P=1800.0, T=1.0, B=0.2), "B"),
        (box(P=1800.0, brakes=1.0), "B"),
        (box(P=0.2, S=900.0, C=5.0), "P"),
        (box(T=0.09, P=0.05), "."),  # D9: under a tenth of a second is noise
        (box(), "."),
        (box(P=None, T=None, B=None, C=None, S=None, brakes=None), "?"),  # recorded, but nobody tells
        (box(P=None, T=None, B=None, C=0.0, S=None, brakes=None), "."),
        (box(minutes=0), " "),  # not recorded: neither
    ],
)
def test_the_letter_of_an_hour(one: BoxHours, letter: str) -> None:
    """D6, D9: nothing, unknown and not recorded are three things."""
    assert cell(one, 0, 1).letter == letter


def test_one_cause_alone() -> None:
    assert cell(box(P=1800.0, T=90.0), 0, 1, "P").letter == "P"
    assert cell(box(P=1800.0, T=None), 0, 1, "T").letter == "?"
    assert cell(box(P=1800.0, brakes=3.0), 0, 1, "P").letter == "P"


def test_how_much_of_the_time_recorded() -> None:
    assert cell(box(T=900.0), 0, 1).share == 0.25
    assert cell(box(minutes=30, T=900.0), 0, 1).share == 0.5
    assert cell(box(minutes=1, T=900.0), 0, 1).share == 1.0


def test_sizes_of_a_cell() -> None:
    light, heavy = cell(box(T=60.0), 0, 1), cell(box(T=3600.0), 0, 1)
    assert [matrix.cell_text(one, 1, UNICODE)[0] for one in (light, heavy)] == ["t", "T"]
    assert [matrix.cell_text(one, 2, ASCII)[0] for one in (light, heavy)] == ["T1", "T9"]
    assert [matrix.cell_text(one, 6, UNICODE)[0] for one in (light, heavy)] == ["T 60s ", "T 60m "]


@settings(max_examples=60, deadline=None)
@given(width=st.integers(50, 320), hours=st.sampled_from([24, 168]))
def test_every_hour_is_in_one_cell_and_every_line_fits(width: int, hours: int) -> None:
    """D2: from 50 to 320 columns."""
    found = read_hours(history(NOW, hours, ["spark", "a name that is far too long for any column", "x"]))
    here = matrix.plan(found, width)
    covered = [here.hours_of(column, hours) for column in range(here.cells)]
    assert [hour for first, count in covered for hour in range(first, first + count)] == list(range(hours))
    assert all(here.column_of(first, hours) == column for column, (first, _) in enumerate(covered))
    lines = [
        matrix.axis_line(found, here, width), matrix.legend_line(width, "", here.size), matrix.jobs_heading(width),
        *(matrix.box_line(b, here, hours, width, UNICODE, cause="", chosen=True, column=0) for b in found.boxes),
        *(matrix.job_line(job, width, UNICODE, True) for job in read_jobs(jobs(NOW, "spark"))),
        matrix.chosen_line(found.boxes[0], found, 0, hours, width, UNICODE, "all of it"),
    ]  # fmt: skip
    assert {cell_len(plain(line)) for line in lines} == {width}


def test_a_wide_screen_shows_more() -> None:
    assert [layout(24, room) for room in (24, 40, 60, 80, 150)] == [(1, 1), (1, 1), (1, 2), (1, 3), (1, 6)]
    assert [layout(168, room) for room in (30, 60, 90, 170, 340)] == [(6, 1), (6, 2), (4, 2), (2, 2), (1, 2)]


def test_any_box_is_the_worst_of_them_and_never_a_sum() -> None:
    """D9: two boxes that are throttled for 40 minutes are not throttled for 80."""
    both = worst_of([box(T=2400.0, P=None, brakes=2.0), box(T=2400.0, P=7.0, sampled=True, brakes=None)])
    assert both.total("T") == 2400.0 and both.total("P") == 7.0 and both.brake_count == 2 and both.sampled


def test_worst_box_first() -> None:
    """D28: an afternoon at the power cap is less than a minute of heat."""
    capped, hot, braked = box(P=3600.0), box(T=60.0), box(brakes=4.0)
    assert worst_first([capped, braked, hot]) == [hot, braked, capped]
    assert worst_first([capped, braked, hot], "P")[0] == capped


def test_seconds_of_a_cause() -> None:
    """D9, D10: a tilde where they were sampled; 0 is not n/a; nothing reads 0.0."""

    def shown(one: BoxHours) -> list[str]:
        hours = Hours((NOW,), (one,), NOW)
        line = plain(matrix.box_line(one, matrix.plan(hours, 100), 1, 100, ASCII, cause="", chosen=False, column=None))
        return line.split()[-5:]

    assert shown(box(P=412.4, T=7.25, B=0.04, C=None, brakes=3.0)) == ["412", "7.2", "0", "n/a", "x3"]
    assert shown(box(P=412.4, T=7.25, C=3.0, sampled=True, brakes=None)) == ["~412", "~7.2", "0", "3.0", "n/a"]


# Answers.


def test_odd_answers_are_read_as_far_as_they_make_sense() -> None:
    """D5, D20, D31."""
    for odd in (None, 5, [], {}, {"boxes": [None, {"box": 5}], "hours": ["x", 7]}):
        assert read_hours(odd).boxes == () == tuple(read_jobs(odd))
    row = {
        "box": "\x1b]0;x\x07",
        "minutes": ["a"],
        "causes": {"P": {"hours": [float("nan"), True, "x", 5]}},
        "brakes": 3,
    }
    found = read_hours({"hours": ["2026-03-04T12:00:00+00:00", "naive", "2026-03-04T13:00:00"], "boxes": [row]})
    assert len(found.starts) == 1 and "\x1b" not in found.boxes[0].name and found.boxes[0].raw == row["box"]
    assert found.boxes[0].causes["P"] == (5.0,) and found.boxes[0].minutes == (0,)
    (job,) = read_jobs([{"job_id": 7, "name": "\u202eevil", "seconds": None, "finished_at": "soon"}])
    assert job.id == "7" and "\u202e" not in job.name and job.finished is None
    assert cell_len(plain(matrix.job_line(job, 80, ASCII, False))) == 80


def test_the_answers_of_a_database_are_what_the_page_reads(db: Db) -> None:
    start = db.now().replace(minute=0, second=0, microsecond=0)
    db.run("insert into boxes (box) values ('spark')")
    db.run(
        "insert into flight_recorder (box, at, tier, power_ms, thermal_ms, gpu_throttle_source) "
        "values ('spark', {at}, 'minute', 0, 30000, 'mask')",
        at=start,
    )
    value = json.loads(
        json.dumps(QUESTIONS["throttle"](db, span_s=86_400, until=(start + timedelta(minutes=5)).isoformat()))
    )
    found = read_hours(value)
    assert (found.boxes[0].total("T"), found.boxes[0].total("P"), found.boxes[0].total("B")) == (30.0, 0.0, None)
    assert found.boxes[0].sampled and cell(found.boxes[0], 23, 1).letter == "T" and found.starts[-1] == start
    assert read_jobs(json.loads(json.dumps(QUESTIONS["throttle_jobs"](db, span_s=86_400, box="spark")))) == []


# The page.


def test_at_the_usual_sizes() -> None:
    """D2, D27: every line fits; nothing in the chrome is wide."""
    shots = {name: Shot("throttle", size=size) for name, size in SIZES.items()}
    frames = render_frames(four_boxes().first(), shots, ascii=True, answers=answers(NOW, NAMES), svg=False)
    for name, frame in frames.items():
        lines = frame.text.split("\n")
        assert len(lines) == SIZES[name][1] and max(map(cell_len, lines)) <= SIZES[name][0]
        assert "> any box" in frame.text and "~ sampled" in frame.text and "comfyui_video" in frame.text
        assert frame.text.isascii()


class Written(Canned):
    """Answers as a database would, and writes down what was asked."""

    def __init__(self) -> None:
        super().__init__(answers(NOW, NAMES))
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def ask(self, name: str, arguments: Any, take: Any, every_s: Any = None, owner: Any = None) -> Any:
        self.asked.append((name, dict(arguments)))
        if name == "throttle_jobs":
            self.answers.setdefault(question_key(name, arguments), jobs(NOW, "spark")[:2])
        return super().ask(name, arguments, take, every_s, owner)

    @property
    def last(self) -> dict[str, Any]:
        return next(arguments for name, arguments in reversed(self.asked) if name == "throttle_jobs")


def throttle_page(app: FlightDeckApp) -> ThrottleScreen:
    page = app.page()
    assert isinstance(page, ThrottleScreen)
    return page


def test_what_is_chosen_is_asked_about() -> None:
    """A box, an hour of it, all of it again, one cause, a week in cells of hours."""

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        assert reader.asked == []
        await pilot.press("3")
        assert reader.asked == [("throttle", {"span_s": 86_400}), ("throttle_jobs", {"span_s": 86_400})]
        await pilot.press("j", "h", "h")
        since, until = (datetime.fromisoformat(reader.last[name]) for name in ("since", "until"))
        assert (since, until) == (NOW.replace(hour=13, minute=0, second=0), NOW.replace(hour=14, minute=0, second=0))
        assert reader.last["box"] == "mill"
        assert f"mill  {since.astimezone():%H:%M}-{until.astimezone():%H:%M}" in seen(app)
        await pilot.press("l", "l")
        assert reader.last == {"span_s": 86_400, "box": "mill"} and "mill  all of it" in seen(app)
        await pilot.press("c", "c")
        assert reader.last == {"span_s": 86_400, "box": "mill", "cause": "T"} and "T heat alone" in seen(app)
        await pilot.press("right_square_bracket", "h")
        assert ("throttle", {"span_s": 604_800}) in reader.asked and "the last 7 days" in seen(app)
        assert app.scene.window.span_s == 604_800, "the window is that of all pages"
        length = datetime.fromisoformat(reader.last["until"]) - datetime.fromisoformat(reader.last["since"])
        assert timedelta(hours=1) < length <= timedelta(hours=6)
        await pilot.press("left_square_bracket", "s")
        names = ["any box", "beelink", "mill", "old", "spark", "spark2", "xeon"]
        assert [one.name for one in throttle_page(app).boxes()] == names
        await pilot.press("slash", *"spark", "enter")
        assert [one.name for one in throttle_page(app).boxes()] == ["spark", "spark2"] and "/spark" in seen(app)

    reader = Written()
    fly(four_boxes(), flight, reader=reader)


def test_enter_opens_the_box_at_that_time_and_the_job() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("3", "tab", "j", "enter")
        assert app.screen_page() == "job" and any(name == "job" and a["job_id"] == "5169" for name, a in reader.asked)
        await pilot.press("escape", "tab", "j", "j", "h", "h", "h", "enter")
        assert app.screen_page() == "box" and app.frozen is not None and "SCRUB" in seen(app)
        at = app.scene.at()
        assert at is not None and abs(at - NOW.replace(hour=12, minute=30, second=0)) < timedelta(seconds=2)

    reader = Written()
    fly(four_boxes(), flight, reader=reader)


def test_scrubbing_and_the_mouse_go_through_the_hours() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("3", "right_square_bracket", "left_square_bracket", *["comma"] * 6)
        at = app.scene.at()
        assert at is not None and at < NOW
        since, until = (datetime.fromisoformat(reader.last[name]) for name in ("since", "until"))
        assert since <= at < until, "the hour under the scrubbed instant is the one that is asked about"
        await pilot.press("escape")
        assert app.scene.at() is None and app.screen_page() == "throttle"
        lines = seen(app).split("\n")
        y = next(y for y, line in enumerate(lines) if line.startswith("  old "))
        await pilot.click(offset=(lines[y].index("P"), y))
        assert reader.last["box"] == "old" and datetime.fromisoformat(reader.last["since"]) < NOW - timedelta(hours=22)
        y = next(y for y, line in enumerate(seen(app).split("\n")) if "train_lora" in line)
        await pilot.click(offset=(20, y))
        page = throttle_page(app)
        assert page.on_jobs and page.jobs[page.job_index].name == "train_lora"

    reader = Written()
    fly(four_boxes(), flight, reader=reader)


def test_an_answer_that_failed_is_said() -> None:
    """D13: one line, nothing else."""

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("3", "j", "h", "c", "tab", "enter")
        assert app.screen_page() == "throttle" and "not asked: there is no database here" in seen(app)

    fly(four_boxes(), flight, reader=Canned())


def test_a_hundred_boxes_scroll() -> None:
    names = [f"box{n:03d}" for n in range(100)]
    canned = Canned(answers(NOW, names))

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("3", "s", "G")
        assert "> box099" in seen(app) and "101 of 101" in seen(app)
        await pilot.press("g")
        assert "> any box" in seen(app)

    fly(four_boxes(), flight, (80, 24), reader=canned)
