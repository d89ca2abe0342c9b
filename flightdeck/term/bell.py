"""An event that also ends a ``poll``: threads that wait for a terminal need not look up now and then."""

from __future__ import annotations

import os
import threading


class Bell(threading.Event):
    """``fileno()`` is readable while it is set."""

    def __init__(self) -> None:
        super().__init__()
        self._out, self._in = os.pipe()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)

    def fileno(self) -> int:
        return self._out

    def set(self) -> None:
        super().set()
        try:
            os.write(self._in, b"!")
        except BlockingIOError:
            pass  # it is full: readable in any case

    def clear(self) -> None:
        super().clear()
        try:
            while os.read(self._out, 512):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Nobody may use it any more."""
        os.close(self._out)
        os.close(self._in)
