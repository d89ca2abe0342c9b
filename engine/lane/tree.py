"""Killing an executor with everything it started, and the guard that does so when the lane itself was killed.

Only the standard library: this file also runs as a program (the guard), without the rest of the house.

Four nets, because each has a hole: the process group (a child may leave it), the parents (an orphan has none), the
environment cookie (a child may clean its environment), and the lane as subreaper (orphans become its children, so that
they can be told from strangers). Signals go through pidfds, so that a recycled pid is never hit.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

COOKIE = "FLIGHTDECK_SLOT"  # <incarnation>.<slot>.<count>; the guard looks for <incarnation>.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PF_EXITING = 0x4


@dataclass(frozen=True)
class Target:
    """An executor to kill: its pid (also its process group) and its cookie."""

    pid: int
    cookie: str


def prctl(option: int, value: int) -> bool:
    """Linux prctl; False where it does not exist or is refused."""
    try:
        return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def become_subreaper() -> bool:
    """Orphans of our executors become our children instead of init's."""
    return prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> bool:
    """SIGKILL for this process when the thread that made it ends."""
    return prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(frozen=True)
class Stat:
    """What /proc/PID/stat says; ``started`` in clock ticks since boot."""

    state: str
    parent: int
    flags: int
    started: int

    @property
    def over(self) -> bool:
        """Dead, or on its way out."""
        return self.state in "ZX" or bool(self.flags & _PF_EXITING)


def stat_of(pid: int) -> Stat | None:
    """None when the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return Stat(fields[0].decode(), int(fields[1]), int(fields[6]), int(fields[19]))


def is_exiting(pid: int) -> bool:
    """The process is on its way out, though its memory (seconds, for many GB) is not yet freed."""
    stat = stat_of(pid)
    return stat is None or stat.over


def cookie_of(pid: int) -> str | None:
    """The slot cookie in the environment that the process was started with."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read()
    except OSError:
        return None
    for entry in environment.split(b"\0"):
        if entry.startswith(COOKIE.encode() + b"="):
            return entry.partition(b"=")[2].decode(errors="replace")
    return None


def _table() -> dict[int, Stat]:
    """Every process there is now."""
    found = {int(name): stat_of(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    return {pid: stat for pid, stat in found.items() if stat is not None}


def _kill(pid: int) -> None:
    """SIGKILL by pidfd; a process that is gone already is fine."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)


def _kill_if(pid: int, prefixes: tuple[str, ...]) -> bool:
    """SIGKILL if the cookie still fits once the pidfd pins the process."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if (cookie := cookie_of(pid)) is None or not cookie.startswith(prefixes):
            return False
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def _descendants(table: dict[int, Stat], roots: Collection[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, stat in table.items():
        children.setdefault(stat.parent, []).append(pid)
    found: list[int] = []
    todo = list(roots)
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def sweep(prefixes: Iterable[str], spare: Collection[int] = (), since: int = 0, rounds: int = 5) -> int:
    """Kill every process whose cookie starts with one of ``prefixes``; repeated until a round finds none.

    ``since``: only processes that started at that tick or later are looked at. Returns how many were killed.
    """
    wanted = tuple(prefixes)
    killed = 0
    strangers: set[tuple[int, int]] = set()
    for _ in range(rounds):
        found = 0
        for pid, stat in _table().items():
            if (
                pid in spare
                or pid == os.getpid()
                or stat.over
                or stat.started < since
                or (pid, stat.started) in strangers
            ):
                continue
            cookie = cookie_of(pid)
            if cookie is not None and cookie.startswith(wanted) and _kill_if(pid, wanted):
                found += 1
            else:
                strangers.add((pid, stat.started))
        killed += found
        if not found:
            break
    return killed


def kill_trees(targets: Collection[Target]) -> None:
    """Kill executors and what they started. The executors must not have been reaped: their pids are still theirs."""
    if not targets:
        return
    roots = [target.pid for target in targets]
    table = _table()
    below = _descendants(table, roots)  # while they still have their parents
    for pid in roots:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)  # had it no group of its own yet
    for pid in below:
        _kill(pid)
    since = min((table[pid].started for pid in roots if pid in table), default=0)
    sweep([target.cookie for target in targets], spare=roots, since=since)


def reap_orphans(known: Collection[int]) -> int:
    """Collect ended processes that we adopted as subreaper, each by its own pid; ``known`` children are left alone."""
    reaped = 0
    for pid, stat in _table().items():
        if pid not in known and stat.parent == os.getpid() and stat.state == "Z":
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)
                reaped += 1
    return reaped


def kill_adopted(known: Collection[int], rounds: int = 5) -> int:
    """Kill all that descends from this process but ``known``. With every executor gone, that is what executors left
    behind in a session of its own and without our cookie (a daemon): as subreaper we are its parent. How many."""
    killed = 0
    for _ in range(rounds):
        table = _table()
        roots = [
            pid for pid, stat in table.items() if stat.parent == os.getpid() and pid not in known and not stat.over
        ]
        if not roots:
            break
        for pid in [*roots, *_descendants(table, roots)]:
            _kill(pid)
        killed += len(roots)
    return killed


def guard(life_fd: int, prefix: str) -> None:
    """Wait for the lane's end of the pipe to close, then kill whatever still carries the lane's cookie."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    poller = select.poll()
    poller.register(life_fd, select.POLLIN)
    while not any(events & (select.POLLHUP | select.POLLERR) for _, events in poller.poll()):
        os.read(life_fd, 4096)
    for _ in range(20):  # a process may be forking while it is swept: look again until nothing is found twice
        if not sweep([prefix]):
            time.sleep(0.05)
            if not sweep([prefix]):
                return


if __name__ == "__main__":
    guard(int(sys.argv[1]), sys.argv[2])
