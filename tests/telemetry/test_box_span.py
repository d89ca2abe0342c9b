"""The GPUs of a box over a span: buckets that keep spikes and gaps, both tiers, both stores."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta

from engine.store import Db
from engine.telemetry import writer
from engine.telemetry.box_now import box_now
from engine.telemetry.box_span import box_span
from engine.telemetry.rollup import minute_of, roll_up
from engine.telemetry.sample import BoxFacts, BoxSample, GpuFacts, GpuSample

ME = writer.Recorder("hangar", "00000000000000aa", 4711, "1.0")


def look(at: datetime, *gpus: GpuSample) -> BoxSample:
    return BoxSample("hangar", at, gpus=gpus)


def gpu(index: int = 0, uuid: str | None = "GPU-a", **values: object) -> GpuSample:
    return GpuSample(index, uuid, **{"temp_c": 60.0, "power_w": 100.0, **values})  # type: ignore[arg-type]


def put(db: Db, *samples: BoxSample) -> None:
    writer.write(db, ME, list(samples), payload=None, last_error=None)


def at_bucket(answer: dict[str, object], at: datetime) -> int:
    return math.floor(at.timestamp() / answer["bucket_s"]) - answer["first"]  # type: ignore[operator]


def test_a_spike_of_two_seconds_stands_in_its_bucket(db: Db) -> None:
    now = db.now()
    samples = [look(now - timedelta(seconds=2 * i), gpu(temp_c=60.0 + i % 2)) for i in range(1, 150)]
    hot = now - timedelta(seconds=120)
    put(db, *[look(s.at, gpu(temp_c=97.0)) if s.at == hot else s for s in samples])
    answer = box_span(db, "hangar", 600, 10)
    [card] = answer["gpus"]
    temps = card["series"]["temp_c"]
    assert (card["uuid"], card["index"], len(temps)) == ("GPU-a", 0, answer["count"])
    assert temps[at_bucket(answer, hot)][1] == 97.0
    assert sum(pair is not None and pair[1] > 90 for pair in temps) == 1
    assert temps[0] is None  # ten minutes ago nothing was recorded: a gap
    assert json.loads(json.dumps(answer)) == answer


def test_a_failed_reader_is_a_gap_and_never_zero(db: Db) -> None:
    """D6: no reading is no value; a metric nobody reads is left out."""
    now = db.now()
    put(db, look(now - timedelta(seconds=40), gpu(power_w=None)), look(now - timedelta(seconds=4), gpu()))
    answer = box_span(db, "hangar", 600, 10)
    [card] = answer["gpus"]
    assert card["series"]["power_w"][at_bucket(answer, now - timedelta(seconds=40))] is None
    assert card["series"]["temp_c"][at_bucket(answer, now - timedelta(seconds=40))] == [60.0, 60.0]
    assert "fan_pct" not in card["series"] and card["held"]["sw_power_ms"][0] is None


def test_a_card_that_moved_to_another_index_is_the_same_card(db: Db) -> None:
    """D1: identity by uuid; the neighbour that fell off the bus keeps its own past."""
    now = db.now()
    put(
        db,
        look(now - timedelta(seconds=60), gpu(0, "GPU-a"), gpu(1, "GPU-b", temp_c=71.0)),
        look(now - timedelta(seconds=6), gpu(0, "GPU-b", temp_c=72.0)),
    )
    answer = box_span(db, "hangar", 600, 10)
    by_uuid = {card["uuid"]: card for card in answer["gpus"]}
    assert by_uuid["GPU-b"]["index"] == 0
    assert [pair for pair in by_uuid["GPU-b"]["series"]["temp_c"] if pair] == [[71.0, 71.0], [72.0, 72.0]]
    assert [card["uuid"] for card in answer["gpus"]] == ["GPU-b", "GPU-a"]  # who stands there now comes first
    [only] = box_span(db, "hangar", 600, 10, gpu="GPU-b")["gpus"]
    assert only == by_uuid["GPU-b"]


def test_cards_without_uuid_are_found_by_their_index(db: Db) -> None:
    now = db.now()
    put(db, look(now - timedelta(seconds=6), gpu(0, None), gpu(1, None, temp_c=44.0)))
    [card] = box_span(db, "hangar", 600, 10, gpu="#1")["gpus"]
    assert card["uuid"] == "#1" and [44.0, 44.0] in card["series"]["temp_c"]
    assert box_span(db, "hangar", 600, 10, gpu="#x")["gpus"] == []


def test_a_day_is_read_from_minutes_and_keeps_their_peaks(db: Db) -> None:
    now = db.now()
    then = minute_of(now - timedelta(hours=5))
    details = [look(then + timedelta(seconds=2 * i), gpu(temp_c=60.0, sw_power_ms=500.0)) for i in range(30)]
    details[7] = look(details[7].at, gpu(temp_c=96.0, sw_power_ms=500.0))
    put(db, roll_up(details), look(now - timedelta(seconds=6), gpu(temp_c=50.0)))
    answer = box_span(db, "hangar", 86400, 660)
    [card] = answer["gpus"]
    here = at_bucket(answer, then)
    assert card["series"]["temp_c"][here] == [60.0, 96.0]
    assert card["held"]["sw_power_ms"][here] == 15_000.0
    assert card["series"]["temp_c"][-1] == [50.0, 50.0] or card["series"]["temp_c"][-2] == [50.0, 50.0]


def test_details_that_are_gone_are_filled_from_minutes_once(db: Db) -> None:
    """The seconds throttled of a minute are spread over its buckets, and not counted beside its details."""
    now = db.now()
    old = minute_of(now - timedelta(minutes=30))
    held = [look(old + timedelta(seconds=2 * i), gpu(sw_power_ms=1000.0)) for i in range(30)]
    fresh = [look(now - timedelta(seconds=2 * i), gpu(sw_power_ms=100.0)) for i in range(60, 0, -1)]
    put(db, roll_up(held), *fresh)
    answer = box_span(db, "hangar", 3600, 20)
    [card] = answer["gpus"]
    sums = [value for value in card["held"]["sw_power_ms"] if value is not None]
    assert abs(sum(sums) - 36_000.0) < 1.0
    first = at_bucket(answer, old)
    assert card["series"]["temp_c"][first : first + 3] == [[60.0, 60.0]] * 3


def test_an_error_code_tells_since_when(db: Db) -> None:
    now = db.now()
    put(db, *[look(now - timedelta(seconds=s), gpu(xid=79 if s <= 40 else None)) for s in (60, 50, 40, 30, 20, 10)])
    [card] = box_span(db, "hangar", 600, 10)["gpus"]
    assert card["xid"] == 79
    assert abs((datetime.fromisoformat(card["xid_at"]) - now.astimezone(UTC)).total_seconds() + 40) < 1


def test_six_hours_in_half_minutes_have_no_holes(db: Db) -> None:
    """Minute rows fill the buckets that are shorter than a minute."""
    now = db.now()
    put(db, *[roll_up([look(minute_of(now - timedelta(minutes=m)), gpu(sw_power_ms=600.0))]) for m in range(10, 20)])
    answer = box_span(db, "hangar", 21_600, 30)
    [card] = answer["gpus"]
    assert sum(pair is not None for pair in card["series"]["temp_c"]) == 20
    assert sum(value or 0.0 for value in card["held"]["sw_power_ms"]) == 6000.0


def test_a_box_now_brings_facts_sensors_and_every_column(db: Db) -> None:
    facts = BoxFacts("hangar", "m-1", cores=8, kernel="6.11", gpus=(GpuFacts(0, "GPU-a", temp_shutdown_c=98.0),))
    writer.write_facts(db, facts)
    at = db.now()
    sensors = {"zones": {"acpitz": 71.5}, "absent": {"fan_max_rpm": "no fan tach"}}
    put(db, BoxSample("hangar", at, cpu_pct=5.0, sensors=sensors, gpus=(gpu(pstate=0),)))
    answer = box_now(db, "hangar")
    assert answer["facts"]["kernel"] == "6.11" and answer["facts"]["gpus"][0]["temp_shutdown_c"] == 98.0
    assert answer["sensors"] == sensors and answer["sample"]["cpu_pct"] == 5.0 and answer["gpus"][0]["pstate"] == 0
    assert datetime.fromisoformat(answer["sample_at"]) == at
    assert json.loads(json.dumps(answer)) == answer
    assert box_now(db, "nowhere")["facts"] is None


def test_a_box_that_nobody_knows_has_no_cards(db: Db) -> None:
    answer = box_span(db, "nowhere", 1e12, 0.0)
    assert answer["gpus"] == [] and answer["count"] <= 1025
