"""This program on the schema of the next release: one that only adds is worked on, one that needs more is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import engine
from engine.errors import SchemaMismatch
from engine.store import Store
from engine.store.migrate import check_schema, load, migrate, migrations_dir
from tests.support import Processes, command

ADDS = """
alter table ingest_jobs add column color text not null default 'grey';
alter table worker_heartbeats add column mood text;
create table moods (id integer primary key, mood text);
create index ingest_jobs_color on ingest_jobs (color);
"""


def next_chain(tmp_path: Path, more: str) -> Path:
    """Our chain and one migration that this release does not know."""
    chain = tmp_path / "next"
    shutil.copytree(migrations_dir(), chain)
    for dialect in ("postgres", "sqlite"):
        (chain / dialect / "0099_next.sql").write_text(more)
        (chain / dialect / "0099_next.down.sql").write_text("drop table moods;\n")
    return chain


@pytest.fixture(params=["postgresql", "sqlite"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "sqlite":
        return Store(f"sqlite:///{tmp_path / 'next_test.db'}")
    return Store(request.getfixturevalue("pg_empty_url"))


def test_a_schema_that_only_adds_is_worked_on_by_the_previous_release(
    empty: Store, tmp_path: Path, processes: Processes
) -> None:
    assert migrate(empty, directory=next_chain(tmp_path, ADDS))[-1] == 99
    engine.configure(db_url=empty.url)
    assert engine.bootstrap() == []
    with empty.connect("test") as db:
        check_schema(empty, db)
        job = engine.enqueue_ingest_job(task_name="train", queue="training", args={"steps": 1})
        run_id = engine.submit_run({"name": "g", "nodes": [{"id": "a", "node": "x", "skip_if": {"$eq": [1, 1]}}]})
        lane = processes.spawn(
            command("queue-claim-worker", "--db", empty.url, "--queue", "training", "--box", "old", "--once")
        )
        orchestrator = processes.spawn(command("queue-orchestrator", "--db", empty.url, "--once"))
        assert (lane.wait(60), orchestrator.wait(60)) == (0, 0), processes.log(lane) + processes.log(orchestrator)
        row = db.one("select status, color from ingest_jobs where id = {id}", id=int(job.id))
        assert row == {"status": "completed", "color": "grey"}
        assert db.value("select status from workflow_runs where id = {id}", id=int(run_id)) == "completed"
        assert db.value("select count(*) from worker_heartbeats") == 1
    assert engine.fleet_snapshot()["boxes"][0]["box"] == "old"


def test_a_schema_that_needs_a_newer_program_is_refused_by_everything(
    empty: Store, tmp_path: Path, processes: Processes
) -> None:
    migrate(empty, directory=next_chain(tmp_path, f"-- min_code: 2\n{ADDS}"))
    engine.configure(db_url=empty.url)
    for call in (
        engine.bootstrap,
        lambda: engine.submit_run({"nodes": []}),
        lambda: engine.enqueue_ingest_job(task_name="train", queue="training"),
        engine.fleet_snapshot,
    ):
        with pytest.raises(SchemaMismatch, match=r"schema 99 needs a newer program \(level 2, this one is 1\)"):
            call()
    for args in (("queue-claim-worker", "--queue", "training", "--once"), ("queue-orchestrator", "--once")):
        process = processes.spawn(command(*args, "--db", empty.url))
        assert process.wait(60) == 2
        assert "needs a newer program" in processes.log(process)
    with empty.connect("test") as db:
        assert db.value("select count(*) from ingest_jobs") == 0
        assert db.value("select count(*) from engine_schema_version") == len(load(empty.kind)) + 1
