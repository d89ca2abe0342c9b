"""SQLite as a job queue's store: WAL, one short write at a time, and a retry of our own.

SQLite's busy handler sleeps up to 100 ms and so loses to anyone who loops: a peer waited up to 5.5 s behind four
draining processes. With timeout 0 and a jittered retry of under a millisecond the worst wait was 31 ms.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from engine.errors import ReadOnlyStore, StoreUnavailable
from engine.store.db import Db, Row
from engine.store.dialect import check_names, render_sqlite, sqlite_decoder, sqlite_value

T = TypeVar("T")

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def connect(path: Path, *, read_only: bool = False, create: bool = True, timeout_s: float = 10.0) -> SqliteDb:
    """Open the file (created when missing, if ``create`` and not ``read_only``). ``timeout_s``: longest wait for the
    write lock. Raises StoreUnavailable."""
    create = create and not read_only
    try:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        raw = sqlite3.connect(
            path.as_uri() + ("" if create else "?mode=rw"),
            uri=True,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
    except (sqlite3.Error, OSError) as error:
        why = "no such file" if not create and not path.exists() else error
        raise StoreUnavailable(f"sqlite file {path}: cannot open: {why}") from None
    try:
        identity = _identity(path)
        if identity is None:
            raise FileNotFoundError(f"no such file any more: {path}")
    except OSError as error:
        raw.close()
        raise StoreUnavailable(f"sqlite file {path}: cannot open: {error}") from None
    db = SqliteDb(raw, str(path), timeout_s, identity)
    try:
        if db.value("pragma journal_mode") != "wal" and not read_only:
            db.value("pragma journal_mode=wal")
        # NORMAL survives the death of a process; a power cut may lose the last commits, never the file.
        db.run("pragma synchronous=normal")
        db.run("pragma foreign_keys=on")
        if read_only:
            db.run("pragma query_only=on")
    except (sqlite3.Error, StoreUnavailable, ReadOnlyStore) as error:
        raw.close()
        if isinstance(error, sqlite3.Error):
            raise StoreUnavailable(f"sqlite file {path}: cannot use: {error}") from None
        raise
    return db


class SqliteDb(Db):
    kind = "sqlite"

    def __init__(
        self,
        raw: sqlite3.Connection,
        path: str = "",
        timeout_s: float = 10.0,
        identity: tuple[int, int] | None = None,
    ) -> None:
        """``identity``: the file that was opened; None (a caller's connection) lets it be replaced unnoticed."""
        self.raw = raw
        self._identity = identity
        self._path = path or "(caller's connection)"
        self._timeout_s = timeout_s
        self._depth = 0
        self._closed = False

    def all(self, sql: str, /, **params: Any) -> list[Row]:
        cursor = self._execute(sql, params)
        if cursor.description is None:
            return []
        columns = [column[0] for column in cursor.description]
        rows = self._retry(cursor.fetchall)
        decoders = [(i, decode) for i, column in enumerate(columns) if (decode := sqlite_decoder(column))]
        if not decoders:
            return [dict(zip(columns, row, strict=True)) for row in rows]
        decoded = []
        for row in rows:
            values = list(row)
            for i, decode in decoders:
                values[i] = decode(values[i])
            decoded.append(dict(zip(columns, values, strict=True)))
        return decoded

    def run(self, sql: str, /, **params: Any) -> int:
        cursor = self._execute(sql, params)
        if cursor.description is not None:
            self._retry(cursor.fetchall)  # a RETURNING that nobody reads must still be stepped to its end
        return max(cursor.rowcount, 0)

    def run_many(self, sql: str, rows: Sequence[Mapping[str, Any]], /) -> int:
        text = render_sqlite(sql)
        encoded = [{name: sqlite_value(value) for name, value in row.items()} for row in rows]
        with self.transaction():
            cursor = self._retry(lambda: self._cursor().executemany(text, encoded))
        return max(cursor.rowcount, 0)

    def copy(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
        text = f"insert into {table} ({', '.join(columns)}) values ({', '.join('?' for _ in columns)})"
        encoded = [[sqlite_value(value) for value in row] for row in rows]
        with self.transaction():
            self._retry(lambda: self._cursor().executemany(text, encoded))
        return len(encoded)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self._closed:
            raise StoreUnavailable(f"sqlite file {self._path}: connection closed")
        outermost = self._depth == 0 and not self.raw.in_transaction
        name = f"engine_{self._depth}"
        self._run_text("begin immediate" if outermost else f"savepoint {name}")
        if outermost:  # with the write lock, which may have been long in coming
            self._check_place()
        self._depth += 1
        try:
            yield
        except BaseException:
            self._depth -= 1
            if self.raw.in_transaction:  # some errors roll the whole transaction back by themselves
                self._run_text("rollback" if outermost else f"rollback to {name}")
                if not outermost:
                    self._run_text(f"release {name}")
            raise
        self._depth -= 1
        self._run_text("commit" if outermost else f"release {name}")

    def begin(self) -> None:
        """Open a transaction that somebody else will end."""
        self._run_text("begin immediate")

    def notify(self, channel: str, payload: str) -> None:
        """Nothing: on SQLite the change itself is the wake."""

    def close(self) -> None:
        self._closed = True
        try:
            self.raw.close()
        except Exception:
            pass

    @property
    def closed(self) -> bool:
        return self._closed

    def data_version(self) -> int:
        """Changes when any other connection commits (PRAGMA data_version); about 8 microseconds.

        Raises StoreUnavailable when the file was removed or replaced: nothing would ever change in it again.
        """
        self._check_place()
        return int(self.raw.execute("pragma data_version").fetchone()[0])

    def _check_place(self) -> None:
        """Close and raise StoreUnavailable unless the path still leads to the file that is open.

        SQLite itself would go on in a file without a name, and what is written there is lost. A stat is 1 microsecond.
        """
        if self._identity is None:
            return
        try:
            same = _identity(self._path) == self._identity
        except OSError:
            return  # not to be looked at just now, which says nothing about the file
        if not same:
            self.close()
            raise StoreUnavailable(f"sqlite file {self._path}: the file was removed or replaced")

    def _cursor(self) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.raw.cursor()
        cursor.row_factory = None  # a caller's connection may have one of its own
        return cursor

    def _execute(self, sql: str, params: Mapping[str, Any]) -> sqlite3.Cursor:
        check_names(params)
        text = render_sqlite(sql)
        encoded = {name: sqlite_value(value) for name, value in params.items()}
        if not self._closed and not self.raw.in_transaction:
            self._check_place()
        return self._retry(lambda: self._cursor().execute(text, encoded))

    def _run_text(self, text: str) -> None:
        self._retry(lambda: self._cursor().execute(text))

    def _retry(self, step: Callable[[], T]) -> T:
        deadline = None
        while True:
            try:
                return step()
            except sqlite3.OperationalError as error:
                code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
                if code == sqlite3.SQLITE_READONLY:
                    raise ReadOnlyStore(f"sqlite file {self._path}: read-only here; nothing was changed") from None
                if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL):
                    raise StoreUnavailable(f"sqlite file {self._path}: {error}") from error
                if code not in _BUSY:
                    raise
                now = time.monotonic()
                deadline = deadline or now + self._timeout_s
                if now >= deadline:
                    raise StoreUnavailable(
                        f"sqlite file {self._path}: locked by another writer for {self._timeout_s:g} s"
                    ) from error
                time.sleep(random.uniform(0.0002, 0.001))
            except sqlite3.ProgrammingError as error:  # before its base class
                if self._closed:
                    raise StoreUnavailable(f"sqlite file {self._path}: connection closed") from error
                raise
            except sqlite3.DatabaseError as error:
                if ((getattr(error, "sqlite_errorcode", None) or 0) & 0xFF) == sqlite3.SQLITE_NOTADB:
                    raise StoreUnavailable(f"sqlite file {self._path}: not a SQLite database") from None
                raise


def _identity(path: str | Path) -> tuple[int, int] | None:
    """Which file the path leads to; None where there is none. Raises OSError where that cannot be seen."""
    try:
        seen = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return seen.st_dev, seen.st_ino
