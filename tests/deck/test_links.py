"""The deck over links: slow, stalled, detached and attached, inside tmux, resized at random."""

from __future__ import annotations

import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.store import Store
from flightdeck.term.outlet import QUESTION, RENEW
from tests.deck.terminal import Terminal
from tests.deck.test_terminal import RESTORED, Open, add_lane, fleet_url, opened, sgr, terminal
from tests.support import ROOT, eventually

__all__ = ["fleet_url", "terminal"]

TELLS_NOTHING = """
import flightdeck.term.outlet as o
o.STALL_S = 0.3
o.Reader.woke = lambda reader: False
"""


def fill_the_kernel(deck: Terminal) -> None:
    """Keys that draw the whole screen while nobody reads, until the terminal's end has taken nothing for a while."""
    far_end = os.open(os.readlink(f"/proc/{deck.pid}/fd/2"), os.O_RDWR | os.O_NOCTTY)
    try:
        poll = select.poll()
        poll.register(far_end, select.POLLOUT)
        full_since: list[float] = []

        def stuck() -> bool:
            deck.keys("t")
            time.sleep(0.02)
            if poll.poll(0):
                full_since.clear()
            elif not full_since:
                full_since.append(time.monotonic())
            return bool(full_since) and time.monotonic() - full_since[0] > 1.0

        eventually(stuck, what="the kernel to take no more")
    finally:
        os.close(far_end)


def test_a_stall_is_followed_by_the_present_and_not_by_the_past(
    terminal: Open, fleet_url: str, sqlite_store: Store
) -> None:
    """D23: neither terminal nor kernel tell anything. Detach and attach look the same: output stands still, then goes on."""
    deck = opened(terminal, fleet_url, prelude=TELLS_NOTHING)
    deck.reading = False
    fill_the_kernel(deck)
    with sqlite_store.connect("test") as db:
        db.run("update worker_heartbeats set state = 'parked', last_seen = {clock}")
        db.run("insert into worker_controls (box, queue, desired) values ('attic', 'cpu', 'off')")
    sent = len(deck.sent)
    deck.reading = True
    deck.wait_for("PARKED")
    played = deck.sent[sent:]
    before, renewed, _ = played.partition(RENEW)
    assert renewed, "the whole screen is drawn anew"
    assert len(before) < 24_000, "what the kernel held is not played back whole"
    eventually(lambda: "live" in deck.screen().split("\n")[0])
    deck.keys("q")
    assert deck.wait_gone() == 0
    assert all(sequence in deck.sent for sequence in RESTORED)


@pytest.mark.parametrize("answers", [True, False], ids=["answers", "silent"])
def test_a_terminal_is_never_sent_more_than_it_shows(terminal: Open, fleet_url: str, answers: bool) -> None:
    """D23: buffers of ssh and networks cannot be emptied, so little is sent ahead of what the far end has shown; of what has
    been read, where it tells nothing. D22: no question is left at the end, whose answer would be typed at the prompt."""
    deck = opened(terminal, fleet_url, answers=answers, prelude="import flightdeck.term.receipts as r\nr.LATE_S = 0.05")
    for frozen in (True, False):  # the first pages are drawn by then
        deck.keys("f")
        eventually(lambda frozen=frozen: ("FROZEN" in deck.screen()) == frozen)
    eventually(lambda: QUESTION in deck.sent, what="a question")
    deck.reading = False
    for step in range(300):
        deck.keys("\x1bs"[step % 2])  # a word on the line of events, and the order at the right of the last one
        time.sleep(0.01)
    deck.keys("f")
    sent = len(deck.sent)
    deck.reading = True
    deck.wait_for("FROZEN")
    assert len(deck.sent) - sent < 10_000, (
        "a few frames, not three hundred, nor what a pseudo-terminal holds and a page"
    )
    deck.keys("q")
    assert deck.wait_gone() == 0
    assert QUESTION not in deck.sent[deck.sent.rindex(b"\x1b[?1049l") :]


def test_keys_are_answered_over_a_slow_link(terminal: Open, fleet_url: str) -> None:
    """D23: 4 kB/s. What is on screen at the end is the present."""
    deck = opened(terminal, fleet_url, size=(80, 24), answers=True)
    deck.rate = 4096
    for _ in range(3):
        deck.keys("f")
        deck.wait_for("FROZEN")
        deck.keys("f")
        eventually(lambda: "FROZEN" not in deck.screen())
    deck.rate = None
    deck.keys("q")
    assert deck.wait_gone() == 0


@pytest.mark.parametrize("term", ["screen", "linux"])
def test_every_kind_of_terminal_gets_what_it_can_show(terminal: Open, fleet_url: str, term: str) -> None:
    """D26: 16 colours without truecolor sequences; restored at the end."""
    deck = opened(terminal, fleet_url, env={"TERM": term, "COLORTERM": ""})
    deck.keys("q")
    assert deck.wait_gone() == 0
    assert 38 not in sgr(deck.sent)
    assert all(sequence in deck.sent for sequence in RESTORED)


def test_a_light_ground_is_light(terminal: Open, fleet_url: str) -> None:
    deck = opened(terminal, fleet_url, "--theme", "light", env={"TERM": "xterm-256color"})
    deck.keys("q")
    assert deck.wait_gone() == 0
    assert b"48;2;255;255;255" in deck.sent and b"48;2;13;17;23" not in deck.sent


def test_a_profile_says_how_the_deck_opens(terminal: Open, fleet_url: str, tmp_path: Path) -> None:
    """The command line beats the profile, the profile the environment; a password in it is told nowhere."""
    path = tmp_path / "profiles.toml"
    path.write_text(
        f"[night]\ndsn = '{fleet_url}'\nread_only = true\nascii = true\nmouse = false\nwindow = '6h'\ntheme = 'light'\n"
        "[broken]\ndsn = 'postgresql://me:hunter2@127.0.0.1:1/none'\n"
    )
    env = {"FLIGHTDECK_PROFILE": "night", "FLIGHTDECK_DB_URL": "postgresql://nobody@127.0.0.1:1/none"}
    deck = terminal("--profiles", str(path), "--theme", "dark", env=env)
    deck.wait_for("attic")
    deck.wait_for(" 6h ")
    deck.wait_for("read-only")
    deck.keys("q")
    assert deck.wait_gone() == 0
    assert deck.sent.isascii() and b"\x1b[?1000h" not in deck.sent and b"48;2;13;17;23" in deck.sent
    other = terminal("--profiles", str(path), "--profile", "broken")
    other.wait_for("NO DATABASE")
    other.keys("q")
    assert other.wait_gone() == 0
    assert b"hunter2" not in other.sent


def test_a_profile_that_makes_no_sense_is_one_line(terminal: Open, tmp_path: Path) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text("[night]\ndsn = 'mysql://me:hunter2@db'\n")
    deck = terminal("--profiles", str(path), "--profile", "night", size=(240, 24))
    assert deck.wait_gone() == 2
    assert b"[night] dsn: must begin with" in deck.sent and b"hunter2" not in deck.sent
    assert deck.sent.count(b"\n") == 1


def test_any_size_is_survived_in_any_order(terminal: Open, fleet_url: str) -> None:
    """D3: from nothing to 300x100, at random and faster than it can draw; the last one is drawn right."""
    deck = opened(terminal, fleet_url)
    chance = random.Random(7)
    for _ in range(40):
        deck.resize(
            chance.choice((0, 1, 3, 20, 49, 50, 80, 120, 210, 300)), chance.choice((0, 1, 3, 8, 9, 24, 40, 100))
        )
        time.sleep(chance.choice((0.0, 0.0, 0.03)))
    deck.resize(300, 100)
    deck.resize(80, 24)
    eventually(lambda: "attic" in deck.screen() and "quit" in deck.screen().split("\n")[-1], what="the last size")
    deck.keys("q")
    assert deck.wait_gone() == 0


def test_a_size_that_no_signal_told_is_noticed(terminal: Open, fleet_url: str) -> None:
    """D3: two changes in one breath may be heard in the wrong order; the terminal itself is asked once a second."""
    deaf = "import signal as s\ntake = s.signal\ns.signal = lambda n, h: None if n == s.SIGWINCH else take(n, h)"
    deck = opened(terminal, fleet_url, prelude=deaf)
    deck.resize(80, 24)
    eventually(lambda: "attic" in deck.screen() and "quit" in deck.screen().split("\n")[-1], what="the new size")
    deck.keys("q")
    assert deck.wait_gone() == 0


def test_suspend_gives_the_terminal_back_and_continue_draws_it_again(terminal: Open, fleet_url: str) -> None:
    """SIGTSTP and SIGCONT, as ctrl+z of a shell with job control does."""
    deck = terminal("--db", fleet_url)
    before = deck.flags()
    deck.wait_for("attic")
    os.kill(deck.pid, signal.SIGTSTP)
    eventually(lambda: stopped(deck.pid), what="the deck to stop")
    assert deck.flags() == before
    eventually(lambda: all(sequence in deck.sent for sequence in RESTORED), what="the terminal to be given back")
    sent = len(deck.sent)
    os.kill(deck.pid, signal.SIGCONT)
    eventually(lambda: b"\x1b[?1049h" in deck.sent[sent:] and b"attic" in deck.sent[sent:], what="a new picture")
    eventually(lambda: deck.flags() != before)
    deck.keys("q")
    assert deck.wait_gone() == 0
    assert deck.flags() == before


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


class Tmux:
    """A tmux server of its own, on a socket in the test's directory."""

    def __init__(self, directory: Path) -> None:
        self.socket = directory / "tmux"

    def __call__(self, *args: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self.socket), "-f", "/dev/null", *args],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout

    def text(self) -> str:
        return self("capture-pane", "-p")


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    server = Tmux(tmp_path)
    yield server
    server("kill-server")


def test_inside_tmux_it_looks_the_same_and_leaves_the_shell_as_it_was(
    tmux: Tmux, terminal: Open, fleet_url: str, tmp_path: Path
) -> None:
    """D22, D26: drawn by another terminal's hand; a detached session goes on and is drawn when somebody attaches. Where tmux
    is not installed, its TERM in a plain terminal."""
    if shutil.which("tmux") is None:
        deck = opened(terminal, fleet_url, env={"TERM": "screen-256color", "COLORTERM": ""}, answers=True)
        deck.keys("q")
        assert deck.wait_gone() == 0
        return
    code = "import sys; sys.argv[0] = 'flightdeck'; from flightdeck.cli import main; main()"
    line = f'PYTHONPATH={ROOT} {sys.executable} -c "{code}" --db {fleet_url}'
    tmux("new-session", "-d", "-x", "120", "-y", "40", "sh")
    tmux("send-keys", f"cd {ROOT}; PS1='ready$ '; clear", "Enter")
    tmux("send-keys", line, "Enter")
    eventually(lambda: "attic" in tmux.text() and "quit" in tmux.text(), 60, "the deck in a detached session")
    tmux("resize-window", "-x", "80", "-y", "24")
    eventually(lambda: "attic" in tmux.text() and max(map(len, tmux.text().split("\n"))) <= 80)
    tmux("send-keys", "f")
    eventually(lambda: "FROZEN" in tmux.text())
    tmux("send-keys", "q")
    eventually(lambda: tmux.text().rstrip().endswith("ready$"), what="the shell's prompt alone")
    assert "attic" not in tmux.text().split("ready$")[-1]
    assert tmux("display-message", "-p", "#{cursor_flag} #{mouse_any_flag} #{alternate_on}").split() == ["1", "0", "0"]


def test_a_lane_row_of_hostile_names_reaches_no_terminal(terminal: Open, sqlite_store: Store) -> None:
    """D19, D20: through the whole way: database, feed, model, screen, bytes."""
    add_lane(sqlite_store)
    evil = "a\x1b]52;c;aGk=\x07\x9b31m[bold]x[/][@click=app.quit]\u202e"
    with sqlite_store.connect("test") as db:
        db.run(
            "insert into worker_heartbeats (box, queue, incarnation, state, slots, current_model, last_seen) "
            "values ({box}, {queue}, 'x', 'running', 1, {model}, {clock})",
            box=f"b{evil}", queue=f"q{evil}", model=evil,
        )  # fmt: skip
    deck = opened(terminal, sqlite_store.url)
    deck.wait_for("[bold]x[/]")
    deck.keys("2")
    deck.wait_for("2 jobs")
    deck.keys("\x1b")
    deck.wait_for("1 fleet")
    deck.keys("q")
    assert deck.wait_gone() == 0
    sent = re.sub(r"\x1b\]22;\w+\x07", "", deck.sent.decode())  # Textual's own: the pointer's shape
    assert "\x1b]52" not in sent and not any(char in "\x07\u202e" or "\x80" <= char <= "\x9f" for char in sent)
