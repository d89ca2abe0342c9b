"""The derived flag "slow without a reason": when it comes, when it goes, where it stands."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from engine.store import Db, Store
from engine.telemetry import history, slow
from engine.telemetry.recorder import BoxRecorder
from engine.telemetry.sample import BoxFacts, BoxSample, GpuSample
from engine.telemetry.slow import SlowWatch, Usual, flags, looks_slow, marked, usual_clocks
from tests.support import eventually

NOON = datetime.fromisoformat("2026-11-29T12:00:00+00:00")
USUAL = Usual(2400.0, 600)
STUCK = GpuSample(0, "GPU-1", util_pct=97.0, sm_mhz=612.0, throttle_mask=0, sw_thermal_ms=0.0, sw_power_ms=0.0)
FAST = replace(STUCK, sm_mhz=2380.0)


def box(gpu: GpuSample, seconds: float, *more: GpuSample) -> BoxSample:
    return BoxSample("spark", NOON + timedelta(seconds=seconds), gpus=(gpu, *more))


class Watched:
    """A watch that is fed every two seconds."""

    def __init__(self, usual: Usual | None = USUAL) -> None:
        self.watch = SlowWatch()
        if usual is not None:
            self.watch.usual = {"GPU-1": usual}
        self.at = 0.0
        self.begun: list[slow.Slow] = []

    def see(self, gpu: GpuSample, seconds: float) -> bool:
        """Feed one kind of reading for so long; whether the flag stands at the end."""
        flagged: list[slow.Slow] = []
        end = self.at + seconds
        while self.at < end:
            flagged, begun = self.watch.look(box(gpu, self.at))
            self.begun += begun
            self.at += 2.0
        return bool(flagged)


def test_slow_although_no_reason_bit_is_set() -> None:
    """D29: 97 % use at a quarter of the usual clock, mask 0: after a minute, told once."""
    watched = Watched()
    assert not watched.see(FAST, 300)
    assert not watched.see(STUCK, 58)
    assert watched.see(STUCK, 600)
    assert len(watched.begun) == 1
    (episode,) = watched.begun
    assert episode.since == NOON + timedelta(seconds=300) and episode.usual_mhz == 2400.0
    assert "GPU 0 slow without a reason: 612 MHz, usually 2400" in episode.text


@pytest.mark.parametrize(
    "gpu",
    [
        replace(STUCK, util_pct=89.0),
        replace(STUCK, sm_mhz=1441.0),  # 60 % of the usual clock is 1440
        replace(STUCK, throttle_mask=0x4),
        replace(STUCK, throttle_mask=0x8000),  # a reason that nobody knows yet is a reason
        replace(STUCK, throttle_mask=0x2),  # clocks set by an operator
        replace(STUCK, sw_power_ms=1900.0),  # the counter tells what the mask misses
        replace(STUCK, throttle_mask=None, sw_thermal_ms=None, sw_power_ms=None),  # nobody can tell
        replace(STUCK, util_pct=None),
        replace(STUCK, sm_mhz=None),
        replace(STUCK, state="lost"),
    ],
)  # fmt: skip
def test_no_flag_where_there_is_a_reason_or_no_reading(gpu: GpuSample) -> None:
    assert not Watched().see(gpu, 300)


def test_idle_is_no_reason_and_counters_alone_can_tell() -> None:
    assert looks_slow(replace(STUCK, throttle_mask=0x1), USUAL) is True
    assert looks_slow(replace(STUCK, throttle_mask=None), USUAL) is True


def test_nothing_is_usual_before_ten_minutes() -> None:
    assert not Watched(Usual(2400.0, 9)).see(STUCK, 300)
    assert not Watched(None).see(STUCK, 300)


def test_the_flag_does_not_flap() -> None:
    """D29: a clock around the edge is one episode; it is over after a minute of calm, and may then begin anew."""
    watched = Watched()
    assert watched.see(STUCK, 120)
    between = replace(STUCK, sm_mhz=1600.0)  # over 60 %, under 70 %
    for _ in range(5):
        assert watched.see(between, 70) and watched.see(STUCK, 10) and watched.see(FAST, 50)
    assert len(watched.begun) == 1
    assert not watched.see(FAST, 70)
    assert watched.see(STUCK, 120) and len(watched.begun) == 2


@pytest.mark.parametrize(
    "calm", [FAST, replace(STUCK, util_pct=10.0), replace(STUCK, throttle_mask=0x20)], ids=["fast", "idle", "reason"]
)
def test_what_ends_an_episode(calm: GpuSample) -> None:
    watched = Watched()
    assert watched.see(STUCK, 120)
    assert watched.see(calm, 40) and not watched.see(calm, 30)


def test_one_failed_reading_changes_nothing_and_a_hole_begins_anew() -> None:
    watched = Watched()
    unread = replace(STUCK, util_pct=None)
    assert not watched.see(STUCK, 40) and not watched.see(unread, 2) and watched.see(STUCK, 22)
    assert watched.see(unread, 60) and not watched.see(unread, 80), "after two minutes nobody knows"
    watched = Watched()
    assert not watched.see(STUCK, 40)
    watched.at += 60
    assert not watched.see(STUCK, 40) and watched.see(STUCK, 24)


def test_a_card_that_is_gone_takes_its_flag_along() -> None:
    watch = SlowWatch()
    watch.usual = {"GPU-1": USUAL, "GPU-2": USUAL}
    other = replace(STUCK, gpu_index=1, gpu_uuid="GPU-2")
    for at in range(0, 70, 2):
        found, _ = watch.look(box(STUCK, at, other))
    assert [one.gpu_uuid for one in found] == ["GPU-1", "GPU-2"]
    for at in range(70, 200, 2):
        found, _ = watch.look(box(replace(STUCK, gpu_index=0), at))
    assert [one.gpu_uuid for one in found] == ["GPU-1"]


def test_the_flag_travels_in_the_sensors() -> None:
    watched = Watched()
    watched.see(STUCK, 120)
    found, _ = watched.watch.look(box(STUCK, 120))
    sample = marked(replace(box(STUCK, 120), sensors={"zones": {"acpitz": 70.0}}), found)
    assert sample.sensors is not None and sample.sensors["zones"] == {"acpitz": 70.0}
    assert flags(sample.sensors) == found and flags(None) == flags({"slow": [5, {"since": "x"}]}) == []
    assert marked(box(STUCK, 0), []).sensors is None
    received = BoxSample.from_payload(json.loads(sample.payload()))
    assert [one.text for one in flags(received.sensors)] == [one.text for one in found]
    after = SlowWatch()  # the next recorder
    after.restore(flags(received.sensors), sample.at)
    assert after.look(box(STUCK, 124)) == (found, [])


def test_the_flag_stays_in_a_notification_that_has_no_room_for_sensors() -> None:
    """D2, D29: sixteen GPUs; everything else of the sensors goes first."""
    cards = tuple(replace(STUCK, gpu_index=n, gpu_uuid=f"GPU-{n:036d}", temp_c=71.0 + n) for n in range(16))
    watch = SlowWatch()
    watch.usual = {slow.identity(card): USUAL for card in cards}
    for at in range(0, 70, 2):
        found, _ = watch.look(box(cards[0], at, *cards[1:]))
    full = {f"zone {n}": {f"sensor {m}": 1.0 for m in range(40)} for n in range(10)}
    sample = marked(replace(box(cards[0], 70, *cards[1:]), sensors=full), found[:2])
    text = sample.payload()
    received = BoxSample.from_payload(json.loads(text))
    assert len(text.encode()) < 7900 and len(flags(received.sensors)) == 2 and len(received.gpus) == 16


def fill(db: Db, clocks: list[float], uuid: str = "GPU-1", back_s: float = 3600.0) -> None:
    rows = [
        {
            "box": "spark",
            "at": db.now() - timedelta(seconds=back_s - n),
            "tier": "minute",
            "i": 0,
            "u": uuid,
            "mhz": mhz,
        }
        for n, mhz in enumerate(clocks)
    ]
    db.run_many(
        "insert into flight_recorder_gpu (box, at, tier, gpu_index, gpu_uuid, sm_mhz) "
        "values ({box}, {at}, {tier}, {i}, {u}, {mhz})",
        rows,
    )


def test_usual_is_the_95th_percentile_of_the_last_day(db: Db) -> None:
    clocks = [float(n * 37 % 200) for n in range(200)]
    fill(db, clocks)
    fill(db, [5000.0] * 50, back_s=90_000.0)  # yesterday's yesterday
    fill(db, [1.0, 2.0, 3.0], uuid="GPU-2", back_s=1800.0)
    found = usual_clocks(db, "spark")
    assert found["GPU-1"] == Usual(sorted(clocks)[int(0.95 * 200) - 1], 200)
    assert found["GPU-2"].minutes == 3 and usual_clocks(db, "nobody") == {}


class Stuck:
    """A GPU that is stuck; the clock runs as fast as somebody asks."""

    def __init__(self) -> None:
        self.looks = 0

    def facts(self) -> BoxFacts:
        return BoxFacts("spark", "m-1", simulated=True)

    def sample(self, dt_s: float) -> BoxSample:
        self.looks += 1
        return BoxSample("spark", NOON, gpus=(STUCK,))

    def close(self) -> None:
        pass


def record_until(store: Store, monkeypatch: pytest.MonkeyPatch, done: Callable[[], Any]) -> Any:
    """A recorder on a quick clock, until ``done``."""
    monkeypatch.setattr("engine.telemetry.derived.SHARES_S", 0.05)
    monkeypatch.setattr("engine.telemetry.slow.HOLD", timedelta(seconds=0.3))
    stop = threading.Event()
    recorder = BoxRecorder(store, Stuck(), "spark", 0.02)
    thread = threading.Thread(target=recorder.run, args=(stop,))
    thread.start()
    try:
        return eventually(done)
    finally:
        stop.set()
        thread.join()


def test_the_recorder_flags_it_and_tells_it_once_across_a_restart(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D29: in the row that every deck reads, and one row of control_events for the episode."""
    with store.connect("test") as db:
        fill(db, [2400.0] * 20)

        def told() -> list[dict[str, Any]]:
            return db.all("select box, action, detail from control_events where action = 'alert'")

        (row,) = record_until(store, monkeypatch, told)
        assert row["box"] == "spark" and row["detail"]["kind"] == slow.KIND
        assert "spark: GPU 0 slow without a reason" in row["detail"]["text"]
        assert [one.gpu_uuid for one in flags(history.latest(db)["spark"].sensors)] == ["GPU-1"]
        first = history.newest(db, "spark")
        assert first is not None
        later = first + timedelta(seconds=1)
        record_until(store, monkeypatch, lambda: (history.newest(db, "spark") or first) > later)
        assert flags(history.latest(db)["spark"].sensors) and len(told()) == 1
