"""The lane's guard: a tiny process that outlives a killed lane just long enough to kill what executors left running.

The life pipe takes each executor's process group; the guard takes children that left the group (``setsid``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys

from engine.lane import tree

log = logging.getLogger("engine.lane")


class Guard:
    """Started beside the lane; ends when the lane's end of its pipe closes."""

    def __init__(self, incarnation: str) -> None:
        self._prefix = f"{incarnation}."
        self._process: subprocess.Popen[bytes] | None = None
        self._life: int | None = None

    def start(self) -> None:
        """Start the process; without one (no memory, no pids) the lane works all the same."""
        read, self._life = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", tree.__file__, str(read), self._prefix],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(read,),
                start_new_session=True,
            )
        except OSError as error:
            log.warning("the lane's guard cannot be started (%s)", error)
        finally:
            os.close(read)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def check(self) -> None:
        """Start it again if somebody killed it."""
        if self._process is None or self._process.poll() is not None:
            self._close()
            self.start()

    def end(self) -> None:
        """Let it sweep a last time and leave."""
        self._close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=2.0)

    def _close(self) -> None:
        if self._life is not None:
            os.close(self._life)
            self._life = None
