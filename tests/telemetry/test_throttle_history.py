"""Throttling of all boxes by the hour, and the jobs that ran under it, against sums made in the test."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from engine.store import Db, Store
from engine.telemetry.job_hardware import write
from engine.telemetry.throttle_history import CAUSES, history, jobs

COLUMNS = {
    "P": "power_ms", "T": "thermal_ms", "B": "gpu_hw_brake_ms", "C": "cpu_throttle_ms", "S": "gpu_sync_boost_ms"
}  # fmt: skip


def minute(at: datetime, box: str, **values: Any) -> dict[str, Any]:
    none = dict.fromkeys((*COLUMNS.values(), "brakes", "gpu_throttle_source"))
    return {"box": box, "at": at, **none, **values}


def put(db: Db, rows: list[dict[str, Any]]) -> None:
    names = list(rows[0])
    db.run_many(
        f"insert into flight_recorder (tier, {', '.join(names)}) values ('minute', {', '.join(f'{{{n}}}' for n in names)})",
        rows,
    )


def put_card(db: Db, at: datetime, box: str, index: int, **values: Any) -> None:
    names = ["box", "at", "gpu_index", *values]
    db.run(
        f"insert into flight_recorder_gpu (tier, {', '.join(names)}) values ('minute', {', '.join(f'{{{n}}}' for n in names)})",
        box=box, at=at, gpu_index=index, **values,
    )  # fmt: skip


TOP = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)  # one hour for all of it, though the next may begin


NOW = (TOP + timedelta(minutes=30)).isoformat()


def of(found: dict[str, Any], box: str) -> dict[str, Any]:
    return next(one for one in found["boxes"] if one["box"] == box)


def test_seconds_per_cause_and_hour(db: Db) -> None:
    """D9: one unit, every cause for itself; within 1 % of sums made here."""
    roll = random.Random(7)
    rows = [
        minute(
            TOP - timedelta(minutes=37 * n), f"box{n % 3}", gpu_throttle_source="counter", brakes=n % 2,
            **{column: roll.uniform(0, 60_000) for column in COLUMNS.values()},
        )
        for n in range(120)
    ]  # fmt: skip
    put(db, rows)
    found = history(db, 86_400, NOW)
    assert [one["box"] for one in found["boxes"]] == ["box0", "box1", "box2"] and len(found["hours"]) == 24
    assert found["hours"][-1] == TOP.isoformat()
    for box in found["boxes"]:
        mine = [row for row in rows if row["box"] == box["box"] and row["at"] > TOP - timedelta(hours=23, seconds=1)]
        for letter, column in COLUMNS.items():
            expected = [
                sum(row[column] for row in mine if row["at"].replace(minute=0).isoformat() == hour) / 1000
                for hour in found["hours"]
            ]
            seconds = box["causes"][letter]["hours"]
            assert [value or 0.0 for value in seconds] == pytest.approx(expected, rel=0.01, abs=0.001)
            assert box["causes"][letter]["total_s"] == pytest.approx(sum(expected), rel=0.01)
        assert box["brakes"]["total"] == sum(row["brakes"] for row in mine)
        assert sum(box["minutes"]) == len(mine) and not box["sampled"]


def test_nothing_held_it_back_is_not_nobody_knows(db: Db) -> None:
    """D6, D9: 0 s and n/a differ; an hour without a row is neither."""
    put(db, [minute(TOP - timedelta(hours=2), "a", power_ms=0.0, gpu_throttle_source="counter")])
    put(db, [minute(TOP - timedelta(hours=2), "b", gpu_throttle_source="none")])
    found = history(db, until=NOW)
    assert of(found, "a")["causes"]["P"] == {"total_s": 0.0, "hours": [None] * 21 + [0.0] + [None] * 2}
    assert of(found, "a")["causes"]["T"]["total_s"] is None is of(found, "b")["causes"]["P"]["total_s"]
    assert of(found, "b")["minutes"] == [0] * 21 + [1] + [0] * 2


def test_a_mask_that_was_held_is_marked(db: Db) -> None:
    """D10: a lower bound, and said so."""
    put(db, [minute(TOP, "a", power_ms=5.0, gpu_throttle_source="mask"), minute(TOP, "b", gpu_throttle_source="smi")])
    assert of(history(db, until=NOW), "a")["sampled"] and not of(history(db, until=NOW), "b")["sampled"]


def test_rows_of_cards_alone_count_with_the_worst_card(db: Db) -> None:
    """Written by a program that does not know the box's columns: eight cards, never added up."""
    at = TOP - timedelta(hours=1)
    put(db, [minute(at + timedelta(minutes=n), "a") for n in range(3)])
    for n in range(3):
        put_card(
            db, at + timedelta(minutes=n), "a", 0, sw_power_ms=1000.0, sw_thermal_ms=200.0, hw_thermal_ms=700.0, brakes=1,
            throttle_source="mask",
        )  # fmt: skip
        put_card(
            db, at + timedelta(minutes=n), "a", 1, sw_power_ms=4000.0 * n, hw_brake_ms=9.0, throttle_source="counter"
        )
    box = of(history(db, until=NOW), "a")
    assert box["causes"]["P"]["total_s"] == 12.0 and box["causes"]["T"]["total_s"] == pytest.approx(2.1)
    assert box["causes"]["B"]["total_s"] == pytest.approx(0.027) and box["causes"]["S"]["total_s"] is None
    assert box["sampled"] and box["brakes"]["total"] == 3


def test_no_negative_seconds(db: Db) -> None:
    """D11."""
    put(db, [minute(TOP, "a", power_ms=-5000.0, thermal_ms=1000.0, gpu_throttle_source="counter")])
    assert of(history(db, until=NOW), "a")["causes"]["P"]["total_s"] == 0.0


def test_a_week_is_168_hours(db: Db) -> None:
    put(db, [minute(TOP - timedelta(days=6), "a", power_ms=1000.0, gpu_throttle_source="counter")])
    found = history(db, 604_800, NOW)
    assert len(found["hours"]) == 168 and of(found, "a")["causes"]["P"]["hours"][167 - 144] == 1.0
    assert set(of(found, "a")["causes"]) == set(CAUSES)


def ended(db: Db, box: str, ago_s: float, run_s: float, shares: dict[int, dict[str, float | None]]) -> int:
    end = db.now() - timedelta(seconds=ago_s)
    job = db.value(
        "insert into ingest_jobs (task_name, project, status, claimed_box, finished_at) "
        "values ({name}, 'shop', 'completed', {box}, {end}) returning id",
        name=f"train {box}", box=box, end=end,
    )  # fmt: skip
    db.run(
        "insert into job_events (family, job_id, event_type, box, queue, project, elapsed_s, created_at) values "
        "('ingest', {job}, 'completed', {box}, 'training', 'shop', {run_s}, {end})",
        job=job, box=box, run_s=run_s, end=end,
    )  # fmt: skip
    empty = dict.fromkeys(("power_ms", "thermal_ms", "brake_ms", "temp_max_c", "power_max_w", "sm_mean_mhz"))
    write(db, job, {index: {**empty, "samples": 5, **share} for index, share in shares.items()})
    return int(job)


def boxes(db: Db, *names: str) -> None:
    for name in names:
        db.run("insert into boxes (box) values ({name})", name=name)


def test_the_jobs_that_suffered_worst_first(db: Db) -> None:
    boxes(db, "a", "b")
    capped = ended(db, "a", 600, 100, {0: {"power_ms": 90_000.0, "thermal_ms": 0.0}})
    hot = ended(db, "a", 500, 100, {0: {"thermal_ms": 8000.0, "power_ms": 1000.0}, 1: {"thermal_ms": 25_000.0}})
    braked = ended(db, "b", 400, 50, {0: {"brake_ms": 12_000.0, "temp_max_c": 83.0}})
    ended(db, "b", 300, 50, {0: {"thermal_ms": 99.0}})  # under a tenth of a second: nothing
    ended(db, "b", 100_000, 50, {0: {"thermal_ms": 40_000.0}})
    found = jobs(db)
    assert [int(job["job_id"]) for job in found] == [hot, braked, capped]
    first = found[0]
    assert (first["name"], first["project"], first["box"], first["run_s"]) == ("train a", "shop", "a", 100.0)
    assert first["seconds"] == {"P": 1.0, "T": 25.0, "B": None} and first["share"] == {"P": 0.01, "T": 0.25, "B": None}
    assert [int(job["job_id"]) for job in jobs(db, cause="P")] == [capped, hot]
    assert [int(job["job_id"]) for job in jobs(db, box="b")] == [braked]
    assert len(jobs(db, 604_800)) == 4


def test_the_jobs_of_an_hour_are_those_that_ran_in_it(db: Db) -> None:
    boxes(db, "a")
    job = ended(db, "a", 1000, 500, {0: {"thermal_ms": 8000.0}})

    def between(first_ago: float, last_ago: float) -> list[int]:
        now = db.now()
        since, until = (now - timedelta(seconds=first_ago)).isoformat(), (now - timedelta(seconds=last_ago)).isoformat()
        return [int(one["job_id"]) for one in jobs(db, since=since, until=until)]

    assert between(1400, 1300) == [job] == between(2000, 1450) == between(1100, 500)
    assert between(900, 100) == [] == between(4000, 1600)
    with pytest.raises(ValueError, match="without a zone"):
        jobs(db, since="2026-11-29T12:00:00")


def test_a_fleet_s_hours_are_read_from_the_index_alone(pg_store: Store) -> None:
    """D25: 100 boxes for a day are 144,000 rows of half a kilobyte; none of them is touched."""
    with pg_store.connect("test") as db:
        db.run("set enable_seqscan = off")
        db.run("set enable_bitmapscan = off")
        asked: list[str] = []
        original = db.all

        def heard(sql: str, /, **params: Any) -> list[dict[str, Any]]:
            if "flight_recorder where tier" in sql:
                asked.append("\n".join(str(next(iter(row.values()))) for row in original(f"explain {sql}", **params)))
            return original(sql, **params)

        db.all = heard  # type: ignore[method-assign]
        history(db, 604_800, NOW)
        (plan,) = asked
        assert "Index Only Scan using flight_recorder_held" in plan, plan
