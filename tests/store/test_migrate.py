"""Migrations: up, down, once, from many processes at once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine.errors import SchemaMismatch
from engine.store import Store
from engine.store.migrate import check_schema, downgrade, ensure_schema, load, migrate, required_version, schema_version
from tests.support import Processes, eventually


@pytest.fixture(params=["postgresql", "sqlite"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "sqlite":
        return Store(f"sqlite:///{tmp_path / 'empty_test.db'}")
    return Store(request.getfixturevalue("pg_empty_url"))


def _tables(store: Store) -> set[str]:
    with store.connect("test") as db:
        if db.kind == "sqlite":
            rows = db.all("select name from sqlite_master where type = 'table' and name not like 'sqlite_%'")
        else:
            rows = db.all("select tablename as name from pg_tables where schemaname = 'public'")
    return {row["name"] for row in rows}


def test_up_and_down_and_up_again(empty: Store) -> None:
    chain = [migration.version for migration in load(empty.kind)]
    assert migrate(empty) == chain
    assert migrate(empty) == []
    full = _tables(empty)
    assert {"workflow_node_jobs", "ingest_jobs", "flight_recorder", "job_events"} <= full
    assert downgrade(empty, 0) == chain[::-1]
    assert _tables(empty) == {"engine_schema_version"}
    assert migrate(empty) == chain
    assert _tables(empty) == full


def test_both_dialects_have_the_same_columns(pg_store: Store, sqlite_store: Store) -> None:
    with pg_store.connect("test") as db:
        rows = db.all("select table_name, column_name from information_schema.columns where table_schema = 'public'")
        pg = {(row["table_name"], row["column_name"]) for row in rows}
    with sqlite_store.connect("test") as db:
        lite = {
            (table, row["name"]) for table in _tables(sqlite_store) for row in db.all(f"pragma table_xinfo({table})")
        }
    assert pg == lite


def test_an_older_schema_is_named_and_nothing_is_changed(empty: Store) -> None:
    migrate(empty)
    downgrade(empty, 1)
    with empty.connect("test") as db, pytest.raises(SchemaMismatch, match="schema 1, this program needs"):
        check_schema(empty, db)


def test_a_newer_schema_is_refused_at_once(empty: Store) -> None:
    migrate(empty)
    with empty.connect("test") as db:
        db.run("insert into engine_schema_version (version, name, min_code) values (9999, 'future', 99)")
    for attempt in (lambda: migrate(empty), lambda: ensure_schema(empty, 60.0)):
        with pytest.raises(SchemaMismatch, match="needs a newer program"):
            attempt()


def test_a_writer_migrates_an_empty_sqlite_file(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'new' / 'fleet_test.db'}")
    ensure_schema(store)
    with store.connect("test") as db:
        assert schema_version(db) == required_version(store)


def test_five_processes_migrate_at_once_and_exactly_one_does(
    empty: Store, processes: Processes, tmp_path: Path
) -> None:
    """Q25: they wait for each other at a gate, so that all of them really begin at the same time."""
    script = (
        "import os, sys, time\nfrom engine.store import Store\nfrom engine.store.migrate import migrate\n"
        "store = Store(sys.argv[1])\nopen(sys.argv[2] + str(os.getpid()), 'w').close()\n"
        "while not os.path.exists(sys.argv[2] + 'go'):\n    time.sleep(0.001)\nprint(len(migrate(store)))"
    )
    gate = tmp_path / "gate"
    gate.mkdir()
    started = [processes.spawn([sys.executable, "-c", script, empty.url, f"{gate}/"]) for _ in range(5)]
    eventually(lambda: len(list(gate.iterdir())) == 5, what="all of them ready")
    (gate / "go").touch()
    assert [process.wait(timeout=120) for process in started] == [0] * 5, [processes.log(one) for one in started]
    applied = sorted(int(processes.log(process).strip().splitlines()[-1]) for process in started)
    assert applied == [0, 0, 0, 0, len(load(empty.kind))]
    assert schema_of(empty) == len(load(empty.kind))


def schema_of(store: Store) -> int:
    """How many migrations the ledger has; each stands there once."""
    with store.connect("test") as db:
        return int(db.value("select count(*) from engine_schema_version"))
