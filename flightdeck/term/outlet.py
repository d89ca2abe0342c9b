"""The way out to the terminal, for links that are slow or stand still. Nobody who writes here ever waits.

What a far terminal has not shown yet lies in buffers of the kernel, of ssh and of the network: up to minutes of old pictures
that would be played back when the link returns. So little is sent ahead: behind a frame goes a question that every terminal
answers (where is the cursor), and until the answer is there no further frame leaves; what changed meanwhile is
drawn once, as it is then. Where no answers come (the terminal tells none) it still shows when the kernel takes no more
bytes: whatever lies there when it begins to take them again is thrown away and the whole screen is drawn anew.
"""

from __future__ import annotations

import contextlib
import os
import select
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

CHUNK = 512  # bytes; a write of so little hardly ever waits
STALL_S = 1.0  # the kernel took nothing for so long: what lies there is old
LOOK_S = 0.2
QUESTION = b"\x1b[6n"
LATE_S = 0.3  # an answer that takes longer: the link is slow, and no frame leaves
SILENT_S = 5.0  # a terminal that has not answered its first question by then answers none
LOST_S = 30.0  # an answer that was given once and does not come: the terminal is another one, perhaps
LEAVE_S = 1.0
RENEW = b"\x18\x1b\\\x1b[0m"  # whatever sequence was cut off ends here

Clock = Callable[[], float]


@dataclass
class _Piece:
    data: bytes
    frame: bool  # a picture, that may be thrown away; else a mode of the terminal


class Answers:
    """Whether the terminal has shown what was sent, as far as it tells. Pure; times are monotonic seconds."""

    def __init__(self) -> None:
        self.asked: float | None = None  # the question that waits for its answer
        self.answers: bool | None = None  # None: not known yet
        self._lost = 0

    def may_ask(self) -> bool:
        return self.asked is None and self.answers is not False

    def ask(self, now: float) -> None:
        self.asked = now

    def answered(self) -> None:
        self.asked, self.answers, self._lost = None, True, 0

    def late(self, now: float) -> bool:
        """Whether what was sent is still under way."""
        return bool(self.answers) and self.asked is not None and now - self.asked >= LATE_S

    def given_up(self, now: float) -> bool:
        """An answer that will not come: once True, then the next question may be asked, or none ever."""
        if self.asked is None:
            return False
        if self.answers is None and now - self.asked >= SILENT_S:
            self.asked, self.answers = None, False
            return True
        if self.answers and now - self.asked >= LOST_S:
            self._lost += 1
            self.asked = None
            if self._lost > 1:
                self.answers = None
            return True
        return False


class Outlet(threading.Thread):
    """Takes Textual's writes. ``on_room(whole)`` is called from this thread when frames may leave again after some were
    refused; ``whole``: what stands on the terminal is not known any more. ``again``: sets the terminal's modes once more.
    """

    def __init__(
        self, fd: int, on_room: Callable[[bool], None], again: Callable[[], bytes], clock: Clock = time.monotonic
    ) -> None:
        super().__init__(daemon=True, name="terminal-output")
        self._fd, self._on_room, self._again, self._clock = fd, on_room, again, clock
        self._pieces: deque[_Piece] = deque()
        self._waiting = 0
        self._change = threading.Condition()
        self._framing = False
        self._refused = False
        self._stopping = False
        self._blocked_since: float | None = None
        self.answers = Answers()

    # -- the side of whoever writes (the event loop)

    def write(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        if not data:
            return
        with self._change:
            self._pieces.append(_Piece(data, self._framing))
            self._waiting += len(data)
            self._change.notify()

    def flush(self) -> None:
        """It goes out as fast as it can."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    @contextlib.contextmanager
    def frame(self) -> Iterator[None]:
        """What is written inside is a picture."""
        self._framing = True
        try:
            yield
        finally:
            self._framing = False

    def room(self, ahead: int = 0) -> bool:
        """Whether a frame may leave now, with at most ``ahead`` bytes before it; if not, ``on_room`` tells when."""
        with self._change:
            free = self._waiting <= ahead and not self.answers.late(self._clock())
            if not free:
                self._refused = True
                self._change.notify()
            return free

    def answered(self) -> None:
        """The terminal answered: it has shown all that was sent before the question."""
        with self._change:
            self.answers.answered()
            self._change.notify()

    def stop(self) -> None:
        """Send what there is, for a moment; a terminal that takes nothing is left alone."""
        with self._change:
            self._stopping = True
            self._change.notify()
        self.join(LEAVE_S)
        if self.is_alive():
            with contextlib.suppress(termios.error, OSError):
                termios.tcflush(self._fd, termios.TCOFLUSH)
            self.join(LEAVE_S)

    # -- the thread

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        try:
            while self._step(poll):
                pass
        except OSError:
            pass  # the terminal is gone; whoever watches it ends the deck

    def _step(self, poll: select.poll) -> bool:
        with self._change:
            if not self._pieces:
                if self._stopping:
                    return False
                self._ask_or_wait()
                if not self._pieces:
                    return True
        if not poll.poll(LOOK_S * 1000.0):
            self._blocked_since = self._blocked_since or self._clock()
            return True
        began = self._blocked_since or self._clock()
        self._blocked_since = None
        with self._change:
            piece = self._pieces[0]
            head = piece.data[:CHUNK]
        sent = os.write(self._fd, head)
        stalled = self._clock() - began >= STALL_S and not self._stopping
        with self._change:
            piece.data = piece.data[sent:]
            self._waiting -= sent
            if not piece.data:
                self._pieces.popleft()
                if piece.frame and not self._pieces and self.answers.may_ask() and not self._stopping:
                    self._pieces.append(_Piece(QUESTION, False))
                    self._waiting += len(QUESTION)
                    self.answers.ask(self._clock())
        if stalled:  # waiting for the kernel, here or in the write
            self._start_over()
        return True

    def _ask_or_wait(self) -> None:
        """Nothing to write. Tell whoever was refused that there is room, or wait for more, or for an answer."""
        now = self._clock()
        whole = self.answers.given_up(now) and bool(self.answers.answers)
        if self._refused and not self.answers.late(now):
            self._refused = False
            self._on_room(whole)
        self._change.wait(LOOK_S if self.answers.asked is not None or self._refused else None)

    def _start_over(self) -> None:
        """The kernel takes bytes again after a stall: throw away the pictures that lie there and here."""
        termios.tcflush(self._fd, termios.TCOFLUSH)
        with self._change:
            kept = [piece for piece in self._pieces if not piece.frame]
            self._pieces = deque([_Piece(RENEW + self._again(), False), *kept])
            self._waiting = sum(len(piece.data) for piece in self._pieces)
            self._refused = False
            self.answers.asked = None
        self._on_room(True)
