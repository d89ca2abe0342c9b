"""A program in a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence

from tests.support import Processes


class Terminal:
    """Runs one program in a pty; close() gives the terminal up."""

    def __init__(
        self,
        processes: Processes,
        args: Sequence[str],
        env: Mapping[str, str] | None = None,
        size: tuple[int, int] = (160, 45),
    ) -> None:
        self._fd, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.process = subprocess.Popen(
            list(args),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **(env or {})},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        processes.started.append(self.process)
        os.close(theirs)
        self._seen = b""

    def read_until(self, *words: str, timeout_s: float = 120.0) -> None:
        """Read until all words were written since the last call."""
        deadline = time.monotonic() + timeout_s
        while not all(word.encode() in self._seen for word in words):
            assert time.monotonic() < deadline, (
                f"not within {timeout_s:g} s: {words}; the end was {self._seen[-500:]!r}"
            )
            self._read()
        self._seen = b""

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def wait(self, timeout_s: float = 60.0) -> int:
        """Read on until the program has ended; its exit code."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"does not end; the last was {self._seen[-500:]!r}"
            self._read()
        return self.process.returncode

    def close(self) -> None:
        os.close(self._fd)

    def _read(self) -> None:
        if select.select([self._fd], [], [], 0.2)[0]:
            try:
                self._seen += os.read(self._fd, 65536)
            except OSError:
                time.sleep(0.05)  # nobody holds the other end any more
