"""The throttle strip: a letter per cause along the hour, seconds per cause, brakes. Causes overlap and are not added up."""

from __future__ import annotations

from flightdeck.model import units
from flightdeck.model.fleet import Box
from flightdeck.model.traces import column_width
from flightdeck.widgets.lines import Line, Row
from flightdeck.widgets.scene import Scene
from flightdeck.widgets.trace import trace_cells

# Power at its cap is information, not an alarm: it is what a full load looks like.
TONES = {"P": "warn", "T": "bad+b", "B": "accent+b", "C": "cyan", "S": "dim", ".": "faint", " ": "faint"}
NAMES = {"P": "power", "T": "thermal", "B": "brake", "C": "cpu", "S": "sync"}


def strip_row(scene: Scene, box: Box, width: int, label: int) -> Line:
    history = scene.deck.history(box)
    row = Row(width).add("THROTTLE", "text", label)
    if not history.throttle_offered:
        why = "no GPU in this box" if not box.devices else "no counters, no mask here"
        return row.add("n/a  ", "dim").add(why, "faint").done()
    cells = trace_cells(width, label)
    slots, count = column_width(cells)
    per_cell = slots * 2
    end = scene.deck.end_slot(box)
    first = (end // slots - count + 1) * slots
    if count % 2:
        first -= slots
    letters = [history.throttle.cell(first + cell * per_cell, per_cell) for cell in range((count + 1) // 2)]
    row.add(" " * (cells - len(letters)))
    run = ""
    for letter in [*letters, ""]:
        if run and letter != run[0]:
            row.add(run, TONES[run[0]])
            run = ""
        run += letter
    return row.done()


def sums_row(scene: Scene, box: Box, width: int, label: int) -> Line:
    """``P 415 s power  T 1240 s thermal  B x4``; a tilde when the seconds were sampled and not counted by the hardware."""
    history = scene.deck.history(box)
    if not history.throttle_offered:
        return Row(width).done()
    total, brakes = history.throttle.totals(scene.deck.end_slot(box))
    about = "~" if history.sampled_source else ""
    parts: Line = []
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
        parts.append(("none in this hour", "faint"))
    row = Row(width).to(max(0, min(label, width - sum(len(text) for text, _ in parts))))
    for text, style in parts:
        row.add(text, style)
    return row.done()


def short_sums(scene: Scene, box: Box) -> list[tuple[str, str]]:
    """For a one-row box: the gravest cause and its seconds."""
    history = scene.deck.history(box)
    if not history.throttle_offered:
        return [("thr n/a", "faint")]
    total, brakes = history.throttle.totals(scene.deck.end_slot(box))
    about = "~" if history.sampled_source else ""
    for cause in "TPC":
        if total[cause] >= 100.0:
            text = f"{cause} {about}{total[cause] / 1000.0:.0f}s"
            return [(text, TONES[cause]), (f" B{brakes}" if brakes else "", TONES["B"])]
    return [("-", "faint")] if not brakes else [(f"B x{brakes}", TONES["B"])]
