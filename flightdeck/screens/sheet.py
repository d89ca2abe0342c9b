"""A page of lines: a list with a cursor, or a drawing of its whole area."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.widget import Widget

from flightdeck.screens.page import Page
from flightdeck.widgets.lines import Line, LineView, Row


class Sheet(Page):
    """A list page gives ``rows(width)``, and ``heading`` and ``note`` if it has them; a page that draws everything itself
    overrides ``body(width, height)``.
    """

    LIVE: ClassVar[bool] = False  # whether it shows samples; else it is drawn when it has an answer, and for its ages
    PICKS: ClassVar[bool] = True  # whether a row can be chosen; else j and k scroll
    LOCAL_KEYS: ClassVar[tuple[tuple[str, str], ...]] = (("j k", "move"), ("esc", "back"))
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", show=False),
        Binding("up,k", "move(-1)", show=False),
        Binding("pagedown,ctrl+d", "page(1)", show=False),
        Binding("pageup,ctrl+u", "page(-1)", show=False),
        Binding("home,g", "edge(0)", show=False),
        Binding("end,G,upper_g", "edge(1)", show=False),
        Binding("enter", "pick", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.index = 0
        self.top = 0
        self.above = 0  # lines of the body before the first row
        self.count = 0  # rows there are
        self.view = LineView(id="sheet", classes="sheet")

    def main(self) -> Widget:
        return self.view

    def rows(self, width: int) -> list[Line]:
        """All rows, as wide as the screen; the page marks the chosen one (``index``) itself."""
        return []

    def heading(self, width: int) -> Line | None:
        """A line over the rows that stays."""
        return None

    def note(self) -> str:
        """What stands in the title line: how many, of what. Empty: no such line."""
        return ""

    def picked(self, index: int) -> None:
        """Enter, or a double click on the chosen row."""

    def body(self, width: int, height: int) -> list[Line]:
        """``height`` lines of ``width`` cells."""
        note = self.note()
        rows = self.rows(width)
        heading = self.heading(width)
        self.count = len(rows)
        self.index = min(max(0, self.index), max(0, len(rows) - 1))
        head = [Row(width).add(note, "dim").done()] if note else []
        if heading:
            head.append(heading)
        self.above = len(head)
        room = max(1, height - len(head))
        if self.PICKS:
            self.top = min(max(self.top, self.index - room + 1), self.index)
        self.top = min(max(0, self.top), max(0, len(rows) - room))
        return [*head, *rows[self.top : self.top + room]]

    def draw_main(self, changed: set[str] | None) -> None:
        if changed is not None and not self.LIVE:
            return
        app = self.deck_app
        width, height = self.size.width, self.main_height
        lines = self.body(width, height)[:height]
        lines += [Row(width).done() for _ in range(height - len(lines))]
        self.view.show(lines, app.data_colors(), app.glyphs.ascii)

    def place_text(self) -> str:
        room = max(1, self.main_height - self.above)
        shown = f"{min(self.count, self.top + room)} of {self.count}" if self.count > room else ""
        return "  ".join(part for part in (super().place_text(), shown) if part)

    def action_move(self, by: int) -> None:
        if self.PICKS:
            self.index += by
        else:
            self.top += by
        self.redraw()

    def action_page(self, by: int) -> None:
        self.action_move(by * max(1, self.main_height - self.above - 1))

    def action_edge(self, end: int) -> None:
        self.action_move(10**6 if end else -(10**6))

    def action_pick(self) -> None:
        self.picked(self.index)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.action_move(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.action_move(-3)

    def on_click(self, event: events.Click) -> None:
        if event.screen_y == 0:
            self.click_header(event.screen_x)
            return
        row = event.screen_y - self.view.region.y - self.above
        if self.PICKS and row >= 0 and self.view.region.contains(event.screen_x, event.screen_y):
            again = self.top + row == self.index
            self.index = self.top + row
            self.redraw()
            if again and event.chain > 1:
                self.picked(self.index)
