"""What happened, newest first."""

from __future__ import annotations

from flightdeck.screens.sheet import Sheet
from flightdeck.widgets.header import clock_text, event_tone
from flightdeck.widgets.lines import Line, Row


class EventsScreen(Sheet):
    PAGE = "events"
    PICKS = False

    def heading(self, width: int) -> Line:
        row = Row(width).add("  time", "faint", 12).add("box", "faint", 16).add("queue", "faint", 10)
        return row.add("project", "faint", 16).add("what", "faint").done()

    def rows(self, width: int) -> list[Line]:
        deck = self.deck_app.scene.deck
        lines = []
        for event in deck.events(self.deck_app.scene.project):
            row = Row(width).add(f"  {clock_text(event)}", "dim", 12).add(event.box, "text", 15).add(" ")
            row.add(event.queue, "dim", 9).add(" ").add(event.project, "accent", 15).add(" ")
            where = " ".join(part for part in (event.box, event.queue) if part)
            lines.append(row.add(event.text.removeprefix(f"{where}: "), event_tone(event)).done())
        return lines or [Row(width).add("  nothing has happened yet", "faint").done()]
