"""One connection of either kind, as the rest of the engine sees it."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

from engine.store.dialect import Kind

Row = dict[str, Any]


class Db(abc.ABC):
    """A connection; autocommit unless inside :meth:`transaction`. For one thread at a time.

    Raises StoreUnavailable when the connection is gone or did not answer within its deadline, ReadOnlyStore when it
    refuses writes; other errors of the driver pass through.
    """

    kind: Kind
    raw: Any

    @abc.abstractmethod
    def all(self, sql: str, /, **params: Any) -> list[Row]:
        """All rows of one statement."""

    def hot(self, sql: str, /, **params: Any) -> list[Row]:
        """:meth:`all`, for the few statements that are run many hundred times a second on a connection made for claims.

        Parameters are None, bool, int, float, str and lists of these.
        """
        return self.all(sql, **params)

    @abc.abstractmethod
    def run(self, sql: str, /, **params: Any) -> int:
        """Run one statement; the number of rows that it touched."""

    @abc.abstractmethod
    def run_many(self, sql: str, rows: Sequence[Mapping[str, Any]], /) -> int:
        """Run one statement for each parameter set; the number of rows touched."""

    @abc.abstractmethod
    def copy(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
        """Append many rows (COPY on PostgreSQL); JSON columns as text. The number of rows written."""

    @abc.abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """A transaction; nested: a savepoint. SQLite takes its write lock at the start."""

    @abc.abstractmethod
    def notify(self, channel: str, payload: str) -> None:
        """Wake listeners when the current transaction commits. A hint only; nothing on SQLite."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close; never raises, never blocks."""

    @property
    @abc.abstractmethod
    def closed(self) -> bool:
        """True once the connection cannot be used any more."""

    def one(self, sql: str, /, **params: Any) -> Row | None:
        """The first row, or None."""
        rows = self.all(sql, **params)
        return rows[0] if rows else None

    def value(self, sql: str, /, **params: Any) -> Any:
        """The first column of the first row, or None."""
        row = self.one(sql, **params)
        return next(iter(row.values())) if row else None

    def now(self) -> datetime:
        """The database's clock (UTC), which decides about leases and due times."""
        moment = self.value("select {clock} as now_at")
        assert isinstance(moment, datetime)
        return moment

    def ping(self) -> None:
        """One round trip. Raises StoreUnavailable."""
        self.value("select 1")

    def __enter__(self) -> Db:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
