"""A LISTEN whose connection is half open: nothing comes any more, and no error says so."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from engine.feed import Feed, FeedUpdate
from engine.store import Store, wakes
from tests.deck.test_terminal import Hose, add_lane
from tests.support import eventually


class DeafHose(Hose):
    """Can let nothing more through on connections whose first words name the listener; the others are left alone."""

    def __init__(self, url: str) -> None:
        self.hears = threading.Event()
        self.hears.set()
        self._listeners: set[socket.socket] = set()
        super().__init__(url)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                if b"wakes" in data:
                    self._listeners |= {source, target}
                if source in self._listeners:
                    self.hears.wait()
                target.sendall(data)
        except OSError:
            pass
        target.close()

    def _close_all(self) -> None:
        self.hears.set()
        super()._close_all()


@pytest.fixture
def hose(pg_store: Store) -> Iterator[DeafHose]:
    with DeafHose(pg_store.url) as found:
        yield found


def test_listen_is_half_open_and_no_error_says_so(
    hose: DeafHose, pg_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D15: it is pinged; one that does not answer is given up and made anew. What is written meanwhile arrives all the same."""
    monkeypatch.setattr(wakes, "PING_S", 0.2)
    monkeypatch.setattr(wakes, "PING_DEADLINE_S", 0.5)
    add_lane(pg_store)
    seen: list[FeedUpdate] = []
    feed = Feed(lambda: Store(hose.url), seen.append)
    feed.start()
    try:
        eventually(lambda: seen and seen[-1].state == "live" and seen[-1].listening)
        hose.hears.clear()
        eventually(lambda: not seen[-1].listening, what="the loss of the listener to be noticed")
        with pg_store.connect("test") as db:
            db.run("update worker_heartbeats set state = 'parked', last_seen = {clock}")

        def parked() -> bool:
            views = [update.view for update in seen if update.view is not None]
            return any(lane["state"] == "parked" for box in views[-1]["boxes"] for lane in box["lanes"])

        eventually(parked, what="what was written while nobody listened")
        hose.hears.set()
        eventually(lambda: seen[-1].listening and seen[-1].state == "live", what="the listener to be back")
    finally:
        feed.stop(5.0)
