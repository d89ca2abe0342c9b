"""The access log: one JSON object a line on stdout, written by a thread, so that a pipe that nobody reads stops nothing."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import deque

MOST = 20_000  # lines that wait to be written; then the oldest go
GATHER_S = 0.05  # lines of so long are written at once


class AccessLog(logging.Handler):
    """Gives the messages of a logger to a file descriptor."""

    def __init__(self, fd: int = 1) -> None:
        super().__init__()
        self._fd = fd
        self._lines: deque[str] = deque(maxlen=MOST)
        self._some = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._write, name="access log", daemon=True)
        self._thread.start()

    def handle(self, record: logging.LogRecord) -> bool:
        self._lines.append(record.getMessage())
        if not self._some.is_set():
            self._some.set()
        return True

    def close(self) -> None:
        """Write what is left, if somebody reads it."""
        self._end.set()
        self._some.set()
        self._thread.join(1.0)
        super().close()

    def _write(self) -> None:
        while True:
            self._some.wait()
            self._end.wait(GATHER_S)
            self._some.clear()
            lines = []
            while self._lines:
                lines.append(self._lines.popleft())
            try:
                _write_all(self._fd, ("\n".join(lines) + "\n").encode() if lines else b"")
            except OSError:  # nobody reads it any more
                pass
            if self._end.is_set() and not self._lines:
                return


def set_up(fd: int = 1) -> None:
    """Send the access log of this process there, apart from all other logs."""
    logger = logging.getLogger("engine.web.access")
    handler = AccessLog(fd)
    atexit.register(handler.close)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
