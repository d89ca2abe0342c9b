"""The whole demo with its real processes: it comes up, works, and leaves nothing behind however it ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from engine.store import Db, Store
from flightdeck.demo import launch, seed
from tests.demo.terminal import Terminal
from tests.support import Processes, command, eventually

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def directory() -> Iterator[Path]:
    """The demo's directory; whatever still names it at the end is killed and fails the test.

    Not under pytest's own directories: their modes keep the server's user out when this runs as root.
    """
    path = Path(tempfile.mkdtemp(prefix="flightdeck-demo-"))
    yield path
    left = at_work(path)
    shutil.rmtree(path, ignore_errors=True)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert not left, f"left behind: {[p.info['cmdline'] for p in left]}"


def at_work(directory: Path) -> list[psutil.Process]:
    """Every process that belongs to a demo: its server, its supervisor, and all that connect to it."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "environ", "status"]):
        if process.info["status"] == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
            continue
        words = " ".join(process.info["cmdline"] or ())
        url = (process.info["environ"] or {}).get("FLIGHTDECK_DB_URL", "")
        if str(directory) in words or str(directory) in url:
            found.append(process)
    return found


def begin(processes: Processes, directory: Path) -> tuple[subprocess.Popen[bytes], Store]:
    demo = processes.spawn(command("flightdeck", "demo", "--headless", "--dir", str(directory)), stdout=subprocess.PIPE)
    assert demo.stdout is not None
    said = []
    for line in demo.stdout:
        word, _, url = line.decode().strip().partition(" ")
        if word == "ready":
            return demo, Store(url)
        said.append(line)
    raise AssertionError(f"the demo ended: {said}")


def states(db: Db) -> dict[str, int]:
    rows = db.all("select state, count(*) as n from worker_heartbeats group by state")
    return {row["state"]: row["n"] for row in rows}


def test_four_boxes_report_jobs_complete_and_nothing_is_left(processes: Processes, directory: Path) -> None:
    demo, store = begin(processes, directory)
    with store.connect("test") as db:
        assert db.value("select current_database()") == seed.DATABASE
        assert db.value("select count(*) from boxes where simulated") == 3, "the boxes are there before they report"
        assert db.value("select count(*) from flight_recorder where tier = 'minute'") >= 3 * 59
        boxes = "select count(distinct box) as n from services where kind = 'recorder'"
        eventually(lambda: db.value(boxes) == 4, 90, "four recorders")
        eventually(lambda: states(db) == {"running": len(launch.LANES) - 1, "parked": 1}, 90, "lanes")
        done = "select count(*) as n from job_events where event_type = 'completed' and family = {family}"
        eventually(lambda: db.value(done, family="node") >= 3 and db.value(done, family="ingest") >= 1, 120, "jobs")
        recent = "select count(distinct box) as n from flight_recorder where tier = 'detail' and at > {before[s]}"
        eventually(lambda: db.value(recent, s=6.0) == 4, 60, "fresh samples of all boxes")
        parked = db.one("select box, queue, project from worker_heartbeats where state = 'parked'")
        assert parked is not None and tuple(parked.values()) == seed.PARKED
        failed = db.all("select event_type, cause, detail from job_events where event_type = 'failed'")
        assert not failed
        eventually(lambda: db.value("select count(*) from services where is_leader") == 1, 60, "a leader")
        scheduler = "select detail->>'entries' as n from services where kind = 'scheduler' and last_error is null"
        eventually(lambda: db.value(scheduler) == "2", 60, "a scheduler")
    demo.send_signal(signal.SIGTERM)
    assert demo.wait(60) == 0
    assert demo.stdout is not None
    demo.stdout.close()
    assert not at_work(directory)


def test_a_demo_that_is_killed_leaves_nothing_running(processes: Processes, directory: Path) -> None:
    demo, store = begin(processes, directory)
    with store.connect("test") as db:
        eventually(lambda: states(db).get("running", 0) >= 1, 90)
    demo.kill()
    assert demo.stdout is not None
    demo.stdout.close()
    eventually(lambda: not at_work(directory), 60, "everything has ended")


def test_the_second_demo_of_a_directory_only_looks_on(processes: Processes, directory: Path) -> None:
    demo, _ = begin(processes, directory)
    second = processes.spawn(command("flightdeck", "demo", "--headless", "--dir", str(directory)))
    assert second.wait(60) == 2
    assert "already" in processes.log(second) and len(processes.log(second).splitlines()) == 1
    assert demo.poll() is None
    demo.send_signal(signal.SIGINT)
    assert demo.wait(60) == 0
    assert demo.stdout is not None
    demo.stdout.close()


def test_in_a_terminal_it_draws_the_fleet_and_q_stops_everything(processes: Processes, directory: Path) -> None:
    terminal = Terminal(processes, command("flightdeck", "demo", "--dir", str(directory)))
    try:
        terminal.read_until("kestrel", "harrier", "osprey")
        terminal.type("q")
        assert terminal.wait() == 0
    finally:
        terminal.close()
    assert not at_work(directory)


def test_a_terminal_that_is_closed_ends_the_demo(processes: Processes, directory: Path) -> None:
    """D21: the line drops; the deck leaves and takes its fleet with it."""
    terminal = Terminal(processes, command("flightdeck", "demo", "--dir", str(directory)))
    try:
        terminal.read_until("kestrel", "harrier", "osprey")
    finally:
        terminal.close()
    eventually(lambda: not at_work(directory), 60, "everything has ended")
