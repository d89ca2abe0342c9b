"""A page that shows what the database answers: asked again and again while somebody sees it, anew when something else is wanted."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple

from flightdeck.model.fleet import show_project
from flightdeck.reader import Answer, Ask, Take
from flightdeck.screens.sheet import Sheet
from flightdeck.widgets.lines import Line, Row


class Question(NamedTuple):
    """One that the page asks: by its name in flightdeck.questions, again every ``every_s`` seconds."""

    name: str
    arguments: dict[str, Any]
    take: Take
    every_s: float


class AskingSheet(Sheet):
    """A page says what it asks (``questions``) and drops what it knew (``forget``); this one asks, and asks nothing while
    another page lies over it."""

    def __init__(self) -> None:
        super().__init__()
        self.error = ""  # of the newest answer
        self.answered = False
        self.asks: dict[str, Ask] = {}  # what is asked now, by name
        self._of: str | None = None  # the project that it is asked of

    @abstractmethod
    def questions(self) -> Iterable[Question]:
        """What is to be asked now; arguments that are left out are the engine's defaults."""

    def forget(self) -> None:
        """Other rows are wanted: show none of those that are here."""

    def wanted_project(self) -> str | None:
        """The project whose rows are wanted, None: of all."""
        return self.deck_app.scene.project

    def on_mount(self) -> None:
        super().on_mount()
        self.ask()

    def on_unmount(self) -> None:
        super().on_unmount()
        self.hush()

    def on_screen_suspend(self) -> None:
        """Nobody sees it: nothing is asked."""
        self.hush()

    def on_screen_resume(self) -> None:
        if not self.asks and self.ready:
            self.ask()
        super().on_screen_resume()

    def ask(self) -> None:
        """Ask for what is to be seen now, until something else is."""
        self.hush()
        self._of = self.wanted_project()
        reader = self.deck_app.reader
        for name, arguments, take, every_s in self.questions():
            self.asks[name] = reader.ask(name, arguments, take, every_s)

    def hush(self) -> None:
        for ask in self.asks.values():
            ask.stop()
        self.asks = {}

    def takes(self, answer: Answer) -> bool:
        """Note what came of the question. False: the picture is frozen, and has something to show already."""
        if self.deck_app.frozen is not None and self.answered:
            return False
        self.error, self.answered = answer.error, True
        return True

    def again(self) -> None:
        """Something else is wanted: from the top."""
        self.index = self.top = 0
        self.answered = False
        self.forget()
        self.ask()
        self.redraw()

    def redraw(self, changed: set[str] | None = None) -> None:
        if self.ready and self.asks and self.wanted_project() != self._of:
            self.again()  # another tab; draws itself
            return
        super().redraw(changed)

    def trouble_line(self, width: int) -> Line | None:
        """In place of what the list holds, while there is no answer; None: there is one."""
        if self.error:
            return Row(width).add(f"  {self.error}", "bad").done()
        if not self.answered:
            return Row(width).add("  asking the database...", "dim").done()
        return None

    def where(self) -> str:
        """Whose rows these are, in words."""
        return "all projects" if self._of is None else f"project {show_project(self._of)}"
