"""Small boxes over the fleet: a question asked once, and a line to type into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

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
    """Asks where work would be interrupted: names scope and jobs; the focus is on going back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,b", "answer('')", show=False),
        Binding("ctrl+c,ctrl+q", "app.act('quit')", show=False),
        Binding("right,l,tab,down,j", "shift(1)", show=False),
        Binding("left,shift+tab,up,k", "shift(-1)", show=False),
        Binding("enter", "take", show=False),
    ]

    def __init__(self, title: str, details: Sequence[Span], choices: Sequence[Choice]) -> None:
        super().__init__()
        self.heading = title
        self.details = list(details)
        self.choices = [*choices, Choice("", "b", "back")]
        self.index = len(self.choices) - 1
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
        inner = width - 4
        g = app.glyphs
        lines: list[Line] = [[(g.top[0], "warn"), (g.top[1] * (width - 2), "warn"), (g.top[2], "warn")]]
        body: list[Line] = [Row(inner).done()]
        body += [Row(inner).add(part, "bright").done() for part in wrap(self.heading, inner)[:4]]
        body.append(Row(inner).done())
        room = max(1, self.size.height - len(body) - 6)
        for text, style in self.details[:room]:
            body.append(Row(inner).add(fit(text, inner), style).done())
        body += [Row(inner).done(), self._buttons(inner), Row(inner).done()]
        lines += [[(g.sides[0] + " ", "warn"), *line, (" " + g.sides[1], "warn")] for line in body]
        lines.append([(g.bottom[0], "warn"), (g.bottom[1] * (width - 2), "warn"), (g.bottom[2], "warn")])
        view = self.view
        view.styles.width, view.styles.height = width, len(lines)
        view.show(lines, app.ink, g.ascii)

    def _buttons(self, width: int) -> Line:
        row = Row(width)
        for index, choice in enumerate(self.choices):
            chosen = index == self.index
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

    def action_take(self) -> None:
        self.dismiss(self.choices[self.index].id)

    def action_answer(self, answer: str) -> None:
        self.dismiss(answer)

    def on_click(self, event: events.Click) -> None:
        view = self.view
        if event.screen_y != view.region.y + view.region.height - 3:
            return
        column = view.region.x + 2
        for choice in self.choices:
            size = len(choice.key) + len(choice.label) + 5
            if column <= event.screen_x < column + size:
                self.dismiss(choice.id)
                return
            column += size + 1


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
        self.view.styles.height = 1
        line = Row(width).add(f" {self.label} ", "title").add(f"  {self.about}", "dim").done()
        self.view.show([line], app.ink, app.glyphs.ascii)

    def redraw_old(self, older_than_s: float) -> None:
        """Nothing here ages."""

    def draw_header(self) -> None:
        """There is none."""

    @on(Input.Submitted)
    def take(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def action_leave(self) -> None:
        self.dismiss(None)
