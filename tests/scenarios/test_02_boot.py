"""Scenario 2: a box boots on an empty database, or while it is ordered off; a restarted lane frees what it left behind."""

from __future__ import annotations

from pathlib import Path

from engine.queue import operate
from engine.store import Db, Store
from engine.store.migrate import migrate
from tests.lane.fleet import add, beats, ended, gone, heartbeat, history, pid_in, row, runs, start_lane, status, stop
from tests.support import Processes, eventually


def test_boots_on_an_empty_database_and_joins_when_the_schema_is_there(pg_empty_url: str, processes: Processes) -> None:
    store = Store(pg_empty_url)
    lane = start_lane(processes, store)
    with store.connect("test") as db:
        eventually(lambda: processes.log(lane) or lane_session(db))
        assert lane.poll() is None
        assert db.value("select to_regclass('worker_heartbeats')::text") is None, "a lane migrates no server"
        migrate(store)
        beats(db, "running")
        assert ended(db, add(db, "noop"))["status"] == "completed"
        stop(lane)
        assert heartbeat(db)["state"] == "stopping"


def lane_session(db: Db) -> bool:
    return bool(
        db.value("select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()")
    )


def test_boots_while_off_and_parks(store: Store, db: Db, processes: Processes) -> None:
    operate.park(db, box="b1", queue="default", reason="maintenance")
    job = add(db, "noop")
    lane = start_lane(processes, store)
    parked = beats(db, "parked")
    assert parked["busy"] == 0
    assert status(db, job) == "queued"
    operate.resume(db, box="b1", queue="default")
    assert ended(db, job)["status"] == "completed"
    stop(lane)


def test_a_restarted_lane_frees_its_predecessors_rows_at_once_and_nobody_elses(
    store: Store, db: Db, processes: Processes, tmp_path: Path
) -> None:
    """No orchestrator runs: nobody else can free them. Q8: nor is the predecessor's heartbeat row needed."""
    first = start_lane(processes, store, box="b1")
    beats(db, "running", box="b1")
    mine = add(db, "touch_and_wait", {"path": str(tmp_path / "mine")})
    pid = pid_in(tmp_path / "mine")
    other = start_lane(processes, store, box="b2")
    theirs = add(db, "touch_and_wait", {"path": str(tmp_path / "theirs")})
    their_pid = pid_in(tmp_path / "theirs")
    first.kill()
    gone(pid)
    db.run("delete from worker_heartbeats where box = 'b1'")
    again = start_lane(processes, store, box="b1")
    eventually(lambda: len((tmp_path / "mine").read_text().split()) == 2)
    assert history(db, mine)[0]["cause"] == "lane_lost"
    assert row(db, mine)["losses"] == 1
    for path in (tmp_path / "mine.go", tmp_path / "theirs.go"):
        assert runs(their_pid) or path.name == "theirs.go"
        path.touch()
    assert ended(db, mine)["attempt"] == 2
    assert (ended(db, theirs)["attempt"], len(history(db, theirs))) == (1, 1)
    stop(again)
    stop(other)
