"""The engine's feed as Textual messages: one thread in, small immutable updates out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from textual.app import App

    from engine.feed import Feed, FeedUpdate
    from engine.store import Store


class FeedMessage(Message):
    """Something is new."""

    bubble = False

    def __init__(self, update: FeedUpdate) -> None:
        super().__init__()
        self.update = update


def start_feed(app: App[int], opener: Callable[[], Store], project: str | None, read_only: bool) -> Feed:
    """Start the feed thread (a daemon); it posts to ``app`` until stopped. Nothing here waits for the database."""
    from engine.feed import Feed

    feed = Feed(opener, lambda update: _post(app, update), project=project, read_only=read_only)
    feed.start()
    return feed


def _post(app: App[int], update: FeedUpdate) -> None:
    app.post_message(FeedMessage(update))
