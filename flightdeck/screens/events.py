"""What happened, newest first, live at the top, as far back as one pages: events of jobs, orders of people, alerts."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.binding import Binding, BindingType

from flightdeck.model.happenings import KINDS, Happening, read_happenings, with_newer
from flightdeck.orders import JobTarget
from flightdeck.reader import Answer
from flightdeck.screens.asking import AskingSheet, Question
from flightdeck.widgets import event_table
from flightdeck.widgets.alert_list import alert_rows
from flightdeck.widgets.job_sections import wrapped
from flightdeck.widgets.lines import Line, Row

EVERY_S = 2.0
FOOT_FROM = 14  # rows of the page
KEPT_MOST = 5_000  # rows on the page; older ones are asked for again
_NAMES = tuple(name for name, _ in KINDS)


class EventsScreen(AskingSheet):
    PAGE = "events"
    FILTERS = "box, queue, job, node, project, kind, person, reason"
    LOCAL_KEYS = (("tab", "kind"), ("enter", "its job"), ("esc", "back"))
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab,right,l", "kind(1)", show=False),
        Binding("shift+tab,left,h", "kind(-1)", show=False),
    ]

    def __init__(self, kind: str = "telling") -> None:
        super().__init__()
        self.kind = kind if kind in _NAMES else "telling"
        self.events: tuple[Happening, ...] = ()
        self.older: dict[str, str] | None = None  # how to ask for what is behind them; None: nothing is
        self.whole = True
        self._tabs_at: list[tuple[int, int, str]] = []

    # -- asking

    def arguments(self) -> dict[str, Any]:
        """What is asked; what is left out is the engine's default."""
        asked: dict[str, Any] = {"kind": self.kind, "project": self.wanted_project()}
        return asked | ({"text": self.filter_text} if self.filter_text else {})

    def questions(self) -> list[Question]:
        return [Question("events", self.arguments(), self.take_top, EVERY_S)]

    def take_top(self, answer: Answer) -> None:
        """The newest: in front of what is here, unless so much has happened that they do not meet."""
        if not self.takes(answer):
            return
        if answer.value is not None:
            found = read_happenings(answer.value)
            joined = with_newer(self.events, found.events)
            if joined is None or not self.events:
                self.events, self.whole = found.events, found.whole
                self.older = dict(found.next_page) if found.next_page else None
            else:
                came = len(joined) - len(self.events)
                if self.index > 0:  # the row that somebody reads stays under the cursor
                    self.index, self.top = self.index + came, self.top + came
                self.events = joined[:KEPT_MOST]
        self.redraw()

    def take_older(self, answer: Answer) -> None:
        """What follows behind the last row."""
        self.asks.pop("older", None)
        if answer.error:
            self.deck_app.say(answer.error, "bad")
        elif answer.value is not None:
            found = read_happenings(answer.value)
            known = {event.key for event in self.events}
            self.events += tuple(event for event in found.events if event.key not in known)
            self.older = dict(found.next_page) if found.next_page else None
            self.whole = self.whole and found.whole
        self.redraw()

    def forget(self) -> None:
        self.events, self.older, self.whole = (), None, True

    # -- keys

    def action_kind(self, by: int) -> None:
        self.kind = _NAMES[(_NAMES.index(self.kind) + by) % len(_NAMES)]
        self.again()

    def action_move(self, by: int) -> None:
        """At the end it goes on further back, while there is something."""
        super().action_move(by)
        at_end = by > 0 and self.index >= len(self.events) - 1
        if at_end and self.older is not None and "older" not in self.asks and len(self.events) < KEPT_MOST:
            arguments = {**self.arguments(), "after": self.older}
            self.asks["older"] = self.deck_app.reader.ask("events", arguments, self.take_older, owner=(self, "older"))

    def filtered(self) -> None:
        self.again()

    def picked(self, index: int) -> None:
        if index >= len(self.events):
            return
        event = self.events[index]
        if event.job_id:
            self.deck_app.show_page("job", job_id=event.job_id)
        else:
            self.deck_app.say("this is about no job", "dim", 3.0)

    def chosen_job(self) -> JobTarget | None:
        """The job of an event, as far as the event knows it."""
        event = self.events[self.index] if self.index < len(self.events) else None
        if event is None or not event.job_id:
            return None
        family = "node" if event.run_id else "ingest"
        status = event.kind if event.kind in ("failed", "cancelled", "completed") else "unknown"
        return JobTarget(event.job_id, family, "", event.queue, event.box, event.project, event.run_id, status)

    # -- drawing

    def body(self, width: int, height: int) -> list[Line]:
        app = self.deck_app
        tabs, self._tabs_at = event_table.kind_line(self.kind, width)
        alerts = alert_rows(app.alerts, app.deck, width, height // 3, app.glyphs)
        head = [tabs, *alerts, self._note(width), event_table.heading(width)]
        self.above, self.count = len(head), len(self.events)
        self.index = min(max(0, self.index), max(0, self.count - 1))
        foot = self._foot(width) if height >= FOOT_FROM else []
        room = max(1, height - len(head) - len(foot))
        self.top = min(max(self.top, self.index - room + 1), self.index)
        self.top = min(max(0, self.top), max(0, self.count - room))
        now = app.scene.deck.now()
        shown = list(enumerate(self.events[self.top : self.top + room], self.top))
        lines = [event_table.event_row(event, width, app.glyphs, now, at == self.index) for at, event in shown]
        if not lines and self.answered and not self.error:
            what = (
                f"nothing matches {self.filter_text!r}" if self.filter_text else "nothing of that kind has happened yet"
            )
            lines = [Row(width).add(f"  {what}", "faint").done()]
        lines += [Row(width).done() for _ in range(room - len(lines))]
        return [*head, *lines, *foot]

    def _foot(self, width: int) -> list[Line]:
        """The chosen event whole: its row may have been too short for it."""
        rule = Row(width).add(self.deck_app.glyphs.rule * width, "frame").done()
        lines: list[Line] = []
        if self.index < len(self.events):
            event = self.events[self.index]
            lines = wrapped(event.text, width, event.tone if event.tone != "dim" else "text", 2)
        return [rule, *(lines + [Row(width).done()] * 2)[:2]]

    def _note(self, width: int) -> Line:
        trouble = self.trouble_line(width)
        if trouble is not None:
            return trouble
        row = Row(width).add("  newest first", "text").add(f"   {self.where()}", "dim")
        if self.kind == "telling":
            row.add("   all but jobs that completed", "dim")
        if self.older is not None:
            row.add("   older ones follow below", "dim")
        if not self.whole:
            row.add("   only the newest 5,000 were looked through", "warn")
        return row.done()

    def on_click(self, event: Any) -> None:
        if event.screen_y == self.view.region.y:
            for start, stop, kind in self._tabs_at:
                if start <= event.screen_x < stop and kind != self.kind:
                    self.kind = kind
                    self.again()
            return
        super().on_click(event)
