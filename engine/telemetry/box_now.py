"""One box as it is now, with everything that the overview leaves out: its facts, its newest row, every named sensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC
from typing import Any

from engine.store import Db
from engine.telemetry import history
from engine.telemetry.sample import BoxFacts


def box_now(db: Db, box: str) -> dict[str, Any]:
    """``{box, at, facts, sample_at, sample, sensors, gpus}``; JSON-able. What is not known is None or empty.

    ``facts``: the row of ``boxes`` (its ``gpus`` by the appendix' keys); ``sample``, ``gpus``: the newest detail row by its
    columns, nulls left out; ``sensors``: zones, fans, rails, net, disks, mounts, and why something is absent.
    """
    sample = history.latest(db, [box]).get(box)
    known = history.box_facts(db).get(box)
    sensors: object = sample.sensors if sample is not None else None  # anybody's JSON
    return {
        "box": box,
        "at": db.now().astimezone(UTC).isoformat(),
        "facts": None if known is None else _facts(known),
        "sample_at": None if sample is None else sample.at.astimezone(UTC).isoformat(),
        "sample": {} if sample is None else _offered(sample.values()),
        "sensors": dict(sensors) if isinstance(sensors, Mapping) else {},
        "gpus": [] if sample is None else [_offered(gpu.values()) for gpu in sample.gpus],
    }


def _facts(known: BoxFacts) -> dict[str, Any]:
    plain = {f.name: getattr(known, f.name) for f in fields(known) if f.name not in ("box", "machine_id", "gpus")}
    return plain | {"gpus": [gpu.values() for gpu in known.gpus]}


def _offered(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
