"""Child processes: bounded by time, logged to a file, ended by their own pid and never by name."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks.harness import BenchError

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
_started: list[Child] = []


class Child:
    """A process in a session of its own; what it prints goes to ``log``."""

    def __init__(self, args: Sequence[str], log: Path, env: Mapping[str, str] | None = None):
        self.args, self.log = list(args), log
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                self.args,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            )
        _started.append(self)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def name(self) -> str:
        return " ".join(Path(a).name for a in self.args[:3])

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def wait(self, timeout_s: float) -> None:
        """Wait for a clean end; BenchError with the log's last line when it fails or takes longer."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.stop(0.5)
            raise BenchError(f"{self.name}: not done within {timeout_s:.0f} s") from None
        if code:
            raise BenchError(f"{self.name}: exit {code}: {self.tail()}")

    def check(self) -> None:
        """BenchError when it has ended."""
        if self.process.poll() is not None:
            raise BenchError(f"{self.name}: ended with {self.process.returncode}: {self.tail()}")

    def stop(self, grace_s: float = 10.0) -> None:
        """SIGTERM, then SIGKILL to its session; returns when it is gone."""
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def tail(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "(it printed nothing)"


def stop_all() -> None:
    """End everything that was started here."""
    while _started:
        _started.pop().stop(1.0)


def run(args: Sequence[str], log: Path, timeout_s: float, env: Mapping[str, str] | None = None) -> None:
    """Run to the end, within ``timeout_s``."""
    child = Child(args, log, env)
    try:
        child.wait(timeout_s)
    finally:
        child.stop(0.5)


def script(name: str) -> str:
    """One of our console scripts, beside the running Python."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise BenchError(f"{name} is not installed beside {sys.executable}: run make bench")
    return str(path)


def until(look: Callable[[], T], timeout_s: float, what: str, every_s: float = 0.05, child: Child | None = None) -> T:
    """Poll until ``look`` is truthy; BenchError after ``timeout_s``, or when ``child`` has ended."""
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        if child is not None:
            child.check()
        if time.monotonic() > deadline:
            raise BenchError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(every_s)
    return found
