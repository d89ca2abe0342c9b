"""When the deck draws: what is urgent at once, samples of several boxes together, ages now and then, nothing twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from textual.screen import ModalScreen

from flightdeck.model.deck import Update

if TYPE_CHECKING:
    from flightdeck.app import FlightDeckApp

URGENT_S = 0.05  # what arrives within so long is drawn together
SAMPLE_S = 0.25  # so long a sample waits for those of other boxes
CALM_S = 2.0  # ages and progress of a box are drawn with its samples, without samples that often
AGES_S = 2.5
JUDGE_S = 2.0


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
        self._judged: float | None = None

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
        if not self._urgent and not everything:
            drawn = self._sampled | {box for box, since in self._stale.items() if now >= since + CALM_S - 0.05}
        self._urgent = False
        self._sampled -= drawn
        for box in drawn:
            self._stale.pop(box, None)
        self.draw_now(drawn)
        self._plan(now)

    def draw_now(self, changed: set[str] | None = None) -> None:
        """Draw the top screen, and what can be seen behind it where it is a small box. ``changed`` None: everything."""
        for screen in reversed(self.app.screen_stack):
            if hasattr(screen, "redraw"):
                screen.redraw(changed)
            if not isinstance(screen, ModalScreen):
                return

    def tick(self) -> None:
        """Once a second the header and the event line; every other second the ages of what no sample has redrawn."""
        app = self.app
        self._ticks += 1
        app.forget_message()
        self._judge()
        page = app.page()
        if page is None or not page.ready:
            return
        page.draw_edges()
        if self._ticks % 2 == 0 and app.frozen is None:
            page.redraw_old(AGES_S)
