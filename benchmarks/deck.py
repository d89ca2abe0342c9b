"""What the deck costs at 210x50: processor time, bytes to the terminal, the first frame, keystrokes.

A real deck on a pseudo-terminal that answers what a real one answers, on a fleet whose boxes sample every 2 s (feeder.py):
three busy boxes, then a hundred with eight GPUs each. Only the deck's own processor time counts. With the three boxes every
process of PostgreSQL is SIGSTOPped at the end: keys must still be answered, and `q` must quit.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import ours
from benchmarks.harness import BenchError, Report, median, percentile
from benchmarks.processes import ROOT, Child, script, until
from benchmarks.server import Server

COLUMNS, ROWS = 210, 50
FRAME = b"\x1b[?2026h"  # a synchronised update begins: one frame
ANSWERS = {b"\x1b[?2026$p": b"\x1b[?2026;2$y", b"\x1b[c": b"\x1b[?62;22c", b"\x1b[6n": b"\x1b[1;1R"}
KEYS = (b"\x1b[B", b"\x1b[A", b"j", b"k", b"\t")


@dataclass(frozen=True)
class Sizes:
    seconds: float = 120.0
    settle_s: float = 20.0
    keys: int = 40
    starts: int = 3


QUICK = Sizes(seconds=15.0, settle_s=10.0, keys=10, starts=1)


class Terminal:
    """A process on a pseudo-terminal; a thread reads what it writes and answers its questions."""

    def __init__(self, args: list[str], env: dict[str, str]) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            args, stdin=slave, stdout=slave, stderr=slave, env=env, cwd=ROOT, start_new_session=True
        )
        os.close(slave)
        self.bytes = self.frames = 0
        self.last_output = 0.0
        self.screen = bytearray()
        self._output = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                ready, _, _ = select.select([self.master], [], [], 0.5)
                data = os.read(self.master, 1 << 16) if ready else b""
            except OSError:
                return
            if ready and not data:
                return
            if data:
                self.last_output = time.monotonic()
                self.bytes += len(data)
                self.frames += data.count(FRAME)
                self.screen = (self.screen + data)[-200_000:]
                for question, answer in ANSWERS.items():
                    if question in data:
                        self.type(answer)
                self._output.set()

    def type(self, keys: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self.master, keys)

    def answer_ms(self, key: bytes, within_s: float = 2.0) -> float:
        """Milliseconds from a key to the next output; waits for a quiet moment first, so that it is the answer."""
        quiet = time.monotonic() + 5
        while time.monotonic() - self.last_output < 0.15 and time.monotonic() < quiet:
            time.sleep(0.01)
        self._output.clear()
        begun = time.monotonic()
        self.type(key)
        if not self._output.wait(within_s):
            return within_s * 1000
        return (self.last_output - begun) * 1000

    def close(self) -> None:
        """Quit; whatever is left of it and its descendants is killed by pid."""
        family = [psutil.Process(self.process.pid)] if psutil.pid_exists(self.process.pid) else []
        for process in list(family):
            with contextlib.suppress(psutil.Error):
                family += process.children(recursive=True)
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(15)
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait()
        os.close(self.master)


def postgres_of(folder: Path) -> list[psutil.Process]:
    """The server whose data directory lies under ``folder``, with its children."""
    for pid_file in folder.rglob("postmaster.pid"):
        postmaster = psutil.Process(int(pid_file.read_text().split()[0]))
        return [postmaster, *postmaster.children(recursive=True)]
    raise BenchError(f"no PostgreSQL found under {folder}")


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def measure(server: Server, report: Report, sizes: Sizes, say: Callable[[str], None]) -> None:
    template = ours.template(server)
    with (
        fleet(server, template, boxes=3, gpus=2) as url,
        tempfile.TemporaryDirectory(prefix="flightdeck-bench-") as home,
    ):
        starts: list[float] = []
        for turn in range(sizes.starts + 1):
            started, terminal = first_frame(url, home, ("box001", "box002", "box003"))
            starts.append(started)
            if turn < sizes.starts:
                terminal.close()
        try:
            report.line(
                "deck", "3 boxes: start to the first full frame", "s", starts[1:], f"the very first {starts[0]:.2f}"
            )
            report.check("deck", "3 boxes: first full frame, s", median(starts[1:]), at_most=1.5)
            time.sleep(sizes.settle_s)
            steady(report, terminal, "3 boxes", sizes, say, percent_at_most=1.0, rate_at_most=2.5)
            keystrokes(report, terminal, server.work, sizes, say)
        finally:
            for process in postgres_of(server.work):
                process.send_signal(signal.SIGCONT)
            terminal.close()
    with (
        fleet(server, template, boxes=100, gpus=8) as url,
        tempfile.TemporaryDirectory(prefix="flightdeck-bench-") as home,
    ):
        started, terminal = first_frame(url, home, ("box001",))
        try:
            report.line("deck", "100 boxes x 8 GPUs: start to the first frame", "s", [started])
            report.check("deck", "100 boxes x 8 GPUs: first frame, s", started, at_most=3.0)
            time.sleep(sizes.settle_s)
            steady(report, terminal, "100 boxes x 8 GPUs", sizes, say, percent_at_most=5.0)
        finally:
            terminal.close()


@contextlib.contextmanager
def fleet(server: Server, template: str, boxes: int, gpus: int) -> Iterator[str]:
    """A database with a fleet at work; its URL."""
    with server.scratch("deck", template) as url:
        log = server.log("feeder")
        args = [sys.executable, "-m", "benchmarks.feeder", "--db", url, "--boxes", str(boxes), "--gpus", str(gpus)]
        feeder = Child(args, log)
        try:
            until(lambda: "ready" in log.read_text(), 300, "the fleet's hour", child=feeder)
            time.sleep(2 * 2.0)
            yield url
            feeder.check()
        finally:
            feeder.stop(3.0)


def first_frame(url: str, home: str, names: Sequence[str]) -> tuple[float, Terminal]:
    """Seconds from the start until these boxes are on the screen, and the terminal."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("FLIGHTDECK_", "TEXTUAL"))}
    env |= {"XDG_DATA_HOME": home, "HOME": home, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    env.pop("NO_COLOR", None)
    begun = time.monotonic()
    terminal = Terminal([script("flightdeck"), "--db", url], env)

    def shown() -> bool:
        if terminal.process.poll() is not None:
            raise BenchError(f"flightdeck ended: {bytes(terminal.screen)[-300:]!r}")
        return all(name.encode() in terminal.screen for name in names)

    try:
        until(shown, 60, "first frame", every_s=0.01)
    except BaseException:
        terminal.close()
        raise
    return time.monotonic() - begun, terminal


def steady(
    report: Report,
    terminal: Terminal,
    name: str,
    sizes: Sizes,
    say: Callable[[str], None],
    percent_at_most: float,
    rate_at_most: float | None = None,
) -> None:
    pid = terminal.process.pid
    cpu, sent, frames, begun = cpu_seconds(pid), terminal.bytes, terminal.frames, time.monotonic()
    time.sleep(sizes.seconds)
    took = time.monotonic() - begun
    percent = (cpu_seconds(pid) - cpu) / took * 100
    rate = (terminal.bytes - sent) / took / 1000
    note = f"over {took:.0f} s at {COLUMNS}x{ROWS}"
    report.line("deck", f"{name}: processor, user and system", "% of a core", [percent], note)
    report.line("deck", f"{name}: to the terminal", "kB/s", [rate])
    report.line("deck", f"{name}: frames", "frames/s", [(terminal.frames - frames) / took])
    report.line("deck", f"{name}: resident", "MB", [psutil.Process(pid).memory_info().rss / 1e6])
    report.check("deck", f"{name}: processor, % of a core", percent, at_most=percent_at_most)
    if rate_at_most is not None:
        report.check("deck", f"{name}: to the terminal, kB/s", rate, at_most=rate_at_most)
    say(f"{name}: {percent:.2f} % of a core, {rate:.2f} kB/s")


def keystrokes(report: Report, terminal: Terminal, home: Path, sizes: Sizes, say: Callable[[str], None]) -> None:
    live = [terminal.answer_ms(KEYS[n % len(KEYS)]) for n in range(sizes.keys)]
    for process in postgres_of(home):
        process.send_signal(signal.SIGSTOP)
    time.sleep(1.0)
    stopped = [terminal.answer_ms(KEYS[n % len(KEYS)]) for n in range(sizes.keys)]
    begun = time.monotonic()
    terminal.type(b"q")
    with contextlib.suppress(BenchError):
        until(lambda: not on_screen(terminal), 10, "end of the deck", every_s=0.02)
    gone = time.monotonic() - begun
    report.line("deck", "key to answer, database live", "ms", [median(live)], f"p95 {percentile(live, 95):.0f} ms")
    report.line(
        "deck", "key to answer, database SIGSTOPped", "ms", [median(stopped)], f"p95 {percentile(stopped, 95):.0f} ms"
    )
    report.line("deck", "q to the end, database SIGSTOPped", "s", [gone])
    report.check("deck", "key to answer, database live, median ms", median(live), at_most=50.0)
    report.check("deck", "key to answer, database SIGSTOPped, median ms", median(stopped), at_most=50.0)
    report.check("deck", "q quits, database SIGSTOPped, s", gone, at_most=5.0)
    say(f"deck: keys {median(live):.0f} ms, database stopped {median(stopped):.0f} ms, q {gone:.1f} s")


def on_screen(terminal: Terminal) -> bool:
    """False once the alternate screen was left or the process has ended."""
    return terminal.process.poll() is None and b"\x1b[?1049l" not in terminal.screen
