"""PostgreSQL through psycopg 3: every wait has a deadline, every session says who it is and notices a dead peer."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from engine import config
from engine.errors import NotAllowed, ReadOnlyStore, StoreUnavailable
from engine.store.adapters import CONTEXT
from engine.store.db import Db, Row
from engine.store.dialect import Json, check_names, render_postgres
from engine.store.hot import HotStatements
from engine.store.rights import who_may

T = TypeVar("T")

CONNECT_TIMEOUT_S = 3

# A dead peer is noticed by both sides: probes after 2 s, every second; 10 s unacknowledged and the session is gone.
# Cable cut to lock released: 9 to 10 s (12.5 s when only one direction is lost); blips up to 7 s drop nothing.
_CLIENT_TCP: dict[str, Any] = {
    "keepalives": 1,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 10,
    "tcp_user_timeout": 10_000,
}
_SESSION = {
    "TimeZone": "UTC",
    "tcp_keepalives_idle": "2",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "10",
    "tcp_user_timeout": "10000",
    "client_connection_check_interval": "1000",
    "lock_timeout": "5000",
    "idle_in_transaction_session_timeout": "60000",
    "jit": "off",  # compiling takes seconds where the server has LLVM; no statement of ours runs for one
}
# The claim must keep its plan: `limit $n` is guessed as 10 % of the rows, so that the automatic mode re-plans every
# claim (2.0 ms against 0.8 ms), and a plan made while the table was empty scans it until the next ANALYZE (22 ms
# against 0.6 ms at 100,000 rows).
_CLAIM_PINS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}


class DeadlineConnection(psycopg.Connection[Row]):
    """A psycopg connection on which no wait is endless, so that a stopped server cannot hang a thread."""

    deadline_s: float = 10.0

    def wait(self, gen: Generator[Any, Any, T], interval: float = 0.1, timeout: float | None = None) -> T:
        try:
            return super().wait(gen, interval, self.deadline_s if timeout is None else timeout)
        except pg._WaitTimeout:
            if timeout is not None:
                raise
            self.close()  # the answer may still come: this connection cannot be used any more
            raise pg.OperationalError(f"no answer within {self.deadline_s:g} s") from None


def connect(
    url: str, *, name: str, read_only: bool = False, claims: bool = False, timeout_s: float = 10.0, safe_url: str = ""
) -> PostgresDb:
    """Open one connection. ``timeout_s``: deadline of a statement in seconds. Raises StoreUnavailable."""
    prepare: int | None = None if not config.get("db_prepare") else (0 if claims else 5)
    try:
        raw = DeadlineConnection.connect(
            url,
            autocommit=True,
            row_factory=dict_row,
            context=CONTEXT,
            prepare_threshold=prepare,
            connect_timeout=CONNECT_TIMEOUT_S,
            application_name=f"flightdeck {name}"[:63],
            **_CLIENT_TCP,
        )
    except psycopg.Error as error:
        raise StoreUnavailable(f"{safe_url or 'PostgreSQL'}: cannot connect: {_line(error)}") from None
    assert isinstance(raw, DeadlineConnection)
    # The server cancels first; the client's deadline is for a server that does not answer at all.
    raw.deadline_s = timeout_s + 2.0
    settings = dict(_SESSION, statement_timeout=str(int(timeout_s * 1000)))
    if claims and prepare is not None:
        settings |= _CLAIM_PINS
    if read_only:
        settings["default_transaction_read_only"] = "on"
    db = PostgresDb(raw, safe_url, hot=claims and prepare is not None)
    calls = ", ".join(f"set_config('{key}', '{value}', false)" for key, value in settings.items())
    try:
        with db._translated():
            raw.execute(f"select {calls}", prepare=False)
    except BaseException:
        raw.close()
        raise
    return db


class PostgresDb(Db):
    kind = "postgresql"

    def __init__(self, raw: psycopg.Connection[Any], safe_url: str = "", hot: bool = False) -> None:
        self.raw = raw
        self._safe_url = safe_url or "PostgreSQL"
        self._hot = HotStatements(raw) if hot else None

    def all(self, sql: str, /, **params: Any) -> list[Row]:
        text, names = render_postgres(sql)
        with self._translated(text), psycopg.RawCursor(self.raw, row_factory=dict_row) as cursor:
            cursor.execute(text, _encoded(params, names))
            return cursor.fetchall() if cursor.rownumber is not None else []

    def hot(self, sql: str, /, **params: Any) -> list[Row]:
        if self._hot is None:
            return self.all(sql, **params)
        text, names = render_postgres(sql)
        with self._translated(text):
            return self._hot.all(text, [params[name] for name in names])

    def run(self, sql: str, /, **params: Any) -> int:
        text, names = render_postgres(sql)
        with self._translated(text), psycopg.RawCursor(self.raw) as cursor:
            cursor.execute(text, _encoded(params, names))
            return int(max(cursor.rowcount, 0))

    def run_many(self, sql: str, rows: Sequence[Mapping[str, Any]], /) -> int:
        if not rows:
            return 0
        text, names = render_postgres(sql)
        with self._translated(text), self.raw.transaction(), psycopg.RawCursor(self.raw) as cursor:
            cursor.executemany(text, [_encoded(row, names) for row in rows])
            return int(max(cursor.rowcount, 0))

    def copy(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
        count = 0
        with self._translated(f"copy {table}"), self.raw.cursor() as cursor:
            with cursor.copy(f"copy {table} ({', '.join(columns)}) from stdin") as stream:
                for row in rows:
                    stream.write_row(row)
                    count += 1
        return count

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._translated():
            status = self.raw.info.transaction_status
            if not self.raw.autocommit and status == psycopg.pq.TransactionStatus.IDLE:
                # A caller's connection before its first statement: open the caller's transaction, so that ours is a
                # savepoint in it. Without this the block below would be outermost, and commit.
                self.raw.execute("select 1")
            with self.raw.transaction():
                yield

    def notify(self, channel: str, payload: str) -> None:
        self.run("select pg_notify({channel}, {payload})", channel=channel, payload=payload)

    def close(self) -> None:
        try:
            self.raw.close()
        except Exception:
            pass

    @property
    def closed(self) -> bool:
        return bool(self.raw.closed or self.raw.broken)

    @contextmanager
    def _translated(self, sql: str = "") -> Iterator[None]:
        """``sql``: the statement that runs within, if it is one of ours; what a caller runs itself may be refused in the
        driver's words."""
        try:
            yield
        except pg.InsufficientPrivilege as error:
            if not sql:
                raise
            said = " ".join((error.diag.message_primary or str(error)).split())
            raise NotAllowed(
                f"{self._safe_url}: {said}: this login may not do it, {who_may(said, sql)} may (deploy/roles.sql)"
            ) from None
        except pg.ReadOnlySqlTransaction:
            raise ReadOnlyStore(f"{self._safe_url}: the database is read-only here; nothing was changed") from None
        except pg.QueryCanceled as error:
            raise StoreUnavailable(f"{self._safe_url}: {_line(error)}") from error
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            if not self.closed:
                raise
            raise StoreUnavailable(f"{self._safe_url}: connection lost: {_line(error)}") from error


def is_pooled(db: PostgresDb) -> bool:
    """True when a pooler stands between: the protocol's backend pid is not the one that runs our statements."""
    return bool(db.value("select pg_backend_pid()") != db.raw.pgconn.backend_pid)


def _encoded(params: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """The values of ``names``, in that order, as the driver adapts them."""
    check_names(params)
    return [_adapted(params[name]) for name in names]


def _adapted(value: Any) -> Any:
    if isinstance(value, Json):
        return Jsonb(value.value)
    if isinstance(value, dict):
        return Jsonb(value)
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    return value


def _line(error: BaseException) -> str:
    """An error's text as one line."""
    return " ".join(str(error).split()) or type(error).__name__
