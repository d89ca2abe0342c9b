"""One PostgreSQL per test session, a fresh database per test from a migrated template, and a clean configuration."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from hypothesis import HealthCheck, settings

from engine import config, registry
from engine.commands.options import LineFormatter
from engine.store import Db, Store, embedded
from engine.store.migrate import migrate
from tests.support import Processes

TEMPLATE = "flightdeck_template_test"

# A loaded machine is slow at everything: what takes long is not wrong.
settings.register_profile("loaded", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loaded")

for name in list(os.environ):
    if name.startswith(("FLIGHTDECK_", "TEXTUAL")) and name != "FLIGHTDECK_TEST_DB_URL":
        del os.environ[name]
for name in ("NO_COLOR", "COLORTERM", "FORCE_COLOR"):
    os.environ.pop(name, None)


def _with_database(url: str, database: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


@pytest.fixture(scope="session")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of the server (database postgres): FLIGHTDECK_TEST_DB_URL, or one embedded server for all xdist workers."""
    given = os.environ.get("FLIGHTDECK_TEST_DB_URL")
    if given:
        yield given
        return
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", secrets.token_hex(4))
    directory = Path(tempfile.gettempdir()) / f"flightdeck-test-{run}"
    # Durability is for the benchmarks; here the server lives as long as the tests.
    unsafe = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "400"}
    server = embedded.EmbeddedServer(directory, unsafe)
    server.acquire()
    yield server.url("postgres")
    server.release()
    if not (directory / "pgdata" / "postmaster.pid").exists():
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def template(server_url: str) -> str:
    """A migrated database to copy; whichever worker comes first makes it."""
    with psycopg.connect(server_url, autocommit=True) as raw:
        raw.execute("select pg_advisory_lock(4711)")
        known = raw.execute("select datistemplate from pg_database where datname = %s", (TEMPLATE,)).fetchone()
        if known is None or not known[0] or "FLIGHTDECK_TEST_DB_URL" in os.environ:
            raw.execute(f"update pg_database set datistemplate = false where datname = '{TEMPLATE}'")
            raw.execute(f"drop database if exists {TEMPLATE} with (force)")
            raw.execute(f"create database {TEMPLATE}")
            migrate(Store(_with_database(server_url, TEMPLATE)))
            raw.execute(f"update pg_database set datistemplate = true where datname = '{TEMPLATE}'")
        raw.execute("select pg_advisory_unlock(4711)")
    return TEMPLATE


@pytest.fixture
def pg_empty_url(server_url: str) -> Iterator[str]:
    """URL of a fresh database without our schema."""
    yield from _fresh(server_url, None)


@pytest.fixture
def pg_url(server_url: str, template: str) -> Iterator[str]:
    """URL of a fresh, migrated database."""
    yield from _fresh(server_url, template)


def _fresh(server_url: str, template: str | None) -> Iterator[str]:
    name = f"fd_{secrets.token_hex(6)}_test"
    with psycopg.connect(server_url, autocommit=True) as raw:
        raw.execute("select pg_advisory_lock_shared(4711)")
        raw.execute(f"create database {name}" + (f" template {template}" if template else ""))
    yield _with_database(server_url, name)
    with psycopg.connect(server_url, autocommit=True) as raw:
        raw.execute(f"drop database if exists {name} with (force)")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """URL of a fresh, migrated file."""
    url = f"sqlite:///{tmp_path / 'fleet_test.db'}"
    migrate(Store(url))
    return url


@pytest.fixture
def pg_store(pg_url: str) -> Store:
    return Store(pg_url)


@pytest.fixture
def sqlite_store(sqlite_url: str) -> Store:
    return Store(sqlite_url)


@pytest.fixture(params=["postgresql", "sqlite"])
def store(request: pytest.FixtureRequest) -> Store:
    """Both stores, one after the other."""
    found = request.getfixturevalue("pg_store" if request.param == "postgresql" else "sqlite_store")
    assert isinstance(found, Store)
    return found


@pytest.fixture
def db(store: Store) -> Iterator[Db]:
    with store.connect("test") as db:
        yield db


@pytest.fixture(autouse=True)
def registry_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that one test configures or registers reaches another, or the user's own data directory."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    config.reset()
    registry.reset()
    yield
    config.reset()
    registry.reset()


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that ran in this process leaves a handler on the stream of its test, which is closed by now."""
    root = logging.getLogger()
    level = root.level
    yield
    for handler in list(root.handlers):
        if isinstance(handler.formatter, LineFormatter):
            root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Processes that end with the test, by pid."""
    started = Processes(tmp_path)
    yield started
    started.end_all()
