"""Executors in control groups (cgroup v2) of their own, where this user may make them: one write kills such a group
whole, however its processes forked, left their session or cleaned their environment.

Only the standard library, without the rest of the house: the guard's program uses it too. Nothing here raises.
"""

from __future__ import annotations

import contextlib
import os
import time

PREFIX = "flightdeck-"


def own_group() -> str | None:
    """The directory of this process's group in the v2 hierarchy; None where there is none."""
    try:
        with open("/proc/self/cgroup") as file:
            path = next((line.rstrip("\n")[3:] for line in file if line.startswith("0::")), None)
        with open("/proc/self/mountinfo") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return None
    for fields in mounts:
        if path is not None and fields[fields.index("-") + 1] == "cgroup2":
            root, at = fields[3], fields[4]
            inside = path if root == "/" else path[len(root) :] if path.startswith(root + "/") or path == root else None
            if inside is not None:
                return (at.rstrip("/") + inside).rstrip("/") or "/"
    return None


def make_lane_group() -> str | None:
    """A group for all executors of this lane, below its own; None where it may not be made, or cannot be killed.

    What lanes of this machine that are dead have left behind is ended first.
    """
    parent = own_group()
    if parent is None:
        return None
    end_stale(parent)
    path = f"{parent}/{PREFIX}{_namespace()}-{os.getpid()}-{_started(os.getpid())}"
    with contextlib.suppress(OSError):
        os.mkdir(path)
        if os.access(f"{path}/cgroup.kill", os.W_OK) and os.access(f"{parent}/cgroup.procs", os.W_OK):
            return path
        os.rmdir(path)
    return None


def make(path: str) -> bool:
    """A group below the lane's."""
    try:
        os.mkdir(path)
    except OSError:
        return os.path.isdir(path)
    return True


def enter(path: str) -> None:
    """Move this process there; it stays where it is when that is refused."""
    with contextlib.suppress(OSError):
        with open(f"{path}/cgroup.procs", "w") as file:
            file.write("0")


def kill(path: str) -> None:
    """SIGKILL for everything in the group and below it, at once and against forks."""
    with contextlib.suppress(OSError):
        with open(f"{path}/cgroup.kill", "w") as file:
            file.write("1")


def remove_empty(path: str, spare: frozenset[str] = frozenset()) -> bool:
    """Remove the groups below ``path`` whose processes are all gone; with no ``spare`` the group itself, too."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False) and entry.path not in spare:
                with contextlib.suppress(OSError):
                    os.rmdir(entry.path)
    if not spare:
        with contextlib.suppress(OSError):
            os.rmdir(path)
    return not os.path.isdir(path)


def end(path: str, seconds: float = 2.0) -> bool:
    """Kill the group and remove it, within ``seconds``; False when the kernel keeps a process (and so the group)."""
    deadline = time.monotonic() + seconds
    while True:
        kill(path)
        if remove_empty(path):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)


def end_stale(parent: str) -> None:
    """End the groups of lanes that died together with their guard."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(parent):
            namespace, _, rest = entry.name.removeprefix(PREFIX).partition("-")
            pid, _, started = rest.partition("-")
            ours = entry.name.startswith(PREFIX) and pid.isdigit() and namespace == _namespace()
            if ours and _started(int(pid)) != started:
                end(entry.path, 0.5)


def _namespace() -> str:
    """Pids mean something within one namespace only."""
    with contextlib.suppress(OSError):
        return str(os.stat("/proc/self/ns/pid").st_ino)
    return "0"


def _started(pid: int) -> str:
    """When a process started, in ticks since boot: with its pid that names it for good. Empty when it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
    return ""
