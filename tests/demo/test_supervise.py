"""The supervisor: everything it started ends with it, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flightdeck import lifeline
from flightdeck.lifeline import Line
from flightdeck.plan import Plan, Program
from tests.support import Processes, eventually

SLEEPER = (sys.executable, "-c", "import time; time.sleep(600)")
STUBBORN = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
)


@pytest.fixture
def lines() -> Iterator[list[Line]]:
    opened: list[Line] = []
    yield opened
    for line in opened:
        line.end("stop", 10.0)
        line.close()


def begin(tmp_path: Path, lines: list[Line], *programs: Program, stop_s: float = 3.0) -> Line:
    line = lifeline.start(Plan(programs, str(tmp_path / "run"), stop_s=stop_s))
    lines.append(line)
    return line


def pid_of(line: Line, name: str) -> int | None:
    return next(p["pid"] for p in line.ask("status")["programs"] if p["name"] == name)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_what_dies_is_started_again_with_growing_pauses(tmp_path: Path, lines: list[Line]) -> None:
    line = begin(
        tmp_path, lines, Program("dies", (sys.executable, "-c", "raise SystemExit(3)")), Program("stays", SLEEPER)
    )
    stays = eventually(lambda: pid_of(line, "stays"))
    status = eventually(
        lambda: next((p for p in line.ask("status")["programs"] if p["name"] == "dies" and p["restarts"] >= 2), None)
    )
    assert status["last_exit"] == 3
    assert pid_of(line, "stays") == stays


def test_stop_ends_everything_and_waits_for_it(tmp_path: Path, lines: list[Line]) -> None:
    line = begin(tmp_path, lines, Program("a", SLEEPER), Program("b", SLEEPER))
    pids = [eventually(lambda n=name: pid_of(line, n)) for name in ("a", "b")]  # type: ignore[misc]
    assert line.end("stop", 10.0)
    assert all(gone(pid) for pid in pids if pid)


def test_a_program_that_ignores_sigterm_is_killed(tmp_path: Path, lines: list[Line]) -> None:
    line = begin(tmp_path, lines, Program("stubborn", STUBBORN), stop_s=0.5)
    pid = eventually(lambda: pid_of(line, "stubborn"))
    eventually(lambda: (tmp_path / "run/log/stubborn.log").read_text() == "up\n")
    assert line.end("stop", 10.0)
    assert pid and gone(pid)


def test_a_deck_that_is_killed_takes_everything_with_it(tmp_path: Path, processes: Processes) -> None:
    script = (
        "import sys, time; from flightdeck import lifeline as s, plan as p;"
        f"line = s.start(p.Plan((p.Program('a', {SLEEPER!r}),), {str(tmp_path / 'run')!r}, stop_s=2.0));"
        "print(line.pid, flush=True); time.sleep(600)"
    )
    deck = processes.spawn([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert deck.stdout is not None
    supervisor = int(deck.stdout.readline())
    deck.stdout.close()
    other = eventually(lambda: lifeline.attach(tmp_path / "run"))
    program = eventually(lambda: pid_of(other, "a"))
    other.close()
    deck.kill()
    eventually(lambda: gone(supervisor) and program is not None and gone(program), 15)


def test_a_killed_supervisor_takes_its_programs_with_it(tmp_path: Path, lines: list[Line]) -> None:
    line = begin(tmp_path, lines, Program("a", SLEEPER))
    pid = eventually(lambda: pid_of(line, "a"))
    assert line.pid is not None
    os.kill(line.pid, signal.SIGKILL)
    eventually(lambda: pid is not None and gone(pid), 10)


def test_left_alone_it_keeps_working_and_can_be_stopped_later(tmp_path: Path, processes: Processes) -> None:
    script = (
        "import sys; from flightdeck import lifeline as s, plan as p;"
        f"line = s.start(p.Plan((p.Program('a', {SLEEPER!r}),), {str(tmp_path / 'run')!r}, stop_s=2.0));"
        "line.ask('leave'); line.close()"
    )
    first = processes.spawn([sys.executable, "-c", script])
    assert first.wait(30) == 0
    later = eventually(lambda: lifeline.attach(tmp_path / "run"))
    try:
        pid = eventually(lambda: pid_of(later, "a"))
        assert later.ask("own")["owned"]
    finally:
        assert later.end("stop", 10.0)
        later.close()
    assert pid and gone(pid)
    assert lifeline.attach(tmp_path / "run") is None


def test_the_plan_is_readable_by_its_owner_only(tmp_path: Path, lines: list[Line]) -> None:
    begin(tmp_path, lines, Program("a", SLEEPER, {"FLIGHTDECK_DB_URL": "postgresql://u:secret@h/d"}))
    assert (tmp_path / "run/plan.json").stat().st_mode & 0o077 == 0


def test_garbage_on_the_wire_is_answered_and_changes_nothing(tmp_path: Path, lines: list[Line]) -> None:
    line = begin(tmp_path, lines, Program("a", SLEEPER))
    pid = eventually(lambda: pid_of(line, "a"))
    assert line.ask("explode")["programs"]
    assert pid_of(line, "a") == pid


def test_a_signal_while_the_box_is_being_joined_does_not_lose_what_was_started() -> None:
    started = None
    with pytest.raises(SystemExit) as ended:
        with lifeline.signals_unwind(0) as unwinding:
            with unwinding.held():
                os.kill(os.getpid(), signal.SIGTERM)
                started = "a supervisor"
            raise AssertionError("the signal was swallowed")
    assert (ended.value.code, started) == (0, "a supervisor")
    with pytest.raises(SystemExit) as ended, lifeline.signals_unwind():
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM
