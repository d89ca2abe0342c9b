"""Locks that die with their session: who is alive (Presence) and who may be the only one (Exclusive).

PostgreSQL: session-level advisory locks on the holder's own connection. SQLite: flock on a file beside the database,
which the kernel frees with the process. A restart of the database drops them all, the observer's own included.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from engine.errors import StoreUnavailable
from engine.store.connect import Store
from engine.store.db import Db


def new_incarnation() -> str:
    """A random id of one life of one process: 16 lowercase hex digits (64 bits, the size of an advisory key)."""
    return secrets.token_hex(8)


class Presence:
    """The mark by which others see that this incarnation is alive."""

    def __init__(self, store: Store, incarnation: str) -> None:
        self._store = store
        self.incarnation = incarnation
        self._db: Db | None = None
        self._fd: int | None = None

    def hold(self, db: Db) -> None:
        """Set the mark on ``db``'s session; again after a reconnect. Shared, so that no predecessor can block it."""
        if db.kind == "sqlite":
            if self._fd is None:
                self._fd = _open(_presence_file(self._store, self.incarnation))
                fcntl.flock(self._fd, fcntl.LOCK_EX)
            return
        high, low = _key_pair(self.incarnation)
        db.value("select pg_advisory_lock_shared({high}::int4, {low}::int4)", high=high, low=low)
        self._db = db

    @property
    def held(self) -> bool:
        """Whether the session that carries the mark is still usable."""
        return self._fd is not None or (self._db is not None and not self._db.closed)

    def release(self) -> None:
        """Take the mark away (or let the connection's end do it)."""
        if self._fd is not None:
            _presence_file(self._store, self.incarnation).unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = None
        if self._db is not None and not self._db.closed:
            high, low = _key_pair(self.incarnation)
            try:
                self._db.value("select pg_advisory_unlock_shared({high}::int4, {low}::int4)", high=high, low=low)
            except StoreUnavailable:
                pass
        self._db = None


def present(store: Store, db: Db, incarnations: Iterable[str]) -> set[str]:
    """Which of these incarnations hold their mark now. Names that are no incarnation are never present."""
    wanted = {name for name in incarnations if _is_incarnation(name)}
    if not wanted:
        return set()
    if db.kind == "sqlite":
        return {name for name in wanted if _flocked(_presence_file(store, name))}
    rows = db.all(
        "select classid::bigint as high, objid::bigint as low from pg_locks "
        "where locktype = 'advisory' and objsubid = 2 and granted "
        "and database = (select oid from pg_database where datname = current_database())"
    )
    return wanted & {f"{row['high']:08x}{row['low']:08x}" for row in rows}


class Exclusive:
    """A named lock that one session holds: the leader, one lane per (box, queue, project), one recorder per box.

    ``shared``: others that ask for it likewise may hold it too, and nobody else.
    """

    def __init__(self, store: Store, name: str, *, shared: bool = False) -> None:
        self._store = store
        self.name = name
        self._shared = shared
        self._key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), signed=True)
        self._db: Db | None = None
        self._fd: int | None = None

    def try_acquire(self, db: Db) -> bool:
        """Take the lock if it is free; True when held (also when held already on this session)."""
        if self.held:
            return True
        if db.kind == "sqlite":
            fd = _open(self._store.lock_dir() / f"x-{self._key & (2**64 - 1):016x}.lock")
            try:
                fcntl.flock(fd, (fcntl.LOCK_SH if self._shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return False
            self._fd = fd
            return True
        if db.value(f"select pg_try_advisory_lock{self._mode}({{key}}::bigint)", key=self._key):
            self._db = db
            return True
        return False

    @property
    def _mode(self) -> str:
        return "_shared" if self._shared else ""

    @property
    def held(self) -> bool:
        """Whether the session that took the lock is still usable; a dead one has lost it."""
        return self._fd is not None or (self._db is not None and not self._db.closed)

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if self._db is not None and not self._db.closed:
            try:
                self._db.value(f"select pg_advisory_unlock{self._mode}({{key}}::bigint)", key=self._key)
            except StoreUnavailable:
                pass
        self._db = None


def _is_incarnation(name: str) -> bool:
    return len(name) == 16 and all(c in "0123456789abcdef" for c in name)


def _key_pair(incarnation: str) -> tuple[int, int]:
    if not _is_incarnation(incarnation):
        raise ValueError(f"{incarnation!r} is not an incarnation (16 hex digits)")
    raw = bytes.fromhex(incarnation)
    return int.from_bytes(raw[:4], signed=True), int.from_bytes(raw[4:], signed=True)


def _presence_file(store: Store, incarnation: str) -> Path:
    return store.lock_dir() / f"{incarnation}.lock"


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _flocked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        # Gone means released. Anything else is no evidence of death: without evidence it counts as alive.
        return error.errno != errno.ENOENT
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    path.unlink(missing_ok=True)  # left behind by a killed process
    return False
