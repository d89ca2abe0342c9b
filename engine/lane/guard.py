"""The lane's guard: a tiny process that starts the executors and outlives a killed lane just long enough to kill what
they left running (see nursery.py). The life pipe takes each executor's process group at once; the guard takes the rest.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from engine import config
from engine.lane import cgroup, nursery, tree

log = logging.getLogger("engine.lane")
ANSWER_S = 10.0  # for a start; then the guard is taken for stuck


class Child:
    """An executor that the guard started. Its exit code is read off the zombie, which the guard keeps for us."""

    def __init__(self, guard: Guard, pid: int, group: str | None) -> None:
        self._guard = guard
        self.pid = pid
        self.group = group
        self._code: int | None = None

    def poll(self) -> int | None:
        """The return code (-N: signal N) once it is dead."""
        if self._code is None:
            try:
                done, status = os.waitpid(self.pid, os.WNOHANG)  # ours, if the guard that started it is dead
                if done:
                    self._code = os.waitstatus_to_exitcode(status)
                    self._guard.forget(self.pid)
            except ChildProcessError:
                stat = tree.stat_of(self.pid)
                if stat is None or stat.state in "ZX":
                    self._code = -int(signal.SIGKILL) if stat is None else os.waitstatus_to_exitcode(stat.status)
                    self._guard.forget(self.pid)
        return self._code

    def wait(self, timeout: float) -> int:
        """The return code. Raises subprocess.TimeoutExpired after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() >= deadline:
                self._guard.forget(self.pid)  # whenever it ends
                raise subprocess.TimeoutExpired("executor", timeout)
            time.sleep(0.001)
        return code


class Guard:
    """Started beside the lane; ends when the lane's end of its socket closes. For the loop's thread."""

    def __init__(self, incarnation: str) -> None:
        self._prefix = f"{incarnation}."
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._group: str | None = None  # the control group of the lane's executors
        self._groups: dict[int, str] = {}  # of executors that were started and not forgotten
        self.replaced = False  # one died: what it was above of is below the lane now

    def start(self) -> None:
        """Start the process; without one (no memory, no pids) no executor can be started, and the lane tries again."""
        if self._group is None and config.get("cgroups"):
            self._group = cgroup.make_lane_group()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(ANSWER_S)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", nursery.__file__, str(theirs.fileno()), self._prefix, self._group or ""],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            log.warning("the lane's guard cannot be started (%s)", error)
            self._close()
        finally:
            theirs.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def spawn(self, args: Sequence[str], env: Mapping[str, str], fds: Mapping[int, int], name: str) -> Child:
        """Start a program in a session of its own: ``fds`` are its descriptors, number there to number here; ``name``
        tells its control group from others. Raises OSError."""
        self.check()
        if self._socket is None:
            raise OSError("there is no guard to start it")
        group = f"{self._group}/{name}" if self._group else None
        if group is not None and not cgroup.make(group):
            group = None
        what = {"args": list(args), "env": dict(env), "numbers": list(fds), "group": group}
        given = os.memfd_create("executor", os.MFD_CLOEXEC)
        try:
            with open(given, "w", closefd=False) as file:
                json.dump(what, file)
            os.lseek(given, 0, os.SEEK_SET)
            socket.send_fds(self._socket, [b'{"start": true}'], [given, *fds.values()])
            answer = json.loads(self._socket.recv(4096) or b"null")
        except (OSError, ValueError) as error:
            self._give_up()
            raise OSError(f"the lane's guard does not answer ({error})") from error
        finally:
            os.close(given)
        if answer is None:
            self._give_up()
            raise OSError("the lane's guard is gone")
        if "pid" not in answer:
            raise OSError(answer["error"])
        child = Child(self, int(answer["pid"]), group)
        if group is not None:
            self._groups[child.pid] = group
        return child

    def forget(self, pid: int) -> None:
        """This executor is dead, or given up: the guard may reap it."""
        self._groups.pop(pid, None)
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.send(json.dumps({"forget": pid}).encode())

    def check(self) -> None:
        """Start it again if somebody killed it; remove control groups that are empty."""
        if self._process is None or self._process.poll() is not None:
            if self._process is not None:
                self.replaced = True
                log.warning("the lane's guard is gone; starting another")
            self._close()
            self.start()
        if self._group is not None:
            cgroup.remove_empty(self._group, frozenset({self._group, *self._groups.values()}))

    def end(self) -> None:
        """Let it sweep a last time and leave."""
        self._close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=2.0)

    def _give_up(self) -> None:
        """It is stuck or dead. Its executors live on, as children of the lane."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=2.0)
        self._close()

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
