"""A box over hours and days, added up by the database, on both stores."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from engine.errors import BadInput
from engine.store import Db
from engine.telemetry import writer
from engine.telemetry.rollup import minute_of
from engine.telemetry.sample import BoxSample, GpuSample
from engine.telemetry.spans import BUCKETS, span

ME = writer.Recorder("spark", "00000000000000aa", 4711, "1.0")


def minute(at: datetime, peak: float = 51.0, **values: object) -> BoxSample:
    """A minute of two GPUs at 50 C, the second one up to ``peak``."""
    gpus = tuple(
        GpuSample(
            index, f"GPU-{index}", temp_c=50.0, low={"temp_c": 48.0}, high={"temp_c": peak if index else 50.5},
            throttle_source="counter" if index else "mask", sw_power_ms=100.0 * (index + 1), hw_brake_ms=10.0,
        )
        for index in range(2)
    )  # fmt: skip
    base = BoxSample("spark", at, "minute", cpu_pct=20.0, power_ms=200.0, brakes=1, gpus=gpus)
    return BoxSample(**{**{name: getattr(base, name) for name in base.__slots__}, **values})


def put(db: Db, rows: list[BoxSample]) -> datetime:
    writer.write(db, ME, rows, payload=None, last_error=None)
    return rows[0].at


def test_a_spike_of_two_seconds_stays_however_long_the_span(db: Db) -> None:
    """Minimum, maximum and mean of each bucket: one minute in a day that was hot for two seconds is still to be seen."""
    start = minute_of(db.now()) - timedelta(hours=20)
    put(
        db, [minute(start + timedelta(minutes=i), peak=93.0 if i == 17 else 51.0) for i in range(40) if i not in (8, 9)]
    )
    for span_s in (86_400, 604_800):
        found = span(db, box="spark", span_s=span_s)
        temps = [pair for pair in found["gpu_values"]["temp_c"] if pair]
        assert sum(pair[1] == 93.0 for pair in temps) == 1
        assert {pair[0] for pair in temps} == {48.0} and {pair[2] for pair in temps} == {50.0}
        assert len(found["at"]) <= BUCKETS
        assert {at % found["step_s"] for at in found["at"]} == {0}
    day = span(db, box="spark", span_s=86_400)
    assert sum(day["box_sums"]["power_ms"]) == 38 * 200.0
    assert sum(day["gpu_sums"]["sw_power_ms"]) == 38 * 200.0  # the worst GPU of each minute, not both
    assert sum(day["gpu_sums"]["hw_brake_ms"]) == 38 * 10.0
    assert sum(day["box_sums"]["brakes"]) == 38
    assert all(day["mask"])


def test_what_was_not_recorded_is_no_bucket_and_no_zero(db: Db) -> None:
    """D6: a gap stays a gap; a metric that nobody offers is None everywhere."""
    start = minute_of(db.now()) - timedelta(hours=2)
    put(db, [minute(start), minute(start + timedelta(minutes=30), gpus=())])
    found = span(db, box="spark", span_s=21_600)
    assert len(found["at"]) == 2
    assert found["gpu_values"]["temp_c"][1] is None and found["gpu_sums"]["brakes"] == [None, None]
    assert found["box_values"]["core_max_pct"] == [None, None]
    assert found["box_values"]["cpu_pct"][0] == [20.0, 20.0, 20.0]
    assert found["mask"] == [True, False]


def test_details_after_the_last_minute_row_belong_to_it_and_are_not_counted_twice(db: Db) -> None:
    last = minute_of(db.now()) - timedelta(minutes=3)
    inside = BoxSample("spark", last + timedelta(seconds=10), cpu_pct=99.0, power_ms=7.0)
    after = BoxSample("spark", last + timedelta(seconds=70), cpu_pct=60.0, power_ms=5.0)
    put(db, [minute(last), inside, after])
    found = span(db, box="spark", span_s=21_600)
    assert sum(found["box_sums"]["power_ms"]) == 205.0
    assert [value[1] for value in found["box_values"]["cpu_pct"]] == [20.0, 60.0]


def test_one_gpu_alone_by_its_index(db: Db) -> None:
    start = minute_of(db.now()) - timedelta(hours=1)
    put(db, [minute(start, peak=88.0)])
    highs = [span(db, box="spark", span_s=21_600, gpu=index)["gpu_values"]["temp_c"][0][1] for index in (0, 1)]
    assert highs == [50.5, 88.0]
    assert span(db, box="spark", span_s=21_600, gpu=1)["gpu_sums"]["sw_power_ms"] == [200.0]


def test_an_unknown_box_has_no_past_and_an_odd_span_is_refused(db: Db) -> None:
    assert span(db, box="nobody", span_s=86_400)["at"] == []
    for odd in (0, 10**9, "3600"):
        with pytest.raises(BadInput):
            span(db, box="spark", span_s=odd)  # type: ignore[arg-type]
