"""The signals that end a deck, heard by a thread that polls. The UI thread takes no part in it: a call into C that does not
return would hold up a handler as well."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any


class Signals:
    """While it is entered, on the main thread, SIGTERM, SIGINT and SIGHUP make ``fileno()`` readable and do nothing else.
    A SIGHUP that is ignored (nohup) stays so."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._out, self._in = -1, -1
        self._wakeup = -1

    def __enter__(self) -> Signals:
        self._out, self._in = os.pipe()
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)
        # First: Python's own part of each handler, that is there at once, writes the signal's number here.
        self._wakeup = signal.set_wakeup_fd(self._in, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, _nothing)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._in)
        os.close(self._out)

    def fileno(self) -> int:
        return self._out

    def first(self) -> int | None:
        """The first one that came since this was asked last. Others of the process (its window's size) are left out."""
        try:
            came = os.read(self._out, 4096)
        except BlockingIOError:
            return None
        return next((number for number in came if number in self._before), None)


def _nothing(number: int, frame: FrameType | None) -> None:
    """For Python; the number is written by then."""
