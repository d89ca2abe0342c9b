"""Whole frames as text, compared with goldens that a person has looked at. UPDATE_GOLDENS=1 writes them anew."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from flightdeck.frame import render_frame
from tests.deck.fleet_data import FleetData, four_boxes, hostile_fleet, one_box, three_boxes, twelve_boxes, update

GOLDENS = Path(__file__).parent / "snapshots"

FRAMES: dict[str, tuple[Callable[[], FleetData], tuple[int, int], dict[str, Any]]] = {
    "four-80x24": (four_boxes, (80, 24), {}),
    "four-120x40": (four_boxes, (120, 40), {}),
    "four-210x50": (four_boxes, (210, 50), {}),
    "three-166x36": (three_boxes, (166, 36), {}),
    "one-80x24": (one_box, (80, 24), {}),
    "twelve-80x24": (twelve_boxes, (80, 24), {}),
    "twelve-120x40": (twelve_boxes, (120, 40), {}),
    "twelve-210x50": (twelve_boxes, (210, 50), {}),
    "four-120x40-ascii": (four_boxes, (120, 40), {"ascii": True}),
    "four-120x40-project": (four_boxes, (120, 40), {"project": "ai_leads"}),
    "four-120x40-open": (four_boxes, (120, 40), {"keys": ["l", "enter"]}),
    "four-120x40-read-only": (four_boxes, (120, 40), {"read_only": True}),
    "four-120x40-confirm": (four_boxes, (120, 40), {"keys": ["p"]}),
    "four-120x40-help": (four_boxes, (120, 40), {"keys": ["question_mark"]}),
    "four-120x40-jobs": (four_boxes, (120, 40), {"keys": ["2"]}),
    "four-120x40-events": (four_boxes, (120, 40), {"keys": ["4"]}),
}


@cache
def drawn(name: str) -> str:
    """One of the frames as it is drawn now."""
    make, size, options = FRAMES[name]
    frame = render_frame(make().first(), size, **({"read_only": False, "store_name": "fleet@postgres"} | options))
    return frame.text + "\n"


@pytest.mark.parametrize("name", FRAMES)
def test_frame_looks_as_it_did(name: str) -> None:
    """And D27: with ASCII data nothing on screen may have another width elsewhere, and nothing is an emoji."""
    text = drawn(name)
    odd = {char for char in text if unicodedata.east_asian_width(char) in ("A", "W", "F") or ord(char) > 0xFFFF}
    assert not odd
    golden = GOLDENS / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDENS"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_ascii_is_ascii() -> None:
    """--ascii: neither chrome nor charts nor names have anything else, and nothing moves."""
    frame = render_frame(hostile_fleet().first(), (120, 60), ascii=True)
    assert frame.text.isascii()


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (210, 50), (300, 100), (50, 9), (61, 17), (100, 15)])
@pytest.mark.parametrize("make", [four_boxes, twelve_boxes, hostile_fleet])
def test_no_row_is_wider_than_the_terminal(make: Callable[[], FleetData], size: tuple[int, int]) -> None:
    """D2, D20: whatever the names, every row fits."""
    lines = render_frame(make().first(), size).text.split("\n")
    assert len(lines) == size[1]
    assert max(cell_len(line) for line in lines) <= size[0]


def test_hostile_names_are_shown_as_typed() -> None:
    """D19: none of them is markup, none becomes a link, none crashes."""
    text = render_frame(hostile_fleet().first(), (210, 100), keys=["2"]).text
    for name in ("[bold]x", "[/]", "[b", "[@click=app.quit]run[/]"):
        assert name[:13] in text


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (210, 50)])
def test_every_metric_absent_at_once(size: tuple[int, int]) -> None:
    """D5: a box whose every reading is missing is drawn, all n/a, with reasons."""
    fleet = twelve_boxes()
    fleet.boxes = [pair for pair in fleet.boxes if pair[0]["box"] == "mute"]
    text = render_frame(fleet.first(), size).text
    assert "n/a" in text
    assert "nan" not in text.lower() and "None" not in text


def test_a_box_without_anything_is_drawn() -> None:
    """D5: a row that holds a name and nothing else."""
    text = render_frame(update(view={"boxes": [{"box": "bare"}]}), (100, 30)).text
    assert "bare" in text and "NO SAMPLES YET" in text


def test_a_dead_box_keeps_its_hour_and_an_end_mark() -> None:
    fleet = twelve_boxes()
    fleet.boxes = [pair for pair in fleet.boxes if pair[0]["box"] == "attic"]
    text = render_frame(fleet.first(), (120, 40)).text
    assert "DOWN" in text and "stalled (76)" in text
    ends = {match.end() for match in re.finditer(r"^.*[\u2801-\u28ff ]x(?= {3})", text, re.MULTILINE)}
    assert len(ends) == 7  # one for each trace, all at the same column
    assert len({line.rindex("x ") for line in text.split("\n") if re.search(r"[\u2801-\u28ff ]x {3}", line)}) == 1


def test_a_lost_gpu_shows_its_last_values_and_their_age() -> None:
    """D1: the others go on; the lost one says when it was last seen."""
    fleet = twelve_boxes()
    fleet.boxes = [pair for pair in fleet.boxes if pair[0]["box"] == "hangar"]
    assert "1 LOST" in render_frame(fleet.first(), (120, 40)).text
    fleet.boxes[0] = (fleet.boxes[0][0], fleet.boxes[0][1].__class__(**{**fleet.boxes[0][1].__dict__, "gpus": 1}))
    fleet.lost["hangar"] = (0,)
    text = render_frame(fleet.first(), (120, 40)).text
    assert "LOST  last" in text and "3m" in text


def test_simulated_boxes_are_labelled_and_real_ones_are_not() -> None:
    lines = render_frame(four_boxes().first(), (210, 50)).text.split("\n")
    assert lines[1].count("simulated") == 3
    assert "simulated" not in lines[1].split("workshop")[1]


def test_no_leader_is_loud() -> None:
    fleet = four_boxes()
    fleet.leader = None
    assert "NO LEADER" in render_frame(fleet.first(), (80, 24)).text.split("\n")[0]


def test_unified_memory_is_called_so() -> None:
    """D4: no 0/0 of VRAM."""
    text = render_frame(one_box().first(), (120, 40)).text
    assert "unified" in text and "0/0" not in text


def test_plain_has_no_colour() -> None:
    """NO_COLOR: weights only."""
    frame = render_frame(four_boxes().first(), (120, 40), plain=True)
    assert "PARKED" in frame.text and "draining 1" in frame.text


def test_themes_draw_the_same_text() -> None:
    texts = {render_frame(four_boxes().first(), (120, 40), theme=theme).text for theme in ("dark", "light", "ansi")}
    assert len(texts) == 1
