"""Counters, texts and masks of one GPU: who speaks for a cause, and that no time is told twice or lost between them."""

from __future__ import annotations

from engine.telemetry.meter import Meter, Reading, Text

MS, US = 1_000_000, 1_000  # nanoseconds, microseconds of a millisecond
HEAT = 0x48


def texts(*values: tuple[float, int]) -> list[Text]:
    return [Text(at, at, {"sw_thermal_ms": microseconds}, lasts_s=30.0) for at, microseconds in values]


def test_from_the_text_on_it_counts_and_the_mask_until_then() -> None:
    """Nothing twice and nothing lost where the mask hands over: the text was printed in the middle of a look's time."""
    meter = Meter(2.0)
    first, second = texts((3.0, 100_000_000), (13.0, 104_000_000))
    told = [meter.feed(Reading(2.0 * n, 0x20, {}, None if n < 2 else first if n < 7 else second)) for n in range(9)]
    assert [held.ms["sw_thermal_ms"] for held in told] == [
        None, 2_000.0, 1_000.0, None, None, None, None, 4_000.0, None,
    ]  # fmt: skip


def test_a_text_that_stops_coming_leaves_it_to_the_mask() -> None:
    """What the mask saw while the next text was waited for counts then, and nothing twice."""
    first, second = texts((0.0, 5_000_000), (10.0, 9_000_000))
    meter, told = Meter(2.0), []
    for n in range(30):
        at = 2.0 * n
        text = first if at < 10 else second
        told.append(meter.feed(Reading(at, 0x20, {}, text)))
    assert [held.ms["sw_thermal_ms"] for held in told[:6]] == [None, None, None, None, None, 4_000.0]
    assert {held.source for held in told[1:20]} == {"mask"}, "the other causes have no text: sampled"
    assert told[20].ms["sw_thermal_ms"] is None
    assert told[21].ms["sw_thermal_ms"] == 32_000.0, "the text is too old now: sixteen looks by the mask"
    assert told[22].ms["sw_thermal_ms"] == 2_000.0
    back = meter.feed(Reading(60.0, 0, {}, Text(60.0, 60.0, {"sw_thermal_ms": 50_000_000}, 30.0)))
    assert back.ms["sw_thermal_ms"] == 0.0, "when it comes back it counts from then on"


def test_brakes_of_a_text_are_not_counted_with_every_text() -> None:
    meter = Meter(2.0)
    brakes = []
    for n in range(20):
        at = 2.0 * n
        printed = 10.0 * (at // 10)
        text = Text(printed, printed, {"hw_thermal_ms": int(max(0.0, min(at // 10, 2.0)) * 3_000_000)}, 30.0)
        text = text if not brakes or text != meter._text else meter._text  # the same text until a newer one
        brakes.append(meter.feed(Reading(at, 0, {}, text)).brakes)
    assert sum(filter(None, brakes)) == 1


def test_a_cause_that_stands_at_zero_is_left_to_the_mask() -> None:
    """Nobody has to be asked often for it; its zero is proven by the text until the flag says otherwise."""
    meter = Meter(2.0)
    counters = dict.fromkeys(("sw_power_ms", "sync_boost_ms", "sw_thermal_ms", "hw_brake_ms"), 0)
    zero = Text(0.0, 0.0, {"hw_thermal_ms": 0}, 30.0)
    held = [meter.feed(Reading(2.0 * n, 0, counters, zero)) for n in range(4)]
    assert [row.ms["hw_thermal_ms"] for row in held] == [None, 0.0, 0.0, 0.0]
    assert {row.source for row in held} == {"smi"} and not meter.wants_text
    row = meter.feed(Reading(8.0, HEAT, counters, zero))
    assert (row.ms["hw_thermal_ms"], row.source) == (2000.0, "mask") and meter.wants_text
    more = Text(9.5, 9.5, {"hw_thermal_ms": 3_100 * US}, 30.0)
    row = meter.feed(Reading(10.0, HEAT, counters, more))
    assert (row.ms["hw_thermal_ms"], row.source) == (1100.0, "smi"), "what the mask had not seen"
    assert meter.feed(Reading(12.0, 0, counters, more)).ms["hw_thermal_ms"] is None and meter.wants_text


def test_the_row_of_a_text_is_about_the_time_before_it() -> None:
    meter = Meter(2.0)
    meter.feed(Reading(0.0, HEAT, {}, None))
    row = meter.feed(Reading(2.0, HEAT, {}, Text(2.0, 2.0, {"hw_thermal_ms": 0}, 30.0)))
    assert row.ms["hw_thermal_ms"] == 2000.0, "the flag says so, whatever the text"
    meter.feed(Reading(4.0, 0, {}, meter._text))
    row = meter.feed(Reading(6.0, 0, {}, Text(6.0, 6.0, {"hw_thermal_ms": 3_000 * US}, 30.0)))
    assert row.ms["hw_thermal_ms"] == 3000.0, "nothing of it was told since the text of zero"


def test_a_counter_that_is_silent_while_a_text_comes_keeps_its_cause() -> None:
    """The text settles nothing then: the counter is waited for; when it stays away, the mask's time counts whole."""
    meter, told = Meter(2.0), []
    for n in range(40):
        at = 2.0 * n
        counter = int(at * 1000 * MS) if n < 5 else None  # throttled all the time, silent from 10 s on
        text = (
            Text(0.0, 0.0, {"hw_thermal_ms": 0}, 30.0)
            if n < 5
            else Text(10.0, 10.0, {"hw_thermal_ms": 10_000 * US}, 30.0)
        )
        text = meter._text if meter._text == text else text
        told.append(meter.feed(Reading(at, HEAT, {"hw_thermal_ms": counter}, text)).ms["hw_thermal_ms"])
    assert told[1:5] == [2000.0] * 4 and told[5:35] == [None] * 30
    assert sum(value or 0.0 for value in told) == 78_000.0


def test_a_counter_that_a_text_contradicts_comes_back_when_one_agrees() -> None:
    """Wrong for a while (a driver in the middle of its reload), then right: nothing is lost or told twice on the way."""
    meter, told, distrusted = Meter(2.0), [], []
    text: Text | None = None
    for n in range(30):
        at = 2.0 * n
        truth = 50_000 + at * 500  # milliseconds; throttled half of the time
        if n % 5 == 0:
            text = Text(at, at, {"sw_power_ms": int(truth * US)}, 60.0)
        counter = 7 * MS if 5 <= n < 15 else int(truth * MS)
        told.append(meter.feed(Reading(at, 0x04, {"sw_power_ms": counter}, text)).ms["sw_power_ms"])
        distrusted.append("sw_power_ms" in meter.distrusted)
    assert not distrusted[4] and all(distrusted[5:15]) and not any(distrusted[15:])
    assert sum(value or 0.0 for value in told) == 29_000.0
    assert told[16:] == [1000.0] * 14
