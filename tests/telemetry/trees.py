"""Machines as directory trees: /proc, /sys and /dev with the contents that real ones show."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

MEMINFO = """MemTotal:       {total} kB
MemFree:         1024000 kB
MemAvailable:   {available} kB
Buffers:          204800 kB
SwapTotal:       8388608 kB
SwapFree:        8126464 kB
"""


def put(root: Path, files: dict[str, str | int | bytes]) -> Path:
    """Write files below ``root``."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(f"{content}\n")
    return root


def host(root: Path, **changes: Any) -> Path:
    """An Intel desktop: 4 threads on 2 cores, a package thermometer, fans, one network card beside Docker's."""
    put(
        root,
        {
            "proc/stat": stat(busy=1000, idle=9000),
            "proc/loadavg": "3.25 2.10 1.00 2/345 6789",
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: Intel(R) Core(TM) i7-12700\nflags\t\t: fpu vme\n",
            "proc/meminfo": MEMINFO.format(total=32768 * 1024, available=24576 * 1024),
            "proc/net/dev": net(eno1=(1000, 500)),
            "proc/diskstats": disks(nvme0n1=(0, 0)),
            "proc/sys/kernel/osrelease": "6.8.0-45-generic",
            "etc/machine-id": "0123456789abcdef0123456789abcdef",
            "sys/class/net/eno1/device/vendor": "0x8086",
            "sys/class/thermal/thermal_zone0/type": "acpitz",
            "sys/class/thermal/thermal_zone0/temp": 27800,
            "sys/class/thermal/thermal_zone1/type": "x86_pkg_temp",
            "sys/class/thermal/thermal_zone1/temp": 61000,
            "sys/class/hwmon/hwmon0/name": "coretemp",
            "sys/class/hwmon/hwmon0/temp1_label": "Package id 0",
            "sys/class/hwmon/hwmon0/temp1_input": 62000,
            "sys/class/hwmon/hwmon0/temp2_label": "Core 0",
            "sys/class/hwmon/hwmon0/temp2_input": 60000,
            "sys/class/hwmon/hwmon1/name": "nct6798",
            "sys/class/hwmon/hwmon1/temp1_label": "SYSTIN",
            "sys/class/hwmon/hwmon1/temp1_input": 34000,
            "sys/class/hwmon/hwmon1/temp2_label": "AUXTIN0",
            "sys/class/hwmon/hwmon1/temp2_input": 127500,
            "sys/class/hwmon/hwmon1/temp3_label": "AUXTIN1",
            "sys/class/hwmon/hwmon1/temp3_input": -62000,
            "sys/class/hwmon/hwmon1/fan1_input": 1180,
            "sys/class/hwmon/hwmon1/fan2_input": 0,
            "sys/class/hwmon/hwmon2/name": "nvme",
            "sys/class/hwmon/hwmon2/temp1_label": "Composite",
            "sys/class/hwmon/hwmon2/temp1_input": 44850,
        },
    )
    for cpu in range(4):
        base = f"sys/devices/system/cpu/cpu{cpu}"
        put(
            root,
            {
                f"{base}/cpufreq/scaling_cur_freq": 3_000_000 + 200_000 * cpu,
                f"{base}/topology/physical_package_id": 0,
                f"{base}/topology/core_id": cpu // 2,
                f"{base}/thermal_throttle/package_throttle_total_time_ms": 5000,
                f"{base}/thermal_throttle/core_throttle_total_time_ms": 1000,
            },
        )
    return put(root, changes)


def stat(busy: int, idle: int, cores: tuple[tuple[int, int], ...] = ()) -> str:
    """/proc/stat in ticks; ``cores`` as (busy, idle)."""
    lines = [f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0"]
    for number, (core_busy, core_idle) in enumerate(cores or ((busy // 4, idle // 4),) * 4):
        lines.append(f"cpu{number} {core_busy} 0 0 {core_idle} 0 0 0 0 0 0")
    return "\n".join([*lines, "intr 123456 0 0", "ctxt 1"])


def net(**interfaces: tuple[int, int]) -> str:
    """/proc/net/dev with received and sent bytes."""
    head = "Inter-|   Receive  |  Transmit\n face |bytes packets\n"
    return head + "\n".join(
        f"{name:>8}: {rx} 1 0 0 0 0 0 0 {tx} 1 0 0 0 0 0 0"
        for name, (rx, tx) in {"lo": (9**9, 9**9), **interfaces}.items()
    )


def disks(**devices: tuple[int, int]) -> str:
    """/proc/diskstats with bytes read and written; partitions and loops too."""
    lines = ["   7       0 loop0 5 0 4096 0 5 0 4096 0 0 0 0"]
    for name, (read, written) in devices.items():
        numbers = f"1 0 {read // 512} 0 1 0 {written // 512} 0 0 0 0"
        lines += [f" 259       0 {name} {numbers}", f" 259       1 {name}p1 {numbers}"]
    return "\n".join(lines)


def amd_card(root: Path, number: int = 0, **changes: str | int | bytes) -> Path:
    """An RX 7900 as amdgpu shows it."""
    base = f"sys/class/drm/card{number}/device"
    put(
        root,
        {
            f"{base}/vendor": "0x1002",
            f"{base}/device": "0x744c",
            f"{base}/uevent": f"DRIVER=amdgpu\nPCI_SLOT_NAME=0000:0{3 + number}:00.0",
            f"{base}/unique_id": f"a1b2c3d4e5f6000{number}",
            f"{base}/gpu_busy_percent": 37,
            f"{base}/mem_info_vram_used": 4096 * 1024 * 1024,
            f"{base}/mem_info_vram_total": 24560 * 1024 * 1024,
            f"{base}/mem_info_gtt_used": 512 * 1024 * 1024,
            f"{base}/mem_info_gtt_total": 16000 * 1024 * 1024,
            f"{base}/current_link_speed": "16.0 GT/s PCIe",
            f"{base}/current_link_width": 16,
            f"{base}/pp_dpm_sclk": "0: 500Mhz *\n1: 2482Mhz",
            f"{base}/gpu_metrics": metrics_v1_3(0),
            f"{base}/hwmon/hwmon4/name": "amdgpu",
            f"{base}/hwmon/hwmon4/temp1_label": "edge",
            f"{base}/hwmon/hwmon4/temp1_input": 37000,
            f"{base}/hwmon/hwmon4/temp1_crit": 100000,
            f"{base}/hwmon/hwmon4/temp2_label": "junction",
            f"{base}/hwmon/hwmon4/temp2_input": 41000,
            f"{base}/hwmon/hwmon4/temp2_crit": 110000,
            f"{base}/hwmon/hwmon4/temp3_label": "mem",
            f"{base}/hwmon/hwmon4/temp3_input": 52000,
            f"{base}/hwmon/hwmon4/power1_average": 31_000_000,
            f"{base}/hwmon/hwmon4/power1_cap": 303_000_000,
            f"{base}/hwmon/hwmon4/fan1_input": 620,
            f"{base}/hwmon/hwmon4/pwm1": 51,
            f"{base}/hwmon/hwmon4/pwm1_max": 255,
            f"{base}/hwmon/hwmon4/freq1_input": 500_000_000,
        },
    )
    return put(root, {f"{base}/{name}": content for name, content in changes.items()})


def metrics_v1_3(throttle_status: int) -> bytes:
    """A gpu_metrics table of format 1.3: 120 bytes, the status word last."""
    return struct.pack("<HBB", 120, 1, 3) + bytes(108) + struct.pack("<Q", throttle_status)


def metrics_v3_0(residencies_us: tuple[int, ...], size: int = 264) -> bytes:
    """A table of format 3.0: prochot, spl, fppt, sppt, thm_core, thm_gfx, thm_soc at 228 onwards."""
    table = bytearray(size)
    struct.pack_into("<HBB", table, 0, size, 3, 0)
    if size >= 264:
        struct.pack_into("<7I", table, 228, *residencies_us)
    return bytes(table)


def metrics_v1_6(cycles: int, residencies: tuple[int, ...], content: int = 6) -> bytes:
    """A table of format 1.6 to 1.8: cycle counter; prochot, ppt, socket, regulator and memory heat in its cycles."""
    table = bytearray(320)
    struct.pack_into("<HBB", table, 0, len(table), 1, content)
    struct.pack_into("<H", table, 10, 512)
    first = 32 if content == 6 else 40
    struct.pack_into("<6I", table, first, cycles, *residencies)
    return bytes(table)
