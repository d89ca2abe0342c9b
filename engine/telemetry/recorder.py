"""The flight recorder: one per box, a sample every two seconds whatever the database does.

Two threads. The caller's looks at the hardware at a fixed rate and never waits for a database; a second one writes what
is in the ring, one round trip per sample, and keeps at it while the database is away. Minute rows are rolled up from
the minute's samples when it is over; after a start they are rolled up from the table, so that a restart in the middle
of a minute neither doubles nor loses anything.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from engine import config
from engine.errors import Conflict, EngineError, ReadOnlyStore, StoreUnavailable
from engine.store import Db, Store
from engine.store.locks import Exclusive
from engine.store.migrate import ensure_schema
from engine.telemetry import history, writer
from engine.telemetry.clock import DatabaseClock, uptime
from engine.telemetry.derived import Derived
from engine.telemetry.ring import Ring
from engine.telemetry.rollup import by_minute, minute_of, roll_up
from engine.telemetry.sample import BoxFacts, BoxSample, NoSample, Source

log = logging.getLogger("engine.recorder")

BATCH = 60  # samples of one statement when there is a backlog
REFUSALS = 3  # of one row by a database that is there
SIGN_S = 10.0  # signs of life when there are no samples
TIMEOUT_S = 5.0  # of a statement
BACKOFF_FIRST_S, BACKOFF_MOST_S = 0.5, 5.0
HOUSEKEEPING_S = 60.0
TAKE_UP_S = 3600.0  # so far back a recorder rolls up what the last one has left
FLUSH_S = 3.0  # for what is left when it is told to stop


def run_recorder(
    store: Store,
    source: Source,
    box: str,
    stop: threading.Event,
    once: bool = False,
    *,
    cadence_s: float | None = None,
    replace_machine: bool = False,
) -> None:
    """Record ``box`` until ``stop`` is set; with ``once`` take one sample, write it and return.

    A second recorder of the same box waits for the first to end (with ``once``: Conflict). Raises Conflict when another
    machine has the box's name; with ``once`` StoreUnavailable too, which is otherwise retried for ever.
    """
    recorder = BoxRecorder(store, source, box, cadence_s or float(config.get("sample_seconds")), replace_machine)
    try:
        if once:
            recorder.run_once()
        else:
            recorder.run(stop)
    finally:
        source.close()


class BoxRecorder:
    def __init__(self, store: Store, source: Source, box: str, cadence_s: float, replace_machine: bool = False) -> None:
        self._store = store
        self._source = source
        self._cadence_s = cadence_s
        self._replace_machine = replace_machine
        self._me = writer.this_process(box)
        self._lock = Exclusive(store, f"recorder/{box}")
        self._clock = DatabaseClock()
        self._ring = Ring(cadence_s)
        self._db: Db | None = None
        self._facts: BoxFacts | None = None
        self._facts_written: BoxFacts | None = None
        self._accepted = False  # the schema is there, and the box's name is this machine's
        self._ready = threading.Event()  # the database has accepted this recorder
        self._ending = threading.Event()
        self._fatal: EngineError | None = None
        self._away_since: float | None = None
        self._waiting = False
        self._source_error: str | None = None
        self._write_error: tuple[float, str] | None = None
        self._kept_house = self._signed = float("-inf")
        self._told: str | None = None  # the last_error that was written last
        self._derived = Derived(box)
        self._batch, self._refused = BATCH, 0

    def run_once(self) -> None:
        """One sample, written at once."""
        self._facts = self._source.facts()
        try:
            if not self._connect():
                raise Conflict(f"box {self._me.box}: a recorder is running already")
            sample = replace(self._source.sample(self._cadence_s), box=self._me.box, at=self._clock.now())
            self._ring.add(sample)
            while self._write_some():
                pass
            self._keep_house()
            self._derived.tell(self._connected, self._ring.written)
        finally:
            self._disconnect(sign_off=True)

    def run(self, stop: threading.Event) -> None:
        self._refresh_facts()
        thread = threading.Thread(target=self._write_loop, name=f"recorder {self._me.box}", daemon=True)
        thread.start()
        try:
            while not self._ready.wait(0.1) and not stop.is_set() and thread.is_alive():
                pass
            if self._ready.is_set():
                self._sample_loop(stop)
        finally:
            self._ending.set()
            self._ring.wake()
            thread.join(FLUSH_S + TIMEOUT_S if self._ready.is_set() else 1.0)
        if self._fatal is not None:
            raise self._fatal

    # Looking at the hardware.

    def _sample_loop(self, stop: threading.Event) -> None:
        """At a fixed rate; a look that comes too late for its turn is left out, and shows as a gap."""
        begin = time.monotonic()
        turn = 0
        asked_facts = begin
        while not stop.is_set() and self._fatal is None:
            at = self._clock.now()
            if (sample := self._look()) is not None:
                self._ring.add(self._derived.judged(replace(sample, box=self._me.box, at=at)))
            now = time.monotonic()
            if now - asked_facts >= HOUSEKEEPING_S or (self._facts is None and sample is not None):
                asked_facts = now
                self._refresh_facts()
            turn = max(turn + 1, math.ceil((time.monotonic() - begin) / self._cadence_s))
            due = begin + turn * self._cadence_s
            stop.wait(max(0.0, due - time.monotonic()))

    def _look(self) -> BoxSample | None:
        try:
            sample = self._source.sample(self._cadence_s)
        except NoSample as error:  # its process hangs or is gone: a gap, and the next look comes
            if self._source_error is None:
                log.warning("box %s: no sample: %s", self._me.box, error)
            self._source_error = str(error)
            self._ring.wake()  # the table is to say so soon
            return None
        except Exception as error:  # whatever a sensor throws
            if self._source_error is None:
                log.exception("box %s: no sample", self._me.box)
            self._source_error = f"no sample: {type(error).__name__}: {error}"
            return None
        if self._source_error is not None:
            log.info("box %s: samples again", self._me.box)
            self._source_error = None
        return sample

    def _refresh_facts(self) -> None:
        """What this box is; without an answer what is known stays, or nothing is known for now."""
        try:
            known, self._facts = self._facts, self._source.facts()
            if known is None:
                self._kept_house = float("-inf")  # write them at once
        except NoSample as error:
            self._source_error = str(error)
        except Exception as error:
            log.warning("box %s: facts not read: %s", self._me.box, error)

    # Writing.

    def _write_loop(self) -> None:
        backoff = BACKOFF_FIRST_S
        deadline: float | None = None
        while True:
            if self._ending.is_set():
                deadline = deadline or time.monotonic() + FLUSH_S
                if not self._ready.is_set() or self._ring.empty() or time.monotonic() > deadline:
                    break
            try:
                if self._db is None and not self._connect():
                    self._wait(2.0)  # another recorder of this box is at work
                    continue
                self._ready.set()
                if not self._write_some():
                    if time.monotonic() - self._kept_house >= HOUSEKEEPING_S:
                        self._keep_house()
                    if self._derived.due:
                        self._derived.tell(self._connected, self._ring.written)
                    self._ring.wait(self._cadence_s)
                backoff = BACKOFF_FIRST_S
            except (StoreUnavailable, ReadOnlyStore) as error:
                self._away(error)
                self._wait(backoff * random.uniform(0.8, 1.2))
                backoff = min(backoff * 2, BACKOFF_MOST_S)
            except EngineError as error:  # not this machine's name, not our schema, no right to: waiting does not help
                self._fatal = error
                break
            except Exception as error:
                self._not_written(error)
                self._wait(backoff)
                backoff = min(backoff * 2, BACKOFF_MOST_S)
        self._disconnect(sign_off=self._fatal is None)
        self._ready.set()

    def _connect(self) -> bool:
        """A connection that holds the box's lock; False while another recorder has it. Raises Conflict and the store's."""
        if not self._accepted:
            ensure_schema(self._store)
        db = self._store.connect("recorder", direct=True, timeout_s=TIMEOUT_S)
        try:
            if not self._lock.try_acquire(db):
                if not self._waiting:
                    log.warning("box %s: another recorder is at work; waiting for it to end", self._me.box)
                    self._waiting = True
                db.close()
                return False
            self._waiting = False
            asked = uptime()
            self._clock.set(db.now(), asked, uptime())
            if not self._accepted:
                writer.claim_name(db, self._facts or _nameplate(self._me.box), self._replace_machine)
                self._accepted = True
            if self._facts is not None:
                writer.write_facts(db, self._facts)
                self._facts_written = self._facts
            writer.sign_on(db, self._me, self._problem())
            if not self._ready.is_set():
                self._take_up(db)
            elif (newest := history.newest(db, self._me.box)) is not None:
                # Written before the connection broke (the answer was lost), or by another recorder in the meantime.
                self._ring.forget(newest)
        except BaseException:
            self._lock.release()
            db.close()
            raise
        self._db = db
        if self._away_since is not None:
            away_s = time.monotonic() - self._away_since
            self._away_since = None
            kept = len(self._ring)
            log.info("box %s: the database is back after %.0f s; %d samples to write", self._me.box, away_s, kept)
            self._write_error = (time.monotonic(), f"the database was away for {away_s:.0f} s")
        return True

    def _take_up(self, db: Db) -> None:
        """Go on where the last recorder of this box ended: roll up its closed minutes, take over the open one."""
        done = history.last_minute(db, self._me.box)
        now = self._clock.now()
        oldest = now - timedelta(seconds=min(TAKE_UP_S, writer.kept_seconds()[0] or TAKE_UP_S))
        start = done + timedelta(minutes=1) if done is not None else oldest
        kept = history.details(db, self._me.box, start)
        if kept:
            self._derived.restore(kept[-1], now)
        minutes = by_minute(kept)
        self._ring.open_minute(minutes.pop(minute_of(now), []))
        for samples in minutes.values():
            self._ring.add_minute(roll_up(samples))

    def _write_some(self) -> bool:
        """Write the oldest samples of the ring; False when there were none."""
        samples, problem = self._next(), self._problem()
        if not samples and time.monotonic() - self._signed < SIGN_S and problem == self._told:
            return False
        newest = self._ring.newest()
        payload = None
        if any(sample is newest for sample in samples) and newest is not None:
            payload = newest.payload(**self._ring.backlog())  # told once, with the end of a backlog
        asked = uptime()
        writer.write(self._connected, self._me, samples, payload=payload, last_error=problem)
        self._told = problem
        self._ring.done(samples, told=payload is not None)
        self._signed, self._batch, self._refused = time.monotonic(), BATCH, 0
        if uptime() - asked > self._cadence_s:
            log.warning("box %s: writing a sample took %.1f s", self._me.box, uptime() - asked)
        return bool(samples)

    def _next(self) -> list[BoxSample]:
        """What is to be written now: a batch of each tier, or a single row."""
        samples = self._ring.peek(self._batch)
        return samples if self._batch > 1 else samples[:1]

    def _not_written(self, error: Exception) -> None:
        """The database refused what was written. One row at a time then, and one refused again and again is dropped."""
        self._write_error = (time.monotonic(), f"not written: {type(error).__name__}: {error}")
        if self._batch > 1:
            log.exception("box %s: not written", self._me.box)
            self._batch = 1
        self._refused += 1
        if self._refused >= REFUSALS:
            self._ring.done(self._next(), told=False)
            self._refused = 0
        self._disconnect()

    def _keep_house(self) -> None:
        """Once a minute: delete what is too old, look at the database's clock, renew the box's row if it changed."""
        db, self._kept_house = self._connected, time.monotonic()
        writer.prune(db, self._me.box, *writer.kept_seconds())
        asked = uptime()
        self._clock.set(db.now(), asked, uptime())
        if self._facts is not None and self._facts != self._facts_written:
            writer.write_facts(db, self._facts)
            self._facts_written = self._facts

    def _problem(self) -> str | None:
        """What ``services`` says: what is wrong now, or was within the last minute."""
        if self._source_error:
            return self._source_error
        if self._write_error and time.monotonic() - self._write_error[0] < 60:
            return self._write_error[1]
        return getattr(self._source, "problem", None)

    def _away(self, error: EngineError) -> None:
        if self._away_since is None:
            self._away_since = time.monotonic()
            log.warning("box %s: %s; samples are kept", self._me.box, error)
        self._disconnect()

    @property
    def _connected(self) -> Db:
        assert self._db is not None
        return self._db

    def _disconnect(self, sign_off: bool = False) -> None:
        db, self._db = self._db, None
        if db is None:
            return
        try:
            if sign_off and not db.closed:
                writer.sign_off(db, self._me)
        except EngineError:
            pass  # it is going anyway, and its line says when it was last seen
        if db.kind == "postgresql" or sign_off:
            self._lock.release()  # a file lock is kept through an outage: it does not depend on the connection
        db.close()

    def _wait(self, seconds: float) -> None:
        """A pause that the end cuts short."""
        if not self._ending.wait(seconds):
            return
        time.sleep(min(seconds, 0.2))  # a few tries are left for the last samples


def _nameplate(box: str) -> BoxFacts:
    """What a box is while its probes do not say: enough for nobody else to take its name."""
    from engine.telemetry.probes.source import machine_id

    return BoxFacts(box, machine_id(Path("/")))
