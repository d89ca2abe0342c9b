"""The deck itself: wires feed, read model, cursor, screens and actions. Never touches a database."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segments
from rich.traceback import Traceback
from textual.app import App
from textual.binding import BindingType
from textual.theme import Theme

from flightdeck import actions as table
from flightdeck.feed import start_feed
from flightdeck.model.deck import Clock, Deck, Update
from flightdeck.model.fleet import Box
from flightdeck.navigate import cycle, settle, step
from flightdeck.operating import Operator
from flightdeck.orders import OrderDesk, Outcome
from flightdeck.screens.commands import CommandsScreen
from flightdeck.screens.dialog import PromptScreen
from flightdeck.screens.events import EventsScreen
from flightdeck.screens.fleet import FleetScreen
from flightdeck.screens.help import HelpScreen
from flightdeck.screens.jobs import JobsScreen
from flightdeck.screens.sheet import Sheet
from flightdeck.sorting import SORTS, matches
from flightdeck.styles.palette import DARK, LIGHT, Palette, palette
from flightdeck.term.paint import Painted, Painter
from flightdeck.widgets.lines import ASCII, UNICODE, Span
from flightdeck.widgets.scene import Cursor, Scene

if TYPE_CHECKING:
    from rich.console import RenderableType
    from textual.screen import Screen

    from engine.feed import Feed
    from engine.store import Store

URGENT_S = 0.05  # what arrives within so long is drawn together
SAMPLE_S = 0.25  # so long a sample waits for those of other boxes
CALM_S = 2.0  # ages and progress of a box are drawn with its samples, without samples that often
AGES_S = 2.5


class FlightDeckApp(App[int], inherit_bindings=False):
    """``store_opener`` None: no feed (tests, still frames). ``on_quit`` replaces leaving on ``q``; it gets the app."""

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
    ) -> None:
        super().__init__(ansi_color=True if plain or theme == "ansi" else None)
        self.clock = clock or Clock(time.monotonic, lambda: datetime.now(UTC))
        self.deck = Deck(self.clock)
        self.glyphs = ASCII if ascii else UNICODE
        self.scene = Scene(self.deck, project=project, glyphs=self.glyphs)
        self.read_only = read_only
        self.wants_mouse = mouse
        self.store_name = store_name
        self.on_quit = on_quit
        self.actions = table.offered(read_only)
        self.expanded = False
        self.frozen: Deck | None = None
        self.filter_text = ""
        self.sort_index = 0
        self.feed: Feed | None = None
        self.desk: OrderDesk | None = None
        self.operator = Operator(self)
        self._opener = store_opener
        self._theme_name = "plain" if plain else theme
        self.ink: Palette = palette(theme, plain)
        self._grey = self.ink.grey()
        self._message: tuple[str, str, float] | None = None
        self._stale: dict[str, float] = {}  # boxes that look different, and since when
        self._sampled: set[str] = set()  # those of them that have a new sample
        self._urgent = False
        self._flush_timer: asyncio.TimerHandle | None = None
        self._flushed = self._flush_due = 0.0
        self._ticks = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        self.painter = Painter(self)
        self._turn = contextvars.copy_context()
        self.register_theme(_theme("deck-dark", DARK, "#0d1117", True))
        self.register_theme(_theme("deck-light", LIGHT, "#ffffff", False))
        for action in self.actions:
            self.bind(",".join(action.keys), f"act('{action.id}')", description=action.title, show=False)

    def on_mount(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._turn = contextvars.copy_context()
        self.theme = {"dark": "deck-dark", "light": "deck-light"}.get(self._theme_name, "ansi-dark")
        self.push_screen(FleetScreen())
        if self._opener is not None:
            self.feed = start_feed(self, self._opener, None, self.read_only)
            if not self.read_only:
                self.desk = OrderDesk(self._opener, lambda outcome: self.soon(self.take_outcome, outcome))
        self.set_interval(1.0, self.tick)

    def on_unmount(self) -> None:
        """Tell the threads to end; nobody waits for them here."""
        if self.feed is not None:
            self.feed.stop(timeout_s=0)
        if self.desk is not None:
            self.desk.close()

    def _fatal_error(self) -> None:
        """As Textual does it, but without the values of local variables: they may hold a password."""
        self._exit_renderables.append(Segments(self.console.render(Traceback(width=None))))
        self._close_messages_no_wait()

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        """Frames in the order they were made: what is painted directly goes out before the compositor's."""
        self.painter.flush()
        super()._display(screen, renderable)

    def show_frame(self, frame: Painted) -> None:
        super()._display(self.screen, frame)  # type: ignore[arg-type]

    def guarded(self, work: Callable[..., None], *arguments: object) -> None:
        """Do work that the event loop calls; a defect in it ends the deck as one in a handler would."""
        if self._exit or not self.is_running:
            return
        try:
            work(*arguments)
        except Exception as error:
            self._handle_exception(error)

    def soon(self, work: Callable[..., None], *arguments: object) -> None:
        """From any thread: have the event loop do it. Costs less than a message, and nothing once the loop has ended."""
        if self.loop is not None:
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.guarded, work, *arguments, context=self._turn)

    # -- what is new

    def take_in(self, update: Update) -> None:
        """Take one update into the read model. What is urgent is drawn at once, a box with a new sample very soon, the
        rest together with that box's next sample or every other second."""
        changed, urgent = self.deck.apply(update)
        if self._exit:
            return
        if self.frozen is not None:
            self.draw_now(set())
            return
        now = self.clock.mono()
        for box in changed:
            self._stale.setdefault(box, now)
        self._sampled |= changed & {sample.box for sample in update.samples}
        self._urgent = self._urgent or urgent
        self._plan(now)

    def _plan(self, now: float) -> None:
        """Set the time of the next drawing."""
        if self._urgent:
            due = now + URGENT_S
        elif self._sampled:
            due = max(now + SAMPLE_S, self._flushed + 2 * SAMPLE_S)
        elif self._stale:
            due = min(self._stale.values()) + CALM_S
        else:
            return
        if self.loop is None or (self._flush_timer is not None and self._flush_due <= due):
            return
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        self._flush_due = due
        self._flush_timer = self.loop.call_later(max(0.0, due - now), self.guarded, self.flush, False)

    def flush(self, everything: bool = True) -> None:
        """Draw what has changed since the last time."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        now = self._flushed = self.clock.mono()
        drawn = set(self._stale)
        if not self._urgent and not everything:
            drawn = self._sampled | {box for box, since in self._stale.items() if now >= since + CALM_S - 0.05}
        self._urgent = False
        self._sampled -= drawn
        for box in drawn:
            self._stale.pop(box, None)
        self.draw_now(drawn)
        self._plan(now)

    def draw_now(self, changed: set[str] | None = None) -> None:
        """Draw the top screen, and the fleet where it can be seen behind it. ``changed`` None: everything."""
        top = self.screen_stack[-1] if self.screen_stack else None
        fleet = self.fleet_screen()
        if fleet is not None and (top is fleet or not isinstance(top, Sheet)):
            fleet.redraw(changed)
        if top is not None and top is not fleet and hasattr(top, "redraw_old"):
            top.redraw(changed)  # type: ignore[attr-defined]

    def fleet_screen(self) -> FleetScreen | None:
        return next((screen for screen in self.screen_stack if isinstance(screen, FleetScreen)), None)

    def tick(self) -> None:
        """Once a second the header; every other second the ages of what no sample has redrawn."""
        self._ticks += 1
        if self._message is not None and self.clock.mono() > self._message[2]:
            self._message = None
        fleet = self.fleet_screen()
        if fleet is None or not fleet.ready:
            return
        fleet.draw_header()
        fleet.draw_bottom()
        if self._ticks % 2 == 0 and self.frozen is None:
            fleet.redraw_old(AGES_S)
            if self.screen is not fleet and hasattr(self.screen, "redraw_old"):
                self.screen.redraw_old(AGES_S)

    def take_outcome(self, outcome: Outcome) -> None:
        self.operator.outcome(outcome)
        if self.feed is not None:
            self.feed.request_refresh()

    # -- what screens ask

    def boxes(self) -> tuple[Box, ...]:
        """The boxes on screen: those of the project, that match the filter, in the chosen order."""
        scene = self.scene
        boxes = [box for box in scene.deck.boxes() if matches(box, self.filter_text)]
        if scene.project is not None:
            mine = [box for box in boxes if scene.lanes(box) or scene.jobs(box)]
            boxes = mine or boxes
        key = SORTS[self.sort_index].key
        return tuple(boxes if key is None else sorted(boxes, key=lambda box: key(scene.deck, box)))

    def settle(self) -> bool:
        """Put the cursor on something that exists; whether it had to move."""
        found = settle(self.scene, self.boxes(), self.scene.cursor)
        moved = found != self.scene.cursor
        self.scene.cursor = found
        return moved

    def current_box(self) -> Box | None:
        return next((box for box in self.boxes() if box.raw == self.scene.cursor.box), None)

    def data_colors(self) -> Palette:
        """Grey while the database is away: what is shown may be old."""
        return self._grey if self.deck.link.state == "lost" else self.ink

    def message(self) -> Span | None:
        return (self._message[0], self._message[1]) if self._message is not None else None

    def frozen_s(self) -> float | None:
        return None if self.frozen is None else self.deck.clock.mono() - self.frozen.clock.mono()

    def say(self, text: str, tone: str = "text", seconds: float = 8.0) -> None:
        """Put one line on the event line for a while."""
        self._message = (text, tone, self.clock.mono() + seconds)
        fleet = self.fleet_screen()
        if fleet is not None and fleet.ready:
            fleet.draw_bottom()

    def point_at(self, cursor: Cursor, twice: bool = False) -> None:
        left, self.scene.cursor = self.scene.cursor, cursor
        if twice:
            self.expanded = not self.expanded
        self.draw_now({left.box, cursor.box})

    def show_project(self, project: str | None) -> None:
        self.scene.project = project
        self.draw_now()

    # -- actions

    def action_act(self, name: str) -> None:
        """Do one action of the table; what this mode does not offer does not happen."""
        action = next((action for action in self.actions if action.id == name), None)
        if action is None:
            return
        if action.writes:
            do = {"undo": "take_back"}.get(action.id, action.id)
            getattr(self.operator, do)()
        else:
            getattr(self, action.handler)()

    def _step(self, direction: str) -> None:
        fleet = self.fleet_screen()
        columns = fleet.arrangement.columns if fleet is not None and not self.expanded else 1
        self.point_at(step(self.scene, self.boxes(), self.scene.cursor, direction, columns))

    def do_left(self) -> None:
        self._step("left")

    def do_right(self) -> None:
        self._step("right")

    def do_up(self) -> None:
        self._step("up")

    def do_down(self) -> None:
        self._step("down")

    def do_next_lane(self) -> None:
        self.point_at(cycle(self.scene, self.boxes(), self.scene.cursor, 1))

    def do_previous_lane(self) -> None:
        self.point_at(cycle(self.scene, self.boxes(), self.scene.cursor, -1))

    def do_open(self) -> None:
        self.expanded = not self.expanded
        self.draw_now()

    def do_back(self) -> None:
        if self.expanded:
            self.expanded = False
        else:
            self.filter_text = ""
        self.draw_now()

    def do_project_next(self) -> None:
        self._project(1)

    def do_project_previous(self) -> None:
        self._project(-1)

    def _project(self, by: int) -> None:
        names: list[str | None] = [None, *(project.raw for project in self.scene.deck.projects())]
        index = names.index(self.scene.project) if self.scene.project in names else 0
        self.show_project(names[(index + by) % len(names)])

    def do_fleet(self) -> None:
        self.expanded = False
        self.draw_now()

    def do_jobs(self) -> None:
        self.push_screen(JobsScreen())

    def do_events(self) -> None:
        self.push_screen(EventsScreen())

    def do_filter(self) -> None:
        def narrow(text: str | None) -> None:
            if text is not None:
                self.filter_text = text.strip().lower()
                self.draw_now()

        self.push_screen(PromptScreen("FILTER", self.filter_text, "box, queue, model, project or job"), narrow)

    def do_sort(self) -> None:
        self.sort_index = (self.sort_index + 1) % len(SORTS)
        self.say(f"boxes by {SORTS[self.sort_index].name}", "info", 4.0)
        self.draw_now()

    def do_freeze(self) -> None:
        self.frozen = self.deck.frozen_copy() if self.frozen is None else None
        self.scene.deck = self.frozen or self.deck
        self.draw_now()

    def do_refresh(self) -> None:
        if self.feed is not None:
            self.feed.request_refresh()
        self.screen.refresh()

    def do_theme(self) -> None:
        if self._theme_name not in ("dark", "light"):
            self.say("this terminal's own colours are in use", "dim")
            return
        self._theme_name = "light" if self._theme_name == "dark" else "dark"
        self.ink = palette(self._theme_name)
        self._grey = self.ink.grey()
        self.theme = f"deck-{self._theme_name}"
        self.draw_now()

    def do_palette(self) -> None:
        def chosen(name: str | None) -> None:
            if name:
                self.action_act(name)

        self.push_screen(CommandsScreen(), chosen)

    def do_help(self) -> None:
        self.push_screen(HelpScreen())

    def do_quit(self) -> None:
        if self.on_quit is not None:
            self.on_quit(self)
        else:
            self.exit(0)


def _theme(name: str, colors: dict[str, str], ground: str, dark: bool) -> Theme:
    return Theme(
        name=name, primary=colors["info"], warning=colors["warn"], error=colors["bad"], success=colors["ok"],
        foreground=colors["text"], background=ground, surface=ground, panel=ground, dark=dark,
    )  # fmt: skip
