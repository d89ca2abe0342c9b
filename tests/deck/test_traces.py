"""The hour in slots: snapped, with gaps as gaps, spikes kept, throttle time counted once."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.telemetry.sample import BoxSample, GpuSample
from flightdeck.charts.cells import ascii_line, bar, braille
from flightdeck.model.axis import SLOTS
from flightdeck.model.metrics import BY_KEY, METRICS, find_range
from flightdeck.model.slots import Ring, slot_of
from flightdeck.model.traces import History
from flightdeck.widgets.trace_picture import range_text
from tests.deck.fleet_data import NOW


def at(seconds: float) -> BoxSample:
    return BoxSample(box="b", at=NOW + timedelta(seconds=seconds), cpu_pct=50.0)


def test_a_missing_sample_is_a_gap_not_zero() -> None:
    """D6, D31: no reading, no dot."""
    ring = Ring()
    ring.put(100, 1, 5.0, 5.0)
    ring.put(103, 1, 7.0, 7.0)
    assert ring.columns(103, 1, 4) == [(5.0, 5.0), None, None, (7.0, 7.0)]


def test_columns_do_not_move_between_rolls() -> None:
    """D24: within a column's time the picture stands still; after it, it moves by exactly one."""
    ring = Ring()
    for slot in range(1000, 1100):
        ring.put(slot, 1, float(slot), float(slot))
    before = ring.columns(1099, 10, 8)
    ring.put(1100, 1, 1.0, 1.0)
    after = ring.columns(1100, 10, 8)
    assert after[:-1] == before[1:]
    assert ring.columns(1104, 10, 8) == after


@given(
    st.lists(st.tuples(st.integers(0, 900), st.floats(-50, 150), st.integers(0, 40)), max_size=120),
    st.integers(1, 20),
    st.integers(2, 60),
)
def test_columns_read_step_by_step_equal_columns_read_at_once(
    puts: list[tuple[int, float, int]], width: int, count: int
) -> None:
    """What is kept from the last drawing never differs from a fresh look, also when a reading comes late: older than the
    newest one, or long after a newer column was drawn without any."""
    stepwise, once = Ring(), Ring()
    end = 2000
    for slot, value, later in puts:
        stepwise.put(2000 + slot, 1, value, value)
        once.put(2000 + slot, 1, value, value)
        end = max(end, 2000 + slot) + later
        stepwise.columns(end, width, count)
    assert stepwise.columns(end, width, count) == once.columns(end, width, count)


def test_columns_that_did_not_change_are_the_same_list() -> None:
    """So that nothing is drawn anew for them."""
    ring = Ring()
    for slot in range(1000, 1050):
        ring.put(slot, 1, 5.0, 7.0)
    before = ring.columns(1049, 10, 8)
    ring.put(1049, 1, 6.0, 6.0)
    assert ring.columns(1049, 10, 8) is before
    ring.put(1049, 1, 6.0, 8.0)
    assert ring.columns(1049, 10, 8) is not before


def test_the_ring_forgets_what_is_older_than_an_hour() -> None:
    ring = Ring()
    ring.put(100, 1, 5.0, 5.0)
    ring.put(100 + SLOTS + 24, 1, 6.0, 6.0)
    assert ring.columns(100 + SLOTS + 24, 1, SLOTS).count(None) == SLOTS - 1


def test_a_minute_row_keeps_its_spike() -> None:
    """A two-second spike of an hour ago is still there."""
    history = History()
    row = BoxSample(
        box="b", at=NOW.replace(second=0), tier="minute", cpu_pct=10.0, low={"cpu_pct": 5.0}, high={"cpu_pct": 99.0}
    )
    history.load([row])
    assert history.rings["cpu_pct"].columns(slot_of(row.at) + 5, 12, 1) == [(5.0, 99.0)]


def test_detail_after_the_last_minute_row_is_not_counted_twice() -> None:
    history = History()
    start = NOW.replace(second=0)
    minute = BoxSample(box="b", at=start - timedelta(seconds=60), tier="minute", power_ms=6000.0, brakes=1)
    details = [BoxSample(box="b", at=start + timedelta(seconds=2 * i), power_ms=100.0) for i in range(1, 10)]
    history.load([minute, *details])
    total, brakes = history.throttle.totals(slot_of(NOW))
    assert total["P"] == pytest.approx(6900.0)
    assert brakes == 1


def test_the_same_sample_twice_counts_once() -> None:
    """By notification and by gap fill."""
    history = History()
    sample = BoxSample(box="b", at=NOW, power_ms=500.0)
    history.add(sample)
    history.add(sample)
    assert history.throttle.totals(slot_of(NOW))[0]["P"] == 500.0


def test_the_newest_sample_is_not_one_ahead_of_the_clock() -> None:
    """The database's clock was set back: values that stand still for an hour beside a box that looks well."""
    history = History()
    history.add(BoxSample("b", NOW, cpu_temp_c=90.0), NOW)
    back = NOW - timedelta(hours=1)
    for seconds in (0, 2):
        at = back + timedelta(seconds=seconds)
        history.add(BoxSample("b", at, cpu_temp_c=40.0 + seconds), at)
    assert history.latest is not None and history.latest.at == back + timedelta(seconds=2)
    assert history.rings["cpu_c"].last == 42.0


def test_a_garbled_past_is_a_gap_and_no_endless_work() -> None:
    """Of a recording that was cut or edited: times and lengths that no clock has."""
    history = History(30)
    at = NOW.timestamp() // 120 * 120
    odd = {"box_values": {"cpu_pct": [[1, 2, 3]] * 4}, "box_sums": {"power_ms": [1e308, 1e308, 5.0, 6000.0]}}
    for step_s in (1e308, 1e14, -5, "x", None, 120):
        history.load_span({"step_s": step_s, "at": [1e308, -1e300, "x", at], **odd})
    slot = slot_of(NOW, 30)
    assert history.rings["cpu_pct"].columns(slot, 4, 1) == [(1.0, 2.0)]
    assert all(math.isfinite(ms) for ms in history.throttle.totals(slot)[0].values())


def test_throttle_totals_cover_exactly_the_hour() -> None:
    history = History()
    for second in range(0, 7200, 10):
        history.add(BoxSample(box="b", at=NOW + timedelta(seconds=second), power_ms=1000.0))
        history.throttle.totals(slot_of(NOW + timedelta(seconds=second)))
    assert history.throttle.totals(slot_of(NOW + timedelta(seconds=7190)))[0]["P"] == pytest.approx(360_000.0)


def test_causes_of_several_gpus_are_not_added_up() -> None:
    """Two GPUs that throttle at the same time: the box throttled that long, not twice."""
    history = History()
    gpus = tuple(GpuSample(gpu_index=i, sw_power_ms=800.0 + i, throttle_source="counter") for i in range(2))
    history.add(BoxSample(box="b", at=NOW, gpus=gpus))
    assert history.throttle.totals(slot_of(NOW))[0]["P"] == 801.0


def test_seconds_from_a_mask_are_marked() -> None:
    """D10."""
    history = History()
    history.add(BoxSample(box="b", at=NOW, power_ms=900.0, gpus=(GpuSample(gpu_index=0, throttle_source="mask"),)))
    assert history.sampled_source


def test_no_counters_at_all_is_not_zero_seconds() -> None:
    history = History()
    history.add(BoxSample(box="b", at=NOW, gpus=(GpuSample(gpu_index=0, throttle_source="none"),)))
    assert not history.throttle_offered


def test_a_range_does_not_flap() -> None:
    """D24: it grows at once and shrinks only when the data fills little of it."""
    history = History()
    from flightdeck.model.metrics import BY_KEY

    metric = BY_KEY["net_rx"]
    assert history.range_of(metric, [(0.0, 4e6)]) == (0.0, 4e6)
    assert history.range_of(metric, [(0.0, 9e6)]) == (0.0, 1e7)
    assert history.range_of(metric, [(0.0, 6e6)]) == (0.0, 1e7)
    assert history.range_of(metric, [(0.0, 1e6)]) == (0.0, 1e6)


@pytest.mark.parametrize("kind", ["temp", "watts", "mhz", "ghz", "pct", "rate", "mem"])
@given(low=st.floats(0, 5000), more=st.floats(0, 5000))
def test_a_range_holds_its_data_and_is_never_empty(kind: str, low: float, more: float) -> None:
    bottom, top = find_range(kind, low, low + more)
    assert bottom < top
    if kind != "pct":
        assert bottom <= low and low + more <= top


@pytest.mark.parametrize("draw", [braille, ascii_line])
def test_charts_draw_gaps_for_none_nan_and_inf(draw: object) -> None:
    """D31: Sparkline dies on these."""
    columns = [None, (math.nan, math.nan), (math.inf, math.inf), (1.0, 2.0), (-math.inf, 3.0), (1e300, 1e300)]
    lines = draw(columns, (0.0, 10.0), 2)  # type: ignore[operator]
    assert [len(line) for line in lines] == [3, 3]
    assert lines[0][0] == " " and lines[1][0] == " "
    assert draw([], (0.0, 1.0), 2) == ["", ""]  # type: ignore[operator]
    assert draw([(1.0, 1.0)], (5.0, 5.0), 1) != [" "]  # type: ignore[operator]


def test_a_step_is_one_joined_line() -> None:
    assert braille([(0.0, 0.0), (0.0, 0.0), (10.0, 10.0), (10.0, 10.0)], (0.0, 10.0), 2) == [" ⡏", "⣀⠇"]


def test_a_wide_band_is_two_thin_lines() -> None:
    """A filled area hides the shape."""
    assert braille([(0.0, 10.0)] * 4, (0.0, 10.0), 2) == ["⠉⠉", "⣀⣀"]


def test_ascii_has_only_ascii() -> None:
    """--ascii."""
    lines = ascii_line([(float(i), float(i) + i % 4) for i in range(40)], (0.0, 45.0), 2)
    assert all(line.isascii() for line in lines)


def test_a_meter_never_hides_something_nor_invents_it() -> None:
    assert bar(None, 10) == 0
    assert bar(math.nan, 10) == 0
    assert bar(0.0, 10) == 0
    assert bar(0.01, 10) == 1
    assert bar(7.0, 10) == 10


@pytest.mark.parametrize("key", [metric.key for metric in METRICS])
@given(low=st.floats(0, 5000), more=st.floats(0, 5e6))
def test_the_printed_range_holds_what_is_drawn_in_it(key: str, low: float, more: float) -> None:
    """``MEM G 0-3`` stood beside 3.4."""
    metric = BY_KEY[key]
    high = low + (more if metric.kind in ("rate", "mem") else more / 1e3)
    if metric.kind == "pct":
        low, high = low / 100.0, min(100.0, high)
    text = range_text(metric, find_range(metric.kind, low, high))
    bottom, top = text.split("-")
    unit = {"ghz": 1e3, "mem": 1024.0, "rate": {"k": 1e3, "M": 1e6, "G": 1e9}.get(top[-1], 1.0)}.get(metric.kind, 1.0)
    assert float(bottom) * unit <= low and high <= float(top.rstrip("kMG")) * unit * 1.000001
    assert len(text) <= 9, "a cell is left between it and the line"
