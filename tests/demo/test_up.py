"""flightdeck up: this box for real, on SQLite and on PostgreSQL; restarts, joins, drains, leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import engine
from engine import config
from engine.errors import ConfigError
from engine.queue import events
from engine.store import Db, Store
from flightdeck import lifeline, up
from tests.demo.terminal import Terminal
from tests.support import Processes, command, eventually

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def environment(tmp_path: Path, store: Store) -> Iterator[dict[str, str]]:
    """Settings of a box of its own; whatever it started is gone at the end."""
    values = {
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "FLIGHTDECK_DB_URL": store.url,
        "FLIGHTDECK_BOX": f"box-{os.getpid()}",
        "FLIGHTDECK_INGEST_QUEUES": "default",
        "FLIGHTDECK_APP": "tests.apps.up_app",
        "FLIGHTDECK_GRACE": "2",
    }
    yield values
    line = lifeline.attach(tmp_path / "data/flightdeck/up" / values["FLIGHTDECK_BOX"])
    if line is not None:
        line.end("stop", 30)
    left = [
        p
        for p in psutil.process_iter(["environ"])
        if (p.info["environ"] or {}).get("FLIGHTDECK_BOX") == values["FLIGHTDECK_BOX"]
    ]
    for process in left:
        process.kill()
    assert not left, left


def begin(processes: Processes, environment: dict[str, str], *args: str) -> subprocess.Popen[bytes]:
    return processes.spawn(command("flightdeck", "up", "--no-deck", *args), env=environment)


def test_a_job_runs_on_this_box_and_sigterm_drains(
    processes: Processes, environment: dict[str, str], store: Store, tmp_path: Path
) -> None:
    box = environment["FLIGHTDECK_BOX"]
    started = begin(processes, environment)
    with store.connect("test") as db:
        lanes = "select queue, slots from worker_heartbeats where box = {box} and state = 'running' order by queue"
        want = [{"queue": "cpu", "slots": os.cpu_count()}, {"queue": "default", "slots": 1}]
        eventually(lambda: db.all(lanes, box=box) == want, 90, processes.log(started))
        kinds = "select distinct kind from services where box = {box} order by kind"
        eventually(lambda: [r["kind"] for r in db.all(kinds, box=box)] == ["orchestrator", "recorder", "scheduler"], 60)
        engine.configure(db_url=store.url)
        engine.register_ingest_task("quick", lambda: None)
        job = engine.enqueue_ingest_job(task_name="quick", queue="default")
        eventually(
            lambda: db.value("select status from ingest_jobs where id = {id}", id=int(job.id)) == "completed", 60
        )
        eventually(lambda: db.value("select count(*) as n from flight_recorder where box = {box}", box=box), 60)

        killed = db.value("select pid from services where kind = 'recorder' and box = {box}", box=box)
        os.kill(killed, signal.SIGKILL)
        eventually(
            lambda: db.value("select count(*) as n from services where kind = 'recorder' and pid <> {pid}", pid=killed),
            60,
            "the recorder is started again",
        )
    started.send_signal(signal.SIGTERM)
    assert started.wait(90) == 0, processes.log(started)


def test_left_running_it_is_joined_by_the_next_up(
    environment: dict[str, str], processes: Processes, tmp_path: Path
) -> None:
    leave = "from flightdeck import up; store, line = up.begin(None, lambda: 0); line.ask('leave'); line.close()"
    first = processes.spawn([sys.executable, "-c", leave], env=environment)
    assert first.wait(60) == 0, processes.log(first)
    run_dir = tmp_path / "data/flightdeck/up" / environment["FLIGHTDECK_BOX"]
    line = eventually(lambda: lifeline.attach(run_dir), 30)
    pid = line.ask("status")["pid"]
    second = begin(processes, environment)
    eventually(lambda: line.ask("status")["owned"], 60)
    assert line.ask("status")["pid"] == pid
    line.close()
    second.send_signal(signal.SIGTERM)
    assert second.wait(90) == 0
    assert lifeline.attach(run_dir) is None


def test_q_asks_what_becomes_of_the_box(
    environment: dict[str, str], processes: Processes, store: Store, db: Db, tmp_path: Path
) -> None:
    """Left working, it works; stopped, it gives back what runs, at once and for nothing."""
    environment["FLIGHTDECK_GRACE"] = "600"
    run_dir = tmp_path / "data/flightdeck/up" / environment["FLIGHTDECK_BOX"]
    engine.configure(db_url=store.url)
    engine.register_ingest_task("long", lambda: None)
    job = int(engine.enqueue_ingest_job(task_name="long", queue="default").id)

    def fate() -> tuple[Any, ...]:
        row = db.one("select status, watchdog_retries, losses from ingest_jobs where id = {id}", id=job)
        return tuple(row.values()) if row else ()

    for answer, stays in (("w", True), ("s", False)):
        terminal = Terminal(processes, command("flightdeck", "up"), environment)
        try:
            terminal.read_until(environment["FLIGHTDECK_BOX"], "default")
            terminal.type("q")
            terminal.read_until("drain")
            terminal.type(answer)
            assert terminal.wait() == 0
        finally:
            terminal.close()
        line = lifeline.attach(run_dir)
        assert (line is not None) == stays
        if line is not None:
            eventually(lambda: fate()[0] == "running", 60)
            line.close()
    assert fate() == ("queued", 0, 0)
    told = next(event["text"] for event in events.recent(db) if event["type"] == "requeued")
    assert told.endswith("requeued (lane stopped it): the lane was told to stop at once"), told
    log = (run_dir / "log" / "lane-default.log").read_text()
    assert " INFO " in log and "starts on" in log, "a deck on the screen makes the lanes no quieter"


def test_a_config_file_says_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "flightdeck.toml"
    path.write_text(up.EXAMPLE + '[[lane]]\nqueue = "imports"\nproject = "p"\nshare_gpu = true\n')
    data = up.read_config(path)
    up.apply_config(data)
    assert config.get("app") == "myapp.jobs" and config.ingest_queues() == ("default", "imports")
    plan = up.plan(Store("postgresql://db/fleet"), data, lambda: 3)
    assert [p.name for p in plan.programs] == [
        "orchestrator", "recorder", "scheduler", "scheduler p", "lane gpu", "lane imports p",
    ]  # fmt: skip
    assert plan.programs[3].argv[-2:] == ("--project", "p")
    argv = list(plan.programs[4].argv)
    assert argv[argv.index("--slots") + 1] == "2" and argv[argv.index("--devices") + 1] == "0,1"
    assert plan.programs[4].env["FLIGHTDECK_DB_URL"] == "postgresql://db/fleet"
    assert "--share-gpu" in plan.programs[5].argv
    monkeypatch.setenv("FLIGHTDECK_APP", "other.jobs")
    assert config.get("app") == "other.jobs", "the environment stands above the file"


def test_the_orchestrator_of_this_box_tells_a_command(tmp_path: Path) -> None:
    path = tmp_path / "flightdeck.toml"
    path.write_text("[orchestrator]\non_event = \"sh -c 'cat > /dev/null'\"\n")
    data = up.read_config(path)
    up.apply_config(data)
    plan = up.plan(Store("postgresql://db/fleet"), data, lambda: 0)
    assert plan.programs[0].name == "orchestrator"
    assert plan.programs[0].env["FLIGHTDECK_ON_EVENT"] == "sh -c 'cat > /dev/null'"


def test_an_app_and_a_queue_that_do_not_exist_are_refused_before_anything_starts() -> None:
    lane = {"queue": "cpu"}
    with pytest.raises(ConfigError, match="lane import: no such queue"):
        up.check_lanes({"lane": [lane, {"queue": "import"}]})
    with pytest.raises(ConfigError, match="there is no module myap here"):
        up.check_lanes({"lane": [lane, {"queue": "gpu", "app": "myap.jobs"}]})
    engine.configure(app="tests.apps.not_looked_for")
    up.check_lanes({"lane": [lane, {"queue": "gpu"}]})
    engine.configure(app="myap")
    with pytest.raises(ConfigError, match="--app myap: "):
        up.check_lanes({})
    engine.configure(log_level="loud")
    with pytest.raises(ConfigError, match="log_level: 'loud' is none of debug"):
        up.check_lanes({})


def test_without_a_file_every_core_gpu_and_queue_has_a_slot() -> None:
    engine.configure(ingest_queues=("a", "b"))
    assert up.default_lanes(2) == [
        {"queue": "cpu", "slots": os.cpu_count()},
        {"queue": "gpu"},
        {"queue": "a", "slots": 1},
        {"queue": "b", "slots": 1},
    ]
    assert up.default_lanes(0)[1]["queue"] == "a"


@pytest.mark.parametrize(
    "text",
    [
        "not toml",
        "speed = 9",
        'lane = "gpu"',
        "[[lane]]\nslots = 2",
        '[[lane]]\nqueue = "gpu"\nspeed = 2',
        '[[lane]]\nqueue = "gpu"\nslots = "two"',
        '[[lane]]\nqueue = "gpu"\nslots = 0',
        'recorder = "no"',
        "scheduler = 1",
        "orchestrator = 1",
        "[orchestrator]\non_events = 'true'",
        "[orchestrator]\non_event = ['true']",
        "[orchestrator]\non_event = '/no/such/program'",
        'ingest_queues = ["gpu"]',
    ],
)
def test_a_bad_config_file_is_one_clear_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "flightdeck.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        up.apply_config(up.read_config(path))
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_config_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        up.read_config(tmp_path / "nowhere.toml")


@pytest.mark.parametrize("url", ["nonsense", "postgresql://nobody@127.0.0.1:1/none"])
def test_up_on_a_bad_database_is_one_line_and_exit_2(tmp_path: Path, processes: Processes, url: str) -> None:
    started = processes.spawn(
        command("flightdeck", "up", "--no-deck", "--db", url), env={"XDG_DATA_HOME": str(tmp_path / "data")}
    )
    assert started.wait(60) == 2
    assert len(processes.log(started).splitlines()) == 1
