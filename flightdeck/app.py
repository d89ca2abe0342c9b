"""The deck itself: wires feed, read model, reader, cursor, pages and actions. Never touches a database.

Its rooms: ``paging`` holds the stack of pages, ``term.shown`` what goes to the terminal, ``roster`` the boxes on screen, ``schedule`` says when to draw,
``looking`` and ``operating`` do what keys ask for.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import BindingType

from flightdeck import actions as table
from flightdeck.alerts import Alert, Alerts, toast
from flightdeck.faults import Faults
from flightdeck.feed import start_feed
from flightdeck.looking import Looker
from flightdeck.model.axis import HOUR_S, Window
from flightdeck.model.deck import Clock, Deck, Update
from flightdeck.model.fleet import Box
from flightdeck.model.text import clean
from flightdeck.operating import Operator
from flightdeck.orders import JobTarget, OrderDesk, Outcome, QueueTarget
from flightdeck.paging import PagedApp
from flightdeck.pasts import Pasts
from flightdeck.profile import Profile, with_keys
from flightdeck.reader import Answers, Canned, Reader
from flightdeck.roster import Roster
from flightdeck.schedule import Schedule
from flightdeck.screens.pages import PAGES
from flightdeck.styles.palette import Palette, palette
from flightdeck.styles.themes import THEMES
from flightdeck.term.paint import Painter
from flightdeck.term.shown import Shown
from flightdeck.widgets.lines import ASCII, BLOCKS, UNICODE, Span
from flightdeck.widgets.scene import Cursor, Scene

if TYPE_CHECKING:
    from textual.dom import DOMNode

    from engine.feed import Feed
    from engine.store import Store


class FlightDeckApp(Shown, PagedApp, inherit_bindings=False):
    """``store_opener`` None: no feed (tests, still frames), and ``reader`` answers what pages ask. ``on_quit`` replaces
    leaving on ``q``; it gets the app."""

    CSS_PATH = "styles/deck.tcss"
    BINDINGS: ClassVar[list[BindingType]] = []
    ENABLE_COMMAND_PALETTE = False
    TITLE = "Flight Deck"

    def __init__(
        self,
        store_opener: Callable[[], Store] | None,
        project: str | None = None,
        read_only: bool = False,
        ascii: bool = False,
        mouse: bool = True,
        theme: str = "dark",
        on_quit: Callable[[FlightDeckApp], None] | None = None,
        *,
        store_name: str = "",
        plain: bool = False,
        clock: Clock | None = None,
        reader: Canned | None = None,
        profile: Profile | None = None,
    ) -> None:
        super().__init__(ansi_color=True if plain or theme == "ansi" else None)
        self.clock = clock or Clock(time.monotonic, lambda: datetime.now(UTC))
        self.profile = profile or Profile()
        self.deck = Deck(self.clock, classes=self.profile.classes)
        self.deck.young_s = 8.0 if store_opener is not None else 0.0  # a still frame has no later
        self.alerts = Alerts()
        self.faults = Faults()
        self.glyphs = ASCII if ascii else BLOCKS if os.environ.get("FLIGHTDECK_CHARTS") == "blocks" else UNICODE
        self.scene = Scene(self.deck, project=project, glyphs=self.glyphs, alerts=self.alerts)
        self.scene.window = Window(self.profile.window_s or HOUR_S)
        self.read_only = read_only
        self.wants_mouse = mouse
        self.store_name = store_name
        self.on_quit = on_quit
        self.actions = with_keys(table.offered(read_only, PAGES), self.profile.keys)
        self.frozen: Deck | None = None
        self.roster = Roster(self, self.profile.sort or "")
        self.feed: Feed | None = None
        self.desk: OrderDesk | None = None
        self.operator = Operator(self)
        self.looker = Looker(self)
        self.schedule = Schedule(self)
        self.reader: Answers = self._canned(reader) if store_opener is None else Reader(store_opener, self.soon)
        self.pasts = Pasts(self)
        self._opener = store_opener
        self._theme_name = "plain" if plain else theme
        self.ink: Palette = palette(theme, plain)
        self._grey = self.ink.grey()
        self._message: tuple[str, str, float] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.painter = Painter(self)
        self._turn = contextvars.copy_context()
        for look in THEMES:
            self.register_theme(look)
        for action in self.actions:
            if action.keys:
                self.bind(",".join(action.keys), f"act('{action.id}')", description=action.title, show=False)

    def _canned(self, reader: Canned | None) -> Canned:
        canned = reader or Canned()
        canned.soon, canned.mono = self.soon, self.clock.mono
        return canned

    def on_mount(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._turn = contextvars.copy_context()
        self.theme = {"dark": "deck-dark", "light": "deck-light"}.get(self._theme_name, "ansi-dark")
        self.push_screen(PAGES["fleet"]())
        if self._opener is not None:
            self.feed = start_feed(self, self._opener, None, self.read_only)
            if not self.read_only:
                self.desk = OrderDesk(self._opener, lambda outcome: self.soon(self.take_outcome, outcome))
        self.schedule.start()

    def on_unmount(self) -> None:
        """Tell the threads to end; nobody waits for them here."""
        self.schedule.stop()
        if self.feed is not None:
            self.feed.stop(timeout_s=0)
        if self.desk is not None:
            self.desk.close()
        self.reader.close()

    @property
    def ended(self) -> bool:
        """Whether it is leaving: nothing is drawn any more."""
        return self._exit

    def _fatal_error(self) -> None:
        """As Textual does it, but without the values of local variables: they may hold a password."""
        from rich.segment import Segments
        from rich.traceback import Traceback  # slow to import, and nearly never wanted

        self._exit_renderables.append(Segments(self.console.render(Traceback(width=None))))
        self._close_messages_no_wait()

    def guarded(self, work: Callable[..., None], *arguments: object) -> None:
        """Do work that the event loop calls. A defect in it is said, and the deck goes on with what it had."""
        if self._exit or not self.is_running:
            return
        try:
            work(*arguments)
        except Exception as error:
            self._went_wrong("taking in what is new", error)

    async def _dispatch_action(self, namespace: DOMNode, action_name: str, params: Any) -> bool:
        """A key that fails does nothing else."""
        try:
            return await super()._dispatch_action(namespace, action_name, params)
        except Exception as error:
            self._went_wrong(f"a key ({action_name})", error)
            return True

    def _went_wrong(self, what: str, error: Exception) -> None:
        self.say(f"{what} failed: {self.faults.note(what, error)}; the details are printed on leaving", "bad", 20.0)

    def soon(self, work: Callable[..., None], *arguments: object) -> None:
        """From any thread: have the event loop do it. Costs less than a message, and nothing once the loop has ended."""
        if self.loop is not None:
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.guarded, work, *arguments, context=self._turn)

    # -- what is new

    def take_in(self, update: Update) -> None:
        self.schedule.take_in(update)

    def flush(self, everything: bool = True) -> None:
        self.schedule.flush(everything)

    def draw_now(self, changed: set[str] | None = None) -> None:
        self.schedule.draw_now(changed)

    def tick(self) -> None:
        self.look_at_size()
        self.schedule.tick()

    def take_outcome(self, outcome: Outcome) -> None:
        self.operator.outcome(outcome)
        if self.feed is not None:
            self.feed.request_refresh()

    def freeze(self, on: bool) -> None:
        """Let the picture stand, or go on; data keeps coming."""
        self.frozen = self.deck.frozen_copy() if on else None
        self.scene.deck = self.frozen or self.deck

    def open_cursor(self) -> None:
        """Enter on the fleet: the job under the cursor, else the box."""
        cursor = self.scene.cursor
        if cursor.job:
            self.show_page("job", job_id=cursor.job)
        elif cursor.box:
            self.show_page("box", box=cursor.box)

    # -- what pages ask

    def boxes(self) -> tuple[Box, ...]:
        """The boxes on the fleet page, in their order."""
        return self.roster.boxes()

    def settle(self) -> bool:
        return self.roster.settle()

    def current_box(self) -> Box | None:
        return self.roster.current()

    def chosen_job(self) -> JobTarget | None:
        """The job that the page on top has under its cursor."""
        page = self.page()
        return page.chosen_job() if page is not None else None

    def chosen_queue(self) -> QueueTarget | None:
        """The queue that it has under its cursor, on a page of queues."""
        page = self.page()
        return page.chosen_queue() if page is not None else None

    def data_colors(self) -> Palette:
        """Grey while the database is away: what is shown may be old."""
        return self._grey if self.deck.link.state == "lost" else self.ink

    def message(self) -> Span | None:
        """What stands in front on the line of events: the answer to a key, else an alert that nobody has seen."""
        if self._message is not None:
            return self._message[0], self._message[1]
        return toast(self.alerts, next((action.show for action in self.actions if action.id == "seen"), ""))

    def told(self, begun: Sequence[Alert], first: bool = False) -> None:
        """Alerts begin: the line of events and the header say so, and the bell where a profile wants it. ``first``: they
        were there before this deck."""
        if not begun:
            return
        if self.profile.bell and not first:
            self.bell()
        page = self.page()
        if page is not None and page.ready:
            page.draw_edges()

    def forget_message(self) -> None:
        """Once its time is over."""
        if self._message is not None and self.clock.mono() > self._message[2]:
            self._message = None

    def frozen_s(self) -> float | None:
        return None if self.frozen is None else self.deck.clock.mono() - self.frozen.clock.mono()

    def say(self, text: str, tone: str = "text", seconds: float = 8.0) -> None:
        """Put one line on the event line for a while; it may quote names and errors."""
        self._message = (clean(text), tone, self.clock.mono() + seconds)
        page = self.page()
        if page is not None and page.ready:
            page.draw_edges()

    def point_at(self, cursor: Cursor, twice: bool = False) -> None:
        left, self.scene.cursor = self.scene.cursor, cursor
        if twice:
            self.open_cursor()
        self.draw_now({left.box, cursor.box})

    def show_project(self, project: str | None) -> None:
        self.scene.project = project
        self.draw_now()

    def change_theme(self) -> None:
        """Dark or light, where these are ours to choose."""
        if self._theme_name not in ("dark", "light"):
            self.say("this terminal's own colours are in use", "dim")
            return
        self._theme_name = "light" if self._theme_name == "dark" else "dark"
        self.ink = palette(self._theme_name)
        self._grey = self.ink.grey()
        self.theme = f"deck-{self._theme_name}"
        self.draw_now()

    # -- actions

    def action_act(self, name: str) -> None:
        """Do one action of the table; what this mode or this page does not offer does not happen."""
        action = next((action for action in self.actions if action.id == name), None)
        if action is None or not self.lets_through(action):
            return
        if action.writes:
            do = {"undo": "take_back"}.get(action.id, action.id)
            getattr(self.operator, do)()
        else:
            getattr(self.looker, action.handler)()
