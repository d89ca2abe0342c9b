"""A SQLite file that is taken away or replaced under running processes: noticed, waited for, never made anew."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from engine.errors import StoreUnavailable
from engine.store import Store
from tests.lane.fleet import add, beats, ended, start_lane, stop
from tests.support import Processes, eventually

GONE = "the file was removed or replaced"


def moved(store: Store, away: Path) -> Path:
    """The file and what lies beside it, in another place."""
    assert store.path is not None
    away.mkdir()
    for name in (store.path.name, f"{store.path.name}-wal", f"{store.path.name}-shm"):
        if (store.path.parent / name).exists():
            os.rename(store.path.parent / name, away / name)
    return away / store.path.name


@pytest.mark.parametrize("what", ["write", "read", "transaction", "data_version"])
def test_nothing_is_written_to_a_file_without_a_name(sqlite_store: Store, tmp_path: Path, what: str) -> None:
    assert sqlite_store.path is not None
    with sqlite_store.connect("test") as db:
        moved(sqlite_store, tmp_path / "away")
        with pytest.raises(StoreUnavailable, match=GONE):
            if what == "write":
                db.run("insert into boxes (box) values ('a')")
            elif what == "read":
                db.all("select * from boxes")
            elif what == "transaction":
                with db.transaction():
                    pytest.fail("a transaction began in a file that is gone")
            else:
                db.data_version()  # type: ignore[attr-defined]
        assert db.closed
    for read_only in (False, True):  # nobody makes an empty file in its place
        with pytest.raises(StoreUnavailable, match="no such file"):
            sqlite_store.connect("again", read_only=read_only)
    assert not sqlite_store.path.exists()


def test_a_file_that_was_away_for_a_moment_is_the_same(sqlite_store: Store, tmp_path: Path) -> None:
    assert sqlite_store.path is not None
    with sqlite_store.connect("test") as db:
        db.run("insert into boxes (box) values ('a')")
        os.rename(sqlite_store.path, tmp_path / "other")
        os.rename(tmp_path / "other", sqlite_store.path)
        db.run("insert into boxes (box) values ('b')")
        assert db.value("select count(*) as n from boxes") == 2


def test_wakes_go_on_in_the_file_that_came_back(sqlite_store: Store, tmp_path: Path) -> None:
    assert sqlite_store.path is not None
    with sqlite_store.wakes(["node_job_ready"], poll_s=60.0) as wakes:
        eventually(lambda: wakes.state.listening, what="listening")
        saved = moved(sqlite_store, tmp_path / "away")
        eventually(lambda: not wakes.state.listening, what="the loss noticed")
        assert not sqlite_store.path.exists()
        with sqlite3.connect(saved) as old, sqlite3.connect(f"{saved}.copy") as copy:
            old.backup(copy)
        old.close()
        copy.close()
        os.rename(f"{saved}.copy", sqlite_store.path)
        eventually(lambda: wakes.state.listening, what="listening again")
        wakes.drain()
        with sqlite_store.connect("test") as db:
            db.run("insert into boxes (box) values ('a')")
        assert wakes.wait(20.0) is not None


def test_a_lane_works_on_in_a_restored_backup(sqlite_store: Store, processes: Processes, tmp_path: Path) -> None:
    """While there is no file it waits; what it does afterwards is in the file that people see."""
    assert sqlite_store.path is not None
    lane = start_lane(processes, sqlite_store)
    with sqlite_store.connect("test") as db:
        beats(db, "running")
        assert ended(db, add(db, "noop"))["status"] == "completed"
        db.all("pragma wal_checkpoint(truncate)")
    saved = moved(sqlite_store, tmp_path / "away")
    eventually(lambda: GONE in processes.log(lane), what="the lane notices")
    assert not sqlite_store.path.exists() and lane.poll() is None
    with sqlite3.connect(saved) as old, sqlite3.connect(tmp_path / "backup") as copy:
        old.backup(copy)
    old.close()
    copy.close()
    os.rename(tmp_path / "backup", sqlite_store.path)
    with sqlite_store.connect("test") as db:
        assert ended(db, add(db, "noop"))["status"] == "completed"
    stop(lane)
