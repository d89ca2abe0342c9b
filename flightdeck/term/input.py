"""The way in from the terminal: a thread that sleeps until there is something to read."""

from __future__ import annotations

import math
import os
import select
from codecs import getincrementaldecoder
from collections.abc import Callable

from textual._time import get_time
from textual._xterm_parser import XTermParser
from textual.message import Message

from flightdeck.term.bell import Bell

READ_BYTES = 4096


def read_input(fd: int, parser: XTermParser, take: Callable[[Message], None], leave: Bell) -> None:
    """Read and parse until ``leave`` is set, or until the terminal is gone (whoever watches it ends the deck)."""
    decode = getincrementaldecoder("utf-8")("replace").decode
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.register(leave, select.POLLIN)
    while not leave.is_set():
        ready = poll.poll(patience_ms(parser))
        if any(one == fd for one, _ in ready):
            try:
                data = os.read(fd, READ_BYTES)
            except OSError:
                return
            if not data:
                return
            text = decode(data)
            for message in parser.feed(text) if text else ():  # half a character; nothing at all would end the parser
                take(message)
        for message in parser.tick():
            take(message)


def patience_ms(parser: XTermParser) -> int | None:
    """How long the parser can wait for more: an escape alone becomes a key after a moment. None: as long as it takes."""
    if parser._timeout_time is None:
        return None
    return max(0, math.ceil((parser._timeout_time - get_time()) * 1000.0))
