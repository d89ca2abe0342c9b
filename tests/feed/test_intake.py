"""What the feed lets in from strangers: once each, cleaned, counted when refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from engine.intake import BOXES_MOST, Intake
from engine.telemetry.sample import BoxSample, GpuSample

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def text(**values: object) -> str:
    return json.dumps({"box": "kestrel", "at": NOW.isoformat(), "cpu_pct": 12.5} | values)


def test_a_sample_comes_through_once() -> None:
    intake = Intake()
    sample = intake.payload(text(gpus=[{"gpu_index": 0, "temp_c": 71}]), NOW)
    assert sample is not None and sample.cpu_pct == 12.5 and sample.gpus[0].temp_c == 71
    assert intake.payload(text(), NOW) is None
    assert intake.rows([BoxSample("kestrel", NOW, cpu_pct=1.0)]) == []
    assert intake.dropped == 0


@pytest.mark.parametrize("way", ["payload", "rows"])
def test_a_box_does_not_stand_still_when_the_clock_is_set_back(way: str) -> None:
    """What was newest by the old clock kept out every sample until the new one was there, and the box looked well."""
    intake = Intake()
    assert intake.payload(text(), NOW) is not None
    back = NOW - timedelta(hours=1)
    at = back.isoformat()
    if way == "payload":
        assert intake.payload(text(at=at), back) is not None and intake.payload(text(at=at), back) is None
    else:
        assert len(intake.rows([BoxSample("kestrel", back)], back)) == 1
    assert intake.last == {"kestrel": back} and intake.gaps == {"kestrel"}


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "not json",
        "[]",
        "7",
        "{}",
        '{"box": 7}',
        '{"box": ""}',
        '{"box": "a\\u001b[2Jb"}',
        '{"box": "a:b"}',
        text(at="2026-05-04T12:00:00"),
        text(at="yesterday"),
        text(at=(NOW - timedelta(hours=2)).isoformat()),
        text(filler="x" * 9000),
        "[" * 5000,
    ],
    ids=lambda p: p[:24] or "empty",
)
def test_garbage_is_dropped_and_counted(payload: str) -> None:
    intake = Intake()
    assert intake.payload(payload, NOW) is None
    assert intake.dropped == 1


@pytest.mark.parametrize("value", ["hot", True, [1], {}, 1e400, 10**400, None])
def test_a_value_of_the_wrong_kind_counts_as_absent(value: object) -> None:
    sample = Intake().payload(text(cpu_pct=value, gpus=[{"temp_c": value}, 7, None]), NOW)
    assert sample is not None and sample.cpu_pct is None
    assert [gpu.temp_c for gpu in sample.gpus] == [None]


def test_a_clock_that_runs_ahead_does_not_draw_into_the_future() -> None:
    sample = Intake().payload(text(at=(NOW + timedelta(minutes=10)).isoformat()), NOW)
    assert sample is not None and sample.at == NOW


def test_a_payload_without_a_time_is_of_now() -> None:
    sample = Intake().payload('{"box": "osprey"}', NOW)
    assert sample is not None and sample.at == NOW


def test_endless_new_names_do_not_fill_the_memory() -> None:
    intake = Intake()
    for number in range(BOXES_MOST + 50):
        intake.payload(text(box=f"box{number}"), NOW)
    assert len(intake.last) == BOXES_MOST and intake.dropped == 50


def test_a_hole_is_remembered_so_that_late_rows_are_looked_for() -> None:
    intake = Intake()
    intake.rows([BoxSample("kestrel", NOW)])
    intake.rows([BoxSample("kestrel", NOW + timedelta(seconds=2))])
    assert not intake.gaps
    intake.rows([BoxSample("kestrel", NOW + timedelta(seconds=60))])
    assert intake.gaps == {"kestrel"}


def test_a_truncated_payload_asks_for_the_row() -> None:
    intake = Intake()
    gpus = tuple(GpuSample(i, gpu_uuid="u" * 100, temp_c=50.0) for i in range(400))
    payload = BoxSample("kestrel", NOW, gpus=gpus).payload()
    assert intake.payload(payload, NOW) is None
    assert intake.cut == {"kestrel"} and intake.dropped == 0
    assert len(intake.rows([BoxSample("kestrel", NOW, gpus=gpus)])) == 1
    assert not intake.cut
