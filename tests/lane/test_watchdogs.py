"""The watchdogs' verdicts, as values: what trips, what never does. No clock, no process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import config
from engine.errors import ConfigError
from engine.lane import stacks
from engine.lane.watchdogs import AWAY_S, Dismissed, Limits, Look, Verdict, Vigil, gpu_health, moved_mb, stall

LIMITS = Limits()
GIB = 1024.0


def idle(at: float, **changes: float | None) -> Look:
    return replace(Look(at, use_pct=0.0, host_mb=4000.0, vram_mb=8000.0, io_bytes=1e9), **changes)  # type: ignore[arg-type]


COARSE = replace(LIMITS, probe_seconds=20.0)  # fewer readings, the same windows


def watched(seconds: float, step: float = LIMITS.probe_seconds, since: float = 0.0) -> list[Look]:
    return [idle(since + number * step) for number in range(round(seconds / step) + 1)]


# --- gpu health ---


def test_a_wedge_trips_in_one_window_before_and_after_a_beat() -> None:
    assert gpu_health(watched(1198), None, LIMITS) is None
    verdict = gpu_health(watched(1200), None, LIMITS)
    assert verdict is not None and verdict.code == 78
    assert verdict.evidence["window_s"] == 1200 and verdict.evidence["use_pct_max"] == 0
    assert gpu_health(watched(300), None, LIMITS) is None, "300 s is for a job that has beaten"
    verdict = gpu_health(watched(310), 5.0, LIMITS)
    assert verdict is not None and verdict.evidence["window_s"] == 300
    assert gpu_health(watched(304), 5.0, LIMITS) is None, "the window begins after the last beat"


UNKNOWN = st.sampled_from(["use_pct", "host_mb", "vram_mb", "io_bytes"]).map(lambda name: {name: None})
LIFE = st.one_of(
    UNKNOWN,
    st.floats(5.1, 100).map(lambda use: {"use_pct": use}),
    st.floats(5.01, 100).map(lambda gib: {"host_mb": 4000 + gib * GIB}),
    st.floats(5.01, 100).map(lambda gib: {"vram_mb": 8000 + gib * GIB}),
    st.floats(1.01, 1000).map(lambda mib: {"io_bytes": 1e9 + mib * 1024**2}),
)


@given(st.data(), LIFE, st.booleans())
def test_one_reading_of_life_or_one_unknown_in_the_window_and_it_never_trips(
    data: st.DataObject, change: dict[str, float | None], beaten: bool
) -> None:
    """Q35: on a machine that tells nothing, nothing is idle."""
    last_beat = 0.0 if beaten else None
    looks = watched(300 if beaten else 1200, COARSE.probe_seconds)
    assert gpu_health(looks, last_beat, COARSE) is not None
    at = data.draw(st.integers(0, len(looks) - 1))
    looks[at] = replace(looks[at], **change)  # type: ignore[arg-type]
    assert gpu_health(looks, last_beat, COARSE) is None


@given(st.data(), st.floats(41, 5000))
def test_a_gap_in_the_readings_never_trips(data: st.DataObject, gap_s: float) -> None:
    looks = watched(1200, COARSE.probe_seconds)
    cut = data.draw(st.integers(1, len(looks) - 1))
    moved = looks[:cut] + [replace(look, at=look.at + gap_s) for look in looks[cut:]]
    assert gpu_health(moved, None, COARSE) is None


@given(st.floats(0.1, 300))
def test_a_beat_in_the_window_never_trips(age_s: float) -> None:
    looks = watched(4000, COARSE.probe_seconds)
    assert gpu_health(looks, looks[-1].at - age_s + 0.05, COARSE) is None


def test_forty_minutes_of_work_are_never_ended_by_time_alone() -> None:
    """Q4: a gpu job has no deadline; one that lives in any way goes on for as long as it likes."""
    for life in ({"use_pct": 60.0}, {"io_bytes": None}):
        vigil = Vigil(0.0, LIMITS)
        found = [vigil.look(idle(float(at), **life), None) for at in range(0, 40 * 60, 2)]
        assert not any(found)
    beating = Vigil(0.0, COARSE)
    for at in range(0, 40 * 60, 20):
        assert beating.tick(float(at), at - at % 100) is None
        assert beating.look(idle(float(at)), float(at - at % 100)) is None


def test_a_load_in_small_steps_is_seen_over_the_window() -> None:
    vigil = Vigil(0.0, COARSE)
    for at in range(0, 4000, 20):  # 5 GiB in 20 minutes, 88 MiB a reading
        assert vigil.look(idle(float(at), vram_mb=at * 4.4), None) is None


def test_a_slow_download_is_life_and_a_log_line_is_not() -> None:
    loading, talking = Vigil(0.0, COARSE), Vigil(0.0, COARSE)
    tripped = None
    for at in range(0, 1300, 20):
        assert loading.look(idle(float(at), io_bytes=at * 2000.0), None) is None
        tripped = tripped or talking.look(idle(float(at), io_bytes=at * 5.0), None)
    assert isinstance(tripped, Verdict) and tripped.code == 78


Step = tuple[float, dict[str, float | None], bool]
STEPS = st.lists(
    st.tuples(st.sampled_from([0.2, 0.4, 0.9, 5.0]), st.one_of(st.just({}), st.just({}), LIFE), st.booleans()),
    max_size=120,
)
QUICK = Limits(stall_seconds=0, health_window=4.0, health_window_beating=2.0, probe_seconds=0.3)


@given(STEPS)
def test_what_trips_was_dead_over_a_whole_window_whatever_came_before(steps: list[Step]) -> None:
    """The watched job against all that was ever seen of it."""
    vigil, now, last_beat, seen = Vigil(0.0, QUICK), 0.0, None, []
    for number, (wait_s, change, beats) in enumerate(steps):
        now += wait_s
        last_beat = now if beats and number % 7 == 0 else last_beat
        seen.append(idle(now, **change))
        found = vigil.look(seen[-1], last_beat)
        # The same question, asked of the whole history without any memory in between.
        assert found == gpu_health(tuple(seen), last_beat, QUICK)


@given(STEPS)
def test_a_wedge_trips_after_any_past(steps: list[Step]) -> None:
    vigil, now = Vigil(0.0, QUICK), 0.0
    for wait_s, change, _ in steps:
        now += wait_s
        vigil.look(idle(now, **change), None)
    found = None
    began = now
    while found is None and now < began + QUICK.health_window + 2 * QUICK.furthest:
        now += 0.3
        found = vigil.look(idle(now), None)
    assert isinstance(found, Verdict) and found.code == 78


def test_memory_moves_by_its_widest_span() -> None:
    looks = [idle(0), idle(2, host_mb=1000.0), idle(4, host_mb=9000.0, vram_mb=None)]
    assert moved_mb(looks) == 8000
    assert moved_mb([Look(0.0)]) == 0


def test_windows_of_zero_switch_a_dog_off() -> None:
    assert gpu_health(watched(5000), None, replace(LIMITS, health_window=0)) is None
    off = Vigil(0.0, replace(LIMITS, stall_seconds=0))
    assert off.tick(1e6, 1.0) is None and off.next_look < 10


# --- stall ---


def suspect(vigil: Vigil, at: float, last_beat: float) -> None:
    assert vigil.tick(at, last_beat) is None
    assert vigil.next_look <= at, "readings are wanted at once"


def answers(vigil: Vigil, looks: Iterable[Look], last_beat: float) -> list[Verdict | Dismissed | None]:
    return [vigil.look(look, last_beat) for look in looks]


def test_a_missed_beat_and_three_idle_readings_are_a_stall() -> None:
    vigil = Vigil(0.0, LIMITS)
    assert vigil.tick(129.0, 10.0) is None and vigil.next_look < 10
    suspect(vigil, 130.1, 10.0)
    early, first, soon, second, third = answers(vigil, map(idle, (130.0, 130.2, 130.3, 131.2, 132.2)), 10.0)
    assert (early, first, soon, second) == (None, None, None, None)
    assert isinstance(third, Verdict) and third.code == 76
    assert len(third.evidence["samples"]) == 3 and third.evidence["silent_s"] == 122.2


def test_no_beat_ever_is_no_stall() -> None:
    vigil = Vigil(0.0, LIMITS)
    assert all(vigil.tick(float(at), None) is None for at in range(0, 5000, 10))
    assert vigil.next_look == 1.0


@given(st.integers(0, 2), LIFE)
def test_a_busy_a_moving_and_an_unreadable_one_is_suspected_and_lives(at: int, change: dict[str, float | None]) -> None:
    looks = [idle(130.2 + number) for number in range(3)]
    looks[at] = replace(looks[at], **change)  # type: ignore[arg-type]
    found = stall(looks[: at + 1], 121.0, LIMITS)
    if change.keys() & {"io_bytes"}:  # of no interest here
        assert not isinstance(found, Dismissed)
    elif at == 0 and change.keys() <= {"host_mb", "vram_mb"} and None not in change.values():
        assert found is None, "one reading cannot show a movement"
    else:
        assert isinstance(found, Dismissed) and found.evidence["reason"].startswith("no beat for 121 s, not killed: ")
    assert isinstance(stall([idle(130.2 + number) for number in range(3)], 121.0, LIMITS), Verdict)


def test_a_dismissed_suspicion_is_armed_again() -> None:
    vigil = Vigil(0.0, LIMITS)
    suspect(vigil, 130.1, 10.0)
    (busy,) = answers(vigil, [idle(130.2, use_pct=80.0)], 10.0)
    assert isinstance(busy, Dismissed) and "80 %" in busy.evidence["reason"]
    assert vigil.next_look == 132.2
    assert vigil.tick(249.0, 10.0) is None and vigil.look(idle(249.1), 10.0) is None
    suspect(vigil, 250.3, 10.0)
    *_, found = answers(vigil, map(idle, (250.4, 251.4, 252.4)), 10.0)
    assert isinstance(found, Verdict) and found.evidence["silent_s"] == 242.4


def test_a_suspicion_without_readings_is_dismissed() -> None:
    """Q35."""
    vigil = Vigil(0.0, LIMITS)
    suspect(vigil, 130.1, 10.0)
    assert vigil.tick(143.0, 10.0) is None
    found = vigil.tick(143.2, 10.0)
    assert found is not None and "no reading of its GPU" in found.evidence["reason"]
    assert vigil.tick(143.3, 10.0) is None


def test_a_beat_in_time_clears_a_suspicion() -> None:
    vigil = Vigil(0.0, LIMITS)
    suspect(vigil, 130.1, 10.0)
    assert vigil.look(idle(130.2), 10.0) is None
    (found,) = answers(vigil, [idle(131.2)], 130.9)
    assert isinstance(found, Dismissed) and "it beats again" in found.evidence["reason"]


# --- a lane that stood still ---


@given(st.floats(AWAY_S + 0.1, 100_000))
def test_what_a_frozen_lane_did_not_see_is_nobody_s_fault(gap_s: float) -> None:
    """Neither time, nor silence, nor readings from before count when a lane goes on after a stop."""
    vigil = Vigil(0.0, COARSE)
    answers(vigil, watched(280, 20), 1.0)
    assert vigil.elapsed_s(290.0) == 290.0
    now = 290.0 + gap_s
    vigil.away(now, gap_s)
    assert abs(vigil.elapsed_s(now) - 290.0) < 1e-6
    assert vigil.tick(now + 100, 1.0) is None, "silence counts from now"
    assert not any(answers(vigil, watched(100, 20, since=now), 1.0)), "and so does the window"


def test_a_stop_from_before_the_job_is_not_excused_twice() -> None:
    vigil = Vigil(100.0, LIMITS)
    vigil.away(101.0, 50.0)
    assert vigil.elapsed_s(103.0) == 2.0


# --- settings, stacks ---


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("stall_samples", 0, "stall_samples must be 1 or more"),
        ("probe_seconds", 0.0, "probe_seconds must be"),
        ("health_window", 3.0, "health_window must hold 5 readings"),
        ("health_window_beating", 9.9, "health_window_beating must hold 5 readings"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(name: str, value: float, said: str) -> None:
    config.configure(**{name: value})
    with pytest.raises(ConfigError, match=said):
        Limits.configured()


def test_thresholds_come_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Limits.configured() == LIMITS
    monkeypatch.setenv("FLIGHTDECK_STALL_SECONDS", "60")
    assert Limits.configured().stall_seconds == 60.0


def test_the_thread_that_runs_the_job_comes_first_and_the_dump_is_short() -> None:
    written = (
        b"what the job printed\nThread 0x01 (most recent call first):\n  File a\n\n"
        b"Current thread 0x02 (most recent call first):\n  File b\n"
    )
    text = stacks.cut(written, 4000)
    assert text is not None
    assert text.startswith("Current thread 0x02") and text.endswith("File a") and "printed" not in text
    assert len(stacks.cut(written, 30) or "") == 30
    assert stacks.cut(b"printed only", 100) is None
