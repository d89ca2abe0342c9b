"""Cells that are sent past the compositor: whatever changes, what stands there afterwards is the new line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flightdeck.term.paint import JOIN_CELLS, Spans, cells, changes

WIDTH = 24
_TEXT = st.text(st.sampled_from("ab 1\u2812\u28ff\u6f22\u00e9"), max_size=9)
_SPANS = st.lists(st.tuples(_TEXT, st.sampled_from(["text", "dim", "bad+b"])), max_size=6)


def exact(spans: Spans) -> Spans:
    """The spans as a line of exactly WIDTH cells."""
    out: Spans = []
    used = 0
    for text, style in spans:
        kept = ""
        for char in text:
            size = len(cells([(char, style)]))
            if used + size > WIDTH:
                break
            kept, used = kept + char, used + size
        out.append((kept, style))
    return [*out, (" " * (WIDTH - used), "text")]


@given(_SPANS, _SPANS)
def test_changed_runs_make_the_old_line_the_new_one(before: Spans, after: Spans) -> None:
    """D2: also where a wide character takes the place of narrow ones."""
    old, new = exact(before), exact(after)
    shown = cells(old)
    runs = changes(old, new, WIDTH)
    assert runs is not None
    for start, spans in runs:
        part = cells(spans)
        shown[start : start + len(part)] = part
    assert shown == cells(new)
    assert len(shown) == WIDTH


def test_one_figure_costs_one_run_of_its_size() -> None:
    old: Spans = [("CPU ", "dim"), (" 61%", "bright"), (" " * 16, "text")]
    new: Spans = [("CPU ", "dim"), (" 62%", "bright"), (" " * 16, "text")]
    assert changes(old, new, WIDTH) == [(6, [("2", "bright")])]


def test_changes_near_each_other_are_one_run() -> None:
    old: Spans = [("1" + "x" * JOIN_CELLS + "1" + "y" * (WIDTH - JOIN_CELLS - 2), "text")]
    new: Spans = [("2" + "x" * JOIN_CELLS + "2" + "y" * (WIDTH - JOIN_CELLS - 2), "text")]
    assert changes(old, new, WIDTH) == [(0, [("2" + "x" * JOIN_CELLS + "2", "text")])]


def test_lines_of_another_width_are_left_to_the_compositor() -> None:
    assert changes([("abc", "text")], [("abd", "text")], WIDTH) is None
