"""A lane in one row: busy of slots, queued, and on the right what it is doing, in a cell that never moves."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from flightdeck.model import units
from flightdeck.model.fleet import Lane
from flightdeck.model.lanes import EXIT_CODES, exit_text, lane_word
from flightdeck.widgets.lines import Glyphs, Line, Row, fit

TONES = {"ok": "ok+b", "warn": "warn+b", "bad": "bad+b", "wait": "info", "dim": "dim"}
STATE_CELLS = 11


def lane_row(lane: Lane, width: int, g: Glyphs, selected: bool, since_view_s: float, words: bool = True) -> Line:
    word = lane_word(lane, since_view_s)
    row = Row(width, "s" if selected else "")
    row.add(f"{g.mark} " if selected else "  ", "focus+b")
    many = f" x{len(lane.merged)}" if lane.merged else ""
    name = fit(lane.queue, min(cell_len(lane.queue), _name_cells(width, words) - len(many)))
    row.add(name, "bright" if selected else "text").add(many, "faint").to(2 + _name_cells(width, words))
    row.add(f"{units.count(lane.busy)}/{units.count(lane.slots)}", "info" if lane.busy else "dim", 6, ">")
    row.add(" busy" if words else "", "dim")
    row.add(units.count(lane.queued), "text" if lane.queued else "dim", 7, ">")
    row.add(" queued", "dim")
    row.right((word.text.rjust(STATE_CELLS), TONES[word.tone]))
    return row.done()


def _name_cells(width: int, words: bool) -> int:
    return max(7, min(18, width - 39)) + (0 if words else 5)


def room_for_words(lanes: Sequence[Lane], width: int) -> bool:
    """Whether the names leave room for the word ``busy``; all rows of a box do it alike."""
    return all(cell_len(lane.queue) + (3 if lane.merged else 0) <= _name_cells(width, True) for lane in lanes)


def model_row(lane: Lane, width: int) -> Line:
    row = Row(width).add("    model  ", "faint")
    if lane.current_model:
        row.add(lane.current_model, "text").add("  warm", "dim")
    else:
        row.add("none loaded", "faint")
    if lane.exit_code in EXIT_CODES:  # how the last job that was ended here on purpose went
        row.add(f"  last exit {lane.exit_code} {EXIT_CODES[lane.exit_code]}", "dim")
    return row.done()


def exit_row(lane: Lane, width: int, since_view_s: float = 0.0) -> Line:
    """How a lane ended, under a lane that is down."""
    why = exit_text(lane.exit_code, lane.exit_reason) or "no heartbeat"
    row = Row(width).add("    ", "faint").add(why, "bad")
    if lane.last_seen_s is not None:
        row.add(f"  last seen {units.ago(lane.last_seen_s + since_view_s)}", "dim")
    return row.done()
