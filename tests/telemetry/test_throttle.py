"""Throttling as arithmetic: golden series with their sums worked out by hand."""

from __future__ import annotations

import pytest

from engine.telemetry import throttle
from engine.telemetry.meter import Held, Meter, Reading

NS = 1_000_000  # nanoseconds of a millisecond


def feed(meter: Meter, *readings: tuple[float, int | None, dict[str, int | None]]) -> list[Held]:
    return [meter.feed(Reading(mono, mask, counters)) for mono, mask, counters in readings]


def test_counters_give_exact_milliseconds_in_nanoseconds() -> None:
    """D9: nanoseconds are nanoseconds: 350 ms of power cap and 20 ms of heat, to the last one."""
    held = feed(
        Meter(2.0),
        (0.0, 4, {"sw_power_ms": 1_000 * NS, "sw_thermal_ms": 7 * NS}),
        (2.0, 4, {"sw_power_ms": 1_350 * NS, "sw_thermal_ms": 7 * NS}),
        (4.0, 0, {"sw_power_ms": 1_350 * NS, "sw_thermal_ms": 27 * NS}),
    )
    assert [h.ms["sw_power_ms"] for h in held] == [None, 350.0, 0.0]
    assert [h.ms["sw_thermal_ms"] for h in held] == [None, 0.0, 20.0]


def test_a_driver_reload_makes_negative_seconds() -> None:
    """D11: a counter that falls counts from zero."""
    held = feed(
        Meter(2.0),
        (0.0, 0, {"sw_power_ms": 173_453_251 * 1000}),
        (2.0, 0, {"sw_power_ms": 173_453_251 * 1000 + 500 * NS}),
        (4.0, 0, {"sw_power_ms": 120 * NS}),
        (6.0, 0, {"sw_power_ms": 180 * NS}),
    )
    assert [h.ms["sw_power_ms"] for h in held] == [None, 500.0, 120.0, 60.0]
    assert [h.reset for h in held] == [False, False, True, False]


def test_a_gap_is_counted_whole_by_counters_and_capped_by_the_mask() -> None:
    """The counter knows what happened in a gap of 30 s; a mask that was not looked at vouches for 4 s."""
    counted = feed(Meter(2.0), (0.0, 4, {"sw_power_ms": 0}), (30.0, 4, {"sw_power_ms": 21_000 * NS}))
    assert counted[1].ms["sw_power_ms"] == 21_000.0
    sampled = feed(Meter(2.0), (0.0, 4, {}), (30.0, 4, {}), (32.0, 0, {}), (34.0, 0x24, {}))
    assert [h.ms["sw_power_ms"] for h in sampled] == [None, 4_000.0, 0.0, 2_000.0]
    assert [h.ms["sw_thermal_ms"] for h in sampled] == [None, 0.0, 0.0, 2_000.0]
    assert {h.source for h in sampled} == {"mask"}


def test_overlapping_causes_are_never_added_up() -> None:
    ms = {"sw_power_ms": 1500.0, "sw_thermal_ms": 900.0, "hw_thermal_ms": 400.0, "hw_brake_ms": 100.0}
    assert throttle.thermal_ms(ms) == 900.0
    assert throttle.power_ms(ms) == 1500.0
    assert throttle.thermal_ms({"sw_thermal_ms": None, "hw_thermal_ms": None}) is None


def test_flags_are_real_but_the_counters_absent_or_dead() -> None:
    """D10: per cause the counter counts where there is one; else the mask. A counter that stands still under its own
    flag (another field's number since the driver changed) is given up."""
    absent = feed(Meter(2.0), (0.0, 0x20, {}), (2.0, 0x20, {"sw_thermal_ms": None}))
    assert absent[1].ms["sw_thermal_ms"] == 2_000.0 and absent[1].source == "mask"
    dead = Meter(2.0)
    held = feed(dead, *((2.0 * n, 0x20, dict.fromkeys(throttle.CAUSES, 1)) for n in range(9)))
    assert held[1].ms["sw_thermal_ms"] == 0.0 and held[1].source == "counter"
    assert held[-1].ms["sw_thermal_ms"] == 2_000.0 and held[-1].source == "mask"
    assert dead.distrusted == {"sw_thermal_ms", "hw_thermal_ms", "hw_brake_ms"}, "ids that moved together"
    assert sum(h.ms["sw_thermal_ms"] or 0.0 for h in held) == 16_000.0, "what the mask saw meanwhile counts after all"


def test_counters_win_over_the_mask_when_both_speak() -> None:
    """D10: a flag at the moment of reading says 2 s, the counter knows better. GB10: counters without any flag."""
    counters = dict.fromkeys(throttle.CAUSES, 0)
    held = feed(Meter(2.0), (0.0, 4, counters), (2.0, 4, counters | {"sw_power_ms": 80 * NS}))
    assert held[1].ms["sw_power_ms"] == 80.0 and held[1].source == "counter"
    silent = feed(Meter(2.0), (0.0, 0, counters), (2.0, 0, counters | {"sw_thermal_ms": 1_900 * NS}))
    assert silent[1].ms["sw_thermal_ms"] == 1_900.0
    assert throttle.index_of(0, silent[1].ms) == 50.0


def test_a_counter_faster_than_the_clock_is_a_gap_and_then_given_up() -> None:
    """Microseconds read as nanoseconds the other way round, or an energy counter under a time counter's number."""
    meter = Meter(2.0)
    held = feed(meter, *((2.0 * n, 0, {"sw_power_ms": n * 9_000 * NS}) for n in range(6)))
    assert [h.ms["sw_power_ms"] for h in held[:3]] == [None, None, None]
    assert held[-1].ms["sw_power_ms"] == 0.0 and held[-1].source == "mask"
    assert meter.distrusted == {"sw_power_ms"}


def test_a_32_bit_counter_wraps() -> None:
    near = 2**32 - 400_000  # microseconds
    held = feed(
        Meter(2.0, per_ms=1e3, wraps=2**32),
        (0.0, None, {"sw_power_ms": near}),
        (2.0, None, {"sw_power_ms": 100_000}),
        (4.0, None, {"sw_power_ms": 50_000}),
    )
    assert [h.ms["sw_power_ms"] for h in held] == [None, 500.0, 50.0]  # a wrap, then a reset


def test_an_unreadable_counter_leaves_a_gap_and_loses_nothing() -> None:
    held = feed(
        Meter(2.0),
        (0.0, None, {"sw_power_ms": 0}),
        (2.0, None, {"sw_power_ms": None}),
        (4.0, None, {"sw_power_ms": 3_000 * NS}),
    )
    assert [h.ms["sw_power_ms"] for h in held] == [None, None, 3_000.0]
    assert held[1].source == "counter"
    flagged = feed(
        Meter(2.0),
        (0.0, 4, {"sw_power_ms": 0}),
        (2.0, 4, {"sw_power_ms": None}),
        (4.0, 4, {"sw_power_ms": 3_000 * NS}),
    )
    assert [h.ms["sw_power_ms"] for h in flagged] == [None, None, 3_000.0], "the mask does not count it once more"


def test_brakes_are_rising_edges_of_hardware_slowdown() -> None:
    masks = [0x48, 0, 0x48, 0x88, 0x08, 0, None, 0x40, 0x04, 0x80]
    held = feed(Meter(2.0), *((2.0 * n, mask, {}) for n, mask in enumerate(masks)))
    assert [h.brakes for h in held] == [0, 0, 1, 0, 0, 0, None, 1, 0, 1]


def test_the_index_is_that_of_the_appendix() -> None:
    expected = {0x40: 100, 0x80: 90, 0x08: 85, 0x20: 50, 0x04: 30, 0x10: 5, 0x02: 5, 0x100: 5, 0x01: 0, 0: 0, 0x48: 100}
    assert {mask: throttle.index_of(mask) for mask in expected} == expected
    assert throttle.index_of(None) is None
    assert throttle.index_of(0x8000) is None  # a reason that nobody knows yet
    assert throttle.index_of(0x8004) == 30
    assert throttle.index_of(0, {"hw_thermal_ms": 60.0}) == 0  # D9: under a tenth of a second


@pytest.mark.parametrize(
    ("mask", "letters", "names"),
    [
        (0, "", []),
        (None, "", []),
        (0x01, "", ["idle"]),
        (0x04, "P", ["power cap"]),
        (0x48, "T", ["hw thermal"]),
        (0x88, "B", ["power brake"]),
        (0x08, "B", ["hw slowdown"]),
        (0x34, "PTS", ["power cap", "sync boost", "thermal"]),
        (0x5004, "P?", ["power cap", "0x5000"]),
    ],
)
def test_the_mask_in_letters_and_words(mask: int | None, letters: str, names: list[str]) -> None:
    """The umbrella bit is no further cause; unknown bits are shown, not dropped."""
    assert throttle.letters(mask) == letters
    assert throttle.names(mask) == names


def test_a_random_series_sums_to_what_the_hardware_did() -> None:
    """An hour of a counter with resets and gaps, against a sum kept on the side."""
    import random

    rng = random.Random(7)
    meter, now, counter, truth, measured = Meter(2.0), 0.0, 5_000 * NS, 0.0, 0.0
    meter.feed(Reading(now, 0, {"sw_power_ms": counter}))
    for _ in range(1800):
        gap = 2.0 if rng.random() < 0.98 else rng.uniform(4, 40)
        now += gap
        gained = rng.uniform(0, gap * 1000)
        if rng.random() < 0.01:
            counter = 0  # the driver was reloaded right after the last reading
        counter += int(gained * NS)
        truth += gained
        held = meter.feed(Reading(now, 0, {"sw_power_ms": counter}))
        measured += held.ms["sw_power_ms"] or 0.0
    assert measured == pytest.approx(truth, rel=0.01)


@pytest.mark.parametrize(("before", "now", "gap_ms"), [(None, 5, 1000.0), (5, None, 1000.0), (5, 6, 0.0)])
def test_a_side_that_was_not_read_or_no_time_at_all_is_a_gap(
    before: int | None, now: int | None, gap_ms: float
) -> None:
    assert throttle.counter_delta_ms(before, now, gap_ms, per_ms=1.0) is None
