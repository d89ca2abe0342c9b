"""The lane's GPU probe: a real process, looking at made-up GPUs and at real executors' stand-ins."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.lane import gpu_probe, tree
from engine.lane.gpu_probe import Probe, Subject
from engine.lane.gpu_reading import Device, chosen, look, visible
from engine.lane.usage import Meter, Use, tcp_bytes
from engine.lane.watchdogs import Look
from tests.fakes.gpus import NOT_SUPPORTED, UNKNOWN, Gpus, card
from tests.support import Processes, eventually

COOKIE = "cafe.0.1."
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def gpus(tmp_path: Path) -> Gpus:
    return Gpus(tmp_path, card(0, util=3), card(1, util=70, used_mb=9000))


@pytest.fixture
def probe(gpus: Gpus) -> Iterator[Probe]:
    probe = Probe(0.1, str(gpus.root), gpus.env)
    yield probe
    probe.wait_closed(5.0)


@pytest.fixture
def sleeper(processes: Processes) -> tree.Target:
    """A process that does nothing, as an executor is one to the probe."""
    return tree.Target(processes.spawn(SLEEP, env={tree.COOKIE: COOKIE}).pid, COOKIE)


def one(probe: Probe, subject: Subject) -> Look:
    """The next reading of one executor, as the lane gets it: ask, then poll."""
    probe.ask({0: subject}, time.monotonic())
    looks = eventually(lambda: probe.poll(time.monotonic()) or (probe.ask({0: subject}, time.monotonic()) and None))
    return looks[0]


def until(probe: Probe, subject: Subject, fits: Callable[[Look], object], what: str = "") -> Look:
    return eventually(lambda: (found := one(probe, subject)) and fits(found) and found, what=what)


def test_use_memory_and_bytes_of_an_executor_on_its_own_device(probe: Probe, gpus: Gpus, sleeper: tree.Target) -> None:
    first = one(probe, Subject(sleeper, "0"))
    assert (first.use_pct, first.vram_mb) == (3, 1024), "nobody is listed there: what is in use on the device"
    assert first.known and first.host_mb is not None and 1 < first.host_mb < 200
    gpus.set(0, util=88, processes=[{"pid": sleeper.pid, "mb": 512}, {"pid": 1, "mb": 9999}])
    busy = one(probe, Subject(sleeper, "0"))
    assert (busy.use_pct, busy.vram_mb) == (88, 512), "its own memory, not that of others"
    assert one(probe, Subject(sleeper, gpus.state["cards"][1]["uuid"])).use_pct == 70
    assert one(probe, Subject(sleeper, None)).use_pct == 88, "no device given: the one that holds its memory"
    assert one(probe, Subject(sleeper, "7")).why == "its GPU cannot be read"
    gpus.set(0, util=UNKNOWN)
    unknown = one(probe, Subject(sleeper, "0"))
    assert unknown.use_pct is None and "GPU 0" in (unknown.why or "") and "GPU 0" in (probe.error or "")
    assert unknown.host_mb is not None, "the rest is told"
    gpus.set(0, util=1)
    assert one(probe, Subject(sleeper, "0")).known and probe.error is None


@pytest.mark.parametrize("refusal", ["util", "used_mb"])
def test_what_a_driver_refuses_is_unknown_and_never_zero(
    probe: Probe, gpus: Gpus, sleeper: tree.Target, refusal: str
) -> None:
    """Q35."""
    gpus.set(0, **{refusal: NOT_SUPPORTED})
    found = one(probe, Subject(sleeper, "0"))
    assert not found.known and found.why and None in (found.use_pct, found.vram_mb)


def test_a_lost_gpu_is_unknown_and_comes_back_without_harm_to_its_neighbour(
    probe: Probe, gpus: Gpus, sleeper: tree.Target
) -> None:
    assert one(probe, Subject(sleeper, "0")).known
    gpus.set(0, lost=True)
    lost = one(probe, Subject(sleeper, "0"))
    assert lost.use_pct is None and lost.vram_mb is None and lost.why
    assert one(probe, Subject(sleeper, "1")).use_pct == 70


def test_unified_memory_is_that_of_the_machine(tmp_path: Path, sleeper: tree.Target) -> None:
    (tmp_path / "spark").mkdir()
    spark = Gpus(tmp_path / "spark", card(0, kind="gb10", name="NVIDIA GB10", util=12))
    probe = Probe(0.1, str(spark.root), spark.env)
    try:
        assert one(probe, Subject(sleeper, "0")).vram_mb == 32768
        spark.host_memory(65536, 50000)
        assert one(probe, Subject(sleeper, "0")).vram_mb == 50000
    finally:
        probe.wait_closed(5.0)


def test_a_driver_that_hangs_costs_readings_and_the_lane_no_time(
    probe: Probe, gpus: Gpus, sleeper: tree.Target
) -> None:
    subject = Subject(sleeper, "0")
    assert one(probe, subject).known
    first = probe.pids
    gpus.driver(hang=True)
    assert probe.ask({0: subject}, time.monotonic())
    turns = 0

    def turn() -> bool:
        nonlocal turns
        turns += 1
        assert probe.poll(time.monotonic()) is None
        return probe.error is not None

    eventually(turn, what="given up on")
    assert probe.error == "GPU probe: does not answer"
    assert turns > 5, "the lane goes on meanwhile"
    gpus.driver(hang=False)
    assert one(probe, subject).known
    assert probe.error is None and probe.pids and not probe.pids & first, "a fresh process"


def test_a_probe_that_is_killed_is_started_again_after_a_pause(probe: Probe, gpus: Gpus, sleeper: tree.Target) -> None:
    subject = Subject(sleeper, "0")
    assert one(probe, subject).known
    (pid,) = probe.pids
    os.kill(pid, signal.SIGKILL)
    now = time.monotonic()
    probe.ask({0: subject}, now)
    eventually(lambda: probe.poll(now) is None and probe.error, what="its death is seen")
    assert probe.error in ("GPU probe: died",) or "does not listen" in (probe.error or "")
    assert not probe.ask({0: subject}, now), "not at once"
    assert one(probe, subject).known and probe.error is None


def test_pauses_grow_when_it_dies_again_and_again(gpus: Gpus) -> None:
    """Q15: no storm of processes and log lines."""
    broken = Probe(1.0, str(gpus.root), {"PYTHONPATH": "/nonexistent", "PYTHONHOME": "/nonexistent"})
    now, starts = 0.0, []
    try:
        while len(starts) < 6:
            if broken.ask({}, now):
                starts.append(now)
                eventually(lambda now=now: broken.poll(now) is None and not broken.waits, what="its death is seen")
            now += 0.25
    finally:
        broken.wait_closed(5.0)
    pauses = [after - before for before, after in itertools.pairwise(starts)]
    assert pauses == sorted(pauses) and pauses[0] < 16 <= pauses[-1] <= 61  # 1 2 4 8 16; more where it dies slowly


def test_no_third_one_is_started_while_two_cannot_die(
    probe: Probe, sleeper: tree.Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver may hold a process that was killed for ever."""
    subject = Subject(sleeper, "0")
    monkeypatch.setattr(subprocess.Popen, "kill", lambda self: None)
    now = time.monotonic()
    for _ in range(gpu_probe.LEFT_BEHIND):
        assert probe.ask({0: subject}, now)
        probe.close()
    assert len(probe.pids) == 2
    assert not probe.ask({0: subject}, now) and "killed ones do not end" in (probe.error or "")
    monkeypatch.undo()
    for pid in probe.pids:
        os.kill(pid, signal.SIGKILL)


def test_an_unused_probe_lets_go_of_the_driver(probe: Probe, sleeper: tree.Target) -> None:
    one(probe, Subject(sleeper, "0"))
    probe.poll(time.monotonic() + gpu_probe.UNUSED_S - 5)
    assert probe.pids
    later = time.monotonic() + gpu_probe.UNUSED_S + 5
    eventually(lambda: probe.poll(later) is None and not probe.pids, what="gone")


def test_a_probe_dies_with_its_lane(gpus: Gpus, processes: Processes) -> None:
    lane = """
import sys, time
from engine.lane.gpu_probe import Probe
probe = Probe(0.1, sys.argv[1], {})
probe.ask({}, time.monotonic())
while probe.poll(time.monotonic()) is None: time.sleep(0.01)
print(*probe.pids, flush=True)
time.sleep(600)
"""
    process = processes.spawn([sys.executable, "-c", lane, str(gpus.root)], env=gpus.env)
    pid = int(eventually(lambda: processes.log(process).strip(), what="it runs").split()[-1])
    process.kill()
    eventually(lambda: tree.is_exiting(pid), what="it ends")


# --- what processes use ---


def test_reading_a_file_and_a_download_are_bytes_and_spinning_is_none(processes: Processes, tmp_path: Path) -> None:
    """A CUDA wait may spin a core; a ``recv`` shows in no counter of files."""
    big = tmp_path / "big"
    big.write_bytes(bytes(3_000_000))
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = f"""
import pathlib, socket, sys, time
def wait(name):
    pathlib.Path({str(tmp_path)!r}, name + " awaited").touch()
    while not pathlib.Path({str(tmp_path)!r}, name).exists(): time.sleep(0.01)
wait("read"); open({str(big)!r}, "rb").read()
wait("load"); s = socket.create_connection(("127.0.0.1", {server.getsockname()[1]}))
n = 0
while n < 2_000_000: n += len(s.recv(65536))
while True: pass
"""
        process = processes.spawn([sys.executable, "-c", script])
        target = tree.Target(process.pid, COOKIE)
        meter = Meter(os.getpid())

        def read() -> float:
            return meter.read([target])[COOKIE].io_bytes or 0.0

        eventually((tmp_path / "read awaited").exists, what="the interpreter has read what it needs")
        start = read()
        (tmp_path / "read").touch()
        eventually(lambda: read() - start >= 3_000_000, what="the file")
        eventually((tmp_path / "load awaited").exists)
        before = read()
        assert before - start < 4_500_000
        (tmp_path / "load").touch()
        client, _ = server.accept()
        with client:
            client.sendall(bytes(2_000_000))
            eventually(lambda: read() - before >= 2_000_000, what="the download")
            eventually(lambda: spins(process.pid), what="it spins")
            spinning = read()
            eventually(lambda: spins(process.pid, 30), what="it spins on")
            assert read() - spinning < 1000
    assert tcp_bytes() is not None


def spins(pid: int, ticks: int = 1, seen: dict[int, int] = {}) -> bool:  # noqa: B006
    """It has used so many ticks of CPU time since this was first asked."""
    now = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])
    if now - seen.setdefault(pid, now) >= ticks:
        del seen[pid]
        return True
    return False


def test_children_count_and_strangers_do_not(processes: Processes) -> None:
    parent = processes.spawn([sys.executable, "-c", f"import subprocess; subprocess.run({SLEEP!r})"])
    stranger = processes.spawn(SLEEP)
    meter = Meter(os.getpid())
    target = tree.Target(parent.pid, COOKIE)
    pids = eventually(lambda: len(found := meter.read([target])[COOKIE].pids) == 2 and found, what="two of them")
    assert parent.pid in pids and stranger.pid not in pids
    (child,) = pids - {parent.pid}
    parent.kill()
    parent.wait(10)
    os.kill(child, signal.SIGKILL)
    assert meter.read([target])[COOKIE] == Use(frozenset(), None, None), "an executor that is gone is unknown"


def test_what_one_of_its_devices_does_not_tell_is_not_known_of_all() -> None:
    use = Use(frozenset({7}), 100.0, 5.0)
    quiet = Device(0, "GPU-a", 0.0, 10.0, {7: 4.0}, None)
    busy = Device(1, "GPU-b", 90.0, 20.0, {8: 4.0}, None)
    silent = Device(2, "GPU-c", None, None, None, "lost")
    assert chosen([quiet, busy, silent], None, use) == [quiet]
    assert chosen([busy, silent], None, use) == [busy, silent]
    assert visible([quiet, busy, silent], "1, GPU-c") == [busy, silent]
    assert visible([quiet], "") == []
    both = look(1.0, use, [quiet, busy])
    assert (both["use_pct"], both["vram_mb"], both["why"]) == (90.0, 24.0, None)
    ill = look(1.0, use, [quiet, silent])
    assert (ill["use_pct"], ill["vram_mb"], ill["why"]) == (None, None, "GPU 2: lost")
    assert look(1.0, Use(frozenset({7}), 1.0, None), [quiet])["why"] == "its processes cannot be read"
