"""Which boxes are shown, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flightdeck.model.deck import Deck
from flightdeck.model.fleet import Box
from flightdeck.model.units import known


@dataclass(frozen=True)
class Sort:
    name: str
    key: Callable[[Deck, Box], float] | None  # None: as the database names them


def matches(box: Box, text: str) -> bool:
    """Whether every word of the filter is somewhere on the box: its name, hardware, lanes, models, projects, jobs."""
    if not text:
        return True
    parts = [box.name, box.description, box.cpu_model, *(device.name for device in box.devices)]
    for lane in box.lanes:
        parts += [lane.queue, lane.project, lane.current_model, lane.state]
    for job in box.jobs:
        parts += [job.name, job.project, job.id]
    haystack = " ".join(parts).lower()
    return all(word in haystack for word in text.split())


def _hottest(deck: Deck, box: Box) -> float:
    rings = deck.history(box).rings
    temps = [ring.last for ring in (rings["gpu_c"], rings["cpu_c"], rings["zone_c"]) if known(ring.last)]
    return -max((value for value in temps if value is not None), default=-1.0)


def _most_throttled(deck: Deck, box: Box) -> float:
    total, brakes = deck.history(box).throttle.totals(deck.end_slot(box))
    return -(total["T"] * 10 + total["P"] + total["C"] * 5 + brakes * 1000.0)


def _busiest(deck: Deck, box: Box) -> float:
    return -float(sum(lane.busy for lane in box.lanes)) * 1000.0 - (deck.history(box).rings["cpu_pct"].last or 0.0)


SORTS = (Sort("name", None), Sort("heat", _hottest), Sort("throttling", _most_throttled), Sort("load", _busiest))
