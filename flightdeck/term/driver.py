"""Textual's driver for Linux terminals, with our own way out (see outlet.py) and a way in that sleeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from textual import events
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

from flightdeck.term.bell import Bell
from flightdeck.term.input import read_input
from flightdeck.term.outlet import Outlet

if TYPE_CHECKING:
    from textual.message import Message

    from flightdeck.app import FlightDeckApp

MODES = b"\x1b[?1049h\x1b[?25l\x1b[?1004h\x1b[?2004h\x1b[?7l"
MOUSE = b"\x1b[?1000h\x1b[?1003h\x1b[?1015h\x1b[?1006h"


class DeckDriver(LinuxDriver):
    """Never waits for the terminal; takes its answers to our questions; wakes for input and for nothing else."""

    outlet: Outlet | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.exit_event: Bell = Bell()  # stays open as long as the process: the terminal may be taken again

    @property
    def _writer_thread(self) -> Any:
        return self.outlet

    @_writer_thread.setter
    def _writer_thread(self, thread: Any) -> None:
        """Textual makes a thread of its own each time the terminal is taken; ours stands in its place."""
        if thread is None:
            self.outlet = None
            return
        app = cast("FlightDeckApp", self._app)
        assert self._file is not None
        self.outlet = app.outlet = Outlet(
            self._file.fileno(),
            lambda whole: app.soon(app.output_flows, whole),
            lambda: MODES + (MOUSE if self._mouse else b""),
        )

    def process_message(self, message: Message) -> None:
        if isinstance(message, events.CursorPosition):
            if self.outlet is not None:
                self.outlet.answered()
            return
        super().process_message(message)

    def run_input_thread(self) -> None:
        read_input(self.fileno, XTermParser(self._debug), self.process_message, self.exit_event)
