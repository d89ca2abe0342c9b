"""The readings of a box's GPUs over a window, each card by its uuid: read from the database, live samples added. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from flightdeck.model.rows import integer, moment, number
from flightdeck.model.slots import Columns, Pair
from flightdeck.model.text import clean
from flightdeck.model.timeline import Timeline
from flightdeck.model.traces import gpu_identity
from flightdeck.model.units import known

if TYPE_CHECKING:
    from engine.telemetry.sample import BoxSample

SERIES = ("temp_c", "power_w", "sm_mhz", "util_pct", "mem_used_mb", "mem_temp_c", "fan_pct", "fan_rpm")
HELD = {"P": ("sw_power_ms",), "T": ("sw_thermal_ms", "hw_thermal_ms"), "B": ("hw_brake_ms",), "S": ("sync_boost_ms",)}
HIDDEN_MS = 100.0  # under a tenth of a second of a cell is the counters' own grain


@dataclass
class Series:
    """The readings of a box's GPUs in slots of ``slot_s`` seconds, numbered from the epoch; identity is the uuid."""

    slot_s: int = 0
    cards: dict[str, Card] = field(default_factory=dict)

    def load(self, answer: object) -> None:
        """Take over a ``box_gpus`` answer; it replaces what is known of the cards that it names."""
        if not isinstance(answer, Mapping):
            return
        slot_s, first = number(answer.get("bucket_s")), integer(answer.get("first"))
        rows = answer.get("gpus")
        if not slot_s or first is None or not isinstance(rows, list):
            return
        if int(slot_s) != self.slot_s:
            self.slot_s, self.cards = int(slot_s), {}
        for row in rows:
            if isinstance(row, Mapping):
                self.cards[clean(row.get("uuid"), 60)] = _card(row, first)

    def add(self, sample: BoxSample) -> None:
        """One live sample, merged into its slot; of cards that were read only, so that nobody takes a tail for a past."""
        if not self.slot_s:
            return
        column = int(sample.at.timestamp() // self.slot_s)
        for gpu in sample.gpus:
            card = self.cards.get(clean(gpu_identity(gpu), 60))
            if card is None or column < card.newest:
                continue
            card.newest = column
            for name in SERIES:
                value = getattr(gpu, name)
                if known(value):
                    low, high = card.pairs.setdefault(name, {}).get(column, (value, value))
                    card.pairs[name][column] = (min(low, value), max(high, value))
            for cause, names in HELD.items():
                values = [float(ms) for name in names if known(ms := getattr(gpu, name))]
                if values:
                    held = card.held.setdefault(cause, {})
                    held[column] = held.get(column, 0.0) + max(values)
            if known(gpu.brakes):
                card.brakes[column] = card.brakes.get(column, 0) + int(gpu.brakes or 0)
            card.sampled = gpu.throttle_source == "mask" if gpu.throttle_source else card.sampled
            if gpu.xid:
                card.xid_at = card.xid_at if card.xid == gpu.xid else sample.at
                card.xid = gpu.xid


@dataclass
class Card:
    """One GPU: readings, milliseconds held back per letter, and brakes, each by slot."""

    pairs: dict[str, dict[int, Pair]] = field(default_factory=dict)
    held: dict[str, dict[int, float]] = field(default_factory=dict)
    brakes: dict[int, int] = field(default_factory=dict)
    sampled: bool = False  # seconds come from a mask: shown with ~
    xid: int | None = None
    xid_at: datetime | None = None
    newest: int = -1

    def columns(self, name: str, line: Timeline) -> Columns:
        """The readings of one metric, a pair per column of the axis."""
        found = self.pairs.get(name, {})
        out: Columns = []
        for column in range(line.first, line.last + 1):
            pairs = [found[slot] for slot in _slots(column, line) if slot in found]
            out.append((min(low for low, _ in pairs), max(high for _, high in pairs)) if pairs else None)
        return out

    def letters(self, line: Timeline) -> str:
        """A letter per character of the axis: the gravest cause; ``.`` none, blank not read."""
        out = []
        for cell in range(line.cells):
            slots = [slot for column in line.columns_of(cell) for slot in _slots(line.first + column, line)]
            sums = {cause: [held[slot] for slot in slots if slot in held] for cause, held in self.held.items()}
            grave = [cause for cause in "BTPS" if sum(sums.get(cause, ())) >= HIDDEN_MS]
            braked = any(self.brakes.get(slot) for slot in slots)
            out.append("B" if braked else grave[0] if grave else "." if any(sums.values()) else " ")
        return "".join(out)

    def causes(self, column: int, line: Timeline) -> str:
        """The letters of all causes in one column of the axis."""
        slots = _slots(line.first + column, line)
        braked = any(self.brakes.get(slot) for slot in slots)
        held = {cause: sum(values.get(slot, 0.0) for slot in slots) for cause, values in self.held.items()}
        return "".join(cause for cause in "PTBS" if held.get(cause, 0.0) >= HIDDEN_MS or (cause == "B" and braked))

    def totals(self, line: Timeline) -> tuple[dict[str, float], int]:
        """Milliseconds per letter over the axis, and brakes. Causes overlap and are never added up."""
        span = range(line.first * line.slots, (line.last + 1) * line.slots)
        sums = {cause: sum(held.get(slot, 0.0) for slot in span) for cause, held in self.held.items()}
        return sums, sum(self.brakes.get(slot, 0) for slot in span)


def _slots(column: int, line: Timeline) -> range:
    """The slots in a column, both counted from the epoch."""
    return range(column * line.slots, (column + 1) * line.slots)


def _card(row: Mapping[str, Any], first: int) -> Card:
    card = Card(sampled=row.get("source") == "mask", xid=integer(row.get("xid")), xid_at=moment(row.get("xid_at")))
    series = row.get("series")
    for name, values in series.items() if isinstance(series, Mapping) else ():
        if name in SERIES:
            card.pairs[name] = dict(_pairs(values, first))
            card.newest = max([card.newest, *card.pairs[name]])
    held = row.get("held")
    if isinstance(held, Mapping):
        for cause, names in HELD.items():
            found: dict[int, float] = {}
            for name in names:  # of the software's and the hardware's heat the longer one: they overlap
                for column, value in _numbered(held.get(name), first):
                    found[column] = max(found.get(column, 0.0), value)
            card.held[cause] = found
    card.brakes = {column: int(value) for column, value in _numbered(row.get("brakes"), first)}
    return card


def _pairs(values: object, first: int) -> Iterable[tuple[int, Pair]]:
    for place, pair in enumerate(values if isinstance(values, list) else ()):
        if isinstance(pair, list | tuple) and len(pair) == 2:
            low, high = number(pair[0]), number(pair[1])
            if low is not None and high is not None:
                yield first + place, (low, high)


def _numbered(values: object, first: int) -> Iterable[tuple[int, float]]:
    for place, value in enumerate(values if isinstance(values, list) else ()):
        if (found := number(value)) is not None and found >= 0:
            yield first + place, found
