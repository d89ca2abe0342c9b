"""Whole frames as text, compared with goldens that a person has looked at. UPDATE_GOLDENS=1 writes them anew."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from rich.cells import cell_len

from engine.feed import FeedUpdate
from flightdeck.frame import Frame, Shot, render_frame, render_frames
from tests.deck.fleet_data import FleetData, four_boxes, hostile_fleet, lane, one_box, three_boxes, twelve_boxes, update
from tests.deck.goldens import same_as_goldens


def rough(fleet: FleetData) -> FeedUpdate:
    """A start with an hour of minutes, where its looks do not matter."""
    return update(view=fleet.view(), history=fleet.hour(60))


def at_sizes(fleet: FleetData, *sizes: tuple[int, int]) -> list[Frame]:
    """One deck at several sizes."""
    shots = {str(size): Shot(size=size) for size in sizes}
    return list(render_frames(rough(fleet), shots, svg=False).values())


SIZES = {"80x24": (80, 24), "120x40": (120, 40), "210x50": (210, 50)}

# Each entry is one deck; its frames differ by size and keys.
DECKS: dict[str, tuple[Callable[[], FleetData], dict[str, Shot], dict[str, Any]]] = {
    "four": (four_boxes, {name: Shot(size=size) for name, size in SIZES.items()}, {}),
    "three": (three_boxes, {"166x36": Shot(size=(166, 36))}, {}),
    "one": (one_box, {"80x24": Shot(size=(80, 24))}, {}),
    "twelve": (twelve_boxes, {name: Shot(size=size) for name, size in SIZES.items()}, {}),
    "ascii": (four_boxes, {"120x40": Shot()}, {"ascii": True}),
    "project": (four_boxes, {"120x40": Shot()}, {"project": "ai_leads"}),
    "read-only": (four_boxes, {"120x40": Shot()}, {"read_only": True}),
}


@pytest.mark.parametrize("name", DECKS)
def test_the_fleet_looks_as_it_did(name: str) -> None:
    """And D27: with ASCII data nothing on screen may have another width elsewhere, and nothing is an emoji."""
    make, shots, looks = DECKS[name]
    options: dict[str, Any] = {"read_only": False, "store_name": "fleet@postgres"} | looks
    frames = render_frames(make().first(), shots, svg=False, **options)
    same_as_goldens({f"fleet-{name}-{size}": frame for size, frame in frames.items()})


def test_ascii_is_ascii() -> None:
    """--ascii: neither chrome nor charts nor names have anything else, and nothing moves."""
    frame = render_frame(rough(hostile_fleet()), (120, 60), ascii=True, svg=False)
    assert frame.text.isascii()


@pytest.mark.parametrize("make", [four_boxes, twelve_boxes, hostile_fleet])
def test_no_row_is_wider_than_the_terminal(make: Callable[[], FleetData]) -> None:
    """D2, D20: whatever the names, every row fits."""
    sizes = [(80, 24), (120, 40), (210, 50), (300, 100), (50, 9), (61, 17), (100, 15)]
    for size, frame in zip(sizes, at_sizes(make(), *sizes), strict=True):
        lines = frame.text.split("\n")
        assert len(lines) == size[1]
        assert max(cell_len(line) for line in lines) <= size[0]


def test_hostile_names_are_shown_as_typed() -> None:
    """D19: none of them is markup, none becomes a link, none crashes."""
    text = render_frame(rough(hostile_fleet()), (210, 160), svg=False).text
    for name in ("[bold]x", "[/]", "[b", "[@click=app.quit]run[/]"):
        assert name[:13] in text


def test_every_metric_absent_at_once() -> None:
    """D5: a box whose every reading is missing is drawn, all n/a, with reasons."""
    fleet = twelve_boxes()
    fleet.boxes = [pair for pair in fleet.boxes if pair[0]["box"] == "mute"]
    for frame in at_sizes(fleet, *SIZES.values()):
        assert "n/a" in frame.text
        assert "nan" not in frame.text.lower() and "None" not in frame.text


def test_a_box_without_anything_is_drawn() -> None:
    """D5: a row that holds a name and nothing else."""
    text = render_frame(update(view={"boxes": [{"box": "bare"}]}), (100, 30), svg=False).text
    assert "bare" in text and "NO SAMPLES YET" in text


def test_a_dead_box_keeps_its_hour_and_an_end_mark() -> None:
    fleet = twelve_boxes()
    fleet.boxes = [pair for pair in fleet.boxes if pair[0]["box"] == "attic"]
    text = render_frame(fleet.first(), (120, 40), svg=False).text
    assert "DOWN" in text and "stalled (76)" in text
    ends = {match.end() for match in re.finditer(r"^.*[\u2801-\u28ff ]x(?= {3})", text, re.MULTILINE)}
    assert len(ends) == 7  # one for each trace, all at the same column
    assert len({line.rindex("x ") for line in text.split("\n") if re.search(r"[\u2801-\u28ff ]x {3}", line)}) == 1


@pytest.mark.parametrize(("busy", "word"), [(0, "ended"), (1, "DOWN")])
def test_a_box_that_was_stopped_in_order_is_not_down(busy: int, word: str) -> None:
    """In its row, in its card, on its page; one that left work behind is down."""
    fleet = twelve_boxes()
    fleet.boxes = [pair for pair in fleet.boxes if pair[0]["box"] in ("attic", "hangar")]
    next(row for row, _ in fleet.boxes if row["box"] == "attic")["lanes"] = [
        lane("gpu", state="stopping", busy=busy, last_seen_s=700.0)
    ]
    shots = {
        "card": Shot(size=(120, 40)),
        "page": Shot("box", {"box": "attic"}),
        "row": Shot("fleet", keys=("escape",), size=(80, 12)),
    }
    for name, frame in render_frames(rough(fleet), shots, svg=False).items():
        row = next(line for line in frame.text.split("\n")[1:] if "attic" in line)
        assert f" {word} " in row, name
        assert name != "row" or f"{word}  last sample" in row


def test_before_the_first_sample_memory_is_missing_once() -> None:
    """``MEM n/a/n/aG`` stood there."""
    boxes = [{"box": f"bare{number}", "lanes": [lane("cpu")]} for number in range(12)]
    text = render_frame(update(view={"boxes": boxes}), (80, 24), svg=False).text
    row = next(line for line in text.split("\n") if "bare1 " in line)
    assert "MEM n/a" in row and "n/aG" not in row and "/n/a" not in row


def test_a_lost_gpu_shows_its_last_values_and_their_age() -> None:
    """D1: the others go on; the lost one says when it was last seen."""
    fleet = twelve_boxes()
    fleet.boxes = [pair for pair in fleet.boxes if pair[0]["box"] == "hangar"]
    assert "1 LOST" in render_frame(fleet.first(), (120, 40), svg=False).text
    fleet.boxes[0] = (fleet.boxes[0][0], fleet.boxes[0][1].__class__(**{**fleet.boxes[0][1].__dict__, "gpus": 1}))
    fleet.lost["hangar"] = (0,)
    text = render_frame(fleet.first(), (120, 40), svg=False).text
    assert "LOST  last" in text and "3m" in text


def test_simulated_boxes_are_labelled_and_real_ones_are_not() -> None:
    lines = render_frame(four_boxes().first(), (210, 50), svg=False).text.split("\n")
    assert lines[1].count("simulated") == 3
    assert "simulated" not in lines[1].split("workshop")[1]


def test_no_leader_is_loud() -> None:
    fleet = four_boxes()
    fleet.leader = None
    assert "NO LEADER" in render_frame(fleet.first(), (80, 24), svg=False).text.split("\n")[0]


def test_unified_memory_is_called_so() -> None:
    """D4: no 0/0 of VRAM."""
    text = render_frame(one_box().first(), (120, 40), svg=False).text
    assert "unified" in text and "0/0" not in text
