"""When the deck draws: what is urgent at once, samples of several boxes together, ages now and then, nothing twice."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from textual.screen import ModalScreen

from flightdeck.model.deck import Update

if TYPE_CHECKING:
    from flightdeck.app import FlightDeckApp

URGENT_S = 0.05  # what arrives within so long is drawn together
SAMPLE_S = 0.25  # so long a sample waits for those of other boxes
TICK_S = 1.0
MEET_S = 0.75  # so long it waits for the tick, so that both are one frame
MOVE_S = 10.0  # so often the tick may be moved to where samples meet it
CALM_S = 2.0  # ages and progress of a box are drawn with its samples, without samples that often
AGES_S = 2.5
JUDGE_S = 2.0


def meeting(phases: Sequence[float]) -> float | None:
    """When in its second the tick has to come so that samples which come at these parts of a second wait at most MEET_S for
    it, and most of them not long. None: there is no such time."""
    found = sorted(phases)
    pause, phase = max((later - at, at) for at, later in pairwise([*found, found[0] + TICK_S]))
    return (phase + URGENT_S) % TICK_S if pause > TICK_S - MEET_S + URGENT_S else None


class Schedule:
    """Collects which boxes look different and draws them at the right time. Lives on the UI thread."""

    def __init__(self, app: FlightDeckApp) -> None:
        self.app = app
        self._stale: dict[str, float] = {}  # boxes that look different, and since when
        self._sampled: set[str] = set()  # those of them that have a new sample
        self._urgent = False
        self._timer: asyncio.TimerHandle | None = None
        self._flushed = self._due = 0.0
        self._ticks = 0
        self._beat: asyncio.TimerHandle | None = None
        self._moved = float("-inf")
        self._phases: deque[float] = deque(maxlen=12)  # when samples came, as parts of a tick
        self._missed = False  # samples wait that are drawn before the next tick
        self._judged: float | None = None

    def start(self) -> None:
        """Begin to tick, on the loop that runs."""
        self._tick_at(asyncio.get_running_loop().time() + TICK_S)

    def stop(self) -> None:
        for timer in (self._beat, self._timer):
            if timer is not None:
                timer.cancel()
        self._beat = self._timer = None

    def _tick_at(self, when: float) -> None:
        """By the loop's clock; without Textual's timers, which cost more than what is done then."""
        if self._beat is not None:
            self._beat.cancel()
        self._beat = asyncio.get_running_loop().call_at(when, self._due_tick)

    def _due_tick(self) -> None:
        beat, self._beat = self._beat, None
        if self.app.ended or beat is None:
            return
        late = asyncio.get_running_loop().time() - beat.when()
        self._tick_at(beat.when() + TICK_S * (1 + late // TICK_S))
        self.app.guarded(self.app.tick)

    def take_in(self, update: Update) -> None:
        """Take one update into the read model. What is urgent is drawn at once, a box with a new sample very soon, the
        rest together with that box's next sample or every other second."""
        app = self.app
        changed, urgent = app.deck.apply(update)
        if app.ended:
            return
        app.told(app.alerts.take(update, app.deck))
        self._judge()
        if app.frozen is not None:
            self.draw_now(set())
            return
        now = app.clock.mono()
        for box in changed:
            self._stale.setdefault(box, now)
        self._sampled |= changed & {sample.box for sample in update.samples}
        if update.samples and app.loop is not None:
            self._phases.append(app.loop.time() % TICK_S)
        self._urgent = self._urgent or urgent
        self._plan(now)

    def _judge(self) -> None:
        """Look for alerts, every other second."""
        app = self.app
        now = app.clock.mono()
        if app.deck.loaded and (self._judged is None or abs(now - self._judged) >= JUDGE_S):
            first, self._judged = self._judged is None, now
            app.told(app.alerts.look(app.deck), first)

    def _plan(self, now: float) -> None:
        """Set the time of the next drawing."""
        app = self.app
        if self._urgent:
            due = now + URGENT_S
        elif self._sampled:
            due = max(now + SAMPLE_S, self._flushed + 2 * SAMPLE_S)
            if self._beat is not None and app.loop is not None:
                tick_s = self._beat.when() - app.loop.time()
                self._missed = self._missed or tick_s > MEET_S
                due = max(now, now + tick_s) + URGENT_S if not self._missed else due
        elif self._stale:
            due = min(self._stale.values()) + CALM_S
        else:
            return
        if app.loop is None or (self._timer is not None and self._due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = app.loop.call_later(max(0.0, due - now), app.guarded, self.flush, False)

    def flush(self, everything: bool = True) -> None:
        """Draw what has changed since the last time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._flushed = self.app.clock.mono()
        drawn = set(self._stale)
        if self._missed and not self._urgent and not everything:
            self._move_tick(now)
        self._missed = False
        if not self._urgent and not everything:
            drawn = self._sampled | {box for box, since in self._stale.items() if now >= since + CALM_S - 0.05}
        self._urgent = False
        self._sampled -= drawn
        for box in drawn:
            self._stale.pop(box, None)
        self.draw_now(drawn)
        self._plan(now)

    def _move_tick(self, now: float) -> None:
        """Samples that do not meet the tick cost a frame of their own: let it come behind those after which none come for a
        while. Rarely, for the clock on the screen moves with it."""
        if self._beat is None or not self._phases or abs(now - self._moved) < MOVE_S:
            return
        self._moved = now
        phase = meeting(self._phases)
        if phase is not None:
            loop_s = asyncio.get_running_loop().time()
            self._tick_at(loop_s + (phase - loop_s) % TICK_S)

    def draw_now(self, changed: set[str] | None = None) -> None:
        """Draw the top screen, and what can be seen behind it where it is a small box. ``changed`` None: everything."""
        for screen in reversed(self.app.screen_stack):
            if hasattr(screen, "redraw"):
                screen.redraw(changed)
            if not isinstance(screen, ModalScreen):
                return

    def tick(self) -> None:
        """Once a second the header and the event line, together with the samples that wait; every other second the ages of
        what no sample has redrawn."""
        app = self.app
        self._ticks += 1
        app.forget_message()
        self._judge()
        page = app.page()
        if page is None or not page.ready:
            return
        if self._sampled and app.frozen is None:
            self.flush(False)
        else:
            page.draw_edges()
        if self._ticks % 2 == 0 and app.frozen is None:
            page.redraw_old(AGES_S)
