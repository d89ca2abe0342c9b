"""The three boxes of the demo: what they are made of. Their names are ours; the figures are those of such machines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuProfile:
    """One GPU: its nameplate, and the few constants that make its temperature and clock move as they should."""

    name: str
    uuid: str
    vendor: str  # "nvidia" | "amd"
    mem_mb: float | None  # None: unified with the box's memory
    idle_w: float
    full_w: float  # what full load would draw if nothing limited it
    cap_w: float  # where the firmware holds it
    cap_reported: bool
    clock_idle_mhz: float
    clock_max_mhz: float
    clock_reported: bool
    slowdown_c: float  # the driver starts to take clocks away here
    shutdown_c: float
    slowdown_reported: bool
    c_per_w: float  # steady state above the air around it, fan at full speed
    tau_s: float  # thermal mass: seconds to 63 % of a step
    fan: str  # "none" | "rpm" | "pct"
    fan_max_rpm: float
    throttle: str  # "counter" | "none": what the driver offers
    pcie: tuple[int, int] | None
    brakes: bool  # whether its power supply pulls the brake now and then


@dataclass(frozen=True)
class BoxProfile:
    """One simulated box. ``gpu_of_project``: which GPU a project's gpu lane has; ``seed`` makes its weather."""

    name: str
    description: str
    seed: int
    cpu_model: str
    cores: int
    mem_mb: float
    driver: str
    kernel: str
    gpus: tuple[GpuProfile, ...]
    gpu_of_project: tuple[tuple[str, int], ...]
    ambient_c: float
    cpu_idle_w: float
    cpu_full_w: float
    cpu_c_per_w: float
    cpu_tau_s: float
    cpu_limit_c: float
    cpu_min_mhz: float
    cpu_max_mhz: float
    zone: str
    fan_max_rpm: float | None
    base_mem_mb: float
    net_base_bps: float
    shares_heat: bool  # CPU and GPU under one heatsink

    @property
    def machine_id(self) -> str:
        """Fixed per name, so that a restarted demo is the same machine."""
        return f"simulated-{self.name}"


KESTREL = BoxProfile(
    name="kestrel",
    description="simulated · unified memory",
    seed=11,
    cpu_model="Arm Cortex-X925 / A725",
    cores=20,
    mem_mb=124_500,
    driver="580.95.05",
    kernel="6.11.0-1016-nvidia",
    gpus=(
        GpuProfile(
            name="NVIDIA GB10",
            uuid="GPU-51ed0000-0000-4000-8000-00000000000a",
            vendor="nvidia",
            mem_mb=None,
            idle_w=11,
            full_w=128,
            cap_w=102,
            cap_reported=False,
            clock_idle_mhz=1200,
            clock_max_mhz=2418,
            clock_reported=True,
            slowdown_c=84,
            shutdown_c=98,
            slowdown_reported=True,
            c_per_w=0.575,
            tau_s=75,
            fan="none",
            fan_max_rpm=0,
            throttle="counter",
            pcie=None,
            brakes=True,
        ),
    ),
    gpu_of_project=(("render", 0),),
    ambient_c=27,
    cpu_idle_w=9,
    cpu_full_w=62,
    cpu_c_per_w=0.85,
    cpu_tau_s=22,
    cpu_limit_c=99,
    cpu_min_mhz=1380,
    cpu_max_mhz=3354,
    zone="acpitz",
    fan_max_rpm=None,
    base_mem_mb=11_800,
    net_base_bps=38_000,
    shares_heat=True,
)

HARRIER = BoxProfile(
    name="harrier",
    description="simulated · shared memory",
    seed=23,
    cpu_model="AMD Ryzen AI Max+ 395",
    cores=32,
    mem_mb=127_000,
    driver="amdgpu 6.14",
    kernel="6.14.2-zen",
    gpus=(
        GpuProfile(
            name="AMD Radeon 8060S",
            uuid="amd-0000:c6:00.0",
            vendor="amd",
            mem_mb=None,
            idle_w=9,
            full_w=118,
            cap_w=112,
            cap_reported=False,
            clock_idle_mhz=600,
            clock_max_mhz=2900,
            clock_reported=False,
            slowdown_c=96,
            shutdown_c=105,
            slowdown_reported=False,
            c_per_w=0.36,
            tau_s=55,
            fan="rpm",
            fan_max_rpm=4300,
            throttle="none",
            pcie=None,
            brakes=False,
        ),
    ),
    gpu_of_project=(("speech", 0),),
    ambient_c=24,
    cpu_idle_w=8,
    cpu_full_w=95,
    cpu_c_per_w=0.58,
    cpu_tau_s=18,
    cpu_limit_c=97,
    cpu_min_mhz=2000,
    cpu_max_mhz=5100,
    zone="Tctl",
    fan_max_rpm=4300,
    base_mem_mb=9_400,
    net_base_bps=110_000,
    shares_heat=True,
)


def _ada(index: int, c_per_w: float) -> GpuProfile:
    return GpuProfile(
        name="NVIDIA RTX 6000 Ada",
        uuid=f"GPU-05e90000-0000-4000-8000-00000000000{index}",
        vendor="nvidia",
        mem_mb=49_140,
        idle_w=21,
        full_w=338,
        cap_w=300,
        cap_reported=True,
        clock_idle_mhz=210,
        clock_max_mhz=2820,
        clock_reported=True,
        slowdown_c=88,
        shutdown_c=96,
        slowdown_reported=True,
        c_per_w=c_per_w,
        tau_s=48,
        fan="pct",
        fan_max_rpm=4800,
        throttle="counter",
        pcie=(4, 16),
        brakes=False,
    )


OSPREY = BoxProfile(
    name="osprey",
    description="simulated · two cards",
    seed=37,
    cpu_model="AMD EPYC 9254",
    cores=48,
    mem_mb=257_600,
    driver="570.133.20",
    kernel="6.8.0-60-generic",
    # The second card breathes the first one's exhaust, as second cards do.
    gpus=(_ada(0, 0.158), _ada(1, 0.192)),
    gpu_of_project=(("render", 0), ("speech", 1)),
    ambient_c=25,
    cpu_idle_w=62,
    cpu_full_w=205,
    cpu_c_per_w=0.21,
    cpu_tau_s=30,
    cpu_limit_c=95,
    cpu_min_mhz=1500,
    cpu_max_mhz=4150,
    zone="Tctl",
    fan_max_rpm=5200,
    base_mem_mb=14_600,
    net_base_bps=260_000,
    shares_heat=False,
)

PROFILES: tuple[BoxProfile, ...] = (KESTREL, HARRIER, OSPREY)
