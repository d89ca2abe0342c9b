"""The headless change feed: one thread that turns a database into small immutable updates, whatever happens to it.

Reads little: the view once a second, in one statement of which only what is different is taken apart; the past hour once;
from then on samples come as notifications, and the table is asked only for what was missed. Every call has a deadline; a
database that is away is tried again for ever, at most 30 s apart.
"""

from __future__ import annotations

import logging
import os
import random
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from engine import snapshot
from engine.errors import EngineError
from engine.intake import Intake
from engine.snapshot import FleetView
from engine.store import Db, Store, Wakes
from engine.store.migrate import check_schema
from engine.telemetry import history
from engine.telemetry.sample import BoxSample

log = logging.getLogger("engine.feed")

CHANNELS = ("worker_control", "hw_metrics")  # jobs come and go too fast to be told of each

COALESCE_S = 0.1  # what comes within so long becomes one update
COALESCE_MANY_S = 0.5  # of a large fleet, whose boxes sample at any time
GATHER_S = 0.25  # and so long its notifications are left to gather
MANY = 12  # boxes
POLL_S = 30.0  # the feed looks by itself; the wakes need not make it
VIEW_REST = 60.0  # reading the view again waits so many times as long as the last reading kept this thread busy
VIEW_REST_SERVER = 20.0  # and so many times as long as it took at all, which is the server's work
VIEW_MOST_S = 4.0
LOOK_S = 0.1  # SQLite: whether something has changed is looked up that often
CALL_S = 4.0  # deadline of one statement
BACKOFF_FIRST_S = 0.5
BACKOFF_MOST_S = 30.0
FACTS_S = 30.0
LATE_ROWS_S = 15.0  # so long after a hole the recorders have written what they had kept
HOLE_S = 20.0

State = Literal["connecting", "live", "lost"]


@dataclass(frozen=True)
class FeedUpdate:
    """What is new since the update before. ``at``: database clock; ``mono``: ``time.monotonic()`` when it was made."""

    state: State
    at: datetime | None
    mono: float
    error: str | None = None
    next_try_s: float | None = None
    lost_since_mono: float | None = None
    listening: bool = False
    # As fleet_snapshot(), without now, gpus and hour; None: unchanged. A box that is unchanged is the same object as in the
    # view before; its ages count from its own "at".
    view: dict[str, Any] | None = None
    samples: tuple[BoxSample, ...] = ()  # oldest first
    history: dict[str, list[BoxSample]] | None = None  # replaces the hour of the boxes named


class Feed:
    """Watches one store; calls ``on_update`` from its own thread. ``opener`` may raise: then it is tried again."""

    def __init__(
        self,
        opener: Callable[[], Store],
        on_update: Callable[[FeedUpdate], None],
        project: str | None = None,
        read_only: bool = False,
        refresh_s: float = 1.0,
    ) -> None:
        self._opener = opener
        self._on_update = on_update
        self._project = project
        self._read_only = read_only
        self._refresh_s = refresh_s
        self._intake = Intake()
        self._store: Store | None = None
        self._wakes: Wakes | None = None
        self._stop = threading.Event()
        self._asked = threading.Event()
        self._nudge_read, self._nudge_write = os.pipe()
        os.set_blocking(self._nudge_read, False)
        os.set_blocking(self._nudge_write, False)
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._lost_since: float | None = None
        self._facts: dict[str, dict[str, Any]] = {}
        self._fact_rows: list[dict[str, Any]] = []  # what they were made of
        self._facts_read = 0.0
        self._strangers: set[str] = set()  # boxes that sample and have no row of facts; looked for once

    @property
    def dropped(self) -> int:
        """Notifications on hw_metrics that were no samples."""
        return self._intake.dropped

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End the thread. A call to a stopped database is left behind after ``timeout_s``; the thread is a daemon."""
        self._stop.set()
        self._nudge()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def request_refresh(self) -> None:
        """Read the view at the next opportunity; also cuts a wait for the next try short."""
        self._asked.set()
        self._nudge()

    def _nudge(self) -> None:
        try:
            os.write(self._nudge_write, b"x")
        except OSError:
            pass  # full: it is readable anyway

    def _emit(self, state: State, at: datetime | None = None, **rest: Any) -> None:
        listening = self._wakes is not None and self._wakes.state.listening
        update = FeedUpdate(state=state, at=at, mono=time.monotonic(), listening=listening, **rest)
        try:
            self._on_update(update)
        except Exception:
            log.exception("the receiver of the feed failed")

    def _run(self) -> None:
        backoff = BACKOFF_FIRST_S
        self._emit("connecting")
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                try:
                    self._session()
                    return
                except (EngineError, OSError) as error:
                    reason = " ".join(str(error).split())
                except Exception as error:  # a defect must not end the feed: show it and carry on
                    log.exception("feed: unexpected error")
                    reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
                if self._stop.is_set():
                    return
                now = time.monotonic()
                if now - began > 10.0:
                    backoff = BACKOFF_FIRST_S
                if self._lost_since is None:
                    self._lost_since = now
                wait_s = backoff * random.uniform(0.8, 1.2)
                self._emit("lost", error=reason[:500], next_try_s=wait_s, lost_since_mono=self._lost_since)
                self._wait(wait_s)
                self._asked.clear()
                backoff = min(backoff * 2, BACKOFF_MOST_S / 1.2)
        finally:
            if self._wakes is not None:
                self._wakes.close()

    def _rest(self, seconds: float) -> None:
        """Let notifications gather for so long; a nudge ends it."""
        select.select([self._nudge_read], [], [], seconds)

    def _wait(self, seconds: float) -> bool:
        """Wait for a wake, a nudge or the time; True when the wakes have something."""
        watched: list[Any] = [self._nudge_read]
        if self._wakes is not None and self._lost_since is None:
            watched.append(self._wakes.fileno())
        ready, _, _ = select.select(watched, [], [], max(0.0, seconds))
        if self._nudge_read in ready:
            try:
                while os.read(self._nudge_read, 4096):
                    pass
            except BlockingIOError:
                pass
        return len(ready) > (self._nudge_read in ready)

    def _session(self) -> None:
        """One connection's life. Returns when stopped, raises when the database is lost."""
        if self._store is None:
            self._store = self._opener()
        with self._store.connect("deck feed", read_only=self._read_only, timeout_s=CALL_S) as db:
            check_schema(self._store, db)
            _Session(self, self._store, db).run()


class _Session:
    """What holds while one connection lives: when to look at what next."""

    def __init__(self, feed: Feed, store: Store, db: Db) -> None:
        self._feed = feed
        self._store = store
        self._db = db
        self._intake = feed._intake
        self._clock_offset = timedelta()
        self._dirty_since: float | None = None
        self._view_every = feed._refresh_s
        self._fleet = FleetView(feed._project)
        self._viewed = self._checked = self._filled = self._emitted = 0.0
        self._samples: list[BoxSample] = []
        self._fill = False
        self._past_due: float | None = None
        self._past_of: set[str] | None = set()  # whose past is read again then; None: everybody's
        self._listening_since: float | None = None
        self._mark_at: datetime | None = None

    def run(self) -> None:
        feed = self._feed
        self._first()
        while not feed._stop.is_set():
            woken = feed._wait(self._pause())
            if feed._stop.is_set():
                return
            if woken:
                if self._many():  # notifications come all the time: several at once
                    feed._rest(GATHER_S)
                self._take()
            if feed._asked.is_set():
                feed._asked.clear()
                self._dirty_since, self._viewed = 0.0, 0.0
            self._look()

    def _now(self) -> datetime:
        """The database's clock, by ours and the last known difference."""
        return datetime.now(UTC) + self._clock_offset

    def _first(self) -> None:
        """Everything at once: listen, then read, so that nothing falls between."""
        feed, lost_since = self._feed, self._feed._lost_since
        if feed._wakes is None:
            feed._wakes = self._store.wakes(CHANNELS, poll_s=max(POLL_S, feed._refresh_s), look_s=LOOK_S)
        hole = time.monotonic() - lost_since if lost_since is not None else 0.0
        self._clock_offset = self._db.now() - datetime.now(UTC)
        past: dict[str, list[BoxSample]] | None = None
        missed: list[BoxSample] = []
        many = self._db.value("select count(*) from boxes") > MANY
        if many and not self._intake.last:
            self._emit(samples=tuple(self._intake.rows(history.latest(self._db).values())), view=self._view())
        if lost_since is None or hole > HOLE_S or not self._intake.last:
            past = self._in_parts(self._history())
        else:
            missed = self._since()
        if lost_since is not None:
            self._past_due, self._past_of = time.monotonic() + LATE_ROWS_S, None
        view = self._view()
        feed._lost_since = None
        self._emit(view=view, samples=tuple(missed), history=past)

    def _pause(self) -> float:
        """Seconds until something is due."""
        now = time.monotonic()
        due = self._view_due()
        if self._polls():
            due = min(due, self._checked + self._feed._refresh_s)
        if self._samples or self._fill:
            due = min(due, max(self._emitted + self._coalesce_s(), now + 0.02))
        return max(0.0, due - now)

    def _view_due(self) -> float:
        """When the view is to be read again: sooner after an order or a new box, at once when somebody asked."""
        due = self._viewed + self._view_every
        if self._dirty_since is not None:
            due = min(due, max(self._dirty_since + COALESCE_S, self._viewed + 0.5 * self._view_every))
        return due

    def _polls(self) -> bool:
        """Whether samples have to be looked for."""
        assert self._feed._wakes is not None
        return self._store.kind == "sqlite" or not self._feed._wakes.state.listening

    def _take(self) -> None:
        """Sort what came: samples are taken in, anything else makes the view worth a look."""
        assert self._feed._wakes is not None
        at = self._now()
        for wake in self._feed._wakes.drain():
            if wake.channel == "hw_metrics":
                sample = self._intake.payload(wake.payload, at)
                if sample is not None:
                    self._samples.append(sample)
                    self._meet(sample.box)
                elif self._intake.cut:
                    self._fill = True
            else:
                self._mark_dirty()

    def _meet(self, box: str) -> None:
        """Look at once for the facts of a box that is new."""
        feed = self._feed
        if box not in feed._facts and box not in feed._strangers:
            feed._strangers.add(box)
            feed._facts_read = 0.0
            self._mark_dirty()

    def _many(self) -> bool:
        return len(self._intake.last) > MANY

    def _coalesce_s(self) -> float:
        return COALESCE_MANY_S if self._many() else COALESCE_S

    def _mark_dirty(self) -> None:
        if self._dirty_since is None:
            self._dirty_since = time.monotonic()

    def _look(self) -> None:
        """Do what is due and send what is new."""
        now, feed = time.monotonic(), self._feed
        assert feed._wakes is not None
        listening = feed._wakes.state
        view = None
        if self._polls() and now - self._checked >= feed._refresh_s * 0.95:
            self._checked, self._fill = now, True
        if listening.listening and listening.since != self._listening_since:
            self._fill = self._listening_since is not None or self._fill
            self._listening_since = listening.since
        if now >= self._view_due() - 0.05 * self._view_every:
            view = self._view()
        if self._fill and now >= self._filled + 0.5 * feed._refresh_s:
            found = self._since()
            for box in {sample.box for sample in found}:
                self._meet(box)
            self._samples += found
        past = None
        if self._intake.gaps:
            if self._past_of is not None:
                self._past_of |= self._intake.gaps
            self._intake.gaps.clear()
            self._past_due = self._past_due or now + LATE_ROWS_S
        if self._past_due is not None and now >= self._past_due:
            of, self._past_due, self._past_of = self._past_of, None, set()
            of = None if of is None else of | self._intake.backfilled
            self._intake.backfilled.clear()
            past = self._in_parts(self._history(None if of is None else sorted(of)))
        elif self._intake.backfilled:
            past = self._history(sorted(self._intake.backfilled))
            self._intake.backfilled.clear()
        waited = now >= self._emitted + self._coalesce_s() * 0.9
        if view is not None or past is not None or (self._samples and waited) or now >= self._emitted + feed._refresh_s:
            samples, self._samples = self._samples, []
            self._emit(view=view, samples=tuple(sorted(samples, key=lambda s: s.at)), history=past)

    def _emit(self, **rest: Any) -> None:
        self._emitted = time.monotonic()
        self._feed._emit("live", self._now(), **rest)

    def _view(self) -> dict[str, Any] | None:
        """Read the view; None when it says what it said before (ages aside)."""
        feed = self._feed
        now, spent = time.monotonic(), time.thread_time()
        if now - feed._facts_read >= FACTS_S or not feed._facts_read:
            rows = history.box_rows(self._db)
            if rows != feed._fact_rows:
                feed._facts, feed._fact_rows = snapshot.facts_rows(history.facts_of(rows)), rows
            feed._facts_read = now
        view, at, changed = self._fleet.read(self._db, feed._facts, self._intake.last)
        self._clock_offset = at - datetime.now(UTC)
        self._viewed, self._dirty_since = time.monotonic(), None
        # A big fleet is read less often, so that reading it stays a small share of a core; an order is looked for at once.
        rest = max(VIEW_REST * (time.thread_time() - spent), VIEW_REST_SERVER * (self._viewed - now))
        self._view_every = min(VIEW_MOST_S, max(feed._refresh_s, rest))
        return view if changed else None

    def _history(self, boxes: list[str] | None = None) -> dict[str, list[BoxSample]]:
        hour = history.hour(self._db, boxes)
        for box, samples in hour.items():
            if samples:
                self._intake.seen(box, samples[-1].at)
        if boxes is None:
            self._mark_at = self._now() - timedelta(seconds=5)
        return hour

    def _in_parts(self, past: dict[str, list[BoxSample]]) -> dict[str, list[BoxSample]]:
        """Send the past of many boxes a few at a time, so that whoever draws can do something else in between; the rest."""
        names = list(past)
        for first in range(0, len(names) - MANY, MANY):
            self._emit(history={name: past.pop(name) for name in names[first : first + MANY]})
        return past

    def _since(self) -> list[BoxSample]:
        """The rows written since the last look; a little is read twice, the intake lets it through once."""
        began = self._now()
        mark = self._mark_at or began - timedelta(seconds=60)
        if self._feed._lost_since is not None:
            lost_s = time.monotonic() - self._feed._lost_since + 10.0
            mark = min(mark, began - timedelta(seconds=lost_s))
        rows = history.since(self._db, mark)
        self._mark_at = began - timedelta(seconds=6)
        self._filled, self._fill = time.monotonic(), False
        self._intake.cut.clear()
        return self._intake.rows(rows, began)
