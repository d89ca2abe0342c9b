"""The deck's end of a supervisor: starting one, joining one, asking it to stop, and never forgetting it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flightdeck.plan import Plan, control_path


def start(plan: Plan, env: Mapping[str, str] | None = None) -> Line:
    """Start a supervisor for ``plan`` in a process of its own, with this process as its owner.

    ``env``: the environment of everything in the plan, default ours.
    """
    directory = Path(plan.directory)
    directory.mkdir(parents=True, exist_ok=True)
    plan_path = directory / "plan.json"
    plan_path.unlink(missing_ok=True)
    with os.fdopen(os.open(plan_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(plan.to_json())  # it holds the database's URL, password and all
    ours, theirs = socket.socketpair()
    with (directory / "supervisor.log").open("wb") as output:
        process = subprocess.Popen(
            (sys.executable, "-m", "flightdeck.supervise", str(plan_path), str(theirs.fileno())),
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    theirs.close()
    return Line(ours, process)


def attach(directory: Path) -> Line | None:
    """Connect to the supervisor that runs in ``directory``; None if there is none."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(2.0)
    try:
        with control_path(directory) as path:
            sock.connect(path)
    except OSError:
        sock.close()
        return None
    return Line(sock)


class Line:
    """The deck's end of a connection to a supervisor."""

    def __init__(self, sock: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self._sock = sock
        self._process = process
        self._rest = b""

    def ask(self, what: str, timeout_s: float = 3.0) -> dict[str, Any]:
        """Send one request and return the status. Raises OSError (also on a timeout)."""
        self._sock.settimeout(timeout_s)
        self._sock.sendall(json.dumps({"do": what}).encode() + b"\n")
        while b"\n" not in self._rest:
            if not (data := self._sock.recv(65536)):
                raise ConnectionResetError("the supervisor is gone")
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self, what: str, timeout_s: float) -> bool:
        """Ask to ``stop`` or ``drain`` and wait until the supervisor has ended; False if it has not in time."""
        deadline = time.monotonic() + timeout_s
        pid: int | None = None
        try:
            pid = self.ask(what)["pid"]
            while time.monotonic() < deadline:
                self._sock.settimeout(max(0.1, deadline - time.monotonic()))
                if not self._sock.recv(65536):
                    break
        except TimeoutError:
            return False
        except OSError:
            pass  # gone already
        if self._process is not None:
            try:
                self._process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return False
        while self._process is None and pid is not None and _runs(pid):
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        return True

    def alive(self) -> bool:
        """Whether the supervisor still answers."""
        try:
            self.ask("status")
        except OSError:
            return False
        return True

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def close(self) -> None:
        self._sock.close()


class Unwinding:
    """What :func:`signals_unwind` yields: moments in which a signal has to wait."""

    def __init__(self, code: int | None) -> None:
        self._code = code
        self._waiting: int | None = None
        self._held = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """A signal that comes inside the block is raised at its end: what was started there has a name by then."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._waiting is not None:
            raise self._exit(self._waiting)

    def on_signal(self, number: int) -> None:
        """Raise, or remember. For the handler."""
        if not self._held:
            raise self._exit(number)
        self._waiting = number

    def _exit(self, number: int) -> SystemExit:
        return SystemExit(128 + number if self._code is None else self._code)


@contextlib.contextmanager
def signals_unwind(code: int | None = None) -> Iterator[Unwinding]:
    """SIGTERM, SIGINT and SIGHUP raise SystemExit in the main thread, so that whoever started something also stops it.

    ``code``: the exit code, by default 128 + signal. After the first one they are ignored: the stopping is bounded.
    """
    unwinding = Unwinding(code)

    def unwind(number: int, _frame: object) -> None:
        for other in before:
            signal.signal(other, signal.SIG_IGN)
        unwinding.on_signal(number)

    before = {n: signal.signal(n, unwind) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield unwinding
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _runs(pid: int) -> bool:
    """Whether a process that is not our child still runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
