"""From options to a deck in this terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from engine import config

if TYPE_CHECKING:
    from engine.store import Store
    from flightdeck.app import FlightDeckApp
    from flightdeck.profile import Profile


def open_deck(
    *,
    project: str | None = None,
    read_only: bool = False,
    ascii: bool = False,
    mouse: bool = True,
    theme: str | None = None,
    profile: Profile | None = None,
    on_quit: Callable[[FlightDeckApp], None] | None = None,
    opener: Callable[[], Store] | None = None,
    leave: bool = True,
) -> int:
    """Show the deck until it is left. ``opener`` opens the store, by default the configured one; it runs on the feed's
    thread. ``leave``: end the process with the exit code; else return it. Raises BadInput where there is no terminal.
    """
    from flightdeck.term.session import Session, check_terminal, leave_process, no_color, pick_theme

    check_terminal()
    url = config.db_url()
    if opener is None and not url.startswith("embedded:"):
        _configured()  # connects to nothing yet; a URL that makes no sense is told before the screen is taken
    plain = no_color()
    from flightdeck.app import FlightDeckApp

    if opener is None:
        opener = _own if not read_only else _configured
    app = FlightDeckApp(
        opener,
        project,
        read_only,
        ascii,
        mouse,
        pick_theme(theme),
        on_quit,
        store_name=store_name(url),
        plain=plain,
        profile=profile,
    )
    code = Session(app).run()
    if leave:
        leave_process(code)
    return code


def _configured() -> Store:
    from engine.store import open_store

    return open_store()


def _own() -> Store:
    """The configured store; a database that is ours alone (SQLite, embedded) is made ready when it is empty."""
    from engine.store.migrate import ensure_schema

    store = _configured()
    if store.owned:
        ensure_schema(store, seconds=0)
    return store


def store_name(url: str) -> str:
    """What the header calls the database: who and which, never a password."""
    parts = urlsplit(url)
    if parts.scheme.startswith("sqlite"):
        return unquote(parts.path).rsplit("/", 1)[-1] or "sqlite"
    if parts.scheme == "embedded":
        return "embedded"
    name = parts.path.strip("/") or "postgres"
    return f"{parts.username}@{name}" if parts.username else name
