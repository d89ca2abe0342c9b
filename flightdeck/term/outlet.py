"""The way out to the terminal, for links that are slow or stand still. Nobody who writes here ever waits.

What a far terminal has not shown yet lies in buffers of the kernel, of ssh and of the network: up to minutes of old pictures
that would be played back when the link returns. So little is sent ahead: now and then, on a slow link behind each frame, goes
a question that every terminal answers (where is the cursor), and while the answer is late no further frame leaves; what
changed meanwhile is drawn once, as it is then. Where no answers come (the terminal tells none) the kernel tells whether
what was sent has been read (receipts.py). And where it does not, either, it still shows when it takes no more bytes:
whatever lies there when it begins to take them again is thrown away and the whole screen is drawn anew.
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

from flightdeck.term.receipts import Reader, Receipts

CHUNK = 512  # bytes; a write of so little hardly ever waits
STALL_S = 1.0  # the kernel took nothing for so long: what lies there is old
LOOK_S = 0.2
QUESTION = b"\x1b[6n"
PAD = b"\0"  # terminals ignore it; reading it wakes us
CHECK_S = 0.1  # between looks whether a silent terminal's reader has taken a frame
NOTICED_S = 2.5 * CHECK_S  # one that keeps up is seen to by then
LEAVE_S = 1.0
RENEW = b"\x18\x1b\\\x1b[0m"  # whatever sequence was cut off ends here

Clock = Callable[[], float]


@dataclass
class _Piece:
    data: bytes
    frame: bool  # a picture, that may be thrown away; else a mode of the terminal


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
        self.answers = Receipts()  # of the terminal
        self.reads = Receipts(
            slow_s=NOTICED_S, quick_rate=0.0, faithful=True
        )  # of the kernel, where the terminal gives none
        self._reader: Reader | None = None
        self._writing = False
        self._pad_at, self._pad_after = 0.0, CHECK_S

    # -- the side of whoever writes (the event loop)

    def write(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        if not data:
            return
        with self._change:
            self._add(_Piece(data, self._framing))
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
            now = self._clock()
            self._look(now)
            free = self._waiting <= ahead and not self._late(now)
            if not free:
                self._refused = True
                self._change.notify()
            return free

    def answered(self) -> None:
        """The terminal answered: it has shown all that was sent before the question."""
        with self._change:
            self.answers.came(self._clock())
            if self._refused:
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

    # -- what is under way; all of it with the lock held

    def _late(self, now: float) -> bool:
        return self.answers.late(now) if self.answers.given else self.reads.late(now)

    def _look(self, now: float) -> None:
        """Take the kernel's receipt, if there is one and it counts."""
        if self.reads.asked is None or self.answers.given or self._writing or self._reader is None:
            return
        if self._reader.woke():
            self.reads.came(now)

    def _wrote(self, size: int) -> None:
        """So much just left. Its own echo is no receipt; a reader that was quicker than this look goes unseen, hence pads."""
        self._writing = False
        self.answers.sent(size)
        self.reads.sent(size)
        if self._reader is not None and not self.answers.given:
            self._reader.woke()
            if self.reads.asked is None:
                now = self._clock()
                self.reads.ask(now)
                self._pad_at, self._pad_after = now + CHECK_S, CHECK_S

    # -- the thread

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        self._reader = Reader(self._fd)
        try:
            while self._step(poll):
                pass
        except OSError:
            pass  # the terminal is gone; whoever watches it ends the deck
        finally:
            with self._change:
                self._reader.close()

    def _step(self, poll: select.poll) -> bool:
        with self._change:
            if not self._pieces:
                if self._stopping:
                    return False
                self._idle()
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
            self._look(self._clock())
            self._writing = True
        sent = os.write(self._fd, head)
        stalled = self._clock() - began >= STALL_S and not self._stopping
        with self._change:
            self._wrote(sent)
            piece.data = piece.data[sent:]
            self._waiting -= sent
            if not piece.data:
                self._pieces.popleft()
                if piece.frame and not self._pieces and self.answers.may_ask() and not self._stopping:
                    self._add(_Piece(QUESTION, False))
                    self.answers.ask(self._clock())
        if stalled:  # waiting for the kernel, here or in the write
            self._start_over()
        return True

    def _add(self, piece: _Piece) -> None:
        self._pieces.append(piece)
        self._waiting += len(piece.data)

    def _idle(self) -> None:
        """Nothing to write. Tell whoever was refused that there is room, or wait for more, or for a receipt."""
        now = self._clock()
        self._look(now)
        whole = self.answers.given_up(now) and bool(self.answers.given)
        self.reads.given_up(now)
        if self._refused and not self._late(now):
            self._refused = False
            self._on_room(whole)
        if self.reads.asked is None or self.reads.given is False or self.answers.given:
            self._change.wait(LOOK_S if self.answers.asked is not None or self._refused else None)
        elif now >= self._pad_at:
            self._pad_after *= 2.0
            self._pad_at = now + self._pad_after
            self._add(_Piece(PAD, False))
        else:
            self._change.wait(CHECK_S / 2 if self._refused else CHECK_S)

    def _start_over(self) -> None:
        """The kernel takes bytes again after a stall: throw away the pictures that lie there and here."""
        termios.tcflush(self._fd, termios.TCOFLUSH)
        with self._change:
            kept = [piece for piece in self._pieces if not piece.frame]
            self._pieces = deque([_Piece(RENEW + self._again(), False), *kept])
            self._waiting = sum(len(piece.data) for piece in self._pieces)
            self._refused = False
            self.answers.forget()
            self.reads.forget()
        self._on_room(True)
