"""Samples and views as the plain rows of a recording, and back. Pure; see flightdeck.recording for the file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from engine.snapshot import jsonable
from engine.telemetry.sample import BOX_METRICS, GPU_METRICS, GPU_STATES, BoxSample, GpuSample, clean

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Row = dict[str, Any]


def canonical(value: Any) -> str:
    """The same text for the same data."""
    return json.dumps(jsonable(value), sort_keys=True, separators=(",", ":"), default=str)


def micros(at: datetime | None) -> int | None:
    return None if at is None else (at - _EPOCH) // _MICROSECOND


def pack(sample: BoxSample) -> list[Any]:
    """``[box, at, tier, values, gpus, sensors, ranges, gpu ranges]``, without what is absent at the end."""
    gpus = [_trimmed([getattr(gpu, name) for name in GPU_METRICS]) for gpu in sample.gpus]
    ranges = [dict(sample.low), dict(sample.high)] if sample.low or sample.high else None
    gpu_ranges = None
    if any(gpu.low or gpu.high for gpu in sample.gpus):
        gpu_ranges = [[dict(gpu.low), dict(gpu.high)] for gpu in sample.gpus]
    values = _trimmed([getattr(sample, name) for name in BOX_METRICS])
    tier = 1 if sample.tier == "minute" else 0
    row = [sample.box, micros(sample.at), tier, values, gpus, sample.sensors or None, ranges, gpu_ranges]
    return _trimmed([_finite(part) for part in row])


def _trimmed(values: list[Any]) -> list[Any]:
    while values and (values[-1] is None or values[-1] == []):
        values.pop()
    return values


def _finite(value: Any) -> Any:
    """JSON knows no NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, list | tuple) else value


def difference(old: Row, new: Row) -> Row | None:
    """What of a view is different: other keys as they are, of ``boxes`` the changed keys of changed boxes, by name.

    None: it cannot be said so, because keys are gone.
    """
    out = {key: value for key, value in new.items() if key != "boxes" and (key not in old or old[key] != value)}
    before = {box["box"]: box for box in old.get("boxes", ())}
    gone = old.keys() - new.keys()
    boxes: Row = {}
    for box in new.get("boxes", ()):
        known = before.get(box["box"], {})
        gone |= known.keys() - box.keys()
        changed = {key: value for key, value in box.items() if key not in known or known[key] != value}
        if changed:
            boxes[box["box"]] = changed
    names = [box["box"] for box in new.get("boxes", ())]
    if gone:
        return None
    return out | ({"boxes": boxes} if boxes else {}) | ({"names": names} if names != list(before) else {})


def apply(old: Row, change: Row) -> Row:
    """The view after a ``difference``. One that does not fit (lines are missing) leaves the view as it was."""
    try:
        rows = {box["box"]: box for box in old.get("boxes", ())}
        for name, keys in change.get("boxes", {}).items():
            rows[name] = rows.get(name, {"box": name}) | keys
        names = change.get("names", list(rows))
        view = old | {key: value for key, value in change.items() if key not in ("boxes", "names")}
        return view | {"boxes": [rows[name] for name in names if name in rows]}
    except (TypeError, AttributeError, KeyError):
        return old


def unpack(row: Any, box_columns: Sequence[str], gpu_columns: Sequence[str]) -> BoxSample | None:
    """The sample of a packed row; values of a wrong kind count as absent. None: it makes no sense."""
    if not isinstance(row, list) or not row or not isinstance(row[0], str):
        return None
    box, at, tier, values, gpus, sensors, ranges, gpu_ranges = ([*row] + [None] * 8)[:8]
    when = instant(at)
    if when is None:
        return None
    cards = []
    for position, card in enumerate(gpus if isinstance(gpus, list) else ()):
        own = _named(card, gpu_columns, GPU_METRICS)
        if own.get("gpu_index") is None:
            own["gpu_index"] = position
        if own.get("state") not in GPU_STATES:
            own["state"] = "error"
        cards.append(GpuSample(**own, **_ranges(_item(gpu_ranges, position))))
    return BoxSample(
        box,
        when,
        "minute" if tier == 1 else "detail",
        sensors=sensors if isinstance(sensors, dict) else None,
        gpus=tuple(cards),
        **_ranges(ranges),
        **_named(values, box_columns, BOX_METRICS),
    )


def _named(values: Any, columns: Sequence[str], known: Sequence[str]) -> Row:
    pairs = zip(columns, values if isinstance(values, list) else (), strict=False)
    return {name: clean(name, value) for name, value in pairs if name in known}


def _ranges(value: Any) -> Row:
    low, high = _item(value, 0), _item(value, 1)
    return {"low": _numbers(low), "high": _numbers(high)}


def _numbers(value: Any) -> dict[str, float]:
    found = value.items() if isinstance(value, dict) else ()
    return {name: value for name, value in found if number(value) is not None}


def _item(value: Any, index: int) -> Any:
    return value[index] if isinstance(value, list) and len(value) > index else None


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def instant(value: Any) -> datetime | None:
    """The time of so many microseconds of the epoch."""
    if number(value) is None:
        return None
    try:
        return _EPOCH + timedelta(microseconds=value)
    except OverflowError:
        return None
