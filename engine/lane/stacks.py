"""Where an executor stands, from its faulthandler: evidence for the event before it is killed.

The handler runs in C, so it answers with the GIL held; it writes to the executor's stderr, which is a file of ours.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import time

LIMIT = 4000  # characters
WAIT_S = 0.1
_STEP_S = 0.005
_THREAD = re.compile(rb"^(?:Current thread|Thread|Stack) .*\(most recent call first\):", re.MULTILINE)


def dump(pid: int, limit: int = LIMIT, wait_s: float = WAIT_S) -> str | None:
    """The stacks of all threads of an executor, the one that runs first; None when they cannot be had in time."""
    path = f"/proc/{pid}/fd/2"
    fd = None
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None  # its own choice: reading a pipe would take what is meant for others
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        before = os.fstat(fd).st_size
        os.kill(pid, signal.SIGUSR2)
        return _read(fd, before, limit, wait_s)
    except OSError:
        return None
    finally:
        if fd is not None:
            os.close(fd)


def _read(fd: int, before: int, limit: int, wait_s: float) -> str | None:
    """What was written since, once nothing more comes or the time is up."""
    deadline = time.monotonic() + wait_s
    size = before
    while time.monotonic() < deadline:
        time.sleep(_STEP_S)
        now = os.fstat(fd).st_size
        if now == size and now > before:
            break
        size = now
    with contextlib.suppress(OSError):
        return cut(os.pread(fd, 256 * 1024, before), limit)
    return None


def cut(written: bytes, limit: int) -> str | None:
    """The stacks in what was written, the thread that took the signal (the job's) in front, at most ``limit`` long."""
    first = _THREAD.search(written)
    if first is None:
        return None
    written = written[first.start() :]
    current = written.find(b"Current thread ")
    if current > 0:
        written = written[current:].rstrip() + b"\n\n" + written[:current]
    return written.decode("utf-8", "replace").strip()[:limit]
