"""A real terminal for a test: the deck in a child on a pseudo-terminal, its screen read by a terminal emulator."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence

import pyte

from tests.support import ROOT, eventually

_PIECES = re.compile(rb"(?=\x1b)")  # one escape sequence and the text after it


class Terminal:
    """Runs ``flightdeck`` with a controlling terminal of its own. ``screen()`` is what a person would see."""

    def __init__(
        self,
        args: Sequence[str],
        env: Mapping[str, str],
        size: tuple[int, int] = (120, 40),
        prelude: str = "",
        answers: bool = False,
    ) -> None:
        """``answers``: it tells where the cursor is when asked, as every real terminal does."""
        self.answers = answers
        self.rate: int | None = None  # bytes a second of the link; None: at once
        self._screen = pyte.Screen(max(1, size[0]), max(1, size[1]))
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()
        self.sent = b""
        self.misread = 0
        code = f"{prelude}\nimport sys\nsys.argv[0] = 'flightdeck'\nfrom flightdeck.cli import main\nmain()"
        base = {name: value for name, value in os.environ.items() if not name.startswith(("FLIGHTDECK_", "TEXTUAL"))}
        full = {**base, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLORTERM": "truecolor", "TZ": "UTC", **env}
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)  # as a login shell has it, whatever these tests were started with
            os.execve(sys.executable, [sys.executable, "-c", code, *args], full)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.reading = True
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.status: int | None = None

    def _read(self) -> None:
        while True:
            if not self.reading:
                time.sleep(0.01)
                continue
            try:
                if not select.select([self.master], [], [], 0.1)[0]:
                    continue
                if self.rate:
                    time.sleep(0.05)
                data = os.read(self.master, self.rate // 20 if self.rate else 65536)
                if self.answers and b"\x1b[6n" in self.sent[-8:] + data:
                    os.write(self.master, b"\x1b[1;1R")
            except (OSError, ValueError):
                return
            if not data:
                return
            with self._lock:
                self.sent += data
                for piece in _PIECES.split(data):
                    self._show(piece)

    def _show(self, piece: bytes) -> None:
        try:
            self._stream.feed(piece)
        except Exception:  # the emulator does not know every sequence; its parser is dead after one, the rest goes on
            self._stream = pyte.ByteStream(self._screen)
            self.misread += 1

    def screen(self) -> str:
        with self._lock:
            return "\n".join(line.rstrip() for line in self._screen.display)

    def resize(self, width: int, height: int) -> None:
        with self._lock:
            self._screen.resize(max(1, height), max(1, width))
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        os.kill(self.pid, signal.SIGWINCH)

    def keys(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait_for(self, text: str, timeout_s: float = 60.0) -> str:
        return eventually(
            lambda: self.screen() if text in self.screen() else "", timeout_s, f"{text!r} in\n{self.screen()}"
        )

    def wait_gone(self, timeout_s: float = 30.0) -> int:
        """The exit code; fails when the process is still there."""

        def look() -> bool:
            if self.status is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.status = os.waitstatus_to_exitcode(status)
            return self.status is not None

        eventually(look, timeout_s, f"the deck to leave; it shows\n{self.screen()}")
        assert self.status is not None
        if self.reading:
            self._reader.join(timeout_s)  # what it said last is still to be read
        return self.status

    def flags(self) -> list[object]:
        """The terminal's modes, as the shell would find them."""
        return termios.tcgetattr(self.master)[:4]

    def hang_up(self) -> None:
        """What sshd does when the line drops."""
        self.reading = True
        os.close(self.master)
        self.master = -1

    def close(self) -> None:
        if self.status is None:
            try:
                os.kill(self.pid, signal.SIGCONT)
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        if self.master >= 0:
            os.close(self.master)
            self.master = -1
        self._reader.join(2.0)
