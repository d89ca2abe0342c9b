"""Intel's graphics cards, read from directory trees as i915 and xe lay them out."""

from __future__ import annotations

from pathlib import Path

from engine.telemetry.probes.gpu import GpuReading
from engine.telemetry.probes.intel import IntelProbe
from tests.telemetry import trees


class Bench:
    def __init__(self, root: Path) -> None:
        self.now = 0.0
        self.probe = IntelProbe(root, 2.0, lambda: self.now)

    def read(self, after_s: float = 2.0) -> GpuReading:
        self.now += after_s
        return self.probe.read()


def arc(root: Path, **changes: str | int) -> Path:
    """An Arc A770 under i915."""
    base = "sys/class/drm/card1"
    files: dict[str, str | int | bytes] = {
        "device/vendor": "0x8086",
        "device/device": "0x56a0",
        "device/hwmon/hwmon3/name": "i915",
        "device/hwmon/hwmon3/energy1_input": 1_000_000_000,
        "device/hwmon/hwmon3/power1_max": 190_000_000,
        "device/hwmon/hwmon3/fan1_input": 1210,
        "gt/gt0/rps_act_freq_mhz": 2400,
        "gt/gt0/rps_RP0_freq_mhz": 2400,
        "gt/gt0/throttle_reason_status": 0,
        "gt/gt0/throttle_reason_pl1": 0,
        "gt/gt0/throttle_reason_thermal": 0,
        "gt/gt0/throttle_reason_prochot": 0,
    }
    return trees.put(root, {f"{base}/{name}": value for name, value in (files | changes).items()})


def test_reasons_are_a_mask(tmp_path: Path) -> None:
    bench = Bench(arc(tmp_path))
    first = bench.read()
    gpu, facts = first.gpus[0], first.facts[0]
    assert (gpu.state, gpu.throttle_mask, gpu.throttle_source, gpu.brakes) == ("ok", 0, "mask", 0)
    assert (gpu.sm_mhz, gpu.fan_rpm, gpu.power_limit_w, gpu.power_w) == (2400.0, 1210.0, 190.0, None)
    assert (facts.vendor, facts.clock_max_mhz, facts.power_limit_w) == ("intel", 2400.0, 190.0)
    assert "perf" in first.absent[0]["util_pct"] and gpu.util_pct is None
    arc(tmp_path, **{
        "gt/gt0/throttle_reason_pl1": 1, "gt/gt0/throttle_reason_prochot": 1,
        "device/hwmon/hwmon3/energy1_input": 1_300_000_000,
    })  # fmt: skip
    gpu = bench.read().gpus[0]
    assert gpu.throttle_mask == 0x84 and gpu.brakes == 1 and gpu.power_w == 150.0
    assert (gpu.sw_power_ms, gpu.hw_brake_ms, gpu.sw_thermal_ms) == (2000.0, 2000.0, 0.0)


def test_the_older_name_of_the_reasons_and_those_of_xe(tmp_path: Path) -> None:
    old = arc(tmp_path / "old")
    for name in ("status", "pl1", "thermal", "prochot"):
        (old / f"sys/class/drm/card1/gt/gt0/throttle_reason_{name}").unlink()
    assert Bench(old).read().gpus[0].throttle_mask is None
    trees.put(old, {"sys/class/drm/card1/gt_throttle_reason_status_thermal": 1})
    assert Bench(old).read().gpus[0].throttle_mask == 0x20
    new = arc(tmp_path / "new", **{
        "device/hwmon/hwmon3/name": "xe", "device/hwmon/hwmon3/temp2_input": 61_000,
        "device/hwmon/hwmon3/temp3_input": 70_000, "device/tile0/gt0/freq0/act_freq": 2850,
        "device/tile0/gt0/freq0/throttle/reason_pl2": 1,
    })  # fmt: skip
    gpu = Bench(new).read().gpus[0]
    assert (gpu.throttle_mask, gpu.temp_c, gpu.mem_temp_c, gpu.sm_mhz) == (0x04, 61.0, 70.0, 2850.0)


def test_graphics_of_a_processor_are_no_card(tmp_path: Path) -> None:
    trees.put(
        tmp_path, {"sys/class/drm/card0/device/vendor": "0x8086", "sys/class/drm/card0/gt/gt0/rps_act_freq_mhz": 300}
    )
    assert Bench(tmp_path).read() == GpuReading()


def test_a_sleeping_card_is_left_alone_and_one_that_went_is_lost(tmp_path: Path) -> None:
    """D30, D1."""
    bench = Bench(arc(tmp_path, **{"device/power/runtime_status": "suspended"}))
    assert [(gpu.state, gpu.sm_mhz) for gpu in bench.read().gpus] == [("asleep", None)]
    arc(tmp_path, **{"device/power/runtime_status": "active"})
    assert bench.read().gpus[0].state == "ok"
    (tmp_path / "sys/class/drm/card1/device/vendor").unlink()
    reading = bench.read()
    assert reading.gpus[0].state == "lost" and reading.absent[0]["state"] == "gone from the bus"
