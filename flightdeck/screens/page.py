"""What every page has: the first line (pages, projects, freshness, clock), a banner while the database is away, the line
of events and answers, the line of keys. On a terminal too small for that: one line that says so. Where a defect keeps it
from being drawn: a line that says what failed; the other pages go on, and so does this one with the next data.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.message_pump import _MessagePumpMeta
from textual.screen import Screen
from textual.widget import Widget

from flightdeck.actions import hints
from flightdeck.widgets.header import Tabs, banner_line, event_line, header_line, key_line
from flightdeck.widgets.lines import Line, LineView, Row

if TYPE_CHECKING:
    from flightdeck.app import FlightDeckApp
    from flightdeck.orders import JobTarget, QueueTarget
    from flightdeck.styles.palette import Palette

TINY_W, TINY_H = 50, 9
_EDGES = ("header", "banner", "events", "keys")


class _PageType(_MessagePumpMeta, ABCMeta):
    """A screen that may be abstract."""


class Page(Screen[Any], metaclass=_PageType, inherit_bindings=False):
    """Subclasses give the part between the edges: a widget, and how to redraw it."""

    PAGE: ClassVar[str] = ""  # its name in screens.pages and in the table of actions
    FILTERS: ClassVar[str] = "words"  # what the filter looks at, for its prompt
    ONLY: ClassVar[frozenset[str] | None] = None  # actions that this page lets through; None: those of the table
    LOCAL_KEYS: ClassVar[tuple[tuple[str, str], ...]] = ()  # keys of the page itself: (key, word)

    def __init__(self) -> None:
        super().__init__(classes="page")
        self.ready = False  # between mount and unmount; updates also come before and after
        self.filter_text = ""
        self.lines = {name: LineView(id=name) for name in ("tiny", "broken", *_EDGES)}
        self._tabs = Tabs()
        self._made: dict[str, tuple[tuple[object, ...], Line]] = {}  # lines as they were made last, and of what
        self._drawn_in: Palette | None = None

    @property
    def deck_app(self) -> FlightDeckApp:
        return cast("FlightDeckApp", self.app)

    @abstractmethod
    def main(self) -> Widget:
        """The part between the edges."""

    def compose(self) -> ComposeResult:
        for name in ("tiny", "header", "banner"):
            yield self.lines[name]
        yield self.main()
        yield self.lines["broken"]
        for name in ("events", "keys"):
            yield self.lines[name]

    def on_mount(self) -> None:
        self.ready = True
        self.redraw()

    def on_unmount(self) -> None:
        self.ready = False

    def on_resize(self) -> None:
        self.redraw()

    def on_screen_resume(self) -> None:
        self.redraw()

    # -- what the app asks of a page

    def redraw(self, changed: set[str] | None = None) -> None:
        """Bring the page up to date; ``changed`` names the boxes that may look different, None means everything."""
        if not self.ready:
            return
        width, height = self.size
        tiny = width < TINY_W or height < TINY_H
        if tiny != self.has_class("tiny"):
            self.set_class(tiny, "tiny")
        if tiny:
            text = f"flightdeck: {width}x{height} is too small, {TINY_W}x{TINY_H} is the least"
            self.line("tiny", Row(width).add(text, "text").done())
            return
        before = (self.has_class("banner"), self._drawn_in)
        self._drawn_in = self.deck_app.data_colors()
        self._attempt("header", self.draw_header)
        if before != (self.has_class("banner"), self._drawn_in):
            changed = None  # other colours, or another height
        fault = self._attempt("its part between the edges", lambda: self._draw_middle(changed))
        if bool(fault) != self.has_class("broken"):
            self.set_class(bool(fault), "broken")
        if fault:
            self._tell(fault)
        self._attempt("bottom", self.draw_bottom)

    def _draw_middle(self, changed: set[str] | None) -> None:
        """In the boxes' present order; all of it after it could not be drawn."""
        settled = self.deck_app.settle()
        self.draw_main(None if settled or self.has_class("broken") else changed)

    def _attempt(self, part: str, draw: Callable[[], None]) -> str:
        """Draw one part. A defect costs that part alone: what failed, in one line; empty: nothing did."""
        try:
            draw()
        except Exception as error:
            return self.deck_app.faults.note(f"page {self.PAGE}, {part}", error)
        return ""

    def _tell(self, fault: str) -> None:
        app, width = self.deck_app, self.size.width
        told: list[Line] = [
            Row(width).add(f" This page cannot be drawn: {fault}", "bad").done(),
            Row(width)
            .add(" It is tried again with what comes next. The details are printed on leaving.", "dim")
            .done(),
        ]
        self.lines["broken"].show(told, app.ink, app.glyphs.ascii)

    @abstractmethod
    def draw_main(self, changed: set[str] | None) -> None:
        """Draw what is between the edges."""

    def redraw_old(self, older_than_s: float) -> None:
        """Redraw what has ages and was not redrawn for so long."""
        self.redraw()

    def filtered(self) -> None:
        """``filter_text`` is another one."""

    def next_sort(self) -> str:
        """Go on to the next order; what it is, in words. Empty: this page has one order."""
        return ""

    def chosen_job(self) -> JobTarget | None:
        """The job that x, X, e and ! are about."""
        return None

    def chosen_queue(self) -> QueueTarget | None:
        """The queue that p, r, P and R are about, where that is no lane of one box."""
        return None

    def place_text(self) -> str:
        """Right end of the key line: filter, order, where in the list one is."""
        return f"/{self.filter_text}" if self.filter_text else ""

    # -- edges

    @property
    def main_height(self) -> int:
        """Rows between the edges."""
        return max(1, self.size.height - 3 - (1 if self.has_class("banner") else 0))

    def draw_edges(self) -> None:
        """What changes with the seconds alone."""
        if not self.has_class("tiny"):
            self._attempt("header", self.draw_header)
            self._attempt("bottom", self.draw_bottom)

    def draw_header(self) -> None:
        app, width = self.deck_app, self.size.width
        line, self._tabs = header_line(
            app.scene, width, app.page_tabs(), self.PAGE, app.store_name, app.frozen_s(), app.read_only
        )
        self.line("header", line)
        banner = banner_line(app.deck, width)
        if (banner is not None) != self.has_class("banner"):
            self.set_class(banner is not None, "banner")
        if banner is not None:
            self.line("banner", banner)

    def draw_bottom(self) -> None:
        app, width = self.deck_app, self.size.width
        deck, message = app.scene.deck, app.message()
        told = deck.events(app.scene.project)
        self._keep("events", (told, width, message, deck.loaded), lambda: event_line(deck, told, width, message))
        right = self.place_text()
        self._keep("keys", (app.actions, width, right), lambda: key_line(self._hints(), width, right))

    def _hints(self) -> list[tuple[str, str]]:
        """(key, word) of the keys that work here."""
        return [*self.LOCAL_KEYS, *(hints(self.deck_app.actions, self.PAGE) if self.ONLY is None else ())]

    def _keep(self, name: str, of: tuple[object, ...], make: Callable[[], Line]) -> None:
        """Show a line, made anew only where something that it is made of is another."""
        made = self._made.get(name)
        if made is None or made[0] != of:
            made = self._made[name] = (of, make())
        self.line(name, made[1])

    def line(self, name: str, line: Line) -> None:
        app = self.deck_app
        self.lines[name].show([line], app.ink, app.glyphs.ascii)

    def click_header(self, column: int) -> None:
        for start, stop, page in self._tabs.pages:
            if start <= column < stop:
                self.deck_app.show_page(page)
                return
        for start, stop, project in self._tabs.places:
            if start <= column < stop:
                self.deck_app.show_project(project)

    def on_click(self, event: events.Click) -> None:
        if event.screen_y == 0:
            self.click_header(event.screen_x)
