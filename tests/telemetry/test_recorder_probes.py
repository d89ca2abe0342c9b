"""The recorder's probes in a process of their own: what happens to that process costs a gap, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from engine.store import Db, Store
from engine.telemetry import probing, wire
from engine.telemetry.probing import ProbeProcess
from engine.telemetry.sample import BoxFacts, BoxSample, GpuFacts, GpuSample, NoSample
from tests.fakes.gpus import Gpus, card
from tests.support import ROOT, Processes, command, eventually

CADENCE_S = 0.2


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProbeProcess]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    source = ProbeProcess("lab", CADENCE_S)
    yield source
    source.close()
    assert source.pids == set(), "closed, and something is left"


def the_next(source: ProbeProcess, fits: Callable[[BoxSample], object] = bool) -> BoxSample:
    """A sample that fits, after as many looks as it takes."""

    def look() -> BoxSample | None:
        try:
            sample = source.sample(CADENCE_S)
        except NoSample:
            return None
        return sample if fits(sample) else None

    return eventually(look, 60, "a sample")


def test_this_machine_read_by_another_process(probes: ProbeProcess) -> None:
    facts = probes.facts()
    assert facts.box == "lab" and facts.cores == os.cpu_count() and facts.machine_id
    sample = the_next(probes)
    assert sample.mem_total_mb and sample.cpu_pct is not None and sample.sensors
    assert probes.problem is None and len(probes.pids) == 1 and os.getpid() not in probes.pids


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_process_that_dies_or_hangs_is_a_gap_and_is_started_anew(
    probes: ProbeProcess, number: signal.Signals
) -> None:
    """D6: no sample is no sample, never one of zeros."""
    the_next(probes)
    (first,) = probes.pids
    os.kill(first, number)
    with pytest.raises(NoSample, match=r"probes: (died|does not answer|does not listen)"):
        for _ in range(3):
            probes.sample(CADENCE_S)
    assert probes.problem and "probes" in probes.problem
    the_next(probes)
    assert probes.problem is None
    eventually(lambda: first not in probes.pids and not psutil.pid_exists(first), what="the old one is gone")


def test_pauses_between_starts_grow_to_a_minute() -> None:
    source = ProbeProcess("lab", 2.0)
    pauses = []
    for _ in range(12):
        source._process.end(0.0, "died")
        pauses.append(source._process._not_before)
    assert pauses[0] == 2.0 and pauses == sorted(pauses) and pauses[-1] == 60.0


def test_a_driver_that_hangs_gets_a_new_process_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others go on meanwhile; a call that never returns cannot be taken back, only its process can."""
    gpus = Gpus(tmp_path, card(0, temp_c=51))
    for name, value in gpus.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(probing, "HUNG_S", 0.5)
    source = ProbeProcess("lab", CADENCE_S, root=str(gpus.root))
    try:
        good = the_next(source, lambda sample: sample.gpus)
        assert good.gpus[0].temp_c == 51
        first = set(source.pids)
        gpus.driver(hang=True)
        gone = the_next(source, lambda sample: sample.gpus and sample.gpus[0].state == "error")
        assert gone.gpus[0].temp_c is None and gone.mem_total_mb and "nvidia" in (source.problem or "")
        eventually(lambda: the_next(source) and source.pids - first, 60, "another process")
        gpus.driver(hang=False)
        assert the_next(source, lambda sample: sample.gpus and sample.gpus[0].temp_c).gpus[0].temp_c == 51
        assert source.problem is None
    finally:
        source.close()


def test_what_is_sent_is_what_arrives() -> None:
    gpu = GpuSample(1, "GPU-1", state="lost", throttle_mask=0x24, brakes=2, low={"temp_c": 1.0}, high={"temp_c": 2.5})
    sample = BoxSample("b", datetime.now(UTC), cpu_pct=0.0, gpus=(gpu,), sensors={"zones": {"a": 1.5}, "odd": None})
    assert wire.unpack_sample(wire.pack_sample(sample)) == sample
    facts = BoxFacts("b", "m", gpus=(GpuFacts(0, "GPU-1", unified=True),), cores=4)
    assert wire.unpack_facts(wire.pack_facts(facts)) == facts
    for field in (name for name in BoxSample.__dataclass_fields__ if name.endswith("_pct")):
        one = replace(sample, **{field: 12.5})
        assert wire.unpack_sample(wire.pack_sample(one)) == one


def test_an_answer_that_is_none_means_another_process(probes: ProbeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    the_next(probes)
    (first,) = probes.pids
    monkeypatch.setattr(probes._process, "poll", lambda now: {"no": 1, "sample": {"box": "lab"}, "error": None})
    with pytest.raises(NoSample, match="talks nonsense"):
        probes.sample(CADENCE_S)
    monkeypatch.undo()
    the_next(probes)
    assert first not in probes.pids


# With a recorder.


def _child(pid: int, besides: int = 0) -> int | None:
    return next((child.pid for child in psutil.Process(pid).children() if child.pid != besides), None)


def test_a_recorder_tells_that_its_probes_hang_and_leaves_nothing(
    store: Store, db: Db, processes: Processes, tmp_path: Path
) -> None:
    """The table says why there is nothing; then there are samples again; at the end no process is left."""
    env = {"FLIGHTDECK_SAMPLE_SECONDS": "0.2"}
    process = processes.spawn(command("queue-recorder", "--db", store.url, "--box", "lab"), env)
    count = "select count(*) from flight_recorder where tier = 'detail'"
    eventually(lambda: db.value(count) >= 2, 60, "samples")
    child = eventually(lambda: _child(process.pid), 30)
    os.kill(child, signal.SIGSTOP)
    error = "select last_error from services where kind = 'recorder'"
    eventually(lambda: "probes: does not answer" in (db.value(error) or ""), 60, "the reason")
    before = db.value(count)
    eventually(lambda: db.value(count) > before and db.value(error) is None, 60, "samples again")
    assert db.value("select count(*) from flight_recorder where mem_total_mb is null") == 0, "a gap, no empty rows"
    again = _child(process.pid, child)
    assert again is not None and processes.log(process).count("does not answer") == 2, (
        "the probes' word, the recorder's"
    )
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, processes.log(process)
    assert not psutil.pid_exists(child) and not psutil.pid_exists(again)


def test_probes_end_with_their_recorder_even_stopped(sqlite_store: Store, processes: Processes) -> None:
    process = processes.spawn(command("queue-recorder", "--db", sqlite_store.url, "--box", "lab"))
    with sqlite_store.connect("test") as db:
        eventually(lambda: db.value("select count(*) from flight_recorder"), 60, "a sample")
    child = _child(process.pid)
    assert child is not None
    alive = psutil.Process(child)
    os.kill(child, signal.SIGSTOP)
    process.kill()
    process.wait(30)
    eventually(lambda: not alive.is_running() or alive.status() == psutil.STATUS_ZOMBIE, 30, "its probes are gone")


def test_the_recorder_imports_no_probe_and_its_probes_no_database() -> None:
    """What each needs and no more: their memory is counted."""
    seen = {}
    for name, load in (
        ("recorder", "import engine.commands.recorder"),
        ("probes", "import engine.telemetry.probes.program, engine.telemetry.probes.source"),
    ):
        code = f"import sys; {load}; print(*sys.modules)"
        found = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
        )
        seen[name] = set(found.stdout.split())
    assert not {"pynvml", "psutil", "engine.telemetry.probes", "textual"} & seen["recorder"]
    assert not {"psycopg", "typer", "sqlite3", "engine.store", "psutil", "textual"} & seen["probes"]


def test_a_recorder_whose_probes_do_not_start_says_so(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a line in services, with the reason, though nothing is known of the box yet."""
    from engine.telemetry.recorder import run_recorder

    monkeypatch.setenv("PYTHONHOME", "/nonexistent")
    stop = threading.Event()
    source = ProbeProcess("lab", CADENCE_S)
    thread = threading.Thread(
        target=run_recorder, args=(sqlite_store, source, "lab", stop), kwargs={"cadence_s": CADENCE_S}
    )
    thread.start()
    try:
        with sqlite_store.connect("test") as db:
            eventually(lambda: "probes: " in (db.value("select last_error from services") or ""), 60, "the reason")
            assert db.value("select count(*) from flight_recorder") == 0
            monkeypatch.undo()
            eventually(lambda: db.value("select count(*) from flight_recorder"), 60, "samples")
            eventually(lambda: db.value("select cores from boxes") == os.cpu_count(), 60, "facts")
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive() and source.pids == set()
