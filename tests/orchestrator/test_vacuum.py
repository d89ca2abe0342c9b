"""The leader vacuums the job tables where the server does it too seldom."""

from __future__ import annotations

from engine.orchestrator.vacuum import Vacuum, _dead
from engine.store import Db, Store
from tests.lane.fleet import add
from tests.support import eventually


def churn(db: Db) -> int:
    """300 more dead rows; how many the server's statistics tell of."""
    before = _dead(db, "ingest_jobs")
    db.run("update ingest_jobs set status = case when status = 'queued' then 'running' else 'queued' end")
    db.value("select pg_stat_force_next_flush()::text as done")
    return eventually(lambda: max(0, _dead(db, "ingest_jobs") - before))


def test_dead_rows_beyond_the_limit_are_vacuumed_and_a_held_snapshot_does_not_make_it_spin(pg_store: Store) -> None:
    with pg_store.connect("vacuum", timeout_s=60) as db, pg_store.connect("holder") as holder:
        db.run("alter table ingest_jobs set (autovacuum_enabled = off)")
        for _ in range(300):
            add(db, "t")
        vacuum = Vacuum(dead_rows=100)
        assert vacuum.vacuum(db) == 0
        assert churn(db) >= 250
        assert vacuum.vacuum(db) == 1
        assert _dead(db, "ingest_jobs") < 100
        with holder.transaction():
            holder.run("set transaction isolation level repeatable read")
            holder.value("select count(*) as n from ingest_jobs")
            churn(db)
            assert vacuum.vacuum(db) == 1
            assert _dead(db, "ingest_jobs") >= 250, "they cannot go while somebody may still see them"
            assert vacuum.vacuum(db) == 0
        churn(db)
        assert vacuum.vacuum(db) == 1
        assert _dead(db, "ingest_jobs") < 100


def test_it_never_waits_for_a_lock(pg_store: Store) -> None:
    with pg_store.connect("vacuum", timeout_s=60) as db, pg_store.connect("holder") as holder:
        db.run("alter table ingest_jobs set (autovacuum_enabled = off)")
        for _ in range(300):
            add(db, "t")
        churn(db)
        with holder.transaction():
            holder.run("lock table ingest_jobs in share mode")
            assert Vacuum(dead_rows=100).vacuum(db) == 1
        assert _dead(db, "ingest_jobs") >= 250
