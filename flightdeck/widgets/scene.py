"""What drawing needs to know besides the thing drawn: the read model, the cursor, the looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from flightdeck.alerts import Alerts
from flightdeck.model.axis import Window
from flightdeck.model.deck import Deck
from flightdeck.model.fleet import Box, Job, Lane
from flightdeck.model.slots import Pair
from flightdeck.model.traces import History
from flightdeck.widgets.lines import UNICODE, Glyphs, Line
from flightdeck.widgets.trace_picture import TraceCache


@dataclass
class Cursor:
    """Which box, and in it which lane row or job. Names, not positions: rows may come and go."""

    box: str = ""
    lane: str = ""  # raw queue name
    job: str = ""  # job id; empty: the lane is meant


@dataclass(frozen=True)
class Shape:
    """How many rows the parts of a card want: the largest over all cards, so that their traces line up."""

    meters: int
    lanes: int
    details: int

    def covering(self, other: Shape) -> Shape:
        return Shape(max(self.meters, other.meters), max(self.lanes, other.lanes), max(self.details, other.details))


@dataclass
class Scene:
    """One drawing's context. ``project`` None is ``all``."""

    deck: Deck
    cursor: Cursor = field(default_factory=Cursor)
    project: str | None = None
    glyphs: Glyphs = UNICODE
    shape: Shape | None = None
    name_cells: int = 18  # the longest name among the boxes shown
    shape_height: int = 0  # the lowest card's inner rows
    traces: TraceCache = field(default_factory=TraceCache)
    lane_lines: dict[str, tuple[tuple[object, ...], list[tuple[Line, str]]]] = field(
        default_factory=dict
    )  # as drawn last
    window: Window = field(default_factory=Window)  # of every trace of every box on every page
    alerts: Alerts | None = None
    played: Callable[[], str] | None = None  # how a recording is played back; None: this is live

    def end(self) -> datetime:
        """The right edge of the time axis; it stands while the picture is frozen."""
        return self.deck.now()

    def at(self) -> datetime | None:
        """The instant that is looked at; None: nobody scrubs."""
        back = self.window.back_s
        return None if back is None else self.end() - timedelta(seconds=back)

    def past(self, box: Box) -> History:
        """What is known of a box over the window."""
        return self.deck.past(box, self.window.span_s)

    def reading(self, box: Box, key: str) -> Pair | None:
        """Lowest and highest reading of a metric at the instant that is looked at."""
        at = self.at()
        return None if at is None else self.past(box).at(key, at, self.window.step_s)

    def lanes(self, box: Box) -> tuple[Lane, ...]:
        return self.deck.lanes(box, self.project)

    def jobs(self, box: Box) -> tuple[Job, ...]:
        """Running jobs of a box: those of the project's tab, longest running first."""
        jobs = box.jobs if self.project is None else tuple(job for job in box.jobs if job.raw_project == self.project)
        return tuple(sorted(jobs, key=lambda job: -(job.age_s or 0.0)))

    def hidden_jobs(self, box: Box) -> int:
        """Jobs that run but are not listed by the view."""
        return box.running - len(box.jobs) if self.project is None else 0
