"""The recorder: as a process on both stores, and through outages of its database."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from engine import config
from engine.errors import Conflict, StoreUnavailable
from engine.store import Db, Store
from engine.store.embedded import EmbeddedServer
from engine.store.migrate import migrate
from engine.telemetry import history, writer
from engine.telemetry.clock import DatabaseClock, uptime
from engine.telemetry.recorder import run_recorder
from engine.telemetry.rollup import by_minute, minute_of, roll_up
from engine.telemetry.sample import BoxFacts, BoxSample, GpuSample
from tests.support import Processes, command, eventually

FAST = {"FLIGHTDECK_SAMPLE_SECONDS": "0.1"}


class Counted:
    """A source that counts its looks: every one of them has to arrive."""

    def __init__(self, box: str = "lab", machine_id: str = "m-1") -> None:
        self.box, self.machine_id = box, machine_id
        self.looks = 0
        self.closed = False
        self.error: Exception | None = None

    def facts(self) -> BoxFacts:
        return BoxFacts(self.box, self.machine_id, simulated=True)

    def sample(self, dt_s: float) -> BoxSample:
        if self.error:
            raise self.error
        self.looks += 1
        gpu = GpuSample(0, "GPU-1", temp_c=50.0, brakes=0)
        return BoxSample("somebody", datetime.now(UTC), load1=float(self.looks), gpus=(gpu,))

    def close(self) -> None:
        self.closed = True


class Running:
    """A recorder in a thread of this process."""

    def __init__(self, store: Store, source: Counted, cadence_s: float = 0.05) -> None:
        self.stop = threading.Event()
        self.failure: BaseException | None = None
        self.source = source
        self._thread = threading.Thread(target=self._run, args=(store, cadence_s))
        self._thread.start()

    def _run(self, store: Store, cadence_s: float) -> None:
        try:
            run_recorder(store, self.source, self.source.box, self.stop, cadence_s=cadence_s)
        except Exception as failure:
            self.failure = failure

    def end(self) -> None:
        self.stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive() and self.source.closed

    def looks_again(self, more: int) -> None:
        """Wait until so many more samples were taken."""
        goal = self.source.looks + more
        eventually(lambda: self.source.looks >= goal, 60, "samples")


@pytest.fixture
def running() -> Iterator[list[Running]]:
    started: list[Running] = []
    yield started
    for recorder in started:
        recorder.stop.set()
    for recorder in started:
        recorder._thread.join(60)


def numbers(db: Db) -> list[int]:
    """Which looks are in the table."""
    return [int(row["load1"]) for row in db.all("select load1 from flight_recorder where tier = 'detail' order by at")]


# As a process. With FAST a look has a twentieth of a second, and a probe that a busy machine keeps from answering by then
# loses its values, as it should: what counts here is how many samples come.


def samples(db: Db) -> int:
    return int(db.value("select count(*) from flight_recorder where tier = 'detail'"))


def test_one_sample_of_this_machine(store: Store, db: Db, processes: Processes) -> None:
    process = processes.spawn(command("queue-recorder", "--once", "--db", store.url, "--box", "lab"))
    assert process.wait(60) == 0, processes.log(process)
    sample = history.latest(db)["lab"]
    assert sample.mem_total_mb and sample.cpu_pct is not None and sample.net_rx_bps is not None
    assert abs((db.now() - sample.at).total_seconds()) < 60
    facts = history.box_facts(db)["lab"]
    assert facts.cores == os.cpu_count() and not facts.simulated
    assert db.value("select count(*) from services") == 0


def test_it_records_until_sigterm(store: Store, db: Db, processes: Processes) -> None:
    process = processes.spawn(command("queue-recorder", "--db", store.url, "--box", "lab"), FAST)
    eventually(lambda: samples(db) >= 5, 60, "samples")
    row = db.one("select box, pid, incarnation, last_error from services where kind = 'recorder'")
    assert row and row["box"] == "lab" and row["pid"] == process.pid
    told = [part for part in (row["last_error"] or "").split("; ") if part]
    slow = (": no answer in time", ": no answer yet", ": does not answer")
    assert all(part.endswith(slow) for part in told), told
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0, processes.log(process)
    assert db.value("select count(*) from services where kind = 'recorder'") == 0
    times = [row["at"] for row in db.all("select at from flight_recorder where tier = 'detail' order by at")]
    assert len(times) == len(set(times))


def test_two_recorders_of_one_box(store: Store, db: Db, processes: Processes) -> None:
    """The second waits and says so, and takes over when the first is gone; one more sample is refused."""
    first = processes.spawn(command("queue-recorder", "--db", store.url, "--box", "lab"), FAST)
    eventually(lambda: samples(db) >= 2, 60, "samples of the first")
    second = processes.spawn(command("queue-recorder", "--db", store.url, "--box", "lab"), FAST)
    eventually(lambda: "another recorder is at work" in processes.log(second), 60, "the second's word")
    single = processes.spawn(command("queue-recorder", "--once", "--db", store.url, "--box", "lab"))
    assert single.wait(60) == 1 and "running already" in processes.log(single)
    elsewhere = processes.spawn(command("queue-recorder", "--once", "--db", store.url, "--box", "other"))
    assert elsewhere.wait(60) == 0, processes.log(elsewhere)
    first.kill()
    first.wait(30)
    eventually(
        lambda: db.value("select pid from services where kind = 'recorder' and box = 'lab'") == second.pid,
        60,
        "takeover",
    )
    assert second.poll() is None


def test_a_second_machine_of_the_same_name(store: Store, db: Db, processes: Processes) -> None:
    writer.write_facts(db, BoxFacts("lab", "ffffffffffffffffffffffffffffffff", cpu_model="Cray-1"))
    process = processes.spawn(command("queue-recorder", "--db", store.url, "--box", "lab"))
    assert process.wait(60) == 1
    said = processes.log(process).strip().splitlines()
    mine = Path("/etc/machine-id").read_text().strip()
    assert (
        "ffffffffffffffffffffffffffffffff" in said[-1]
        and mine in said[-1]
        and "Traceback" not in processes.log(process)
    )
    assert samples(db) == 0 and db.value("select machine_id from boxes") == "f" * 32
    replaced = processes.spawn(command("queue-recorder", "--once", "--replace", "--db", store.url, "--box", "lab"))
    assert replaced.wait(60) == 0 and db.value("select machine_id from boxes") == mine


def test_an_unreachable_database_with_once_is_one_line_and_exit_1(processes: Processes) -> None:
    process = processes.spawn(
        command("queue-recorder", "--once", "--db", "postgresql://u:secret@127.0.0.1:1/none_test")
    )
    assert process.wait(60) == 1
    lines = processes.log(process).strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("queue-recorder: ") and "secret" not in lines[0]


def test_sigterm_ends_it_while_the_database_is_unreachable(processes: Processes) -> None:
    process = processes.spawn(command("queue-recorder", "--db", "postgresql://u@127.0.0.1:1/none_test"))
    eventually(lambda: "cannot connect" in processes.log(process), 60, "its word")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert processes.log(process).count("cannot connect") == 1, "one line per change of state"


# Minutes.


def test_a_crash_before_the_minute_was_rolled_up(store: Store, db: Db) -> None:
    """The next recorder rolls up what its predecessor left, from the table; nothing is doubled, nothing lost."""
    now = minute_of(db.now())
    left = [
        BoxSample("lab", now - timedelta(minutes=4) + timedelta(seconds=2 * n), cpu_pct=float(n), power_ms=100.0,
                  gpus=(GpuSample(0, "GPU-1", temp_c=40.0 + n, sw_power_ms=100.0),))
        for n in range(90)
    ]  # fmt: skip
    minutes = [roll_up(rows) for rows in by_minute(left).values()]
    me = writer.Recorder("lab", "a" * 16, 1, "1")
    writer.write(db, me, [*left, minutes[0]], payload=None, last_error=None)
    run_recorder(store, Counted(), "lab", threading.Event(), once=True)
    rows = [row for row in history.hour(db, ["lab"], every_column=True)["lab"] if row.tier == "minute"]
    assert rows == minutes
    run_recorder(store, Counted(), "lab", threading.Event(), once=True)
    assert db.value("select count(*) from flight_recorder where tier = 'minute'") == 3


def test_a_restart_in_the_middle_of_a_minute(store: Store, db: Db, running: list[Running]) -> None:
    """What the predecessor wrote of the open minute counts in its row."""
    from engine.telemetry.recorder import BoxRecorder

    now = db.now()
    early = [BoxSample("lab", minute_of(now) + timedelta(milliseconds=n), cpu_pct=90.0) for n in range(3)]
    writer.write(db, writer.Recorder("lab", "a" * 16, 1, "1"), early, payload=None, last_error=None)
    recorder = BoxRecorder(store, Counted(), "lab", 2.0)
    recorder._take_up(db)
    recorder._ring.add(BoxSample("lab", minute_of(now) + timedelta(seconds=59), cpu_pct=50.0))
    recorder._ring.add(BoxSample("lab", minute_of(now) + timedelta(seconds=61), cpu_pct=1.0))
    closed = [row for row in recorder._ring.peek(10) if row.tier == "minute" and row.at == minute_of(now)]
    if minute_of(db.now()) == minute_of(now):  # else the minute was closed while this test ran, from the table alone
        assert [row.cpu_pct for row in closed] == [80.0]


# Outages.


class OwnServer:
    """A PostgreSQL of this test's own, which it may stop and freeze."""

    def __init__(self, directory: Path) -> None:
        self._server = EmbeddedServer(directory, {"fsync": "off", "max_connections": "30"})
        self._server.acquire()
        self._server.ensure_database("outage_test")
        self.store = Store(self._server.url("outage_test"))
        migrate(self.store)

    def pids(self) -> list[int]:
        file = self._server.directory / "pgdata" / "postmaster.pid"
        postmaster = psutil.Process(int(file.read_text().split()[0]))
        return [postmaster.pid, *(child.pid for child in postmaster.children(recursive=True))]

    def freeze(self) -> None:
        for pid in self.pids():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self.pids():
            os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        self._server._stop()

    def start(self) -> None:
        self._server._server.ensure_postgres_running()
        assert self._server.url("outage_test") == self.store.url


@pytest.fixture(scope="module")
def own_server() -> Iterator[OwnServer]:
    directory = Path(tempfile.mkdtemp(prefix="flightdeck-outage-test-"))
    server = OwnServer(directory)
    yield server
    server.thaw()
    server._server.release()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def away_store(own_server: OwnServer) -> Iterator[Store]:
    with own_server.store.connect("test") as db:
        for table in ("flight_recorder", "flight_recorder_gpu", "boxes", "services"):
            db.run(f"delete from {table}")
    yield own_server.store


def all_there(store: Store, recorder: Running) -> None:
    """Every look is in the table, once, in order, at a time of its own."""
    recorder.end()
    with store.connect("test") as db:
        assert numbers(db) == list(range(1, recorder.source.looks + 1))
        assert db.value("select count(*) from flight_recorder_gpu where tier = 'detail'") == recorder.source.looks
        times = [row["at"] for row in db.all("select at from flight_recorder where tier = 'detail' order by at")]
        assert len(set(times)) == len(times)


def test_a_database_restart_leaves_no_hole(own_server: OwnServer, away_store: Store, running: list[Running]) -> None:
    recorder = Running(away_store, Counted())
    running.append(recorder)
    recorder.looks_again(5)
    own_server.stop()
    recorder.looks_again(30)
    own_server.start()
    with away_store.connect("test") as db:
        eventually(lambda: len(numbers(db)) > 35, 60, "the backlog")
        note = eventually(lambda: db.value("select last_error from services where kind = 'recorder'"), 30, "its word")
        assert "away" in note
    all_there(away_store, recorder)


def test_a_frozen_database_leaves_no_hole(
    own_server: OwnServer, away_store: Store, running: list[Running], caplog: pytest.LogCaptureFixture
) -> None:
    """A server that neither answers nor hangs up: sampling goes on meanwhile, and the old session's lock is no rival."""
    recorder = Running(away_store, Counted())
    running.append(recorder)
    recorder.looks_again(5)
    own_server.freeze()
    try:
        eventually(lambda: "samples are kept" in caplog.text, 60, "the deadline of a statement")
        recorder.looks_again(5)
    finally:
        own_server.thaw()
    seen = recorder.source.looks
    with away_store.connect("test") as db:
        eventually(lambda: len(numbers(db)) >= seen, 60, "the backlog")
    all_there(away_store, recorder)


def test_a_locked_sqlite_file_leaves_no_hole(sqlite_store: Store, running: list[Running]) -> None:
    recorder = Running(sqlite_store, Counted())
    running.append(recorder)
    recorder.looks_again(5)
    with sqlite_store.connect("test") as db:
        with db.transaction():
            recorder.looks_again(20)
        eventually(lambda: len(numbers(db)) > 20, 60, "the backlog")
    all_there(sqlite_store, recorder)


def test_a_sensor_that_throws_is_a_gap_and_an_error_in_services(store: Store, db: Db, running: list[Running]) -> None:
    recorder = Running(store, Counted())
    running.append(recorder)
    recorder.looks_again(3)
    recorder.source.error = RuntimeError("sensor on fire")
    eventually(lambda: recorder.source.looks == len(numbers(db)), 60)
    recorder.source.error = None
    recorder.looks_again(3)
    all_there(store, recorder)


def test_a_row_that_the_database_refuses_stops_nothing(store: Store, db: Db, running: list[Running]) -> None:
    """Q21 for samples: that row alone is lost, with the reason."""
    source = Counted()
    good = source.sample

    def sometimes_bad(dt_s: float) -> BoxSample:
        sample = good(dt_s)
        return replace(sample, gpus=(GpuSample(0, state="molten"),)) if source.looks == 3 else sample

    source.sample = sometimes_bad  # type: ignore[method-assign]
    recorder = Running(store, source)
    running.append(recorder)
    eventually(lambda: len(numbers(db)) >= 6, 60, "samples after the bad one")
    assert "not written" in eventually(lambda: db.value("select last_error from services"), 60)
    recorder.end()
    assert numbers(db) == [n for n in range(1, source.looks + 1) if n != 3]


def test_a_machine_that_may_not_have_the_name_ends_with_the_reason(
    store: Store, db: Db, running: list[Running]
) -> None:
    writer.write_facts(db, BoxFacts("lab", "m-other"))
    recorder = Running(store, Counted())
    running.append(recorder)
    recorder._thread.join(60)
    assert isinstance(recorder.failure, Conflict) and recorder.source.looks == 0 and recorder.source.closed


def test_once_without_a_database(running: list[Running]) -> None:
    source = Counted()
    with pytest.raises(StoreUnavailable):
        run_recorder(Store("postgresql://u@127.0.0.1:1/none_test"), source, "lab", threading.Event(), once=True)
    assert source.closed


def test_the_cadence_is_a_setting(store: Store) -> None:
    config.configure(sample_seconds=0.5)
    stop = threading.Event()
    stop.set()
    run_recorder(store, Counted(), "lab", stop)


def test_a_box_with_a_wrong_clock_records_the_databases_time() -> None:
    """Q23: an hour off changes nothing; a jitter of milliseconds neither."""
    clock = DatabaseClock()
    truth = datetime.now(UTC) + timedelta(hours=1)
    asked = uptime()
    clock.set(truth, asked, asked)
    assert abs((clock.now() - truth).total_seconds()) < 5
    before = clock._offset
    clock.set(datetime.fromtimestamp(before + uptime() + 0.02, UTC), uptime(), uptime())
    assert clock._offset == before
