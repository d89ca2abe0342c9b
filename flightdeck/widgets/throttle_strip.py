"""The throttle strip: a letter per cause along the window, seconds per cause, brakes. Causes overlap and are not added up."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby

from engine.telemetry import slow
from flightdeck.model import units
from flightdeck.model.axis import Axis, lay_out
from flightdeck.model.fleet import Box
from flightdeck.model.slots import Sums
from flightdeck.widgets.lines import Line, Row
from flightdeck.widgets.scene import Scene
from flightdeck.widgets.trace import scrubbed_cell, trace_cells

# Power at its cap is information, not an alarm: it is what a full load looks like.
TONES = {"P": "info", "T": "bad+b", "B": "accent+b", "C": "cyan", "S": "dim", ".": "faint", " ": "faint"}
NAMES = {"P": "power", "T": "thermal", "B": "brake", "C": "cpu", "S": "sync"}


def strip_row(scene: Scene, box: Box, width: int, label: int) -> Line:
    past = scene.past(box)
    row = Row(width).add("THROTTLE", "text", label)
    if not past.throttle_offered:
        return row.add("n/a  ", "dim").add(_why(scene, box), "faint").done()
    cells = trace_cells(width, label)
    axis = lay_out(cells, scene.window.span_s, past.step_s)
    end = scene.deck.end_slot(box, past.step_s)
    letters = _letters(past.throttle, axis, end)
    pointed = scrubbed_cell(scene, box, axis)
    blank = cells - len(letters)
    if pointed is not None:
        return _pointed(row.add(" " * blank), letters, pointed - blank).done()
    return _strip("".join(letters), blank, width, label)


@lru_cache(maxsize=64)
def _strip(letters: str, blank: int, width: int, label: int) -> Line:
    row = Row(width).add("THROTTLE", "text", label).add(" " * blank)
    for _, run in groupby(letters):
        same = "".join(run)
        row.add(same, TONES[same[0]])
    return row.done()


def _letters(throttle: Sums, axis: Axis, end: int) -> list[str]:
    """A letter per cell. A cell is two columns, one, or half of one where columns are wide."""
    first = (end // axis.slots - axis.columns + 1) * axis.slots
    if axis.repeat == 1:
        first -= axis.slots * (axis.columns % 2)
        wide = axis.slots * 2
        return [throttle.cell(first + cell * wide, wide) for cell in range(axis.used)]
    found = [throttle.cell(first + column * axis.slots, axis.slots) for column in range(axis.columns)]
    return [letter for letter in found for _ in range(axis.repeat // 2)]


def _pointed(row: Row, letters: list[str], here: int) -> Row:
    """The strip while somebody scrubs: the instant looked at is reversed."""
    for cell, letter in enumerate(letters):
        tone = TONES[letter]
        row.add(letter, tone if cell != here else f"{tone}r" if "+" in tone else f"{tone}+r")
    return row


def _why(scene: Scene, box: Box) -> str:
    if not box.devices:
        return "no GPU in this box"
    if scene.window.long and (box.raw, scene.window.span_s) not in scene.deck.pasts:
        return f"reading {scene.window.words}"
    return "no counters, no mask here"


def _totals(scene: Scene, box: Box) -> tuple[dict[str, float], int]:
    """Milliseconds per cause and brakes over the window."""
    past = scene.past(box)
    return past.throttle.totals(scene.deck.end_slot(box, past.step_s), -(-scene.window.span_s // past.step_s))


def sums_row(scene: Scene, box: Box, width: int, label: int) -> Line:
    """``P 415 s power  T 1240 s thermal  B x4``; a tilde when the seconds were sampled and not counted by the hardware."""
    past = scene.past(box)
    flag = _slow(scene, box)
    if not past.throttle_offered:
        return Row(width).add("", "text", label).add(flag, "warn+b").done() if flag else Row(width).done()
    total, brakes = _totals(scene, box)
    about = "~" if past.sampled_source else ""
    parts: Line = [(f"{flag}  ", "warn+b")] if flag else []
    shown = [cause for cause in "PTCS" if total[cause] >= 100.0]
    for cause in shown:
        parts += [
            (f"{cause} {about}{units.seconds(total[cause])}", TONES[cause]),
            (f" {NAMES[cause]}", "dim"),
            ("  ", "dim"),
        ]
    if brakes or total["B"] >= 100.0:
        parts.append((f"B x{brakes}", TONES["B"]))
        if total["B"] >= 100.0:
            parts.append((f" {about}{units.seconds(total['B'])}", TONES["B"]))
    elif shown:
        parts.pop()
    else:
        parts.append((f"none in the last {scene.window.words}", "faint"))
    row = Row(width).to(max(0, min(label, width - sum(len(text) for text, _ in parts))))
    for text, style in parts:
        row.add(text, style)
    return row.done()


def short_sums(scene: Scene, box: Box) -> list[tuple[str, str]]:
    """For a one-row box: the gravest cause and its seconds; of the hour where the window was not read."""
    flag = [("SLOW ", "warn+b")] if _slow(scene, box) else []
    known = not scene.window.long or (box.raw, scene.window.span_s) in scene.deck.pasts
    past = scene.past(box) if known else scene.deck.history(box)
    if not past.throttle_offered:
        return flag or [("thr n/a", "faint")]
    total, brakes = _totals(scene, box) if known else past.throttle.totals(scene.deck.end_slot(box))
    about = "~" if past.sampled_source else ""
    for cause in "TPC":
        if total[cause] >= 100.0:
            text = f"{cause} {about}{total[cause] / 1000.0:.0f}s"
            of = "" if known else " 1h"
            return [*flag, (text, TONES[cause]), (f" B{brakes}" if brakes else "", TONES["B"]), (of, "faint")]
    return [*flag, (f"B x{brakes}", TONES["B"])] if brakes else flag or [("-", "faint")]


def _slow(scene: Scene, box: Box) -> str:
    """``slow without a reason``: busy, far under its usual clock, and the hardware gives no reason; empty: not so."""
    latest = scene.deck.history(box).latest
    flags = slow.flags(latest.sensors) if latest is not None else []
    return slow.WORDS if flags and scene.deck.box_state(box) != "down" else ""
