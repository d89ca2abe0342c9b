"""The three meters of a box: CPU, each GPU, memory. None is ``n/a``, never an empty bar that looks like idle."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from engine.telemetry.limits import UNKNOWN_GPU
from flightdeck.charts.cells import bar
from flightdeck.model import units
from flightdeck.model.fleet import Box, Device
from flightdeck.model.traces import History, gpu_identity
from flightdeck.widgets.lines import Glyphs, Line, Row, Span

if TYPE_CHECKING:
    from engine.telemetry.sample import BoxSample, GpuSample

CPU_WARM_C, CPU_HOT_C = 90.0, 97.0  # of a class that says nothing


_BAR = {"ok": "ok", "warn": "warn", "hot": "bad"}


def heat(value: float | None, warm: float, hot: float) -> str:
    """The tone of a temperature."""
    if not units.known(value):
        return "dim"
    assert value is not None
    return "bad" if value >= hot else "warn" if value >= warm else "text"


def gpu_limits(device: Device | None) -> tuple[float, float]:
    """(warm, hot) of a GPU: of its class, else from its own slowdown temperature where it tells one."""
    level = device.heat if device is not None else None
    return (level.warn, level.hot) if level is not None else (UNKNOWN_GPU.warn, UNKNOWN_GPU.hot)


def cpu_limits(box: Box) -> tuple[float, float]:
    """(warm, hot) of a box's processor and zones, of its class."""
    level = box.limits.cpu_c
    return (level.warn, level.hot) if level is not None else (CPU_WARM_C, CPU_HOT_C)


def meter_row(
    label: str, fraction: float | None, tone: str, after: list[Span], width: int, bar_w: int, g: Glyphs
) -> Line:
    """``CPU ======----  62%  71 C ...``: the figures stand in fixed cells."""
    row = Row(width).add(label, "dim", 5)
    filled = bar(fraction, bar_w)
    row.add(g.full * filled, tone)
    row.add(g.track * (bar_w - filled), "track")
    row.add(" ")
    row.add(
        units.percent(None if fraction is None else fraction * 100.0),
        "bright" if fraction is not None else "dim",
        4,
        ">",
    )
    for text, style in after:
        row.add(text, style)
    return row.done()


def bar_width(width: int) -> int:
    return max(4, min(40, width - 38))


def cpu_row(box: Box, sample: BoxSample | None, width: int, g: Glyphs) -> Line:
    pct = sample.cpu_pct if sample is not None else None
    temp, zone = (sample.cpu_temp_c, sample.zone_max_c) if sample is not None else (None, None)
    shown = temp if units.known(temp) else zone
    after: list[Span] = [
        *_figure(units.number(shown), " C", 7, heat(shown, *cpu_limits(box))),
        (_cell("", 8), "dim"),
        *_figure(units.gigahertz(sample.cpu_mhz if sample is not None else None), " GHz", 9),
    ]
    return meter_row("CPU", _fraction(pct), "ok", after, width, bar_width(width), g)


def memory_row(box: Box, sample: BoxSample | None, width: int, g: Glyphs) -> Line:
    used = sample.mem_used_mb if sample is not None else None
    total = sample.mem_total_mb if sample is not None and sample.mem_total_mb else box.mem_mb
    fraction = used / total if units.known(used) and used is not None and total else None
    level = box.limits.memory_pct
    tone = "ok" if fraction is None or level is None else _BAR[level.tone(fraction * 100.0)]
    after: list[Span] = [
        (_cell(units.gigabytes(used), 7), "text"),
        (" / ", "dim"),
        (units.gigabytes(total), "text"),
        (" G", "dim"),
    ]
    if any(device.unified for device in box.devices):
        after.append(("  unified", "dim"))
    return meter_row("MEM", fraction, tone, after, width, bar_width(width), g)


def gpu_rows(box: Box, history: History, now: datetime, width: int, g: Glyphs, most: int = 2) -> list[Line]:
    """A row per GPU; more than ``most`` share one row that says how many and shows the worst."""
    sample = history.latest
    if not box.devices and (sample is None or not sample.gpus):
        return [Row(width).add("GPU", "dim", 5).add("n/a  no GPU in this box", "faint").done()]
    gpus = list(sample.gpus) if sample is not None else []
    if not gpus:
        return [Row(width).add("GPU", "dim", 5).add("n/a  not read", "faint").done()]
    if len(gpus) <= most:
        return [_gpu_row(gpu, box, history, now, width, g, len(gpus) > 1) for gpu in gpus]
    return [_many_row(gpus, box, width, g)]


def device_of(box: Box, gpu: GpuSample) -> Device | None:
    for device in box.devices:
        if gpu.gpu_uuid and device.uuid == gpu.gpu_uuid:
            return device
    return next((device for device in box.devices if device.index == gpu.gpu_index), None)


def _gpu_row(gpu: GpuSample, box: Box, history: History, now: datetime, width: int, g: Glyphs, numbered: bool) -> Line:
    label = f"GPU{gpu.gpu_index}" if numbered else "GPU"
    device = device_of(box, gpu)
    if gpu.state in ("lost", "error", "asleep"):
        return _absent_row(gpu, label, history, now, width)
    after: list[Span] = [
        *_figure(units.number(gpu.temp_c), " C", 7, heat(gpu.temp_c, *gpu_limits(device))),
        *_figure(units.watts(gpu.power_w), " W", 7),
        (" ", "dim"),
    ]
    room = width - bar_width(width) - 10 - sum(len(text) for text, _ in after)
    if units.known(gpu.sm_mhz):
        after += [(_cell(units.number(gpu.sm_mhz), 5), "text"), (" MHz", "dim")]
        room -= 9
    if gpu.mem_total_mb and not (device is not None and device.unified):
        memory = f"  {units.number((gpu.mem_used_mb or 0.0) / 1024.0)}/{units.number(gpu.mem_total_mb / 1024.0)}"
        if len(memory) + 2 <= room and units.known(gpu.mem_used_mb):
            after += [(memory, "text"), (" G", "dim")]
    return meter_row(label, _fraction(gpu.util_pct), "info", after, width, bar_width(width), g)


def _absent_row(gpu: GpuSample, label: str, history: History, now: datetime, width: int) -> Line:
    """A GPU that does not answer: what was last known and how old it is."""
    row = Row(width).add(label, "dim", 5)
    if gpu.state == "asleep":
        return row.add("asleep", "info").add("  powered down, not woken to be read", "faint").done()
    row.add("LOST" if gpu.state == "lost" else "ERROR", "bad+b")
    before = history.gpu_alive.get(gpu_identity(gpu))
    if before is None:
        return row.add("  never answered" if gpu.state == "lost" else "  the probe fails", "dim").done()
    old, at = before
    row.add("  last ", "dim").add(f"{units.number(old.temp_c)} C  {units.watts(old.power_w)} W", "text")
    return row.add(f"  {units.ago((now - at).total_seconds())}", "dim").done()


def _many_row(gpus: list[GpuSample], box: Box, width: int, g: Glyphs) -> Line:
    alive = [gpu for gpu in gpus if gpu.state == "ok"]
    lost = sum(gpu.state in ("lost", "error") for gpu in gpus)
    use = [gpu.util_pct for gpu in alive if units.known(gpu.util_pct) and gpu.util_pct is not None]
    temps = [(gpu.temp_c, gpu) for gpu in alive if units.known(gpu.temp_c) and gpu.temp_c is not None]
    power = [gpu.power_w for gpu in alive if units.known(gpu.power_w) and gpu.power_w is not None]
    hottest = max(temps, key=lambda pair: pair[0], default=None)
    after: list[Span] = [
        (
            _cell(units.number(hottest[0] if hottest else None), 5),
            heat(hottest[0], *gpu_limits(device_of(box, hottest[1]))) if hottest else "dim",
        ),
        (" C", "dim"),
        (_cell(units.watts(sum(power) if power else None), 5), "text"),
        (" W ", "dim"),
        (f" x{len(gpus)}", "text"),
    ]
    if lost:
        after.append((f"  {lost} LOST", "bad+b"))
    mean = sum(use) / len(use) if use else None
    return meter_row("GPUs", _fraction(mean), "info", after, width, bar_width(width), g)


def _fraction(pct: float | None) -> float | None:
    return pct / 100.0 if units.known(pct) and pct is not None else None


def _figure(number: str, unit: str, width: int, style: str = "text") -> list[Span]:
    """A figure with its unit, flush right in ``width`` cells; the unit only where there is a figure."""
    if number == units.NA:
        return [(_cell(number, width), "faint")]
    return [(_cell(number, width - len(unit)), style), (unit, "dim")]


def _cell(text: str, width: int) -> str:
    return text.rjust(width)
