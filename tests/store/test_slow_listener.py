"""Q16: a listener whose consumer sleeps must pin nothing: it is read all the same, outside any transaction."""

from __future__ import annotations

from engine.store import Store
from tests.support import eventually

NOTES = 3000


def test_a_consumer_that_never_drains_holds_no_snapshot_and_no_notification(pg_store: Store) -> None:
    with pg_store.connect("test") as db, pg_store.wakes(("ingest_job_ready",), poll_s=60.0) as wakes:
        eventually(lambda: wakes.state.listening)
        for i in range(NOTES):
            db.notify("ingest_job_ready", f"queue {i}")
        listener = eventually(
            lambda: db.one(
                "select state, xact_start, backend_xmin::text as pins from pg_stat_activity "
                "where datname = current_database() and application_name = 'flightdeck wakes' and state = 'idle'"
            )
        )
        assert listener == {"state": "idle", "xact_start": None, "pins": None}
        # Nobody has called drain() yet, and all of it has left the server.
        eventually(lambda: len(wakes._pending) == NOTES)
        assert len(wakes.drain()) == NOTES
