"""queue-claim-worker: help, wrong use, databases that are not there."""

from __future__ import annotations

import logging
import subprocess

import pytest

from engine.commands import options
from engine.errors import ConfigError
from engine.store import Store
from tests.lane.fleet import start_lane
from tests.support import ROOT, Processes, RefusingServer, command, eventually


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("queue-claim-worker", *args), capture_output=True, text=True, timeout=120, cwd=ROOT, check=False
    )


def test_help_shows_an_example() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    assert "Example: queue-claim-worker" in shown.stdout
    for flag in ("--slots", "--devices", "--grace", "--max-offline", "--once", "--db", "--project", "--box", "--app"):
        assert flag in shown.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "--queue"),
        (("--queue", "default", "--nonsense"), "--nonsense"),
        (("--queue", "nope"), "no such queue"),
        (("--queue", "default", "--slots", "0"), "--slots"),
        (("--queue", "default", "--devices", "0"), "--devices"),
        (("--queue", "default", "--lease-seconds", "9"), "third of the lease"),
        (("--queue", "default", "--db", "mysql://u:secret@h/d"), "not understood"),
        (("--queue", "default", "--log-level", "loud"), "--log-level"),
    ],
)
def test_wrong_use_exits_2_with_one_line(args: tuple[str, ...], says: str) -> None:
    shown = run(*args)
    assert shown.returncode == 2, shown.stderr
    assert says in shown.stderr.splitlines()[-1]
    assert len(shown.stderr.splitlines()) == 1 and "secret" not in shown.stderr


def test_an_app_that_does_not_exist_exits_2(sqlite_store: Store, processes: Processes) -> None:
    lane = processes.spawn(
        command("queue-claim-worker", "--queue", "default", "--db", sqlite_store.url, "--app", "no_such_app")
    )
    assert lane.wait(60) == 2, processes.log(lane)
    assert "no_such_app" in processes.log(lane).splitlines()[-1]


def test_unreachable_database_once_exits_1_otherwise_it_is_waited_for(processes: Processes) -> None:
    """Q15: however often it is tried, one line."""
    with RefusingServer() as server:
        once = processes.spawn(command("queue-claim-worker", "--queue", "default", "--db", server.url, "--once"))
        assert once.wait(60) == 1
        before = len(server.tries)
        waits = processes.spawn(command("queue-claim-worker", "--queue", "default", "--db", server.url))
        eventually(lambda: len(server.tries) >= before + 7)
        assert waits.poll() is None
        log = processes.log(waits)
        assert "s3cret" not in processes.log(once) + log
        assert (log.count("unreachable"), log.count("\n")) == (1, 1), log
        assert server.tries[before + 6] - server.tries[before + 5] >= 0.4, "no hot loop"
        waits.terminate()
        waits.wait(20)


def test_another_machine_of_the_same_name_is_refused(sqlite_store: Store, processes: Processes) -> None:
    with sqlite_store.connect("test") as db:
        db.run("insert into boxes (box, machine_id) values ('b1', 'ffffffffffffffffffffffffffffffff')")
    lane = start_lane(processes, sqlite_store, "--once")
    code = lane.wait(60)
    from engine.lane.start import machine_id

    assert (code, "ffffffff" in processes.log(lane)) == ((2, True) if machine_id() else (0, False))


def test_passwords_never_reach_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    options.set_up_logging("info")
    logging.getLogger("x").warning("cannot reach postgresql://me:s3cr:et@host/db and password=hunter2 'token': abc")
    shown = capsys.readouterr().err
    assert "s3cr" not in shown and "hunter2" not in shown and "me:***@host" in shown
    logging.getLogger().handlers.clear()
    with pytest.raises(ConfigError):
        options.set_up_logging("loud")
