"""The read model: what the deck knows right now, fed by updates, asked by widgets. Knows no terminal and no database."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from engine.display.lanes import LANE_SILENT_S
from flightdeck.model.axis import HOUR_S, SPANS_S, slot_step
from flightdeck.model.fleet import (
    SAMPLE_GONE_S,
    SAMPLE_LATE_S,
    Box,
    Event,
    Lane,
    Project,
    View,
    merge_lanes,
)
from flightdeck.model.lanes import counts, lane_word
from flightdeck.model.slots import STEP_S, slot_of
from flightdeck.model.text import clean
from flightdeck.model.traces import History
from flightdeck.model.view import Classes, ViewReader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.telemetry.sample import BoxSample


class Update(Protocol):
    """What the feed brings (engine.feed.FeedUpdate)."""

    @property
    def state(self) -> str: ...
    @property
    def at(self) -> datetime | None: ...
    @property
    def mono(self) -> float: ...
    @property
    def error(self) -> str | None: ...
    @property
    def next_try_s(self) -> float | None: ...
    @property
    def lost_since_mono(self) -> float | None: ...
    @property
    def view(self) -> Mapping[str, Any] | None: ...
    @property
    def samples(self) -> Sequence[BoxSample]: ...
    @property
    def history(self) -> Mapping[str, Sequence[BoxSample]] | None: ...


@dataclass
class Clock:
    """Where times come from; tests and still frames replace both."""

    mono: Callable[[], float]
    wall: Callable[[], datetime]


@dataclass
class Link:
    """The state of the connection to the database."""

    state: str = "connecting"
    error: str = ""
    mono: float | None = None  # when the last update was made
    next_try_mono: float | None = None
    lost_since: float | None = None
    live_mono: float | None = None  # when the database last answered


@dataclass(frozen=True, slots=True)
class _Counted:
    """Lanes of a box (parked, draining, down); true while the ages of the view have grown by ``since_s`` to ``until_s``."""

    box: Box
    since_s: float
    until_s: float
    lanes: tuple[int, int, int]


@dataclass
class Deck:
    """Everything on screen that is not the cursor."""

    clock: Clock
    view: View = field(default_factory=View)
    view_mono: float = 0.0  # from when on the ages of the view count
    histories: dict[str, History] = field(default_factory=dict)
    link: Link = field(default_factory=Link)
    loaded: bool = False
    loaded_mono: float = 0.0  # when the first view came
    young_s: float = 0.0  # so long after that a missing leader is no news: it may be starting, too
    classes: Classes = ()  # levels of a profile, before those that are known of a class of hardware
    pasts: dict[tuple[str, int], History] = field(default_factory=dict)  # longer than an hour, by box and span
    _reader: ViewReader | None = None
    _all: tuple[View, int, tuple[Box, ...]] | None = None  # boxes(), of a view and so many histories
    _counted: dict[str, _Counted] = field(default_factory=dict)
    _rows: dict[tuple[str, str | None], tuple[tuple[Lane, ...], tuple[Lane, ...]]] = field(default_factory=dict)
    _skew: timedelta | None = None  # database time minus the monotonic clock's epoch

    def apply(self, update: Update) -> tuple[set[str], bool]:
        """Take one update in. Returns the boxes that look different, and whether that cannot wait: a lane that changed
        its state, a box that came or went, a connection that was lost or is back."""
        link = self.link
        before = link.state
        link.state, link.mono = update.state, update.mono
        link.error = clean(update.error, 200)
        link.lost_since = update.lost_since_mono
        link.next_try_mono = None if update.next_try_s is None else update.mono + update.next_try_s
        if update.state == "live":
            link.live_mono = update.mono
        if update.at is not None:
            self._skew = update.at - datetime.fromtimestamp(update.mono, UTC)
        changed: set[str] = set()
        urgent = before != update.state
        if update.history:
            for raw, rows in update.history.items():
                known = self.histories.get(raw)
                self.histories[raw] = history = History()
                if known is not None:
                    history.ranges = known.ranges  # an axis does not jump because its past was read again
                history.load(rows)
                changed.add(raw)
        for sample in update.samples:
            if sample.box not in self.histories:
                self.histories[sample.box] = History()
                urgent = True
            self.histories[sample.box].add(sample, update.at)
            changed.add(sample.box)
            for span_s in SPANS_S if self.pasts else ():
                past = self.pasts.get((sample.box, span_s))
                if past is not None:
                    past.add(sample)  # until the database is asked again
        if update.view is not None:
            view, view_mono = self._read(update)
            old = {box.raw: box for box in self.view.boxes}
            if [box.raw for box in view.boxes] != list(old) or view.leader != self.view.leader:
                urgent = True
            for box in view.boxes:
                if (known_box := old.get(box.raw)) is not box and known_box != box:
                    changed.add(box.raw)
                    urgent = urgent or box.raw not in old or _states(box) != _states(old[box.raw])
            urgent = urgent or _telling(view) != _telling(self.view)
            if not self.loaded:
                self.loaded_mono = update.mono
            self.view, self.view_mono, self.loaded = view, view_mono, True
        return (changed | {box.raw for box in self.boxes()} if before != update.state else changed), urgent

    def _read(self, update: Update) -> tuple[View, float]:
        """The view of an update, and from when on its ages count (monotonic seconds)."""
        if self._reader is None or self._reader.classes != tuple(self.classes):
            self._reader = ViewReader(tuple(self.classes))
        return self._reader.read(update.view or {}, update.mono), self._reader.mono

    def frozen_copy(self) -> Deck:
        """A still picture: its clock stands at this moment."""
        mono, wall = self.clock.mono(), self.clock.wall()
        still = copy.copy(self)
        still.clock = Clock(lambda: mono, lambda: wall)
        still.histories = {name: history.copy() for name, history in self.histories.items()}
        still.pasts = {key: history.copy() for key, history in self.pasts.items()}
        still.link = copy.copy(self.link)
        return still

    def forget(self) -> None:
        """Know nothing, as at the start (a replay has jumped)."""
        self.view, self.view_mono, self.loaded, self._skew = View(), 0.0, False, None
        self.histories, self.pasts, self.link = {}, {}, Link()
        self._reader = self._all = None

    # -- times

    def now(self) -> datetime:
        """The database's clock as far as we know it; the local one before the first answer."""
        if self._skew is None:
            return self.clock.wall()
        return datetime.fromtimestamp(self._data_mono(), UTC) + self._skew

    def _data_mono(self) -> float:
        """While the database is away nothing can be judged: time stands still for states, not for the ages of the banner."""
        if self.link.state == "lost" and self.link.live_mono is not None:
            return self.link.live_mono
        return self.clock.mono()

    def view_age(self) -> float:
        """What the ages of the view must be advanced by, in seconds."""
        return max(0.0, self._data_mono() - self.view_mono) if self.loaded else 0.0

    def live_age(self) -> float | None:
        """Seconds since the database last answered."""
        return None if self.link.live_mono is None else max(0.0, self.clock.mono() - self.link.live_mono)

    # -- what is on screen

    def boxes(self) -> tuple[Box, ...]:
        """Boxes of the view, then boxes that so far only sent samples."""
        of = self.view, len(self.histories)  # none is ever taken out
        if self._all is None or self._all[0] is not of[0] or self._all[1] != of[1]:
            named = {box.raw for box in self.view.boxes}
            extra = tuple(_unknown_box(raw) for raw in self.histories if raw not in named)
            self._all = *of, self.view.boxes + extra
        return self._all[2]

    def history(self, box: Box) -> History:
        return self.histories.get(box.raw) or _EMPTY

    def past(self, box: Box, span_s: int) -> History:
        """What is known of a box over a span: up to an hour from its samples, beyond it what was read; empty before."""
        if span_s <= HOUR_S:
            return self.history(box)
        return self.pasts.get((box.raw, span_s)) or _EMPTY_PASTS[slot_step(span_s)]

    def take_past(self, raw: str, span_s: int, answer: Mapping[str, Any]) -> None:
        """Keep the answer to the question "span" for a box."""
        past = History(slot_step(span_s))
        past.load_span(answer)
        before = self.pasts.get((raw, span_s))
        if before is not None:
            past.ranges = before.ranges
        self.pasts[(raw, span_s)] = past

    def sample_age(self, box: Box) -> float | None:
        latest = self.history(box).latest
        return None if latest is None else max(0.0, (self.now() - latest.at).total_seconds())

    def box_state(self, box: Box) -> str:
        """``up``, ``late``, ``down`` (see also :meth:`ended`), ``blind`` (lanes beat but nothing measures) or ``new``
        (never heard of yet)."""
        age = self.sample_age(box)
        if age is not None and age <= SAMPLE_GONE_S:
            return "up" if age <= SAMPLE_LATE_S else "late"
        since = self.view_age()
        if any(not lane.silent(since) and lane.last_seen_s is not None for lane in box.lanes):
            return "blind"
        return "new" if age is None and not box.lanes else "down"

    def ended(self, box: Box) -> bool:
        """Whether every lane of it went in order: somebody stopped this box, so that its silence is no fault."""
        age = self.view_age()
        return bool(box.lanes) and all(lane_word(lane, age).text == "ended" for lane in box.lanes)

    def end_slot(self, box: Box, step_s: int = STEP_S) -> int:
        """The slot at the right edge of every trace."""
        return slot_of(self.now(), step_s)

    def leaderless(self) -> bool:
        """Whether there is no orchestrator that leads, and that is worth telling."""
        old = self.clock.mono() - self.loaded_mono >= self.young_s
        return self.loaded and self.view.leader is False and old

    def standing(self) -> tuple[int, int, int]:
        """Lanes (parked, draining, down) of the whole fleet. Only boxes that are new are counted, and those of which a lane
        has fallen silent since."""
        age, before, self._counted = self.view_age(), self._counted, {}
        found = []
        for box in self.view.boxes:
            known = before.get(box.raw)
            if known is None or known.box is not box or not known.since_s <= age <= known.until_s:
                known = _Counted(box, age, _next_silence(box, age), counts((box,), age))
            self._counted[box.raw] = known
            found.append(known.lanes)
        parked, draining, down = (sum(lanes[which] for lanes in found) for which in range(3))
        return parked, draining, down

    def lanes(self, box: Box, project: str | None) -> tuple[Lane, ...]:
        """Rows of a box: merged per queue in ``all`` (None), else those of one project."""
        key = (box.raw, project)
        kept = self._rows.get(key)
        if kept is None or kept[0] is not box.lanes:
            mine = tuple(lane for lane in box.lanes if lane.raw_project == project)
            kept = self._rows[key] = (box.lanes, merge_lanes(box.lanes) if project is None else mine)
        return kept[1]

    def events(self, project: str | None) -> tuple[Event, ...]:
        if project is None:
            return self.view.events
        return tuple(event for event in self.view.events if event.raw_project == project)

    def projects(self) -> tuple[Project, ...]:
        return self.view.projects


_EMPTY = History()
_EMPTY_PASTS = {slot_step(span_s): History(slot_step(span_s)) for span_s in SPANS_S}


def _telling(view: View) -> str:
    """The newest event that is more than the end of a job."""
    return next((event.id for event in view.events if event.kind != "completed"), "")


def _next_silence(box: Box, age: float) -> float:
    """Up to which age of the view no other lane of the box falls silent, seconds."""
    beats = [lane.last_seen_s for lane in box.lanes if lane.last_seen_s is not None and not lane.silent(age)]
    return LANE_SILENT_S - max(beats) if beats else math.inf


def _states(box: Box) -> list[tuple[object, ...]]:
    """What of a box an operator waits for."""
    return [(lane.queue, lane.project, lane.state, lane.desired, lane.policy, lane.flagged) for lane in box.lanes]


def _unknown_box(raw: str) -> Box:
    return Box(clean(raw, 60) or "?", raw, "", "", False, "", None, None, "", (), (), (), 0)
