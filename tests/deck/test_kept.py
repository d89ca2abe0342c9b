"""What is kept from one drawing to the next: whatever happens between them, it looks as if drawn from nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from textual.pilot import Pilot

from engine.telemetry.sample import BoxSample, GpuSample
from flightdeck.app import FlightDeckApp
from flightdeck.model.axis import SPANS_S, Window, lay_out
from flightdeck.model.deck import Clock, Deck
from flightdeck.model.fleet import Box
from flightdeck.model.metrics import BY_KEY
from flightdeck.schedule import MEET_S, TICK_S, meeting
from flightdeck.widgets.box_card import card, opened
from flightdeck.widgets.lines import ASCII, BLOCKS, UNICODE, Line, LineView
from flightdeck.widgets.scene import Cursor, Scene
from flightdeck.widgets.trace_picture import TraceCache, picture_of
from tests.deck.fleet_data import MONO, NOW, box_row, four_boxes, job, lane, three_boxes, update
from tests.deck.piloting import StandingClock, fly


def some_sample(box: str, dice: random.Random, ago_s: float) -> BoxSample:
    """Readings that jump, stay, or are not there."""

    def reading(low: float, high: float) -> float | None:
        return dice.choice([None, low, round(dice.uniform(low, high)), high])

    gpu = GpuSample(
        gpu_index=0, gpu_uuid=f"GPU-{box}-0", temp_c=reading(30, 95), power_w=reading(10, 480), sm_mhz=reading(200, 2700),
        util_pct=reading(0, 100), sw_power_ms=reading(0, 2000), brakes=dice.choice([None, 0, 1]),
    )  # fmt: skip
    return BoxSample(
        box=box, at=NOW + timedelta(seconds=-ago_s), cpu_pct=reading(0, 100), load1=reading(0, 9),
        cpu_temp_c=reading(40, 99), cpu_mhz=reading(800, 5200), net_rx_bps=reading(0, 3e7), mem_used_mb=reading(0, 9e4),
        gpus=(gpu,),
    )  # fmt: skip


class Flight:
    """A deck to which things happen, and a scene that keeps what it has drawn."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.passed = 0.0
        self.deck = Deck(Clock(lambda: MONO + self.passed, lambda: NOW + timedelta(seconds=self.passed)))
        self.deck.apply(three_boxes().first())
        self.scene = Scene(self.deck)
        self.size = (69, 47)

    def sample(self) -> None:
        box = self.dice.choice(["beelink", "spark", "spark2"])
        late_s = self.dice.choice([0.0, 0.0, 0.0, 7.0, 90.0])
        sample = some_sample(box, self.dice, late_s - self.passed)
        at = NOW + timedelta(seconds=self.passed)
        self.deck.apply(update(at=at, mono=MONO + self.passed, samples=(sample,)))

    def time(self) -> None:
        self.passed += self.dice.choice([0.3, 2.0, 2.0, 2.0, 6.0, 31.0, 400.0])

    def view(self) -> None:
        fleet = three_boxes()
        row, _ = fleet.boxes[self.dice.randrange(3)]
        row["lanes"] = [lane("gpu", self.dice.choice(["", "ai_leads"]), busy=self.dice.randrange(3), last_seen_s=self.dice.choice([1.0, 29.0, 80.0]))]  # fmt: skip
        row["jobs"] = [
            job(7, "render", "gpu", age_s=self.dice.uniform(1, 9999), progress_pct=self.dice.uniform(0, 100))
        ]
        if self.dice.random() < 0.3:
            row["facts"]["gpus"] = []
        self.deck.apply(update(at=NOW + timedelta(seconds=self.passed), mono=MONO + self.passed, view=fleet.view()))

    def look(self) -> None:
        scene, dice = self.scene, self.dice
        what = dice.randrange(5)
        if what == 0:
            scene.window = Window(dice.choice(SPANS_S), dice.choice([None, None, 0.0, 250.0]))
        elif what == 1:
            scene.window = scene.window.scrubbed(-3)
        elif what == 2:
            scene.window = scene.window.released()
        elif what == 3:
            scene.cursor = Cursor(
                dice.choice(["spark", "beelink"]), dice.choice(["cpu", "gpu"]), dice.choice(["", "7"])
            )
        elif what == 3:
            scene.project = dice.choice([None, "ai_leads", "lm_content"])
        else:
            scene.glyphs = dice.choice([UNICODE, ASCII, BLOCKS])

    def point(self) -> None:
        dice = self.dice
        self.scene.cursor = Cursor(
            dice.choice(["spark", "beelink"]), dice.choice(["cpu", "gpu"]), dice.choice(["", "7"])
        )

    def resize(self) -> None:
        self.size = (self.dice.randrange(46, 120), self.dice.randrange(12, 50))

    def draw(self, scene: Scene, box: Box) -> list[Line]:
        draw = card if self.size[0] < 100 else opened
        return [list(line) for line in draw(scene, box, *self.size).lines]

    def fresh(self) -> Scene:
        """The same, of which nothing was ever drawn."""
        deck = self.deck.frozen_copy()
        deck._rows = {}
        for history in [*deck.histories.values(), *deck.pasts.values()]:
            history.throttle._letters.clear()
            for ring in history.rings.values():
                ring._drawn.clear()
        return replace(self.scene, deck=deck, traces=TraceCache(), lane_lines={})


_STEPS = ["sample", "sample", "sample", "time", "time", "view", "look", "look", "point", "point", "resize"]


@settings(max_examples=30, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # to shrink one takes minutes
@given(st.integers(0, 10**6), st.lists(st.sampled_from(_STEPS), min_size=1, max_size=8))
def test_a_card_that_was_drawn_before_looks_as_if_drawn_from_nothing(seed: int, steps: list[str]) -> None:
    """Ages, late readings, another window, theme of characters, size, cursor, hardware: nothing old stays on the screen."""
    flight = Flight(seed)
    for step in steps:
        getattr(flight, step)()
        box = flight.deck.boxes()[seed % 2]
        fresh = flight.draw(flight.fresh(), box)
        assert flight.draw(flight.scene, box) == fresh


def test_an_axis_that_another_drawing_has_changed_is_the_one_that_is_printed() -> None:
    """The page of a box and the fleet share the ranges of a box."""
    deck = Deck(StandingClock())
    deck.apply(three_boxes().first())
    box = deck.boxes()[1]
    past, metric, axis = deck.history(box), BY_KEY["gpu_c"], lay_out(40, 3600, 5)
    columns = past.rings[metric.key].columns(deck.end_slot(box), axis.slots, axis.columns)
    before = picture_of(None, box, past, metric, columns, axis, 3, "braille")
    assert picture_of(before, box, past, metric, columns, axis, 3, "braille") is before
    past.ranges[metric.key] = (before.scale[0] - 20.0, before.scale[1] + 20.0)
    after = picture_of(before, box, past, metric, columns, axis, 3, "braille")
    assert after.scale == past.ranges[metric.key] and after.printed != before.printed and after.dots != before.dots


def _lines(app: FlightDeckApp) -> list[list[Line]]:
    return [view._lines for view in app.screen.query(LineView)]


@pytest.mark.parametrize("seed", range(2))
def test_a_screen_after_many_updates_looks_as_if_drawn_from_nothing(seed: int) -> None:
    """Header, cards, events and keys; what was told to stay on the screen is what would be drawn now."""
    dice, clock, fleet = random.Random(seed), StandingClock(), four_boxes()

    def sample() -> None:
        app_of[0].take_in(fleet.tick(clock.passed))

    def view() -> None:
        other = three_boxes() if dice.random() < 0.3 else four_boxes()
        other.events = other.events[: dice.randrange(4)]
        other.projects = other.projects[: dice.randrange(1, 4)]
        other.leader = dice.choice([None, other.leader])
        other.boxes.append((box_row("new", other.boxes[0][1], [lane("cpu")], []), other.boxes[0][1]))
        app_of[0].take_in(update(view=other.view(), mono=MONO + clock.passed, at=NOW + timedelta(seconds=clock.passed)))

    def lost() -> None:
        app_of[0].take_in(update(state="lost", at=None, mono=MONO + clock.passed, error="gone", lost_since_mono=MONO))

    app_of: list[FlightDeckApp] = []
    happens: list[Callable[[], object]] = [
        sample, sample, sample, view, lost,
        lambda: clock.pass_by(dice.choice([0.4, 1.0, 2.0, 11.0, 35.0])),
        lambda: app_of[0].say("something", "bad", dice.choice([0.5, 3.0])),
        lambda: app_of[0].action_act(dice.choice(["right", "down", "project_next", "wider", "scrub_back", "back", "theme", "sort", "seen", "freeze"])),
        lambda: app_of[0].tick(),
    ]  # fmt: skip

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        app_of.append(app)
        for _ in range(15):
            dice.choice(happens)()
            app.flush()
            app.tick()
            await pilot.pause()
            page = app.page()
            assert page is not None
            page.redraw()
            shown = _lines(app)
            page._made.clear()
            app.scene.traces, app.scene.lane_lines = TraceCache(), {}
            for view in app.screen.query(LineView):
                view._lines = []
            page.redraw()
            drawn = [made or old for made, old in zip(_lines(app), shown, strict=True)]  # what is hidden is not drawn
            assert drawn == shown

    fly(fleet, flight, size=(150, 46), clock=clock)


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=12))
def test_a_tick_that_is_moved_meets_all_samples(phases: list[float]) -> None:
    """None of them waits longer than it may; where one would have to, the tick stays."""
    phase = meeting(phases)
    if phase is not None:
        assert all((phase - at) % TICK_S <= MEET_S for at in phases)
    else:
        assert len(phases) > 2


def test_the_tick_meets_three_boxes_that_sample_in_turn() -> None:
    assert meeting([0.1, 0.433, 0.767]) is not None
