"""Rows of the recorder's tables that anybody may write, on both stores: they cost their own value and hide nothing."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from engine.store import Db
from engine.telemetry import history, throttle_history, writer
from engine.telemetry.box_now import box_now
from engine.telemetry.box_span import box_span
from engine.telemetry.rollup import minute_of
from engine.telemetry.sample import BoxFacts, BoxSample, GpuSample
from engine.telemetry.spans import span

ME = writer.Recorder("spark", "00000000000000aa", 4711, "1.0")
CARD = GpuSample(0, "GPU-1", temp_c=50.0, power_w=90.0, sw_power_ms=100.0, hw_brake_ms=0.0, throttle_source="counter")


def put(db: Db) -> datetime:
    """Two hours by the minute and three seconds ago a detail; its time."""
    now = db.now()
    minutes = [
        BoxSample("spark", minute_of(now) - timedelta(minutes=n), "minute", cpu_pct=20.0, power_ms=500.0, gpus=(CARD,))
        for n in range(120, 1, -1)
    ]
    detail = BoxSample("spark", now - timedelta(seconds=3), cpu_pct=30.0, power_ms=10.0, gpus=(CARD,))
    writer.write_facts(db, BoxFacts("spark", "m"))
    writer.write(db, ME, [*minutes, detail], payload=None, last_error=None)
    return detail.at


def ahead(db: Db) -> list[str]:
    """Times that have not come yet: tomorrow, the end of time, and what SQLite lets anybody write."""
    tomorrow = (db.now() + timedelta(days=1)).isoformat(timespec="microseconds")
    return [tomorrow, "infinity", "9999-12-31T23:59:59.000000+00:00"]


def insert(db: Db, tier: str, at: str, power_ms: float = 7e6) -> None:
    kind = "::text::timestamptz" if db.kind == "postgresql" else ""
    for table, more, values in (
        ("flight_recorder", "cpu_pct, power_ms", "99, {ms}"),
        ("flight_recorder_gpu", "gpu_index, gpu_uuid, temp_c, sw_power_ms", "0, 'GPU-1', 99, {ms}"),
    ):
        db.run(
            f"insert into {table} (box, tier, at, {more}) values ('spark', {{tier}}, {{time}}{kind}, {values})",
            tier=tier,
            time=at,
            ms=power_ms,
        )


def asked(db: Db) -> dict[str, object]:
    """What the pages ask about the box, without the times of asking."""
    hour = history.hour(db)["spark"]
    week = span(db, box="spark", span_s=86_400)
    cards = box_span(db, "spark", 86_400, 120, "GPU-1")["gpus"]
    return {
        "latest": history.latest(db)["spark"].at,
        "newest": history.newest(db, "spark"),
        "rolled up": history.last_minute(db, "spark"),
        "since": [sample.at for sample in history.since(db, db.now() - timedelta(hours=1))],
        "hour": [(sample.tier, sample.at) for sample in hour],
        "span": (week["at"], week["box_values"]["cpu_pct"], week["gpu_values"]["temp_c"]),
        "cards": [card["series"]["temp_c"][-60:-2] for card in cards],
        "now": box_now(db, "spark")["sample_at"],
        "throttle": [box["causes"]["P"]["total_s"] for box in throttle_history.history(db)["boxes"]],
    }


def test_a_row_ahead_of_the_clock_hides_nothing(db: Db) -> None:
    """The clock was set back, or somebody wrote such a row: it is not the newest sample, and what is recorded goes on."""
    at = put(db)
    before = asked(db)
    for time in ahead(db):
        insert(db, "detail", time)
        insert(db, "minute", time)
    assert asked(db) == before
    assert before["latest"] == at and before["throttle"] == [59.5]


def test_numbers_beyond_all_readings_cost_their_own_value(db: Db) -> None:
    """Sums that overflow made PostgreSQL refuse the question: one row of one box, and nobody had an answer."""
    put(db)
    for n, value in enumerate((1.7e308, 1.7e308, float("inf"), -5.0)):
        at = (db.now() - timedelta(minutes=30, seconds=n)).isoformat(timespec="microseconds")
        insert(db, "minute", at, value)
    answer = throttle_history.history(db)
    assert answer["boxes"][0]["causes"]["P"]["total_s"] == 59.495
    assert span(db, box="spark", span_s=86_400)["at"] and box_span(db, "spark", 86_400, 120)["gpus"]


def test_sensors_that_are_no_object_are_no_sensors(db: Db) -> None:
    at = put(db)
    for odd in ('"x"', "[1, [2]]", "1e300", "true"):
        kind = "::text::jsonb" if db.kind == "postgresql" else ""
        db.run(f"update flight_recorder set sensors = {{odd}}{kind} where tier = 'detail'", odd=odd)
        found = box_now(db, "spark")
        assert found["sensors"] == {} and found["sample_at"] == at.isoformat()


def test_an_attempt_that_ran_for_ever_is_no_job_that_suffered(db: Db) -> None:
    put(db)
    for job, elapsed in ((1, 1e300), (2, 60.0)):
        db.run(
            "insert into job_events (family, job_id, event_type, box, queue, elapsed_s, detail) "
            "values ('node', {job}, 'completed', 'spark', 'gpu', {elapsed}, {detail})",
            job=job,
            elapsed=elapsed,
            detail=json.dumps({}),
        )
        db.run("insert into job_hardware (job_id, gpu_index, thermal_ms) values ({job}, 0, 5000)", job=job)
    assert [row["job_id"] for row in throttle_history.jobs(db)] == ["2"]
