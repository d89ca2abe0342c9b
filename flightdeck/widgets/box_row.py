"""A box in one row, for fleets of more boxes than cards fit: every figure in cells of its own. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from rich.cells import cell_len

from flightdeck.model import units
from flightdeck.model.deck import Deck
from flightdeck.model.fleet import Box
from flightdeck.model.lanes import lane_word
from flightdeck.model.text import short_hardware
from flightdeck.widgets.lines import Line, Row, fit
from flightdeck.widgets.scene import Scene
from flightdeck.widgets.throttle_strip import short_sums

SUMMARY_CELLS = 26
STATE_TONES = {"up": "ok", "late": "warn", "blind": "warn", "down": "bad", "new": "info"}
STATE_WORDS = {"late": "LATE", "blind": "NO SENSOR DATA", "down": "DOWN", "new": "NO SAMPLES YET"}


def one_row(scene: Scene, box: Box, width: int) -> Line:
    """A box in one row: name, GPU, the figures that matter, throttle."""
    deck = scene.deck
    focused = scene.cursor.box == box.raw
    state = deck.box_state(box)
    history = deck.history(box)
    sample = history.latest
    named = max(8, min(18, width // 8, scene.name_cells))
    row = Row(width, "s" if focused else "")
    row.add(f"{scene.glyphs.mark} " if focused else "  ", "focus+b")
    row.add(box.name, "bright" if focused else "text", named).add(" ")
    if state == "down":
        word, tone = state_word(deck, box)
        row.add(word, f"{tone}+b").add(f"  last sample {units.ago(deck.sample_age(box))}", "dim")
        return row.right((_lane_summary(scene, box, width - row.used - 3), "dim"), (" ", "dim")).done()
    summary = 0 if width < 116 else SUMMARY_CELLS + min(24, (width - 116) // 3)
    room = max(0, min(30, width - 64 - named - summary))
    row.add(fit(short_hardware(hardware(box), room), room), "dim").add(" ")
    temp = None
    if sample is not None:
        temp = sample.cpu_temp_c if units.known(sample.cpu_temp_c) else sample.zone_max_c
    row.add("CPU ", "dim").add(units.percent(sample.cpu_pct if sample else None), "text", 4, ">")
    _with_unit(row, units.number(temp), "C", 5)
    row.add(" GPU ", "dim")
    gpus = [gpu for gpu in sample.gpus if gpu.state == "ok"] if sample is not None else []
    lost = sum(gpu.state in ("lost", "error") for gpu in sample.gpus) if sample is not None else 0
    if gpus:
        row.add(units.percent(_worst(gpu.util_pct for gpu in gpus)), "text", 4, ">")
        _with_unit(row, units.number(_worst(gpu.temp_c for gpu in gpus)), "C", 5)
        power = [gpu.power_w for gpu in gpus if units.known(gpu.power_w) and gpu.power_w is not None]
        _with_unit(row, units.watts(sum(power) if power else None), "W", 7)
    else:
        row.add(f"{lost} LOST" if lost else "n/a", "bad+b" if lost else "faint", 16)
    used = sample.mem_used_mb if sample is not None else None
    total = sample.mem_total_mb if sample is not None and sample.mem_total_mb else box.mem_mb
    row.add(" MEM ", "dim")
    if units.known(used) or units.known(total):
        row.add(_whole_g(used), "text", 4, ">").add("/", "dim").add(_whole_g(total) + "G", "text", 5)
    else:
        row.add(units.NA, "faint", 10)
    if gpus and lost:
        row.add(f" {lost} LOST", "bad+b")
    row.add(" ")
    for text, style in short_sums(scene, box):
        if row.used + len(text) <= width - summary:
            row.add(text, style)
    if summary:
        row.right((fit(_lane_summary(scene, box, summary - 2), summary - 2, ">"), "dim"), (" ", "dim"))
    return row.done()


def state_word(deck: Deck, box: Box) -> tuple[str, str]:
    """How a box stands that is not up, in a word, and its tone. One that was stopped in order is no fault."""
    state = deck.box_state(box)
    return ("ended", "dim") if state == "down" and deck.ended(box) else (STATE_WORDS[state], STATE_TONES[state])


def hardware(box: Box) -> str:
    """What a box is, by its GPUs, else by its processor."""
    if box.devices and box.devices[0].name:
        count = f" x{len(box.devices)}" if len(box.devices) > 1 else ""
        return box.devices[0].name + count
    return box.cpu_model


_SHORT = {
    "parking...": "parking", "resuming...": "resumes", "starting...": "starts", "stopping": "stops",
}  # fmt: skip
WORD_CELLS = 7


def _lane_summary(scene: Scene, box: Box, room: int) -> str:
    """``cpu   1/2       gpu PARKED``: what each lane does, in a word; lanes that do not fit are counted. A word has cells
    of its own, so that a lane that is toggled moves nothing."""
    parts: list[str] = []
    for lane in scene.lanes(box):
        word = lane_word(lane, scene.deck.view_age()).text
        if word == "ON":
            word = f"{units.count(lane.busy)}/{units.count(lane.slots)}"
        elif word.startswith("draining"):
            word = "drain"
        word = _SHORT.get(word, word.replace(" of ", "/"))
        parts.append(f"{lane.queue} {fit(word, WORD_CELLS, '>')}")
    for kept in range(len(parts), 0, -1):
        text = "  ".join([*parts[:kept], *([f"+{len(parts) - kept}"] if kept < len(parts) else [])])
        if cell_len(text) <= room:
            return text
    return f"{len(parts)} lanes" if parts else ""


def _with_unit(row: Row, number: str, unit: str, width: int) -> None:
    """A figure and its unit in ``width`` cells; the unit only where there is a figure."""
    if number == units.NA:
        row.add(number, "faint", width, ">")
    else:
        row.add(number, "text", width - len(unit), ">").add(unit, "dim")


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None and units.known(value)), default=None)


def _whole_g(mb: float | None) -> str:
    return units.number(None if mb is None else mb / 1024.0)
