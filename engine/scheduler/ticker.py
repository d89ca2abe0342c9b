"""The scheduler's process: look at the entries every second, fire what is due, each tick once.

Any number of them may run; nobody leads. A tick is fired in one transaction that holds the entry's row, writes the tick
into ``schedule_fires`` (where it can stand once), inserts the job and moves ``last_tick`` on: all of it or nothing. A
row that another scheduler holds is left to it. Nothing is remembered from one look to the next but what makes a clock
that was set, or a new complaint, visible.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from engine import config
from engine.errors import BadInput, NotAllowed, ReadOnlyStore, SchemaMismatch, StoreUnavailable
from engine.queue import services
from engine.queue.enqueue import enqueue
from engine.queue.services import Service
from engine.queue.texts import clean_text
from engine.scheduler.entries import load_app, write_entries
from engine.scheduler.schedule import check_misfire, due, jitter, next_tick, timetable, without_leap
from engine.store import Db, Row, Store, open_store
from engine.store.dialect import EARLIEST
from engine.store.locks import new_incarnation
from engine.store.migrate import ensure_schema, refuse_read_only
from engine.store.rights import refuse_login

log = logging.getLogger("engine.scheduler")

KIND = "scheduler"
LOOK_S = 0.8  # the longest pause between two looks: what SQL changes is noticed so soon
SPREAD_S = 0.05  # schedulers that wait for the same tick do not wake in the same millisecond
BEAT_S = 5.0
STATEMENT_S = 5.0
CLOCK_STEP_S = 10.0  # the database's clock was set if it is off by more between two looks
FIRES_KEPT_S = 30 * 86_400.0  # how long it is remembered that a tick was fired
PRUNE_S = 3600.0

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def run_scheduler(stop: threading.Event, once: bool = False) -> None:
    """Fire what is due until ``stop`` is set; survives any outage of the database.

    ``once``: fire what is due now and return. Raises ConfigError for an app that cannot be imported, SchemaMismatch and
    ReadOnlyStore at the start, NotAllowed, and StoreUnavailable with ``once``.
    """
    load_app()
    store = _ready_store(stop, once)
    if store is None:
        return
    ticker = Ticker(config.project_name(), config.box_name())
    told = written = False
    looks, backoff = 0, 0.1
    while not stop.is_set():
        try:
            with store.connect(KIND, timeout_s=STATEMENT_S) as db:
                refuse_read_only(store, db)
                if not written:  # not after every outage: another release may have written its own since
                    refuse_login(db, "insert", "schedule_fires")
                    write_entries(db, ticker.project)
                    written = True
                if once:
                    ticker.look(db, stop)
                    return
                ticker.serve(db, stop, back=told)
        except NotAllowed:  # waiting does not help
            raise
        except (StoreUnavailable, ReadOnlyStore) as error:
            if once:
                raise
            if ticker.looks > looks:
                told, backoff, looks = False, 0.1, ticker.looks
            if not told:
                log.warning("database lost, trying again: %s", error)
            told = True
            stop.wait(backoff * random.uniform(0.5, 1.5))
            backoff = min(1.0, backoff * 2)
        except Exception:  # a defect must not end the scheduler: say it, start over
            if once:
                raise
            log.exception("scheduler: unexpected error, starting over")
            stop.wait(1.0)


def _ready_store(stop: threading.Event, once: bool) -> Store | None:
    """The store with a schema that fits; waits for the database, and a while for the schema. None: told to stop."""
    told = ""
    deadline = time.monotonic() + float(config.get("schema_wait_seconds"))
    while not stop.is_set():
        try:
            store = open_store()
            ensure_schema(store, seconds=0)
            return store
        except StoreUnavailable as error:
            if once:
                raise
            if told != "away":
                log.warning("database not reachable, trying again: %s", error)
            told = "away"
        except SchemaMismatch as error:
            if time.monotonic() >= deadline or "newer program" in str(error):
                raise
            if told != "schema":
                log.warning("%s; waiting for it", error)
            told = "schema"
        stop.wait(random.uniform(0.3, 0.8))
    return None


@dataclass
class _Seen:
    """The last look: the database's clock, and ours that nobody sets."""

    database: datetime
    uptime: float


class Ticker:
    """One life of one scheduler: what it looks at, what it has fired, what it complains about."""

    def __init__(self, project: str, box: str) -> None:
        self.project = project
        self.looks = self.fired = 0
        self.errors: dict[str, str] = {}
        self._service = Service(KIND, box, new_incarnation())
        self._grace_s = float(config.get("misfire_grace_s"))
        self._seen: _Seen | None = None
        self._leap: tuple[datetime, datetime] | None = None  # the newest stretch that the database's clock left out
        self._entries = 0
        self._next: datetime | None = None
        self._beaten: tuple[float, object] = (float("-inf"), None)
        self._pruned = float("-inf")

    def serve(self, db: Db, stop: threading.Event, back: bool = False) -> None:
        """Look until ``stop``; ``back``: say that the database is, once it answers. Raises StoreUnavailable."""
        try:
            while not stop.is_set():
                pause_s = self.look(db, stop)
                self.looks += 1
                if back:
                    log.info("database is back")
                    back = False
                self._beat(db)
                self._prune(db)
                stop.wait(pause_s)
        finally:
            if stop.is_set() and not db.closed:
                services.leave(db, self._service)

    def look(self, db: Db, stop: threading.Event) -> float:
        """Fire what is due; how many seconds to wait until the next look. Raises StoreUnavailable."""
        began = time.monotonic()
        rows = db.all(
            f"select {{clock}} as now_at, {_columns(db)} from schedules "
            "where project = {project} and enabled = {true} order by name",
            project=self.project,
        )
        now = rows[0]["now_at"] if rows else db.now()
        self._watch_clock(now)
        self._entries = len(rows)
        upcoming = []
        for row in rows:
            if stop.is_set():
                break
            try:
                following = self._attend(db, row, now)
            except (StoreUnavailable, ReadOnlyStore):
                raise
            except Exception as error:  # this entry alone: a bad cron, a queue that nobody knows, a refused row
                self._complain(row["name"], error)
                continue
            self._settle(row["name"])
            if following is not None:
                upcoming.append(following)
        for name in self.errors.keys() - {row["name"] for row in rows}:
            del self.errors[name]  # deleted, or off
        self._seen = _Seen(now, _uptime())
        self._next = min(upcoming, default=None)
        pause_s = LOOK_S * random.uniform(0.75, 1.0)
        if self._next is not None:
            wait_s = (self._next - now).total_seconds() - (time.monotonic() - began)
            pause_s = min(pause_s, max(0.0, wait_s) + random.uniform(0.0, SPREAD_S))
        return pause_s

    def _attend(self, db: Db, row: Row, now: datetime) -> datetime | None:
        """Fire what is due of one entry; its next tick, or None when there is none or somebody else holds the row."""
        check_misfire(row["misfire"])
        table = timetable(row["cron"], row["tz"])
        last = _moment(row["last_tick"])
        if last is not None and last <= now + timedelta(seconds=1):
            following = next_tick(table, last)
            if following is None or following > now:
                return following
        with db.transaction():
            held = db.one(
                f"select {{clock}} as now_at, task_name, queue, args, {_columns(db)} from schedules "
                "where project = {project} and name = {name} and enabled = {true} {skip_locked}",
                project=self.project,
                name=row["name"],
            )
            if held is None:
                return None
            last = self._handle(db, held)
        return next_tick(timetable(held["cron"], held["tz"]), last)

    def _handle(self, db: Db, row: Row) -> datetime:
        """Fire what is due of the row that we hold; up to where it is dealt with now."""
        now, last, name = row["now_at"], _moment(row["last_tick"]), row["name"]
        if last is None:  # new, and not there at our last look
            begin = now
            if self._seen is not None:
                begin = min(now, max(self._seen.database, now - timedelta(seconds=2 * LOOK_S)))
            return self._move(db, name, begin)
        if last > now + timedelta(seconds=1):
            log.warning(
                "schedule %s: last_tick is %.0f s ahead of the database's clock, which was set back; going on from now",
                _shown(name),
                (last - now).total_seconds(),
            )
            return self._move(db, name, now)
        found = due(timetable(row["cron"], row["tz"]), row["misfire"], last, now, self._grace_s)
        if found is None:
            return last
        fire = found.fire if self._leap is None else without_leap(found.fire, *self._leap)
        fired = sum(self._fire(db, row, tick, now) for tick in fire)
        if found.missed:
            log.warning("schedule %s: ticks were missed; misfire %s fires %d", _shown(name), row["misfire"], fired)
        self.fired += fired
        return self._move(db, name, found.newest)

    def _fire(self, db: Db, row: Row, tick: datetime, now: datetime) -> bool:
        """Enqueue the job of one tick; False when that was done before. Raises as enqueue does."""
        name = row["name"]
        new = db.run(
            "insert into schedule_fires (project, name, tick) values ({project}, {name}, {moment}) on conflict do nothing",
            project=self.project,
            name=name,
            moment=tick,
        )
        if not new:
            return False
        begin = tick + jitter(self.project, name, tick, row["jitter_s"])
        job = enqueue(
            db,
            task_name=row["task_name"],
            queue=row["queue"],
            args=row["args"],
            run_after=begin if begin > now else None,
            project=self.project,
        )
        db.run(
            "update schedule_fires set job_id = {job_id} where project = {project} and name = {name} and tick = {moment}",
            job_id=int(job.id),
            project=self.project,
            name=name,
            moment=tick,
        )
        return True

    def _move(self, db: Db, name: str, to: datetime) -> datetime:
        db.run(
            "update schedules set last_tick = {to} where project = {project} and name = {name}",
            to=to,
            project=self.project,
            name=name,
        )
        return to

    def _watch_clock(self, now: datetime) -> None:
        """Notice when the database's clock is set forward: the ticks that it left out were not missed in earnest."""
        if self._seen is None:
            return
        lived_s = _uptime() - self._seen.uptime
        step_s = (now - self._seen.database).total_seconds() - lived_s
        if abs(step_s) > CLOCK_STEP_S:
            log.warning("the database's clock was set by %+.0f s", step_s)
        if step_s > CLOCK_STEP_S:
            self._leap = (self._seen.database, now)

    def _complain(self, name: str, error: Exception) -> None:
        kind = "" if isinstance(error, BadInput) else f"{type(error).__name__}: "
        text = _shown(f"{kind}{' '.join(str(error).split())}")
        if self.errors.get(name) != text:
            log.warning("schedule %s: %s; it does not fire", _shown(name), text)
        self.errors[name] = text

    def _settle(self, name: str) -> None:
        if self.errors.pop(name, None) is not None:
            log.info("schedule %s: in order again", _shown(name))

    def _beat(self, db: Db) -> None:
        """Every few seconds, and at once when something else is wrong."""
        at, told = self._beaten
        if time.monotonic() - at < BEAT_S and told == self.errors:
            return
        detail = {
            "project": self.project,
            "entries": self._entries,
            "fired": self.fired,
            "next_at": None if self._next is None else self._next.isoformat(),
            "errors": dict(list(self.errors.items())[:20]),
        }
        error = clean_text("; ".join(f"{_shown(name)}: {text}" for name, text in self.errors.items()), 1000)
        services.beat(db, self._service, detail, error or None)
        self._beaten = (time.monotonic(), dict(self.errors))

    def _prune(self, db: Db) -> None:
        if time.monotonic() - self._pruned < PRUNE_S:
            return
        db.run(
            "delete from schedule_fires where project = {project} and tick < {before[kept]}",
            project=self.project,
            kept=FIRES_KEPT_S,
        )
        self._pruned = time.monotonic()


def _columns(db: Db) -> str:
    # A time that Python cannot hold ('infinity') would spoil the look at all rows: it counts as none.
    last = "last_tick"
    if db.kind == "postgresql":
        last = "case when last_tick between '1970-01-01' and '9999-01-01' then last_tick end as last_tick"
    return f"name, cron, tz, misfire, jitter_s, {last}"


def _moment(last_tick: object) -> datetime | None:
    if last_tick is None:
        return None
    if not isinstance(last_tick, datetime) or last_tick == EARLIEST:
        raise BadInput("last_tick is not a time")
    return max(last_tick, _EPOCH)


def _shown(text: str) -> str:
    """A text from a row as one line of a log."""
    return "".join(c if c.isprintable() else "?" for c in text[:500])


def _uptime() -> float:
    """Seconds on a clock that only runs forward and does not stop in suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
