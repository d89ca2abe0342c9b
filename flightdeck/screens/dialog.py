"""Small boxes over the fleet: a question asked once, and a line to type into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from rich.cells import cell_len
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from flightdeck.widgets.lines import Line, LineView, Row, Span, fit, wrap

if TYPE_CHECKING:
    from flightdeck.app import FlightDeckApp


@dataclass(frozen=True)
class Choice:
    """One answer; ``key`` is the letter that gives it."""

    id: str
    key: str
    label: str
    tone: str = "text"


class ConfirmScreen(ModalScreen[str], inherit_bindings=False):
    """Asks where work would be interrupted: names scope and jobs; the focus is on going back.

    The question and all answers are there from 40x8 on; what else there is to say scrolls where it does not fit.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,b", "answer('')", show=False),
        Binding("ctrl+c,ctrl+q", "app.act('quit')", show=False),
        Binding("right,l,tab,down,j", "shift(1)", show=False),
        Binding("left,shift+tab,up,k", "shift(-1)", show=False),
        Binding("enter", "take", show=False),
        Binding("pagedown,ctrl+d", "scroll(1)", show=False),
        Binding("pageup,ctrl+u", "scroll(-1)", show=False),
    ]

    def __init__(self, title: str, details: Sequence[Span], choices: Sequence[Choice]) -> None:
        super().__init__()
        self.heading = title
        self.details = list(details)
        self.choices = [*choices, Choice("", "b", "back")]
        self.index = len(self.choices) - 1
        self.top = 0  # of the details
        self.room = 0  # for them
        self.places: list[tuple[int, int, int, str]] = []  # row of the view, first column, last + 1, answer
        self.view = LineView(id="dialog")

    def compose(self) -> ComposeResult:
        yield self.view

    def on_mount(self) -> None:
        for choice in self.choices:  # an answer's letter before a way to move
            self._bindings.key_to_bindings[choice.key] = [Binding(choice.key, f"answer('{choice.id}')", show=False)]
        self.redraw()

    def on_resize(self) -> None:
        self.redraw()

    def redraw(self, changed: set[str] | None = None) -> None:
        if not self.is_mounted:
            return
        app = cast("FlightDeckApp", self.app)
        width = min(76, max(30, self.size.width - 2))
        g = app.glyphs
        body = self._body(width - 4, max(3, self.size.height - 2))
        lines: list[Line] = [[(g.top[0], "warn"), (g.top[1] * (width - 2), "warn"), (g.top[2], "warn")]]
        lines += [[(g.sides[0] + " ", "warn"), *line, (" " + g.sides[1], "warn")] for line in body]
        lines.append([(g.bottom[0], "warn"), (g.bottom[1] * (width - 2), "warn"), (g.bottom[2], "warn")])
        view = self.view
        view.styles.width, view.styles.height = width, len(lines)
        view.show(lines, app.ink, g.ascii)

    def _body(self, width: int, height: int) -> list[Line]:
        """At most ``height`` lines: the answers, the question, then as much of the details as fits, then blanks."""
        rows = self._button_rows(width)
        asked = wrap(self.heading, width)
        left = max(1, height - len(rows))
        if len(asked) > left:
            asked = [*asked[: left - 1], fit(asked[left - 1], width - 1).rstrip("~") + "~"]
        left -= len(asked)
        told = [Row(width).add(fit(text, width), style).done() for text, style in self._told(width, left)]
        left -= len(told)
        blank = Row(width).done()
        # The first blanks go where they part what is asked, what is told and what can be answered.
        parted, before, under, above = ([blank] if left > wanted else [] for wanted in range(4))
        head = [*above, *(Row(width).add(part, "bright").done() for part in asked), *(parted if told else [])]
        head += [*told, *(before if told else parted)]
        self.places = []
        for y, row in enumerate(rows, 1 + len(head)):
            column = 2
            for index in row:
                size = _cells(self.choices[index])
                self.places.append((y, column, column + size, self.choices[index].id))
                column += size + 1
        return [*head, *(self._buttons(row, width) for row in rows), *under]

    def _told(self, width: int, room: int) -> list[Span]:
        """The details that fit into ``room`` lines; where that are not all the last line says so."""
        lines = [
            (part, style)
            for text, style in self.details
            for part in ([text] if text.startswith(" ") else wrap(text, width))  # a row of a list stays one
        ]
        self.room = min(len(lines), room)
        self.top = min(max(0, self.top), len(lines) - self.room)
        shown = lines[self.top : self.top + self.room]
        rest = len(lines) - self.top - len(shown)
        return [*shown[:-1], (f"{rest + 1} more lines: page down", "dim")] if shown and rest else shown

    def _button_rows(self, width: int) -> list[list[int]]:
        """The answers, by their index, in as few rows as they need."""
        rows: list[list[int]] = [[]]
        used = 0
        for index, choice in enumerate(self.choices):
            size = _cells(choice)
            if rows[-1] and used + 1 + size > width:
                rows.append([])
                used = 0
            rows[-1].append(index)
            used += size + (1 if used else 0)
        return rows

    def _buttons(self, which: Sequence[int], width: int) -> Line:
        row = Row(width)
        for index in which:
            choice, chosen = self.choices[index], index == self.index
            text = f" {'>' if chosen else ' '} {choice.key} {choice.label} "
            row.add(text, f"{'bright' if chosen else choice.tone}{'+r' if chosen else ''}").add(" ")
        return row.done()

    def redraw_old(self, older_than_s: float) -> None:
        """Nothing here ages."""

    def draw_header(self) -> None:
        """There is none."""

    def action_shift(self, by: int) -> None:
        self.index = (self.index + by) % len(self.choices)
        self.redraw()

    def action_scroll(self, by: int) -> None:
        self.top += by * max(1, self.room - 1)
        self.redraw()

    def action_take(self) -> None:
        self.dismiss(self.choices[self.index].id)

    def action_answer(self, answer: str) -> None:
        self.dismiss(answer)

    def on_click(self, event: events.Click) -> None:
        x, y = event.screen_x - self.view.region.x, event.screen_y - self.view.region.y
        for row, start, stop, answer in self.places:
            if y == row and start <= x < stop:
                self.dismiss(answer)
                return

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.action_scroll(1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.action_scroll(-1)


def _cells(choice: Choice) -> int:
    return len(choice.key) + len(choice.label) + 5


class PromptScreen(ModalScreen[str], inherit_bindings=False):
    """One line to type into; escape leaves everything as it was."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False, priority=True),
        Binding("ctrl+c,ctrl+q", "app.act('quit')", show=False, priority=True),
    ]

    def __init__(self, label: str, value: str = "", about: str = "") -> None:
        super().__init__()
        self.label, self.value, self.about = label, value, about
        self.view = LineView(id="label")
        self.box = Vertical(classes="box")

    def compose(self) -> ComposeResult:
        with self.box:
            yield self.view
            yield Input(self.value, id="typed", select_on_focus=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self.redraw()

    def on_resize(self) -> None:
        self.redraw()

    def redraw(self, changed: set[str] | None = None) -> None:
        app = cast("FlightDeckApp", self.app)
        width = min(70, max(20, self.size.width - 4))
        self.box.styles.width = width
        row = Row(width).add(f" {self.label} ", "title")
        if row.used + 2 + cell_len(self.about) > width:  # a question of its own
            about = wrap(self.about, width - 2)
            room = max(1, self.size.height - 2)
            if len(about) > room:
                about = [*about[: room - 1], f"{fit(about[room - 1], width - 3).rstrip('~')}~"]
            lines = [row.done(), *(Row(width).add(f" {part}", "text").done() for part in about)]
        else:
            lines = [row.add(f"  {self.about}", "dim").done()]
        self.view.styles.height = len(lines)
        self.view.show(lines, app.ink, app.glyphs.ascii)

    def redraw_old(self, older_than_s: float) -> None:
        """Nothing here ages."""

    def draw_header(self) -> None:
        """There is none."""

    @on(Input.Submitted)
    def take(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def action_leave(self) -> None:
        self.dismiss(None)
