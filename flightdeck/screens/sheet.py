"""What help, jobs, events and the command list share: a frame of lines over the fleet, a cursor, keys to leave."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, TypeVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from flightdeck.widgets.lines import Line, LineView, Row

if TYPE_CHECKING:
    from flightdeck.app import FlightDeckApp

T = TypeVar("T")


class Sheet(ModalScreen[T], inherit_bindings=False):
    """A full-screen list: title, rows, a line of keys. Subclasses say what the rows are."""

    TITLE_TEXT = ""
    KEYS = "esc back"
    PICKS = True  # whether a row can be chosen
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", show=False),
        Binding("ctrl+c,ctrl+q", "app.act('quit')", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("up,k", "move(-1)", show=False),
        Binding("pagedown,ctrl+d", "page(1)", show=False),
        Binding("pageup,ctrl+u", "page(-1)", show=False),
        Binding("home,g", "edge(0)", show=False),
        Binding("end,G", "edge(1)", show=False),
        Binding("enter", "pick", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(classes="flat")
        self.index = 0
        self.top = 0
        self.view = LineView(id="sheet", classes="sheet")

    @property
    def deck_app(self) -> FlightDeckApp:
        return cast("FlightDeckApp", self.app)

    def compose(self) -> ComposeResult:
        yield self.view

    @abstractmethod
    def rows(self, width: int) -> list[Line]:
        """All rows, as wide as the screen; the chosen one is marked by the sheet."""

    def heading(self, width: int) -> Line | None:
        """A line under the title that stays."""
        return None

    def picked(self, index: int) -> None:
        """Enter, or a click on the chosen row."""

    def on_mount(self) -> None:
        self.redraw()

    def on_resize(self) -> None:
        self.redraw()

    def redraw(self, changed: set[str] | None = None) -> None:
        if not self.is_mounted:
            return
        width, height = self.size
        if width < 2 or height < 4:
            return
        rows = self.rows(width)
        self.index = min(max(0, self.index), max(0, len(rows) - 1))
        heading = self.heading(width)
        room = height - 2 - (1 if heading else 0)
        if self.PICKS:
            self.top = min(max(self.top, self.index - room + 1), self.index)
        self.top = min(max(0, self.top), max(0, len(rows) - room))
        app = self.deck_app
        lines: list[Line] = [Row(width).add(f" {self.TITLE_TEXT} ", "title").add(self.note(), "dim").done()]
        if heading:
            lines.append(heading)
        lines += rows[self.top : self.top + room]
        while len(lines) < height - 1:
            lines.append(Row(width).done())
        shown = f"{min(len(rows), self.top + room)} of {len(rows)}" if len(rows) > room else ""
        lines.append(Row(width).add(f" {self.KEYS}", "dim").right((shown, "faint"), (" ", "text")).done())
        self.view.show(lines, app.ink, app.glyphs.ascii)

    def note(self) -> str:
        return ""

    def redraw_old(self, older_than_s: float) -> None:
        self.redraw()

    def draw_header(self) -> None:
        """The title has no clock."""

    def action_leave(self) -> None:
        self.dismiss(None)

    def action_move(self, by: int) -> None:
        if self.PICKS:
            self.index += by
        else:
            self.top += by
        self.redraw()

    def action_page(self, by: int) -> None:
        self.action_move(by * max(1, self.size.height - 4))

    def action_edge(self, end: int) -> None:
        self.action_move(10**6 if end else -(10**6))

    def action_pick(self) -> None:
        self.picked(self.index)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.action_move(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.action_move(-3)

    def on_click(self, event: events.Click) -> None:
        head = 1 + (1 if self.heading(self.size.width) else 0)
        row = self.top + event.screen_y - head
        if self.PICKS and event.screen_y >= head:
            again = row == self.index
            self.index = row
            self.redraw()
            if again and event.chain > 1:
                self.picked(self.index)
