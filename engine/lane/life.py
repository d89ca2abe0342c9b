"""The life pipe: an executor dies with its lane, whatever it is doing."""

from __future__ import annotations

import fcntl
import os
import select
import signal

from engine.lane import tree

_F_SETSIG = 10


def die_with_lane(life_fd: int, parent_pid: int | None) -> None:
    """Arrange that the kernel kills this process group when the lane's end of the life pipe closes.

    Works with the GIL held, or stopped. For user code that closes descriptors there is the guard, which started this
    process and kills what is below it; without one, when ``parent_pid`` is the lane's, the parent-death signal.
    """
    fcntl.fcntl(life_fd, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life_fd, fcntl.F_SETOWN, -os.getpgid(0))
    fcntl.fcntl(life_fd, fcntl.F_SETFL, fcntl.fcntl(life_fd, fcntl.F_GETFL) | os.O_ASYNC)
    os.set_inheritable(life_fd, False)
    if parent_pid is not None:
        tree.die_with_parent()
    poller = select.poll()
    poller.register(life_fd, select.POLLIN)
    if (parent_pid is not None and os.getppid() != parent_pid) or any(
        events & select.POLLHUP for _, events in poller.poll(0)
    ):
        os._exit(0)  # it died before all of this was set up
