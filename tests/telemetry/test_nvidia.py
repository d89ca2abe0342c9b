"""NVIDIA cards through a module that answers like NVML on real drivers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from engine.telemetry.probes.gpu import GpuReading
from engine.telemetry.probes.nvidia import NvidiaProbe
from engine.telemetry.probes.nvml_card import bus_id, counter_fields, driver_tuple
from engine.telemetry.probes.source import RealSource
from tests.telemetry import trees
from tests.telemetry.nvml import MIB, NOT_SUPPORTED, UNKNOWN, Card, FakeNvml, Refuse, gb10, ordinary

NS = 1_000_000  # of a millisecond


class Bench:
    """A probe over a fake driver, with a clock that moves 2 s per reading."""

    def __init__(self, root: Path, nvml: FakeNvml | None) -> None:
        self.root, self.nvml, self.now = root, nvml, 1000.0
        trees.put(
            root,
            {
                "proc/driver/nvidia/version": "NVRM",
                "proc/meminfo": trees.MEMINFO.format(total=121 * 1024 * 1024, available=64 * 1024 * 1024),
            },
        )
        self.probe = NvidiaProbe(root, 2.0, lambda: self.nvml, lambda: self.now)

    def read(self, after_s: float = 2.0) -> GpuReading:
        self.now += after_s
        return self.probe.read()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def test_an_ordinary_card_by_names_and_units(root: Path) -> None:
    card = ordinary()
    reading = Bench(root, FakeNvml(card)).read()
    gpu = reading.gpus[0]
    assert (gpu.gpu_index, gpu.gpu_uuid, gpu.state) == (0, "GPU-1", "ok")
    assert (gpu.util_pct, gpu.mem_used_mb, gpu.mem_total_mb) == (96.0, 8192.0, 24576.0)
    assert (gpu.temp_c, gpu.mem_temp_c) == (71.0, 84.0)
    assert (gpu.power_w, gpu.power_inst_w, gpu.power_limit_w) == (401.5, 412.0, 450.0)
    assert (gpu.sm_mhz, gpu.fan_pct, gpu.fan_rpm) == (2520.0, 54.0, 1890.0)
    assert (gpu.pcie_gen, gpu.pcie_width, gpu.pstate) == (4, 16, 2)
    assert (gpu.throttle_mask, gpu.throttle_source, gpu.brakes) == (0, "counter", 0)
    assert gpu.ecc_uncorrected is None and "not offered" in reading.absent[0]["ecc_uncorrected"]
    facts = reading.facts[0]
    assert (facts.name, facts.vendor, facts.mem_mb, facts.unified) == ("NVIDIA RTX 4090", "nvidia", 24576.0, False)
    assert (facts.power_limit_w, facts.temp_slowdown_c, facts.temp_shutdown_c, facts.clock_max_mhz) == (
        450.0,
        92,
        95,
        3105,
    )
    assert reading.driver == "580.95.05"


def test_what_is_not_supported_is_asked_once_and_what_failed_again(root: Path) -> None:
    card = ordinary()
    card.answers["nvmlDeviceGetUtilizationRates"] = Refuse(NOT_SUPPORTED)
    card.answers["nvmlDeviceGetTemperature"] = Refuse(UNKNOWN)
    bench = Bench(root, FakeNvml(card))
    for _ in range(4):
        reading = bench.read()
        assert reading.gpus[0].util_pct is None and reading.gpus[0].temp_c is None
        assert set(reading.absent[0]) >= {"util_pct", "temp_c"}
    assert card.calls.count("nvmlDeviceGetUtilizationRates") == 1
    assert card.calls.count("nvmlDeviceGetTemperature") == 4
    card.answers["nvmlDeviceGetTemperature"] = 66
    assert bench.read().gpus[0].temp_c == 66.0


def test_a_failed_reader_publishes_zero_watts(root: Path) -> None:
    """D6: 0 W, 0 C and 0 MHz of a driver that does not know are gaps."""
    card = ordinary(fields={82: 0, 186: 0})
    card.answers |= {
        "nvmlDeviceGetPowerUsage": 0, "nvmlDeviceGetTemperature": 0, "nvmlDeviceGetClockInfo": {1: 0},
    }  # fmt: skip
    gpu = Bench(root, FakeNvml(card)).read().gpus[0]
    assert (gpu.power_w, gpu.power_inst_w, gpu.temp_c, gpu.mem_temp_c, gpu.sm_mhz) == (None,) * 5
    assert gpu.state == "ok"


@pytest.mark.parametrize("limit", [80_000, Refuse(NOT_SUPPORTED)])
def test_593_watts_idle(root: Path, limit: Any) -> None:
    """D7: a laptop's card says 593 W with nothing to do, with or without a limit to hold it against."""
    card = ordinary(name="NVIDIA GeForce RTX 4060 Laptop GPU")
    card.answers |= {"nvmlDeviceGetPowerUsage": 593_000, "nvmlDeviceGetEnforcedPowerLimit": limit}
    bench = Bench(root, FakeNvml(card))
    assert bench.read().gpus[0].power_w is None
    card.answers["nvmlDeviceGetPowerUsage"] = 18_200
    assert bench.read().gpus[0].power_w == 18.2


def test_unified_memory_shows_no_vram(root: Path) -> None:
    """D4: GB10: the system's memory, no PCIe Gen1 x1, no fan, no limit; each with its reason."""
    reading = Bench(root, FakeNvml(gb10())).read()
    gpu, why = reading.gpus[0], reading.absent[0]
    assert reading.facts[0].unified and reading.facts[0].mem_mb == 121 * 1024
    assert (gpu.mem_used_mb, gpu.mem_total_mb) == (57 * 1024, 121 * 1024)
    assert (gpu.pcie_gen, gpu.pcie_width, gpu.fan_pct, gpu.power_limit_w, gpu.mem_temp_c) == (None,) * 5
    assert gpu.power_w == 67.0 and gpu.temp_c == 71.0
    assert why["pcie_gen"] == "not on PCIe" and "not offered" in why["fan_pct"] and "mem_used_mb" not in why


def test_memory_of_a_plain_card_that_refuses_is_unknown_not_unified(root: Path) -> None:
    card = ordinary(answers={"nvmlDeviceGetMemoryInfo": Refuse(NOT_SUPPORTED)})
    reading = Bench(root, FakeNvml(card)).read()
    assert reading.gpus[0].mem_total_mb is None and not reading.facts[0].unified


def test_system_totals_reported_as_vram_are_unified(root: Path) -> None:
    memory = SimpleNamespace(used=57 * 1024 * MIB, total=121 * 1024 * MIB)
    card = ordinary(answers={"nvmlDeviceGetMemoryInfo": memory, "nvmlDeviceGetAddressingMode": 2})
    assert Bench(root, FakeNvml(card)).read().facts[0].unified


def test_one_gpu_drops_off_the_bus(root: Path) -> None:
    """D1: that one is lost, the others go on; it keeps its index by uuid though NVML renumbers; it comes back."""
    first, second = ordinary("GPU-a"), ordinary("GPU-b", bus="00000000:02:00.0")
    nvml = FakeNvml(first, second)
    bench = Bench(root, nvml)
    assert [gpu.state for gpu in bench.read().gpus] == ["ok", "ok"]
    first.lost = True
    reading = bench.read()
    assert [(gpu.gpu_index, gpu.gpu_uuid, gpu.state, gpu.temp_c) for gpu in reading.gpus] == [
        (0, "GPU-a", "lost", None), (1, "GPU-b", "ok", 71.0),
    ]  # fmt: skip
    assert reading.absent[0]["state"]
    assert len(reading.facts) == 2, "what the box has does not change with what it lost"
    nvml.cards = [second]  # now the driver does not even list it
    for _ in range(40):
        states = [(gpu.gpu_index, gpu.gpu_uuid, gpu.state) for gpu in bench.read().gpus]
        assert states == [(0, "GPU-a", "lost"), (1, "GPU-b", "ok")]
    first.lost = False
    nvml.cards = [second, first]
    for _ in range(40):
        if bench.read().gpus[0].state == "ok":
            break
    assert [(gpu.gpu_index, gpu.gpu_uuid, gpu.state) for gpu in bench.read().gpus] == [
        (0, "GPU-a", "ok"), (1, "GPU-b", "ok"),
    ]  # fmt: skip


def test_a_card_on_which_every_call_fails_is_in_error(root: Path) -> None:
    card = ordinary()
    bench = Bench(root, FakeNvml(card))
    bench.read()
    card.answers = dict.fromkeys(card.answers, Refuse(UNKNOWN))
    card.fields = dict.fromkeys(card.fields, None)
    bench.nvml.nvmlDeviceGetFieldValues = bench.nvml._reader("nvmlDeviceGetUtilizationRates")  # type: ignore[union-attr]
    gpu = bench.read().gpus[0]
    assert gpu.state == "error" and gpu.util_pct is None


def test_a_card_that_offers_nothing_is_no_error(root: Path) -> None:
    """Jetson lists its GPU in NVML and supports none of it."""
    card = ordinary(name="Orin (nvgpu)")
    card.answers = dict.fromkeys(card.answers, Refuse(NOT_SUPPORTED))
    card.fields = {}
    bench = Bench(root, FakeNvml(card))
    for _ in range(8):
        gpu = bench.read().gpus[0]
        assert gpu.state == "ok" and gpu.util_pct is None and gpu.throttle_source == "none"
    assert gpu.mem_total_mb == 121 * 1024


def test_a_driver_that_is_upgraded_under_it_comes_back(root: Path) -> None:
    card = ordinary()
    nvml = FakeNvml(card)
    bench = Bench(root, nvml)
    bench.read()
    nvml.running = False  # as after rmmod: every call says uninitialized
    nvml.start_error = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    reading = bench.read()
    assert [gpu.state for gpu in reading.gpus] == ["error"] and reading.absent[0]["state"]
    assert [gpu.state for gpu in bench.read(60).gpus] == ["error"]
    nvml.start_error = None
    assert [gpu.state for gpu in bench.read(60).gpus] == ["ok"]


@pytest.mark.parametrize("nvml", [None, FakeNvml()])
def test_no_bindings_or_no_card_is_fine(root: Path, nvml: FakeNvml | None) -> None:
    reading = Bench(root, nvml).read()
    assert reading.gpus == () and reading.facts == ()


def test_without_a_driver_the_bindings_are_not_even_loaded(tmp_path: Path) -> None:
    probe = NvidiaProbe(tmp_path, 2.0, lambda: pytest.fail("loaded"))
    assert probe.read() == GpuReading()


def test_monitoring_wakes_a_sleeping_gpu(root: Path) -> None:
    """D30: a runtime-suspended card is not touched; one that is awake beside it is read; it is read when it wakes."""
    awake, asleep = ordinary("GPU-a"), ordinary("GPU-b", bus="00000000:02:00.0")
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        trees.put(root, {f"sys/bus/pci/devices/{bus}/vendor": "0x10de", f"sys/bus/pci/devices/{bus}/class": "0x030000"})
    status = "sys/bus/pci/devices/0000:02:00.0/power/runtime_status"
    trees.put(root, {status: "suspended"})
    bench = Bench(root, FakeNvml(awake, asleep))
    for _ in range(20):
        assert [gpu.state for gpu in bench.read().gpus] == ["ok"]
    assert asleep.calls == []
    trees.put(root, {status: "active"})
    assert [gpu.state for gpu in bench.read(31).gpus] == ["ok", "ok"]
    trees.put(root, {status: "suspended"})
    asleep.calls.clear()
    for _ in range(20):
        gpu = bench.read().gpus[1]
        assert (gpu.gpu_uuid, gpu.state, gpu.temp_c) == ("GPU-b", "asleep", None)
    assert asleep.calls == []


def test_nvml_is_not_started_while_all_cards_sleep(root: Path) -> None:
    """D30: starting NVML alone would wake them."""
    device = "sys/bus/pci/devices/0000:01:00.0"
    trees.put(
        root,
        {f"{device}/vendor": "0x10de", f"{device}/class": "0x030200", f"{device}/power/runtime_status": "suspended"},
    )
    nvml = FakeNvml(ordinary())
    bench = Bench(root, nvml)
    assert [gpu.state for gpu in bench.read().gpus] == ["asleep"] and nvml.starts == 0
    trees.put(root, {f"{device}/power/runtime_status": "active"})
    reading = bench.read(31)
    assert [(gpu.gpu_index, gpu.gpu_uuid, gpu.state) for gpu in reading.gpus] == [(0, "GPU-1", "ok")]


def test_the_driver_is_reloaded_under_the_counters(root: Path) -> None:
    """D11 through the probe: no negative seconds, and nothing that was not throttled."""
    card = ordinary(fields={74: 90_000 * NS, 269: 500 * NS})
    bench = Bench(root, FakeNvml(card))
    assert bench.read().gpus[0].sw_power_ms is None
    card.fields |= {74: 91_500 * NS, 269: 700 * NS}
    gpu = bench.read().gpus[0]
    assert (gpu.sw_power_ms, gpu.sw_thermal_ms, gpu.hw_thermal_ms, gpu.throttle_source) == (
        1500.0,
        200.0,
        0.0,
        "counter",
    )
    card.fields |= {74: 300 * NS, 269: 0}
    gpu = bench.read().gpus[0]
    assert (gpu.sw_power_ms, gpu.sw_thermal_ms) == (300.0, 0.0)


@pytest.mark.parametrize(
    ("driver", "thermal"),
    [
        ("580.95.05", 269),
        ("580.82.07", 269),
        ("590.44.01", 269),
        ("580.65.06", 251),
        ("575.51.03", 251),
        ("570.86", 75),
        ("", 75),
    ],
)
def test_counter_ids_follow_the_driver_not_the_bindings(driver: str, thermal: int) -> None:
    """D10: the same number means another thing a release later."""
    assert counter_fields(driver_tuple(driver))["sw_thermal_ms"] == thermal


def test_an_old_driver_has_counters_for_some_causes_only(root: Path) -> None:
    """D10: the rest comes from the mask, and the row says that it was sampled."""
    card = ordinary(fields=dict.fromkeys((269, 270, 271), None))
    bench = Bench(root, FakeNvml(card, driver="550.54.14"))
    bench.read()
    card.answers["nvmlDeviceGetCurrentClocksEventReasons"] = 0x44
    card.fields |= {74: 1200 * NS}
    gpu = bench.read().gpus[0]
    assert (gpu.sw_power_ms, gpu.hw_thermal_ms, gpu.throttle_source) == (1200.0, 2000.0, "mask")
    assert gpu.brakes == 1


def test_the_mask_under_its_old_name(root: Path) -> None:
    card = ordinary()
    nvml = FakeNvml(card)
    del nvml.nvmlDeviceGetCurrentClocksEventReasons
    card.answers["nvmlDeviceGetCurrentClocksThrottleReasons"] = 0x20
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = nvml._reader("nvmlDeviceGetCurrentClocksThrottleReasons")
    reading = Bench(root, nvml).read()
    assert reading.gpus[0].throttle_mask == 0x20 and "throttle_mask" not in reading.absent.get(0, {})


def test_bus_ids_as_sysfs_writes_them() -> None:
    assert bus_id("00000000:01:00.0") == "0000:01:00.0"
    assert bus_id("0000000F:01:00.0") == "000f:01:00.0"


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_driver_that_hangs_costs_its_own_values_only(root: Path, hang: threading.Event) -> None:
    """A sick driver never answers: its cards are in error, the box goes on, and closing does not hang."""
    trees.host(root)
    nvml = FakeNvml(ordinary())
    trees.put(root, {"proc/driver/nvidia/version": "NVRM"})
    source = RealSource("box", root=root, load=lambda: nvml, deadline_s=0.2)
    try:
        assert [gpu.state for gpu in source.sample(2.0).gpus] == ["ok"]
        nvml.hang = hang
        sample = source.sample(2.0)
        assert [(gpu.gpu_uuid, gpu.state, gpu.power_w) for gpu in sample.gpus] == [("GPU-1", "error", None)]
        assert sample.cpu_temp_c == 62.0 and sample.mem_used_mb == 8192.0
        assert (sample.sensors or {})["gpu_absent"]["0"]["state"] == "nvidia: no answer in time"
        assert "nvidia" in (source.problem or "")
        assert source.sample(2.0).gpus[0].state == "error"
    finally:
        source.close()


def test_cards_of_two_vendors_share_one_numbering(root: Path) -> None:
    trees.host(root)
    trees.amd_card(root)
    trees.put(root, {"proc/driver/nvidia/version": "NVRM"})
    source = RealSource(
        "box", root=root, load=lambda: FakeNvml(ordinary("GPU-a"), ordinary("GPU-b", bus="00000000:02:00.0"))
    )
    try:
        sample, facts = source.sample(2.0), source.facts()
    finally:
        source.close()
    assert [gpu.gpu_index for gpu in sample.gpus] == [0, 1, 2]
    assert [(gpu.index, gpu.vendor) for gpu in facts.gpus] == [(0, "nvidia"), (1, "nvidia"), (2, "amd")]
    assert sample.gpus[2].gpu_uuid == "amd-a1b2c3d4e5f60000"
    assert sample.throttle_index == 0.0 and sample.brakes == 0
    assert isinstance(ordinary(), Card)
