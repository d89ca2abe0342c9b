"""A deck's stay in a terminal: whether it can be shown there, how it is left, and what if the terminal goes away.

However the deck ends (a key, a signal, a hang-up with SIGHUP ignored, a crash, a terminal that takes no more bytes), the
terminal gets its state back and the process is gone within seconds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
import termios
import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from engine.errors import BadInput
from flightdeck.term.bell import Bell
from flightdeck.term.signals import Signals

if TYPE_CHECKING:
    from flightdeck.app import FlightDeckApp

LOG_KEPT = 20  # lines
LEAVE_S = 3.0  # so long an ordered exit may take before the terminal is restored by force
_RESET = (
    b"\x1b[?2004l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l\x1b[?1004l\x1b[?2048l"
    b"\x1b[<u\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[0m"
)


def check_terminal() -> None:
    """Raises BadInput where the deck cannot be shown; the text says what to use instead."""
    if not (sys.__stdin__ and sys.__stderr__ and sys.__stdin__.isatty() and sys.__stderr__.isatty()):
        raise BadInput("not a terminal; for one frame as text use: flightdeck snapshot --text")
    if os.environ.get("TERM", "dumb") in ("", "dumb", "unknown"):
        raise BadInput(f"TERM={os.environ.get('TERM', '')} cannot show the deck; use: flightdeck snapshot --text")


def pick_theme(wanted: str | None) -> str:
    """``dark`` or ``light`` as wanted; the terminal's own 16 colours where it has no more."""
    term, color = os.environ.get("TERM", ""), os.environ.get("COLORTERM", "").lower()
    many = color in ("truecolor", "24bit") or "256" in term or "direct" in term or "kitty" in term or "ghostty" in term
    if not many:
        return "ansi"
    return wanted or "dark"


def no_color() -> bool:
    """https://no-color.org: set and not empty."""
    return bool(os.environ.get("NO_COLOR"))


class _Held(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=LOG_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@contextlib.contextmanager
def log_held() -> Iterator[deque[str]]:
    """What the log says would stand in the middle of the picture: its last lines, for when the terminal is free."""
    root = logging.getLogger()
    shown = [
        handler
        for handler in root.handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream in (sys.__stderr__, sys.__stdout__)
    ]
    held = _Held()
    if shown:
        held.setFormatter(shown[0].formatter)
    root.handlers[:] = [held, *(handler for handler in root.handlers if handler not in shown)]
    try:
        yield held.lines
    finally:
        root.handlers[:] = [*shown, *(handler for handler in root.handlers if handler is not held)]


class Session:
    """Runs one app; ``run`` returns its exit code when the terminal is back as it was."""

    def __init__(self, app: FlightDeckApp) -> None:
        self.app = app
        self._left = Bell()
        self._fd = sys.__stdin__.fileno() if sys.__stdin__ else 0
        self._code: int | None = None
        self._before: list[Any] | None = None

    def run(self) -> int:
        for name in ("COLUMNS", "LINES"):
            os.environ.pop(name, None)  # exported by some shells; Textual would believe them over the terminal
        try:
            self._before = termios.tcgetattr(self._fd)
        except termios.error:
            self._before = None
        with Signals() as signals:
            watch = threading.Thread(target=self._watch, args=(signals,), name="terminal", daemon=True)
            watch.start()
            try:
                self._show()
            finally:
                self._left.set()  # only now: a terminal that takes no more bytes holds up the last words, too
                watch.join()
                self._left.close()
            late = signals.first()
        if self._code is None and late is not None:
            self._code = 128 + late
        if self._code is not None:
            return self._code
        return self.app.return_code or 0

    def _show(self) -> None:
        with log_held() as log:
            self.app.run(mouse=self.app.wants_mouse)
        if self.app.feed is not None:
            self.app.feed.stop(timeout_s=1.0)
        with contextlib.suppress(OSError):  # nobody may be there to read it
            print("".join(f"{line}\n" for line in log), end="", file=sys.__stderr__)
            print(self.app.faults.report(), end="", file=sys.__stderr__, flush=True)

    def _watch(self, signals: Signals) -> None:
        """Hear signals, and notice a terminal that hung up: with SIGHUP ignored nothing else would."""
        poll = select.poll()
        poll.register(self._fd, 0)  # hang-up and error are always reported
        poll.register(self._left, select.POLLIN)
        poll.register(signals, select.POLLIN)
        while not self._left.is_set():
            ready = {fd for fd, _ in poll.poll()}
            number = signals.first()
            if number is not None:
                self._leave(128 + number)
            elif self._fd in ready:
                self._leave(128 + signal.SIGHUP)

    def _leave(self, code: int) -> None:
        """Ask the app to go; if it is still there after ``LEAVE_S``, restore the terminal and go without it."""
        self._code = code
        loop = self.app.loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: the app is on its way out
                loop.call_soon_threadsafe(self.app.exit, code)
        if self._left.wait(LEAVE_S):
            return
        restore(self._fd, self._before)
        os._exit(code)


def restore(fd: int, before: list[Any] | None) -> None:
    """Give the terminal back without the app's help; never blocks."""
    try:
        if before is not None:
            termios.tcsetattr(fd, termios.TCSANOW, before)
        os.set_blocking(2, False)
        os.write(2, _RESET)
        os.set_blocking(2, True)
    except (OSError, termios.error):
        pass


def leave_process(code: int) -> None:
    """End the process. Threads that hang in a driver call must not hold it up."""
    sys.stdout.flush()
    sys.stderr.flush()
    hung = [thread for thread in threading.enumerate() if thread.name in ("feed", "orders", "wakes")]
    if hung:
        os._exit(code)
    sys.exit(code)
