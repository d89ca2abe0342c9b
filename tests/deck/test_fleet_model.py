"""Lanes: what is wanted against what is; counts; merging; rows that make no sense."""

from __future__ import annotations

from typing import Any

import pytest

from flightdeck.model.deck import Deck
from flightdeck.model.fleet import merge_lanes
from flightdeck.model.lanes import counts, exit_text, lane_word
from flightdeck.model.view import read_view
from flightdeck.widgets.lane_row import lane_row
from flightdeck.widgets.lines import UNICODE
from tests.deck.fleet_data import MONO, four_boxes, lane, twelve_boxes, update
from tests.deck.piloting import StandingClock


def words(**over: Any) -> str:
    view = read_view({"boxes": [{"box": "b", "lanes": [lane("gpu", **over)]}]})
    return lane_word(view.boxes[0].lanes[0]).text


@pytest.mark.parametrize(
    ("over", "word"),
    [
        ({}, "ON"),
        ({"desired": "off"}, "parking..."),
        ({"desired": "off", "state": "parking"}, "parking..."),
        ({"desired": "off", "state": "parked"}, "PARKED"),
        ({"desired": "off", "policy": "drain", "busy": 3, "slots": 4}, "draining 3"),
        ({"desired": "off", "state": "draining", "busy": 1}, "draining 1"),
        ({"state": "parked"}, "resuming..."),
        ({"state": "starting"}, "starting..."),
        ({"state": "refused"}, "REFUSED"),
        ({"last_seen_s": 31.0}, "DOWN"),
        ({"flagged": True}, "DOWN"),
        ({"state": "stopping", "busy": 0, "last_seen_s": 99.0}, "ended"),
        ({"state": "stopping", "busy": 1}, "stopping"),
        ({"state": "stopping", "busy": 1, "last_seen_s": 99.0}, "DOWN"),
        ({"desired": "off", "state": "parked", "last_seen_s": 99.0}, "DOWN"),
    ],
)
def test_desired_and_actual_are_never_confused(over: dict[str, Any], word: str) -> None:
    """SPEC 11: ``parking...`` until the lane itself says parked."""
    assert words(**over) == word
    assert len(word) <= 12


@pytest.mark.parametrize("over", [{"state": "starting"}, {"state": "parked"}, {"busy": 10, "state": "draining"}])
def test_what_a_lane_does_stands_apart_from_what_waits_for_it(over: dict[str, Any]) -> None:
    """At 120 columns a card has 56 cells inside: "0 queuedstarting..." was one word."""
    view = read_view({"boxes": [{"box": "b", "lanes": [lane("gpu", queued=0, slots=16, **over)]}]})
    for width in range(46, 80):
        for words in (True, False):
            line = lane_row(view.boxes[0].lanes[0], width, UNICODE, False, 0.0, words)
            text = "".join(text for text, _ in line)
            assert len(text) == width
            assert "0 queued " in text and text.endswith(f" {lane_word(view.boxes[0].lanes[0]).text}")


def test_a_lane_goes_down_while_nothing_new_is_read() -> None:
    """Ages are computed when drawn: an unchanged view does not keep a silent lane alive."""
    view = read_view({"boxes": [{"box": "b", "lanes": [lane("gpu", last_seen_s=20.0)]}]})
    assert lane_word(view.boxes[0].lanes[0], 5.0).text == "ON"
    assert lane_word(view.boxes[0].lanes[0], 15.0).text == "DOWN"


def test_all_shows_one_row_per_queue_and_says_when_they_differ() -> None:
    lanes = [
        lane("gpu", "a", slots=1, busy=1, queued=5),
        lane("gpu", "b", slots=2, queued=7, desired="off", state="parked"),
    ]
    merged = merge_lanes(read_view({"boxes": [{"box": "b", "lanes": lanes}]}).boxes[0].lanes)
    assert len(merged) == 1
    assert (merged[0].slots, merged[0].busy, merged[0].queued) == (3, 1, 12)
    assert lane_word(merged[0]).text == "1 of 2 ON"
    assert [part.raw_project for part in merged[0].parts] == ["a", "b"]
    lanes = [lane("gpu", of, slots=2, busy=n, state="draining") for of, n in (("a", 1), ("b", 2))]
    merged = merge_lanes(read_view({"boxes": [{"box": "b", "lanes": lanes}]}).boxes[0].lanes)
    assert lane_word(merged[0]).text == "draining 3"


def test_parked_lanes_are_counted_once_each() -> None:
    """D18."""
    view = read_view(four_boxes().view())
    assert counts(view.boxes) == (1, 1, 0)
    assert counts(read_view(twelve_boxes().view()).boxes) == (1, 1, 1)


@pytest.mark.parametrize(
    "junk",
    [{}, {"boxes": None}, {"boxes": [None, 3, {}]}, {"boxes": [{"box": None, "lanes": "x", "jobs": [1], "facts": [], "simulated": "?"}]},
     {"boxes": [{"box": "b", "facts": {"gpus": [{}, None], "cores": "many"}, "lanes": [{}], "jobs": [{}]}]},
     {"boxes": [{"box": "b", "facts": {"mem_mb": 10**400, "cores": -(10**400), "gpus": [{"index": 10**400, "mem_mb": 10**400}]}}]},
     {"events": [{"at": "yesterday"}, {"at": 5}], "projects": [{}], "leader": 7, "store": {"kind": "x"}},
     {"boxes": [{"box": "b", "lanes": [lane("q", slots=float("nan"), busy="3", last_seen_s=True)]}]}],
)  # fmt: skip
def test_rows_that_make_no_sense_are_read_without_harm(junk: dict[str, Any]) -> None:
    read_view(junk)


def test_exit_codes_are_explained() -> None:
    assert exit_text(76) == "stalled (76)"
    assert exit_text(-9, "oom") == "killed by signal 9: oom"
    assert exit_text(None) == ""
    assert exit_text(3) == "exit code 3"


def test_a_box_that_only_sends_samples_is_a_box() -> None:
    """A valid hw_metrics of any program appears as that box."""
    fleet = four_boxes()
    deck = Deck(StandingClock())
    changed, urgent = deck.apply(update(samples=fleet.tick(0).samples[:1]))
    assert urgent and changed == {"beelink"}
    assert [box.name for box in deck.boxes()] == ["beelink"]
    assert deck.box_state(deck.boxes()[0]) == "up"


def test_a_box_goes_late_then_down() -> None:
    clock = StandingClock()
    deck = Deck(clock)
    fleet = four_boxes()
    deck.apply(update(samples=fleet.tick(0).samples))
    states = []
    for _ in range(4):
        states.append(deck.box_state(deck.boxes()[0]))
        clock.pass_by(11.0)
    assert states == ["up", "late", "late", "down"]


def test_nothing_is_judged_while_the_database_is_away() -> None:
    """D13: what was up stays as it was seen last; the banner's ages go on."""
    clock = StandingClock()
    deck = Deck(clock)
    deck.apply(four_boxes().first())
    deck.apply(update(state="lost", at=None, mono=MONO + 1, error="gone", next_try_s=2.0, lost_since_mono=MONO + 1))
    clock.pass_by(300.0)
    assert {deck.box_state(box) for box in deck.boxes()} == {"up"}
    assert deck.live_age() == 300.0


def test_ages_alone_are_no_change() -> None:
    """A view that differs only in ages redraws nothing at once."""
    fleet = four_boxes()
    deck = Deck(StandingClock())
    deck.apply(fleet.first())
    _, urgent = deck.apply(update(view=fleet.view()))
    assert not urgent
    fleet.boxes[0][0]["lanes"][0]["state"] = "parking"
    changed, urgent = deck.apply(update(view=fleet.view()))
    assert urgent and changed == {"beelink"}


def test_a_frozen_picture_does_not_move() -> None:
    fleet = four_boxes()
    deck = Deck(StandingClock())
    deck.apply(fleet.first())
    still = deck.frozen_copy()
    before = still.histories["spark"].rings["cpu_pct"].columns(still.end_slot(still.boxes()[1]), 12, 20)
    for second in range(2, 200, 2):
        deck.apply(fleet.tick(second))
    after = still.histories["spark"].rings["cpu_pct"].columns(still.end_slot(still.boxes()[1]), 12, 20)
    assert before == after
    assert still.histories["spark"].latest is not deck.histories["spark"].latest
