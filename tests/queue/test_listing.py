"""Pages of jobs: the statements take the indexes that they are written for, and give up nothing with a page's end."""

from __future__ import annotations

import pytest

from engine.queue import listing, metrics, tally
from engine.queue.listing import Filter, page
from engine.queue.looking import by_index
from engine.store import Db
from tests.queue.conftest import add_many

GIVEN = {"behind": 2**62, "n": 51, "skip": 0, "depth": 51}


def plan(db: Db, statement: str, **given: object) -> str:
    how = "explain" if db.kind == "postgresql" else "explain query plan"
    return "\n".join(str(list(row.values())) for row in db.all(f"{how} {statement}", **given))


def test_a_long_history_is_listed_and_counted_out_of_indexes(db: Db) -> None:
    add_many(db, 3000, queue="default", status="completed")
    add_many(db, 300, queue="default", status="failed")
    add_many(db, 20, queue="default", status="completed", project="lab")
    add_many(db, 50, queue="default")
    db.run("vacuum analyze ingest_jobs" if db.kind == "postgresql" else "analyze")
    with by_index(db):
        for wanted in (Filter("lab"), Filter("lab", task="work"), *(Filter("lab", s) for s in listing.STATUSES)):
            for statement, given in (
                (listing.newest_statement(wanted), {**GIVEN, **wanted.given}),
                (listing.count_statement(wanted), wanted.given),
            ):
                found = plan(db, statement, **given)
                assert "Seq Scan" not in found and "SCAN ingest_jobs'" not in found, found
                if wanted.status in (None, "completed", "failed", "cancelled"):
                    assert "ingest_jobs_ended" in found, found
        assert "ingest_jobs_ended" in plan(db, metrics.mean_statement(db), project="", n=10)
        assert "job_events_caused" in plan(db, metrics.caused_statement(), project="")
        found = plan(db, tally._STRETCH[db.kind], past=0, until=10)
        assert "job_events_pkey" in found or "SEARCH e USING INTEGER PRIMARY KEY" in found, found
        assert "Seq Scan" not in found and "SCAN j" not in found, found


def test_a_project_whose_jobs_are_old_and_few_is_found_behind_many_of_another(
    db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "LOOKED", 10)
    for status in listing.STATUSES:
        add_many(db, 1, project="lab", status=status)
    add_many(db, 40, status="completed")
    found = page(db, Filter("lab"), 3)
    assert len(found.jobs) == 3 and found.total == 5 and found.next == found.jobs[-1]["id"]
    rest = page(db, Filter("lab"), 3, after=found.next)
    seen = [row["status"] for row in (*found.jobs, *rest.jobs)]
    assert seen == list(listing.STATUSES)[::-1] and rest.next is None
    assert [row["id"] for row in page(db, Filter("lab"), 2, offset=3).jobs] == [row["id"] for row in rest.jobs]
