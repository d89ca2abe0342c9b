"""Golden telemetry: what a made-up GPU's counters say, through the real probe, meter and roll-up, in seconds per cause.

The truth is a list of episodes (cause, from, until). What the recorder should have found is worked out here from the
episodes alone, as their overlap with the time that was recorded; nothing of the code under test takes part in that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.telemetry.probes.amd import AmdProbe
from engine.telemetry.rollup import by_minute, roll_up
from tests.telemetry import smi, trees
from tests.telemetry.golden import (
    BITS,
    BUSY,
    CADENCE,
    IDS_570,
    IDS_575,
    IDS_580,
    LONG,
    Episode,
    Hardware,
    Line,
    Nvidia,
    every,
    overlap,
)  # fmt: skip
from tests.telemetry.nvml import UNKNOWN, Refuse


def check(line: Line, episodes: Sequence[Episode], times: Sequence[float], *causes: str, rel: float = 0.01) -> None:
    for cause in causes or tuple(BITS):
        expected = overlap(episodes, cause, times[0], times[-1])
        assert line.seconds(cause) == pytest.approx(expected, rel=rel, abs=0.05), cause


@pytest.mark.parametrize(
    ("driver", "ids", "junk"),
    [
        ("580.95.05", IDS_580, {251: lambda now: 1, 252: lambda now: 0}),
        ("590.44.01", IDS_580, {251: lambda now: 1}),
        ("580.65.06", IDS_575, {269: lambda now: 1500 + int(now) % 7, 270: lambda now: 90}),
        ("575.57.08", IDS_575, {270: lambda now: int(now * 3e9)}),
    ],
)
def test_ids_are_renumbered_by_the_driver(tmp_path: Path, driver: str, ids: dict, junk: dict) -> None:
    """D10: the same numbers mean other things in the next release. Causes overlap and each has its own seconds."""
    times = every()
    line = Nvidia(tmp_path, Hardware(BUSY, base_s=173.0), driver, ids, junk=junk).record(times)
    check(line, BUSY, times)
    assert line.source() == "counter"
    box = [roll_up(samples) for samples in by_minute(line.samples).values()]
    power = sum(row.power_ms or 0.0 for row in box) / 1000
    assert power == pytest.approx(overlap(BUSY, "sw_power_ms", 0, LONG), rel=0.01)


def test_nanoseconds_are_taken_for_microseconds(tmp_path: Path) -> None:
    """D9: one unit, a thousand times apart from the next: 350 ms a look are neither 0.35 ms nor 350 s."""
    episodes = [("sw_power_ms", 10.0 + 2 * n, 10.35 + 2 * n) for n in range(200)]
    times = every(600)
    line = Nvidia(tmp_path, Hardware(episodes), "580.95.05", IDS_580).record(times)
    assert line.seconds("sw_power_ms") == pytest.approx(70.0, rel=0.01)
    assert line.samples[50].gpus[0].sw_power_ms == pytest.approx(350.0, abs=0.1)


def test_the_driver_is_reloaded_and_samples_are_missing(tmp_path: Path) -> None:
    """D11 and gaps: what a counter gained over a gap is exact; after a reset it counts from zero; nothing is negative."""
    gaps = [(210.0, 290.0), (900.0, 1000.0), (1300.0, 1310.0)]
    times = every(without=gaps)
    line = Nvidia(tmp_path, Hardware(BUSY, base_s=9000.0, resets=(600.001, 1400.001)), "580.95.05", IDS_580).record(
        times
    )
    check(line, BUSY, times)
    assert line.source() == "counter"


def test_a_counter_is_missing_for_a_while(tmp_path: Path) -> None:
    """D6, D10: fields that fail for some looks lose nothing, and the mask does not count their time once more."""
    times = every()
    bench = Nvidia(tmp_path, Hardware(BUSY), "580.95.05", IDS_580)
    line = Line()
    for at in times:
        fields = bench.nvml.nvmlDeviceGetFieldValues
        if int(at) % 50 < 10:
            bench.nvml.nvmlDeviceGetFieldValues = bench.nvml._reader("fields")
            bench.card.answers["fields"] = Refuse(UNKNOWN)
        line.add(at, bench.look(at).gpus)
        bench.nvml.nvmlDeviceGetFieldValues = fields
    check(line, BUSY, times)


def test_an_old_driver_lacks_some_counters(tmp_path: Path) -> None:
    """D10: three counters, the rest from the mask, sampled; said so."""
    times = every()
    line = Nvidia(tmp_path, Hardware(BUSY), "570.86.10", IDS_570).record(times)
    check(line, BUSY, times, "sw_power_ms", "sync_boost_ms", "sw_thermal_ms")
    check(line, BUSY, times, "hw_thermal_ms", "hw_brake_ms")
    assert line.source() == "mask"


@pytest.mark.parametrize(("base_s", "flags"), [(40.0, True), (0.0, True), (0.0, False)])
def test_an_old_driver_prints_what_it_does_not_count_by_number(tmp_path: Path, base_s: float, flags: bool) -> None:
    """The text has all five; what it adds is exact over the time between two texts, seldom while it stands at zero."""
    times = every()
    bench = Nvidia(tmp_path, Hardware(BUSY, base_s), "570.86.10", IDS_570, text=True, flags=flags)
    line = bench.record(times)
    check(line, BUSY, times)
    assert line.source() == "smi"
    assert isinstance(bench.probe._smi, smi.PromptSmi)
    at = [0.0, *(run for run in bench.probe._smi.runs if run < 480.0)]
    assert len(at) < (60 if base_s else 6), "a spawn per text costs: not with every look"


@pytest.mark.parametrize("base_s", [0.0, 173.453251])
def test_ids_move_once_more_and_the_text_knows_better(tmp_path: Path, base_s: float) -> None:
    """D10: a release of tomorrow: other things stand under the numbers of today. The text is believed."""
    ids = {"sw_power_ms": 74, "sync_boost_ms": 76}
    junk = {269: lambda now: 1, 270: lambda now: 100 + int(now), 271: lambda now: 0}
    times = every()
    bench = Nvidia(tmp_path, Hardware(BUSY, base_s), "640.10", ids, junk=junk, text=True)
    line = bench.record(times)
    check(line, BUSY, times)
    assert line.source() == "smi"


def test_ids_move_once_more_without_flags(tmp_path: Path) -> None:
    """GB10 throttles with all flags at rest. The next text finds the wrong ids, and what they left out is told then."""
    junk = {269: lambda now: 1, 270: lambda now: 0, 271: lambda now: 0}
    times = every()
    ids = {"sw_power_ms": 74, "sync_boost_ms": 76}
    bench = Nvidia(tmp_path, Hardware(BUSY), "640.10", ids, junk=junk, text=True, flags=False)
    line = bench.record(times)
    check(line, BUSY, times)
    assert line.source() == "smi"


def test_counters_that_are_right_are_checked_rarely(tmp_path: Path) -> None:
    """A text at the start, one after a minute, then one every five: and counters stay the source."""
    times = every()
    bench = Nvidia(tmp_path, Hardware(BUSY, base_s=60.0), "580.95.05", IDS_580, text=True)
    line = bench.record(times)
    check(line, BUSY, times)
    assert line.source() == "counter"
    assert isinstance(bench.probe._smi, smi.PromptSmi)
    assert bench.probe._smi.runs == [0.0, 60.0, 360.0, 660.0, 960.0, 1260.0, 1560.0]


def test_ids_move_once_more_and_nobody_prints(tmp_path: Path) -> None:
    """D10: without the program a counter that stands still under its own flag is given up; the mask counts, marked."""
    junk = {269: lambda now: 1, 270: lambda now: 0, 271: lambda now: 7}
    times = every()
    line = Nvidia(tmp_path, Hardware(BUSY), "640.10", {"sw_power_ms": 74, "sync_boost_ms": 76}, junk=junk).record(times)
    check(line, BUSY, times)
    assert line.source() == "mask"


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("ticks", [1e6, 1e12])
def test_the_unit_changes(tmp_path: Path, ticks: float, text: bool) -> None:
    """D9: microseconds where nanoseconds were, or finer ones: found by the text, else by the clock and the flags."""
    times = every()
    line = Nvidia(tmp_path, Hardware(BUSY, base_s=5.0), "580.95.05", IDS_580, ticks=ticks, text=text).record(times)
    check(line, BUSY, times)
    assert line.source() == ("smi" if text else "mask")


def test_the_driver_is_upgraded_while_it_is_recorded(tmp_path: Path) -> None:
    """D10, D11: other ids and counters from zero, under the same recorder."""
    hardware = Hardware(BUSY, base_s=3000.0, resets=(900.001,))
    bench = Nvidia(tmp_path, hardware, "575.57.08", IDS_575)
    times = every(without=[(900.0, 960.0)])
    line = Line()
    for at in times:
        if at == 960.0:
            bench.nvml.running, bench.nvml.driver, bench.ids = False, "590.44.01", IDS_580
        line.add(at, bench.look(at).gpus)
    unknown = next(at for at in times if at >= 960.0 + 30.0)  # NVML is tried again half a minute later
    for cause in BITS:
        expected = overlap(BUSY, cause, 0, 900) + overlap(BUSY, cause, unknown, LONG)
        assert line.seconds(cause) == pytest.approx(expected, rel=0.01), cause


def test_only_the_mask(tmp_path: Path) -> None:
    """No counter of any kind: sampled, and no more than two looks' time for a gap."""
    gaps = [(1000.0, 1100.0)]
    times = every(without=gaps)
    line = Nvidia(tmp_path, Hardware(BUSY), "470.256.02", {}).record(times)
    lost = {cause: max(0.0, overlap(BUSY, cause, 1000, 1100) - 2 * CADENCE) for cause in BITS}
    for cause in BITS:
        expected = overlap(BUSY, cause, 0, LONG) - lost[cause]
        assert line.seconds(cause) == pytest.approx(expected, rel=0.01), cause
    assert line.source() == "mask"


def test_nobody_can_tell(tmp_path: Path) -> None:
    """D5: null, not zero."""
    bench = Nvidia(tmp_path, Hardware(BUSY), "470.256.02", {})
    bench.card.answers["nvmlDeviceGetCurrentClocksEventReasons"] = Refuse(UNKNOWN)
    bench.hardware.mask = lambda now: Refuse(UNKNOWN)
    line = bench.record(every(120))
    assert line.source() == "none" and line.seconds("sw_power_ms") is None


def amd(root: Path, times: Sequence[float], table: Callable[[float], bytes]) -> Line:
    trees.amd_card(root)
    now = 0.0
    probe, line = AmdProbe(root, CADENCE, lambda: now), Line()
    path = root / "sys/class/drm/card0/device/gpu_metrics"
    for at in times:
        now = at
        path.write_bytes(table(at))
        line.add(at, probe.read().gpus)
    return line


def test_32_bits_wrap(tmp_path: Path) -> None:
    """Strix Halo counts microseconds in 32 bits: 71.6 minutes. Overlapping power counters are one cause."""
    near = 2**32 / 1e6 - 300.0
    hardware = Hardware(BUSY, base_s=near)
    times = every(without=[(1300.0, 1340.0)])

    def table(at: float) -> bytes:
        power, heat, brake = (
            int(hardware.seconds(cause, at) * 1e6) % 2**32 for cause in ("sw_power_ms", "sw_thermal_ms", "hw_brake_ms")
        )
        return trees.metrics_v3_0((brake, power, power // 2, 0, 0, heat, heat // 3))

    line = amd(tmp_path, times, table)
    check(line, BUSY, times, "sw_power_ms", "sw_thermal_ms", "hw_brake_ms", rel=0.0003)
    assert line.source() == "counter"


def test_residencies_against_a_cycle_counter_wrap_and_are_reset(tmp_path: Path) -> None:
    """MI300: shares of a counter whose rate nobody tells; both wrap at 32 bits; both restart with the driver."""
    per_s, reset = 977.0, 1200.001
    times = every(without=[(700.0, 760.0)])

    def table(at: float) -> bytes:
        since = reset if at >= reset else -(2**32 - 400_000) / per_s
        cycles = int((at - since) * per_s) % 2**32
        base = 0 if at >= reset else 2**32 - 100_000
        values = [
            (base + int(overlap(BUSY, cause, max(since, -1e9), at) * per_s)) % 2**32
            for cause in ("hw_brake_ms", "sw_power_ms", "sw_thermal_ms")
        ]
        return trees.metrics_v1_6(cycles, (*values, values[2] // 2, 0))

    line = amd(tmp_path, times, table)
    check(line, BUSY, times, "sw_power_ms", "sw_thermal_ms", "hw_brake_ms", rel=0.0005)
    assert line.source() == "counter"


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[Episode], list[float], list[float]]:
    """Episodes of every cause, times of the looks with gaps, resets right after a look."""
    episodes: list[Episode] = []
    for cause in BITS:
        edge = 0.0
        for _ in range(draw(st.integers(0, 3))):
            since = edge + draw(st.floats(0.5, 120))
            edge = since + draw(st.floats(5, 150))
            episodes.append((cause, since, edge))
    gaps = draw(st.lists(st.tuples(st.integers(5, 500), st.integers(3, 80)), max_size=3))
    times = every(700, [(float(since), float(since + length)) for since, length in gaps])
    resets = sorted({draw(st.sampled_from(times[:-1])) + 0.0001 for _ in range(draw(st.integers(0, 2)))})
    return episodes, times, resets


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(life=lives(), driver=st.sampled_from([("580.95.05", IDS_580), ("575.57.08", IDS_575)]), base=st.floats(0, 1e5))
def test_any_series_gives_the_seconds_that_the_hardware_was_throttled(
    tmp_path: Path,
    life: tuple[list[Episode], list[float], list[float]],
    driver: tuple[str, dict[str, int]],
    base: float,
) -> None:
    episodes, times, resets = life
    hardware = replace(Hardware(episodes, base), resets=resets)
    line = Nvidia(tmp_path, hardware, *driver).record(times)
    check(line, episodes, times)
