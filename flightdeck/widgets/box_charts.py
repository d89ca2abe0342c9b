"""Which charts a box has, and how each is filled from what is known: its samples, its past, the chosen GPU's own series."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flightdeck.charts.big import Chart, ChartCache, Limit, big_chart
from flightdeck.model import units
from flightdeck.model.box_detail import Attempt, Facts, Sensors
from flightdeck.model.fleet import Box, Device
from flightdeck.model.gpu_series import Card, Series
from flightdeck.model.metrics import BY_KEY, Metric
from flightdeck.model.slots import Columns, Pair
from flightdeck.model.timeline import Timeline
from flightdeck.model.traces import History
from flightdeck.widgets.lines import Line
from flightdeck.widgets.meter import cpu_limits, gpu_limits
from flightdeck.widgets.scene import Scene

if TYPE_CHECKING:
    from engine.telemetry.sample import GpuSample

# The charts of a GPU: as a metric, and the trace of the overview that says the same where a box has one GPU.
GPU_CHARTS = (
    (Metric("card_c", "GPU C", "temp", True, "temp_c"), "gpu_c"),
    (Metric("card_w", "GPU W", "watts", True, "power_w"), "gpu_w"),
    (Metric("card_mhz", "GPU MHz", "mhz", True, "sm_mhz"), "gpu_mhz"),
    (Metric("card_pct", "GPU use %", "pct", True, "util_pct"), "gpu_pct"),
    (Metric("card_mem", "GPU MEM G", "mem", True, "mem_used_mb"), ""),
    (Metric("card_mem_c", "GPU MEM C", "temp", True, "mem_temp_c"), ""),
    (Metric("card_fan", "GPU FAN %", "pct", True, "fan_pct"), ""),
)
_ALWAYS = ("card_c", "card_w", "card_mhz", "card_pct")  # also where there is none, with the reason
# Of processor and zones the hotter says more; where there is no sensor in the processor the zones stand for it.
HOST_CHARTS = ("cpu_c", "zone_c", "cpu_pct", "cpu_mhz", "mem", "net_rx", "net_tx", "core", "disk_read", "disk_write")


@dataclass
class BoxView:
    """What a box page has read and what is chosen on it."""

    gpu: str = ""  # identity of the chosen GPU
    chart: int = 0  # how far the charts are turned
    facts: Facts = field(default_factory=Facts)
    sensors: Sensors = field(default_factory=Sensors)
    series: Series = field(default_factory=Series)
    jobs: tuple[Attempt, ...] = ()
    more_jobs: bool = False
    jobs_note: str = "not read yet"  # why there are no jobs; empty: they were read
    cards: tuple[GpuSample, ...] = ()  # of the database, for a box that no live sample came from
    scales: History = field(default_factory=History)  # remembers the ranges of the charts
    cache: ChartCache = field(default_factory=ChartCache)

    def card(self) -> Card | None:
        return self.series.cards.get(self.gpu)


@dataclass(frozen=True)
class Wanted:
    """One chart that could be drawn."""

    metric: Metric
    columns: Columns
    now: float | None
    limits: tuple[Limit, ...] = ()
    hint: float | None = None
    tone: str = "info"
    note: str = ""
    title: str = ""


def gpu_wanted(
    scene: Scene, box: Box, view: BoxView, gpu: GpuSample | None, device: Device | None, line: Timeline, many: int
) -> list[Wanted]:
    """The charts of the chosen GPU; of a box with several that were not read yet the worst of them, and says so."""
    if gpu is None:
        return []
    card, past = view.card(), scene.deck.past(box, line.span_s)
    absent = view.sensors.gpu_absent.get(gpu.gpu_index, {})
    found = []
    for metric, same in GPU_CHARTS:
        columns: Columns = []
        title = metric.label
        if card is not None:
            columns = card.columns(metric.column, line)
        elif same:
            columns = _ring(past, same, line)
            title = metric.label if many == 1 else f"{metric.label} worst of {many}"
        empty = not any(columns)
        if empty and metric.key not in _ALWAYS:
            continue
        if metric.key == "card_mem" and device is not None and device.unified:
            continue
        now = getattr(gpu, metric.column) if gpu.state == "ok" else None
        why = absent.get(metric.column) or (
            "no reading in this window" if units.known(now) else "the driver reports none"
        )
        limits, hint = _gpu_limits(metric, gpu, device)
        found.append(
            Wanted(metric, columns, now, limits, hint, _gpu_tone(metric, now, device), why if empty else "", title)
        )
    return found


def host_wanted(scene: Scene, box: Box, line: Timeline) -> list[Wanted]:
    """The charts of the box itself: what has readings in the window, in a fixed order."""
    past, sample = scene.deck.past(box, line.span_s), scene.deck.history(box).latest
    found = []
    for key in HOST_CHARTS:
        metric = BY_KEY.get(key)
        if metric is None:
            continue
        columns = _ring(past, key, line)
        if not any(columns):
            continue
        now = getattr(sample, metric.column, None) if sample is not None else None
        tone = {"temp": "info", "pct": "ok"}.get(metric.kind, "cyan")
        if metric.kind == "temp" and units.known(now) and now is not None:
            warm, hot = cpu_limits(box)
            tone = "bad" if now >= hot else "warn" if now >= warm else "info"
        hint = box.mem_mb if metric.kind == "mem" else None
        found.append(Wanted(metric, columns, now, (), hint, tone))
    if any(wanted.metric.key == "cpu_c" for wanted in found):
        found.sort(key=lambda wanted: wanted.metric.key == "zone_c")  # says nearly the same: last
    return found


def draw(
    scene: Scene, box: Box, view: BoxView, wanted: Wanted, line: Timeline, width: int, height: int, axis: bool
) -> list[Line]:
    """One chart in ``height`` lines."""
    at = scene.at()
    cursor = line.column(at) if at is not None else None
    if cursor is not None and not 0 <= cursor < line.count:
        cursor = None
    metric = wanted.metric
    known = [pair for pair in wanted.columns if pair is not None]
    ended = scene.deck.box_state(box) == "down"
    value = show(metric, wanted.now)
    tone = wanted.tone
    if cursor is not None:
        value, tone = between(metric, wanted.columns[cursor] if wanted.columns else None), "focus"
    elif ended:
        value, tone = "-", "faint"
    peak = max((high for _, high in known), default=None)
    scale = view.scales.range_of(metric, wanted.columns, wanted.hint)
    chart = Chart(
        title=f" {wanted.title or metric.label}",
        columns=wanted.columns,
        scale=scale,
        value=value,
        peak=show(metric, peak) if peak is not None else "",
        tone={"watts": "accent", "pct": "ok"}.get(metric.kind, wanted.tone),
        value_tone=tone,
        limits=wanted.limits,
        ticks=line.ticks() if axis else (),
        label=label_of(metric),
        unit=1024.0 if metric.kind == "mem" else 1.0,
        cursor=cursor,
        ended=ended,
        note=wanted.note,
    )
    return big_chart(
        chart, width, height, scene.glyphs.charts, view.cache, (box.raw, view.gpu, metric.key, width, height)
    )


def show(metric: Metric, value: float | None) -> str:
    """A value in the metric's own unit, as in the traces of the fleet."""
    if metric.kind == "ghz":
        return units.gigahertz(value)
    if metric.kind == "rate":
        return units.rate(value)
    if metric.kind == "mem":
        return units.gigabytes(value)
    return units.number(value)


def between(metric: Metric, pair: Pair | None) -> str:
    """What a column says: one value, or its lowest and highest; a gap is n/a."""
    if pair is None:
        return units.NA
    low, high = show(metric, pair[0]), show(metric, pair[1])
    return low if low == high else f"{low}-{high}"


def label_of(metric: Metric) -> Callable[[float], str]:
    """How the value axis is written."""
    if metric.kind == "ghz":
        return lambda value: f"{value / 1000:g}"
    if metric.kind == "rate":
        return lambda value: "0" if value < 1 else units.rate(value)
    if metric.kind == "mem":
        return lambda value: f"{value / 1024:.0f}"
    return lambda value: f"{value:g}"


def _ring(past: History, key: str, line: Timeline) -> Columns:
    ring = past.rings.get(key)
    if ring is None or past.step_s != line.slot_s:
        return []
    return ring.columns(line.last * line.slots, line.slots, line.count)


def _gpu_limits(metric: Metric, gpu: GpuSample, device: Device | None) -> tuple[tuple[Limit, ...], float | None]:
    """Lines that the hardware told, and what the range must hold."""
    if metric.column == "temp_c" and device is not None and units.known(device.temp_slowdown_c):
        limit = device.temp_slowdown_c or 0.0
        return (Limit(limit, f"slowdown {units.number(limit)} C"),), None
    if metric.column == "power_w":
        told = (
            gpu.power_limit_w
            if units.known(gpu.power_limit_w)
            else device.power_limit_w
            if device is not None
            else None
        )
        if units.known(told) and told is not None:
            return (Limit(told, f"limit {units.number(told)} W"),), told
    if metric.column == "sm_mhz" and device is not None and units.known(device.clock_max_mhz):
        return (Limit(device.clock_max_mhz or 0.0, f"max {units.number(device.clock_max_mhz)} MHz"),), None
    if metric.column == "mem_used_mb":
        total = gpu.mem_total_mb or (device.mem_mb if device is not None else None)
        return ((Limit(total, f"of {units.gigabytes(total)} G"),) if total else ()), total
    return (), None


def _gpu_tone(metric: Metric, now: float | None, device: Device | None) -> str:
    if metric.kind == "temp" and units.known(now) and now is not None:
        warm, hot = gpu_limits(device)
        return "bad" if now >= hot else "warn" if now >= warm else "info"
    return {"watts": "accent", "pct": "ok", "temp": "info"}.get(metric.kind, "cyan")
