"""Alerts: when an episode begins and ends, that it is told once, what is none. The clock is in our hands."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from engine.telemetry.limits import Level, Limits
from engine.telemetry.sample import BoxSample, GpuSample
from flightdeck.alerts import Alert, Alerts, toast
from flightdeck.model.deck import Deck
from flightdeck.model.view import Classes
from tests.deck.fleet_data import HOSTILE, KINDS, MONO, NOW, FleetData, box_row, lane, update
from tests.deck.piloting import StandingClock


class Post:
    """A deck with one box, its alerts, and the hands that move both."""

    def __init__(self, kind: str = "rtx", classes: Classes = (), **row: Any) -> None:
        self.clock = StandingClock()
        self.deck = Deck(self.clock, classes=classes)
        self.alerts = Alerts()
        self.box = box_row("attic", KINDS[kind], [lane("gpu", slots=1)], [], **row)
        for gpu in self.box["facts"]["gpus"]:
            gpu["temp_slowdown_c"] = None
        self.events: list[dict[str, Any]] = []
        self.leader: Any = {"box": "attic"}
        self.look()

    def take(self, **fields: Any) -> list[Alert]:
        news = update(at=NOW + timedelta(seconds=self.clock.passed), mono=MONO + self.clock.passed, **fields)
        self.deck.apply(news)
        return self.alerts.take(news, self.deck)

    def view(self) -> list[Alert]:
        return self.take(view=FleetData([(self.box, KINDS["rtx"])], leader=self.leader, events=self.events).view())

    def sample(self, gpu: GpuSample | None = None, **fields: Any) -> None:
        at = NOW + timedelta(seconds=self.clock.passed)
        gpus = (gpu or GpuSample(gpu_index=0, gpu_uuid="GPU-attic-0", temp_c=60.0, power_w=300.0),)
        self.take(samples=(BoxSample(box="attic", at=at, gpus=gpus, **fields),))

    def look(self, **fields: Any) -> list[Alert]:
        """A view and a sample of now, and what begins with them."""
        found = self.view()
        self.sample(**fields)
        return found + self.alerts.look(self.deck)

    def during(self, seconds: int, **fields: Any) -> list[Alert]:
        """So many seconds of the same, a sample every two."""
        found = []
        for _ in range(seconds // 2):
            self.clock.pass_by(2.0)
            found += self.look(**fields)
        return found

    def hot(self, celsius: float | None) -> GpuSample:
        return GpuSample(gpu_index=0, gpu_uuid="GPU-attic-0", temp_c=celsius, power_w=300.0)


def words(alerts: list[Alert]) -> list[str]:
    return [alert.word for alert in alerts]


def test_a_fleet_that_is_well_has_no_alerts() -> None:
    post = Post()
    assert post.during(60) == [] and post.alerts.unseen() == [] and toast(post.alerts, "a") is None


def test_a_reading_around_its_limit_is_one_alert() -> None:
    """Hysteresis: it begins after 20 s at the limit, trembles without a word, ends after 20 s below the end mark."""
    post = Post()
    assert post.during(18, gpu=post.hot(91.0)) == []
    assert post.during(2, gpu=post.hot(80.0)) == [] and post.during(18, gpu=post.hot(91.0)) == [], "it has to hold"
    [alert] = post.during(6, gpu=post.hot(91.0))
    assert alert.line == "HOT attic gpu 0 91 C (limit 90)"
    for _ in range(5):
        assert post.during(30, gpu=post.hot(87.0)) == [] and post.during(30, gpu=post.hot(92.0)) == []
        assert post.during(10, gpu=post.hot(80.0)) == [], "too short to be over"
    [open_one] = post.alerts.unseen()
    assert "80 C" not in open_one.text and open_one.ended is None
    assert post.during(24, gpu=post.hot(80.0)) == []
    assert post.alerts.unseen() == [] and post.alerts.all[0].ended is not None
    assert words(post.during(30, gpu=post.hot(95.0))) == ["HOT"], "the next episode is a new alert"


def test_a_missing_reading_ends_no_alert_at_once() -> None:
    """D6: a gap is not 0 C."""
    post = Post()
    post.during(30, gpu=post.hot(95.0))
    post.during(10, gpu=post.hot(None))
    assert words(post.alerts.unseen()) == ["HOT"]
    post.during(30, gpu=post.hot(None))
    assert post.alerts.unseen() == []


def test_what_is_normal_for_a_class_is_no_alert() -> None:
    """D28: a GB10 at 98 C, and a power cap at full load all day."""
    post = Post("gb10")
    hot = replace(post.hot(98.0), sw_power_ms=2000.0)
    assert post.during(300, gpu=hot, zone_max_c=98.0, power_ms=2000.0, thermal_ms=0.0) == []


def test_a_profile_has_the_last_word_on_a_class() -> None:
    """D28: thresholds per class of box."""
    post = Post("gb10", (("*gb10*", Limits("mine", gpu_c=Level(80.0, 85.0, 82.0, 0.0))),))
    assert words(post.during(4, gpu=post.hot(86.0))) == ["HOT"]


def test_throttling_counts_seconds_of_the_last_minute_per_cause() -> None:
    post = Post()
    assert post.during(8, thermal_ms=2000.0) == [], "8 s of heat are under the level"
    [alert] = post.during(4, thermal_ms=2000.0)
    assert alert.word == "THROTTLED" and "by heat" in alert.text and "10" in alert.text
    assert post.during(48, thermal_ms=0.0) == [] and len(post.alerts.unseen()) == 1
    assert post.during(16, thermal_ms=0.0) == [] and post.alerts.unseen() == [], "the minute is over"
    brake = replace(post.hot(60.0), hw_brake_ms=1500.0)
    assert words(post.during(2, gpu=brake)) == ["THROTTLED"]


def test_a_sample_that_comes_twice_counts_once() -> None:
    """By notification and again by the gap fill."""
    post = Post()
    for _ in range(9):
        post.sample(thermal_ms=2000.0)
    assert post.alerts.look(post.deck) == []


def test_a_box_that_goes_down_is_one_alert_and_its_lanes_and_readings_are_none() -> None:
    post = Post()
    post.during(30, gpu=post.hot(95.0))
    post.alerts.seen()
    post.clock.pass_by(40.0)
    post.box["lanes"][0]["last_seen_s"] = 45.0
    post.view()
    assert words(post.alerts.look(post.deck)) == ["BOX DOWN"]
    for _ in range(5):
        post.clock.pass_by(2.0)
        post.view()
        assert post.alerts.look(post.deck) == []
    post.box["lanes"][0]["last_seen_s"] = 1.0
    post.during(30)
    assert post.alerts.unseen() == []


@pytest.mark.parametrize(
    ("lane", "told"),
    [
        ({"last_seen_s": 45.0}, ["BOX DOWN"]),
        ({"last_seen_s": 45.0, "state": "stopping"}, []),
        ({"last_seen_s": 90_000.0}, []),
    ],
)
def test_a_box_that_ended_in_order_or_long_ago_is_no_news(lane: dict[str, Any], told: list[str]) -> None:
    post = Post()
    post.clock.pass_by(4000.0 if lane["last_seen_s"] < 1000 else 90_000.0)
    post.box["lanes"][0].update(lane)
    post.view()
    assert words(post.alerts.look(post.deck)) == told


def test_a_lane_that_goes_silent_on_a_living_box() -> None:
    post = Post()
    post.box["lanes"][0]["last_seen_s"] = 45.0
    [alert] = post.during(8)
    assert alert.word == "LANE DOWN" and alert.text.startswith("gpu silent for")
    post.box["lanes"][0].update(last_seen_s=90.0, state="stopping")
    post.during(10)
    assert post.alerts.unseen() == [], "it ended in order"


def test_a_lost_gpu() -> None:
    """D1."""
    post = Post()
    gone = GpuSample(gpu_index=0, gpu_uuid="GPU-attic-0", state="lost")
    assert post.during(2, gpu=gone) == []
    assert words(post.during(4, gpu=gone)) == ["GPU LOST"]
    post.during(8)
    assert post.alerts.unseen() == []


def test_slow_without_a_reason_is_taken_from_the_recorder() -> None:
    """D29: the flag that the box's recorder set."""
    post = Post()
    flag = {"gpu_index": 0, "gpu_uuid": "GPU-attic-0", "since": NOW.isoformat(), "mhz": 513.0, "usual_mhz": 2418.0}
    [alert] = post.during(2, sensors={"slow": [flag]})
    assert alert.line == "SLOW attic gpu 0 without a reason: 513 MHz, usually 2418" and alert.tone == "warn"


def test_nobody_leads() -> None:
    post = Post()
    post.leader = None
    assert post.during(4) == []
    assert words(post.during(4)) == ["NO LEADER"]
    post.leader = {"box": "attic"}
    post.during(8)
    assert post.alerts.unseen() == []


def event(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "id": str(number), "at": NOW.isoformat(), "family": "node", "job_id": "9", "run_id": "7", "box": "attic", "queue": "gpu",
        "project": "", "type": "failed", "cause": None, "text": f"what {number}",
    } | fields  # fmt: skip


def test_the_first_failure_of_a_new_database_is_told() -> None:
    post = Post()
    assert post.view() == []
    post.events = [event(2), event(1, type="requeued")]
    assert [alert.line for alert in post.view()] == ["RUN FAILED 7: what 2"]


def test_failures_are_told_once_each_and_stand_until_they_are_seen() -> None:
    post = Post()
    post.events = [event(5)]
    post.alerts.forget()
    assert post.view() == [], "what happened before anybody looked is history"
    post.events = [
        event(9, cause="lane_lost", run_id=None, text="given up"), event(8, run_id="8"), event(7), event(6), event(5),
    ]  # fmt: skip
    assert [alert.line for alert in post.view()] == [
        "RUN FAILED 7: what 6",
        "RUN FAILED 8: what 8",
        "POISON JOB attic given up",
    ]
    assert post.view() == [] and post.during(300) == []
    assert len(post.alerts.unseen()) == 3
    assert post.alerts.seen() == 3 and post.alerts.unseen() == [] and post.alerts.seen() == 0
    assert not any(alert.open for alert in post.alerts.all)


def test_an_ordinary_failed_ingest_job_and_a_completed_one_are_no_alerts() -> None:
    post = Post()
    post.events = [event(1)]
    post.view()
    post.events = [
        event(2, run_id=None, family="ingest"),
        event(3, type="completed"),
        event(4, type="requeued", cause="lane_lost"),
    ]
    assert post.view() == []


def test_seen_stays_seen_while_it_goes_on() -> None:
    post = Post()
    post.during(30, gpu=post.hot(95.0))
    assert post.alerts.seen() == 1
    assert post.during(60, gpu=post.hot(97.0)) == [] and post.alerts.unseen() == []
    [alert] = post.alerts.all
    assert alert.open and "97 C" in alert.text, "the list shows how it stands now"


def test_while_the_database_is_away_nothing_is_judged() -> None:
    """D13: silence of everything is the silence of one thing."""
    post = Post()
    post.take(view=None)
    lost = update(state="lost", at=None, mono=MONO, error="gone", next_try_s=1.0, lost_since_mono=MONO)
    post.deck.apply(lost)
    post.clock.pass_by(600.0)
    assert post.alerts.look(post.deck) == []


def test_the_toast_names_the_newest_and_counts_the_others() -> None:
    post = Post()
    post.during(30, gpu=post.hot(95.0))
    post.leader = None
    post.during(8, gpu=post.hot(95.0))
    text, style = toast(post.alerts, "a") or ("", "")
    assert text == "! NO LEADER graphs stand still: no queue-orchestrator leads  +1  (a: seen)" and style == "bad+b"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_in_alerts_are_data(name: str) -> None:
    """D19, D20."""
    post = Post()
    post.events = [event(1)]
    post.view()
    post.events = [event(2, box=name, text=name, project=name, run_id=name or "7")]
    assert all(char.isprintable() for alert in post.view() for char in alert.line)
