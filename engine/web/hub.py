"""One feed for everybody who listens: what is new is turned into text once and handed to each listener, who keeps little.

What replaces itself (the view, a box's sample) is kept once; events of jobs are kept up to a number, and whoever falls
further behind is dropped: it comes back with the id of the last event that it had.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.errors import EngineError
from engine.feed import Feed, FeedUpdate
from engine.queue import events
from engine.snapshot import jsonable
from engine.telemetry.sample import BoxSample
from engine.web.databases import Databases

log = logging.getLogger("engine.web")

KINDS = ("state", "fleet", "samples", "job", "gap", "changed")
LISTENERS_MOST = 64
JOBS_KEPT = 1000  # events of jobs that a listener may be behind
REPLAYED_MOST = 500  # that are told again, or read because a view had not all of them
SEEN_MOST = 4000
LINGER_S = 5.0  # the feed goes on for so long after the last listener, who may come back


@dataclass(eq=False)
class Listener:
    """What waits to be sent to one client. For the event loop's thread. ``project`` None: events of every project."""

    kinds: frozenset[str]
    project: str | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False
    waits: bool = False  # for what happened before; events of jobs are held back until it is there
    _latest: dict[str, str] = field(default_factory=dict)
    _samples: dict[str, str] = field(default_factory=dict)
    _jobs: deque[str] = field(default_factory=deque)
    _told: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def put(self, kind: str, text: str) -> None:
        """Something that replaces what was said before."""
        if kind in self.kinds:
            self._latest[kind] = text
            self.ready.set()

    def put_samples(self, samples: Mapping[str, str]) -> None:
        if "samples" in self.kinds:
            self._samples |= samples
            self.ready.set()

    def put_job(self, number: int, project: str, text: str) -> None:
        """An event of a job; one that was told is not told again."""
        if "job" not in self.kinds or number in self._told or self.project not in (None, project):
            return
        self._told[number] = None
        if len(self._told) > SEEN_MOST:
            self._told.popitem(last=False)
        self._jobs.append(text)
        if len(self._jobs) > JOBS_KEPT:
            self.end()
        self.ready.set()

    def put_before(self, jobs: Sequence[tuple[int, str, str]]) -> None:
        """Events of jobs from before this listener came; what came meanwhile goes behind them."""
        self.waits = False
        since = list(self._jobs)
        self._jobs.clear()
        for job in jobs:
            self.put_job(*job)
        self._jobs.extend(since)
        self.ready.set()

    def put_gap(self, text: str) -> None:
        if "job" in self.kinds:
            self._jobs.append(text)
            self.ready.set()

    def end(self) -> None:
        """Nothing more for this one."""
        self.over = True
        self.ready.set()

    def take(self) -> str:
        """Everything that waits, as it is sent; empty: nothing."""
        self.ready.clear()
        parts = [self._latest.pop(kind) for kind in ("state", "fleet") if kind in self._latest]
        if self._samples:
            parts.append(message("samples", f"[{','.join(self._samples.values())}]"))
            self._samples.clear()
        if not self.waits:
            parts += self._jobs
            self._jobs.clear()
        parts += [self._latest.pop(kind) for kind in ("changed",) if kind in self._latest]
        return "".join(parts)


class Hub:
    """Starts the feed with the first listener and stops it after the last. For the event loop's thread, but for ``_heard``."""

    def __init__(self, databases: Databases, stopping: asyncio.Event) -> None:
        self._databases = databases
        self._stopping = stopping
        self._listeners: list[Listener] = []
        self._feed: Feed | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._state: dict[str, Any] = {"state": "connecting"}
        self._view: dict[str, Any] | None = None
        self._seen: OrderedDict[int, None] | None = None  # events of jobs; None: no view yet
        self.viewed = asyncio.Event()  # from now on every event of a job is told

    def join(self, listener: Listener) -> bool:
        """False: there are too many already."""
        if len(self._listeners) >= LISTENERS_MOST or self._stopping.is_set():
            return False
        self._listeners.append(listener)
        listener.put("state", message("state", _json(self._state)))
        if self._view is not None and "fleet" in listener.kinds:
            listener.put("fleet", message("fleet", _json(self._view)))
        if self._feed is None:
            self._loop = asyncio.get_running_loop()
            self._state, self._view, self._seen = {"state": "connecting"}, None, None
            self.viewed.clear()
            feed = Feed(self._databases.store, lambda update: self._heard(feed, update), read_only=True)
            self._feed = feed
            feed.start()
        return True

    def leave(self, listener: Listener) -> None:
        """Forget it; without any the feed is stopped a moment later."""
        if listener in self._listeners:
            self._listeners.remove(listener)
        if not self._listeners and self._loop is not None:
            self._loop.call_later(0.0 if self._stopping.is_set() else LINGER_S, self._rest)

    def _rest(self) -> None:
        if self._listeners or self._feed is None or self._loop is None:
            return
        feed, self._feed, self._view = self._feed, None, None
        self._loop.run_in_executor(None, feed.stop)

    def replay(self, after: int) -> tuple[list[dict[str, Any]], bool]:
        """Events of jobs after an id, oldest first, and whether there are more than these. Blocks on the database."""
        with self._databases.borrow(read_only=True) as db:
            rows = events.recent(db, REPLAYED_MOST + 1, None, after)
        return list(reversed(rows[:REPLAYED_MOST])), len(rows) > REPLAYED_MOST

    # -- the feed's thread

    def _heard(self, feed: Feed, update: FeedUpdate) -> None:
        """Turn an update into text and hand it to the loop."""
        assert self._loop is not None
        found = list(update.view["events"]) if update.view is not None else []
        happened, gap = self._new_events(found) if update.view is not None else ([], False)
        view = None if update.view is None else {k: v for k, v in jsonable(update.view).items() if k != "events"}
        samples = {sample.box: _json(sample_row(sample)) for sample in update.samples}
        try:
            self._loop.call_soon_threadsafe(self._publish, feed, _state_of(update), view, samples, happened, gap)
        except RuntimeError:
            pass  # the loop has ended, and this thread is about to

    def _new_events(self, newest_first: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], bool]:
        """Events that no view had before, oldest first; those that went by between two views are read."""
        rows = list(reversed(newest_first))
        ids = [int(row["id"]) for row in rows]
        if self._seen is None:
            self._seen = OrderedDict.fromkeys(ids)
            return [], False
        gap = False
        if rows and self._seen and len(rows) >= 50 and not any(number in self._seen for number in ids):
            try:
                missed, gap = self.replay(max(self._seen))
                rows = missed or rows
            except EngineError as error:
                log.warning("events: what happened between two views was not read: %s", error)
                gap = True
        fresh = [row for row in rows if int(row["id"]) not in self._seen]
        self._seen.update((int(row["id"]), None) for row in fresh)
        while len(self._seen) > SEEN_MOST:
            self._seen.popitem(last=False)
        return fresh, gap

    # -- the loop's thread

    def _publish(
        self,
        feed: Feed,
        state: dict[str, Any],
        view: dict[str, Any] | None,
        samples: Mapping[str, str],
        happened: Sequence[Mapping[str, Any]],
        gap: bool,
    ) -> None:
        if feed is not self._feed:
            return  # the last word of one that was stopped
        new_state = state["state"] != self._state["state"]
        self._state = state
        if view is not None:
            self._view = view
            self.viewed.set()
        changed = [name for name, there in (("state", new_state), ("fleet", view), ("samples", samples)) if there]
        texts = _Texts(state, view, changed)
        jobs = [job_of(row) for row in happened]
        for listener in self._listeners:
            if new_state:
                listener.put("state", texts.state())
            if view is not None and "fleet" in listener.kinds:
                listener.put("fleet", texts.fleet())
            if samples:
                listener.put_samples(samples)
            if gap:
                listener.put_gap(message("gap", "{}"))
            for job in jobs:
                listener.put_job(*job)
            if changed:
                listener.put("changed", texts.changed())


class _Texts:
    """The texts of one update, each made when somebody wants it, and once."""

    def __init__(self, state: Mapping[str, Any], view: Mapping[str, Any] | None, changed: Sequence[str]) -> None:
        self._makers: dict[str, Callable[[], str]] = {
            "state": lambda: _json(state),
            "fleet": lambda: _json(view),
            "changed": lambda: _json({"what": list(changed), "at": state.get("at")}),
        }
        self._made: dict[str, str] = {}

    def _text(self, kind: str) -> str:
        if kind not in self._made:
            self._made[kind] = message(kind, self._makers[kind]())
        return self._made[kind]

    def state(self) -> str:
        return self._text("state")

    def fleet(self) -> str:
        return self._text("fleet")

    def changed(self) -> str:
        return self._text("changed")


def _state_of(update: FeedUpdate) -> dict[str, Any]:
    """``{state: connecting live or lost, at: the database's time, listening, next_try_s, error}``."""
    found: dict[str, Any] = {"state": update.state, "at": jsonable(update.at)}
    if update.state == "live":
        found["listening"] = update.listening
    if update.state == "lost":
        found |= {"error": "the database does not answer", "next_try_s": round(update.next_try_s or 0.0, 1)}
    return found


def sample_row(sample: BoxSample) -> dict[str, Any]:
    """A sample by the names of the flight recorder's columns, nulls left out."""
    row = {"box": sample.box, "at": jsonable(sample.at), "tier": sample.tier}
    row |= {name: value for name, value in sample.values().items() if value is not None}
    row["gpus"] = [{name: value for name, value in gpu.values().items() if value is not None} for gpu in sample.gpus]
    return row


def job_of(row: Mapping[str, Any]) -> tuple[int, str, str]:
    """An event of a job: its id, after which a client can go on, its project, and how it is told: without its detail,
    which may be large and stands at GET /jobs/{id}/events."""
    told = {name: value for name, value in row.items() if name != "detail"}
    return int(row["id"]), str(row["project"]), message("job", _json(jsonable(told)), str(row["id"]))


def message(kind: str, data: str, number: str = "") -> str:
    """One server-sent event. ``data``: JSON, which has no line breaks of its own."""
    return f"{f'id: {number}' + chr(10) if number else ''}event: {kind}\ndata: {data}\n\n"


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, default=str)
