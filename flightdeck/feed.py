"""The engine's feed, wired to an app: one thread in, small immutable updates out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.feed import Feed
    from engine.store import Store
    from flightdeck.app import FlightDeckApp


def start_feed(app: FlightDeckApp, opener: Callable[[], Store], project: str | None, read_only: bool) -> Feed:
    """Start the feed thread (a daemon); ``app`` takes its updates in until stopped. Nothing here waits for the database."""
    from engine.feed import Feed

    feed = Feed(opener, lambda update: app.soon(app.take_in, update), project=project, read_only=read_only)
    feed.start()
    return feed
