"""The demo's sensors: a simulated box behind the recorder's probe seam, and the hour that it already has behind it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from engine.telemetry import throttle
from engine.telemetry.sample import BoxFacts, BoxSample, GpuFacts, GpuSample
from flightdeck.demo.boxes import BoxProfile, GpuProfile
from flightdeck.demo.jobs import EFFECTS
from flightdeck.demo.named import named
from flightdeck.demo.physics import BoxModel, BoxReading, GpuReading, Load

HOUR_S = 3600.0
STEP_S = 6.0  # of the simulated hour
CADENCE_S = 2.0


class SimulatedSource:
    """``Source`` of one simulated box. ``load`` tells what its jobs ask of it now; ``clock`` counts seconds."""

    def __init__(
        self,
        profile: BoxProfile,
        load: Callable[[], Load] = Load,
        clock: Callable[[], float] = time.monotonic,
        model: BoxModel | None = None,
    ) -> None:
        self._profile = profile
        self._load = load
        self._clock = clock
        self._model = model or BoxModel(profile)
        self._last: float | None = None

    def facts(self) -> BoxFacts:
        return facts(self._profile)

    def sample(self, dt_s: float) -> BoxSample:
        """Move the model on by the time that passed, in steps of at most one cadence, and read it."""
        now = self._clock()
        passed = dt_s if self._last is None else min(600.0, max(0.05, now - self._last))
        self._last = now
        load = self._load()
        while passed > 2 * CADENCE_S:
            self._model.step(CADENCE_S, load)
            passed -= CADENCE_S
        return sample(self._profile, self._model.step(passed, load), datetime.now(UTC))

    def close(self) -> None:
        """Nothing is held."""


def facts(profile: BoxProfile) -> BoxFacts:
    """What the box says that it is; always marked as simulated."""
    return BoxFacts(
        box=profile.name,
        machine_id=profile.machine_id,
        description=profile.description,
        cpu_model=profile.cpu_model,
        cores=profile.cores,
        mem_mb=profile.mem_mb,
        gpus=tuple(
            GpuFacts(
                index=index,
                uuid=gpu.uuid,
                name=gpu.name,
                vendor=gpu.vendor,
                mem_mb=gpu.mem_mb,
                unified=gpu.mem_mb is None,
                power_limit_w=gpu.cap_w if gpu.cap_reported else None,
                temp_slowdown_c=gpu.slowdown_c if gpu.slowdown_reported else None,
                temp_shutdown_c=gpu.shutdown_c if gpu.slowdown_reported else None,
                clock_max_mhz=gpu.clock_max_mhz if gpu.clock_reported else None,
            )
            for index, gpu in enumerate(profile.gpus)
        ),
        driver=profile.driver,
        kernel=profile.kernel,
        simulated=True,
    )


def sample(profile: BoxProfile, reading: BoxReading, at: datetime) -> BoxSample:
    """A reading by the names of the flight recorder's columns; what such hardware does not offer is left out."""
    gpus = tuple(_gpu(i, gpu, reading.gpus[i]) for i, gpu in enumerate(profile.gpus))
    held = [{cause: getattr(gpu, cause) for cause in throttle.CAUSES} for gpu in gpus]
    indices = [throttle.index_of(gpu.throttle_mask, ms) for gpu, ms in zip(gpus, held, strict=True)]
    zone_c = reading.cpu_temp_c + (1.5 if profile.shares_heat else 0.0)
    absent = {"cpu_throttle_ms": "no thermal_throttle counters"}  # only Intel has them
    if profile.fan_max_rpm is None:
        absent["fan_max_rpm"] = "no fan tach"
    gpu_absent = {str(i): why for i, gpu in enumerate(profile.gpus) if (why := _absent(gpu))}
    sensors: dict[str, Any] = {
        "zones": {profile.zone: round(zone_c, 1), "nvme": round(reading.air_c + 14.0, 1)},
        "absent": absent,
        "gpu_absent": gpu_absent,
    } | named(profile, reading)
    return BoxSample(
        box=profile.name,
        at=at,
        cpu_pct=reading.cpu_pct,
        core_max_pct=reading.core_max_pct,
        load1=reading.load1,
        cpu_mhz=reading.cpu_mhz,
        cpu_temp_c=reading.cpu_temp_c,
        mem_used_mb=reading.mem_mb
        + sum(g.mem_mb for g, p in zip(reading.gpus, profile.gpus, strict=True) if p.mem_mb is None),
        mem_total_mb=profile.mem_mb,
        swap_used_mb=0.0,
        zone_max_c=zone_c,
        zone_max_name=profile.zone,
        fan_max_rpm=profile.fan_max_rpm * reading.fan if profile.fan_max_rpm else None,
        net_rx_bps=reading.net_rx_bps,
        net_tx_bps=reading.net_tx_bps,
        disk_read_bps=reading.disk_read_bps,
        disk_write_bps=reading.disk_write_bps,
        disk_used_pct=41.0 + profile.seed % 30,
        throttle_index=throttle.worst(indices),
        power_ms=throttle.worst(throttle.power_ms(ms) for ms in held),
        thermal_ms=throttle.worst(throttle.thermal_ms(ms) for ms in held),
        brakes=sum(g.brakes for g in gpus if g.brakes is not None) if any(g.brakes is not None for g in gpus) else None,
        sensors={name: part for name, part in sensors.items() if part or name == "processes"},
        gpus=gpus,
    )


def _absent(gpu: GpuProfile) -> dict[str, str]:
    """What such a card does not offer, and why, as the real probes word it."""
    why = {}
    if not gpu.clock_reported:
        why["sm_mhz"] = "this driver does not report it"
    if gpu.mem_mb is None:
        why["mem_total_mb"] = "unified with the box's memory"
    if not gpu.cap_reported:
        why["power_limit_w"] = "firmware hides the limit"
    if gpu.fan == "none":
        why |= {"fan_pct": "no fan tach", "fan_rpm": "no fan tach"}
    if gpu.throttle == "none":
        why["throttle_mask"] = "no counters and no mask on this GPU"
    return why


def _gpu(index: int, profile: GpuProfile, reading: GpuReading) -> GpuSample:
    counted: dict[str, Any] = {}
    if profile.throttle != "none":
        mask = throttle.IDLE if reading.util_pct < 1 else 0
        mask |= throttle.SW_POWER if reading.sw_power_ms >= throttle.SHOWN_MS else 0
        mask |= throttle.SW_THERMAL if reading.sw_thermal_ms >= throttle.SHOWN_MS else 0
        mask |= throttle.HW_THERMAL | throttle.HW_SLOWDOWN if reading.hw_thermal_ms else 0
        mask |= throttle.HW_BRAKE | throttle.HW_SLOWDOWN if reading.hw_brake_ms else 0
        counted = {
            "throttle_mask": mask,
            "sw_power_ms": reading.sw_power_ms,
            "hw_brake_ms": reading.hw_brake_ms,
            "sw_thermal_ms": reading.sw_thermal_ms,
            "hw_thermal_ms": reading.hw_thermal_ms,
            "sync_boost_ms": 0.0,
            "brakes": reading.brakes,
        }
    return GpuSample(
        gpu_index=index,
        gpu_uuid=profile.uuid,
        util_pct=reading.util_pct,
        mem_used_mb=reading.mem_mb,
        mem_total_mb=profile.mem_mb,
        temp_c=reading.temp_c,
        power_w=reading.power_w,
        power_limit_w=profile.cap_w if profile.cap_reported else None,
        sm_mhz=reading.clock_mhz if profile.clock_reported else None,
        fan_pct=100.0 * reading.fan if profile.fan == "pct" else None,
        fan_rpm=profile.fan_max_rpm * reading.fan if profile.fan in ("pct", "rpm") else None,
        pcie_gen=profile.pcie[0] if profile.pcie else None,
        pcie_width=profile.pcie[1] if profile.pcie else None,
        pstate=(0 if reading.util_pct > 2 else 8) if profile.vendor == "nvidia" else None,
        throttle_source=profile.throttle,
        **counted,
    )


def planned(profile: BoxProfile) -> Iterator[Load]:
    """What the box was busy with in the hour before the demo: one load per step, the same for the same profile."""
    kinds = [[k for k in _NODES_OF[project] if EFFECTS[k].gpu] for project, _ in profile.gpu_of_project]
    gpu_slots = [
        _Slot(random.Random(profile.seed * 7 + i), kind, (240, 840), (20, 150)) for i, kind in enumerate(kinds)
    ]
    cpu_kinds = [k for project, _ in profile.gpu_of_project for k in _NODES_OF[project] if not EFFECTS[k].gpu]
    cpu_slots = [_Slot(random.Random(profile.seed * 13 + i), cpu_kinds, (100, 420), (20, 200)) for i in range(2)]
    known: dict[tuple[tuple[str, int], ...], Load] = {}
    for step in range(int(HOUR_S / STEP_S)):
        at = step * STEP_S
        quiet = any(a <= at / HOUR_S < b for a, b in _QUIET.get(profile.name, ()))
        running = [(slot.at(at), i) for i, slot in enumerate(gpu_slots) if not quiet or i]
        running += [(slot.at(at), 0) for slot in cpu_slots if not quiet]
        jobs = tuple((kind, gpu) for kind, gpu in running if kind)
        if jobs not in known:
            known[jobs] = add_up(profile, list(jobs))
        yield known[jobs]


_NODES_OF = {
    "render": ("storyboard", "simulate", "render", "upscale", "compose"),
    "speech": ("fetch", "transcribe", "diarize", "summarize", "publish"),
    "": ("import_catalog",),
}
# Shares of the hour in which nothing was queued: a fleet that is always full shows nothing.
_QUIET = {"kestrel": ((0.0, 0.09), (0.44, 0.49)), "harrier": ((0.21, 0.33), (0.62, 0.66)), "osprey": ((0.12, 0.19),)}


class _Slot:
    """One slot's row of jobs over the hour."""

    def __init__(
        self, rng: random.Random, kinds: list[str], run_s: tuple[float, float], gap_s: tuple[float, float]
    ) -> None:
        self._rng, self._kinds, self._run_s, self._gap_s = rng, kinds, run_s, gap_s
        self._until = rng.uniform(0, 60)
        self._kind: str | None = None

    def at(self, seconds: float) -> str | None:
        while seconds >= self._until:
            busy = self._kind is None
            self._kind = self._rng.choice(self._kinds) if busy else None
            self._until += self._rng.uniform(*(self._run_s if busy else self._gap_s))
        return self._kind


def add_up(profile: BoxProfile, running: list[tuple[str, int]]) -> Load:
    """The load of running jobs, each by the name of its node or task and the index of its GPU."""
    count = len(profile.gpus)
    gpus, vram = [0.0] * count, [0.0] * count
    effects = []
    for name, gpu in running:
        if (effect := EFFECTS.get(name)) is None:
            continue
        effects.append(effect)
        if effect.gpu and gpu < count:
            gpus[gpu] = min(1.0, gpus[gpu] + effect.gpu)
            vram[gpu] += effect.vram_mb
    return Load(
        cores=min(float(profile.cores), sum(e.cores for e in effects)),
        gpus=tuple(gpus),
        vram_mb=tuple(vram),
        mem_mb=sum(e.mem_mb for e in effects),
        net_rx_bps=sum(e.net_rx_bps for e in effects),
        net_tx_bps=sum(e.net_tx_bps for e in effects),
        disk_bps=sum(e.disk_bps for e in effects),
    )


def past_hour(profile: BoxProfile, end: datetime) -> tuple[list[BoxSample], BoxModel]:
    """The simulated hour before ``end``, as detail samples, and the model as it stands at its end."""
    model = BoxModel(profile)
    start = end - timedelta(seconds=HOUR_S)
    loads = list(planned(profile))
    for load in loads[:100]:
        model.step(STEP_S, load)  # warm before the first row, as a box that has been up for long
    samples = [
        sample(profile, model.step(STEP_S, load), start + timedelta(seconds=STEP_S * (i + 1)))
        for i, load in enumerate(loads)
    ]
    return samples, model
