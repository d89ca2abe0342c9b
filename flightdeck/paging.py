"""The stack of pages: which one is on top, how to get to another one, which keys it lets through."""

from __future__ import annotations

from typing import Any

from textual.app import App

from flightdeck.actions import PAGE_KEYS, Action
from flightdeck.screens.fleet import FleetScreen
from flightdeck.screens.page import Page
from flightdeck.screens.pages import PAGES, TOP


class PagedApp(App[int], inherit_bindings=False):
    """An app whose screens are pages; the fleet is always at the bottom."""

    def page(self) -> Page | None:
        """The page on top, below any small box."""
        return next((screen for screen in reversed(self.screen_stack) if isinstance(screen, Page)), None)

    def screen_page(self) -> str:
        """The name of the page that has the keys; empty: a small box has them."""
        return self.screen.PAGE if isinstance(self.screen, Page) else ""

    def fleet_screen(self) -> FleetScreen | None:
        return next((screen for screen in self.screen_stack if isinstance(screen, FleetScreen)), None)

    def page_tabs(self) -> list[tuple[str, str]]:
        """(key, name) of the pages that have a number."""
        return [(PAGE_KEYS[name], name) for name in TOP if name in PAGES]

    def show_page(self, name: str, **arguments: Any) -> None:
        """Show a page by its name: back to it where it is open already, else over the page on top; one that has a
        number takes the place of another such page."""
        stack = [screen for screen in self.screen_stack if isinstance(screen, Page)]
        there = next((screen for screen in stack if name == screen.PAGE), None)
        if there is not None and not arguments:
            while self.screen is not there:
                self.pop_screen()
            return
        while self.screen_page() not in PAGES or self.screen_page() == name:
            self.pop_screen()  # help, the command list, a small box; the same page about something else
        if name in TOP and self.screen_page() in TOP and self.screen_page() != "fleet":
            self.pop_screen()
        self.push_screen(PAGES[name](**arguments))

    def leave_page(self) -> None:
        """Back to the page below; the fleet stays."""
        if isinstance(self.screen, Page) and not isinstance(self.screen, FleetScreen):
            self.pop_screen()

    def lets_through(self, action: Action) -> bool:
        """Whether the action means something where the keys go now. A small box has keys of its own; it can be quit."""
        page = self.screen
        if not isinstance(page, Page):
            return action.id == "quit"
        if page.ONLY is not None and action.id not in page.ONLY:
            return False
        return not action.pages or page.PAGE in action.pages
