"""The past of one box in fixed slots, from which every trace and the throttle strip are read.

Times are snapped: a slot is 5 s of the epoch (longer in a history of hours or days), a dot column a whole number of
slots, so a trace never shifts between rolls. A slot without a reading is a gap (None), never 0. Minute rows bring their
minimum and maximum, so a spike stays.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from engine.telemetry.strip import causes, worst_of
from flightdeck.model.axis import SLOTS
from flightdeck.model.metrics import METRICS, Metric, Span, find_range, spans
from flightdeck.model.slots import STEP_S, Columns, Pair, Ring, Sums, extremes, slot_of
from flightdeck.model.units import known

if TYPE_CHECKING:
    from engine.telemetry.sample import BoxSample, GpuSample

_MINUTE = 60 // STEP_S
_AHEAD = timedelta(seconds=60)
_MOST = 1e15  # no reading and no second is beyond it


class History:
    """Everything the deck keeps of one box over a span, and its newest sample. ``step_s``: seconds per slot."""

    def __init__(self, step_s: int = STEP_S) -> None:
        self.step_s = step_s
        self.rings = {metric.key: Ring() for metric in METRICS}
        self.throttle = Sums()
        self.throttle_offered = False
        self.sampled_source = False  # throttle seconds come from a mask: shown with ~
        self.latest: BoxSample | None = None
        self.gpu_alive: dict[str, tuple[GpuSample, datetime]] = {}  # the last good look at each GPU, by identity
        self.ranges: dict[str, Pair] = {}
        self.version = 0

    def load(self, rows: Iterable[BoxSample]) -> None:
        """Fill from minute rows and detail samples, oldest first; detail wins where both cover a time."""
        rows = sorted(rows, key=lambda row: row.at)
        details = [row for row in rows if row.tier != "minute"]
        edge = slot_of(details[0].at) if details else None
        for row in rows:
            if row.tier == "minute":
                self._minute(row, edge)
            else:
                self.add(row)
        if not details and rows:
            self._newest(rows[-1], spans(rows[-1]))

    def add(self, sample: BoxSample, now: datetime | None = None) -> None:
        """One detail sample. ``now``: database clock; what lies ahead of it is not the newest (the clock was set back)."""
        if now is not None and self.latest is not None and self.latest.at > now + _AHEAD:
            self.latest = None
        if self.latest is not None and sample.tier == self.latest.tier and sample.at == self.latest.at:
            return  # the same row by notification and by gap fill
        slot = slot_of(sample.at, self.step_s)
        found = self._readings(sample, slot, 1)
        ms, brakes = self._causes(sample)
        self.throttle.put(slot, ms, brakes)
        if self.latest is None or sample.at >= self.latest.at:
            self._newest(sample, found)
        self.version += 1

    def load_span(self, answer: Mapping[str, Any]) -> None:
        """Fill from the answer to the question "span" (:mod:`engine.telemetry.spans`): buckets of the database.

        What is missing in it or makes no sense is a gap.
        """
        bucket_s = _number(answer.get("step_s")) or self.step_s
        count = min(max(1, round(bucket_s / self.step_s)), SLOTS)
        firsts = [None if at is None else int(at // self.step_s) for at in _numbers(answer.get("at"))]
        boxes, gpus = _table(answer, "box_values"), _table(answer, "gpu_values")
        for metric in METRICS:
            ring = self.rings[metric.key]
            for first, pair in zip(firsts, _pairs((gpus if metric.gpu else boxes).get(metric.column)), strict=False):
                if first is not None and pair is not None:
                    ring.put(first, count, pair[0], pair[1])
        self._load_sums(firsts, count, _table(answer, "box_sums"), _table(answer, "gpu_sums"))
        masked = answer.get("mask")
        self.sampled_source = any(masked) if isinstance(masked, list | tuple) else False
        self.version += 1

    def _load_sums(
        self, firsts: Sequence[int | None], count: int, boxes: Mapping[str, Any], gpus: Mapping[str, Any]
    ) -> None:
        """Throttling of each bucket, spread over its slots. A box's own column counts before those of its GPUs."""

        def column(table: Mapping[str, Any], name: str) -> list[float | None]:
            found = _numbers(table.get(name))
            return found + [None] * (len(firsts) - len(found))

        power, thermal, brakes = column(boxes, "power_ms"), column(boxes, "thermal_ms"), column(boxes, "brakes")
        cpu, hard, sync = column(boxes, "cpu_throttle_ms"), column(gpus, "hw_brake_ms"), column(gpus, "sync_boost_ms")
        soft_power, braked = column(gpus, "sw_power_ms"), column(gpus, "brakes")
        soft_heat, hard_heat = column(gpus, "sw_thermal_ms"), column(gpus, "hw_thermal_ms")
        for index, first in enumerate(firsts):
            if first is None:
                continue
            found = {
                "P": _first(power[index], soft_power[index]),
                "T": _first(thermal[index], worst_of((soft_heat[index], hard_heat[index]))),
                "B": hard[index],
                "S": sync[index],
                "C": cpu[index],
            }
            ms = {cause: max(0.0, value) / count for cause, value in found.items() if value is not None}
            times = _first(brakes[index], braked[index])
            self.throttle_offered = self.throttle_offered or bool(ms) or times is not None
            for slot in range(first, first + count):
                self.throttle.put(slot, ms, (times or 0.0) / count)

    def at(self, key: str, instant: datetime, width_s: float | None = None) -> Pair | None:
        """Lowest and highest reading of a metric in the column of an instant: ``width_s`` seconds, snapped; None: six
        slots, which is one step of scrubbing. None: no reading there."""
        slots = 6 if width_s is None else max(1, round(width_s / self.step_s))
        first = slot_of(instant, self.step_s) // slots * slots
        return self.rings[key].over(first, slots)

    def _minute(self, row: BoxSample, edge: int | None) -> None:
        first = int(row.at.timestamp() // 60) * _MINUTE
        count = _MINUTE if edge is None else min(_MINUTE, edge - first)
        if count <= 0:
            return
        self._readings(row, first, count)
        ms, brakes = self._causes(row)
        for slot in range(first, first + count):
            # Spread over the minute; what the detail tail covers again is left to it.
            self.throttle.put(slot, {cause: value / _MINUTE for cause, value in ms.items()}, brakes / _MINUTE)
        self.version += 1

    def _newest(self, sample: BoxSample, found: list[Span | None]) -> None:
        self.latest = sample
        for ring, span in zip(self.rings.values(), found, strict=True):
            ring.last = None if span is None else span[2]
        for gpu in sample.gpus:
            if gpu.state == "ok":
                self.gpu_alive[gpu_identity(gpu)] = (gpu, sample.at)

    def _readings(self, sample: BoxSample, first: int, count: int) -> list[Span | None]:
        found = spans(sample)
        for ring, span in zip(self.rings.values(), found, strict=True):
            if span is not None:
                ring.put(first, count, span[0], span[1])
        return found

    def _causes(self, sample: BoxSample) -> tuple[dict[str, float], float]:
        """Milliseconds per cause of one row, worst over its GPUs; causes overlap and are never added up."""
        gpus = sample.gpus
        ms, brakes = causes(sample)
        if ms or brakes is not None:
            self.throttle_offered = True
        sources = {gpu.throttle_source for gpu in gpus}
        if sources - {None}:
            self.sampled_source = "mask" in sources
        return ms, float(brakes or 0)

    def range_of(self, metric: Metric, columns: Columns, hint: float | None = None) -> Pair:
        """The range to draw in; grows at once, shrinks only when the data fills little of it: no flapping axis."""
        return self.range_holding(metric, extremes(columns), hint)

    def range_holding(self, metric: Metric, found: Pair | None, hint: float | None = None) -> Pair:
        """The same for the lowest and the highest reading; None: there is none."""
        previous = self.ranges.get(metric.key)
        if found is None:
            return previous or find_range(metric.kind, 50.0, 50.0, hint)
        low, high = found
        wanted = find_range(metric.kind, low, high, hint)
        holds = previous is not None and previous[0] <= low and high <= previous[1]
        if previous is not None and holds and (wanted[1] - wanted[0]) > 0.45 * (previous[1] - previous[0]):
            wanted = previous
        self.ranges[metric.key] = wanted
        return wanted

    def copy(self) -> History:
        """A still picture of it (freeze). Samples never change, so they are shared."""
        still = copy.copy(self)
        still.rings = {key: ring.copy() for key, ring in self.rings.items()}
        still.throttle = self.throttle.copy()
        still.gpu_alive, still.ranges = dict(self.gpu_alive), dict(self.ranges)
        return still


def gpu_identity(gpu: GpuSample) -> str:
    """A GPU is its uuid; the index moves when a neighbour drops off the bus."""
    return gpu.gpu_uuid or f"#{gpu.gpu_index}"


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _table(answer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = answer.get(name)
    return found if isinstance(found, Mapping) else {}


def _pairs(values: Any) -> Iterator[Pair | None]:
    """(lowest, highest) of each bucket; what is no pair of numbers is None."""
    for item in values if isinstance(values, list | tuple) else ():
        if isinstance(item, list | tuple) and len(item) >= 2 and known(item[0]) and known(item[1]):
            yield item[0], item[1]
        else:
            yield None


def _number(value: Any) -> float | None:
    return float(value) if known(value) and not isinstance(value, bool) and abs(value) < _MOST else None


def _numbers(values: Any) -> list[float | None]:
    """What is a finite number, as one; everything else None."""
    return [_number(value) for value in values] if isinstance(values, list | tuple) else []
