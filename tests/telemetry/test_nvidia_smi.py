"""The text of nvidia-smi: reading it, and running the program without waiting for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.telemetry.probes import nvidia_smi
from engine.telemetry.probes.nvidia import NvidiaProbe
from engine.telemetry.probes.nvidia_smi import Smi, find, parse
from tests.support import eventually
from tests.telemetry import smi, trees
from tests.telemetry.nvml import FakeNvml, ordinary
from tests.telemetry.smi import PromptSmi

GB10 = {
    "sw_power_ms": "0 us",
    "sync_boost_ms": "0 us",
    "sw_thermal_ms": "173453251 us",
    "hw_thermal_ms": "403805 us",
    "hw_brake_ms": "0 us",
}


def test_counters_by_card_and_cause() -> None:
    """The heading of the reasons is not that of their counters; a bus id is written as sysfs writes it."""
    found = parse(smi.text({"0000000F:01:00.0": GB10, "00000000:41:00.0": GB10 | {"hw_brake_ms": "7 us"}}))
    assert found == {
        "000f:01:00.0": {
            "sw_power_ms": 0, "sync_boost_ms": 0, "sw_thermal_ms": 173453251, "hw_thermal_ms": 403805, "hw_brake_ms": 0,
        },
        "0000:41:00.0": {
            "sw_power_ms": 0, "sync_boost_ms": 0, "sw_thermal_ms": 173453251, "hw_thermal_ms": 403805, "hw_brake_ms": 7,
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("said", "microseconds"),
    [
        ("12234991553 us", 12234991553),
        ("4,007,672,629 µs", 4007672629),
        ("1500 ms", 1_500_000),
        ("9000 ns", 9),
        ("3 s", 3_000_000),
        ("N/A", None),
        ("[N/A]", None),
        ("Requested functionality has been deprecated", None),
        ("5 fortnights", None),
        ("-4 us", None),
        ("", None),
    ],
)
def test_the_unit_that_is_printed_counts(said: str, microseconds: int | None) -> None:
    """D9: microseconds are what it says today; what is no time is n/a, never 0."""
    found = parse(smi.text({"00000000:01:00.0": {"sw_power_ms": said}}))
    assert found["0000:01:00.0"]["sw_power_ms"] == microseconds


def test_the_old_heading_and_texts_that_are_none() -> None:
    assert parse(smi.text({"00000000:01:00.0": GB10}, word="Throttle"))["0000:01:00.0"]["hw_thermal_ms"] == 403805
    assert parse("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.") == {}
    assert parse("GPU 00000000:01:00.0\n    Clocks Event Reasons : N/A\n") == {"0000:01:00.0": {}}


PATIENCE_S = 120.0  # with a program that does answer, on a machine that has other things to do


def program(root: Path, script: str) -> str:
    trees.put(root, {"usr/bin/nvidia-smi": f"#!/bin/sh\n{script}"})
    (root / "usr/bin/nvidia-smi").chmod(0o755)
    return find(root) or ""


@pytest.fixture
def run() -> Iterator[Callable[..., Smi]]:
    made: list[Smi] = []

    def start(path: str, **options: float) -> Smi:
        made.append(Smi(path, **options))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_the_program_is_run_and_nobody_waits_for_it(tmp_path: Path, run: Callable[..., Smi]) -> None:
    trees.put(tmp_path, {"printed": smi.text({"0000000F:01:00.0": GB10})})
    path = program(tmp_path, f'[ "$*" = "-q -d PERFORMANCE" ] && while [ ! -e {tmp_path}/go ]; do sleep 0.02; done\n'
                             f"cat {tmp_path}/printed")  # fmt: skip
    asked = run(path, deadline_s=PATIENCE_S)
    assert asked.texts(wanted=True) == {} and asked.texts(wanted=True) == {}, "it has not answered yet"
    trees.put(tmp_path, {"go": ""})
    text = eventually(lambda: asked.texts(wanted=True))["000f:01:00.0"]
    assert text.counters["sw_thermal_ms"] == 173453251 and text.began <= text.mono and asked.error is None


def test_a_wedged_program_is_killed_with_all_that_it_started(tmp_path: Path, run: Callable[..., Smi]) -> None:
    path = program(
        tmp_path, f"sleep 600 & echo $! > {tmp_path}/child.new\nmv {tmp_path}/child.new {tmp_path}/child\nwait"
    )
    asked = run(path, deadline_s=0.3)
    asked.texts(wanted=True)
    eventually(lambda: asked.error)
    assert "no answer within 0.3 s" in (asked.error or "")
    if (tmp_path / "child").exists():  # on a busy machine it is killed before it has started anything
        child = int((tmp_path / "child").read_text())
        eventually(lambda: _gone(child), what="the program's child ends with it")


def _gone(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


def test_closing_ends_a_run_that_is_on(tmp_path: Path, run: Callable[..., Smi]) -> None:
    path = program(tmp_path, f"echo $$ > {tmp_path}/pid.new\nmv {tmp_path}/pid.new {tmp_path}/pid\nexec sleep 600")
    asked = run(path, deadline_s=PATIENCE_S)
    asked.texts(wanted=True)
    pid = int(eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    asked.close()
    eventually(lambda: _gone(pid))
    assert asked.texts(wanted=True) == {}, "and starts none"


@pytest.mark.parametrize(("script", "why"), [("exit 9", "exit 9"), ("echo nonsense", "no throttle counters")])
def test_a_program_that_fails_is_asked_less_and_less(tmp_path: Path, script: str, why: str) -> None:
    now = 0.0
    asked = Smi(program(tmp_path, script), lambda: now, PATIENCE_S)
    runs = 0
    for _ in range(200):
        asked.texts(wanted=True)
        if asked._thread is not None:
            asked._thread.join()
            asked._thread, runs = None, runs + 1
        now += 60.0
    assert why in (asked.error or "")
    assert runs <= 10, "doubling pauses"
    missing = Smi(str(tmp_path / "nothing"), lambda: now)
    missing._work()
    assert "nvidia-smi" in (missing.error or "")


def test_the_pace_follows_from_what_a_run_costs() -> None:
    """A text that is the source every 10 s, or 200 times its run; one that checks after 1 minute, then every 5."""
    now = 0.0
    asked = PromptSmi(lambda: now, lambda: smi.text({"00000000:01:00.0": GB10}))
    assert asked._rest(wanted=True) == 0.0
    asked._work()
    assert (asked._rest(wanted=True), asked._rest(wanted=False)) == (10.0, 60.0)
    asked._work()
    assert asked._rest(wanted=False) == nvidia_smi.CHECK_S
    asked._began = asked._ended - 0.25
    assert asked._rest(wanted=True) == 50.0
    asked._began = asked._ended - 4.0
    assert asked._rest(wanted=True) == asked._rest(wanted=False) == nvidia_smi.REST_MOST_S


def test_it_wakes_no_sleeping_card(tmp_path: Path) -> None:
    """D30: the program would touch every card."""
    now = 1000.0
    cards = ordinary("GPU-a"), ordinary("GPU-b", bus="00000000:02:00.0")
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        device = f"sys/bus/pci/devices/{bus}"
        trees.put(tmp_path, {f"{device}/vendor": "0x10de", f"{device}/class": "0x030000"})
    status = "sys/bus/pci/devices/0000:02:00.0/power/runtime_status"
    trees.put(tmp_path, {status: "suspended", "proc/driver/nvidia/version": "NVRM"})
    probe = NvidiaProbe(tmp_path, 2.0, lambda: FakeNvml(*cards), lambda: now, watch=True)
    asked = probe._smi = PromptSmi(lambda: now, lambda: smi.text({"00000000:01:00.0": GB10}))
    for _ in range(10):
        probe.read()
        now += 2.0
    assert asked.runs == []
    trees.put(tmp_path, {status: "active"})
    probe.read()
    assert asked.runs == [1020.0]
    probe.close()


def test_the_program_is_looked_for_in_its_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find(tmp_path) is None
    trees.put(tmp_path, {"usr/lib/wsl/lib/nvidia-smi": "#!/bin/sh"})
    assert find(tmp_path) is None, "not executable"
    (tmp_path / "usr/lib/wsl/lib/nvidia-smi").chmod(0o755)
    assert find(tmp_path) == f"{tmp_path}/usr/lib/wsl/lib/nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}/usr/lib/wsl/lib{os.pathsep}{os.environ['PATH']}")
    assert find(Path("/")) == f"{tmp_path}/usr/lib/wsl/lib/nvidia-smi"
