"""Which role may do what a login is refused, from the server's words and the statement."""

from __future__ import annotations

import pytest

from engine.store.rights import who_may

READERS = "flightdeck_read, flightdeck_operator or flightdeck_worker"


@pytest.mark.parametrize(
    ("said", "sql", "who"),
    [
        ("permission denied for table boxes", "select * from boxes", READERS),
        ("permission denied for table ingest_jobs", "select id from ingest_jobs", READERS),
        (
            "permission denied for sequence job_id_seq",
            "insert into ingest_jobs (args) values ($1)",
            "flightdeck_submit",
        ),
        (
            "permission denied for table workflow_runs",
            "insert into workflow_runs (graph) values ($1)",
            "flightdeck_submit",
        ),
        (
            "permission denied for table worker_controls",
            "insert into worker_controls (box) values ($1)",
            "flightdeck_op",
        ),
        ("permission denied for table worker_controls", "select desired from worker_controls", "flightdeck_operator"),
        (
            "permission denied for table ingest_jobs",
            "update ingest_jobs set status = 'cancelled'",
            "flightdeck_operator or",
        ),
        ("permission denied for table ingest_jobs", "update ingest_jobs j set claimed_by = $1", "flightdeck_worker"),
        ("permission denied for table flight_recorder", "copy flight_recorder", "flightdeck_worker"),
        ("permission denied for schema public", "create table mine (id int)", "the schema's owner"),
        ("must be owner of table ingest_jobs", "alter table ingest_jobs add x int", "the schema's owner"),
        ("permission denied for table engine_schema_version", "insert into x values (1)", "the schema's owner"),
        ("new words of a later server", "delete from x", "flightdeck_worker"),
    ],
)
def test_who_may(said: str, sql: str, who: str) -> None:
    assert who_may(said, sql).startswith(who)
