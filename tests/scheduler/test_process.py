"""queue-scheduler as processes: several at once, killed, restarted, without their database."""

from __future__ import annotations

import os
import signal
import threading
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from engine import config
from engine.scheduler.ticker import run_scheduler
from engine.store import Db, Store
from engine.store.migrate import migrate
from tests.scheduler.support import EACH_SECOND, NEVER, each_once, entry, fires, jobs, put, services, start_scheduler
from tests.support import Processes, RefusingServer, command, eventually

pytestmark = pytest.mark.timeout(240)


def unbroken(ticks: list[datetime]) -> bool:
    """Every second from the first to the last."""
    return all(after - before == timedelta(seconds=1) for before, after in pairwise(ticks))


def ticks_of(db: Db, name: str) -> list[datetime]:
    return [tick for _, tick in fires(db, name)]


def test_three_at_once_one_killed_one_restarted_fire_each_tick_once(store: Store, db: Db, processes: Processes) -> None:
    """Q33: whoever runs, dies or comes back, a tick is one job, and none is missing."""
    names = ["a", "b", "c"]
    for name in names:
        put(db, name, EACH_SECOND, misfire="all")  # all: a stalled machine makes ticks late, not fewer
    running = [start_scheduler(processes, store, box=f"b{n}") for n in range(3)]
    eventually(lambda: len(services(db)) == 3, 90, "three schedulers")
    reached = {name: len(ticks_of(db, name)) for name in names}
    eventually(lambda: all(len(ticks_of(db, name)) >= reached[name] + 2 for name in names), 60, "ticks with three")

    running[0].kill()
    running[0].wait(20)
    reached = {name: len(ticks_of(db, name)) for name in names}
    eventually(lambda: all(len(ticks_of(db, name)) >= reached[name] + 2 for name in names), 60, "ticks with two")
    again = start_scheduler(processes, store, box="b0")
    eventually(lambda: any(row["pid"] == again.pid for row in services(db)), 90, "the killed one is back")
    reached = {name: len(ticks_of(db, name)) for name in names}
    eventually(lambda: all(len(ticks_of(db, name)) >= reached[name] + 2 for name in names), 60, "ticks with all")

    for process in (running[1], running[2], again):
        process.send_signal(signal.SIGTERM)
    for process in (running[1], running[2], again):
        assert process.wait(30) == 0, processes.log(process)
        assert "Traceback" not in processes.log(process) and "does not fire" not in processes.log(process)
    each_once(db)
    for name in names:
        assert unbroken(ticks_of(db, name)), name
        assert entry(db, name)["last_tick"] == ticks_of(db, name)[-1]
    assert [row["pid"] for row in services(db)] == [running[0].pid], "who ends in order takes its row along"


def test_what_plain_sql_changes_is_noticed_and_what_ails_is_shown(store: Store, db: Db, processes: Processes) -> None:
    """Q21, seen from outside."""
    process = start_scheduler(processes, store, app="tests.apps.scheduled_jobs")
    row = eventually(lambda: next(iter(services(db)), None), 90)
    assert (row["pid"], row["box"], row["last_error"]) == (process.pid, "b1", None)
    assert entry(db, "report")["origin"] == "tests.apps.scheduled_jobs"
    put(db, "live", EACH_SECOND)
    put(db, "broken", EACH_SECOND, queue="nowhere")
    eventually(lambda: ticks_of(db, "live"), what="a new row")
    eventually(lambda: "broken: unknown queue 'nowhere'" in (services(db)[0]["last_error"] or ""))
    assert services(db)[0]["detail"]["errors"].keys() == {"broken"}
    db.run("update schedules set enabled = {false} where name in ('live', 'broken')")
    eventually(lambda: services(db)[0]["last_error"] is None)
    stood = len(ticks_of(db, "live"))
    db.run("update schedules set enabled = {true} where name = 'live'")
    eventually(lambda: len(ticks_of(db, "live")) > stood, what="on again")
    assert processes.log(process).count("schedule broken") == 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_ticks_of_an_outage_follow_the_policy_and_the_log_says_it_once(
    pg_store: Store, server_url: str, processes: Processes
) -> None:
    """Q15: the sessions are dropped and no new ones let in for some seconds."""
    with pg_store.connect("test") as db:
        for misfire in ("one", "all"):
            put(db, misfire, EACH_SECOND, misfire=misfire)
        process = start_scheduler(processes, pg_store, env={"FLIGHTDECK_MISFIRE_GRACE_S": "0.5"})
        eventually(lambda: ticks_of(db, "all"), 90)
        name = db.value("select current_database()")
        with psycopg.connect(server_url, autocommit=True) as admin:
            admin.execute(f"alter database {name} with allow_connections false")
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s and application_name "
                "like '%%scheduler%%'",
                (name,),
            )
            eventually(lambda: "database lost" in processes.log(process), what="it says that it is lost")
            began = db.now()
            eventually(lambda: db.now() - began > timedelta(seconds=3), what="three seconds of the database's clock")
            back = db.now()
            admin.execute(f"alter database {name} with allow_connections true")
        eventually(lambda: ticks_of(db, "one")[-1] > back and ticks_of(db, "all")[-1] > back, 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert unbroken(ticks_of(db, "all")), "made up for"
        gone = [tick for tick in ticks_of(db, "one") if began < tick < back]
        assert len(gone) <= 1, "one makes up for all"
        each_once(db)
        log = processes.log(process)
        assert log.count("database lost") == 1 and log.count("database is back") == 1


def test_however_often_it_tries_it_says_once_that_the_database_is_away(caplog: pytest.LogCaptureFixture) -> None:
    """Q15; and it ends at once when told to."""
    stop = threading.Event()
    with RefusingServer() as server, caplog.at_level("INFO"):
        config.configure(db_url=server.url)
        thread = threading.Thread(target=run_scheduler, args=(stop,))
        thread.start()
        try:
            eventually(lambda: len(server.tries) >= 4)
        finally:
            stop.set()
            thread.join(30)
    assert not thread.is_alive()
    (said,) = caplog.messages
    assert said.startswith("database not reachable") and "s3cret" not in said


def test_it_waits_for_the_schema(pg_empty_url: str, processes: Processes) -> None:
    store = Store(pg_empty_url)
    process = start_scheduler(processes, store)
    eventually(lambda: "no schema yet" in processes.log(process), 90)
    migrate(store)
    with store.connect("test") as db:
        eventually(lambda: services(db), 60, "it is at work")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0 and processes.log(process).count("no schema yet") == 1


def test_once_fires_what_is_due_and_ends(store: Store, db: Db, processes: Processes) -> None:
    put(db, "hourly", "0 * * * *", ago_s=7200)
    put(db, "fresh", EACH_SECOND)
    process = start_scheduler(processes, store, "--once")
    assert process.wait(90) == 0, processes.log(process)
    assert [name for name, _ in fires(db)] == ["hourly"] and len(jobs(db)) == 1
    assert services(db) == []


def test_an_app_in_the_working_directory_is_found(sqlite_store: Store, processes: Processes, tmp_path: Path) -> None:
    """As lanes find it, without an installation."""
    (tmp_path / "corner_shop.py").write_text(
        "import engine\n"
        "engine.register_ingest_task('count', lambda: None)\n"
        f"engine.register_schedule('stock', {NEVER!r}, task_name='count', queue='default')\n"
    )
    python, *rest = command("queue-scheduler", "--once", "--db", sqlite_store.url, "--app", "corner_shop")
    process = processes.spawn([python, "-P", *rest], cwd=tmp_path)  # -P: as a console script starts
    assert process.wait(90) == 0, processes.log(process)
    with sqlite_store.connect("test") as db:
        assert entry(db, "stock")["origin"] == "corner_shop"


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("--once", "--db", "postgresql://me:s3cret@127.0.0.1:1/none"), 1, "cannot connect"),
        (("--db", "mysql://x/y"), 2, "not understood"),
        (("--app", "no.such.app"), 2, "no.such.app"),
        (("--app", "corner_shop"), 2, "corner_shop"),
        (("--nonsense",), 2, "--help"),
    ],
)
def test_wrong_use_is_one_line(
    sqlite_store: Store, processes: Processes, tmp_path: Path, args: tuple[str, ...], code: int, said: str
) -> None:
    (tmp_path / "corner_shop.py").write_text("raise RuntimeError('closed\\ntoday')\n")
    env = {"FLIGHTDECK_DB_URL": sqlite_store.url, "PYTHONPATH": os.pathsep.join((str(Path.cwd()), str(tmp_path)))}
    process = processes.spawn(command("queue-scheduler", *args), env=env)
    assert process.wait(60) == code
    log = processes.log(process)
    assert log.count("\n") == 1 and log.startswith("queue-scheduler: ") and said in log and "s3cret" not in log
