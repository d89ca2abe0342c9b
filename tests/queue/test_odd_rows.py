"""Rows that other programs write by plain SQL: whatever is in one, it never stops the others."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
import pytest

from engine.store import Db, Store
from tests.lane.fleet import add, ended, heartbeat, start_lane, status
from tests.support import Processes, eventually

LARGEST = 2**31 - 1


def test_priorities_at_the_ends_of_an_integer_are_claimed_in_order(
    processes: Processes, sqlite_store: Store, pg_store: Store
) -> None:
    """A sum over them overflowed in the index, and a very urgent one passed for run-next."""
    for store in (sqlite_store, pg_store):
        with store.connect("test") as db:
            last = add(db, "noop", priority=LARGEST)
            first = add(db, "noop", priority=-LARGEST - 1)
            flagged = add(db, "noop", priority=-LARGEST - 1, is_priority=True)
            late = add(db, "noop", priority=LARGEST, is_priority=True)
            bands = {row["id"]: row["band"] for row in db.all("select id, band from ingest_jobs")}
            assert sorted(bands, key=lambda id: bands[id]) == [flagged, late, first, last]
            assert bands[late] < -500_000 < bands[first]
            start_lane(processes, store, "--once")
            for id in (last, first, flagged, late):
                assert ended(db, id)["status"] == "completed"


@pytest.mark.parametrize(
    "columns",
    [
        {"attempt": LARGEST},
        {"fencing_token": 2**63 - 1},
        {"fencing_token": -1},
        {"failures": LARGEST},
        {"losses": -1},
        {"watchdog_retries": LARGEST},
    ],
    ids=lambda columns: next(iter(columns)),
)
def test_a_row_that_no_claim_could_count_up_is_refused(db: Db, columns: dict[str, Any]) -> None:
    """Q21: taken in, it failed the claim of everything beside it."""
    with pytest.raises((psycopg.errors.CheckViolation, sqlite3.IntegrityError)):
        add(db, "noop", **columns)
    assert db.value("select count(*) from ingest_jobs") == 0


@pytest.mark.parametrize("places", ["null", "oops", "{}", '"b1"', ""])
def test_a_place_that_is_no_list_is_refused(sqlite_store: Store, places: str) -> None:
    with sqlite_store.connect("test") as db, pytest.raises(sqlite3.IntegrityError):
        add(db, "noop", avoid_boxes=places)


def test_a_list_of_boxes_with_a_null_is_refused(pg_store: Store) -> None:
    with pg_store.connect("test") as db, pytest.raises(psycopg.errors.CheckViolation):
        add(db, "noop", avoid_boxes=[None])


def test_columns_that_refuse_values_are_ordinary_ones_to_programs(pg_store: Store) -> None:
    """They are of domain types: the driver and COPY know them as text, numbers and lists."""
    names = "status, attempt, fencing_token, failures, only_boxes"
    with pg_store.connect("test") as db:
        assert db.copy("ingest_jobs", names.split(", "), [("queued", 1, 2**40, 2, ["b1", "b2"])]) == 1
        row = db.one(f"select {names} from ingest_jobs")
        assert row == {
            "status": "queued", "attempt": 1, "fencing_token": 2**40, "failures": 2, "only_boxes": ["b1", "b2"],
        }  # fmt: skip
        with pytest.raises(psycopg.errors.CheckViolation, match="job_status"):
            db.run("update ingest_jobs set status = {status}", status="oops")
        with pytest.raises(psycopg.errors.CheckViolation, match="job_count"):
            db.run("update ingest_jobs set attempt = {attempt}", attempt=-1)
        with pytest.raises(psycopg.IntegrityError):
            db.copy("ingest_jobs", ["failures"], [(-1,)])
        assert db.one(f"select {names} from ingest_jobs where status = {{s}} and attempt = {{n}}", s="queued", n=1)


def test_the_largest_id_does_not_end_all_inserts(sqlite_store: Store) -> None:
    with sqlite_store.connect("test") as db:
        with pytest.raises(sqlite3.IntegrityError):
            add(db, "noop", id=2**63 - 1)
        assert add(db, "noop")


def test_a_claim_that_fails_does_not_end_the_lane(processes: Processes, pg_store: Store) -> None:
    """The lane says what is wrong, once, tries again with backoff, and works as soon as it can."""
    lane = start_lane(processes, pg_store)
    with pg_store.connect("test") as db:
        assert ended(db, add(db, "noop"))["status"] == "completed"
        db.run(
            "create function stumble() returns trigger language plpgsql as "
            "$$ begin raise exception 'stumbled over a row'; end $$"
        )
        db.run(
            "create trigger stumble before update on ingest_jobs for each row "
            "when (new.status = 'running' and old.status = 'queued') execute function stumble()"
        )
        job = add(db, "noop")
        eventually(lambda: "stumbled" in str(heartbeat(db).get("last_exit_reason")), what="the heartbeat says it")
        eventually(lambda: processes.log(lane).count("database unreachable") >= 1)
        assert (status(db, job), lane.poll()) == ("queued", None)
        db.run("drop trigger stumble on ingest_jobs")
        assert ended(db, job)["status"] == "completed"
        assert processes.log(lane).count("Traceback") == 1


def test_a_row_of_bytes_fails_alone(processes: Processes, sqlite_store: Store) -> None:
    """SQLite keeps bytes in a column of texts: the lane ended, and what it had claimed beside them stayed running."""
    start_lane(processes, sqlite_store, "--slots", "2")
    with sqlite_store.connect("test") as db:
        bad = [
            db.value("insert into ingest_jobs (task_name, args) values ('noop', x'00ff') returning id"),
            db.value("insert into ingest_jobs (task_name) values (x'00ff') returning id"),
            db.value("insert into ingest_jobs (task_name, args) values ('noop', '{{oops') returning id"),
        ]
        odd = db.value("insert into ingest_jobs (task_name, created_at) values ('noop', x'00ff') returning id")
        good = [add(db, "noop") for _ in range(20)]
        assert ended(db, odd)["status"] == "completed"
        assert {ended(db, id)["status"] for id in bad} == {"failed"}
        assert {ended(db, id)["status"] for id in good} == {"completed"}
