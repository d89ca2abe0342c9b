"""A database that restarts, or crashes, under busy lanes: nothing is given away, nothing runs twice, the drain goes on."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from engine.store import Store
from engine.store.migrate import migrate
from tests.chaos.server import OwnPostgres
from tests.lane.fleet import add, beats, start_lane, start_orchestrator
from tests.support import Processes, eventually

BOXES = ("b1", "b2", "b3", "b4")


@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_a_database_restart_makes_the_fleet_forget_running_jobs(how: str, processes: Processes) -> None:
    """Q10 Q13 Q32: every session ends at once; that proves no death."""
    folder = Path(tempfile.mkdtemp(prefix="flightdeck-restart-"))
    folder.chmod(0o755)  # as root the server runs under a user of its own, which cannot enter pytest's folders
    own = OwnPostgres(folder)
    try:
        store = Store(own.url)
        migrate(store)
        start_orchestrator(processes, store)
        for box in BOXES:
            start_lane(processes, store, "--slots", "2", "--claims-ahead", "0", box=box)
        with store.connect("test") as db:
            for box in BOXES:
                beats(db, "running", box=box)
            jobs = [add(db, "nap", {"seconds": 0.2}) for _ in range(120)]
            eventually(lambda: done(store) > 10, what="the drain begins")
        own.restart(how, 1.0)
        before = done(store)
        eventually(lambda: done(store) > before + 8, what="the drain goes on")
        eventually(lambda: done(store) == len(jobs), timeout_s=60, what="everything is done")
        with store.connect("test") as db:
            told = db.all("select event_type, cause, count(*) as n from job_events group by event_type, cause")
            found = {(row["event_type"], row["cause"]): row["n"] for row in told}
            assert found.pop(("completed", None)) == len(jobs)
            # What never began does not count: a claim that was committed and whose answer went with the session is
            # handed back. And a crash may take back a claim that had not waited for the disk: its result is too late.
            back = found.pop(("requeued", "handed_back"), 0)
            assert found.keys() <= (set() if how == "fast" else {("stale_write", None)})
            assert db.value("select max(attempt) as n from ingest_jobs") <= (2 if back else 1)
    finally:
        processes.end_all()
        own.close()
        shutil.rmtree(folder, ignore_errors=True)


def done(store: Store) -> int:
    with store.connect("look") as db:
        return int(db.value("select count(*) as n from executions"))
