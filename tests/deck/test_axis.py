"""The shared time axis: spans, scrubbing, where a column lies, and hours and days read from the database."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from textual.pilot import Pilot

from engine.telemetry.sample import BoxSample
from flightdeck.app import FlightDeckApp
from flightdeck.charts.cells import blocks, limit_mark
from flightdeck.frame import render_frame
from flightdeck.model.axis import SLOTS, SPANS_S, STEPS, Window, edge_text, lay_out, slot_step
from flightdeck.model.slots import STEP_S, slot_of
from flightdeck.model.traces import History
from flightdeck.reader import Canned, question_key
from tests.deck.fleet_data import MONO, NOW, four_boxes, one_box, update
from tests.deck.piloting import StandingClock, fly, seen


def test_spans_go_from_ten_minutes_to_seven_days_and_stop_there() -> None:
    window = Window()
    names = [window.narrower().narrower().name]
    for _ in range(6):
        names.append(window.name)
        window = window.wider()
    assert names == ["10m", "1h", "6h", "24h", "7d", "7d", "7d"]


def test_scrubbing_stays_inside_the_window_and_is_released_past_its_right_edge() -> None:
    window = Window().scrubbed(-1)
    assert window.back_s == window.step_s == 3600 / STEPS
    assert window.scrubbed(-10 * STEPS).back_s == 3600 - window.step_s
    assert window.scrubbed(1).back_s == 0.0
    assert window.scrubbed(1).scrubbed(1).back_s is None
    assert Window().scrubbed(1).back_s is None


def test_an_instant_out_of_sight_of_a_shorter_span_is_let_go() -> None:
    window = Window(3600, 900.0)
    assert window.wider().back_s == 900.0
    assert window.narrower().back_s is None


@pytest.mark.parametrize("span_s", SPANS_S)
@pytest.mark.parametrize("cells", [2, 3, 17, 60, 61, 119, 200, 500])
def test_a_window_fits_its_cells_and_is_whole(cells: int, span_s: int) -> None:
    axis = lay_out(cells, span_s, slot_step(span_s))
    assert axis.used <= cells
    assert axis.slots * axis.columns * slot_step(span_s) >= span_s
    assert axis.slots == 1 or axis.columns * 2 > cells  # no column is wider than it has to be
    end = 10**6
    assert axis.column_of(end, end) == axis.columns - 1
    assert axis.cell_of(axis.columns - 1) == cells - 1 if axis.repeat < 4 else cells - 2
    assert axis.column_of(end - axis.slots * axis.columns, end) is None
    assert all(0 <= axis.cell_of(column) < cells for column in range(axis.columns))


def test_every_span_has_as_many_slots_as_a_history_keeps() -> None:
    assert [slot_step(span_s) for span_s in SPANS_S] == [5, 5, 30, 120, 840]
    assert all(-(-span_s // slot_step(span_s)) <= SLOTS for span_s in SPANS_S)


def test_places_of_the_axis_in_words() -> None:
    assert [edge_text(3600, 0.5), edge_text(604_800, 0.5), edge_text(600, 0.5), edge_text(21_600, 0.0)] == [
        "-30m", "-3.5d", "-5m", "-6h",
    ]  # fmt: skip


def answer(span_s: int, spike_at: int | None = None) -> dict[str, object]:
    """What the database would say: GPU at 50 C, one bucket with a spike to 91, every seventh one missing."""
    step = max(60, -(-span_s // 720))
    end = int(NOW.timestamp())
    starts = list(range((end - span_s) // step * step + step, end, step))
    return {
        "at": starts,
        "step_s": step,
        "box_values": {"cpu_pct": [[1.0, 2.0, 1.5]] * len(starts)},
        "gpu_values": {
            "temp_c": [
                None if index % 7 == 3 else [50.0, 91.0 if index == spike_at else 51.0, 50.4]
                for index in range(len(starts))
            ]
        },
        "box_sums": {"power_ms": [600.0] * len(starts), "thermal_ms": [None] * len(starts)},
        "gpu_sums": {"hw_brake_ms": ["odd", math.nan, None]},
        "mask": [True],
    }


def test_a_spike_of_two_seconds_is_still_there_in_the_24_hour_view() -> None:
    """SPEC 10: minimum and maximum come along, whatever the bucket."""
    history = History(slot_step(86_400))
    history.load_span(answer(86_400, spike_at=200))
    axis = lay_out(24, 86_400, history.step_s)
    columns = history.rings["gpu_c"].columns(slot_of(NOW, history.step_s), axis.slots, axis.columns)
    assert max(pair[1] for pair in columns if pair) == 91.0
    assert sum(pair is not None and pair[1] > 60 for pair in columns) == 1


def test_what_was_not_sampled_is_a_gap_for_days_too() -> None:
    """D6, D31: no bucket, no dot; odd values in an answer are gaps and never an exception."""
    history = History(slot_step(86_400))
    history.load_span(answer(86_400))
    columns = history.rings["gpu_c"].columns(slot_of(NOW, history.step_s), 1, SLOTS)
    assert 90 < columns.count(None) < 120
    assert history.rings["cpu_c"].empty()
    assert history.sampled_source
    odd = History()
    odd.load_span({"at": [NOW.timestamp(), None, "x"], "step_s": None, "box_values": {"cpu_pct": [[1.0], 5, [math.inf, 2, 3]]}})  # fmt: skip
    assert odd.rings["cpu_pct"].empty()
    History().load_span({})


def test_the_sums_follow_the_window() -> None:
    history = History()
    for second in range(0, 3600, 10):
        history.add(BoxSample(box="b", at=NOW - timedelta(seconds=second), power_ms=1000.0))
    end = slot_of(NOW)
    assert history.throttle.totals(end)[0]["P"] == 360_000.0
    assert history.throttle.totals(end, 600 // STEP_S)[0]["P"] == 60_000.0
    day = History(slot_step(86_400))
    day.load_span(answer(86_400))
    assert day.throttle.totals(slot_of(NOW, 120))[0]["P"] == pytest.approx(720 * 600.0, rel=0.01)


def test_the_reading_of_an_instant_is_that_of_its_column() -> None:
    history = History()
    for second in range(0, 600, 2):
        history.add(BoxSample(box="b", at=NOW + timedelta(seconds=second), cpu_pct=float(second)))
    assert history.at("cpu_pct", NOW + timedelta(seconds=300), 5) == (298.0, 302.0)
    pair = history.at("cpu_pct", NOW + timedelta(seconds=300))
    assert pair is not None and pair[0] <= 300 <= pair[1] and pair[1] - pair[0] < 30
    assert history.at("cpu_pct", NOW - timedelta(seconds=300)) is None
    assert history.at("gpu_c", NOW) is None


def test_blocks_draw_gaps_and_the_highest_value() -> None:
    """For terminals without braille. D31."""
    lines = blocks([None, None, (0.0, 10.0), (0.0, 4.0), (math.nan, 1.0), (0.0, 0.0)], (0.0, 10.0), 2)
    assert lines == [" \u2588 ", " \u2588\u2581"]
    assert blocks([], (0.0, 1.0), 2) == ["", ""]


def test_with_blocks_there_is_no_braille(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLIGHTDECK_CHARTS=blocks, --blocks: traces of blocks, frames of ASCII."""
    monkeypatch.setenv("FLIGHTDECK_CHARTS", "blocks")
    text = render_frame(one_box().first(), (120, 40)).text
    assert not any("\u2800" <= char <= "\u28ff" for char in text)
    assert "\u2588" in text and "+-" in text


@pytest.mark.parametrize("charts", ["braille", "blocks", "ascii"])
def test_a_limit_lies_where_its_value_is_drawn(charts: str) -> None:
    assert limit_mark(100.0, (0.0, 100.0), 3, charts)[0] == 0  # type: ignore[index]
    assert limit_mark(1.0, (0.0, 100.0), 3, charts)[0] == 2  # type: ignore[index]
    assert limit_mark(math.nan, (0.0, 100.0), 3, charts) is None


def test_a_limit_is_drawn_only_where_the_hardware_told_one() -> None:
    """Never invented: faint dots at the slowdown temperature and at the power limit."""
    fleet = one_box()

    def dotted(text: str) -> list[str]:
        return [
            line[:10].strip() for line in text.split("\n") if any(dot * 5 in line for dot in "\u2801\u2802\u2804\u2840")
        ]

    assert [line.split()[1] for line in dotted(render_frame(fleet.first(), (120, 40)).text)] == ["GPU", "GPU"]
    for gpu in fleet.boxes[0][0]["facts"]["gpus"]:
        gpu.update(temp_slowdown_c=None, power_limit_w=None)
    assert dotted(render_frame(fleet.first(), (120, 40)).text) == []


def test_window_scrub_and_freeze_are_shared_by_every_box_and_page() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("comma", "comma", "comma")
        assert "SCRUB 14:01:52" in seen(app)
        assert app.frozen is not None
        await pilot.press("4")
        assert "SCRUB 14:01:52" in seen(app).split("\n")[0]
        await pilot.press("comma", "left_square_bracket")
        assert app.scene.window == Window(600, 120.0)
        await pilot.press("escape")
        assert app.scene.window.back_s is None and app.frozen is None
        assert app.screen_page() == "events"
        await pilot.press("escape", "f", "comma", "escape")
        assert app.frozen is not None  # it was frozen before anybody scrubbed
        await pilot.press("f")
        assert app.frozen is None

    fly(four_boxes(), flight)


def test_while_somebody_scrubs_the_instant_stays_where_it_is() -> None:
    fleet = one_box()
    clock = StandingClock()

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        for _ in range(20):
            await pilot.press("comma")
        before = app.scene.at()
        value = app.scene.reading(app.boxes()[0], "gpu_c")
        assert before == NOW - timedelta(seconds=600) and value is not None
        for second in range(2, 120, 2):
            clock.pass_by(2.0)
            app.take_in(fleet.tick(second))
        app.tick()
        assert app.scene.at() == before
        assert app.scene.reading(app.boxes()[0], "gpu_c") == value
        assert f"{value[1]:.0f}" in seen(app)

    fly(fleet, flight, clock=clock)


def test_the_past_that_a_deck_does_not_keep_is_asked_for() -> None:
    """Hours and days come by the question "span", for the boxes on screen, and go with the window."""
    canned = Canned({question_key("span", {"box": "spark", "span_s": 86_400}): answer(86_400, 200)})

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("right_square_bracket")
        assert "6 hours" in seen(app) and not app.deck.pasts
        await pilot.press("right_square_bracket")
        text = seen(app)
        assert ("spark", 86_400) in app.deck.pasts
        assert "24h" in text.split("\n")[0] and "last 24 hours"[:10] in text
        assert "P ~432 s power" in text and "none in" not in text
        await pilot.press("comma")  # a frozen picture learns of what it asked for, too
        await pilot.press("left_square_bracket", "right_square_bracket")
        assert ("spark", 86_400) in app.scene.deck.pasts
        await pilot.press("escape", "left_square_bracket", "left_square_bracket")
        assert not app.deck.pasts
        app.take_in(update(mono=MONO + 1))

    fly(one_box(), flight, reader=canned)


def test_power_at_its_cap_is_no_alarm() -> None:
    """D28: information, in the colour of information."""
    from flightdeck.widgets.throttle_strip import TONES

    assert TONES["P"] == "info" and TONES["T"].startswith("bad")
