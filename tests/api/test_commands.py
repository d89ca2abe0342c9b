"""queue-broker, queue-worker-control and flightdeck snapshot: what they print, and how they refuse."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from engine.commands import broker, supervisor, worker_control
from engine.commands.options import run_app
from engine.queue.controls import order_for
from engine.queue.workers import Worker, beat
from engine.store import Db, Store
from engine.store.migrate import downgrade, required_version
from flightdeck.cli import cli
from tests.support import ROOT, Processes, command

APPS = {
    "queue-broker": broker.app,
    "queue-worker-control": worker_control.app,
    "queue-worker-supervisor": supervisor.app,
    "flightdeck": cli,
}

Run = tuple[int, str, str]


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """A command sets up the process's logging; the tests after it must not write to its closed stream."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def run(capsys: pytest.CaptureFixture[str], name: str, *args: str) -> Run:
    """One command in this process: exit code, standard output, standard error."""
    with pytest.raises(SystemExit) as ended:
        run_app(APPS[name], name, list(args), store_code=2)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


# Park and resume.


def control(capsys: pytest.CaptureFixture[str], store: Store, *args: str) -> Run:
    return run(capsys, "queue-worker-control", "--db", store.url, "--box", "here", *args)


def test_off_and_on_name_exactly_one_lane(capsys: pytest.CaptureFixture[str], store: Store, db: Db) -> None:
    code, out, err = control(capsys, store, "--queue", "gpu", "--off", "--reason", "fan")
    assert (code, err) == (0, "") and "ordered off" in out
    assert order_for(db, "here", "gpu", "").desired == "off"
    assert order_for(db, "here", "gpu", "").policy == "hard"
    assert order_for(db, "here", "cpu", "").desired == "on"
    assert order_for(db, "there", "gpu", "").desired == "on"
    assert order_for(db, "here", "gpu", "other").desired == "on"
    assert control(capsys, store, "--queue", "gpu", "--on")[0] == 0
    assert order_for(db, "here", "gpu", "").desired == "on"


def test_all_boxes_and_all_queues_widen_the_order(capsys: pytest.CaptureFixture[str], store: Store, db: Db) -> None:
    assert run(capsys, "queue-worker-control", "--db", store.url, "--queue", "cpu", "--all-boxes", "--off")[0] == 0
    assert order_for(db, "anywhere", "cpu", "").desired == "off"
    assert control(capsys, store, "--queue", "gpu", "--off")[0] == 0
    assert control(capsys, store, "--all-queues", "--off", "--policy", "drain")[0] == 0
    assert order_for(db, "here", "training", "").policy == "drain"
    code, out, _ = control(capsys, store, "--all-queues", "--on")
    assert code == 0 and "uncordoned" in out
    assert order_for(db, "here", "training", "").desired == "on"
    assert order_for(db, "here", "gpu", "").desired == "off", "an earlier order counts again"


def test_a_cordon_of_one_project_names_the_lanes_that_it_leaves(
    capsys: pytest.CaptureFixture[str], store: Store, db: Db
) -> None:
    """A person who cordons a box to take it away must not believe that it is empty."""
    for queue, project in (("cpu", ""), ("gpu", ""), ("gpu", "clips"), ("cpu", "leads"), ("mail", "leads")):
        beat(
            db, Worker("here", queue, project, "a"), state="running" if queue != "mail" else "stopping", slots=1, busy=0
        )
    code, out, _ = control(capsys, store, "--all-queues", "--off")
    assert code == 0 and out.splitlines()[1:] == [
        "lanes: cpu on here, gpu on here",
        "left as they are: gpu on here of clips, cpu on here of leads (--all-projects orders these, too)",
    ]
    assert order_for(db, "here", "gpu", "clips").desired == "on"
    code, out, _ = control(capsys, store, "--all-queues", "--all-projects", "--off", "--policy", "drain")
    assert code == 0 and "left" not in out and [line.count("ordered off") for line in out.splitlines()] == [1, 1, 1, 0]
    assert out.splitlines()[-1] == "lanes: cpu on here, gpu on here, gpu on here of clips, cpu on here of leads"
    for queue, project in (("gpu", "clips"), ("cpu", "leads"), ("cpu", "")):
        assert (order_for(db, "here", queue, project).desired, order_for(db, "here", queue, project).policy) == (
            "off",
            "drain",
        )
    code, out, _ = control(capsys, store, "--all-queues", "--on", "--project", "clips")
    assert code == 0 and "left as they are: cpu on here, gpu on here, cpu on here of leads (" in out
    assert control(capsys, store, "--all-queues", "--all-projects", "--on")[0] == 0
    assert {order_for(db, "here", "gpu", project).desired for project in ("", "clips", "leads")} == {"on"}
    code, out, _ = control(capsys, store, "--queue", "gpu", "--off", "--project", "clips")
    assert code == 0 and out.splitlines()[1:] == ["left as they are: gpu on here (--all-projects orders these, too)"]


def test_an_order_for_every_project_is_written_whole_or_not_at_all(
    capsys: pytest.CaptureFixture[str], store: Store, db: Db
) -> None:
    for project in ("a", "b\tc"):  # the second is no name, and another writer's
        beat(db, Worker("here", "gpu", project, "a"), state="running", slots=1, busy=0)
    code, out, err = control(capsys, store, "--queue", "gpu", "--all-projects", "--off")
    assert (code, out) == (2, "") and len(err.splitlines()) == 1
    assert (
        order_for(db, "here", "gpu", "a").desired == "on" and db.value("select count(*) as n from control_events") == 0
    )


def test_an_order_for_a_time_lapses_by_itself(capsys: pytest.CaptureFixture[str], store: Store, db: Db) -> None:
    assert control(capsys, store, "--queue", "gpu", "--off", "--for", "2h")[0] == 0
    until = order_for(db, "here", "gpu", "").until
    assert until is not None and 7190 < (until - db.now()).total_seconds() <= 7200


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--queue", "gpu"),
        ("--queue", "gpu", "--on", "--off"),
        ("--off",),
        ("--queue", "gpu", "--all-queues", "--off"),
        ("--queue", "nope", "--off"),
        ("--queue", "*", "--off"),
        ("--queue", "gpu", "--off", "--policy", "soft"),
        ("--queue", "gpu", "--off", "--for", "soon"),
        ("--queue", "gpu", "--off", "--for", "0"),
        ("--queue", "gpu", "--on", "--for", "2h"),
        ("--queue", "gpu", "--off", "--all-boxes"),
        ("--nonsense",),
        ("--queue", "gpu", "--off", "--all-projects"),
        ("--queue", "gpu", "--off", "--all-projects", "--project", "p"),
        ("--preload", "sdxl", "--all-projects"),
        ("--queue", "gpu", "--off", "--box", "a/b"),
    ],
    ids=" ".join,
)
def test_wrong_use_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], sqlite_store: Store, args: tuple[str, ...]
) -> None:
    code, out, err = control(capsys, sqlite_store, *args)
    assert (code, out) == (2, "") and len(err.splitlines()) == 1 and err.startswith("queue-worker-control: ")
    with sqlite_store.connect("test") as db:
        assert db.value("select count(*) as n from worker_controls") == 0


# The broker.


def test_bootstrap_status_and_downgrade(capsys: pytest.CaptureFixture[str], pg_empty_url: str, tmp_path: Path) -> None:
    for url in (pg_empty_url, f"sqlite:///{tmp_path / 'fresh_test.db'}"):
        needed = required_version(Store(url))
        assert run(capsys, "queue-broker", "status", "--db", url)[0] == 2
        code, out, _ = run(capsys, "queue-broker", "bootstrap", "--db", url)
        assert code == 0 and f"schema {needed}, applied" in out
        assert "nothing to do" in run(capsys, "queue-broker", "bootstrap", "--db", url)[1]
        code, out, _ = run(capsys, "queue-broker", "status", "--db", url)
        assert code == 0 and f"schema {needed}" in out and "leader: none" in out
        code, out, _ = run(capsys, "queue-broker", "downgrade", "--to", "0", "--db", url)
        assert code == 0 and "took back" in out
        assert run(capsys, "queue-broker", "bootstrap", "--db", url)[0] == 0


def test_downgrade_refuses_a_database_that_is_not_for_tests(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'fleet.db'}"
    assert run(capsys, "queue-broker", "bootstrap", "--db", url)[0] == 0
    code, _, err = run(capsys, "queue-broker", "downgrade", "--to", "0", "--db", url)
    assert code == 2 and "--force" in err
    assert run(capsys, "queue-broker", "status", "--db", url)[0] == 0
    assert run(capsys, "queue-broker", "downgrade", "--to", "0", "--force", "--db", url)[0] == 0


# Bad databases, the same for every command that does one thing.

ONE_SHOTS = [
    ("queue-broker", "status"),
    ("queue-worker-control", "--queue", "gpu", "--off"),
    ("flightdeck", "snapshot", "--json"),
    ("flightdeck", "snapshot", "--text"),
]


@pytest.mark.parametrize("args", ONE_SHOTS, ids=" ".join)
@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:secret@h/d",
        "nonsense",
        "sqlite:relative",
        "embedded:relative",
        "postgresql://nobody:secret@127.0.0.1:1/none",
        "postgresql://h/%zz",
        "sqlite:////proc/nowhere/fleet.db",
    ],
)
def test_a_wrong_or_unreachable_database_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...], url: str
) -> None:
    code, out, err = run(capsys, *args, "--db", url)
    assert (code, out) == (2, ""), err
    assert len(err.splitlines()) == 1 and "secret" not in err and "Traceback" not in err


@pytest.mark.parametrize("args", ONE_SHOTS, ids=" ".join)
def test_an_old_and_a_newer_schema_are_told_apart(
    capsys: pytest.CaptureFixture[str], pg_store: Store, args: tuple[str, ...]
) -> None:
    with pg_store.connect("test") as db:
        db.run("insert into engine_schema_version (version, name, min_code) values (9999, 'future', 99)")
        code, _, err = run(capsys, *args, "--db", pg_store.url)
        assert code == 2 and "newer program" in err and len(err.splitlines()) == 1
        db.run("delete from engine_schema_version where version = 9999")
    downgrade(pg_store, 1)
    code, _, err = run(capsys, *args, "--db", pg_store.url)
    assert code == 2 and "queue-broker bootstrap" in err and len(err.splitlines()) == 1


def test_a_read_only_database_is_read_and_not_written(
    capsys: pytest.CaptureFixture[str], pg_store: Store, pg_url: str
) -> None:
    with psycopg.connect(pg_url, autocommit=True) as raw:
        name = raw.info.dbname
        raw.execute(f"alter database {name} set default_transaction_read_only = on")
    code, _, err = control(capsys, pg_store, "--queue", "gpu", "--off")
    assert code == 2 and "read-only" in err and len(err.splitlines()) == 1
    code, out, _ = run(capsys, "flightdeck", "snapshot", "--json", "--db", pg_store.url)
    assert code == 0 and json.loads(out)["store"] == "postgresql"


def test_a_file_that_is_no_database_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "letter.db"
    path.write_text("Dear fleet, " * 200)
    for args in ONE_SHOTS:
        code, _, err = run(capsys, *args, "--db", f"sqlite:///{path}")
        assert code == 2 and len(err.splitlines()) == 1, err
    assert path.read_text().startswith("Dear fleet")


# One frame.


def test_a_snapshot_outside_any_checkout_names_this_boxs_state(tmp_path: Path) -> None:
    """What a newcomer sees after ``pip install``: no settings, no server, nothing running."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FLIGHTDECK_")}
    environment |= {"XDG_DATA_HOME": str(tmp_path / "data"), "FLIGHTDECK_BOX": "newcomer", "PYTHONPATH": str(ROOT)}
    for args in (("--text",), ("--json",), ("--svg",)):
        done = subprocess.run(
            command("flightdeck", "snapshot", *args),
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert done.returncode == 0, done.stderr
        assert "newcomer" in done.stdout
        if args == ("--json",):
            (box,) = json.loads(done.stdout)["boxes"]
            assert box["state"] == "ok" and box["now"]["cpu_pct"] is not None and box["facts"]["cores"] >= 1
    assert (tmp_path / "data/flightdeck/flightdeck.db").exists()


def test_every_command_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for args in (
        ("queue-worker-control", "--help"),
        ("queue-broker", "--help"),
        ("queue-broker", "bootstrap", "--help"),
        ("queue-broker", "status", "--help"),
        ("queue-broker", "downgrade", "--help"),
        ("flightdeck", "demo", "--help"),
        ("flightdeck", "up", "--help"),
        ("flightdeck", "snapshot", "--help"),
        ("flightdeck", "doctor", "--help"),
        ("flightdeck", "record", "--help"),
        ("flightdeck", "replay", "--help"),
        ("flightdeck", "autopsy", "--help"),
        ("queue-worker-supervisor", "--help"),
    ):
        code, out, _ = run(capsys, *args)
        assert code == 0 and "Example:" in out, args


def test_wrong_use_names_the_help_that_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    for args, where in (((), ""), (("--nonsense",), ""), (("downgrade",), " downgrade")):
        code, _, err = run(capsys, "queue-broker", *args)
        assert code == 2 and err.endswith(f"; see queue-broker{where} --help\n"), err
    code, _, err = run(capsys, "queue-broker", "statu")
    assert code == 2 and err.endswith("Did you mean 'status'?\n"), err


def test_a_misspelt_setting_in_the_environment_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    for name, value in (("LEASE_SECOND", "3"), ("XYZZY", "1"), ("GRACE", "3"), ("GRACES", ""), ("PROFILE", "x")):
        monkeypatch.setenv(f"FLIGHTDECK_{name}", value)
    told = "FLIGHTDECK_LEASE_SECOND: no such setting, ignored; did you mean FLIGHTDECK_LEASE_SECONDS?"
    for name in APPS:
        code, out, err = run(capsys, name, "--help")
        assert code == 0 and out
        assert err.splitlines() == [f"{name}: {told}", f"{name}: FLIGHTDECK_XYZZY: no such setting, ignored"]


def test_a_missing_file_is_called_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "queue-broker", "status", "--db", f"sqlite:///{tmp_path / 'typo.db'}")
    assert code == 2 and err.endswith("cannot open: no such file\n"), err


def test_a_console_script_by_module_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "engine.commands", "queue-nonsense"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2 and "queue-claim-worker" in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("queue-orchestrator",),
        ("queue-orchestrator", "--once"),
        ("queue-claim-worker", "--queue", "default"),
        ("queue-claim-worker", "--queue", "default", "--once"),
        ("queue-recorder", "--once"),
    ],
    ids=" ".join,
)
def test_programs_that_must_write_refuse_a_read_only_database(
    pg_store: Store, pg_url: str, processes: Processes, args: tuple[str, ...]
) -> None:
    """A database set to read only, or a standby: one line and exit 2 at the start, no loop that logs for ever."""
    with psycopg.connect(pg_url, autocommit=True) as raw:
        raw.execute(f"alter database {raw.info.dbname} set default_transaction_read_only = on")
    process = processes.spawn(command(*args, "--db", pg_store.url))
    assert process.wait(60) == 2, processes.log(process)
    log = processes.log(process)
    assert log.count("\n") == 1 and log.startswith(f"{args[0]}: ") and "read-only" in log


def test_migrating_an_empty_read_only_database_is_one_line(
    capsys: pytest.CaptureFixture[str], pg_empty_url: str
) -> None:
    with psycopg.connect(pg_empty_url, autocommit=True) as raw:
        raw.execute(f"alter database {raw.info.dbname} set default_transaction_read_only = on")
    code, out, err = run(capsys, "queue-broker", "bootstrap", "--db", pg_empty_url)
    assert (code, out) == (2, "") and "read-only" in err and len(err.splitlines()) == 1
