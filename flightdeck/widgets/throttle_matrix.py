"""The throttle page as lines: boxes by hours with the gravest letter, seconds per cause, and the jobs that suffered. Pure.

A cell of one character is the letter alone, small under a tenth of the time; one of two has a bar beside it; one of six
the time itself. Causes overlap: the columns of seconds are never added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from flightdeck.model import units
from flightdeck.model.throttling import CAUSES, HIDDEN_S, NAMES, BoxHours, Cell, Hours, Suffered, cell, layout
from flightdeck.widgets.lines import Glyphs, Line, Row, fit
from flightdeck.widgets.throttle_strip import TONES

BRAKE_CELLS = 5
MARK_CELLS = 2
LIGHT = 0.1  # of the time: a small letter
_BARS, _ASCII_BARS = " ⡀⣀⣄⣤⣦⣶⣷⣿", " 123456789"


@dataclass(frozen=True)
class Plan:
    """How the width is used: ``group`` hours to a cell of ``size`` characters, from ``first`` on."""

    name: int
    group: int
    size: int
    cells: int
    sums: str  # causes with a column
    sum_cells: int
    brakes: bool

    def hours_of(self, column: int, count: int) -> tuple[int, int]:
        """First hour and number of hours of a column; columns end with the newest hour."""
        first = count - (self.cells - column) * self.group
        return max(0, first), min(self.group, first + self.group)

    def column_of(self, hour: int, count: int) -> int:
        return self.cells - 1 - (count - 1 - hour) // self.group


def plan(hours: Hours, width: int) -> Plan:
    name = max([8, *(len(box.name) for box in hours.boxes)])
    name = min(name, 10 if width < 100 else 20)
    sums = CAUSES if width >= 140 else "PTBC" if width >= 100 else "PTB"
    brakes = width >= 90
    sum_cells = 7 if len(hours.starts) <= 24 else 8  # a day has 86,400 s
    room = width - MARK_CELLS - name - 1 - len(sums) * sum_cells - (BRAKE_CELLS if brakes else 0) - 1
    count = max(1, len(hours.starts))
    group, size = layout(count, max(1, room))
    return Plan(name, group, size, -(-count // group), sums, sum_cells, brakes)


def axis_line(hours: Hours, here: Plan, width: int) -> Line:
    """Clock times, or days, over their cells, in the reader's zone; the causes over their sums."""
    marks = [" "] * (here.cells * here.size + 6)
    free = 0
    for column in range(here.cells):
        first, count = here.hours_of(column, len(hours.starts))
        text = _mark([at.astimezone() for at in hours.starts[first : first + count]], len(hours.starts) > 24, here.size)
        place = column * here.size
        if text and place >= free and place + len(text) <= here.cells * here.size:
            marks[place : place + len(text)] = text
            free = place + len(text) + 1
    row = Row(width).add("", "faint", MARK_CELLS).add("box", "faint", here.name).add(" ")
    row.add("".join(marks)[: here.cells * here.size], "faint")
    ends: Line = [(f"{cause} s".rjust(here.sum_cells), TONES[cause].removesuffix("+b")) for cause in here.sums]
    if here.brakes:
        ends.append(("B x".rjust(BRAKE_CELLS), "accent"))
    return row.right(*ends, (" ", "text")).done()


def _mark(hours: Sequence[datetime], days: bool, size: int) -> str:
    """What stands over a cell: the day that begins in it, or every third (sixth) hour."""
    if days:
        day = next((at for at in hours if at.hour == 0), None)
        return day.strftime("%a %d") if day is not None else ""
    every = 6 if size == 1 else 3
    return next((at.strftime("%H") if size < 6 else at.strftime("%H:%M") for at in hours if at.hour % every == 0), "")


def box_line(
    box: BoxHours, here: Plan, count: int, width: int, glyphs: Glyphs, *, cause: str, chosen: bool, column: int | None
) -> Line:
    """One box. ``column``: the cell that is looked at; None: all of it."""
    row = Row(width, "s" if chosen else "").add(glyphs.mark if chosen else "", "focus+b", MARK_CELLS)
    row.add(fit(box.name, here.name), "bright" if chosen else "text").add(" ")
    for index in range(here.cells):
        first, hours = here.hours_of(index, count)
        text, tone = cell_text(cell(box, first, hours, cause), here.size, glyphs)
        if chosen and index == column:
            tone = f"{tone}r" if "+" in tone else f"{tone}+r"
        row.add(text, tone)
    ends: Line = [_sum_cell(box, letter, here.sum_cells) for letter in here.sums]
    if here.brakes:
        brakes = box.brake_count
        text = units.NA if brakes is None else "0" if not brakes else f"x{units.count(brakes)}"
        ends.append((text.rjust(BRAKE_CELLS), "accent+b" if brakes else "faint"))
    return row.right(*((text, row._styled(tone)) for text, tone in ends), (" ", row._styled("text"))).done()


def _sum_cell(box: BoxHours, cause: str, size: int) -> tuple[str, str]:
    seconds = box.total(cause)
    if seconds is None:
        return units.NA.rjust(size), "faint"
    if seconds < HIDDEN_S:
        return "0".rjust(size), "faint"
    about = "~" if box.sampled and cause != "C" else ""
    return f"{about}{_short(seconds)}".rjust(size), TONES[cause].removesuffix("+b")


def _short(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds < 9.95 else f"{seconds:.0f}"


def cell_text(one: Cell, size: int, glyphs: Glyphs) -> tuple[str, str]:
    """``size`` characters for a cell, and their tone."""
    if one.letter in " .?":
        return one.letter.ljust(size), "faint"
    tone = TONES[one.letter]
    if size == 1:
        light = one.share < LIGHT
        return (one.letter.lower() if light else one.letter), tone.removesuffix("+b") if light else tone
    if size >= 6:
        return f"{one.letter} {_span(one.seconds)}".ljust(size), tone
    bars = _ASCII_BARS if glyphs.ascii or glyphs.charts != "braille" else _BARS
    step = max(1, min(len(bars) - 1, round(one.share * (len(bars) - 1))))
    return f"{one.letter}{bars[step]}".ljust(size), tone


def _span(seconds: float) -> str:
    """Three characters: ``48s``, ``12m``, ``1h``."""
    if seconds < 99.5:
        return f"{seconds:.0f}s" if seconds >= 0.95 else "<1s"
    return f"{seconds / 60:.0f}m"


def legend_line(width: int, cause: str, size: int) -> Line:
    row = Row(width).add("  ")
    for letter in CAUSES:
        dim = bool(cause) and letter != cause
        name = NAMES[letter] if width >= 100 else NAMES[letter].split()[0]
        row.add(letter, "faint" if dim else TONES[letter]).add(f" {name}  ", "faint" if dim else "dim")
    row.add(". none  ? n/a  ", "faint")
    if size == 1:
        row.add("small < 10%  ", "faint")
    elif size < 6:
        row.add("bar: share of the time  ", "faint")
    return row.add("~ sampled", "faint").done()


def chosen_line(
    box: BoxHours | None, hours: Hours, first: int, count: int, width: int, glyphs: Glyphs, words: str
) -> Line:
    """What the jobs below are about: the box and its time, seconds per cause in it, how much was recorded."""
    row = Row(width)
    if box is None or not hours.starts:
        return row.done()
    row.add(f"{glyphs.rule * 2} ", "frame").add(box.name, "bright").add(f"  {words}  ", "dim")
    total = {cause: _sum(box.causes[cause][first : first + count]) for cause in CAUSES}
    for cause in CAUSES:
        seconds = total[cause]
        if seconds is not None and seconds >= HIDDEN_S:
            about = "~" if box.sampled and cause != "C" else ""
            row.add(f"{cause} {about}{_short(seconds)} s  ", TONES[cause])
    brakes = _sum(box.brakes[first : first + count])
    if brakes:
        row.add(f"B x{brakes:.0f}  ", TONES["B"])
    if all(value is None for value in total.values()):
        row.add("n/a: nothing on this box tells  ", "faint")
    elif all((value or 0.0) < HIDDEN_S for value in total.values()) and not brakes:
        row.add("nothing held it back  ", "faint")
    recorded, whole = sum(box.minutes[first : first + count]), hours.passed(first, count)
    if recorded < whole - 1:
        row.add(f"{recorded} of {whole} minutes recorded", "faint")
    return row.done()


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def jobs_heading(width: int) -> Line:
    row = Row(width).add("", "faint", MARK_CELLS)
    for text, size in _columns(width):
        row.add(text, "faint", size).add("  ")
    return row.right(*((text.rjust(size), "faint") for text, size in _figures(width)), (" ", "text")).done()


def _columns(width: int) -> list[tuple[str, int]]:
    figures = sum(size for _, size in _figures(width)) + 1
    room = width - MARK_CELLS - figures - 2 * 3
    job = 9
    project = min(16, max(8, room // 5))
    box = min(16, max(8, room // 6))
    return [("job", job), ("name", max(8, room - job - project - box - 2)), ("project", project), ("box", box)]


def _figures(width: int) -> list[tuple[str, int]]:
    if width < 100:
        return [("P s", 7), ("T s", 7), ("worst", 7), ("ran", 8)]
    most = [("P s", 7), ("T s", 7), ("B s", 6), ("worst", 8), ("ran", 8)]
    return [*most, ("peak C", 8), ("mean MHz", 10), ("ended", 13)] if width >= 140 else [*most, ("ended", 7)]


def job_line(job: Suffered, width: int, glyphs: Glyphs, chosen: bool) -> Line:
    row = Row(width, "s" if chosen else "").add(glyphs.mark if chosen else "", "focus+b", MARK_CELLS)
    texts = {"job": job.id, "name": job.name or "-", "project": job.project or "-", "box": job.box}
    tones = {"job": "dim", "name": "bright" if chosen else "text", "project": "accent", "box": "dim"}
    for text, size in _columns(width):
        row.add(fit(texts[text], size), tones[text]).add("  ")
    ends: Line = []
    for text, size in _figures(width):
        ends.append(_figure(job, text, size))
    return row.right(*((text, row._styled(tone)) for text, tone in ends), (" ", row._styled("text"))).done()


def _figure(job: Suffered, what: str, size: int) -> tuple[str, str]:
    if what in ("P s", "T s", "B s"):
        seconds = job.seconds.get(what[0])
        if seconds is None:
            return units.NA.rjust(size), "faint"
        held = seconds >= HIDDEN_S
        return (_short(seconds) if held else "0").rjust(size), TONES[what[0]].removesuffix("+b") if held else "faint"
    if what == "worst":  # the gravest cause's share of the time that the job ran
        letter = next((letter for letter in "BTP" if (job.seconds.get(letter) or 0.0) >= HIDDEN_S), "")
        share = job.share.get(letter) if letter else None
        text = "" if share is None else f"{letter} <1%" if share < 0.005 else f"{letter} {100 * share:.0f}%"
        return text.rjust(size), TONES[letter or "."]
    if what == "ran":
        return units.age(job.run_s).rjust(size), "dim"
    if what == "peak C":
        return units.number(job.temp_max_c).rjust(size), "text"
    if what == "mean MHz":
        return units.number(job.mhz).rjust(size), "text"
    if job.finished is None:
        return "".rjust(size), "dim"
    return job.finished.astimezone().strftime("%H:%M" if size < 12 else "%m-%d %H:%M").rjust(size), "dim"
