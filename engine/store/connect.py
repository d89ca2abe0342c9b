"""From a URL to a store: which database it is, how to connect to it, and what to call it in a log."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from engine import config
from engine.errors import ConfigError
from engine.store import embedded, postgres, sqlite
from engine.store.db import Db
from engine.store.dialect import Kind
from engine.store.wakes import PostgresWakes, SqliteWakes, Wakes


class Store:
    """A database that can be connected to. Holds no connection itself; safe to share between threads."""

    def __init__(self, url: str, *, direct_url: str | None = None) -> None:
        """``url`` as SPEC section 3 has it; ``direct_url`` goes past a transaction pooler. Raises ConfigError."""
        self.url = url
        self.owned = url.startswith(("sqlite:", "embedded:"))  # ours alone: a writer may migrate it when it is empty
        self.path: Path | None = None
        self._opened = False  # a SQLite file that was there once and is gone is waited for, never made anew
        self.kind: Kind
        if url.startswith("sqlite:"):
            self.kind = "sqlite"
            self.path = _sqlite_path(url)
            self.safe_url = f"sqlite file {self.path}"
        elif url.startswith("embedded:"):
            self.kind = "postgresql"
            server, database = embedded.server_for(url)
            self._conninfo = self._direct = server.url(database)
            self.safe_url = f"embedded PostgreSQL {server.directory} ({database})"
        elif url.startswith(("postgresql://", "postgres://")):
            self.kind = "postgresql"
            self._conninfo = url
            self._direct = direct_url or url
            for given in dict.fromkeys((self._conninfo, self._direct)):
                _check_postgres_url(given)
            self.safe_url = _without_password(url)
        else:
            shown = url.split("://")[0] if "://" in url else url[:40]
            raise ConfigError(
                f"database URL {shown!r} is not understood: use postgresql://..., sqlite:///file, sqlite:////abs/file or embedded:"
            )

    def connect(
        self,
        name: str = "engine",
        *,
        read_only: bool = False,
        direct: bool = False,
        claims: bool = False,
        timeout_s: float = 10.0,
    ) -> Db:
        """Open a connection.

        ``name`` shows in pg_stat_activity; ``direct`` for LISTEN and session locks (past a pooler); ``claims`` pins the
        planner for the claim statement; ``timeout_s`` is the deadline of a statement (SQLite: of the write lock).
        A SQLite file is created when it is missing, but not in the place of one that this object has opened before.
        Raises StoreUnavailable.
        """
        if self.path is not None:
            return self._open_file(read_only=read_only, timeout_s=timeout_s)
        return postgres.connect(
            self._direct if direct else self._conninfo,
            name=name,
            read_only=read_only,
            claims=claims,
            timeout_s=timeout_s,
            safe_url=self.safe_url,
        )

    def wakes(self, channels: Sequence[str], poll_s: float = 1.0, look_s: float | None = None) -> Wakes:
        """Start listening; see :mod:`engine.store.wakes`. ``poll_s``: the jittered poll behind it, seconds.

        ``look_s``: for who only watches: on SQLite, which tells nobody, look that often and not 40 to 200 times a second.
        """
        if self.path is not None:
            return SqliteWakes(lambda: self._open_file(timeout_s=2.0), poll_s, look_s)
        return PostgresWakes(
            lambda: postgres.connect(self._direct, name="wakes", timeout_s=4.0, safe_url=self.safe_url),
            channels,
            poll_s,
        )

    def _open_file(self, *, read_only: bool = False, timeout_s: float) -> sqlite.SqliteDb:
        db = sqlite.connect(self._file(), read_only=read_only, create=not self._opened, timeout_s=timeout_s)
        self._opened = True
        return db

    def _file(self) -> Path:
        assert self.path is not None
        return self.path

    def lock_dir(self) -> Path:
        """Where the session locks of a SQLite store lie: beside its file."""
        path = self._file()
        return path.with_name(f"{path.name}-locks")

    def __repr__(self) -> str:
        return f"Store({self.safe_url})"


def open_store(url: str | None = None) -> Store:
    """The store of a URL, or of the configuration; starts the embedded server. Raises ConfigError, StoreUnavailable."""
    return Store(url or config.db_url(), direct_url=config.get("db_direct_url"))


def adopt(conn: Any) -> Db:
    """Wrap a caller's psycopg or sqlite3 connection: statements join its transaction, which stays the caller's."""
    import psycopg

    if isinstance(conn, Db):
        return conn
    if isinstance(conn, psycopg.Connection):
        return postgres.PostgresDb(conn)
    if isinstance(conn, sqlite3.Connection):
        db = sqlite.SqliteDb(conn)
        if not conn.in_transaction and conn.isolation_level is not None:
            db.begin()  # the driver would begin at its first write only; ours reads before it writes
        return db
    raise ConfigError(f"conn must be a psycopg or sqlite3 connection, got {type(conn).__name__}")


def _sqlite_path(url: str) -> Path:
    rest = url.removeprefix("sqlite:")
    if not rest.startswith("///") or len(rest) == 3:
        raise ConfigError(f"{url}: write sqlite:///relative/file or sqlite:////absolute/file")
    try:
        return Path(unquote(rest[3:])).expanduser().absolute()
    except (OSError, RuntimeError) as error:  # a relative path where the working directory is gone; ~ without a home
        raise ConfigError(f"{url}: no such directory ({error})") from None


def _check_postgres_url(url: str) -> None:
    """Refuse what no server could ever answer, instead of waiting for it. Raises ConfigError without the password."""
    import psycopg

    password = None
    try:
        password = urlsplit(url).password
        psycopg.conninfo.conninfo_to_dict(url)
    except (ValueError, psycopg.Error) as error:
        reason = " ".join(str(error).replace(url, "...").split())
        if password:
            reason = reason.replace(password, "***")
        raise ConfigError(f"database URL postgresql://... is malformed: {reason}") from None


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    query = "&".join(p for p in parts.query.split("&") if not p.startswith("password="))
    if parts.password is not None:
        user, _, host = parts.netloc.rpartition("@")
        parts = parts._replace(netloc=f"{user.split(':')[0]}@{host}")
    return urlunsplit(parts._replace(query=query))
