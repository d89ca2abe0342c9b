"""Rows that other programs write hold moments that Python has no datetime for."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone

import pytest

from engine.queue import controls, operate
from engine.queue.enqueue import get_job
from engine.store import Store
from engine.store.dialect import EARLIEST, LATEST, decode_time


@pytest.mark.parametrize("claims", [False, True])
def test_a_moment_that_python_lacks_stops_no_reader(pg_store: Store, claims: bool) -> None:
    """``until = 'infinity'`` is how one says "for good" in SQL: it ended every look at that table."""
    said = ["infinity", "-infinity", "294000-01-01", "0044-03-15 BC", "2026-11-29 12:00:00.5+00"]
    with pg_store.connect("test", claims=claims) as db:
        columns = ", ".join(f"'{text}'::timestamptz as t{i}" for i, text in enumerate(said))
        expected = [LATEST, EARLIEST, LATEST, EARLIEST, datetime(2026, 11, 29, 12, 0, 0, 500000, UTC)]
        assert list(db.all(f"select {columns}")[0].values()) == expected
        assert list(db.hot(f"select {columns}")[0].values()) == expected


def test_both_ends_of_time_can_be_shown_in_every_zone() -> None:
    for hours in (-12, 14):
        for end in (EARLIEST, LATEST):
            assert end.astimezone(timezone(timedelta(hours=hours))) == end


def test_what_is_no_time_reads_as_one_on_sqlite() -> None:
    assert [decode_time(odd) for odd in ("", "soon", b"\xff", 5, "infinity", None)] == [EARLIEST] * 4 + [LATEST, None]


def test_a_number_of_thousands_of_digits_stops_no_operator(pg_store: Store) -> None:
    with pg_store.connect("test") as db:
        job = db.value(
            "insert into ingest_jobs (args) values ('{{\"a\": [1e5000, -7, 12345678901234567890]}}') returning id"
        )
        assert get_job(db, job).args == {"a": [math.inf, -7, 12345678901234567890]}
        assert operate.cancel_job(db, job).changed == 1


def test_an_order_for_good_holds_and_one_from_the_end_of_time_is_not_the_newest_for_ever(pg_store: Store) -> None:
    with pg_store.connect("test") as db:
        db.run("insert into worker_controls (box, queue, desired, until) values ('b1', 'cpu', 'off', 'infinity')")
        assert controls.order_for(db, "b1", "cpu", "").desired == "off"
        db.run("insert into worker_controls (box, queue, desired, updated_at) values ('*', 'cpu', 'off', 'infinity')")
        controls.set_order(db, "b1", "cpu", "", desired="on")
        assert controls.order_for(db, "b1", "cpu", "").desired == "on"
        assert controls.order_for(db, "b2", "cpu", "").desired == "off"
