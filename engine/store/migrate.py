"""Numbered SQL files, applied in order under a lock, recorded in a ledger; up and down."""

from __future__ import annotations

import logging
import random
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import psycopg

from engine import config
from engine.errors import ConfigError, ReadOnlyStore, SchemaMismatch, StoreUnavailable
from engine.store.connect import Store
from engine.store.db import Db
from engine.store.postgres import PostgresDb

log = logging.getLogger("engine.migrate")

LEDGER = "engine_schema_version"

# What this program can work with. A migration that older programs cannot live with says `-- min_code: N` and this
# number grows with it; others leave the previous release running on the next schema.
CODE_LEVEL = 1

_FILE = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_LEDGER_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_MIN_CODE = re.compile(r"^-- min_code: (\d+)$", re.M)


@dataclass(frozen=True)
class Migration:
    version: int
    name: str
    up: str
    down: str
    min_code: int


def migrations_dir() -> Path:
    """Where the SQL files lie: inside the installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "migrations"


def load(kind: str, directory: Path | None = None) -> list[Migration]:
    """The chain of one dialect, in order. ``directory`` holds postgres/ and sqlite/ (a host's own chain)."""
    folder = (directory or migrations_dir()) / ("sqlite" if kind == "sqlite" else "postgres")
    chain = []
    for path in sorted(folder.glob("[0-9]*.sql")):
        if match := _FILE.fullmatch(path.name):
            up = path.read_text()
            marked = _MIN_CODE.search(up)
            down = path.with_name(path.name.replace(".sql", ".down.sql")).read_text()
            chain.append(Migration(int(match[1]), match[2], up, down, int(marked[1]) if marked else 1))
    if not chain:
        raise SchemaMismatch(f"no migrations found in {folder}: the installation is incomplete")
    return chain


def migrate(store: Store, *, directory: Path | None = None, ledger: str = LEDGER) -> list[int]:
    """Apply what is missing; the versions applied. Idempotent, safe from many processes at once.

    Raises SchemaMismatch when the database belongs to a newer program, StoreUnavailable, ReadOnlyStore.
    """
    chain = load(store.kind, directory)
    applied = []
    with store.connect("migrate", direct=True, timeout_s=120.0) as db, _lock(db, ledger):
        _create_ledger(db, ledger)
        if ledger == LEDGER:
            _refuse_newer(store, db)
        known = {row["version"] for row in db.all(f"select version from {ledger}")}
        for migration in chain:
            if migration.version in known:
                continue
            with db.transaction():
                _run_script(db, migration.up)
                db.run(
                    f"insert into {ledger} (version, name, min_code) values ({{version}}, {{name}}, {{min_code}})",
                    version=migration.version,
                    name=migration.name,
                    min_code=migration.min_code,
                )
            applied.append(migration.version)
            log.info("migrated to %04d %s", migration.version, migration.name)
    return applied


def check_host_chain(directory: Path, ledger: str) -> None:
    """Refuse what cannot be a host's own chain: a ledger that is no name or is ours. Raises ConfigError."""
    if not isinstance(ledger, str) or not _LEDGER_NAME.fullmatch(ledger):
        raise ConfigError(f"ledger {ledger!r} is not a table name (lowercase letters, digits, _; at most 63)")
    if ledger == LEDGER:
        raise ConfigError(f"ledger {ledger!r} is Flight Deck's own; a host's chain needs another name")
    if not directory.is_dir():
        raise ConfigError(f"{directory}: no such directory; it holds postgres/ and sqlite/ with NNNN_name.sql files")


def downgrade(store: Store, to_version: int, *, directory: Path | None = None, ledger: str = LEDGER) -> list[int]:
    """Take back every migration above ``to_version``, newest first; the versions taken back."""
    chain = {migration.version: migration for migration in load(store.kind, directory)}
    undone = []
    with store.connect("migrate", direct=True, timeout_s=120.0) as db, _lock(db, ledger):
        if not _has_ledger(db, ledger):
            return []
        rows = db.all(
            f"select version from {ledger} where version > {{to}} order by version desc",
            to=to_version,
        )
        for row in rows:
            version = int(row["version"])
            if version not in chain:
                raise SchemaMismatch(f"{store.safe_url}: schema {version} is unknown to this program; use a newer one")
            with db.transaction():
                _run_script(db, chain[version].down)
                db.run(f"delete from {ledger} where version = {{version}}", version=version)
            undone.append(version)
    return undone


def schema_version(db: Db) -> int | None:
    """The newest version in the ledger; 0 for an empty ledger, None when there is none."""
    if not _has_ledger(db, LEDGER):
        return None
    return int(db.value(f"select coalesce(max(version), 0) from {LEDGER}"))


def required_version(store: Store) -> int:
    """The version that this program needs."""
    return load(store.kind)[-1].version


def check_schema(store: Store, db: Db) -> None:
    """Raise SchemaMismatch unless this program can use the schema as it is."""
    version = schema_version(db)
    needed = required_version(store)
    if version is not None:
        _refuse_newer(store, db)
    if version is None or version < needed:
        have = "no schema yet" if not version else f"schema {version}"
        raise SchemaMismatch(f"{store.safe_url}: {have}, this program needs {needed}: run queue-broker bootstrap")


def wait_for_schema(store: Store, seconds: float | None = None, *, writes: bool = False) -> None:
    """Wait until the schema can be used; SchemaMismatch when it is not after ``seconds`` (default 120).

    A schema that is too new raises at once: waiting would not help. ``writes``: so does a database that takes none, as
    ReadOnlyStore. StoreUnavailable passes through.
    """
    limit = config.get("schema_wait_seconds") if seconds is None else seconds
    deadline = time.monotonic() + limit
    told = False
    while True:
        with store.connect("schema check") as db:
            try:
                check_schema(store, db)
                if writes:
                    refuse_read_only(store, db)
                return
            except SchemaMismatch as error:
                if time.monotonic() >= deadline or "newer program" in str(error):
                    raise
                if not told:
                    log.warning("%s; waiting up to %g s", error, limit)
                    told = True
        time.sleep(random.uniform(0.2, 0.4))


def ensure_schema(store: Store, seconds: float | None = None) -> None:
    """What every writer does first: migrate an empty SQLite or embedded database, else wait for the schema.

    Raises ReadOnlyStore for a server that takes no writes, SchemaMismatch, StoreUnavailable.
    """
    if store.owned:
        with store.connect("schema check") as db:
            empty = not schema_version(db)
        if empty:
            migrate(store)
            return
    wait_for_schema(store, seconds, writes=True)


def refuse_read_only(store: Store, db: Db) -> None:
    """Raise ReadOnlyStore where no write can succeed: a standby, or a database set to read only. SQLite tells by itself."""
    if db.kind == "postgresql" and db.value("select current_setting('transaction_read_only')") == "on":
        raise ReadOnlyStore(f"{store.safe_url}: the database is read-only; nothing was changed")


def _refuse_newer(store: Store, db: Db) -> None:
    row = db.one(f"select max(version) as version, max(min_code) as min_code from {LEDGER}")
    if row and row["min_code"] is not None and row["min_code"] > CODE_LEVEL:
        raise SchemaMismatch(
            f"{store.safe_url}: schema {row['version']} needs a newer program "
            f"(level {row['min_code']}, this one is {CODE_LEVEL}): upgrade flightdeck"
        )


def _has_ledger(db: Db, ledger: str) -> bool:
    if db.kind == "sqlite":
        return db.value("select 1 from sqlite_master where type = 'table' and name = {name}", name=ledger) is not None
    return db.value("select to_regclass({name})::text", name=ledger) is not None


def _create_ledger(db: Db, ledger: str) -> None:
    moment = "timestamptz" if db.kind == "postgresql" else "text"
    default = "now()" if db.kind == "postgresql" else "(strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now'))"
    if not _has_ledger(db, ledger):
        # Not through the dialect: the strftime format would be taken for fragments.
        with db.transaction(), _rights(db):  # it knows the errors of the driver
            db.raw.execute(
                f"create table if not exists {ledger} (version integer primary key, name text not null, "
                f"min_code integer not null default 1, applied_at {moment} not null default {default})"
            )


def _rights(db: Db) -> AbstractContextManager[None]:
    """What a login that does not own the schema is told."""
    return db._translated("alter table") if isinstance(db, PostgresDb) else nullcontext()


def _run_script(db: Db, script: str) -> None:
    """Run a file of statements inside the current transaction."""
    if db.kind == "postgresql":
        with _rights(db):
            db.raw.execute(script)
        return
    statement = ""  # executescript() would commit first, so the statements go one by one
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            db.raw.execute(statement)
            statement = ""
    if statement.strip():
        db.raw.execute(statement)


@contextmanager
def _lock(db: Db, ledger: str) -> Iterator[None]:
    """One migrator at a time. SQLite: a transaction around everything; PostgreSQL: a session lock."""
    if db.kind == "sqlite":
        with db.transaction():
            yield
        return
    key = f"migrate {ledger}"
    deadline = time.monotonic() + 120.0
    while not db.value("select pg_try_advisory_lock(hashtextextended({key}, 0))", key=key):
        if time.monotonic() >= deadline:
            raise StoreUnavailable("another process has been migrating this database for 120 s; try again")
        time.sleep(random.uniform(0.02, 0.08))
    try:
        yield
    finally:
        if not db.closed:
            try:
                db.value("select pg_advisory_unlock(hashtextextended({key}, 0))", key=key)
            except (StoreUnavailable, psycopg.Error):
                pass  # the session's end frees it
