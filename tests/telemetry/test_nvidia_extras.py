"""What NVIDIA cards say besides their columns, and answers that moved or are no more."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from engine.telemetry.probes.gpu import GpuReading
from engine.telemetry.probes.nvidia import NvidiaProbe
from engine.telemetry.probes.nvml_extras import PROCESSES, process_name
from engine.telemetry.probes.nvml_fields import from_margin
from engine.telemetry.probes.source import RealSource
from tests.telemetry import trees
from tests.telemetry.nvml import MIB, NOT_SUPPORTED, UNKNOWN, Card, FakeNvml, Refuse, gb10, ordinary

DEPRECATED = 26  # NVML_ERROR_DEPRECATED
RESET_REQUIRED = pynvml.NVML_ERROR_RESET_REQUIRED
NO_FUNCTION = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND


class Bench:
    def __init__(self, root: Path, *cards: Card, driver: str = "580.95.05") -> None:
        self.root, self.nvml, self.now = root, FakeNvml(*cards, driver=driver), 1000.0
        meminfo = trees.MEMINFO.format(total=64 * 1024 * 1024, available=32 * 1024 * 1024)
        trees.put(root, {"proc/driver/nvidia/version": "NVRM", "proc/meminfo": meminfo})
        self.probe = NvidiaProbe(root, 2.0, lambda: self.nvml, lambda: self.now)

    def read(self, after_s: float = 2.0) -> GpuReading:
        self.now += after_s
        return self.probe.read()


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({230: 0}, "ok"),
        ({144: 0, 145: 0, 31: 0}, "ok"),
        ({230: 1}, "action: reset the GPU"),
        ({230: 6, 144: 1}, "action: reset the bus"),
        ({230: 99}, "action: code 99"),
        ({145: 1, 230: 0}, "action: a memory row could not be replaced"),
        ({144: 1, 145: 0}, "pending: reset to retire memory"),
        ({31: 1}, "pending: reset to retire memory"),
    ],
)
def test_health_is_one_phrase(tmp_path: Path, fields: dict[int, int], word: str) -> None:
    assert Bench(tmp_path, ordinary(fields=fields)).read().extra[0]["health"] == word


def test_health_by_the_older_call_and_none_at_all(tmp_path: Path) -> None:
    card = ordinary()
    card.answers["nvmlDeviceGetRemappedRows"] = (0, 2, 1, 0)
    assert Bench(tmp_path, card).read().extra[0]["health"] == "pending: reset to retire memory"
    reading = Bench(tmp_path, ordinary()).read()
    assert "health" not in reading.extra.get(0, {}) and "no ECC" in reading.absent[0]["health"]


def test_traffic_on_the_bus_is_a_rate_of_its_counters(tmp_path: Path) -> None:
    """Not the call that stands still for 20 ms; a counter that wrapped is no rate, least of all a negative one."""
    card = ordinary(fields={94: 3, 197: 10**12, 198: 5 * 10**12})
    bench = Bench(tmp_path, card)
    first = bench.read()
    assert first.extra[0]["pcie_replays"] == 3 and "pcie_tx_bps" not in first.extra[0]
    card.fields |= {197: 10**12 + 5 * 10**9, 198: 7}
    for _ in range(5):
        reading = bench.read()
    assert reading.extra[0]["pcie_tx_bps"] == 5e8 and "pcie_rx_bps" not in reading.extra[0]
    assert "nvmlDeviceGetPcieThroughput" not in card.calls


def test_power_by_scope(tmp_path: Path) -> None:
    card = ordinary(fields={(186, 1): 900_000, (186, 2): 61_500})
    extra = Bench(tmp_path, card).read().extra[0]
    assert (extra["module_w"], extra["memory_w"]) == (900.0, 61.5)


def test_slices_have_memory_and_the_card_no_use(tmp_path: Path) -> None:
    """MIG: use is n/a with the reason, memory is told per instance; empty places are none."""
    card = ordinary()
    card.answers |= {
        "nvmlDeviceGetMigMode": (1, 1), "nvmlDeviceGetMaxMigDeviceCount": 7,
        "nvmlDeviceGetUtilizationRates": Refuse(NOT_SUPPORTED),
    }  # fmt: skip
    part = ordinary("MIG-1")
    part.answers["nvmlDeviceGetMemoryInfo"] = SimpleNamespace(used=2048 * MIB, total=10240 * MIB)
    card.slices = [part]
    reading = Bench(tmp_path, card).read()
    assert reading.extra[0]["mig"] == [{"uuid": "MIG-1", "used_mb": 2048, "total_mb": 10240}]
    assert reading.gpus[0].util_pct is None and "MIG" in reading.absent[0]["util_pct"]


def test_processes_with_most_memory_first(tmp_path: Path) -> None:
    """Once each though both lists name them; memory null where the driver does not tell whose it is."""
    card = ordinary()

    def rows(*found: tuple[int, int | None]) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=None if mb is None else mb * MIB) for pid, mb in found]

    card.answers["nvmlDeviceGetComputeRunningProcesses"] = rows((7, 512), (8, 9000), *((n, 1) for n in range(100, 120)))
    card.answers["nvmlDeviceGetGraphicsRunningProcesses"] = rows((8, 9000), (9, None))
    trees.put(tmp_path, {"proc/7/comm": "ollama", "proc/8/comm": "python3.11"})
    trees.put(tmp_path, {"proc/8/cmdline": b"python3.11\0-u\0/srv/train.py\0--token\0secret\0"})
    found = Bench(tmp_path, card).read().processes
    assert found is not None and len(found) == PROCESSES
    assert found[0] == {"pid": 8, "name": "python3.11 train.py", "mem_mb": 9000, "gpu_index": 0}
    assert found[1] == {"pid": 7, "name": "ollama", "mem_mb": 512, "gpu_index": 0}
    assert found[2]["name"] is None, "it has ended meanwhile"
    card.answers["nvmlDeviceGetComputeRunningProcesses"] = Refuse(NOT_SUPPORTED)
    left = Bench(tmp_path, card).read().processes
    assert left is not None and [row["mem_mb"] for row in left] == [9000, None]


@pytest.mark.parametrize(
    ("cmdline", "name"),
    [
        (b"python3\0-m\0vllm.entrypoints\0--api-key\0s\0", "python3 -m vllm.entrypoints"),
        (b"python3\0-c\0import secret\0", "python3"),
        (b"python3\0-\0", "python3"),
        (b"", "python3"),
    ],
)
def test_arguments_of_a_process_are_not_recorded(tmp_path: Path, cmdline: bytes, name: str) -> None:
    trees.put(tmp_path, {"proc/5/comm": "python3", "proc/5/cmdline": cmdline})
    assert process_name(tmp_path, 5) == name


def test_calls_that_were_replaced(tmp_path: Path) -> None:
    """Deprecated and removed answers are asked for once; what replaced them is read; fans tell by a structure."""
    card = ordinary(fields={185: 88_000, 190: 300_000, 193: -5, 194: -2})
    card.answers |= {
        "nvmlDeviceGetTemperature": Refuse(NO_FUNCTION),
        "nvmlDeviceGetTemperatureV": 64,
        "nvmlDeviceGetPowerUsage": Refuse(DEPRECATED),
        "nvmlDeviceGetEnforcedPowerLimit": Refuse(NOT_SUPPORTED),
        "nvmlDeviceGetTemperatureThreshold": Refuse(NOT_SUPPORTED),
        "nvmlDeviceGetMarginTemperature": 24,
        "nvmlDeviceGetFanSpeedRPM": SimpleNamespace(speed=2100),
    }
    bench = Bench(tmp_path, card)
    bench.nvml.nvmlDeviceGetTemperatureV = bench.nvml._reader("nvmlDeviceGetTemperatureV")  # type: ignore[attr-defined]
    for _ in range(3):
        reading = bench.read()
    gpu, facts = reading.gpus[0], reading.facts[0]
    assert (gpu.temp_c, gpu.power_w, gpu.power_limit_w, gpu.fan_rpm) == (64.0, 88.0, 300.0, 2100.0)
    assert (facts.temp_slowdown_c, facts.temp_shutdown_c, facts.power_limit_w) == (90.0, 93.0, 300.0)
    assert card.calls.count("nvmlDeviceGetTemperature") == card.calls.count("nvmlDeviceGetPowerUsage") == 1
    assert not {"temp_c", "power_w", "power_limit_w"} & reading.absent[0].keys()


@pytest.mark.parametrize("told", [(None, 5, -2), (40, None, -2), (40, 5, None), (40, 200, -2), (20, 5, -2)])
def test_a_threshold_from_half_of_what_it_takes_is_none(told: tuple[float | None, float | None, float | None]) -> None:
    assert from_margin(*told) is None


def test_violation_time_where_fields_are_not_offered(tmp_path: Path) -> None:
    """D10: the older call counts the same nanoseconds, in three causes of five."""
    card = ordinary(fields=dict.fromkeys((74, 75, 76, 269, 270, 271), None))
    held = {0: 5_000_000_000, 1: 0, 2: 0}
    card.answers["nvmlDeviceGetViolationStatus"] = {
        policy: SimpleNamespace(referenceTime=1, violationTime=ns) for policy, ns in held.items()
    }
    bench = Bench(tmp_path, card)
    bench.read()
    card.answers["nvmlDeviceGetViolationStatus"][0].violationTime += 1_250_000_000
    gpu = bench.read().gpus[0]
    assert (gpu.sw_power_ms, gpu.sync_boost_ms, gpu.hw_thermal_ms) == (1250.0, 0.0, 0.0)
    assert gpu.throttle_source == "mask", "hardware slowdown is sampled"


def test_a_card_that_needs_a_reset_is_down_and_says_so(tmp_path: Path) -> None:
    """D1: that one only, with what is to be done."""
    sick, well = ordinary("GPU-a"), ordinary("GPU-b", bus="00000000:02:00.0")
    bench = Bench(tmp_path, sick, well)
    bench.read()
    sick.answers["nvmlDeviceGetUtilizationRates"] = Refuse(RESET_REQUIRED)
    reading = bench.read()
    assert [gpu.state for gpu in reading.gpus] == ["lost", "ok"]
    assert "needs a reset" in reading.absent[0]["state"] and 0 not in reading.extra
    sick.answers["nvmlDeviceGetUtilizationRates"] = SimpleNamespace(gpu=5, memory=0)
    for _ in range(40):
        if (reading := bench.read()).gpus[0].state == "ok":
            break
    assert [gpu.state for gpu in reading.gpus] == ["ok", "ok"]


def test_a_card_that_was_down_at_the_start_is_known_when_it_is_back(tmp_path: Path) -> None:
    """D1: its name and limits too."""
    card = ordinary()
    card.answers["nvmlDeviceGetEnforcedPowerLimit"] = Refuse(RESET_REQUIRED)
    bench = Bench(tmp_path, card)
    assert bench.read().facts[0].name is None
    card.answers["nvmlDeviceGetEnforcedPowerLimit"] = 450_000
    for _ in range(40):
        if (reading := bench.read()).gpus[0].state == "ok":
            break
    assert (reading.facts[0].name, reading.facts[0].power_limit_w) == ("NVIDIA RTX 4090", 450.0)


def test_a_driver_that_was_upgraded_says_reboot(tmp_path: Path) -> None:
    card = ordinary()
    bench = Bench(tmp_path, card)
    bench.read()
    card.answers["nvmlDeviceGetUtilizationRates"] = Refuse(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    assert "reboot" in bench.read().absent[0]["state"]


def test_what_an_old_driver_refused_is_asked_again_of_a_new_one(tmp_path: Path) -> None:
    card = ordinary()
    card.answers["nvmlDeviceGetFanSpeedRPM"] = Refuse(NO_FUNCTION)
    bench = Bench(tmp_path, card, driver="560.35.03")
    assert bench.read().gpus[0].fan_rpm is None
    card.answers["nvmlDeviceGetFanSpeedRPM"] = 1800
    bench.nvml.running, bench.nvml.driver = False, "590.44.01"
    for _ in range(40):
        gpu = bench.read().gpus[0]
    assert gpu.fan_rpm == 1800.0 and gpu.state == "ok"


def test_an_id_that_no_driver_knows_is_asked_once(tmp_path: Path) -> None:
    """A newer field's number is an invalid argument to an older driver: permanent, and no fault of the card."""
    card = ordinary()
    bench = Bench(tmp_path, card)
    asked: list[Any] = []
    fields = bench.nvml.nvmlDeviceGetFieldValues

    def values(handle: Card, ids: list[Any]) -> Any:
        asked.extend(ids)
        found = fields(handle, ids)
        for item in found:
            if item.fieldId == 230:
                item.nvmlReturn = pynvml.NVML_ERROR_INVALID_ARGUMENT
        return found

    bench.nvml.nvmlDeviceGetFieldValues = values  # type: ignore[method-assign]
    for _ in range(20):
        assert bench.read().gpus[0].state == "ok"
    assert asked.count(230) == 1 and asked.count(74) == 20


def test_fields_that_a_card_lacks_do_not_silence_those_that_it_has(tmp_path: Path) -> None:
    """D10: a call for limits of which none is offered fails as a whole; the time counters are asked by the same function."""
    card = ordinary(answers={"nvmlDeviceGetEnforcedPowerLimit": Refuse(NOT_SUPPORTED)}, fields={186: 312_000})
    bench = Bench(tmp_path, card)
    for _ in range(3):
        gpu = bench.read().gpus[0]
    assert gpu.power_limit_w is None and gpu.throttle_source == "counter" and gpu.power_inst_w == 312.0


def test_gen1_x1_of_a_card_on_the_processors_own_bus(tmp_path: Path) -> None:
    """D4: memory of its own, but no PCIe: not shown. An ordinary card that idles in a bad slot is."""
    card = ordinary()
    card.answers |= {"nvmlDeviceGetCurrPcieLinkGeneration": 1, "nvmlDeviceGetCurrPcieLinkWidth": 1}
    assert (Bench(tmp_path, card).read().gpus[0].pcie_gen, card.calls.count("handle") > 0) == (1, True)
    card.answers["nvmlDeviceGetAddressingMode"] = 2
    reading = Bench(tmp_path, card).read()
    assert reading.gpus[0].pcie_gen is None and reading.absent[0]["pcie_gen"] == "not on PCIe"


def test_gb10_gives_a_reason_for_all_that_it_lacks(tmp_path: Path) -> None:
    """D4, D5: every column of a GB10 that is null has words."""
    reading = Bench(tmp_path, gb10()).read()
    gpu, why = reading.gpus[0], reading.absent[0]
    columns = ("mem_temp_c", "power_inst_w", "power_limit_w", "fan_pct", "fan_rpm", "pcie_gen", "pcie_width")
    assert all(getattr(gpu, column) is None and why[column] for column in (*columns, "ecc_uncorrected"))
    assert why["power_limit_w"] == "the firmware tells no limit" and "no fan tach" in why["fan_rpm"]
    assert "mem_used_mb" not in why and "pcie_replays" not in reading.extra.get(0, {})


def test_jetson_tells_by_files_what_nvml_does_not(tmp_path: Path) -> None:
    card = ordinary(name="Orin (nvgpu)")
    card.answers, card.fields = dict.fromkeys(card.answers, Refuse(NOT_SUPPORTED)), {}
    trees.put(
        tmp_path,
        {
            "sys/devices/platform/gpu.0/load": 874,
            "sys/devices/platform/gpu.0/devfreq/17000000.gpu/cur_freq": 1_300_500_000,
            "sys/class/thermal/thermal_zone0/type": "cpu-thermal",
            "sys/class/thermal/thermal_zone0/temp": 48_000,
            "sys/class/thermal/thermal_zone1/type": "gpu-thermal",
            "sys/class/thermal/thermal_zone1/temp": 51_500,
        },
    )
    reading = Bench(tmp_path, card).read()
    gpu = reading.gpus[0]
    assert (gpu.util_pct, gpu.temp_c, gpu.sm_mhz, gpu.mem_total_mb) == (87.4, 51.5, 1300.5, 65536.0)
    assert not {"util_pct", "temp_c", "sm_mhz"} & reading.absent[0].keys()
    (tmp_path / "sys/devices/platform/gpu.0/load").write_text("")
    bench = Bench(tmp_path, card)
    assert bench.read().gpus[0].util_pct is None


@pytest.mark.parametrize(
    ("function", "column"), [("nvmlDeviceGetTemperature", "temp_c"), ("nvmlDeviceGetPowerUsage", "power_w")]
)
def test_a_call_that_fails_for_now_is_a_gap_with_the_drivers_words(tmp_path: Path, function: str, column: str) -> None:
    """D6: unknown is retried, never 0."""
    card = ordinary()
    card.answers[function] = Refuse(UNKNOWN)
    reading = Bench(tmp_path, card).read()
    assert getattr(reading.gpus[0], column) is None and "Unknown" in reading.absent[0][column]


def test_everything_named_is_in_one_sample(tmp_path: Path) -> None:
    """By GPU index over all vendors, as the detail row keeps it, and JSON."""
    trees.host(tmp_path)
    trees.amd_card(tmp_path)
    trees.put(tmp_path, {"proc/driver/nvidia/version": "NVRM", "proc/7/comm": "ollama"})
    card = ordinary(fields={230: 0})
    card.answers["nvmlDeviceGetComputeRunningProcesses"] = [SimpleNamespace(pid=7, usedGpuMemory=64 * MIB)]
    source = RealSource("box", root=tmp_path, load=lambda: FakeNvml(card))
    try:
        sample = source.sample(2.0)
    finally:
        source.close()
    sensors = sample.sensors or {}
    assert sensors["gpus"]["0"]["health"] == "ok" and sensors["gpus"]["1"]["hotspot_c"] == 41.0
    assert sensors["processes"] == [{"pid": 7, "name": "ollama", "mem_mb": 64, "gpu_index": 0}]
    assert '"processes":[{"pid":7' in sample.payload()


def test_nobody_at_work_is_not_nobody_looked(tmp_path: Path) -> None:
    """An NVIDIA card without processes has none; of other cards nobody knows."""
    for cards, offered in ((FakeNvml(ordinary()), True), (FakeNvml(), False)):
        root = trees.amd_card(trees.host(tmp_path / str(offered)))
        trees.put(root, {"proc/driver/nvidia/version": "NVRM"})
        source = RealSource("box", root=root, load=lambda cards=cards: cards)  # type: ignore[misc]
        try:
            sensors = source.sample(2.0).sensors or {}
        finally:
            source.close()
        assert ("processes" in sensors) is offered and not sensors.get("processes")
