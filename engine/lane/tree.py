"""Killing an executor with everything it started.

Only the standard library: the guard's program (nursery.py) uses this too, without the rest of the house.

Several nets, because each has a hole: the process group (a child may leave it), the parents (an executor is a subreaper,
so orphans stay below it while it lives, and below the guard when it does not), the environment cookie (a child may
clean its environment), the control group (not everybody may make one). Signals go through pidfds, so that a recycled
pid is never hit.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass

if __name__ == "tree":
    import cgroup  # type: ignore[import-not-found]
else:
    from engine.lane import cgroup

COOKIE = "FLIGHTDECK_SLOT"  # <incarnation>.<slot>.<count>; the guard looks for <incarnation>.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PF_EXITING = 0x4


@dataclass(frozen=True)
class Target:
    """An executor to kill: its pid (also its process group), its cookie, its control group if it has one."""

    pid: int
    cookie: str
    group: str | None = None


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
    """What /proc/PID/stat says; ``started`` in clock ticks since boot, ``status`` as waitpid gives it (once it is dead)."""

    state: str
    parent: int
    flags: int
    started: int
    status: int = 0

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
    return Stat(fields[0].decode(), int(fields[1]), int(fields[6]), int(fields[19]), int(fields[49]))


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


def processes() -> dict[int, Stat]:
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


def kill_all(pids: Iterable[int]) -> None:
    """SIGKILL for each."""
    for pid in pids:
        _kill(pid)


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


def own_children() -> list[int]:
    """The children of this process, zombies included. Fast where the kernel lists them: what hops from fork to fork is
    met before its next hop."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return [pid for pid, stat in processes().items() if stat.parent == os.getpid()]


def descendants(table: dict[int, Stat], roots: Collection[int]) -> list[int]:
    """What these have started, and what that has; the roots are not in it."""
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
        for pid, stat in processes().items():
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
    table = processes()
    below = descendants(table, roots)  # while they still have their parents
    for target in targets:
        if target.group:
            cgroup.kill(target.group)
    for pid in roots:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)  # had it no group of its own yet
    kill_all(below)
    since = min((table[pid].started for pid in roots if pid in table), default=0)
    sweep([target.cookie for target in targets], spare=roots, since=since)


def reap_orphans(known: Collection[int]) -> int:
    """Collect ended processes that we adopted as subreaper, each by its own pid; ``known`` children are left alone."""
    reaped = 0
    for pid, stat in processes().items():
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
        table = processes()
        roots = [
            pid for pid, stat in table.items() if stat.parent == os.getpid() and pid not in known and not stat.over
        ]
        if not roots:
            break
        kill_all([*roots, *descendants(table, roots)])
        killed += len(roots)
    return killed
