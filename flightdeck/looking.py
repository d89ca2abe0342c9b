"""What the keys show: the read side of the deck. Moves the cursor, the window of time, the pages; changes nothing in the fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flightdeck.navigate import cycle, step
from flightdeck.screens.commands import CommandsScreen
from flightdeck.screens.dialog import PromptScreen
from flightdeck.screens.help import HelpScreen

if TYPE_CHECKING:
    from flightdeck.app import FlightDeckApp
    from flightdeck.model.axis import Window


class Looker:
    """One ``do_`` method for each action that writes nothing."""

    def __init__(self, app: FlightDeckApp) -> None:
        self.app = app
        self.held = False  # the picture stands because somebody scrubs, not because of f

    # -- moving on the fleet

    def _step(self, direction: str) -> None:
        app = self.app
        app.point_at(step(app.scene, app.boxes(), app.scene.cursor, direction, self._columns()))

    def _columns(self) -> int:
        """How many cards stand next to each other."""
        fleet = self.app.fleet_screen()
        return fleet.arrangement.columns if fleet is not None else 1

    def do_left(self) -> None:
        self._step("left")

    def do_right(self) -> None:
        self._step("right")

    def do_up(self) -> None:
        self._step("up")

    def do_down(self) -> None:
        self._step("down")

    def do_next_lane(self) -> None:
        self.app.point_at(cycle(self.app.scene, self.app.boxes(), self.app.scene.cursor, 1))

    def do_previous_lane(self) -> None:
        self.app.point_at(cycle(self.app.scene, self.app.boxes(), self.app.scene.cursor, -1))

    # -- pages

    def do_open(self) -> None:
        self.app.open_cursor()

    def do_back(self) -> None:
        """The nearest thing first: the instant looked at, then the filter, then the page."""
        app = self.app
        page = app.page()
        if app.scene.window.back_s is not None:
            self._look(app.scene.window.released())
        elif page is not None and page.filter_text:
            page.filter_text = ""
            app.draw_now()
        else:
            app.leave_page()

    def do_fleet(self) -> None:
        self.app.show_page("fleet")

    def do_jobs(self) -> None:
        self.app.show_page("jobs")

    def do_throttle(self) -> None:
        self.app.show_page("throttle")

    def do_events(self) -> None:
        self.app.show_page("events")

    def do_queues(self) -> None:
        self.app.show_page("queues")

    def do_asking(self) -> None:
        self.app.show_page("jobs", status="awaiting_input")

    def do_project_next(self) -> None:
        self._project(1)

    def do_project_previous(self) -> None:
        self._project(-1)

    def _project(self, by: int) -> None:
        app = self.app
        names: list[str | None] = [None, *(project.raw for project in app.scene.deck.projects())]
        index = names.index(app.scene.project) if app.scene.project in names else 0
        app.show_project(names[(index + by) % len(names)])

    def do_seen(self) -> None:
        count = self.app.alerts.seen()
        self.app.say(f"{count} alert{'s' if count != 1 else ''} seen" if count else "no alerts", "dim", 3.0)
        if count:
            self.app.draw_now()

    # -- on one box

    def _turn(self, what: str, by: int) -> None:
        from flightdeck.screens.box import BoxScreen

        page = self.app.page()
        if isinstance(page, BoxScreen):
            page.turn(what, by)

    def do_next_gpu(self) -> None:
        self._turn("gpu", 1)

    def do_previous_gpu(self) -> None:
        self._turn("gpu", -1)

    def do_next_chart(self) -> None:
        self._turn("chart", 1)

    def do_previous_chart(self) -> None:
        self._turn("chart", -1)

    # -- time

    def do_narrower(self) -> None:
        self._look(self.app.scene.window.narrower())

    def do_wider(self) -> None:
        self._look(self.app.scene.window.wider())

    def do_scrub_back(self) -> None:
        self._look(self.app.scene.window.scrubbed(-1))

    def do_scrub_on(self) -> None:
        self._look(self.app.scene.window.scrubbed(1))

    def look(self, window: Window) -> None:
        """For pages that lead to a time: see :meth:`_look`."""
        self._look(window)

    def _look(self, window: Window) -> None:
        """Look at a window of time. While somebody scrubs the picture stands, so that the instant stays where it is."""
        app = self.app
        if window == app.scene.window:
            return
        if window.back_s is not None and app.frozen is None:
            app.freeze(True)
            self.held = True
        elif window.back_s is None and self.held:
            app.freeze(False)
            self.held = False
        spanned = window.span_s != app.scene.window.span_s
        app.scene.window = window
        if spanned:
            app.say(f"the last {window.words}", "info", 3.0)
        app.draw_now()

    def do_freeze(self) -> None:
        """Also lets go of the instant looked at: one key, time goes on."""
        app = self.app
        app.freeze(app.frozen is None)
        self.held = False
        if app.frozen is None:
            app.scene.window = app.scene.window.released()
        app.draw_now()

    # -- the rest

    def do_filter(self) -> None:
        page = self.app.page()
        if page is None:
            return

        def narrow(text: str | None) -> None:
            if text is not None:
                page.filter_text = text.strip().lower()
                page.filtered()
                self.app.draw_now()

        self.app.push_screen(PromptScreen("FILTER", page.filter_text, page.FILTERS), narrow)

    def do_sort(self) -> None:
        page = self.app.page()
        words = page.next_sort() if page is not None else ""
        if words:
            self.app.say(words, "info", 4.0)
            self.app.draw_now()

    def do_refresh(self) -> None:
        if self.app.feed is not None:
            self.app.feed.request_refresh()
        self.app.screen.refresh()

    def do_theme(self) -> None:
        self.app.change_theme()

    def do_palette(self) -> None:
        def chosen(name: str | None) -> None:
            if name:
                self.app.action_act(name)

        page = self.app.page()
        self.app.push_screen(CommandsScreen(page.PAGE if page is not None else "fleet"), chosen)

    def do_help(self) -> None:
        if isinstance(self.app.screen, HelpScreen):
            self.app.leave_page()
        else:
            page = self.app.page()
            local = page.LOCAL_KEYS if page is not None else ()
            self.app.push_screen(HelpScreen(self.app.screen_page(), local))

    def do_quit(self) -> None:
        if self.app.on_quit is not None:
            self.app.on_quit(self.app)
        else:
            self.app.exit(0)
