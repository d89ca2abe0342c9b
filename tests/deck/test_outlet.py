"""The way out to the terminal: nobody who writes waits, little is under way, what is old is thrown away (D23)."""

from __future__ import annotations

import os
import pty
import threading
import tty
from collections.abc import Callable, Iterator

import pytest

from flightdeck.term import outlet as module
from flightdeck.term.outlet import PAD, QUESTION, RENEW, Outlet
from flightdeck.term.receipts import AHEAD_BYTES, LATE_S, LOST_S, SILENT_S, SLOW_AHEAD_BYTES, SLOW_S, Reader, Receipts
from tests.support import eventually


class Far:
    """The other end of a link: reads when told to, and may answer."""

    def __init__(self, answers: bool) -> None:
        self.master, self.slave = pty.openpty()
        tty.setraw(self.slave)
        self.answers = answers
        self.told: list[bool] = []
        self.got = b""
        self.now = 100.0  # stands until a test lets it go on: a busy machine is no stalled link
        self.outlet = Outlet(self.slave, self.told.append, lambda: b"MODES", lambda: self.now)
        self.outlet.start()

    def read(self) -> bytes:
        """What can be read now, in small pieces."""
        os.set_blocking(self.master, False)
        try:
            data = os.read(self.master, 400)
        except BlockingIOError:
            return b""
        if self.answers and QUESTION in data:
            self.outlet.answered()
        self.got += data
        return data

    def read_all(self, until: Callable[[], bool], what: str = "") -> bytes:
        self.got = b""
        eventually(lambda: self.read() is None or until(), what=what)
        return self.got

    def frame(self, text: str, room: int = 0) -> bool:
        """As the app does it: a frame that has no room is left out."""
        if not self.outlet.room(room):
            return False
        with self.outlet.frame():
            self.outlet.write(text)
        return True

    def close(self) -> None:
        os.close(self.master)
        self.outlet.stop()
        self.outlet.join(30)
        os.close(self.slave)


@pytest.fixture(params=[True, False], ids=["answers", "silent"])
def far(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    monkeypatch.setattr(module, "LOOK_S", 0.02)
    found = Far(request.param)
    yield found
    found.close()


def test_what_is_written_arrives_in_order_and_unchanged(far: Far) -> None:
    for number in range(50):
        far.outlet.write(f"<{number}>\u28ff")
    want = "".join(f"<{number}>\u28ff" for number in range(50)).encode()
    assert far.read_all(lambda: len(far.got) >= len(want)) == want


def test_a_question_follows_a_frame_and_nothing_follows_a_mode(far: Far) -> None:
    far.outlet.write("\x1b[?25l")
    assert far.read_all(lambda: far.got.endswith(b"l")) == b"\x1b[?25l"
    eventually(lambda: far.frame("picture"), what="the mode to be gone from here, too")
    assert far.read_all(lambda: far.got.endswith(QUESTION)) == b"picture" + QUESTION


def test_nobody_waits_for_a_terminal_that_takes_nothing(far: Far) -> None:
    """D23: writing returns at once, whatever lies before it; frames are refused instead of queued."""
    done = threading.Event()

    def write() -> None:
        for _ in range(200):
            far.frame("x" * 4096)
        done.set()

    threading.Thread(target=write, daemon=True).start()
    assert done.wait(30)
    assert far.outlet._waiting <= 4096 + len(QUESTION + PAD)


def test_after_a_stall_old_pictures_are_thrown_away(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    """D23: neither terminal nor kernel tell anything. What lay in the kernel while nobody read is not played back; modes are,
    and the whole screen is asked for."""
    far.answers = False
    far.outlet.answers.given = far.outlet.reads.given = False
    monkeypatch.setattr(Reader, "woke", lambda reader: False)
    for number in range(200):  # until the kernel takes no more
        far.outlet.room()
        with far.outlet.frame():
            far.outlet.write(f"old {number} " * 100)
    far.outlet.write("\x1b[?MODE")
    assert eventually(lambda: far.outlet._blocked_since)
    far.now += 2 * module.STALL_S
    got = far.read_all(lambda: b"MODE" in far.got and True in far.told, "a new beginning")
    before, _, after = got.partition(RENEW + b"MODES")
    assert after == b"\x1b[?MODE" and b"old 199" not in got
    assert len(before) < 12_000, "some was with the reader already; the rest of 160 kB is gone"
    eventually(far.outlet.room)
    assert far.told.count(True) == 1


def test_with_answers_at_most_one_frame_is_under_way(far: Far) -> None:
    """D23: also where the buffers are those of ssh and the network, in which nobody can look."""
    far.outlet.answers.given = True
    far.answers = False
    assert far.frame("first")
    eventually(lambda: far.outlet.answers.asked is not None)
    assert far.outlet.room(10**6)
    far.now += 2 * LATE_S
    assert not far.outlet.room(10**6), "the answer is late"
    assert not far.frame("second", 10**6) and far.told == []
    far.outlet.answered()
    eventually(lambda: far.told == [False])
    assert far.frame("third")
    got = far.read_all(lambda: b"third" in far.got)
    assert b"second" not in got


def silent(far: Far, frame: str) -> None:
    """A terminal that answers nothing, whose kernel is known to tell, is sent a frame."""
    far.answers = False
    far.outlet.answers.given, far.outlet.reads.given = False, True
    assert far.frame(frame)
    eventually(lambda: far.outlet.reads.asked is not None and not far.outlet._writing, what="the frame to be written")


def test_a_silent_terminal_is_sent_nothing_that_nobody_reads(far: Far) -> None:
    """D23: nothing old is to be drawn first when the link returns. The kernel tells when the frame has been read."""
    silent(far, "first" * 100)
    assert far.outlet.room(10**6), "it may still be read in time"
    far.now += 2 * LATE_S
    assert not far.frame("second", 10**6) and far.told == []
    far.read_all(lambda: far.told == [False], what="room once it was read")
    assert far.frame("third", 10**6)
    got = far.read_all(lambda: b"third" in far.got)
    assert b"second" not in got


def test_a_reader_that_was_quicker_than_our_look_is_noticed(far: Far) -> None:
    """What woke us together with our own write is lost: a byte that terminals ignore is read, too."""
    silent(far, "picture")
    far.read_all(lambda: b"picture" in far.got)
    with far.outlet._change:
        assert far.outlet._reader is not None
        far.outlet._reader.woke()
        far.outlet.reads.asked = far.now  # as if it had not been seen
    far.now += 2 * module.CHECK_S
    assert far.read_all(lambda: far.outlet.reads.asked is None, "the pad to be noticed").strip(PAD) == b""
    assert far.frame("next", 10**6)


def test_the_kernel_tells_when_its_reader_has_taken_all_but_little(far: Far) -> None:
    reader = Reader(far.slave)
    os.write(far.slave, b"x" * 500)
    assert reader.woke(), "one's own write"
    assert not reader.woke()
    eventually(far.read)
    assert eventually(reader.woke), "a hundred bytes are left"
    reader.close()
    assert not reader.woke()


def test_leaving_waits_for_no_terminal(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    """D22, D23."""
    monkeypatch.setattr(module, "LEAVE_S", 0.1)
    far.outlet.answers.given = False
    with far.outlet.frame():
        far.outlet.write("x" * 200_000)
    far.outlet.stop()
    assert far.outlet._stopping


def test_a_terminal_that_never_answers_is_not_asked_again() -> None:
    answers = Receipts()
    assert answers.may_ask()
    answers.ask(0.0)
    assert not answers.late(SILENT_S - 1.0), "nobody knows yet whether it answers at all"
    assert not answers.given_up(SILENT_S - 0.1) and answers.given_up(SILENT_S + 0.1)
    assert not answers.may_ask() and not answers.late(100.0)
    answers.came(100.0)
    assert answers.may_ask(), "it does, after all"


def test_an_answer_that_gets_lost_stops_nothing_for_ever() -> None:
    """The session was taken over by another terminal, in the middle of the question."""
    answers = Receipts()
    answers.ask(0.0)
    answers.came(0.0)
    answers.ask(10.0)
    assert not answers.late(10.2) and answers.late(10.4) and not answers.given_up(9.0 + LOST_S)
    assert answers.given_up(10.1 + LOST_S) and answers.may_ask() and not answers.late(10.2 + LOST_S)
    answers.ask(41.0)
    assert answers.given_up(41.1 + LOST_S)
    answers.ask(72.0)
    assert not answers.late(90.0), "it is as one that nobody knows"
    kernel = Receipts(faithful=True)
    kernel.came(0.0)
    for now in (0.0, 100.0, 200.0):
        kernel.ask(now)
        assert kernel.late(now + 29.0), "it is believed as before"
        assert kernel.given_up(now + LOST_S)


def test_a_quick_link_is_asked_seldom_and_a_slow_one_behind_each_frame() -> None:
    """A question costs bytes, and its answer wakes a thread."""
    answers = Receipts()
    answers.sent(8000)
    answers.ask(0.0)
    answers.came(0.05)
    assert not answers.may_ask(), "160 kB/s were proven"
    answers.sent(AHEAD_BYTES - 1)
    assert not answers.may_ask()
    answers.sent(1)
    assert answers.may_ask()
    answers.ask(1.0)
    answers.came(1.0 + 2 * SLOW_S)
    assert answers.may_ask(), "slow now: 5 kB/s"
    for size in (60, 500):
        answers.sent(size)
        answers.ask(2.0)
        answers.came(2.09)
        assert answers.may_ask(), "a few bytes in a moment prove nothing"


def test_little_is_sent_ahead_of_a_question_on_a_slow_link() -> None:
    """D23: pages turned in one breath would be drawn one after the other, for seconds."""
    answers = Receipts()
    answers.ask(0.0)
    answers.came(1.0)
    answers.ask(2.0)
    assert not answers.late(2.0)
    answers.sent(SLOW_AHEAD_BYTES)
    assert answers.late(2.0)
    answers.came(2.01)
    assert not answers.late(2.01)
