"""Samples and their notification."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from engine.telemetry.sample import PAYLOAD_LIMIT, BoxSample, GpuSample

AT = datetime(2026, 3, 1, 12, 0, 0, 250_000, UTC)
GPU = GpuSample(
    0, "GPU-8a3f1c2e-0d77-4c6b-9b1e-5f3a2c1d0e9f", util_pct=96.0, mem_used_mb=8192.0, mem_total_mb=24576.0, temp_c=71.0,
    mem_temp_c=84.0, power_w=401.5, power_inst_w=412.0, power_limit_w=450.0, sm_mhz=2520.0, fan_pct=54.0, fan_rpm=1890.0,
    pcie_gen=4, pcie_width=16, pstate=2, throttle_mask=4, throttle_source="counter", sw_power_ms=1234.5, hw_brake_ms=0.0,
    sw_thermal_ms=0.0, hw_thermal_ms=0.0, sync_boost_ms=0.0, brakes=0, ecc_uncorrected=0,
)  # fmt: skip
BOX = BoxSample("spark", AT, cpu_pct=12.3456789, load1=1.0, brakes=0, zone_max_name="acpitz", gpus=(GPU,))


def gpus(count: int) -> tuple[GpuSample, ...]:
    return tuple(replace(GPU, gpu_index=index) for index in range(count))


def test_a_payload_says_what_is_offered_and_nothing_else() -> None:
    said = json.loads(replace(BOX, sensors={"zones": {"acpitz": 41.0}}).payload())
    assert said["box"] == "spark" and said["at"] == "2026-03-01T12:00:00.250000+00:00" and said["tier"] == "detail"
    assert said["cpu_pct"] == 12.346 and said["brakes"] == 0 and said["zone_max_name"] == "acpitz"
    assert "cpu_temp_c" not in said and "xid" not in said["gpus"][0]
    assert said["gpus"][0]["power_w"] == 401.5 and said["sensors"] == {"zones": {"acpitz": 41.0}}


def test_a_sample_survives_its_payload() -> None:
    sample = replace(BOX, cpu_pct=12.346)
    assert BoxSample.from_payload(json.loads(sample.payload())) == sample


@pytest.mark.parametrize("count", [0, 1, 8, 16, 64, 128])
def test_sixteen_gpus_overflow_the_notification(count: int) -> None:
    """D2: under its limit however many GPUs; cut in the promised order."""
    sample = replace(BOX, gpus=gpus(count), sensors={"zones": {f"zone {n}": 40.0 for n in range(400)}})
    text = sample.payload()
    assert len(text.encode()) < PAYLOAD_LIMIT
    said = json.loads(text)
    assert said["box"] == "spark" and said["cpu_pct"] == 12.346
    if count <= 8:
        assert len(said["gpus"]) == count and "truncated" not in said
        assert all(gpu["gpu_uuid"] == GPU.gpu_uuid for gpu in said["gpus"])
    elif count <= 64:
        assert len(said["gpus"]) == count
        assert set(said["gpus"][-1]) == {"gpu_index", "util_pct", "temp_c", "power_w", "mem_used_mb", "throttle_mask"}
    else:
        assert said["truncated"] is True and "gpus" not in said
        assert BoxSample.from_payload(said).truncated


def test_wide_characters_count_as_bytes() -> None:
    sample = replace(BOX, zone_max_name="熱" * 5000, sensors={"熱" * 200: "熱" * 9000})
    assert len(sample.payload().encode()) < PAYLOAD_LIMIT


def test_nan_and_infinity_become_gaps() -> None:
    """D31: what no chart can draw never gets into a sample's row or notification."""
    sick = replace(
        BOX, cpu_pct=float("nan"), load1=float("inf"), sensors={"zones": {"a": float("nan")}, "name": "x\0y"},
        gpus=(replace(GPU, temp_c=float("-inf"), throttle_mask=2**70),),
    )  # fmt: skip
    said = json.loads(sick.payload(), parse_constant=lambda name: pytest.fail(name))
    assert "cpu_pct" not in said and "load1" not in said and "temp_c" not in said["gpus"][0]
    assert "throttle_mask" not in said["gpus"][0]
    assert said["sensors"] == {"zones": {"a": None}, "name": "xy"}


def test_the_time_zone_is_ignored() -> None:
    """D12: a naive time is refused; another zone is the same moment."""
    with pytest.raises(ValueError, match="no time zone"):
        BoxSample("spark", datetime(2026, 3, 1))
    with pytest.raises(ValueError, match="no time zone"):
        BoxSample.from_payload({"box": "spark", "at": "2026-03-01T12:00:00"})
    there = BoxSample.from_payload({"box": "spark", "at": "2026-03-01T21:00:00+09:00"})
    assert there.at == datetime(2026, 3, 1, 12, tzinfo=UTC)
    tokyo = replace(BOX, at=AT.astimezone(timezone(timedelta(hours=9))))
    assert json.loads(tokyo.payload())["at"] == "2026-03-01T12:00:00.250000+00:00"


def test_a_payload_of_any_program_is_read_as_far_as_it_makes_sense() -> None:
    sample = BoxSample.from_payload(
        {"box": "x", "cpu_pct": "90", "load1": True, "cpu_mhz": 2400, "brakes": 2.0, "surprise": 1, "sensors": 3,
         "gpus": [{"temp_c": 50}, "no", {"gpu_index": 7, "state": "melted"}]}, now=AT,
    )  # fmt: skip
    assert sample.at == AT and sample.cpu_pct is None and sample.load1 is None and sample.cpu_mhz == 2400
    assert sample.brakes == 2 and sample.sensors is None
    assert [(gpu.gpu_index, gpu.state) for gpu in sample.gpus] == [(0, "ok"), (7, "error")]


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"box": ""},
        {"box": 5, "at": AT.isoformat()},
        {"box": "x", "at": "soon"},
        {"box": "x", "at": 17},
        {"box": "x"},
    ],
)
def test_a_payload_without_box_or_time_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="hw_metrics"):
        BoxSample.from_payload(data)
