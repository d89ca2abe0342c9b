"""Whether the other end has taken what was sent. Two tell it: the terminal that answers a question, and the kernel.

The kernel's word is for terminals that answer none. A pseudo-terminal does not tell how much lies in it (``TIOCOUTQ`` is 0, and
``poll`` says "go on" until 12 kB lie there), but whenever its reader has taken all but a few bytes Linux wakes those who may
write, and an edge-triggered ``epoll`` sees each such call. It is about the next reader only: what ssh and networks have
taken from there and not yet brought home nobody but the terminal knows.
"""

from __future__ import annotations

import select

LATE_S = 0.3  # a receipt that takes longer: the link is slow, and no frame leaves
SLOW_S = 0.1  # one that took longer: each frame is asked for, and few bytes are sent ahead, ...
QUICK_RATE = 16_384.0  # ... until one proves so many bytes a second
AHEAD_BYTES = 1024  # a quarter of a second at 4 kB/s; a quick link is asked once for as many
SLOW_AHEAD_BYTES = 256  # behind a question on a slow one: then nothing more until its receipt
SILENT_S = 5.0  # who has not given a first receipt by then gives none
LOST_S = 30.0  # one that was always given and does not come: the terminal is another one, perhaps


class Receipts:
    """One who tells. Pure; times are monotonic seconds.

    ``slow_s``: so long a receipt may take on a link that keeps up. ``quick_rate``: bytes a second that show that it does.
    ``faithful``: who told once will always tell.
    """

    def __init__(self, slow_s: float = SLOW_S, quick_rate: float = QUICK_RATE, faithful: bool = False) -> None:
        self.asked: float | None = None  # since when something is under way whose receipt is awaited
        self.given: bool | None = None  # whether it tells at all; None: not known yet
        self.slow = True
        self._slow_s, self._quick_rate, self._faithful = slow_s, quick_rate, faithful
        self._lost = 0
        self._asked_for = 0  # bytes
        self._ahead = 0  # bytes after the last question

    def sent(self, size: int) -> None:
        self._ahead += size

    def may_ask(self) -> bool:
        """Whether a question is worth its bytes now."""
        if self.asked is not None or self.given is False:
            return False
        return self.slow or self._ahead >= AHEAD_BYTES

    def ask(self, now: float) -> None:
        self.asked, self._asked_for, self._ahead = now, self._ahead, 0

    def came(self, now: float) -> None:
        """A receipt: all that was sent before the question has arrived."""
        if self.asked is not None:
            took = now - self.asked
            if took >= self._slow_s:
                self.slow = True
            elif took * self._quick_rate <= self._asked_for:
                self.slow = False
        self.asked, self.given, self._lost = None, True, 0

    def forget(self) -> None:
        """What was under way was thrown away."""
        self.asked, self._ahead = None, 0

    def late(self, now: float) -> bool:
        """Whether so much is still under way that nothing should follow."""
        if not self.given or self.asked is None:
            return False
        return now - self.asked >= LATE_S or (self.slow and self._ahead >= SLOW_AHEAD_BYTES)

    def given_up(self, now: float) -> bool:
        """A receipt that will not come: once True, then the next question may be asked, or none ever."""
        if self.asked is None:
            return False
        if self.given is None and now - self.asked >= SILENT_S:
            self.asked, self.given = None, False
            return True
        if self.given and now - self.asked >= LOST_S:
            self._lost += 1
            self.asked, self.slow = None, True
            if self._lost > 1 and not self._faithful:
                self.given = None
            return True
        return False


class Reader:
    """The kernel's word about whoever reads the other end of the pseudo-terminal ``fd``; silent where it gives none."""

    def __init__(self, fd: int) -> None:
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        if self._epoll is not None:
            try:
                self._epoll.register(fd, select.EPOLLOUT | select.EPOLLET)
            except OSError:  # no terminal and no pipe
                self.close()
        self.woke()

    def woke(self) -> bool:
        """Whether it took all but some 128 bytes since this was asked last. Writing counts as well: ask right after it."""
        return self._epoll is not None and bool(self._epoll.poll(0))

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None
