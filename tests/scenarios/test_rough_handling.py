"""Jobs that treat their process badly: what one does to its executor must not be blamed on the next, nor be left behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.queue.operate import park
from engine.store import Db, Store
from tests.lane.fleet import add, beats, ended, gone, pid_in, start_lane, stop
from tests.support import ROOT, Processes, command

APP = "tests.apps.rough_jobs"


@pytest.fixture
def rough_lane(processes: Processes, sqlite_store: Store) -> Iterator[Db]:
    """One slot, so that every job meets what the one before has left; never claimed ahead."""
    start_lane(processes, sqlite_store, "--app", APP, "--no-claims-ahead")
    with sqlite_store.connect("test") as db:
        yield db


def test_a_forked_child_that_returns_does_not_answer_for_its_parent(rough_lane: Db) -> None:
    """The child's end (a result, an error) is not the job's, and the child takes no jobs from the socket it inherited."""
    db = rough_lane
    for how in ("return", "raise"):
        job = ended(db, add(db, "fork_and", {"how": how}))
        assert (job["status"], job["result"]) == ("completed", {"said": "the parent"})
    after = [add(db, "who") for _ in range(10)]
    assert len({ended(db, id)["result"]["pid"] for id in after}) == 1
    assert db.value("select count(*) from job_events where event_type = 'stale_write'") == 0


def test_what_a_job_does_to_its_process_is_not_paid_for_by_the_next(rough_lane: Db) -> None:
    db = rough_lane
    for harm in (
        "close_stdout",
        "close_descriptors",
        "remove_directory",
        "set_alarm",
        "replace_json",
        "replace_stdout",
        "delete_stdout",
    ):
        assert ended(db, add(db, harm))["status"] == "completed"
        after = ended(db, add(db, "speak_and_look"))
        assert (after["status"], after["attempt"], after["error"]) == ("completed", 1, None), harm


def test_an_executor_whose_loop_broke_is_replaced_though_a_thread_of_the_job_lives_on(rough_lane: Db) -> None:
    """The interpreter waits for such a thread for ever: the lane learns from the pipe that nobody serves it."""
    db = rough_lane
    first = ended(db, add(db, "break_the_loop"))["result"]["pid"]
    after = ended(db, add(db, "who"))
    assert after["status"] == "completed" and after["result"]["pid"] != first
    gone(first)


@pytest.mark.parametrize("way", ["stop", "park"])
def test_daemons_of_jobs_end_with_the_lane_whatever_their_environment(
    processes: Processes, sqlite_store: Store, tmp_path: Path, way: str
) -> None:
    """SPEC 6: executors and everything they started die with their lane; a parked lane holds nothing either."""
    lane = start_lane(processes, sqlite_store, "--app", APP)
    with sqlite_store.connect("test") as db:
        assert ended(db, add(db, "daemonise", {"path": str(tmp_path / "pid")}))["status"] == "completed"
        pid = pid_in(tmp_path / "pid")
        if way == "park":
            db.run("insert into worker_controls (box, queue, desired) values ('b1', 'default', 'off')")
            beats(db, "parked")
            gone(pid)
        stop(lane)
        gone(pid)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hidden@[bad/x",
        "postgresql://u:hidden@h/x?nonsense=1",
        "postgresql://u:hid%den@h/x",
        "sqlite:///relative.db",
    ],
)
def test_a_url_that_no_server_can_answer_is_told_and_not_waited_for(tmp_path: Path, url: str) -> None:
    """A lane waited for it, for ever; the relative file is looked for where no directory is any more."""
    gone = tmp_path / "gone"
    gone.mkdir()
    ran = subprocess.run(
        [
            "/bin/sh",
            "-c",
            'rmdir "$PWD"; exec "$@"',
            "sh",
            *command("queue-claim-worker", "--queue", "cpu", "--db", url),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=gone,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stdout, len(ran.stderr.splitlines())) == (2, "", 1), ran.stderr
    assert "hid" not in ran.stderr


def test_an_argument_or_a_reason_that_is_no_text_is_one_line(sqlite_store: Store, processes: Processes) -> None:
    control = command("queue-worker-control", "--db", sqlite_store.url, "--queue", "cpu", "--off", "--reason")
    process = processes.spawn([*control, b"\xff"])  # type: ignore[list-item]
    assert process.wait(60) == 2
    assert len(processes.log(process).splitlines()) == 1
    with sqlite_store.connect("test") as db:
        assert park(db, queue="cpu", box="b1", reason="half \ud800 and \x00", requested_by="\ud800").changed == 1
