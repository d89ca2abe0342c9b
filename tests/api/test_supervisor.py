"""queue-worker-supervisor: which command for which lane, once per cooldown, whatever the commands do."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import config
from engine import supervisor as module
from engine.errors import BadInput
from engine.queue.workers import Worker, beat
from engine.store import Db, Store
from engine.store.locks import Exclusive, new_incarnation
from engine.supervisor import Map, Supervisor, dead_lanes, read_map, run_command
from tests.support import Processes, command, eventually

TELL = (
    "/bin/sh",
    "-c",
    'echo "$FLIGHTDECK_DEAD_BOX/$FLIGHTDECK_DEAD_QUEUE/$FLIGHTDECK_DEAD_PROJECT" >> "$TOLD"; echo "$FLIGHTDECK_DEAD_AGE" > "$TOLD.age"',
)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "told"
    monkeypatch.setenv("TOLD", str(path))
    return path


def flag(db: Db, box: str, queue: str = "gpu", project: str = "", state: str = "running") -> None:
    worker = Worker(box, queue, project, new_incarnation())
    beat(db, worker, state=state, slots=1, busy=1)
    db.run(
        "update worker_heartbeats set flagged_dead_at = {now}, last_seen = {before[s]} where incarnation = {life}",
        s=40.0,
        life=worker.incarnation,
    )


def once(store: Store, lanes: dict[str, tuple[str, ...]], cooldown_s: float = 300.0, timeout_s: float = 30.0) -> bool:
    return Supervisor(store, Map(lanes, cooldown_s, timeout_s), threading.Event()).once()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


# The map.


def test_the_most_particular_command_counts() -> None:
    lanes = Map({"*": ("all",), "a": ("box",), "a/gpu": ("lane",), "*/cpu": ("queue",)}, 1, 1)
    found = [lanes.command(*lane) for lane in (("a", "gpu"), ("a", "cpu"), ("b", "cpu"), ("b", "gpu"))]
    assert found == [("lane",), ("box",), ("queue",), ("all",)]
    assert Map({"a/gpu": ("lane",)}, 1, 1).command("a", "cpu") is None


def test_a_map_is_read_with_its_defaults(tmp_path: Path) -> None:
    path = tmp_path / "map.toml"
    path.write_text('timeout_s = 5\n[lanes]\n"a/gpu" = ["systemctl", "restart", "lane"]\n"*" = ["x"]\n')
    found = read_map(path)
    assert found == Map({"a/gpu": ("systemctl", "restart", "lane"), "*": ("x",)}, 300.0, 5.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lanes = [", "not TOML"),
        ("", "no [lanes]"),
        ("[lanes]\n", "no [lanes]"),
        ('[lane]\n"*" = ["x"]\n', "unknown key 'lane'"),
        ('cooldown = 3\n[lanes]\n"*" = ["x"]\n', "unknown key 'cooldown'"),
        ('[lanes]\n"*" = "reboot now"\n', "must be a list"),
        ('[lanes]\n"*" = []\n', "must be a list"),
        ('[lanes]\n"*" = ["x", 3]\n', "must be a list"),
        ('[lanes]\n"*" = ["x", "a\\u0000b"]\n', "must be a list"),
        ('cooldown_s = inf\n[lanes]\n"*" = ["x"]\n', "cooldown_s"),
        ('[lanes]\n"a/b/c" = ["x"]\n', "'a/b/c'"),
        ('[lanes]\n"a/" = ["x"]\n', "'a/'"),
        ('cooldown_s = 0\n[lanes]\n"*" = ["x"]\n', "cooldown_s"),
        ('timeout_s = "soon"\n[lanes]\n"*" = ["x"]\n', "timeout_s"),
        ('timeout_s = true\n[lanes]\n"*" = ["x"]\n', "timeout_s"),
    ],
)
def test_a_map_that_makes_no_sense_is_refused_with_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "map.toml"
    path.write_text(text)
    with pytest.raises(BadInput) as refused:
        read_map(path)
    assert words in str(refused.value) and str(path) in str(refused.value) and "\n" not in str(refused.value)


def test_a_map_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        read_map(tmp_path / "none.toml")


# One command.


def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code, said = run_command(("/bin/sh", "-c", f"sleep 600 & echo $! > {pid_file}; echo begun; wait"), {}, 1.0)
    assert code == -signal.SIGKILL and said == "begun\nkilled: it took longer than 1 s"
    child = int(pid_file.read_text())

    def gone() -> bool:
        try:
            return Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except FileNotFoundError:
            return True

    eventually(gone)


def test_a_command_that_does_not_exist_says_so_and_output_is_bounded() -> None:
    assert run_command(("/no/such/thing",), {}, 1.0) == (127, "cannot start: No such file or directory")
    code, said = run_command(("/bin/sh", "-c", "seq 1 100000; exit 3"), {}, 30.0)
    assert code == 3 and said.endswith("100000") and len(said) <= 16384


# Lanes.


def test_each_flagged_lane_gets_its_command_once_per_cooldown_and_one_that_fails_stops_no_other(
    store: Store, db: Db, told: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config.configure(box="watcher")
    flag(db, "a")
    flag(db, "b", "cpu", "p")
    flag(db, "c", state="stopping")  # it ended in order
    flag(db, "d")
    beat(db, Worker("e", "gpu", "", new_incarnation()), state="running", slots=1, busy=0)
    lanes = {"a": ("/bin/sh", "-c", "echo no luck; exit 4"), "b": TELL, "c": TELL}
    assert once(store, lanes) is False
    assert lines(told) == ["b/cpu/p"]
    assert int(Path(f"{told}.age").read_text()) >= 40
    orders = db.all("select box, queue, project, action, requested_by from control_events order by box")
    assert [(o["box"], o["queue"], o["project"]) for o in orders] == [("a", "gpu", ""), ("b", "cpu", "p")]
    assert {(o["action"], o["requested_by"]) for o in orders} == {("restart_lane", "supervisor@watcher")}
    said = "\n".join(caplog.messages)
    assert "a/gpu: /bin/sh ended with 4: no luck" in said and "d/gpu looks dead; the map names no command" in said
    assert once(store, {**lanes, "a": TELL}) is True, "another supervisor, or the same one started anew: not yet"
    assert lines(told) == ["b/cpu/p"]
    db.run("update control_events set at = {before[s]} where box = 'a'", s=301.0)
    assert once(store, {**lanes, "a": TELL}) is True
    assert lines(told) == ["b/cpu/p", "a/gpu/"]
    beat(db, Worker("b", "cpu", "p", new_incarnation()), state="running", slots=1, busy=0)
    assert [lane.box for lane in dead_lanes(db)] == ["a", "d"], "it is back"


def test_two_supervisors_do_not_restart_a_lane_twice(store: Store, db: Db, told: Path) -> None:
    flag(db, "a")
    with store.connect("another") as another:
        deciding = Exclusive(store, "restart:a:gpu:")
        assert deciding.try_acquire(another)
        assert once(store, {"*": TELL}) and lines(told) == [], "another one is about to restart it"
        deciding.release()
    threads = [threading.Thread(target=once, args=(store, {"*": TELL})) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert lines(told) == ["a/gpu/"]


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A supervisor on a thread; call it with its store and the lanes' commands."""
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    monkeypatch.setattr(module, "BEAT_S", 0.05)
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def begin(store: Store, lanes: dict[str, tuple[str, ...]]) -> None:
        threads.append(threading.Thread(target=Supervisor(store, Map(lanes, 300.0, 30.0), stop).run))
        threads[0].start()

    yield begin
    stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_a_command_that_takes_long_keeps_no_other_lane_waiting(
    store: Store, db: Db, told: Path, running: Any, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    flag(db, "slow")
    running(store, {"slow": ("/bin/sh", "-c", f"while [ ! -e {go} ]; do sleep 0.05; done; exit 5"), "quick": TELL})
    eventually(lambda: db.value("select count(*) as n from control_events") == 1)
    flag(db, "quick")
    eventually(lambda: lines(told) == ["quick/gpu/"])
    go.touch()
    error = eventually(lambda: db.value("select last_error from services where kind = 'supervisor'"))
    assert error == "slow/gpu: /bin/sh ended with 5"
    detail = db.value("select detail from services where kind = 'supervisor'")
    assert detail["commands"]["quick/gpu"]["code"] == 0


def test_it_outlives_an_outage_of_the_database(pg_store: Store, told: Path, running: Any) -> None:
    with pg_store.connect("test") as db:
        running(pg_store, {"*": TELL})
        eventually(lambda: db.value("select count(*) as n from services where kind = 'supervisor'"))
        for _ in range(3):
            db.value(
                "select count(pg_terminate_backend(pid)) as n from pg_stat_activity where datname = current_database() "
                "and application_name = 'flightdeck supervisor'"
            )
        flag(db, "a")
        eventually(lambda: lines(told) == ["a/gpu/"])


# The command.


def test_the_command_runs_leaves_its_row_and_ends_with_a_signal(
    store: Store, db: Db, told: Path, processes: Processes, tmp_path: Path
) -> None:
    path = tmp_path / "map.toml"
    path.write_text(f'[lanes]\n"*" = {list(TELL)!r}\n'.replace('\\"', '"'))
    process = processes.spawn(command("queue-worker-supervisor", "--map", str(path), "--db", store.url, "--box", "w"))
    eventually(lambda: db.value("select box from services where kind = 'supervisor'") == "w")
    flag(db, "a")
    eventually(lambda: lines(told) == ["a/gpu/"])
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0, processes.log(process)
    assert db.value("select count(*) as n from services where kind = 'supervisor'") == 0


def test_wrong_use_exits_2_and_once_without_a_database_1(processes: Processes, tmp_path: Path) -> None:
    path = tmp_path / "map.toml"
    path.write_text("[lanes]\n\"*\" = 'x'\n")
    good = tmp_path / "good.toml"
    good.write_text('[lanes]\n"*" = ["true"]\n')
    nowhere = "postgresql://me:s3cret@127.0.0.1:1/none"
    runs = [
        (processes.spawn(command("queue-worker-supervisor", *args)), code)
        for args, code in (
            (("--map", str(path)), 2),
            (("--map", str(tmp_path / "none.toml")), 2),
            ((), 2),
            (("--map", str(good), "--once", "--db", nowhere), 1),
        )
    ]
    for process, code in runs:
        assert process.wait(60) == code, processes.log(process)
        log = processes.log(process)
        assert log.count("\n") == 1 and log.startswith("queue-worker-supervisor: ") and "s3cret" not in log
