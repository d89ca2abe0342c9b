"""The read model takes apart only what is different, and then knows what one knows that reads everything anew."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from engine.telemetry.sample import BoxSample, GpuSample
from flightdeck.model import metrics
from flightdeck.model.deck import Deck
from flightdeck.model.fleet import Box
from flightdeck.model.lanes import counts
from flightdeck.model.view import read_view
from flightdeck.recording import Recording, Writer
from tests.deck.fleet_data import KINDS, MONO, NOW, box_row, job, lane, update
from tests.deck.piloting import StandingClock


class Source:
    """Views as the feed makes them: a box that did not change is the same row, with the ages of then."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.passed = 0.0
        self.rows: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []

    @property
    def at(self) -> datetime:
        return NOW + timedelta(seconds=self.passed)

    def step(self) -> dict[str, Any]:
        """Some boxes beat, change, go, come, are renamed; some seconds pass."""
        rng = self.rng
        self.passed += rng.choice([0.5, 1.0, 2.0, 17.0])
        for _ in range(rng.randrange(3)):
            name = f"box{rng.randrange(5)}"
            match rng.randrange(5):
                case 0:
                    self.rows.pop(name, None)
                case 1 if name in self.rows:
                    row = self.rows.pop(name)
                    self.rows[name + "x"] = {**row, "box": name + "x", "at": self.at.isoformat()}
                case 2:
                    self.events = [{"id": str(rng.randrange(99)), "type": "failed", "text": "x"}, *self.events[:3]]
                case _:
                    lanes = [
                        lane(queue, last_seen_s=rng.choice([0.0, 3.0, 31.0, None]), busy=rng.randrange(3))
                        for queue in ("gpu", "cpu")[: rng.randrange(3)]
                    ]
                    jobs = [job(n, "x", "gpu", age_s=float(rng.randrange(900))) for n in range(rng.randrange(3))]
                    self.rows[name] = box_row(name, KINDS["rtx"], lanes, jobs, at=self.at.isoformat())
        return {"at": self.at.isoformat(), "boxes": list(self.rows.values()), "events": self.events, "leader": None}

    def update(self) -> Any:
        view = self.step()
        return update(at=self.at, mono=MONO + self.passed, view=view)


def fresh(view: dict[str, Any], at: datetime) -> dict[str, Any]:
    """The same view as one whose ages were all taken at its own time."""

    def aged(row: dict[str, Any], age: str, passed_s: float) -> dict[str, Any]:
        return row if row[age] is None else {**row, age: row[age] + passed_s}

    rows = []
    for row in view["boxes"]:
        passed_s = (at - datetime.fromisoformat(row["at"])).total_seconds()
        lanes = [aged(one, "last_seen_s", passed_s) for one in row["lanes"]]
        rows.append({**row, "lanes": lanes, "jobs": [aged(one, "age_s", passed_s) for one in row["jobs"]]})
        del rows[-1]["at"]
    return {**view, "boxes": rows}


def alike(one: Deck, other: Deck) -> bool:
    """Whether two decks know the same of their boxes, ages as they are now included."""
    (boxes, ages), (other_boxes, other_ages) = known(one), known(other)
    same = one.view.events == other.view.events and one.view.leader == other.view.leader
    return same and boxes == other_boxes and ages == pytest.approx(other_ages, abs=1e-3)


def known(deck: Deck) -> tuple[list[Box], list[float]]:
    ages: list[float] = []

    def still(box: Box) -> Box:
        since = deck.view_age()
        ages.extend(one.last_seen_s + since for one in box.lanes if one.last_seen_s is not None)
        ages.extend(one.age_s + since for one in box.jobs if one.age_s is not None)
        lanes = tuple(replace(one, last_seen_s=None) for one in box.lanes)
        return replace(box, lanes=lanes, jobs=tuple(replace(one, age_s=None) for one in box.jobs))

    return [still(box) for box in deck.boxes()], ages


@pytest.mark.parametrize("seed", range(4))
def test_a_deck_that_reuses_boxes_knows_what_a_new_one_knows(seed: int) -> None:
    """Also of a box that goes, comes back, is renamed; whatever time passes between two views."""
    source, clock = Source(seed), StandingClock()
    deck = Deck(clock)
    for _ in range(80):
        news = source.update()
        before = {box.raw: box for box in deck.boxes()}
        clock.passed = source.passed
        changed, _ = deck.apply(news)
        other = Deck(clock)
        other.apply(replace(news, view=fresh(news.view, source.at)))
        assert alike(deck, other)
        clock.passed += source.rng.choice([0.0, 0.4, 12.0])
        assert deck.standing() == counts(deck.view.boxes, deck.view_age())
        for box in deck.boxes():
            assert box == before.get(box.raw) or box.raw in changed


def test_a_box_that_did_not_change_is_the_same_value() -> None:
    rows = [box_row(name, KINDS["rtx"], [lane("gpu")], [], at=NOW.isoformat()) for name in ("a", "b")]
    deck = Deck(StandingClock())
    deck.apply(update(view={"at": NOW.isoformat(), "boxes": rows}))
    first = deck.boxes()
    later = NOW + timedelta(seconds=3)
    rows[1] = {**rows[1], "at": later.isoformat()}
    changed, urgent = deck.apply(update(at=later, mono=MONO + 3, view={"at": later.isoformat(), "boxes": rows}))
    assert deck.boxes()[0] is first[0] and changed == {"b"} and not urgent
    assert deck.boxes()[1].lanes[0].last_seen_s == pytest.approx((first[1].lanes[0].last_seen_s or 0.0) - 3.0)


@pytest.mark.parametrize(("at_s", "mono_s"), [(-30.0, 2.0), (3600.0, 2.0), (2.0, 600.0)])
def test_a_clock_that_was_set_does_not_move_the_ages(at_s: float, mono_s: float) -> None:
    """The database's clock jumps, or the deck slept: ages are those that the new view says."""
    clock = StandingClock()
    deck = Deck(clock)
    deck.apply(update(view={"at": NOW.isoformat(), "boxes": [box_row("a", KINDS["rtx"], [lane("gpu")], [])]}))
    clock.passed, at = mono_s, NOW + timedelta(seconds=at_s)
    row = box_row("a", KINDS["rtx"], [lane("gpu", last_seen_s=4.0)], [], at=at.isoformat())
    deck.apply(update(at=at, mono=MONO + mono_s, view={"at": at.isoformat(), "boxes": [row]}))
    assert (deck.boxes()[0].lanes[0].last_seen_s or 0.0) + deck.view_age() == pytest.approx(4.0)


def test_a_recording_of_such_views_plays_the_same(tmp_path: Path) -> None:
    source = Source(9)
    updates = [source.update() for _ in range(60)]
    writer = Writer(tmp_path / "r.jsonl", "fleet")
    for one in updates:
        writer.update(one)
    writer.close()
    recording = Recording.load(tmp_path / "r.jsonl")
    clocks = StandingClock(), StandingClock()
    live, played = (Deck(clock) for clock in clocks)
    for was, now in zip(updates, recording.updates(0, len(updates), updates[0].mono), strict=True):
        for clock in clocks:
            clock.passed = was.mono - MONO
        live.apply(was)
        played.apply(now)
        assert alike(live, played)


def test_readings_taken_at_once_are_those_taken_one_by_one() -> None:
    rng = random.Random(3)

    def some() -> Any:
        return rng.choice([None, 1.0, 2, 50.5, -3.0, float("nan"), float("inf")])

    for _ in range(2000):
        cards = tuple(
            GpuSample(n, temp_c=some(), power_w=some(), sm_mhz=some(), util_pct=some()) for n in range(rng.randrange(4))
        )
        row = BoxSample("b", NOW, cpu_pct=some(), cpu_temp_c=some(), net_rx_bps=some(), gpus=cards)
        assert metrics.spans(row) == [metrics._span(row, metric) for metric in metrics.METRICS]


def test_a_lane_reads_the_same_the_second_time_and_with_odd_values() -> None:
    """What is kept of a lane is kept by value and kind: 1 is no True, and a list is no word."""
    odd = {
        "slots": True,
        "busy": [1],
        "state": {"x": 1},
        "last_exit_reason": "r",
        "last_exit_code": 3,
        "requested_by": "me",
    }
    for over in ({}, odd, {"slots": 1}, {"slots": 1.0}, {"slots": True}):
        for _ in range(2):
            (found,) = read_view({"boxes": [{"box": "b", "lanes": [lane("gpu", "p", **over)]}]}).boxes[0].lanes
            assert (found.queue, found.raw_project, found.slots) == ("gpu", "p", 0 if over.get("slots") is True else 1)
            if over is odd:
                assert (found.busy, found.exit_reason, found.exit_code, found.ordered_by) == (0, "r", 3, "me")
