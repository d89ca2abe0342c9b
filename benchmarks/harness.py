"""Rounds, medians, ratios, the table and the JSON. Pure: knows neither databases nor processes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WARM_UP = 0.1  # this share of a drain's rows is finished before the clock starts, on every side


class BenchError(Exception):
    """A side could not be measured; its text is one line."""


def median(values: Iterable[float]) -> float:
    """The median; NaN when there is nothing."""
    known = [v for v in values if not math.isnan(v)]
    return statistics.median(known) if known else math.nan


def percentile(values: Sequence[float], p: float) -> float:
    """The nearest-rank percentile, 0 < p <= 100; NaN when there is nothing."""
    ordered = sorted(v for v in values if not math.isnan(v))
    return ordered[max(0, math.ceil(len(ordered) * p / 100) - 1)] if ordered else math.nan


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median over the rounds of ours / theirs: a machine that slows down half-way slows both sides of a round."""
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if not math.isnan(a) and not math.isnan(b) and b > 0]
    return statistics.median(a / b for a, b in pairs) if pairs else math.nan


def finish_rate(times: Iterable[float], warm_up: float = WARM_UP) -> float:
    """Jobs per second from the instants (seconds) at which rows were finished.

    The clock starts when the first ``warm_up`` share of the rows is done. Only rows finished strictly later count, so
    that a batch which shares one commit instant is not counted as if it had taken no time.
    """
    ordered = sorted(times)
    if len(ordered) < 3:
        raise BenchError(f"only {len(ordered)} rows were finished")
    start = ordered[int(len(ordered) * warm_up)]
    later = sum(1 for t in ordered if t > start)
    if not later:
        raise BenchError("every row was finished in the same instant: use more rows")
    return later / (ordered[-1] - start)


def alternate(
    sides: Mapping[str, Callable[[], Any]], rounds: int, say: Callable[[str], None] = lambda line: None
) -> dict[str, list[Any]]:
    """Run every side once per round; the order rotates, so that no side always runs after the same one.

    A side that raises BenchError is NaN for that round; the others go on. Returns one value per side and round.
    """
    names = list(sides)
    values: dict[str, list[Any]] = {name: [] for name in names}
    for turn in range(rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            try:
                value = sides[name]()
            except BenchError as error:
                value = math.nan
                say(f"round {turn + 1}/{rounds}  {name}: not measured ({error})")
            else:
                say(f"round {turn + 1}/{rounds}  {name}: {number(value) if isinstance(value, float) else 'done'}")
            values[name].append(value)
    return values


@dataclass
class Line:
    """One measured side: a value per round, in ``unit``."""

    group: str
    name: str
    unit: str
    values: list[float]
    note: str = ""

    @property
    def median(self) -> float:
        return median(self.values)


@dataclass
class Check:
    """One ratio or number, with the bound that must hold (None: only printed)."""

    group: str
    name: str
    value: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def holds(self) -> bool | None:
        if self.at_least is None and self.at_most is None:
            return None
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    @property
    def bound(self) -> str:
        if self.at_least is not None:
            return f">= {number(self.at_least)}"
        return f"<= {number(self.at_most)}" if self.at_most is not None else ""


@dataclass
class Report:
    """What a run found: lines, checks, and what was durable on which machine."""

    machine: dict[str, Any] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def line(self, group: str, name: str, unit: str, values: Sequence[float], note: str = "") -> Line:
        made = Line(group, name, unit, list(values), note)
        self.lines.append(made)
        return made

    def check(
        self, group: str, name: str, value: float, at_least: float | None = None, at_most: float | None = None
    ) -> Check:
        made = Check(group, name, value, at_least, at_most)
        self.checks.append(made)
        return made

    def ratio(self, ours: Line, theirs: Line, at_least: float | None = None, at_most: float | None = None) -> Check:
        return self.check(
            ours.group, f"{ours.name} / {theirs.name}", paired_ratio(ours.values, theirs.values), at_least, at_most
        )

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if check.holds is False]

    def table(self) -> str:
        """Plain text: the medians, then the ratios with their bounds."""
        out = [f"{key}: {value}" for key, value in self.machine.items()]
        for group in dict.fromkeys([x.group for x in self.lines] + [x.group for x in self.checks]):
            rows = [
                (x.name, number(x.median), x.unit, spread(x.values) + (f"  {x.note}" if x.note else ""))
                for x in self.lines
                if x.group == group
            ]
            rows += [
                (x.name, number(x.value), x.bound, {True: "ok", False: "MISSED", None: ""}[x.holds])
                for x in self.checks
                if x.group == group
            ]
            wide = [max(len(row[i]) for row in rows) for i in range(3)]
            out += ["", group]
            out += [f"  {a.ljust(wide[0])}  {b.rjust(wide[1])} {c.ljust(wide[2])}  {d}".rstrip() for a, b, c, d in rows]
        return "\n".join(out + (["", *self.notes] if self.notes else []))

    def as_json(self) -> dict[str, Any]:
        """Plain data; numbers that could not be measured are null."""
        return {
            "machine": self.machine,
            "lines": [
                {"group": x.group, "name": x.name, "unit": x.unit, "median": _or_null(x.median), "note": x.note}
                | {"values": [_or_null(v) for v in x.values]}
                for x in self.lines
            ],
            "checks": [
                {"group": x.group, "name": x.name, "value": _or_null(x.value), "bound": x.bound, "holds": x.holds}
                for x in self.checks
            ],
            "notes": self.notes,
        }


def number(value: float) -> str:
    """Three significant digits, thousands with commas; n/a for NaN."""
    if math.isnan(value):
        return "n/a"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def spread(values: Sequence[float]) -> str:
    """Least and most over the rounds."""
    known = [v for v in values if not math.isnan(v)]
    if len(known) < 2:
        return f"({len(known)} of {len(values)} rounds)" if len(known) < len(values) else ""
    return f"({number(min(known))} .. {number(max(known))}, {len(known)})"


def _or_null(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)
