"""Hints that something changed: LISTEN on PostgreSQL, a change check on SQLite, and a jittered poll behind both.

A thread of its own watches; whoever waits selects on :meth:`Wakes.fileno`. Nothing is ever decided by a wake: an empty
:meth:`Wakes.drain` means "look at everything".
"""

from __future__ import annotations

import abc
import contextlib
import logging
import os
import random
import select
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from engine.errors import StoreError
from engine.store.postgres import PostgresDb
from engine.store.sqlite import SqliteDb

log = logging.getLogger("engine.wakes")

PING_S = 5.0  # a frozen or half-open session is noticed after at most PING_S + PING_DEADLINE_S
PING_DEADLINE_S = 4.0
_BACKOFF_CAP_S = 1.0


@dataclass(frozen=True)
class Wake:
    """One notification."""

    channel: str
    payload: str


@dataclass(frozen=True)
class WakeState:
    """Whether notifications arrive (else only the poll does), since when (monotonic seconds), and why not."""

    listening: bool
    since: float
    error: str | None = None


class Wakes(abc.ABC):
    """A source of wakes; start by constructing, end with :meth:`close`."""

    def __init__(self, poll_s: float) -> None:
        self._poll_s = poll_s
        self._pending: list[Wake] = []
        self._guard = threading.Lock()
        self._read_end, self._write_end = os.pipe()
        self._stop_read, self._stop_write = os.pipe()
        for fd in (self._read_end, self._write_end):
            os.set_blocking(fd, False)
        self._closed = False
        self.state = WakeState(False, time.monotonic(), "starting")
        self._thread = threading.Thread(target=self._run, name="wakes", daemon=True)
        # The poll has a thread of its own: it must go on while the listener is stuck in a ping or a connect.
        self._poll = threading.Thread(target=self._tick, name="wakes poll", daemon=True)
        self._thread.start()
        self._poll.start()

    def fileno(self) -> int:
        """Readable when something came; the same descriptor for the object's whole life."""
        return self._read_end

    def drain(self) -> list[Wake]:
        """Take what came. Empty: a poll tick, a SQLite change, or the listener was rebuilt."""
        with self._guard:
            try:
                while os.read(self._read_end, 4096):
                    pass
            except BlockingIOError:
                pass
            taken, self._pending = self._pending, []
        return taken

    def wait(self, timeout_s: float) -> list[Wake] | None:
        """Wait for a wake or a poll tick; None when nothing came in time."""
        ready, _, _ = select.select([self.fileno()], [], [], timeout_s)
        return self.drain() if ready else None

    def close(self) -> None:
        """Stop the thread; bounded."""
        if self._closed:
            return
        self._closed = True
        self._call_off()
        self._poll.join(timeout=2.0)
        self._thread.join(timeout=PING_DEADLINE_S + 2.0)
        if (
            not self._thread.is_alive() and not self._poll.is_alive()
        ):  # a thread stuck in a connect keeps its descriptors; it is a daemon
            for fd in (self._read_end, self._write_end, self._stop_read, self._stop_write):
                os.close(fd)

    def __enter__(self) -> Wakes:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _signal(self, wakes: Sequence[Wake] = ()) -> None:
        with self._guard:
            if len(self._pending) < 10_000:  # nobody drains: what is pending already says "look"
                self._pending.extend(wakes)
            try:
                os.write(self._write_end, b"x")
            except (BlockingIOError, OSError):
                pass

    def _call_off(self) -> None:
        """Whatever the threads wait for, wait no more."""
        os.write(self._stop_write, b"x")

    def _stopped(self, timeout_s: float) -> bool:
        ready, _, _ = select.select([self._stop_read], [], [], max(0.0, timeout_s))
        return bool(ready)

    def _tick(self) -> None:
        while not self._stopped(self._poll_s * random.uniform(0.75, 1.25)):
            self._signal()

    def _set_state(self, listening: bool, error: str | None = None) -> None:
        if listening != self.state.listening or self.state.error == "starting":
            if listening:
                log.info("listening for changes")
            else:
                log.warning("not listening, polling every %g s: %s", self._poll_s, error)
            self.state = WakeState(listening, time.monotonic(), error)

    def _run(self) -> None:
        backoff = 0.1
        while not self._closed:
            began = time.monotonic()
            try:
                self._watch()
                return
            except (StoreError, psycopg.Error, OSError) as error:
                self._set_state(False, " ".join(str(error).split()))
            except Exception as error:  # a defect here must not end the wakes: say it and carry on
                log.exception("wakes: unexpected error")
                self._set_state(False, repr(error))
            if time.monotonic() - began > 5.0:
                backoff = 0.1
            self._signal()  # what came in between was missed: look
            if self._stopped(backoff * random.uniform(0.5, 1.5)):
                return
            backoff = min(backoff * 2, _BACKOFF_CAP_S)

    @abc.abstractmethod
    def _watch(self) -> None:
        """Watch until stopped (returns) or broken (raises)."""


class PostgresWakes(Wakes):
    """LISTEN on a connection of its own: autocommit, pinged (and so drained) every few seconds, rebuilt when silent.

    Whoever waits for wakes reads the connection itself, in :meth:`drain`: handed over by this class's thread, a
    notification would come a third of a millisecond later. :meth:`fileno` is an epoll over the pipe and the connection of
    the moment; while the thread uses the connection it is not in there.
    """

    def __init__(self, connect: Callable[[], PostgresDb], channels: Sequence[str], poll_s: float) -> None:
        self._connect = connect
        self._channels = tuple(channels)
        self._epoll = select.epoll()
        self._session = threading.Lock()  # guards the connection against the other thread
        self._raw: psycopg.Connection[Any] | None = None  # what drain() may read
        self._socket = -1
        self._uneasy = threading.Event()  # the reader saw the connection fail, or it is to end
        super().__init__(poll_s)
        self._epoll.register(self._read_end, select.EPOLLIN)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def drain(self) -> list[Wake]:
        heard = self._hear()
        return [*super().drain(), *heard]

    def close(self) -> None:
        super().close()
        if not self._thread.is_alive():
            self._epoll.close()

    def _call_off(self) -> None:
        super()._call_off()
        self._uneasy.set()

    def _hear(self) -> list[Wake]:
        """What has come in on the connection, unless the thread uses it: then the thread tells."""
        if not self._session.acquire(blocking=False):
            return []
        try:
            if self._raw is None:
                return []
            pgconn = self._raw.pgconn
            try:
                pgconn.consume_input()
            except psycopg.Error:
                self._give_up_reading()
                self._uneasy.set()
                return []
            heard = []
            while (note := pgconn.notifies()) is not None:
                heard.append(Wake(note.relname.decode(), note.extra.decode("utf-8", "replace")))
            return heard
        finally:
            self._session.release()

    def _let_read(self, raw: psycopg.Connection[Any]) -> None:
        self._raw, self._socket = raw, raw.fileno()
        self._epoll.register(self._socket, select.EPOLLIN)

    def _give_up_reading(self) -> None:
        if self._raw is not None:
            with contextlib.suppress(OSError):  # closed with its connection: it is not in there any more
                self._epoll.unregister(self._socket)
            self._raw = None

    def _watch(self) -> None:
        db = self._connect()
        raw: psycopg.Connection[Any] = db.raw
        try:
            raw.deadline_s = PING_DEADLINE_S  # type: ignore[attr-defined]
            received: list[Wake] = []
            raw.add_notify_handler(lambda n: received.append(Wake(n.channel, n.payload)))
            for channel in self._channels:
                db.run(f"listen {channel}")
            self._set_state(True)
            self._signal()
            while True:
                with self._session:
                    self._let_read(raw)
                self._uneasy.wait(PING_S)
                with self._session:
                    self._give_up_reading()
                self._uneasy.clear()
                if self._closed:
                    return
                db.ping()
                if received:
                    self._signal(received)
                    received.clear()
        finally:
            with self._session:
                self._give_up_reading()
            db.close()


class SqliteWakes(Wakes):
    """``PRAGMA data_version`` every 5 ms for a second after activity, every 25 ms when idle; or every ``look_s`` seconds."""

    ACTIVE_S = 0.005
    IDLE_S = 0.025

    def __init__(self, connect: Callable[[], SqliteDb], poll_s: float, look_s: float | None = None) -> None:
        self._connect = connect
        self._active_s, self._idle_s = (self.ACTIVE_S, self.IDLE_S) if look_s is None else (look_s, look_s)
        super().__init__(poll_s)

    def _watch(self) -> None:
        db = self._connect()
        try:
            version = db.data_version()
            self._set_state(True)
            self._signal()
            active_until = 0.0
            while True:
                now = time.monotonic()
                if self._stopped(self._active_s if now < active_until else self._idle_s):
                    return
                seen = db.data_version()
                if seen != version:
                    version = seen
                    active_until = time.monotonic() + 1.0
                    self._signal()
        finally:
            db.close()
