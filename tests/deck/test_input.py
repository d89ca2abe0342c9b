"""The way in from the terminal: every kind of input, an escape alone, nothing at all; and how it ends."""

from __future__ import annotations

import os
import pty
import threading
import tty
from collections.abc import Iterator

import pytest
from textual import events
from textual._xterm_parser import XTermParser
from textual.message import Message

from flightdeck.term.bell import Bell
from flightdeck.term.input import patience_ms, read_input
from tests.support import eventually


class Keyboard:
    """Types into a pseudo-terminal that the loop reads."""

    def __init__(self) -> None:
        self.master, slave = pty.openpty()
        tty.setraw(slave)
        self.slave = slave
        self.got: list[Message] = []
        self.bell = Bell()
        self.thread = threading.Thread(target=read_input, args=(slave, XTermParser(), self.got.append, self.bell))
        self.thread.start()

    def type(self, data: bytes) -> None:
        os.write(self.master, data)

    def keys(self) -> list[str]:
        return [message.key for message in list(self.got) if isinstance(message, events.Key)]

    def hang_up(self) -> None:
        os.close(self.master)
        self.master = -1

    def close(self) -> None:
        self.bell.set()
        self.thread.join(30)
        assert not self.thread.is_alive()
        if self.master >= 0:
            os.close(self.master)
        os.close(self.slave)
        self.bell.close()


@pytest.fixture
def keyboard() -> Iterator[Keyboard]:
    one = Keyboard()
    yield one
    one.close()


def test_keys_arrive_in_order(keyboard: Keyboard) -> None:
    keyboard.type("jé\x1b[A\x1bx\x01".encode())
    eventually(lambda: len(keyboard.keys()) >= 5)
    assert keyboard.keys() == ["j", "é", "up", "alt+x", "ctrl+a"]


def test_an_escape_alone_needs_no_further_key(keyboard: Keyboard) -> None:
    keyboard.type(b"\x1b")
    eventually(lambda: keyboard.keys() == ["escape"])
    keyboard.type(b"\x1b")
    eventually(lambda: keyboard.keys() == ["escape", "escape"])


def test_mouse_paste_focus_and_answers_are_told_apart(keyboard: Keyboard) -> None:
    keyboard.type(b"\x1b[<0;3;4M\x1b[<0;3;4m\x1b[200~a\tb\x1b[201~\x1b[I\x1b[7;9R\x1b[O")
    eventually(lambda: len(keyboard.got) >= 6)
    kinds = [type(message) for message in keyboard.got]
    assert kinds == [events.MouseDown, events.MouseUp, events.Paste, events.AppFocus, events.CursorPosition, events.AppBlur]  # fmt: skip
    assert isinstance(keyboard.got[2], events.Paste) and keyboard.got[2].text == "a\tb"


def test_a_character_in_two_pieces_is_one_key(keyboard: Keyboard) -> None:
    """Over a slow link its bytes come one by one."""
    for byte in "\u20ac".encode():
        keyboard.type(bytes([byte]))
    keyboard.type(b"q")
    eventually(lambda: keyboard.keys()[-1:] == ["q"])
    assert [message.character for message in keyboard.got if isinstance(message, events.Key)] == ["\u20ac", "q"]


def test_bytes_that_are_no_text_end_nothing(keyboard: Keyboard) -> None:
    """An old terminal's mouse or another charset; the thread that reads must not end with it."""
    keyboard.type(b"\xff\xe9")
    keyboard.type(b"q")
    eventually(lambda: keyboard.keys()[-1:] == ["q"])


def test_a_terminal_that_hangs_up_ends_the_loop(keyboard: Keyboard) -> None:
    """D21: and does not make it spin."""
    keyboard.hang_up()
    keyboard.thread.join(30)
    assert not keyboard.thread.is_alive() and not keyboard.bell.is_set()


def test_the_bell_ends_a_loop_that_sleeps(keyboard: Keyboard) -> None:
    """Leaving and suspending wait for this thread: it has no look-up time of its own to wait for."""
    keyboard.bell.set()
    keyboard.thread.join(30)
    assert not keyboard.thread.is_alive() and keyboard.got == []


def test_it_sleeps_without_end_unless_an_escape_waits() -> None:
    """An idle deck costs no wake-ups for input."""
    parser = XTermParser()
    assert patience_ms(parser) is None
    assert list(parser.feed("j")) and patience_ms(parser) is None
    assert not list(parser.feed("\x1b"))
    waits = patience_ms(parser)
    assert waits is not None and 0 <= waits <= 1000
    assert list(parser.feed("[A")) and patience_ms(parser) is None


def test_a_bell_can_be_used_again() -> None:
    """The terminal is taken again after a suspension."""
    bell = Bell()
    for _ in range(3):
        bell.set()
        bell.set()
        assert bell.is_set()
        bell.clear()
        assert not bell.is_set()
        with pytest.raises(BlockingIOError):
            os.read(bell.fileno(), 1)
    bell.close()
