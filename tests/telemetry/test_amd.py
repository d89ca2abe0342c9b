"""AMD cards read from directory trees as amdgpu lays them out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engine.telemetry.probes.amd import AmdProbe
from engine.telemetry.probes.amd_metrics import CycleShare
from engine.telemetry.probes.gpu import GpuReading
from tests.telemetry import trees

HOTSPOT, EDGE, PPT0, PROCHOT_GFX = 1 << 36, 1 << 35, 1, 1 << 47


class Bench:
    def __init__(self, root: Path) -> None:
        self.now = 0.0
        self.probe = AmdProbe(root, 2.0, lambda: self.now)

    def read(self, after_s: float = 2.0) -> GpuReading:
        self.now += after_s
        return self.probe.read()


def test_a_card_by_names_and_units(tmp_path: Path) -> None:
    reading = Bench(trees.amd_card(tmp_path)).read()
    gpu, facts = reading.gpus[0], reading.facts[0]
    assert (gpu.state, gpu.gpu_uuid, gpu.util_pct) == ("ok", "amd-a1b2c3d4e5f60000", 37.0)
    assert (gpu.mem_used_mb, gpu.mem_total_mb) == (4096.0, 24560.0)
    assert (gpu.temp_c, gpu.mem_temp_c, gpu.power_w, gpu.power_limit_w) == (37.0, 52.0, 31.0, 303.0)
    assert (gpu.sm_mhz, gpu.fan_rpm, gpu.fan_pct, gpu.pcie_gen, gpu.pcie_width) == (500.0, 620.0, 20.0, 4, 16)
    assert (facts.name, facts.vendor, facts.unified, facts.mem_mb) == ("Radeon RX 7900", "amd", False, 24560.0)
    assert (facts.clock_max_mhz, facts.temp_slowdown_c) == (2482.0, 100.0)


@pytest.mark.parametrize(
    ("status", "junction", "mask"),
    [
        (HOTSPOT, 41_000, 0),  # always set on RDNA3 and RDNA4
        (HOTSPOT, 96_000, 0x20),
        (HOTSPOT | EDGE, 41_000, 0x20),
        (HOTSPOT | PPT0, 41_000, 0x24),
        (PPT0, 41_000, 0x04),
        (PROCHOT_GFX, 41_000, 0x80),
        (0, 41_000, 0),
        (0xFFFFFFFFFFFFFFFF, 41_000, None),  # not offered
    ],
)
def test_rdna3_says_throttled_at_37_degrees(tmp_path: Path, status: int, junction: int, mask: int | None) -> None:
    """D8: the hotspot bit alone counts only near the critical temperature, or with another bit."""
    trees.amd_card(tmp_path, gpu_metrics=trees.metrics_v1_3(status), **{"hwmon/hwmon4/temp2_input": junction})
    gpu = Bench(tmp_path).read().gpus[0]
    assert gpu.throttle_mask == mask
    assert gpu.throttle_source == ("none" if mask is None else "mask")


def test_strix_halo_counts_microseconds(tmp_path: Path) -> None:
    """The longest of the power counters is the power time; 32 bits wrap; there is no mask, so the counters give it."""
    near = 2**32 - 100_000
    trees.amd_card(tmp_path, gpu_metrics=trees.metrics_v3_0((0, near, 5, 5, 7, 7, 7)))
    bench = Bench(tmp_path)
    first = bench.read()
    assert first.gpus[0].sw_power_ms is None and first.facts[0].unified
    assert first.gpus[0].mem_total_mb == 24560 + 16000 and first.gpus[0].pcie_gen is None
    trees.amd_card(tmp_path, gpu_metrics=trees.metrics_v3_0((0, 900_000, 400_005, 5, 7, 300_007, 7)))
    gpu = bench.read().gpus[0]
    assert (gpu.sw_power_ms, gpu.sw_thermal_ms, gpu.hw_brake_ms) == (1000.0, 300.0, 0.0)
    assert (gpu.throttle_source, gpu.throttle_mask, gpu.brakes) == ("counter", 0x24, 0)


def test_an_older_table_of_strix_halo_has_no_counters(tmp_path: Path) -> None:
    """Gated on its size: what lies behind a shorter table is no counter."""
    trees.amd_card(tmp_path, gpu_metrics=trees.metrics_v3_0((), size=240))
    reading = Bench(tmp_path).read()
    assert reading.gpus[0].throttle_source == "none" and reading.gpus[0].throttle_mask is None
    assert reading.absent[0]["throttle_mask"]


def test_counters_in_another_unit_are_given_up(tmp_path: Path) -> None:
    bench = Bench(trees.amd_card(tmp_path, gpu_metrics=trees.metrics_v3_0((0,) * 7)))
    for n in range(8):
        trees.amd_card(tmp_path, gpu_metrics=trees.metrics_v3_0((n * 90_000_000,) * 7))
        gpu = bench.read().gpus[0]
        assert gpu.sw_power_ms is None
    assert gpu.throttle_source == "none"


def test_implausible_watts_and_failed_readers_are_gaps(tmp_path: Path) -> None:
    """D6, D7."""
    trees.amd_card(
        tmp_path, gpu_busy_percent="", mem_info_vram_used="",
        **{"hwmon/hwmon4/power1_average": 900_000_000, "hwmon/hwmon4/temp1_input": 0, "hwmon/hwmon4/fan1_input": ""},
    )  # fmt: skip
    gpu = Bench(tmp_path).read().gpus[0]
    assert (gpu.util_pct, gpu.mem_used_mb, gpu.power_w, gpu.temp_c, gpu.fan_rpm) == (None,) * 5


def test_a_sleeping_card_is_not_read(tmp_path: Path) -> None:
    """D30."""
    trees.amd_card(tmp_path, **{"power/runtime_status": "suspended"})
    reading = Bench(tmp_path).read()
    assert [(gpu.state, gpu.temp_c) for gpu in reading.gpus] == [("asleep", None)]


def test_a_card_that_vanishes_is_lost_and_returns(tmp_path: Path) -> None:
    """D1."""
    trees.amd_card(tmp_path, 0)
    trees.amd_card(tmp_path, 1)
    bench = Bench(tmp_path)
    assert [gpu.state for gpu in bench.read().gpus] == ["ok", "ok"]
    shutil.rmtree(tmp_path / "sys/class/drm/card0")
    assert [(gpu.gpu_index, gpu.state) for gpu in bench.read().gpus] == [(0, "lost"), (1, "ok")]
    trees.amd_card(tmp_path, 0)
    assert [gpu.state for gpu in bench.read().gpus] == ["ok", "ok"]


def test_connectors_and_other_vendors_are_no_cards(tmp_path: Path) -> None:
    trees.amd_card(tmp_path)
    trees.put(tmp_path, {"sys/class/drm/card0-DP-1/status": "connected", "sys/class/drm/card2/device/vendor": "0x8086"})
    assert len(Bench(tmp_path).read().gpus) == 1


def test_a_card_of_eight_dies_counts_cycles(tmp_path: Path) -> None:
    """MI300 (table 1.6): the share of its own cycles that a throttler held, of the time between two looks."""
    trees.amd_card(tmp_path, gpu_metrics=trees.metrics_v1_6(1_000_000, (0, 5, 5, 0, 0)))
    bench = Bench(tmp_path)
    first = bench.read()
    assert not first.facts[0].unified and first.gpus[0].throttle_source == "counter"
    trees.amd_card(tmp_path, gpu_metrics=trees.metrics_v1_6(1_002_000, (0, 1505, 405, 905, 0)))
    gpu = bench.read().gpus[0]
    assert (gpu.sw_power_ms, gpu.sw_thermal_ms, gpu.hw_brake_ms) == (1500.0, 905.0, 0.0)
    assert gpu.throttle_mask == 0x24 and gpu.throttle_source == "counter"
    trees.amd_card(tmp_path, gpu_metrics=trees.metrics_v1_6(1_002_000, (0, 1505, 405, 905, 0)))
    assert bench.read().gpus[0].sw_power_ms == 0.0, "nothing was added since"
    trees.amd_card(tmp_path, gpu_metrics=trees.metrics_v1_6(1_006_000, (0, 3505, 405, 905, 0)))
    assert bench.read().gpus[0].sw_power_ms == 2000.0, "half of four thousand cycles, which took two looks"


def test_cycles_wrap_and_restart() -> None:
    """A fall that goes on at the known rate is a wrap; any other is a restart, which counts since then."""
    share = CycleShare()
    near = 2**32 - 1000
    series = (
        (-2.0, near - 2000, near - 7, 0),
        (0.0, near, near - 7, 0),
        (2.0, (near + 2000) % 2**32, (near - 7 + 1500) % 2**32, 1_500_000),  # both wrap, 1000 cycles a second
        (4.0, 3000, 993, 2_000_000),
        (6.0, 1200, 300, 2_300_000),  # restarted 1.2 s ago, of which 0.3 were throttled
        (8.0, 3200, 300, 2_300_000),
    )
    for now, cycles, throttled, expected in series:
        assert share.feed(now, cycles, throttled) == pytest.approx(expected, abs=2)
    assert share.feed(10.0, None, 5) is None
    first = CycleShare()
    assert [first.feed(0.0, 500, 5), first.feed(2.0, 100, 50)] == [0, 1_000_000], (
        "no rate is known yet: half of the gap"
    )


def test_more_throttled_cycles_than_cycles_are_a_gap(tmp_path: Path) -> None:
    trees.amd_card(tmp_path, gpu_metrics=trees.metrics_v1_6(1_000, (0, 0, 0, 0, 0), 8))
    bench = Bench(tmp_path)
    bench.read()
    trees.amd_card(tmp_path, gpu_metrics=trees.metrics_v1_6(3_000, (0, 90_000, 1_000, 0, 0), 8))
    gpu = bench.read().gpus[0]
    assert gpu.sw_power_ms is None and gpu.sw_thermal_ms == 1000.0


@pytest.mark.parametrize(
    "table",
    [
        b"",
        b"\x01",
        trees.metrics_v1_3(1)[:60],  # shorter than it says
        trees.metrics_v1_6(5, (1, 1, 1, 1, 1), content=9),  # laid out in another way
        trees.metrics_v1_6(0xFFFFFFFF, (0xFFFFFFFF,) * 5),
    ],
)
def test_tables_that_say_nothing(tmp_path: Path, table: bytes) -> None:
    trees.amd_card(tmp_path, gpu_metrics=table)
    bench = Bench(tmp_path)
    for _ in range(3):
        reading = bench.read()
        assert reading.gpus[0].throttle_source == "none" and reading.gpus[0].sw_power_ms is None
    assert reading.absent[0]["throttle_mask"]


def test_strix_halo_says_whether_its_unit_was_seen(tmp_path: Path) -> None:
    """The kernel does not name the unit: assumed, until a counter ran at the clock's own rate."""
    trees.amd_card(tmp_path, gpu_metrics=trees.metrics_v3_0((0,) * 7))
    bench = Bench(tmp_path)
    assert bench.read().extra[0]["throttle_unit"] == "us, assumed"
    for total, unit in ((500_000, "assumed"), (2_490_000, "seen at full rate"), (2_490_000, "seen at full rate")):
        trees.amd_card(tmp_path, gpu_metrics=trees.metrics_v3_0((0, total, 0, 0, 0, 0, 0)))
        assert bench.read().extra[0]["throttle_unit"] == f"us, {unit}"


def test_power_and_fan_from_what_else_there_is(tmp_path: Path) -> None:
    """Without an average of hwmon the table's own power; without a duty cycle the share of the fastest."""
    base = "sys/class/drm/card0/device/hwmon/hwmon4"
    trees.amd_card(tmp_path, gpu_metrics=trees.metrics_v1_6(5, (0,) * 5), **{"hwmon/hwmon4/power1_cap": 750_000_000})
    for name in ("power1_average", "pwm1"):
        (tmp_path / base / name).unlink()
    trees.put(tmp_path, {f"{base}/fan1_max": 3100})
    reading = Bench(tmp_path).read()
    assert (reading.gpus[0].power_w, reading.gpus[0].fan_pct) == (512.0, 20.0)
    assert reading.extra[0]["hotspot_c"] == 41.0
    (tmp_path / base / "fan1_input").unlink()
    reading = Bench(tmp_path).read()
    assert reading.gpus[0].fan_pct is None and reading.absent[0]["fan_rpm"] == "no fan tach"
