"""Named sensors, processes and what is not there and why, in a column of fixed cells. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from flightdeck.model import units
from flightdeck.model.box_detail import Process, Sensors
from flightdeck.widgets.lines import Line, Row, Span, fit
from flightdeck.widgets.meter import heat

VALUE_CELLS = 14
_FULL_PCT = 90.0
NOT_READ = "no detail of this box has been read yet"

# What a sensor's absence is called in a row; in the order of the sections.
_ABSENT = {
    "zone_max_c": "zones", "cpu_temp_c": "cpu temp", "fan_max_rpm": "fans", "net_rx_bps": "network",
    "disk_read_bps": "disks", "cpu_throttle_ms": "cpu throttling", "cpu_mhz": "cpu clock",
}  # fmt: skip


@dataclass(frozen=True)
class Section:
    """A heading and its rows: (name, value, tone); the value stands right."""

    title: str
    rows: tuple[tuple[str, str, str], ...]
    reason: str = ""  # why there are no rows


def sections(sensors: Sensors, limits: tuple[float, float], stale: bool = False) -> list[Section]:
    """Everything named that one sample brought, most telling first. ``limits``: Celsius, (warm, hot) of a zone."""
    absent = sensors.absent
    if not sensors.offered:
        return [Section("SENSORS", (), NOT_READ)]
    tone = "dim" if stale else "text"
    found = [
        Section("ZONES", tuple((name, f"{units.number(value, 1)} C", heat(value, *limits) if not stale else tone)
                               for name, value in sensors.zones), absent.get("zone_max_c", "no thermometer")),
        Section("FANS", tuple((name, f"{units.number(value)} rpm", tone) for name, value in sensors.fans),
                absent.get("fan_max_rpm", "no fan tach")),
        Section("RAILS", tuple((name, f"{units.number(value, 1)} W", tone) for name, value in sensors.rails),
                absent.get("rails", "no power rail offered")),
        Section("NETWORK", tuple((name, f"{units.rate(rx)} in {units.rate(tx)} out", tone) for name, (rx, tx) in sensors.net),
                absent.get("net_rx_bps", "no interface")),
        Section("DISKS", (*((name, f"{units.rate(r)} rd {units.rate(w)} wr", tone) for name, (r, w) in sensors.disks),
                          *((name, f"{units.percent(used)} full", "warn" if used >= _FULL_PCT else tone) for name, used in sensors.mounts)),
                absent.get("disk_read_bps", "no disk of its own")),
    ]  # fmt: skip
    if sensors.pressure:
        waits = tuple((name, f"{units.number(share, 1)}% waiting", tone) for name, share in sensors.pressure)
        found.append(Section("PRESSURE", waits))
    return found


def other_absences(sensors: Sensors) -> list[tuple[str, str]]:
    """(what, why) of the box's own columns that have no section."""
    covered = {"zone_max_c", "fan_max_rpm", "net_rx_bps", "net_tx_bps", "disk_read_bps", "disk_write_bps"}
    return [(_ABSENT.get(name, name), why) for name, why in sensors.absent.items() if name not in covered]


def sensor_lines(
    sensors: Sensors, limits: tuple[float, float], width: int, rows: int, stale: bool = False
) -> list[Line]:
    """``rows`` lines: sections below each other; where there is no room each keeps its first rows and says how many more."""
    if rows <= 0:
        return []
    shown = sections(sensors, limits, stale)
    missing = [section for section in shown if not section.rows]
    full = [section for section in shown if section.rows]
    away = [(section.title.lower(), section.reason) for section in missing] + other_absences(sensors)
    reasons = min(len(away), max(0, rows - sum(2 for _ in full)))
    room = rows - reasons
    out: list[Line] = []
    sizes = _shares([len(section.rows) for section in full], room)
    spare = room - sum(sizes)
    for section, size in zip(full, sizes, strict=True):
        if out and spare > 0:
            spare -= 1
            out.append(Row(width).done())
        out += _section(section, width, size)
    if out and reasons and spare > 0:
        out.append(Row(width).done())
    for what, why in away[:reasons]:
        out.append(
            Row(width)
            .add(fit(what, min(cell_len(what), width)), "dim")
            .add("  n/a  ", "faint")
            .add(why, "faint")
            .done()
        )
    while len(out) < rows:
        out.append(Row(width).done())
    return out[:rows]


def _shares(wanted: Sequence[int], room: int) -> list[int]:
    """Lines for each section, its heading included: all that it wants, else evenly less. 0: not even the heading fits."""
    sizes = [0] * len(wanted)
    for index in range(len(wanted)):  # a heading and one row each first
        if room >= 2:
            sizes[index], room = 2, room - 2
    while room > 0:
        open_ = [index for index, size in enumerate(sizes) if size and size < wanted[index] + 1]
        if not open_:
            break
        least = min(open_, key=lambda index: sizes[index])
        sizes[least] += 1
        room -= 1
    return sizes


def _section(section: Section, width: int, size: int) -> list[Line]:
    if size <= 0:
        return []
    room = size - 1
    shown = section.rows[:room]
    more = len(section.rows) - len(shown)
    heading = Row(width).add(section.title, "dim")
    if more:
        heading.right((f"+{more} more", "faint"))
    lines = [heading.done()]
    for name, value, tone in shown:
        row = (
            Row(width).add("  ").add(fit(name, max(1, width - 3 - cell_len(value))), "text" if tone != "dim" else "dim")
        )
        lines.append(row.right((value, tone)).done())
    return lines


def short_parts(sensors: Sensors, limits: tuple[float, float]) -> list[list[Span]]:
    """The most telling of it for one or two lines of a narrow screen: hottest zones, fans, fullest disk, network."""
    parts: list[list[Span]] = []
    if not sensors.offered:
        return [[("sensors ", "dim"), ("n/a ", "faint"), (NOT_READ, "faint")]]
    for name, value in sensors.zones[:3]:
        parts.append(
            [
                (f"{fit(name, min(cell_len(name), 16))} ", "dim"),
                (f"{units.number(value)} C", heat(value, *limits)),
            ]
        )
    if sensors.fans:
        name, value = max(sensors.fans, key=lambda pair: pair[1])
        parts.append([("fan ", "dim"), (f"{units.number(value)} rpm", "text")])
    elif sensors.offered:
        parts.append([("fan ", "dim"), ("n/a ", "faint"), (sensors.absent.get("fan_max_rpm", "no fan tach"), "faint")])
    for name, (rx, tx) in sensors.net[:1]:
        parts.append(
            [(f"{fit(name, min(cell_len(name), 12))} ", "dim"), (f"{units.rate(rx)} in {units.rate(tx)} out", "text")]
        )
    for name, (read, written) in sensors.disks[:1]:
        parts.append(
            [
                (f"{fit(name, min(cell_len(name), 12))} ", "dim"),
                (f"{units.rate(read)} rd {units.rate(written)} wr", "text"),
            ]
        )
    if sensors.mounts:
        name, used = max(sensors.mounts, key=lambda pair: pair[1])
        parts.append(
            [
                (f"{fit(name, min(cell_len(name), 16))} ", "dim"),
                (f"{units.percent(used)} full", "warn" if used >= _FULL_PCT else "text"),
            ]
        )
    for name, watts in sensors.rails[:1]:
        parts.append([(f"{fit(name, min(cell_len(name), 14))} ", "dim"), (f"{units.number(watts, 1)} W", "text")])
    return parts


def process_lines(processes: Sequence[Process] | None, gpu_index: int | None, width: int, rows: int) -> list[Line]:
    """Who uses the GPUs, largest first; those of the chosen GPU are bright."""
    if rows <= 0:
        return []
    heading = Row(width).add("PROCESSES", "dim")
    if processes is None:
        return [heading.add("  n/a  not looked for by this recorder", "faint").done()]
    if not processes:
        return [heading.add("  none uses a GPU", "faint").done()]
    mine = sorted(processes, key=lambda row: row.gpu_index != gpu_index)
    shown = mine[: rows - 1]
    if len(mine) > len(shown):
        heading.right((f"+{len(mine) - len(shown)} more", "faint"))
    lines = [heading.done()]
    for process in shown:
        here = process.gpu_index == gpu_index
        memory = f"{units.gigabytes(process.mem_mb)} G" if process.mem_mb is not None else units.NA
        on = f"gpu {process.gpu_index}" if process.gpu_index is not None else ""
        pid = "-" if process.pid is None else str(process.pid)
        row = (
            Row(width)
            .add("  ")
            .add(pid, "dim", 8, ">")
            .add(" ")
            .add(fit(process.name, max(1, width - 27)), "text" if here else "dim")
        )
        lines.append(
            row.right((on.rjust(7), "text" if here else "faint"), (memory.rjust(9), "text" if here else "dim")).done()
        )
    return lines
