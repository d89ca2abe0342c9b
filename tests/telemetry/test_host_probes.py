"""Processor, memory, network, disks, heat: read from directory trees with a real machine's contents."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from engine.telemetry.probes.cpu import CpuProbe
from engine.telemetry.probes.disk import DiskProbe
from engine.telemetry.probes.net import NetProbe
from engine.telemetry.probes.rails import Energy
from engine.telemetry.probes.source import RealSource
from engine.telemetry.probes.thermal import ThermalProbe
from engine.telemetry.sample import BOX_METRICS
from tests.telemetry import trees


def test_cpu_shares_are_those_of_the_time_between(tmp_path: Path) -> None:
    trees.host(tmp_path)
    probe = CpuProbe(tmp_path)
    first = probe.read()
    assert first["cpu_pct"] is None and first["core_max_pct"] is None
    trees.put(tmp_path, {"proc/stat": trees.stat(1500, 9500, ((350, 2250), (450, 2250), (250, 2450), (450, 2250)))})
    second = probe.read()
    assert second["cpu_pct"] == 50.0
    assert second["core_max_pct"] == 100.0
    assert second["load1"] == 3.25
    assert second["cpu_mhz"] == 3300.0  # mean of 3.0, 3.2, 3.4, 3.6 GHz
    assert second["mem_used_mb"] == 8192.0 and second["mem_total_mb"] == 32768.0
    assert second["swap_used_mb"] == 256.0
    assert second["absent"] == {}


def test_the_longest_throttled_core_speaks_for_the_processor(tmp_path: Path) -> None:
    """Package and cores overlap: never added up. A counter that fell counts from zero."""
    trees.host(tmp_path)
    probe = CpuProbe(tmp_path)
    assert probe.read()["cpu_throttle_ms"] is None
    base = "sys/devices/system/cpu"
    trees.put(
        tmp_path,
        {
            f"{base}/cpu0/thermal_throttle/package_throttle_total_time_ms": 5040,
            f"{base}/cpu2/thermal_throttle/core_throttle_total_time_ms": 1110,
        },
    )
    assert probe.read()["cpu_throttle_ms"] == 110.0
    trees.put(tmp_path, {f"{base}/cpu0/thermal_throttle/package_throttle_total_time_ms": 1})
    assert probe.read()["cpu_throttle_ms"] == pytest.approx(1.0, abs=1)


def test_a_virtual_machine_hides_its_clock(tmp_path: Path) -> None:
    """/proc/cpuinfo of a guest names a constant: null with the reason, not a flat line."""
    info = "processor\t: 0\nmodel name\t: Xeon\ncpu MHz\t\t: 2100.000\nflags\t\t: fpu{} vme\n"
    trees.put(tmp_path, {"proc/cpuinfo": info.format(" hypervisor")})
    values = CpuProbe(tmp_path).read()
    assert values["cpu_mhz"] is None and "virtual machine" in values["absent"]["cpu_mhz"]
    trees.put(tmp_path, {"proc/cpuinfo": info.format("")})
    assert CpuProbe(tmp_path).read()["cpu_mhz"] == 2100.0


def test_traffic_is_counted_once_and_outside_only(tmp_path: Path) -> None:
    trees.host(tmp_path)
    probe = NetProbe(tmp_path)
    before = time.monotonic()
    assert probe.read()["net_rx_bps"] is None
    after = time.monotonic()
    inner = {"veth12ab": (9**9, 9**9), "docker0": (9**9, 9**9), "br-1234": (9**9, 0), "wg0": (9**9, 0)}
    trees.put(tmp_path, {"proc/net/dev": trees.net(eno1=(2_001_000, 500_500), **inner)})
    again = time.monotonic()
    values = probe.read()
    # Between the two readings lies at least what lies between the calls, at most all of it.
    assert 2_000_000 / (time.monotonic() - before) <= values["net_rx_bps"] <= 2_000_000 / (again - after)
    assert values["net_rx_bps"] == pytest.approx(4 * values["net_tx_bps"], rel=0.01)
    assert list(values["sensors"]["net"]) == ["eno1"]
    trees.put(tmp_path, {"proc/net/dev": trees.net(eno1=(10, 10))})
    assert probe.read()["net_rx_bps"] is None, "an interface that was reset has no rate, least of all a negative one"


def test_a_container_reaches_out_through_a_virtual_interface(tmp_path: Path) -> None:
    trees.put(tmp_path, {"proc/net/dev": trees.net(eth0=(1000, 1000))})
    probe = NetProbe(tmp_path)
    probe.read()
    trees.put(tmp_path, {"proc/net/dev": trees.net(eth0=(3000, 1000))})
    values = probe.read()
    assert values["net_rx_bps"] > 0 and values["net_tx_bps"] == 0.0


def test_disks_count_whole_disks_and_the_fullest_file_system(tmp_path: Path) -> None:
    trees.host(tmp_path)
    probe = DiskProbe(tmp_path)
    assert probe.read()["disk_read_bps"] is None
    trees.put(tmp_path, {"proc/diskstats": trees.disks(nvme0n1=(512_000, 1_024_000))})
    values = probe.read()
    assert values["disk_write_bps"] == pytest.approx(2 * values["disk_read_bps"], rel=0.01)
    assert list(values["sensors"]["disks"]) == ["nvme0n1"]
    usage = shutil.disk_usage(tmp_path)
    assert values["disk_used_pct"] == pytest.approx(100 * usage.used / (usage.used + usage.free), abs=2)
    assert list(values["zones"].values()) == [44.85]


def test_sensors_that_cannot_be_right_are_gaps(tmp_path: Path) -> None:
    """D7 for heat: unconnected inputs say 127.5 or -62; D6: a reader that fails is no 0."""
    trees.host(tmp_path)
    trees.put(tmp_path, {"sys/class/hwmon/hwmon1/fan3_input": "", "sys/class/thermal/thermal_zone2/type": "pch"})
    values = ThermalProbe(tmp_path).read()
    assert values["cpu_temp_c"] == 62.0
    assert values["fan_max_rpm"] == 1180
    assert values["sensors"]["fans"] == {
        "nct6798 fan1": 1180.0,
        "nct6798 fan2": 0.0,
    }  # a fan at rest is 0, no tach is not
    assert values["zones"] == {
        "acpitz": 27.8, "x86_pkg_temp": 61.0, "coretemp Package id 0": 62.0, "nct6798 SYSTIN": 34.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"hwmon0/name": "k10temp", "hwmon0/temp1_label": "Tctl", "hwmon0/temp1_input": 90000,
          "hwmon0/temp2_label": "Tdie", "hwmon0/temp2_input": 63000}, 63.0),
        ({"hwmon0/name": "cpu_thermal", "hwmon0/temp1_input": 55000}, 55.0),
        ({"hwmon0/name": "zenpower", "hwmon0/temp1_input": 71000, "hwmon0/temp1_fault": 1}, None),
    ],
)  # fmt: skip
def test_processors_of_all_makes(tmp_path: Path, tree: dict[str, str | int], expected: float | None) -> None:
    trees.put(tmp_path, {f"sys/class/hwmon/{name}": value for name, value in tree.items()})
    assert ThermalProbe(tmp_path).read()["cpu_temp_c"] == expected


def test_gb10_has_only_acpi_zones(tmp_path: Path) -> None:
    base = "sys/class/thermal/thermal_zone"
    for zone, value in enumerate((71000, 98000, 65000)):
        trees.put(tmp_path, {f"{base}{zone}/type": "acpitz", f"{base}{zone}/temp": value})
    values = ThermalProbe(tmp_path).read()
    assert values["cpu_temp_c"] == 98.0
    assert values["zones"] == {"acpitz": 71.0, "acpitz 2": 98.0, "acpitz 3": 65.0}


def test_power_rails_of_an_out_of_tree_chip_are_read_when_there(tmp_path: Path) -> None:
    base = "sys/class/hwmon/hwmon3"
    trees.put(
        tmp_path,
        {f"{base}/name": "spbm", f"{base}/power1_label": "sys_total", f"{base}/power1_input": 98_400_000,
         f"{base}/power2_label": "dc_input", f"{base}/power2_input": 0},
    )  # fmt: skip
    assert ThermalProbe(tmp_path).read()["sensors"]["rails"] == {"spbm sys_total": 98.4}


def test_rails_of_voltage_and_current(tmp_path: Path) -> None:
    """INA3221 on Jetson boards: a rail is the product of two inputs of one number."""
    base = "sys/class/hwmon/hwmon2"
    trees.put(
        tmp_path,
        {f"{base}/name": "ina3221", f"{base}/in1_label": "VDD_IN", f"{base}/in1_input": 19_000,
         f"{base}/curr1_input": 1_240, f"{base}/in2_label": "VDD_CPU", f"{base}/in2_input": 5_000,
         f"{base}/curr2_input": 0, f"{base}/in4_input": 11},
    )  # fmt: skip
    assert ThermalProbe(tmp_path).read()["sensors"]["rails"] == {"ina3221 VDD_IN": 23.56}


def test_joules_of_the_package_are_watts(tmp_path: Path) -> None:
    """A counter that wraps at its own modulus is followed; one that only root may read is no rail."""
    now = 0.0
    base = "sys/class/powercap/intel-rapl:"
    for entry, name, joules in (("0", "package-0", 9_000_000), ("0:1", "dram", 100), ("1", "psys", 5)):
        trees.put(
            tmp_path,
            {f"{base}{entry}/name": name, f"{base}{entry}/max_energy_range_uj": 9_999_999,
             f"{base}{entry}/energy_uj": joules},
        )  # fmt: skip
    (tmp_path / f"{base}1/energy_uj").write_text("")
    energy = Energy(tmp_path, lambda: now)
    assert energy.watts() == {}
    now = 2.0
    trees.put(tmp_path, {f"{base}0/energy_uj": 1_000_000, f"{base}0:1/energy_uj": 3_000_100})
    assert energy.watts() == {"rapl package-0": 1.0, "rapl dram 0": 1.5}
    (tmp_path / f"{base}0/energy_uj").unlink()
    now = 4.0
    assert energy.watts() == {"rapl dram 0": 0.0}


@pytest.mark.parametrize(
    ("said", "believed"),
    [(0, None), (-5_000, -5.0), (-40_000, None), (-55_000, None), (149_000, 149.0), (150_000, None), (127_000, None),
     (127_500, None), (128_000, None), (126_000, 126.0), ("", None), ("N/A", None)],
)  # fmt: skip
def test_a_zone_is_believed_within_reason(tmp_path: Path, said: int | str, believed: float | None) -> None:
    """D6, D7: stuck, unconnected and impossible zones are gaps, each named as one."""
    base = "sys/class/thermal/thermal_zone0"
    trees.put(tmp_path, {f"{base}/type": "pch", f"{base}/temp": said})
    values = ThermalProbe(tmp_path).read()
    assert values["zones"] == ({} if believed is None else {"pch": believed})
    assert ("pch" in values["absent"]) == (believed is None)


@pytest.mark.parametrize("kind", ["cpu-thermal", "CPU-therm", "x86_pkg_temp", "cluster0-thermal", "cpuss-1-2", "TCPU"])
def test_zones_that_are_the_processors(tmp_path: Path, kind: str) -> None:
    base = "sys/class/thermal/thermal_zone"
    trees.put(
        tmp_path, {f"{base}0/type": kind, f"{base}0/temp": 66_000, f"{base}1/type": "wifi", f"{base}1/temp": 71_000}
    )
    assert ThermalProbe(tmp_path).read()["cpu_temp_c"] == 66.0
    trees.put(tmp_path, {f"{base}0/temp": 0})
    values = ThermalProbe(tmp_path).read()
    assert values["cpu_temp_c"] is None and values["absent"]["cpu_temp_c"] == "no plausible reading"


def test_a_kernel_that_counts_throttling_but_not_its_time(tmp_path: Path) -> None:
    """Events are no milliseconds: null with the reason, the events among the named values."""
    trees.host(tmp_path)
    base = "sys/devices/system/cpu/cpu"
    for cpu in range(4):
        for kind in ("package", "core"):
            (tmp_path / f"{base}{cpu}/thermal_throttle/{kind}_throttle_total_time_ms").unlink()
            trees.put(tmp_path, {f"{base}{cpu}/thermal_throttle/{kind}_throttle_count": 10})
    probe = CpuProbe(tmp_path)
    values = probe.read()
    assert values["cpu_throttle_ms"] is None and "events only" in values["absent"]["cpu_throttle_ms"]
    assert values["sensors"]["cpu_throttle_events"] is None
    trees.put(tmp_path, {f"{base}0/thermal_throttle/package_throttle_count": 14})
    assert probe.read()["sensors"]["cpu_throttle_events"] == 4
    trees.put(tmp_path, {f"{base}0/thermal_throttle/package_throttle_count": 0})
    assert probe.read()["sensors"]["cpu_throttle_events"] is None


def test_pressure_is_the_share_of_time_that_tasks_waited(tmp_path: Path) -> None:
    line = "some avg10={} avg60=0.10 avg300=0.00 total=12345\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0"
    trees.put(tmp_path, {"proc/pressure/memory": line.format("12.75"), "proc/pressure/io": line.format("0.00")})
    trees.put(tmp_path, {"proc/uptime": "93784.21 180000.00"})
    sensors = CpuProbe(tmp_path).read()["sensors"]
    assert sensors == {"pressure": {"memory": 12.75, "io": 0.0}, "uptime_s": 93784}


def test_a_sleeping_chip_is_left_alone(tmp_path: Path) -> None:
    """D30: its power state is read first."""
    trees.host(tmp_path)
    trees.put(tmp_path, {"sys/class/hwmon/hwmon2/device/power/runtime_status": "suspended"})
    assert DiskProbe(tmp_path).read()["zones"] == {}


def test_every_metric_absent_at_once(tmp_path: Path) -> None:
    """D5: a box that offers nothing at all still has a sample, all n/a, each with its reason."""
    source = RealSource("bare", root=tmp_path, load=lambda: pytest.fail("no driver, no bindings"))
    try:
        sample = source.sample(2.0)
        facts = source.facts()
    finally:
        source.close()
    offered = {name for name in BOX_METRICS if getattr(sample, name) is not None}
    assert offered == {"disk_used_pct"}  # the test's own file system
    assert sample.gpus == () and facts.gpus == () and facts.machine_id == ""
    absent = (sample.sensors or {})["absent"]
    assert {"cpu_mhz", "cpu_temp_c", "fan_max_rpm", "zone_max_c", "net_rx_bps", "disk_read_bps"} <= set(absent)
    assert all(absent.values())
    assert '"cpu_pct"' not in sample.payload()


def test_a_whole_machine_is_one_sample(tmp_path: Path) -> None:
    trees.host(tmp_path)
    source = RealSource("desk", root=tmp_path, load=lambda: None)
    try:
        sample = source.sample(2.0)
        facts = source.facts()
    finally:
        source.close()
    assert (sample.zone_max_name, sample.zone_max_c) == ("coretemp Package id 0", 62.0)
    assert sample.cpu_temp_c == 62.0 and sample.fan_max_rpm == 1180 and sample.mem_total_mb == 32768.0
    assert sample.throttle_index is None and sample.brakes is None  # no GPU: nobody can tell
    assert (facts.cores, facts.cpu_model, facts.mem_mb) == (4, "Intel(R) Core(TM) i7-12700", 32768.0)
    assert facts.machine_id == "0123456789abcdef0123456789abcdef" and facts.kernel == "6.8.0-45-generic"


def test_this_machine_can_be_read() -> None:
    source = RealSource("here")
    try:
        sample = source.sample(2.0)
        facts = source.facts()
    finally:
        source.close()
    assert sample.cpu_pct is not None and 0 <= sample.cpu_pct <= 100
    assert sample.mem_total_mb and sample.mem_used_mb and sample.mem_used_mb < sample.mem_total_mb
    assert sample.load1 is not None and sample.disk_used_pct is not None
    assert facts.cores and facts.kernel and facts.mem_mb == sample.mem_total_mb
