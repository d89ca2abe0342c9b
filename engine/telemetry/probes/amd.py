"""AMD GPUs by amdgpu's files in /sys: busy share, memory, its hwmon chip, and the binary ``gpu_metrics`` table.

Throttling is told in NVML's bits (telemetry/throttle.py); the table is decoded in amd_metrics.py. Nothing of this wakes a
card: a sleeping one is left alone.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine.telemetry.meter import Meter, Reading
from engine.telemetry.probes import files
from engine.telemetry.probes.amd_metrics import CAUSE_OF, WRAP, CycleShare, Metrics, decode, mask_of
from engine.telemetry.probes.gpu import GpuReading, explain, within
from engine.telemetry.sample import GpuFacts, GpuSample
from engine.telemetry.throttle import CAUSES, SHOWN_MS

MIB = 1024 * 1024
LOOK_AGAIN_S = 60.0
_AMD = "0x1002"
_GENERATION = {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "8": 3, "16.0": 4, "16": 4, "32.0": 5, "32": 5, "64.0": 6}
_NAMES = {
    "0x1586": "Radeon 8060S (Strix Halo)",
    "0x150e": "Radeon 890M (Strix Point)",
    "0x744c": "Radeon RX 7900",
    "0x7550": "Radeon RX 9070",
}

_HOT_MARGIN_C = 15.0  # the hotspot bit is believed only so near to the critical temperature
_FULL_RATE = (0.9, 1.05)  # of the clock: a time counter seen running like that counts what it is taken for
_COLUMNS = (
    "util_pct", "mem_used_mb", "temp_c", "mem_temp_c", "power_w", "power_limit_w", "sm_mhz", "fan_pct", "fan_rpm",
)  # fmt: skip


class AmdProbe:
    def __init__(self, root: Path, cadence_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._cadence_s = cadence_s
        self._clock = clock
        self._cards: dict[str, AmdCard] = {}
        self._looked_at = float("-inf")

    def read(self) -> GpuReading:
        now = self._clock()
        if now - self._looked_at >= LOOK_AGAIN_S or any(card.lost for card in self._cards.values()):
            self._look_for_cards()
            self._looked_at = now
        cards = sorted(self._cards.values(), key=lambda card: card.index)
        gpus = tuple(card.read(now) for card in cards)
        return GpuReading(
            gpus=gpus,
            facts=tuple(card.facts for card in cards),
            driver=f"amdgpu {version}" if cards and (version := self._version()) else None,
            absent={card.index: dict(card.absent) for card in cards if card.absent},
            extra={card.index: dict(card.extra) for card in cards if card.extra},
        )

    def close(self) -> None:
        pass

    def _version(self) -> str | None:
        return files.text(f"{self._root}/sys/module/amdgpu/version") or files.text(
            f"{self._root}/proc/sys/kernel/osrelease"
        )

    def _look_for_cards(self) -> None:
        base = f"{self._root}/sys/class/drm"
        for name in files.children(base):
            device = f"{base}/{name}/device"
            if not re.fullmatch(r"card\d+", name) or files.text(f"{device}/vendor") != _AMD:
                continue
            if not os.path.exists(f"{device}/gpu_busy_percent"):
                continue  # an old radeon, or no driver
            pci = _slot(device)
            if pci in self._cards:
                self._cards[pci].device = device
            else:
                self._cards[pci] = AmdCard(len(self._cards), pci, device, self._cadence_s)


class AmdCard:
    """One card, by its place on the bus."""

    def __init__(self, index: int, pci: str, device: str, cadence_s: float) -> None:
        self.index = index
        self.device = device
        self.lost = False
        self.absent: dict[str, str] = {}
        self.extra: dict[str, Any] = {}
        self._cadence_s = cadence_s
        self._meters: dict[str, Meter] = {}  # by residency
        self._shares: dict[str, CycleShare] = {}
        self._residency_at: float | None = None
        self._calibrated = False
        self._mask_meter = Meter(cadence_s)
        self._hwmon = next((f"{device}/hwmon/{name}" for name in files.children(f"{device}/hwmon")), f"{device}/hwmon")
        self._temps: dict[str, str] | None = None
        self.uuid = f"pci-{pci}"
        self.facts = GpuFacts(index=index, uuid=self.uuid, vendor="amd")
        self._known = False

    def read(self, now: float) -> GpuSample:
        self.extra = {}
        if files.asleep(self.device):
            return GpuSample(gpu_index=self.index, gpu_uuid=self.uuid, state="asleep")
        if not os.path.exists(f"{self.device}/gpu_busy_percent"):
            self.lost, self.absent = True, {"state": "gone from the bus"}
            return GpuSample(gpu_index=self.index, gpu_uuid=self.uuid, state="lost")
        self.lost, self.absent = False, {}
        metrics = decode(_binary(f"{self.device}/gpu_metrics"))
        if not self._known:
            self._learn(metrics)
        used, total = self._memory()
        mask, ms, source, brakes = self._throttle(now, metrics)
        speed = (files.text(f"{self.device}/current_link_speed") or "").split()
        limit = self._watts("power1_cap", 5000)
        most = limit * 1.5 if limit else 1000.0
        average, instant = self._watts("power1_average", most), self._watts("power1_input", most)
        if average is None and instant is None:
            average = within(metrics.power_w, 0.001, most)
        link = not self.facts.unified
        fan_pct, fan_rpm = self._fan()
        if (hotspot := self._celsius("junction", "")) is not None:
            self.extra["hotspot_c"] = hotspot
        row = GpuSample(
            gpu_index=self.index,
            gpu_uuid=self.uuid,
            util_pct=within(files.number(f"{self.device}/gpu_busy_percent"), 0, 100),
            mem_used_mb=used,
            mem_total_mb=total,
            temp_c=self._celsius("edge", "temp1"),
            mem_temp_c=self._celsius("mem", ""),
            power_w=average if average is not None else instant,
            power_inst_w=instant,
            power_limit_w=limit,
            sm_mhz=within(files.scaled(f"{self._hwmon}/freq1_input", 1e6), 0, 6000),
            fan_pct=fan_pct,
            fan_rpm=fan_rpm,
            pcie_gen=_GENERATION.get(speed[0]) if speed and link else None,
            pcie_width=files.number(f"{self.device}/current_link_width") if link else None,
            throttle_mask=mask,
            throttle_source=source,
            brakes=brakes,
            sw_power_ms=ms.get("sw_power_ms"),
            hw_brake_ms=ms.get("hw_brake_ms"),
            sw_thermal_ms=ms.get("sw_thermal_ms"),
        )
        explain(row, self.absent, _COLUMNS)
        if not link:
            self.absent["pcie_gen"] = self.absent["pcie_width"] = "not on PCIe"
        return row

    def _fan(self) -> tuple[float | None, float | None]:
        """Percent and rpm; a card without a duty cycle to tell is measured against its fastest."""
        rpm = within(files.number(f"{self._hwmon}/fan1_input"), 0, 50_000)
        if rpm is None:
            self.absent["fan_rpm"] = "no fan tach"
        pwm, most = files.number(f"{self._hwmon}/pwm1"), files.number(f"{self._hwmon}/pwm1_max")
        if pwm is None and rpm is not None:
            pwm, most = int(rpm), files.number(f"{self._hwmon}/fan1_max")
        return min(100.0, 100 * pwm / most) if pwm is not None and most else None, rpm

    def _learn(self, metrics: Metrics) -> None:
        if serial := files.text(f"{self.device}/unique_id"):
            self.uuid = f"amd-{serial}"
        identity = files.text(f"{self.device}/device") or ""
        self._temps = {
            files.text(f"{self._hwmon}/{name}") or "": name.removesuffix("_label")
            for name in files.children(self._hwmon)
            if name.startswith("temp") and name.endswith("_label")
        }
        self.facts = GpuFacts(
            index=self.index,
            uuid=self.uuid,
            name=files.text(f"{self.device}/product_name") or _NAMES.get(identity, f"AMD {identity}".strip()),
            vendor="amd",
            unified=metrics.of_processor,
            power_limit_w=self._watts("power1_cap", 5000),
            temp_slowdown_c=files.celsius(f"{self._hwmon}/temp1_crit"),
            temp_shutdown_c=files.scaled(f"{self._hwmon}/temp1_emergency", 1000),
            clock_max_mhz=self._clock_max(),
        )
        _, total = self._memory()
        self.facts = GpuFacts(**(self.facts.values() | {"mem_mb": total}))
        self._known = True

    def _clock_max(self) -> float | None:
        """The last level of ``pp_dpm_sclk``: ``2: 2900Mhz *``."""
        levels = re.findall(r":\s*(\d+)\s*Mhz", files.everything(f"{self.device}/pp_dpm_sclk") or "", re.IGNORECASE)
        return max(map(float, levels), default=None)

    def _memory(self) -> tuple[float | None, float | None]:
        """Used and total in MiB; a processor with graphics has its carve-out plus what it may map of the rest."""
        kinds = ("vram", "gtt") if self.facts.unified else ("vram",)
        used = [files.number(f"{self.device}/mem_info_{kind}_used") for kind in kinds]
        total = [files.number(f"{self.device}/mem_info_{kind}_total") for kind in kinds]
        return _sum_mb(used), _sum_mb(total)

    def _celsius(self, label: str, fallback: str) -> float | None:
        sensor = (self._temps or {}).get(label, fallback)
        return files.celsius(f"{self._hwmon}/{sensor}_input") if sensor else None

    def _watts(self, name: str, most: float) -> float | None:
        return within(files.scaled(f"{self._hwmon}/{name}", 1e6), 0.001, most)

    def _throttle(self, now: float, metrics: Metrics) -> tuple[int | None, dict[str, float | None], str, int | None]:
        if metrics.residencies:
            return self._from_residencies(now, metrics)
        if metrics.status is None:
            self.absent["throttle_mask"] = "no throttle status in gpu_metrics"
            return None, {}, "none", None
        mask = mask_of(metrics.status, self._hot())
        held = self._mask_meter.feed(Reading(now, mask))
        return mask, dict(held.ms), held.source, held.brakes

    def _hot(self) -> bool:
        sensor = (self._temps or {}).get("junction", "temp2")
        value = files.celsius(f"{self._hwmon}/{sensor}_input")
        critical = files.scaled(f"{self._hwmon}/{sensor}_crit", 1000)
        return value is not None and critical is not None and value >= critical - _HOT_MARGIN_C

    def _from_residencies(
        self, now: float, metrics: Metrics
    ) -> tuple[int | None, dict[str, float | None], str, int | None]:
        """Time counters, believed only while they fit the clock. The longest of several speaks for its cause."""
        ms: dict[str, float | None] = {}
        brakes: int | None = None
        counted, mask = False, None
        before, self._residency_at = self._residency_at, now
        for name, ticks in metrics.residencies.items():
            cause = CAUSE_OF[name]
            if metrics.cycles is not None:
                ticks = self._shares.setdefault(name, CycleShare()).feed(now, metrics.cycles, ticks)
            meter = self._meters.get(name)
            if meter is None:
                wraps = 0 if metrics.cycles is not None else WRAP
                meter = self._meters[name] = Meter(self._cadence_s, per_ms=1e3, wraps=wraps)
            held = meter.feed(Reading(now, None, {cause: ticks}))
            counted |= held.source == "counter"
            if (value := held.ms[cause]) is not None:
                ms[cause] = max(value, ms.get(cause) or 0.0)
            if cause == "hw_brake_ms":
                brakes = held.brakes
        if not counted:
            self.absent["throttle_mask"] = "its time counters make no sense"
        if ms:  # there is no mask; the reasons are those that counted
            mask = sum(CAUSES[cause] for cause, value in ms.items() if value is not None and value >= SHOWN_MS)
        if metrics.cycles is None and counted:
            self._calibrate(ms, now - before if before is not None else 0.0)
        return mask, ms, "counter" if counted else "none", brakes

    def _calibrate(self, ms: Mapping[str, float | None], gap_s: float) -> None:
        """The kernel does not say that Strix Halo counts microseconds: a counter seen at the clock's own rate does."""
        low, high = (share * gap_s * 1000 for share in _FULL_RATE)
        self._calibrated |= gap_s > 0 and any(value is not None and low <= value <= high for value in ms.values())
        self.extra["throttle_unit"] = "us, seen at full rate" if self._calibrated else "us, assumed"


def _binary(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(4096)
    except OSError:
        return b""


def _slot(device: str) -> str:
    for line in (files.everything(f"{device}/uevent") or "").splitlines():
        if line.startswith("PCI_SLOT_NAME="):
            return line.partition("=")[2].strip()
    return os.path.basename(os.path.realpath(device))


def _sum_mb(values: list[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / MIB if known and len(known) == len(values) else None
