"""Names and texts are harmless once they are in the model."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flightdeck.model.text import ascii_only, clean
from flightdeck.model.view import read_view
from tests.deck.fleet_data import HOSTILE, hostile_fleet

DANGEROUS = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def harmless(text: str) -> bool:
    return all(unicodedata.category(char) not in DANGEROUS for char in text)


@pytest.mark.parametrize("text", HOSTILE)
def test_control_bytes_and_bidi_do_not_pass(text: str) -> None:
    """D20: ESC, OSC 52, CSI, C1, BEL, bidi and zero-width characters are neutral where they enter."""
    assert harmless(clean(text))


@given(st.text(max_size=300))
def test_no_text_at_all_keeps_a_control_character(text: str) -> None:
    """D20: not only the sequences that somebody thought of."""
    assert harmless(clean(text))
    assert clean(text) == clean(clean(text))


def test_markup_stays_as_typed() -> None:
    """D19: brackets are ordinary characters; nothing downstream parses them."""
    for text in ("[bold]x", "[/]", "[b", "[@click=app.quit]run[/]", "\\[x]"):
        assert clean(text) == text


def test_what_was_neutralised_is_visible() -> None:
    """D20: a name with an escape in it looks odd, it does not look ordinary."""
    assert clean("a\x1b[31mred") == "a?[31mred"
    assert clean("one\ntwo\tthree") == "one two three"


def test_ordinary_names_of_other_scripts_stay() -> None:
    for text in ("Größe", "模型", "модель", "e\u0301te"):
        assert clean(text) == text


def test_length_is_bounded_before_anything_else_looks_at_it() -> None:
    assert len(clean("x" * 10_000_000)) <= 400
    assert clean(None) == ""
    assert clean(7) == "7"


def test_ascii_keeps_the_cells() -> None:
    assert ascii_only("模a") == "??a"
    assert ascii_only("plain") == "plain"


def test_every_text_of_a_view_is_cleaned() -> None:
    """D20: no field is forgotten; raw names are kept apart for the orders that must name them again."""

    def walk(value: object, path: str) -> None:
        if isinstance(value, str):
            assert harmless(value), f"{path}: {value!r}"
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                walk(item, f"{path}[{index}]")
        elif hasattr(value, "__slots__"):
            for name in value.__slots__:
                if not name.startswith("raw"):
                    walk(getattr(value, name), f"{path}.{name}")

    walk(read_view(hostile_fleet().view()), "view")
