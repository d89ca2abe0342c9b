"""A host's own migrations under a ledger of their own: up, down and concurrently, beside ours, on both stores."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import engine
from engine.errors import ConfigError, SchemaMismatch
from engine.store import Store
from engine.store.migrate import downgrade, load, migrate
from tests.support import Processes, eventually

LEDGER = "shop_schema_version"


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    """A host with two migrations, the second on the first."""
    for dialect in ("postgres", "sqlite"):
        folder = tmp_path / "shop" / dialect
        folder.mkdir(parents=True)
        (folder / "0001_orders.sql").write_text("create table shop_orders (id integer primary key, run_id bigint);\n")
        (folder / "0001_orders.down.sql").write_text("drop table shop_orders;\n")
        (folder / "0002_total.sql").write_text("alter table shop_orders add column total integer not null default 0;\n")
        (folder / "0002_total.down.sql").write_text("alter table shop_orders drop column total;\n")
    return tmp_path / "shop"


def versions(store: Store, ledger: str) -> list[int]:
    with store.connect("test") as db:
        return [row["version"] for row in db.all(f"select version from {ledger} order by version")]


def test_a_host_chain_goes_up_and_down_beside_ours(store: Store, chain: Path) -> None:
    engine.configure(db_url=store.url)
    ours = versions(store, "engine_schema_version")
    assert engine.migrate_host(chain, LEDGER) == [1, 2]
    assert engine.migrate_host(str(chain), LEDGER) == []
    with store.connect("test") as db:
        run_id = engine.submit_run({"name": "order", "nodes": []}, conn=db.raw)
        db.run("insert into shop_orders (id, run_id, total) values (1, {run_id}, 5)", run_id=int(run_id))
        db.raw.commit()
    assert engine.bootstrap() == [] and versions(store, "engine_schema_version") == ours
    assert engine.downgrade_host(chain, LEDGER, 1) == [2]
    assert versions(store, LEDGER) == [1]
    assert engine.migrate_host(chain, LEDGER) == [2]
    assert engine.downgrade_host(chain, LEDGER) == [2, 1]
    assert versions(store, "engine_schema_version") == ours == [migration.version for migration in load(store.kind)]
    assert engine.downgrade_host(chain, "never_applied") == []


def test_ours_goes_down_and_up_beneath_a_host_chain(store: Store, chain: Path) -> None:
    migrate(store, directory=chain, ledger=LEDGER)
    downgrade(store, 0)
    assert versions(store, LEDGER) == [1, 2]
    assert migrate(store) == [migration.version for migration in load(store.kind)]


def test_what_cannot_be_a_host_chain_is_refused(sqlite_store: Store, chain: Path, tmp_path: Path) -> None:
    engine.configure(db_url=sqlite_store.url)
    (tmp_path / "empty").mkdir()
    refused: list[tuple[Path, str, type[Exception], str]] = [
        (chain, "engine_schema_version", ConfigError, "is Flight Deck's own"),
        (chain, "x; drop table ingest_jobs", ConfigError, "not a table name"),
        (tmp_path / "missing", LEDGER, ConfigError, "no such directory"),
        (tmp_path / "empty", LEDGER, SchemaMismatch, "no migrations found"),
    ]
    for directory, ledger, error, text in refused:
        for call in (engine.migrate_host, engine.downgrade_host):
            with pytest.raises(error, match=text):
                call(directory, ledger)


def test_both_chains_are_applied_once_by_processes_that_start_at_once(
    pg_empty_url: str, chain: Path, processes: Processes, tmp_path: Path
) -> None:
    script = (
        "import os, sys, time, engine\nengine.configure(db_url=sys.argv[1])\n"
        "open(sys.argv[3] + str(os.getpid()), 'w').close()\n"
        "while not os.path.exists(sys.argv[3] + 'go'):\n    time.sleep(0.001)\n"
        f"print(len(engine.bootstrap()), len(engine.migrate_host(sys.argv[2], {LEDGER!r})))"
    )
    for kind, url in (("postgresql", pg_empty_url), ("sqlite", f"sqlite:///{tmp_path / 'host_test.db'}")):
        gate = tmp_path / f"gate-{kind}"
        gate.mkdir()
        started = [processes.spawn([sys.executable, "-c", script, url, str(chain), f"{gate}/"]) for _ in range(4)]
        eventually(lambda gate=gate: len(list(gate.iterdir())) == 4, what="all of them ready")  # type: ignore[misc]
        (gate / "go").touch()
        assert [process.wait(timeout=120) for process in started] == [0] * 4, [processes.log(one) for one in started]
        said = [processes.log(process).split()[-2:] for process in started]
        assert sorted(int(ours) for ours, _ in said) == [0, 0, 0, len(load(kind))]  # type: ignore[arg-type]
        assert sorted(int(hosts) for _, hosts in said) == [0, 0, 0, 2]
