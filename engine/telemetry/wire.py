"""Samples and facts as plain data, between the process that reads the sensors and the recorder. Pure.

By the dataclasses' own fields: what one end has, the other has.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from engine.telemetry.sample import BoxFacts, BoxSample, GpuFacts, GpuSample, tidy

_GPU = tuple(GpuSample.__dataclass_fields__)
_BOX = tuple(name for name in BoxSample.__dataclass_fields__ if name not in ("at", "gpus", "sensors"))
_FACTS = tuple(name for name in BoxFacts.__dataclass_fields__ if name != "gpus")


def pack_sample(sample: BoxSample) -> dict[str, Any]:
    """JSON-able; what is empty is left out."""
    return _some(sample, _BOX) | {
        "at": sample.at.astimezone(UTC).isoformat(),
        "gpus": [_some(gpu, _GPU) for gpu in sample.gpus],
        "sensors": tidy(sample.sensors) if sample.sensors else None,
    }


def unpack_sample(data: Mapping[str, Any]) -> BoxSample:
    """Raises ValueError, TypeError, KeyError when it is none."""
    return BoxSample(
        **{
            **data,
            "at": datetime.fromisoformat(data["at"]),
            "gpus": tuple(GpuSample(**gpu) for gpu in data["gpus"]),
        }
    )


def pack_facts(facts: BoxFacts) -> dict[str, Any]:
    """JSON-able."""
    return _some(facts, _FACTS) | {"gpus": [gpu.values() for gpu in facts.gpus]}


def unpack_facts(data: Mapping[str, Any]) -> BoxFacts:
    """Raises ValueError, TypeError, KeyError when they are none."""
    return BoxFacts(**{**data, "gpus": tuple(GpuFacts(**gpu) for gpu in data["gpus"])})


def _some(thing: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The fields that hold something; a mapping as a dictionary."""
    found: dict[str, Any] = {}
    for name in names:
        value = getattr(thing, name)
        if value is None or value == {}:
            continue
        found[name] = dict(value) if isinstance(value, Mapping) else value
    return found
