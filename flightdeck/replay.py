"""Plays a recording back: a clock that can be stopped, hastened and moved, and a feed and answers that follow it.

No terminal and no database: :mod:`flightdeck.replay_app` shows it on the deck's own screens.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from engine.errors import BadInput
from engine.feed import FeedUpdate
from flightdeck.model.deck import Clock
from flightdeck.reader import Answer, Ask, Take, owner_of
from flightdeck.recording import Recording
from flightdeck.rounds import narrow, wider

BASE = 1_000.0  # what the recorded monotonic clock says at the start
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
STEP_S = 0.05  # updates that are due within so long are brought together
NOT_RECORDED = "not in this recording"


class Playhead:
    """Where in the recording we are. Every change notifies ``moved``; positions are seconds since its start."""

    def __init__(
        self, recording: Recording, at_s: float = 0.0, speed: float = 1.0, mono: Callable[[], float] = time.monotonic
    ) -> None:
        self.duration_s = recording.duration_s
        self.started = recording.header.at
        self.speed = speed
        self.running = True
        self.jumps = 0
        self.moved = threading.Condition()
        self._mono = mono
        self._from = min(max(0.0, at_s), self.duration_s)
        self._since = mono()

    def position(self) -> float:
        """Never past the end: there time stands still."""
        gone = (self._mono() - self._since) * self.speed if self.running else 0.0
        return min(self._from + max(0.0, gone), self.duration_s)

    @property
    def ended(self) -> bool:
        return self.position() >= self.duration_s

    def clock(self) -> Clock:
        """The recorded clocks, for a deck: ages and times are those of then."""
        return Clock(
            lambda: BASE + self.position(), lambda: self.started + timedelta(seconds=self.position())
        )  # fmt: skip

    def toggle(self) -> None:
        """Stop, or go on; at the end: from the start again."""
        if self.running and self.ended:
            self.jump(0.0)
            return
        self._set(self.position(), not self.running, self.speed)

    def change_speed(self, by: int) -> None:
        """To the next speed of the list, up or down."""
        index = min(range(len(SPEEDS)), key=lambda index: abs(SPEEDS[index] - self.speed))
        self._set(self.position(), self.running, SPEEDS[min(max(0, index + by), len(SPEEDS) - 1)])

    def jump(self, to_s: float) -> None:
        self._set(min(max(0.0, to_s), self.duration_s), self.running, self.speed, jumped=True)

    def words(self) -> str:
        """How it plays: ``x4``, ``paused`` or ``end``."""
        if not self.running:
            return "paused"
        return "end" if self.ended else f"x{self.speed:g}"

    def _set(self, at_s: float, running: bool, speed: float, jumped: bool = False) -> None:
        with self.moved:
            self._from, self._since, self.running, self.speed = at_s, self._mono(), running, speed
            self.jumps += jumped
            self.moved.notify_all()


class Player:
    """The feed of a replay (as engine.feed.Feed): one thread that brings what is due.

    ``show(updates, afresh)`` is called from it; ``afresh``: after a jump, forget what was there before.
    """

    dropped = 0

    def __init__(
        self, recording: Recording, head: Playhead, show: Callable[[list[FeedUpdate], bool], None],
        after: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._recording = recording
        self._head = head
        self._show = show
        self._after = after
        self._times = recording.times()
        self._next = 0  # number of the first update that was not brought yet
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="replay", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        with self._head.moved:
            self._stopped = True
            self._head.moved.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def request_refresh(self) -> None:
        """There is nothing newer than what was recorded."""

    def _run(self) -> None:
        jumps = -1
        while not self._stopped:
            position = self._head.position()
            if self._head.jumps != jumps:
                jumps = self._head.jumps
                self._show(self._recording.still(position, BASE), True)
                self._next = self._count(position, 0)
                self._next = max(1, self._next)  # before the first update there is nothing: it is brought early
            else:
                end = self._count(position, self._next)
                if end > self._next:
                    self._show(together(self._recording.updates(self._next, end, BASE)), False)
                    self._next = end
            self._after()
            with self._head.moved:
                if not self._stopped and self._head.jumps == jumps:
                    self._head.moved.wait(self._pause())

    def _count(self, position: float, first: int) -> int:
        """The number of the first update after ``position``."""
        while first < len(self._times) and self._times[first] <= position:
            first += 1
        return first

    def _pause(self) -> float | None:
        """Real seconds until the next update; None: until something is changed."""
        if not self._head.running or (self._next >= len(self._times) and self._head.ended):
            return None
        due = self._times[self._next] if self._next < len(self._times) else self._head.duration_s
        return max(STEP_S, (due - self._head.position()) / self._head.speed)


def together(updates: Sequence[FeedUpdate]) -> list[FeedUpdate]:
    """The same in fewer: live updates in a row become one, unless one replaces an hour."""
    out: list[FeedUpdate] = []
    for update in updates:
        last = out[-1] if out else None
        if last is None or last.state != "live" or update.state != "live" or update.history is not None:
            out.append(update)
            continue
        view = update.view if update.view is not None else last.view
        out[-1] = replace(update, view=view, samples=last.samples + update.samples, history=last.history)
    return out


class RecordedAnswers:
    """The reader of a replay (as flightdeck.reader.Answers): what was answered at the time that is played.

    ``soon`` hands work to the UI thread. A question that repeats is answered again when the recording has a newer answer.
    """

    def __init__(self, recording: Recording, head: Playhead, soon: Callable[..., None]) -> None:
        self._recording = recording
        self._head = head
        self.soon = soon
        self._asks: dict[Ask, float | None] = {}  # and the time of the answer that it has
        self._jumps = head.jumps
        self._lock = threading.Lock()

    def ask(
        self, name: str, arguments: Mapping[str, Any], take: Take, every_s: float | None = None, owner: object = None
    ) -> Ask:
        ask = Ask(name, dict(arguments), take, every_s, owner_of(take, owner))
        with self._lock:
            for other in self._asks:
                if other.name == name and other.owner is not None and other.owner == ask.owner:
                    other.stop()
            self._asks = {other: at for other, at in self._asks.items() if other.live}
            if every_s is not None:
                self._asks[ask] = None
        self._answer(ask)
        return ask

    def close(self) -> None:
        with self._lock:
            self._asks.clear()

    def look(self) -> None:
        """Answer again what has a newer answer; after a jump everything, for what was known is forgotten."""
        with self._lock:
            if self._jumps != self._head.jumps:
                self._jumps = self._head.jumps
                self._asks = dict.fromkeys(self._asks, None)
            waiting = [ask for ask in self._asks if ask.live]
        for ask in waiting:
            self._answer(ask)

    def _answer(self, ask: Ask) -> None:
        found = self._recording.said(ask.name, ask.arguments, self._head.position())
        if found is None and (arguments := wider(ask.name, ask.arguments)) is not None:
            found = self._recording.said(ask.name, arguments, self._head.position())
            if found is not None:
                found = (replace(found[0], value=narrow(ask.arguments, found[0].value)), found[1])
        at = -1.0 if found is None else found[1]
        with self._lock:
            if ask in self._asks:
                if self._asks[ask] == at:
                    return
                self._asks[ask] = at
        if found is None:
            answer = Answer(ask.name, ask.arguments, None, NOT_RECORDED, BASE + self._head.position())
        else:
            answer = Answer(ask.name, ask.arguments, found[0].value, found[0].error, BASE + at)
        self.soon(_deliver, ask, answer)


def _deliver(ask: Ask, answer: Answer) -> None:
    if ask.live:
        ask.take(answer)


def place(text: str, recording: Recording, from_s: float = 0.0) -> float:
    """A place in the recording: ``90s``, ``2m`` from its start; ``+1m``, ``-30s`` from here; ``14:03[:22]`` or an ISO time.

    Times without a zone are the viewer's own. Raises BadInput.
    """
    from engine.orders import parse_span

    word = text.strip()
    if word in ("start", "end"):
        return 0.0 if word == "start" else recording.duration_s
    try:
        if ":" not in word and "T" not in word:
            sign = word[:1] if word[:1] in "+-" else ""
            seconds = 0.0 if word == "0" else parse_span(word.removeprefix(sign) if sign else word).total_seconds()
            return from_s + seconds if sign == "+" else from_s - seconds if sign == "-" else seconds
        start = recording.header.at.astimezone()
        if "T" in word or "-" in word:
            at = datetime.fromisoformat(word)
            at = at if at.tzinfo is not None else at.replace(tzinfo=start.tzinfo)
        else:
            clock = [int(part) for part in word.split(":")]
            hour, minute, second = (*clock, 0)[:3] if len(clock) < 3 else clock
            at = start.replace(hour=hour, minute=minute, second=second, microsecond=0)
            if at < start - timedelta(hours=12):
                at += timedelta(days=1)  # a recording over midnight
    except (ValueError, BadInput):
        raise BadInput(f"{text!r} is no time of the recording; say 14:03:22, 90s, +1m, start or end") from None
    return (at - start).total_seconds()
