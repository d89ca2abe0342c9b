"""The database stops for a while under a real recorder, a real feed and the deck's model."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from engine import feed as feed_module
from engine.store import Store
from engine.store.embedded import EmbeddedServer
from engine.store.migrate import migrate
from engine.telemetry import recorder as recorder_module
from tests.feed import outage

DOWN_S = 11.0  # at least one whole slot of the traces, whenever it begins


def test_a_database_that_was_away_leaves_no_hole_in_the_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """D13: lost with a reason and the next try, states stand still meanwhile, live by itself, every slot filled."""
    monkeypatch.setattr(feed_module, "LATE_ROWS_S", 2.0)
    monkeypatch.setattr(feed_module, "BACKOFF_MOST_S", 2.0)
    monkeypatch.setattr(recorder_module, "BACKOFF_MOST_S", 1.0)
    directory = Path(tempfile.mkdtemp(prefix="flightdeck-away-"))
    server = EmbeddedServer(directory, {"fsync": "off", "max_connections": "30"})
    server.acquire()
    try:
        server.ensure_database("away_test")
        store = Store(server.url("away_test"))
        migrate(store)
        story = outage.run(store, server._stop, server._server.ensure_postgres_running, DOWN_S, cadence_s=0.5)
    finally:
        server.release()
        shutil.rmtree(directory, ignore_errors=True)
    assert story.failure is None
    assert story.lost_error and "\n" not in story.lost_error
    assert story.tries and max(story.tries) <= 2.0
    assert story.state_meanwhile == "up", "nothing can be judged while nothing is known"
    assert story.age_meanwhile_s > 5.0, "the banner's age goes on"
    assert story.slots >= 3 and story.holes == []
