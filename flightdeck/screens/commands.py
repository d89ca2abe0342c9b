"""The command list: every action by its name, narrowed by what is typed. Only what exists in this mode is in it."""

from __future__ import annotations

from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from flightdeck.actions import Action, on_page
from flightdeck.screens.sheet import Sheet
from flightdeck.widgets.lines import Line, Row


class CommandsScreen(Sheet):
    """Over a page: what can be done there. ``page`` is its name."""

    PAGE = "commands"
    ONLY = frozenset({"quit"})
    KEYS = "type to narrow   enter do it   esc back"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False, priority=True),
        Binding("down", "move(1)", show=False, priority=True),
        Binding("up", "move(-1)", show=False, priority=True),
        Binding("ctrl+c,ctrl+q", "app.act('quit')", show=False, priority=True),
    ]

    def __init__(self, page: str = "fleet") -> None:
        super().__init__()
        self.of = page
        self.typed = ""

    def compose(self) -> ComposeResult:
        yield Input(id="typed", select_on_focus=False)
        yield self.view

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        super().on_mount()

    def entries(self) -> list[Action]:
        words = self.typed.lower().split()
        return [
            action
            for action in on_page(self.deck_app.actions, self.of)
            if action.palette and all(word in f"{action.title} {action.about}".lower() for word in words)
        ]

    def rows(self, width: int) -> list[Line]:
        lines = []
        for index, action in enumerate(self.entries()):
            here = index == self.index
            row = Row(width, "s" if here else "").add(f" {self.deck_app.glyphs.mark if here else ' '} ", "focus+b")
            row.add(action.title, "bright" if here else "text", 34).add(action.show, "info", 12).add(
                action.about, "dim"
            )
            lines.append(row.done())
        return lines or [Row(width).add("   no such command", "faint").done()]

    @property
    def main_height(self) -> int:
        return max(1, self.size.height - 1)

    def redraw(self, changed: set[str] | None = None) -> None:
        if self.ready:
            self.draw_main(changed)

    def draw_edges(self) -> None:
        """There are none."""

    def body(self, width: int, height: int) -> list[Line]:
        lines = super().body(width, height - 2)
        lines.insert(0, Row(width).add(" COMMANDS ", "title").done())
        lines += [Row(width).done() for _ in range(height - 1 - len(lines))]
        return [*lines, Row(width).add(f" {self.KEYS}", "dim").done()]

    @on(Input.Changed)
    def narrow(self, event: Input.Changed) -> None:
        self.typed, self.index = event.value, 0
        self.redraw()

    @on(Input.Submitted)
    def take(self, event: Input.Submitted) -> None:
        self.picked(self.index)

    def picked(self, index: int) -> None:
        found = self.entries()
        self.dismiss(found[index].id if index < len(found) else None)

    def action_leave(self) -> None:
        self.dismiss(None)

    def on_click(self, event: events.Click) -> None:
        row = self.top + event.screen_y - 2
        if 0 <= row < len(self.entries()):
            self.picked(row)
