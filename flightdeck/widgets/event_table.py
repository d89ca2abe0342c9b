"""The list of what happened: a row each, columns by the width alone. Pure."""

from __future__ import annotations

from datetime import datetime

from flightdeck.model.happenings import KINDS, Happening
from flightdeck.widgets.lines import Glyphs, Line, Row, fit

TIME_CELLS = 15


def columns(width: int) -> tuple[int, int, int, int]:
    """Cells of box, queue, project and kind; 0: not shown."""
    if width < 100:
        return 10, 8, 0, 12
    return (12, 9, 12, 14) if width < 150 else (18, 14, 18, 16)


def kind_line(chosen: str, width: int) -> tuple[Line, list[tuple[int, int, str]]]:
    """The kinds as tabs, and where each stands."""
    row = Row(width).add(" ")
    places = []
    for kind, word in KINDS:
        start = row.used
        row.add(f" {word} ", "bright+r" if kind == chosen else "dim")
        places.append((start, row.used, kind))
    return row.done(), places


def heading(width: int) -> Line:
    box, queue, project, kind = columns(width)
    row = Row(width).add("", "faint", 2).add("time", "faint", TIME_CELLS)
    for word, cells in (("box", box), ("queue", queue), ("project", project), ("what", kind)):
        if cells:
            row.add(fit(word, cells), "faint").add(" ")
    return row.add("in words", "faint").done()


def event_row(event: Happening, width: int, g: Glyphs, now: datetime, here: bool) -> Line:
    box, queue, project, kind = columns(width)
    row = Row(width, "s" if here else "").add(g.mark if here else "", "focus+b", 2)
    row.add(fit(_time(event.at, now), TIME_CELLS - 1), "dim").add(" ")
    row.add(fit(event.box, box), "text").add(" ").add(fit(event.queue, queue), "dim").add(" ")
    if project:
        row.add(fit(event.project, project), "accent").add(" ")
    row.add(fit(event.word, kind), event.tone).add(" ")
    return row.add(event.text, "bright" if here else "text" if event.tone != "dim" else "dim").done()


def _time(at: datetime | None, now: datetime) -> str:
    """The time of day; of another day the date in front."""
    if at is None:
        return "--:--:--"
    local = at.astimezone()
    return local.strftime("%H:%M:%S" if local.date() == now.astimezone().date() else "%m-%d %H:%M:%S")
