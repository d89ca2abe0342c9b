"""The deck on a recording: the same pages and keys, no orders, and keys to stop, hasten and move time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flightdeck import actions as table
from flightdeck.app import FlightDeckApp
from flightdeck.looking import Looker
from flightdeck.model import units
from flightdeck.recording import Recording
from flightdeck.replay import Player, Playhead, RecordedAnswers, place
from flightdeck.screens.dialog import PromptScreen

if TYPE_CHECKING:
    from engine.feed import FeedUpdate

JUMP_S = 60.0


class ReplayApp(FlightDeckApp):
    """``looks``: as FlightDeckApp's. Always read-only."""

    def __init__(self, recording: Recording, head: Playhead, **looks: Any) -> None:
        super().__init__(None, read_only=True, clock=head.clock(), **looks)
        self.recording = recording
        self.head = head
        self.scene.played = head.words
        answers = RecordedAnswers(recording, head, self.soon)
        self.reader = answers
        self.player = Player(
            recording, head, lambda updates, afresh: self.soon(self.show_updates, updates, afresh), answers.look
        )
        self.looker = ReplayLooker(self)
        self.actions = (*table.REPLAY, *self.actions)  # first on the key line: these are what it is about
        for action in table.REPLAY:
            self.bind(",".join(action.keys), f"act('{action.id}')", description=action.title, show=False)

    def on_mount(self) -> None:
        self.feed = self.player  # type: ignore[assignment]
        self.call_later(self._begin)

    def _begin(self) -> None:
        """Not before the fleet's page is there."""
        self.player.start()
        self.say(*what_it_is(self.recording), 12.0)

    def show_updates(self, updates: list[FeedUpdate], afresh: bool) -> None:
        """What is due at this time of the recording; ``afresh``: time has jumped, what was known before does not hold."""
        if afresh:
            self.freeze(False)
            self.looker.held, self.scene.window = False, self.scene.window.released()
            self.deck.forget()
            self.alerts.forget()
            self.alerts.forget()
        for update in updates:
            self.take_in(update)
        if afresh:
            self.flush()

    def say(self, text: str, tone: str = "text", seconds: float = 8.0) -> None:
        """For so many seconds of ours: the recording's may stand."""
        super().say(text, tone, seconds)
        if self._message is not None:
            self._message = (*self._message[:2], time.monotonic() + seconds)

    def forget_message(self) -> None:
        if self._message is not None and time.monotonic() > self._message[2]:
            self._message = None


class ReplayLooker(Looker):
    """What the keys of a replay do."""

    app: ReplayApp

    def _tell(self, words: str) -> None:
        self.app.say(words, "info", 3.0)
        self.app.draw_now()

    def do_play(self) -> None:
        self.app.head.toggle()
        self._tell("paused" if not self.app.head.running else f"playing, {self.app.head.words()}")

    def do_faster(self) -> None:
        self.app.head.change_speed(1)
        self._tell(f"speed x{self.app.head.speed:g}")

    def do_slower(self) -> None:
        self.app.head.change_speed(-1)
        self._tell(f"speed x{self.app.head.speed:g}")

    def do_earlier(self) -> None:
        self._jump(self.app.head.position() - JUMP_S)

    def do_later(self) -> None:
        self._jump(self.app.head.position() + JUMP_S)

    def _jump(self, to_s: float) -> None:
        head = self.app.head
        head.jump(to_s)
        minutes, seconds = divmod(int(head.position()), 60)
        whole, rest = divmod(int(head.duration_s), 60)
        self._tell(f"at {minutes}:{seconds:02} of {whole}:{rest:02}")

    def do_goto(self) -> None:
        from engine.errors import BadInput

        app = self.app

        def go(text: str | None) -> None:
            if not text:
                return
            try:
                self._jump(place(text, app.recording, app.head.position()))
            except BadInput as error:
                app.say(str(error), "bad")

        app.push_screen(PromptScreen("GO TO", "", "14:03:22, 90s, +1m, -1m, start, end"), go)


def open_replay(path: str, *, speed: float = 1.0, at: str | None = None, **looks: Any) -> int:
    """Play a file back in this terminal; the exit code. Raises BadInput."""
    from flightdeck.term.session import Session, check_terminal, no_color, pick_theme

    recording = Recording.load(Path(path))
    at_s = place(at, recording) if at else 0.0
    check_terminal()
    looks["theme"] = pick_theme(looks.get("theme"))
    app = ReplayApp(recording, Playhead(recording, at_s, speed), store_name=Path(path).name, plain=no_color(), **looks)
    return Session(app).run()


def what_it_is(recording: Recording) -> tuple[str, str]:
    """When it was made, how long it is, what is wrong with it; and the tone to say it in."""
    text = f"recorded {recording.header.at.astimezone():%Y-%m-%d %H:%M}, {units.age(recording.duration_s)}"
    if recording.skipped:
        text += f"; {recording.skipped} lines could not be read"
    if recording.cut:
        text += "; its end is missing"
    return text, "warn" if recording.skipped or recording.cut else "info"
