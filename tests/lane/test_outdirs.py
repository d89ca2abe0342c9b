"""Directories of jobs: where they lie, and that only old ones of jobs that do not run are removed."""

from __future__ import annotations

import os
import time
from pathlib import Path

from engine.lane.outdirs import DAY_S, OutDirs, lane_root
from engine.store import Store
from tests.lane.fleet import add, ended, start_lane, stop
from tests.support import Processes, eventually


def aged(path: Path, days: float) -> None:
    """Everything below ``path`` was last changed so long ago."""
    moment = time.time() - days * DAY_S
    for place, folders, files in os.walk(path, topdown=False):
        for name in (*files, *folders):
            os.utime(os.path.join(place, name), (moment, moment), follow_symlinks=False)
    os.utime(path, (moment, moment))


def job(root: Path, number: int, days: float) -> Path:
    path = root / f"job-{number}"
    (path / "deep").mkdir(parents=True)
    (path / "deep" / "made.txt").write_text("x")
    aged(path, days)
    return path


def test_old_files_go_unless_their_job_runs_or_something_in_them_is_new(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    old, running, young, touched = job(root, 1, 31), job(root, 2, 31), job(root, 3, 29), job(root, 4, 31)
    os.utime(touched / "deep" / "made.txt")
    aged(other := job(root, 5, 0).rename(root / "mine"), 400)
    (root / "job-6").symlink_to(elsewhere, target_is_directory=True)
    dirs = OutDirs(root, 30.0, lambda: {2})
    assert dirs.remove_old() == 1
    assert not old.exists()
    assert all(path.exists() for path in (running, young, touched, other, elsewhere, root / "job-6"))
    assert dirs.remove_old() == 0


def test_zero_keeps_for_ever_and_a_missing_directory_is_no_error(tmp_path: Path) -> None:
    old = job(tmp_path, 1, 4000)
    OutDirs(tmp_path, 0.0, set).tidy(1e9)
    assert old.exists()
    assert OutDirs(tmp_path / "none", 1.0, set).remove_old() == 0


def test_jobs_of_two_databases_do_not_share_a_directory(tmp_path: Path) -> None:
    """Their ids are the same."""
    roots = {lane_root(tmp_path, "b", queue, "", db) for queue in ("cpu", "gpu") for db in ("one", "two")}
    assert len(roots) == 4 and all(root.parent == tmp_path / "out" for root in roots)


def test_a_lane_removes_what_old_jobs_have_left(sqlite_store: Store, processes: Processes) -> None:
    with sqlite_store.connect("test") as db:
        first = add(db, "report")
        lane = start_lane(processes, sqlite_store, "--slots", "1")
        made = Path(ended(db, first)["result"]["out"])
        assert (made.name, made.stat().st_mode & 0o777) == (f"job-{first}", 0o700)
        aged(made, 31)
        stop(lane)
        lane = start_lane(processes, sqlite_store, "--slots", "1")
        eventually(lambda: not made.exists(), what="its files are removed")
        second = Path(ended(db, add(db, "report"))["result"]["out"])
        assert (second / "made.txt").exists()
        stop(lane)
