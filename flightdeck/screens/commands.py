"""The command list: every action by its name, narrowed by what is typed. Only what exists in this mode is in it."""

from __future__ import annotations

from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from flightdeck.actions import Action
from flightdeck.screens.sheet import Sheet
from flightdeck.widgets.lines import Line, Row


class CommandsScreen(Sheet[str]):
    TITLE_TEXT = "COMMANDS"
    KEYS = "type to narrow   enter do it   esc back"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False, priority=True),
        Binding("down", "move(1)", show=False, priority=True),
        Binding("up", "move(-1)", show=False, priority=True),
        Binding("ctrl+c,ctrl+q", "app.act('quit')", show=False, priority=True),
    ]

    def __init__(self) -> None:
        super().__init__()
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
            for action in self.deck_app.actions
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

    def on_click(self, event: events.Click) -> None:
        row = self.top + event.screen_y - 2
        if 0 <= row < len(self.entries()):
            self.picked(row)
