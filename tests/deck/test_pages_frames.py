"""Every screen of the deck, drawn from a recording of the demo: text goldens, colours, and that the recording answers all.

The recording is ``screenshots/demo.jsonl.gz``, as it stands at its end. UPDATE_GOLDENS=1 writes the goldens anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.cells import cell_len
from rich.color import Color
from rich.style import Style

from flightdeck.frame import Frame, Shot, render_frames
from flightdeck.reader import Canned, Key
from flightdeck.recorded import canonical
from flightdeck.recording import Recording
from flightdeck.replay import BASE
from flightdeck.rounds import questions
from flightdeck.screens.pages import PAGES
from flightdeck.styles.palette import palette
from tests.deck.goldens import GOLDENS, same_as_goldens
from tests.support import ROOT

SIZES = {"80x24": (80, 24), "120x40": (120, 40), "210x50": (210, 50)}


@cache
def recording() -> Recording:
    return Recording.load(ROOT / "screenshots" / "demo.jsonl.gz")


@cache
def updates() -> tuple[Any, ...]:
    return tuple(recording().still(recording().duration_s, BASE))


@cache
def walk() -> dict[str, Shot]:
    """Every screen; the job is one that the hardware holds back."""
    boxes = {row["box"]: row for row in updates()[0].view["boxes"]}
    job = max((job for job in boxes["osprey"]["jobs"] if job["queue"] == "gpu"), key=lambda job: job["age_s"])
    return {
        "fleet": Shot("fleet"),
        "palette": Shot("fleet", keys=("colon",)),
        "help": Shot("fleet", keys=("question_mark",)),
        "box": Shot("box", {"box": "osprey"}),
        "confirm": Shot("fleet", keys=("tab", "p")),
        "jobs": Shot("jobs"),
        "job": Shot("job", {"job_id": job["id"]}),
        "throttle": Shot("throttle"),
        "events": Shot("events"),
        "queues": Shot("queues"),
    }


class Noting(Canned):
    """Answers, and what was asked."""

    asked: ClassVar[list[tuple[str, dict[str, Any]]]] = []

    def look_up(self, name: str, arguments: Mapping[str, Any]) -> tuple[Any, str]:
        self.asked.append((name, dict(arguments)))
        return super().look_up(name, arguments)


def flown(size: tuple[int, int], theme: str = "dark", **looks: Any) -> dict[str, Frame]:
    looks = {"read_only": False, "store_name": "demo", "svg": False, "answers": Noting(answers())} | looks
    return render_frames(updates(), looks.pop("shots", walk()), size, theme, **looks)


@cache
def answers() -> dict[Key, Any]:
    return recording().answers(recording().duration_s)


@cache
def dark(size: str) -> dict[str, Frame]:
    return flown(SIZES[size])


@pytest.mark.parametrize("size", SIZES)
def test_every_screen_looks_as_it_did(size: str) -> None:
    """Also D2, D27: no row is wider than the terminal, nothing is wide or an emoji."""
    frames = dark(size)
    width, height = SIZES[size]
    for name, frame in frames.items():
        lines = frame.text.split("\n")
        assert len(lines) == height and max(cell_len(line) for line in lines) <= width, name
        assert "nan" not in frame.text.lower().split() and "None" not in frame.text, name
    same_as_goldens({f"{name}-{size}": frame for name, frame in frames.items()})


def test_every_screen_in_ascii() -> None:
    """--ascii: nothing else is on any screen, and every page has its golden."""
    frames = flown(SIZES["120x40"], ascii=True)
    assert {name for name, frame in frames.items() if not frame.text.isascii()} == set()
    same_as_goldens({f"{name}-120x40-ascii": frame for name, frame in frames.items() if name in PAGES})


def test_every_screen_says_the_same_in_light_and_without_colour() -> None:
    """D26: letters and words carry the meaning; NO_COLOR emits no colour at all, light is not dark."""
    shots = {name: shot for name, shot in walk().items() if name not in ("jobs", "events", "queues", "help")}
    looks = {
        "dark": dark("120x40"),
        "light": flown(SIZES["120x40"], "light", shots=shots),
        "plain": flown(SIZES["120x40"], shots=shots, plain=True),
        "ansi": flown(SIZES["120x40"], "ansi", shots={name: shots[name] for name in ("box", "confirm")}),
    }
    for name in shots:
        assert len({frames[name].text for frames in looks.values() if name in frames}) == 1, name
        assert not any(coloured(style) for style in looks["plain"][name].styles), name
        assert looks["dark"][name].styles.isdisjoint(looks["light"][name].styles), name
        assert {style.bgcolor for style in looks["light"][name].styles} - {None}, name


def coloured(style: Style) -> bool:
    return any(color is not None and not color.is_default for color in (style.color, style.bgcolor))


def test_a_recording_answers_every_page() -> None:
    """Whatever a page asks when it is opened, at each span of time, stands in the recording, and in the next one."""
    dark("120x40")
    wider = ("right_square_bracket",)
    spans = {f"{n} {page}": Shot(page, walk()[page].arguments, wider) for n in "123" for page in ("fleet", "box")}
    flown(SIZES["80x24"], shots=spans)
    asked = Noting.asked
    assert {name for name, _ in asked} >= {"jobs", "job", "box_gpus", "span", "throttle", "events", "queues"}
    missing = [question for question in asked if recording().said(*question, recording().duration_s) is None]
    assert not missing
    again = {(question.name, canonical(question.arguments)) for question in questions(updates()[0].view)}
    assert not [(name, asked) for name, asked in asked if (name, canonical(asked)) not in again]


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_every_text_is_readable(theme: str) -> None:
    """A contrast of at least 4.5 for whatever is to be read, on the ground, on the chosen row and reversed."""
    ink = palette(theme)
    decoration = {"frame", "track"}
    styles = [base + more for base in ink.colors if base not in decoration for more in ("", "+s", "+r", "+b")]
    for look in (ink, ink.grey()):
        for name in [*styles, "title", "key", "banner"]:
            assert contrast(look.style(name)) >= 4.5, (theme, name, contrast(look.style(name)))


def contrast(style: Style) -> float:
    """As WCAG 2 computes it."""
    assert style.color is not None and style.bgcolor is not None
    light, dark = sorted((luminance(style.color), luminance(style.bgcolor)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(color: Color) -> float:
    parts = [part / 255 for part in color.get_truecolor()]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("name", "theme"), [("fleet", "dark"), ("box", "light")])
def test_a_picture_looks_as_it_did(name: str, theme: str) -> None:
    """A few SVGs keep the colours; ids that differ from picture to picture do not count."""
    frame = flown(SIZES["80x24"], theme, shots={name: walk()[name]}, svg=True)[name]
    svg = re.sub(r"terminal-\d+", "terminal", re.sub(r"@font-face \{.*?\}", "", frame.svg, flags=re.S))
    golden = GOLDENS / f"{name}-80x24-{theme}.svg"
    if os.environ.get("UPDATE_GOLDENS"):
        golden.write_text(svg)
    assert svg == golden.read_text(), "the picture has other colours or texts (UPDATE_GOLDENS=1 when that is right)"


def test_no_golden_is_left_over() -> None:
    """What lies in the folder is what the tests compare with."""
    from tests.deck.test_frames import DECKS

    wanted = {f"{name}-{size}.txt" for name in walk() for size in SIZES}
    wanted |= {f"{name}-120x40-ascii.txt" for name in walk() if name in PAGES}
    wanted |= {f"fleet-{deck}-{size}.txt" for deck, (_, shots, _) in DECKS.items() for size in shots}
    wanted |= {"fleet-80x24-dark.svg", "box-80x24-light.svg"}
    assert {path.name for path in Path(GOLDENS).iterdir()} == wanted
