"""Xids, the driver's word for faults of a card: from NVML's events and from the kernel's log."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pynvml
import pytest

from engine.telemetry.probes.gpu import GpuReading
from engine.telemetry.probes.nvidia import NvidiaProbe
from engine.telemetry.probes.xid import KernelLog, Xid, _address, parse
from tests.telemetry import trees
from tests.telemetry.nvml import FakeNvml, ordinary

LOG = (
    "6,811,900000000,-;nvidia 0000:01:00.0: enabling device\n"
    "4,812,{old},-;NVRM: Xid (PCI:0000:01:00): 13, pid=812, name=python, Graphics Exception\n"
    " SUBSYSTEM=pci\n"
)
FALLEN = "4,900,{at},-;NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"


class Bench:
    def __init__(self, root: Path, nvml: FakeNvml) -> None:
        self.now = 1000.0
        trees.put(root, {"proc/driver/nvidia/version": "NVRM", "proc/42/comm": "ollama"})
        self.probe = NvidiaProbe(root, 2.0, lambda: nvml, lambda: self.now, watch=True)

    def read(self, after_s: float = 2.0) -> GpuReading:
        self.now += after_s
        return self.probe.read()


@pytest.mark.parametrize(
    ("record", "found"),
    [
        (FALLEN.format(at=5038271643), Xid("0000:01:00", 79, 5038.271643)),
        ("4,1,2000000,c;NVRM: Xid (PCI:000F:01:00.0): 119, Timeout", Xid("000f:01:00", 119, 2.0)),
        ("6,1,2000000,-;NVRM: GPU at PCI:0000:01:00: GPU-1", None),
        ("NVRM: Xid (PCI:0000:01:00): 79", None),
        ("4,1,soon,-;NVRM: Xid (PCI:0000:01:00): 79", None),
        ("", None),
    ],
)
def test_records_of_the_kernel(record: str, found: Xid | None) -> None:
    assert parse(record.encode()) == found


def test_an_event_is_told_once_and_remembered(tmp_path: Path) -> None:
    """The row of its time has it; the named values keep the last one with its age."""
    card, other = ordinary("GPU-a"), ordinary("GPU-b", bus="00000000:02:00.0")
    nvml = FakeNvml(card, other)
    bench = Bench(tmp_path, nvml)
    reading = bench.read()
    assert [gpu.xid for gpu in reading.gpus] == [None, None] and "xid_last" not in reading.extra.get(0, {})
    nvml.events.append((card, 0x8, 31))
    reading = bench.read()
    assert [gpu.xid for gpu in reading.gpus] == [31, None]
    reading = bench.read(58)
    assert reading.gpus[0].xid is None
    assert reading.extra[0]["xid_last"] == 31 and reading.extra[0]["xid_age_s"] == 58
    assert "xid_last" not in reading.extra.get(1, {})
    bench.probe.close()
    assert nvml.event_sets == 0


def test_a_card_falls_off_the_bus_and_says_why(tmp_path: Path) -> None:
    """D1: the row of the lost card has the Xid."""
    card = ordinary("GPU-a")
    nvml = FakeNvml(card)
    bench = Bench(tmp_path, nvml)
    bench.read()
    nvml.events.append((card, 0x8, 79))
    card.lost = True
    gpu = bench.read().gpus[0]
    assert (gpu.state, gpu.xid) == ("lost", 79)
    bench.probe.close()


def test_handles_are_those_of_the_bindings() -> None:
    """The event's handle is another object than the one that was registered, and points to the same card."""
    first = ctypes.cast(4096, pynvml.c_nvmlDevice_t)
    event = pynvml.c_nvmlEventData_t(device=ctypes.cast(4096, pynvml.c_nvmlDevice_t), eventType=8, eventData=79)
    assert _address(first) == _address(event.device) == 4096


def test_the_kernels_log_tells_where_events_do_not(tmp_path: Path) -> None:
    """What was logged before the recorder began is the last Xid, but no news."""
    nvml = FakeNvml(ordinary("GPU-a"), ordinary("GPU-b", bus="00000000:02:00.0"))
    nvml.has_events = False
    trees.put(tmp_path, {"dev/kmsg": ""})
    log = tmp_path / "dev/kmsg"
    log.write_text(LOG.format(old=int(940e6)))
    bench = Bench(tmp_path, nvml)
    reading = bench.read()
    assert reading.gpus[0].xid is None and reading.extra[0]["xid_last"] == 13 and reading.extra[0]["xid_age_s"] == 62
    with log.open("a") as more:
        more.write(FALLEN.format(at=int(1003e6))[:40])
    assert bench.read().gpus[0].xid is None, "half a record"
    with log.open("a") as more:
        more.write(FALLEN.format(at=int(1003e6))[40:])
    reading = bench.read()
    assert [gpu.xid for gpu in reading.gpus] == [79, None] and reading.extra[0]["xid_age_s"] == 3
    assert bench.read().gpus[0].xid is None
    bench.probe.close()


def test_one_fault_is_not_told_by_event_and_log_both(tmp_path: Path) -> None:
    card = ordinary("GPU-a")
    nvml = FakeNvml(card)
    trees.put(tmp_path, {"dev/kmsg": "6,1,1,-;boot"})
    bench = Bench(tmp_path, nvml)
    bench.read()
    nvml.events.append((card, 0x8, 31))
    assert bench.read().gpus[0].xid == 31
    with (tmp_path / "dev/kmsg").open("a") as more:
        more.write(FALLEN.replace("79", "31").format(at=int(1003.9e6)))
    assert [bench.read().gpus[0].xid for _ in range(3)] == [None, None, None]
    bench.probe.close()


def test_a_log_that_is_not_ours_to_read(tmp_path: Path) -> None:
    log = KernelLog(tmp_path)
    assert log.read() == [] and not log.readable
    log.close()


def test_a_storm_of_faults_costs_a_look_little(tmp_path: Path) -> None:
    card = ordinary("GPU-a")
    nvml = FakeNvml(card)
    bench = Bench(tmp_path, nvml)
    bench.read()
    nvml.events += [(card, 0x8, number) for number in range(100)]
    assert bench.read().gpus[0].xid == 15 and len(nvml.events) == 84
    bench.probe.close()


def test_health_is_looked_at_as_soon_as_the_driver_wants_something_done(tmp_path: Path) -> None:
    card = ordinary("GPU-a", fields={230: 0})
    nvml = FakeNvml(card)
    bench = Bench(tmp_path, nvml)
    assert bench.read().extra[0]["health"] == "ok"
    card.fields[230] = 1
    assert bench.read().extra[0]["health"] == "ok", "asked every few looks"
    nvml.events.append((card, 0x8000, 1))
    reading = bench.read()
    assert reading.extra[0]["health"] == "action: reset the GPU" and reading.gpus[0].xid is None
    bench.probe.close()
