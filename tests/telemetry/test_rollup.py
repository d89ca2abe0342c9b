"""Minute rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from engine.telemetry.ring import Ring
from engine.telemetry.rollup import by_minute, roll_up
from engine.telemetry.sample import BoxSample, GpuSample

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def at(second: float, **values: object) -> BoxSample:
    return BoxSample("b", START + timedelta(seconds=second), **values)  # type: ignore[arg-type]


def test_a_spike_of_two_seconds_is_still_there_in_the_minute() -> None:
    samples = [at(2 * n, cpu_pct=98.0 if n == 7 else 10.0, cpu_temp_c=50.0 + n) for n in range(30)]
    row = roll_up(samples)
    assert row.at == START and row.tier == "minute"
    assert (row.low["cpu_pct"], row.high["cpu_pct"]) == (10.0, 98.0)
    assert round(row.cpu_pct or 0, 6) == round((29 * 10 + 98) / 30, 6)
    assert row.cpu_temp_c == 64.5 and row.high["cpu_temp_c"] == 79.0


def test_a_failed_reader_does_not_pull_the_mean_down() -> None:
    """D6: gaps are not zeros; a minute without any reading has none."""
    row = roll_up([at(0, cpu_pct=40.0), at(2), at(4, cpu_pct=60.0)])
    assert row.cpu_pct == 50.0 and row.low["cpu_pct"] == 40.0
    assert row.fan_max_rpm is None and "fan_max_rpm" not in row.low
    empty = roll_up([at(0), at(2)])
    assert set(empty.values().values()) == {None} and empty.low == {} and empty.gpus == ()


def test_throttling_is_summed_and_the_rest_is_the_last_word() -> None:
    gpu = GpuSample(
        0, "u", throttle_mask=4, throttle_source="counter", sw_power_ms=500.0, power_limit_w=450.0, brakes=1
    )
    samples = [
        at(0, power_ms=500.0, thermal_ms=None, brakes=1, mem_total_mb=1000.0, zone_max_c=50.0, zone_max_name="a", gpus=(gpu,)),
        at(2, power_ms=250.0, thermal_ms=100.0, brakes=0, zone_max_c=70.0, zone_max_name="b",
           gpus=(replace(gpu, throttle_mask=0x20, throttle_source="mask", sw_power_ms=250.0, brakes=0, state="lost"),)),
        at(4, brakes=2, zone_max_c=60.0, zone_max_name="c"),
    ]  # fmt: skip
    row = roll_up(samples)
    assert (row.power_ms, row.thermal_ms, row.brakes) == (750.0, 100.0, 3)
    assert row.mem_total_mb == 1000.0 and row.zone_max_name == "b" and row.high["zone_max_c"] == 70.0
    card = row.gpus[0]
    assert (card.sw_power_ms, card.brakes, card.throttle_mask, card.throttle_source) == (750.0, 1, 0x24, "mask")
    assert card.state == "lost" and card.power_limit_w == 450.0 and card.hw_thermal_ms is None


def test_gpus_come_and_go_within_a_minute() -> None:
    one, two = GpuSample(0, "a", temp_c=50.0), GpuSample(1, "b", temp_c=60.0)
    row = roll_up([at(0, gpus=(one, two)), at(2, gpus=(two,)), at(4, gpus=(replace(one, gpu_uuid="c", temp_c=90.0),))])
    assert [(gpu.gpu_index, gpu.gpu_uuid, gpu.temp_c) for gpu in row.gpus] == [(0, "c", 90.0), (1, "b", 60.0)]


def test_rolling_up_again_changes_nothing() -> None:
    samples = [at(2 * n, cpu_pct=float(n), power_ms=1.5) for n in range(90)]
    minutes = by_minute(reversed(samples))
    assert [len(part) for part in minutes.values()] == [30, 30, 30]
    assert [roll_up(part) for part in minutes.values()] == [roll_up(part) for part in by_minute(samples).values()]


def test_the_ring_closes_minutes_and_forgets_the_oldest_details() -> None:
    ring = Ring(cadence_s=2.0)
    for n in range(400):
        ring.add(at(2 * n, cpu_pct=float(n)))
    assert len(ring) == 330 and ring.dropped == 70  # eleven minutes of details
    rows = ring.peek(1000)
    minutes = [row for row in rows if row.tier == "minute"]
    assert [row.at for row in minutes] == [START + timedelta(minutes=n) for n in range(13)]
    assert minutes[0].cpu_pct == 14.5  # rolled up although its details are gone


def test_a_backlog_is_told_once_with_its_end() -> None:
    ring = Ring(cadence_s=2.0)
    for n in range(5):
        ring.add(at(2 * n))
    first = ring.peek(3)
    ring.done(first, told=False)
    rest = ring.peek(3)
    assert ring.backlog() == {"backfill_since": "2026-03-01T12:00:00+00:00"}
    ring.done(rest, told=True)
    ring.add(at(10))
    assert ring.backlog() == {} and not ring.empty()


def test_what_is_in_the_table_already_is_forgotten() -> None:
    ring = Ring(cadence_s=2.0)
    for n in range(5):
        ring.add(at(2 * n))
    ring.forget(START + timedelta(seconds=4))
    assert [row.at.second for row in ring.peek(10)] == [6, 8]
