"""The connections that requests share: a bounded number, lent for one request, thrown away when they are broken."""

from __future__ import annotations

import logging
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.errors import StoreError
from engine.store import Db, Store
from engine.store.migrate import ensure_schema
from engine.web.problems import Busy

log = logging.getLogger("engine.web")

STATEMENT_S = 5.0  # the deadline of a statement: whoever asks waits no longer
AGAIN_S = 0.3  # a database that could not be reached is not tried again sooner
READERS_KEPT = 2  # idle read-only connections


class Databases:
    """At most ``size`` connections lent at once; idle ones are kept. Safe to use from many threads."""

    def __init__(self, opener: Callable[[], Store], size: int, wait_s: float) -> None:
        self._opener = opener
        self._wait_s = wait_s
        self._turns = threading.Semaphore(size)
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._idle: dict[bool, list[Db]] = {False: [], True: []}  # by read_only
        self._kept = {False: size, True: min(size, READERS_KEPT)}
        self._store: Store | None = None
        self._away: tuple[float, StoreError] | None = None  # not tried before (monotonic), and why
        self._closed = False

    @contextmanager
    def borrow(self, read_only: bool = False) -> Iterator[Db]:
        """A connection in autocommit, for the thread at hand. Raises Busy, StoreUnavailable, SchemaMismatch, ReadOnlyStore."""
        if not self._turns.acquire(timeout=self._wait_s):
            raise Busy("too many requests are waiting for the database; try again")
        try:
            db = self._take(read_only) or self._open(read_only)
            try:
                yield db
            finally:
                self._give_back(db, read_only)
        finally:
            self._turns.release()

    def store(self) -> Store:
        """The store, with a schema that fits. Raises Busy, StoreUnavailable, SchemaMismatch, ReadOnlyStore."""
        if self._store is not None:
            return self._store
        if not self._opening.acquire(timeout=self._wait_s):
            raise Busy("the database is being opened; try again")
        try:
            if self._store is None:
                store = self._opener()
                ensure_schema(store, seconds=0)
                self._store = store
            return self._store
        finally:
            self._opening.release()

    def close(self) -> None:
        """Close what is idle; what is lent is closed when it comes back."""
        with self._lock:
            self._closed = True
            idle = [db for kind in self._idle.values() for db in kind]
            for kind in self._idle.values():
                kind.clear()
        for db in idle:
            db.close()

    def _take(self, read_only: bool) -> Db | None:
        while True:
            with self._lock:
                if not self._idle[read_only]:
                    return None
                db = self._idle[read_only].pop()
            if not _has_ended(db):
                return db
            db.close()

    def _open(self, read_only: bool) -> Db:
        away = self._away
        if away is not None and time.monotonic() < away[0]:
            raise away[1]
        try:
            db = self.store().connect("web", read_only=read_only, timeout_s=STATEMENT_S)
        except StoreError as error:
            self._away = (time.monotonic() + AGAIN_S, error)
            raise
        self._away = None
        return db

    def _give_back(self, db: Db, read_only: bool) -> None:
        if not db.closed and not _in_transaction(db):
            with self._lock:
                if not self._closed and len(self._idle[read_only]) < self._kept[read_only]:
                    self._idle[read_only].append(db)
                    return
        db.close()


def _has_ended(db: Db) -> bool:
    """True when the server has hung up on an idle connection: it would have nothing else to say."""
    if db.closed:
        return True
    if db.kind != "postgresql":
        return False
    try:
        poll = select.poll()
        poll.register(db.raw.fileno(), select.POLLIN)
        return bool(poll.poll(0))
    except Exception:  # whatever it is, it is no connection any more
        return True


def _in_transaction(db: Db) -> bool:
    if db.kind == "postgresql":
        return bool(db.raw.info.transaction_status != 0)  # IDLE
    return bool(db.raw.in_transaction)
