"""Intel's graphics cards by i915's and xe's files in /sys: clock, heat, power, and why they are held back.

Only cards of their own, which have a hwmon chip: a processor's graphics are part of its package. Their use and memory
are told to perf and to the processes' own files only, so those stay n/a. Reasons are booleans of the moment, told in
NVML's bits. A sleeping card is left alone.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from engine.telemetry.meter import Meter, Reading
from engine.telemetry.probes import files
from engine.telemetry.probes.gpu import GpuReading, within
from engine.telemetry.sample import GpuFacts, GpuSample
from engine.telemetry.throttle import HW_BRAKE, SW_POWER, SW_THERMAL

LOOK_AGAIN_S = 60.0
_INTEL = "0x8086"
_CHIPS = ("i915", "xe")
_REASONS = {
    "pl1": SW_POWER,
    "pl2": SW_POWER,
    "pl4": SW_POWER,
    "vr_tdc": SW_POWER,
    "thermal": SW_THERMAL,
    "ratl": SW_THERMAL,
    "vr_thermalert": SW_THERMAL,
    "prochot": HW_BRAKE,
}
_ABSENT = {
    "util_pct": "told to perf only",
    "mem_used_mb": "told to processes' own files only",
    "pcie_gen": "not told by this driver",
}


class IntelProbe:
    def __init__(self, root: Path, cadence_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._cadence_s = cadence_s
        self._clock = clock
        self._cards: dict[str, IntelCard] = {}
        self._looked_at = float("-inf")

    def read(self) -> GpuReading:
        now = self._clock()
        if now - self._looked_at >= LOOK_AGAIN_S:
            self._looked_at = now
            self._look_for_cards()
        cards = sorted(self._cards.values(), key=lambda card: card.index)
        return GpuReading(
            gpus=tuple(card.read(now) for card in cards),
            facts=tuple(card.facts for card in cards),
            absent={card.index: dict(card.absent) for card in cards if card.absent},
        )

    def _look_for_cards(self) -> None:
        base = f"{self._root}/sys/class/drm"
        for name in files.children(base):
            device = f"{base}/{name}/device"
            if not re.fullmatch(r"card\d+", name) or files.text(f"{device}/vendor") != _INTEL:
                continue
            chips = [f"{device}/hwmon/{chip}" for chip in files.children(f"{device}/hwmon")]
            chip = next((chip for chip in chips if files.text(f"{chip}/name") in _CHIPS), None)
            pci = os.path.basename(os.path.realpath(device))
            if chip is not None and pci not in self._cards:
                self._cards[pci] = IntelCard(len(self._cards), pci, f"{base}/{name}", chip, self._cadence_s)


class IntelCard:
    def __init__(self, index: int, pci: str, path: str, chip: str, cadence_s: float) -> None:
        self.index = index
        self.uuid = f"pci-{pci}"
        self.absent: dict[str, str] = {}
        self._path, self._chip = path, chip
        self._meter = Meter(cadence_s)
        self._energy: tuple[float, int] | None = None
        xe = f"{path}/device/tile0/gt0/freq0"
        gt = f"{path}/gt/gt0"
        if os.path.exists(xe):
            self._reason, self._clock_file, self._clock_max = (
                f"{xe}/throttle/reason_",
                f"{xe}/act_freq",
                f"{xe}/rp0_freq",
            )
        else:
            self._reason = f"{gt}/throttle_reason_"
            if files.number(f"{self._reason}status") is None:  # its name before 6.0
                self._reason = f"{path}/gt_throttle_reason_status_"
            self._clock_file, self._clock_max = f"{gt}/rps_act_freq_mhz", f"{gt}/rps_RP0_freq_mhz"
        self.facts = GpuFacts(
            index=index,
            uuid=self.uuid,
            name=f"Intel {files.text(f'{path}/device/device') or ''}".strip(),
            vendor="intel",
            power_limit_w=self._limit(),
            clock_max_mhz=within(files.number(self._clock_max), 1, 6000),
        )

    def read(self, now: float) -> GpuSample:
        row = GpuSample(gpu_index=self.index, gpu_uuid=self.uuid, state="asleep")
        self.absent = {}
        if files.asleep(f"{self._path}/device"):
            return row
        if not os.path.exists(f"{self._path}/device/vendor"):
            self.absent = {"state": "gone from the bus"}
            return GpuSample(gpu_index=self.index, gpu_uuid=self.uuid, state="lost")
        self.absent = dict(_ABSENT)
        mask = self._mask()
        held = self._meter.feed(Reading(now, mask))
        if mask is None:
            self.absent["throttle_mask"] = "no throttle reasons in /sys"
        return GpuSample(
            gpu_index=self.index,
            gpu_uuid=self.uuid,
            temp_c=files.celsius(f"{self._chip}/temp2_input") or files.celsius(f"{self._chip}/temp1_input"),
            mem_temp_c=files.celsius(f"{self._chip}/temp3_input"),
            power_w=self._watts(now),
            power_limit_w=self._limit(),
            sm_mhz=within(files.number(self._clock_file), 1, 6000),
            fan_rpm=within(files.number(f"{self._chip}/fan1_input"), 0, 50_000),
            throttle_mask=mask,
            throttle_source=held.source,
            brakes=held.brakes,
            **held.ms,  # type: ignore[arg-type]
        )

    def _mask(self) -> int | None:
        mask: int | None = None
        for name, bit in _REASONS.items():
            if (said := files.number(f"{self._reason}{name}")) is not None:
                mask = (mask or 0) | (bit if said else 0)
        return mask

    def _limit(self) -> float | None:
        found = files.scaled(f"{self._chip}/power1_max", 1e6) or files.scaled(f"{self._chip}/power2_max", 1e6)
        return within(found, 1, 5000)

    def _watts(self, now: float) -> float | None:
        """From its energy counter, microjoules."""
        energy = files.number(f"{self._chip}/energy1_input") or files.number(f"{self._chip}/energy2_input")
        before, self._energy = self._energy, None if energy is None else (now, energy)
        if before is None or energy is None or now <= before[0]:
            return None
        limit = self.facts.power_limit_w
        return within((energy - before[1]) / (now - before[0]) / 1e6, 0.001, limit * 1.5 if limit else 1000)
