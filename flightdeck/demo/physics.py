"""How a simulated box warms up, spins its fans and holds itself back. Pure: profiles, loads and seconds in, readings out.

Every part is a first-order system: heat flows into a thermal mass and out through a cooler whose grip depends on
the fan; clocks follow from a power cap first and from temperature second. That is enough for traces that look
right, because the causes are right: a cap shows at full load at once, heat only minutes later.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from flightdeck.demo.boxes import BoxProfile, GpuProfile

CLOCK_EXPONENT = 2.4  # dynamic power over clock; voltage falls with the clock, hence more than 1


@dataclass(frozen=True)
class Load:
    """What the jobs of a box ask of it: busy cores, busy GPUs (0-1 each), MiB, bytes per second."""

    cores: float = 0.0
    gpus: tuple[float, ...] = ()
    vram_mb: tuple[float, ...] = ()
    mem_mb: float = 0.0
    net_rx_bps: float = 0.0
    net_tx_bps: float = 0.0
    disk_bps: float = 0.0


@dataclass(frozen=True)
class GpuReading:
    """One GPU after one step; ``_ms`` are milliseconds held back during that step."""

    util_pct: float
    mem_mb: float
    temp_c: float
    power_w: float
    clock_mhz: float
    fan: float  # 0-1
    sw_power_ms: float
    hw_brake_ms: float
    sw_thermal_ms: float
    hw_thermal_ms: float
    brakes: int


@dataclass(frozen=True)
class BoxReading:
    """The whole box after one step."""

    cpu_pct: float
    core_max_pct: float
    load1: float
    cpu_mhz: float
    cpu_temp_c: float
    mem_mb: float
    net_rx_bps: float
    net_tx_bps: float
    disk_read_bps: float
    disk_write_bps: float
    fan: float
    air_c: float
    gpus: tuple[GpuReading, ...]


def _settle(value: float, target: float, dt_s: float, tau_s: float) -> float:
    return value + (target - value) * (1.0 - math.exp(-dt_s / tau_s))


@dataclass
class GpuModel:
    """The state of one GPU. ``allowed``: the share of its clock range that temperature leaves it."""

    profile: GpuProfile
    rng: random.Random
    temp_c: float = 40.0
    fan: float = 0.3
    allowed: float = 1.0
    vram_mb: float = 300.0
    util: float = 0.0
    brake_left_s: float = 0.0
    lull_left_s: float = 0.0
    too_hot: bool = False

    def step(self, dt_s: float, util: float, vram_mb: float, air_c: float) -> GpuReading:
        """Move on by ``dt_s`` seconds under ``util`` (0-1), in air of ``air_c`` degrees."""
        p = self.profile
        busy = util > 0.02
        self.util = _settle(self.util, util * self._lull(dt_s), dt_s, 1.2)
        shown = min(1.0, max(0.0, self.util * (1.0 - 0.05 * self.rng.random()))) if busy or self.util > 0.02 else 0.0
        span = p.clock_max_mhz - p.clock_idle_mhz
        wanted = p.clock_max_mhz if busy else p.clock_idle_mhz
        heat_limit = p.clock_idle_mhz + span * self.allowed
        clock = min(wanted, heat_limit)

        dynamic = (p.full_w - p.idle_w) * shown
        free_w = p.idle_w + dynamic * (clock / p.clock_max_mhz) ** CLOCK_EXPONENT
        capped = 0.0
        if free_w > p.cap_w:
            clock = p.clock_max_mhz * ((p.cap_w - p.idle_w) / dynamic) ** (1.0 / CLOCK_EXPONENT)
            capped = min(1.0, (free_w - p.cap_w) / (0.05 * p.cap_w))

        pulled, edges = self._brake(dt_s, shown)
        edges += self._heat_brake()
        if self.too_hot:
            clock = min(clock, p.clock_max_mhz * 0.5)
        if pulled:
            clock *= 1.0 - 0.4 * pulled / dt_s
        power = p.idle_w + dynamic * (clock / p.clock_max_mhz) ** CLOCK_EXPONENT
        power *= 1.0 + 0.012 * (self.rng.random() - 0.5)
        clock = round(clock * (1.0 - 0.004 * self.rng.random()) / 15.0) * 15.0

        self._cool(dt_s, power, air_c)
        held = 0.0
        if busy and heat_limit < wanted:
            held = min(1.0, (1.0 - self.allowed) / 0.05)
        self.vram_mb = _settle(self.vram_mb, vram_mb, dt_s, 2.5)
        return GpuReading(
            util_pct=100.0 * shown,
            mem_mb=self.vram_mb,
            temp_c=self.temp_c + 0.3 * (self.rng.random() - 0.5),
            power_w=power,
            clock_mhz=clock,
            fan=self.fan,
            sw_power_ms=1000.0 * dt_s * capped,
            hw_brake_ms=1000.0 * pulled,
            sw_thermal_ms=1000.0 * dt_s * held,
            hw_thermal_ms=1000.0 * dt_s if self.too_hot else 0.0,
            brakes=edges,
        )

    def _lull(self, dt_s: float) -> float:
        """Between two frames or batches a job waits for its data: less work for a few seconds, now and then."""
        if self.lull_left_s <= 0 and self.rng.random() < dt_s / 150.0:
            self.lull_left_s = self.rng.uniform(2.0, 9.0)
        self.lull_left_s -= dt_s
        return 0.8 if self.lull_left_s > 0 else 1.0

    def _brake(self, dt_s: float, util: float) -> tuple[float, int]:
        """Seconds in this step during which the power supply pulls the brake, and its rising edges."""
        edge = 0
        if self.profile.brakes and self.brake_left_s <= 0 and util > 0.8 and self.rng.random() < dt_s / 900.0:
            self.brake_left_s = self.rng.uniform(1.5, 6.0)
            edge = 1
        pulled = min(dt_s, self.brake_left_s)
        self.brake_left_s -= pulled
        return pulled, edge

    def _heat_brake(self) -> int:
        """Far over the limit the hardware itself halves the clock, until it is cool again."""
        limit = self.profile.slowdown_c
        was, self.too_hot = self.too_hot, self.temp_c > (limit + 1.0 if self.too_hot else limit + 4.0)
        return int(self.too_hot and not was)

    def _cool(self, dt_s: float, power_w: float, air_c: float) -> None:
        p = self.profile
        resistance = p.c_per_w
        if p.fan != "none":
            wanted = 0.28 + 0.72 * min(1.0, max(0.0, (self.temp_c - 48.0) / (p.slowdown_c - 10.0 - 48.0)))
            self.fan += max(-0.03 * dt_s, min(0.05 * dt_s, wanted - self.fan))
            resistance *= 1.0 + 0.9 * (1.0 - self.fan)
        self.temp_c = _settle(self.temp_c, air_c + power_w * resistance, dt_s, p.tau_s)
        over = self.temp_c - p.slowdown_c
        if over > 0:
            self.allowed = max(0.35, self.allowed - 0.012 * dt_s * (0.4 + over))
        elif over < -2.5:
            self.allowed = min(1.0, self.allowed + 0.006 * dt_s)


@dataclass
class BoxModel:
    """The state of one box: its air, its CPU, its GPUs. Deterministic for a seed, a start and a row of loads."""

    profile: BoxProfile
    rng: random.Random = field(init=False)
    gpus: list[GpuModel] = field(init=False)
    air_c: float = field(init=False)
    cpu_temp_c: float = field(init=False)
    load1: float = 0.4
    mem_mb: float = field(init=False)
    allowed: float = 1.0
    clock_s: float = 0.0

    def __post_init__(self) -> None:
        p = self.profile
        self.rng = random.Random(p.seed)
        self.gpus = [GpuModel(g, random.Random(p.seed * 100 + i)) for i, g in enumerate(p.gpus)]
        self.air_c = p.ambient_c
        self.cpu_temp_c = p.ambient_c + p.cpu_idle_w * p.cpu_c_per_w
        self.mem_mb = p.base_mem_mb

    def step(self, dt_s: float, load: Load) -> BoxReading:
        """Move on by ``dt_s`` seconds (0 < dt_s <= 30) under ``load``."""
        p, rng = self.profile, self.rng
        self.clock_s += dt_s
        gpu_load = load.gpus + (0.0,) * (len(self.gpus) - len(load.gpus))
        vram = load.vram_mb + (0.0,) * (len(self.gpus) - len(load.vram_mb))
        gpus = tuple(model.step(dt_s, gpu_load[i], 420.0 + vram[i], self.air_c) for i, model in enumerate(self.gpus))

        noise = rng.random()
        busy = min(1.0, load.cores / p.cores + 0.006 + 0.012 * noise)
        mhz = p.cpu_min_mhz + (p.cpu_max_mhz - p.cpu_min_mhz) * self.allowed * (0.35 + 0.65 * min(1.0, 3.0 * busy))
        mhz *= 1.0 - 0.13 * max(0.0, busy - 0.5)  # all cores turbo lower than one
        power = p.cpu_idle_w + (p.cpu_full_w - p.cpu_idle_w) * busy * (mhz / p.cpu_max_mhz) ** 1.6
        gpu_w = sum(g.power_w for g in gpus)
        steady = self.air_c + power * p.cpu_c_per_w + (0.17 if p.shares_heat else 0.01) * gpu_w
        self.cpu_temp_c = _settle(self.cpu_temp_c, steady, dt_s, p.cpu_tau_s)
        over = self.cpu_temp_c - p.cpu_limit_c
        if over > 0:
            self.allowed = max(0.4, self.allowed - 0.01 * dt_s * (0.5 + over))
        elif over < -3:
            self.allowed = min(1.0, self.allowed + 0.01 * dt_s)
        self._warm_the_air(dt_s, power + gpu_w)

        self.load1 = _settle(self.load1, load.cores * 1.04 + 0.3 + 0.4 * noise, dt_s, 60.0)
        self.mem_mb = _settle(self.mem_mb, p.base_mem_mb + load.mem_mb, dt_s, 4.0)
        chatter = p.net_base_bps * (0.6 + 0.8 * rng.random())
        disk = load.disk_bps * (0.5 + rng.random()) + 9_000 * rng.random()
        fan = max([g.fan for g in gpus if g.fan], default=0.3)
        wanted = 0.25 + 0.75 * min(1.0, max(0.0, (self.cpu_temp_c - 45.0) / (p.cpu_limit_c - 50.0)))
        return BoxReading(
            cpu_pct=100.0 * busy,
            core_max_pct=min(100.0, 100.0 * busy + (97.0 if load.cores >= 1 else 14.0 * rng.random())),
            load1=self.load1,
            cpu_mhz=mhz,
            cpu_temp_c=self.cpu_temp_c + 0.6 * (rng.random() - 0.5),
            mem_mb=self.mem_mb,
            net_rx_bps=chatter + load.net_rx_bps * (0.7 + 0.6 * rng.random()),
            net_tx_bps=0.6 * chatter + load.net_tx_bps * (0.7 + 0.6 * rng.random()),
            disk_read_bps=disk,
            disk_write_bps=0.4 * disk + 30_000 * rng.random(),
            fan=max(fan, wanted) if p.shares_heat else wanted,
            air_c=self.air_c,
            gpus=gpus,
        )

    def _warm_the_air(self, dt_s: float, power_w: float) -> None:
        """The room breathes slowly, and a box that works hard warms what it breathes."""
        p = self.profile
        weather = 1.8 * math.sin(2.0 * math.pi * self.clock_s / 1560.0 + p.seed)
        soak = (0.034 if p.shares_heat else 0.009) * power_w
        self.air_c = _settle(self.air_c, p.ambient_c + weather + soak, dt_s, 240.0)
