"""The guard's program: it starts the lane's executors, so that it is above whatever they start, and outlives the lane
just long enough to kill all of that.

Only the standard library: it runs as a program of its own, small enough to fork in a millisecond, without the house.

As subreaper the guard inherits every orphan below it, whatever its session and its environment. Executors are
subreapers too, so that an orphan stays below its executor as long as that lives. Hence a child of the guard that it did
not start was left behind by an executor that is dead: it is killed at sight. And when the lane's end of the socket
closes, everything below the guard goes.

Messages (one packet each): lane to guard ``{"start": {...}}`` with the descriptors and, as the first one, a file with the
JSON of what to run; ``{"forget": pid}``: reap this one, now or when it ends. Guard to lane ``{"pid": n}``, ``{"error": text}``.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from types import FrameType
from typing import Any

if __name__ == "__main__":  # as a program it has its own directory only, and that behind the standard library
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import cgroup  # type: ignore[import-not-found]
    import tree  # type: ignore[import-not-found]
else:
    from engine.lane import cgroup, tree

MAX_FDS = 32
AGAIN_S = 0.05  # between looks at what an executor left, while there is any
LOOKS = 50  # at once
STUBBORN = 20  # looks after which what does not die is looked at rarely
RARELY_S = 2.0
FAREWELL_S = 10.0  # for the last sweep
_FLAGS = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC


class Nursery:
    """``lane``: the socket; ``prefix``: of the lane's cookies; ``group``: the lane's cgroup, or nothing."""

    def __init__(self, lane: socket.socket, prefix: str, group: str) -> None:
        self._lane, self._prefix, self._group = lane, prefix, group
        self._started: set[int] = set()  # executors that the lane has not forgotten
        self._forgotten: set[int] = set()  # to be reaped
        self._woken, self._wake = os.pipe()
        for fd in (self._woken, self._wake):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, self._on_child)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def _on_child(self, number: int, frame: FrameType | None) -> None:
        """The wake-up descriptor says it."""

    def serve(self) -> None:
        """Until the lane is gone."""
        poller = select.poll()
        poller.register(self._lane, select.POLLIN)
        poller.register(self._woken, select.POLLIN)
        busy = 0  # looks in a row that found something to kill
        while True:
            pause = None if not busy else AGAIN_S if busy < STUBBORN else RARELY_S
            ready = dict(poller.poll(None if pause is None else pause * 1000))
            if self._woken in ready:
                with contextlib.suppress(OSError):
                    os.read(self._woken, 4096)
            if self._lane.fileno() in ready and not self._hear():
                return
            busy = busy + 1 if self._tidy() else 0

    def _hear(self) -> bool:
        """One message; False when the lane is gone."""
        try:
            text, ancillary, _, _ = self._lane.recvmsg(4096, socket.CMSG_SPACE(MAX_FDS * 4), _FLAGS)
        except BlockingIOError:
            return True
        except OSError:
            return False
        fds = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        if not text:
            return False
        message = json.loads(text)
        if "forget" in message:
            self._started.discard(int(message["forget"]))
            self._forgotten.add(int(message["forget"]))
        else:
            self._answer(list(fds))
        return True

    def _answer(self, fds: list[int]) -> None:
        try:
            with open(fds[0], "rb", closefd=False) as file:
                pid = self._start(json.load(file), fds[1:])
            self._started.add(pid)
            answer: dict[str, Any] = {"pid": pid}
        except (OSError, ValueError, KeyError, IndexError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        finally:
            for fd in fds:
                os.close(fd)
        with contextlib.suppress(OSError):  # the lane is gone: the next poll says so
            self._lane.send(json.dumps(answer).encode())

    def _start(self, what: dict[str, Any], fds: list[int]) -> int:
        """Fork and exec ``args`` with ``env``; ``fds`` become the numbers ``numbers``, all others are closed."""
        numbers = [int(number) for number in what["numbers"]]
        if len(numbers) != len(fds):
            raise ValueError(f"{len(fds)} descriptors for {len(numbers)} numbers")
        failed, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            told = _move(told, max([*numbers, 2]) + 1)
            try:
                _become(what, fds, numbers)
            except BaseException as error:
                os.write(told, f"{type(error).__name__}: {error}"[:500].encode())
            finally:
                os._exit(127)
        os.close(told)
        with open(failed, "rb") as file:
            said = file.read().decode(errors="replace")
        if said:
            os.waitpid(pid, 0)
            raise OSError(said)
        return pid

    # --- what is left ---

    def _tidy(self) -> bool:
        """Reap what may be, kill what dead executors have left. True when there may be more of that."""
        for _ in range(LOOKS):
            left = []
            there = tree.own_children()
            for pid in there:
                if pid in self._started:
                    continue
                with contextlib.suppress(OSError):
                    if os.waitpid(pid, os.WNOHANG)[0]:
                        self._forgotten.discard(pid)
                    elif pid not in self._forgotten:
                        left.append(pid)
            tree.kill_all(left)  # what they had started is ours then, and met in the next look
            if not left:
                break
        self._forgotten.intersection_update(there)
        return bool(left)

    def farewell(self) -> None:
        """The lane is gone: kill everything below, and whatever carries its cookie; then again, until there is nothing."""
        deadline = time.monotonic() + FAREWELL_S
        quiet = 0
        while quiet < 2 and time.monotonic() < deadline:
            if self._group:
                cgroup.kill(self._group)
            table = tree.processes()
            below = [pid for pid in tree.descendants(table, [os.getpid()]) if not table[pid].over]
            tree.kill_all(below)
            swept = tree.sweep([self._prefix])
            while True:
                try:
                    if os.waitpid(-1, os.WNOHANG)[0] == 0:  # nobody asks for their exit codes any more
                        break
                except ChildProcessError:
                    break
            quiet = 0 if below or swept else quiet + 1
            time.sleep(0.01 if quiet == 0 else 0.05)
        if self._group:
            cgroup.end(self._group)


def _become(what: dict[str, Any], fds: list[int], numbers: list[int]) -> None:
    """In the child: what it is to be."""
    os.setsid()
    if what.get("group"):
        cgroup.enter(what["group"])
    signal.set_wakeup_fd(-1)
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
        signal.signal(name, signal.SIG_DFL)  # what is ignored stays ignored in the next program
    above = max([*numbers, 2]) + 1
    high = [_move(fd, above) for fd in fds]
    for fd in set(fds):
        os.close(fd)
    for fd, number in zip(high, numbers, strict=True):
        os.dup2(fd, number)  # which makes it inheritable
    os.execve(what["args"][0], what["args"], what["env"])


def _move(fd: int, least: int) -> int:
    """A copy with a number of at least ``least`` that an exec closes."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    tree.become_subreaper()
    lane = socket.socket(fileno=int(sys.argv[1]))
    lane.set_inheritable(False)
    nursery = Nursery(lane, sys.argv[2], sys.argv[3])
    try:
        nursery.serve()
    finally:
        nursery.farewell()


if __name__ == "__main__":
    main()
