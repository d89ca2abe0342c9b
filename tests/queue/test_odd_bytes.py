"""SQLite keeps what it is given in any column: bytes for names, words for times."""

from __future__ import annotations

import json

from engine.orchestrator.lost import LostWork
from engine.queue import models
from engine.snapshot import fleet_snapshot
from engine.store import Store


def test_names_of_bytes_blind_nobody(sqlite_store: Store) -> None:
    """The view of the whole fleet was lost over one row."""
    with sqlite_store.connect("test") as db:
        db.run("insert into ingest_jobs (queue, project) values (x'ff', x'ff'), ('default', x'ff'), ('default', '')")
        db.run("insert into worker_heartbeats (box, queue) values (x'ff', 'cpu'), ('b1', 'cpu')")
        db.run("insert into boxes (box) values (x'ff'), ('b1')")
        db.run("insert into model_orders (box, model, action, answers) values ('*', 'm', 'load', 'junk')")
        models.answer(db, 1, "b1/gpu/1", "loaded")
        found = fleet_snapshot(None, db)
        assert models.answers(db, 1) == {"b1/gpu/1": "loaded"}
    assert sorted(entry["project"] for entry in found["projects"]) == ["", "\ufffd"]
    assert {"b1", "\ufffd"} == {box["box"] for box in found["boxes"]}
    assert json.loads(json.dumps(found)) == found


def test_a_claim_whose_times_and_owner_are_odd_is_swept_like_any_other(sqlite_store: Store) -> None:
    with sqlite_store.connect("test") as db:
        for owner, times in (("x'ff'", "''"), ("'b/q/1'", "'soon'"), ("'b/q/2'", "x'ff'")):
            db.run(
                "insert into ingest_jobs (status, claimed_by, fencing_token, started_at, lease_expires_at) "
                f"values ('running', {owner}, 1, {times}, '')"
            )
        clock = [0.0]
        work = LostWork(sqlite_store, lambda: clock[0])
        work.lost_lanes(db)
        work.lapsed_leases(db)
        clock[0] += 31.0
        work.lost_lanes(db)
        assert work.lapsed_leases(db) == 3
        assert db.value("select count(*) as n from ingest_jobs where status = 'queued'") == 3
