"""What one look at a box yields, by the names and units of the flight recorder's columns.

Units by suffix: ``_c`` Celsius, ``_w`` watts, ``_mhz``, ``_pct`` 0-100, ``_mb`` MiB, ``_bps`` bytes per second, ``_ms``
milliseconds, ``_rpm``. ``None`` means: not offered, or not read this time. It is never written as 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from datetime import UTC, datetime
from functools import lru_cache
from operator import itemgetter
from sys import intern
from typing import Any, Protocol

from engine.errors import EngineError

Number = float | int

PAYLOAD_LIMIT = 7900  # bytes of one hw_metrics notification; PostgreSQL refuses 8,000 and more
GPU_STATES = ("ok", "lost", "asleep", "error")
THROTTLE_SOURCES = ("counter", "smi", "mask", "none")

# Columns of flight_recorder, in the schema's order, without box, at and tier.
BOX_METRICS = (
    "cpu_pct", "core_max_pct", "load1", "cpu_mhz", "cpu_temp_c", "mem_used_mb", "mem_total_mb", "swap_used_mb",
    "zone_max_c", "zone_max_name", "fan_max_rpm", "net_rx_bps", "net_tx_bps", "disk_read_bps", "disk_write_bps",
    "disk_used_pct", "cpu_throttle_ms", "throttle_index", "power_ms", "thermal_ms", "brakes",
)  # fmt: skip
# Those of them that minute rows keep as <metric>_min and <metric>_max beside the mean.
BOX_RANGED = (
    "cpu_pct", "core_max_pct", "load1", "cpu_mhz", "cpu_temp_c", "mem_used_mb", "swap_used_mb", "zone_max_c",
    "fan_max_rpm", "net_rx_bps", "net_tx_bps", "disk_read_bps", "disk_write_bps", "disk_used_pct", "throttle_index",
)  # fmt: skip
# Columns of flight_recorder_gpu, likewise.
GPU_METRICS = (
    "gpu_index", "gpu_uuid", "state", "util_pct", "mem_used_mb", "mem_total_mb", "temp_c", "mem_temp_c", "power_w",
    "power_inst_w", "power_limit_w", "sm_mhz", "fan_pct", "fan_rpm", "pcie_gen", "pcie_width", "pstate",
    "throttle_mask", "throttle_source", "sw_power_ms", "hw_brake_ms", "sw_thermal_ms", "hw_thermal_ms",
    "sync_boost_ms", "brakes", "ecc_uncorrected", "xid",
)  # fmt: skip
GPU_RANGED = (
    "util_pct", "mem_used_mb", "temp_c", "mem_temp_c", "power_w", "power_inst_w", "sm_mhz", "fan_pct", "fan_rpm",
)  # fmt: skip
# What flight_recorder keeps of a box's GPUs together, so that a fleet's hour need not read every card: the ends of
# these as gpu_<metric>_min and gpu_<metric>_max, and the worst of causes that the box has no columns for.
FOLDED_RANGES = ("util_pct", "temp_c", "power_w", "sm_mhz")
FOLDED_WORST = ("hw_brake_ms", "sync_boost_ms")
BOX_FOLDED = (
    *(f"gpu_{metric}_{end}" for metric in FOLDED_RANGES for end in ("min", "max")),
    *(f"gpu_{cause}" for cause in FOLDED_WORST), "gpu_throttle_source",
)  # fmt: skip
# What a payload keeps of each GPU when all of it would be too much for one notification.
GPU_SHORT = ("gpu_index", "util_pct", "temp_c", "power_w", "mem_used_mb", "throttle_mask")

_TEXTS = frozenset({"zone_max_name", "gpu_uuid", "state", "throttle_source"})
_INTEGERS = frozenset(
    {"gpu_index", "pcie_gen", "pcie_width", "pstate", "throttle_mask", "brakes", "ecc_uncorrected", "xid"}
)
_BOX_NAMES, _GPU_NAMES = frozenset(BOX_METRICS), frozenset(GPU_METRICS)
_TEXT_LIMIT = 120  # characters of a name in a payload
_BIGGEST = 2**63 - 1
_MOST = 1e18  # the sum of a row's numbers: below it each of them is one, and fits its column


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one time. ``low`` and ``high`` hold a minute row's ``<metric>_min`` and ``<metric>_max`` by metric."""

    gpu_index: int
    gpu_uuid: str | None = None
    state: str = "ok"
    util_pct: float | None = None
    mem_used_mb: float | None = None
    mem_total_mb: float | None = None
    temp_c: float | None = None
    mem_temp_c: float | None = None
    power_w: float | None = None
    power_inst_w: float | None = None
    power_limit_w: float | None = None
    sm_mhz: float | None = None
    fan_pct: float | None = None
    fan_rpm: float | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    pstate: int | None = None
    throttle_mask: int | None = None
    throttle_source: str | None = None
    sw_power_ms: float | None = None
    hw_brake_ms: float | None = None
    sw_thermal_ms: float | None = None
    hw_thermal_ms: float | None = None
    sync_boost_ms: float | None = None
    brakes: int | None = None
    ecc_uncorrected: int | None = None
    xid: int | None = None
    low: Mapping[str, float] = field(default_factory=dict)
    high: Mapping[str, float] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """The columns, nulls included, rounded and finite."""
        return {name: clean(name, getattr(self, name)) for name in GPU_METRICS}


def _same_field(of: Any) -> tuple[str, Any, Any]:
    return of.name, of.type, field(default=of.default, default_factory=of.default_factory)


# A frozen class sets each of its fields by a call: of a fleet's cards, hundreds a second, that is most of the work. This class
# has the same fields and is not frozen; a card begins as one, and is a GpuSample when it is complete.
_GpuDraft: Any = make_dataclass("_GpuDraft", [_same_field(of) for of in fields(GpuSample)], slots=True)
_NO_ENDS: Mapping[str, float] = {}  # shared: a detail row has none
_GPU_DEFAULTS = {of.name: of.default for of in fields(GpuSample)} | {"low": _NO_ENDS, "high": _NO_ENDS}


def _gpu_sample(values: Mapping[str, Any]) -> GpuSample:
    """A detail row's card; ``values`` are fields of it. By their places: comparing names that are not interned takes longer."""
    draft = _GpuDraft(*{**_GPU_DEFAULTS, **values}.values())
    draft.__class__ = GpuSample
    return draft  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class BoxSample:
    """One box at one time (``detail``) or over one minute (``minute``: plain columns hold means, ``_ms`` sums)."""

    box: str
    at: datetime
    tier: str = "detail"
    cpu_pct: float | None = None
    core_max_pct: float | None = None
    load1: float | None = None
    cpu_mhz: float | None = None
    cpu_temp_c: float | None = None
    mem_used_mb: float | None = None
    mem_total_mb: float | None = None
    swap_used_mb: float | None = None
    zone_max_c: float | None = None
    zone_max_name: str | None = None
    fan_max_rpm: float | None = None
    net_rx_bps: float | None = None
    net_tx_bps: float | None = None
    disk_read_bps: float | None = None
    disk_write_bps: float | None = None
    disk_used_pct: float | None = None
    cpu_throttle_ms: float | None = None
    throttle_index: float | None = None
    power_ms: float | None = None
    thermal_ms: float | None = None
    brakes: int | None = None
    sensors: Mapping[str, Any] | None = None
    gpus: tuple[GpuSample, ...] = ()
    low: Mapping[str, float] = field(default_factory=dict)
    high: Mapping[str, float] = field(default_factory=dict)
    truncated: bool = False  # a payload that had no room for its GPUs: the reader fetches the row

    def __post_init__(self) -> None:
        if self.at.tzinfo is None:
            raise ValueError(f"sample of {self.box}: its time has no time zone")

    def values(self) -> dict[str, Any]:
        """The columns, nulls included, rounded and finite."""
        return {name: clean(name, getattr(self, name)) for name in BOX_METRICS}

    def payload(self, **extra: Any) -> str:
        """The ``hw_metrics`` notification: JSON under 7,900 bytes, without nulls.

        What does not fit goes in this order: the named sensors (but for the flag ``slow``), most columns of the GPUs, the
        GPUs (``truncated``).
        """
        head = {"box": self.box, "at": self.at.astimezone(UTC).isoformat(), "tier": self.tier, **extra}
        row = head | _offered(self.values())
        gpus = [_offered(gpu.values()) for gpu in self.gpus]
        short = [{name: gpu[name] for name in GPU_SHORT if name in gpu} for gpu in gpus]
        sensors = {"sensors": tidy(self.sensors)} if self.sensors else {}
        flag = {"sensors": {"slow": tidy(self.sensors["slow"])}} if self.sensors and "slow" in self.sensors else {}
        for candidate in (row | {"gpus": gpus} | sensors, row | {"gpus": gpus} | flag, row | {"gpus": short} | flag):
            text = _json(candidate)
            if len(text.encode()) < PAYLOAD_LIMIT:
                return text
        return _json(row | {"truncated": True})

    @classmethod
    def from_payload(cls, data: Mapping[str, Any], now: datetime | None = None) -> BoxSample:
        """Read a payload, from whatever program. Unknown keys are ignored and values of a wrong kind count as absent.

        ``now`` stands in when it has no time. Raises ValueError when box or time make no sense (a naive time too).
        """
        box = data.get("box")
        if not isinstance(box, str) or not box:
            raise ValueError("hw_metrics: no box")
        gpus = data.get("gpus")
        values = _values(data, _BOX_NAMES)
        return cls(
            box=box,
            at=_time(data.get("at"), now),
            tier="minute" if data.get("tier") == "minute" else "detail",
            sensors=data["sensors"] if isinstance(data.get("sensors"), dict) else None,
            gpus=tuple(
                _gpu_from(gpu, position)
                for position, gpu in enumerate(gpus if isinstance(gpus, list) else ())
                if isinstance(gpu, dict)
            ),
            truncated=data.get("truncated") is True,
            **values,
        )


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What does not change about a GPU. None: the driver does not say."""

    index: int
    uuid: str | None = None
    name: str | None = None
    vendor: str | None = None
    mem_mb: float | None = None
    unified: bool = False
    power_limit_w: float | None = None
    temp_slowdown_c: float | None = None
    temp_shutdown_c: float | None = None
    clock_max_mhz: float | None = None

    def values(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, slots=True)
class BoxFacts:
    """The row of ``boxes``: what does not change while the box is up."""

    box: str
    machine_id: str = ""
    description: str | None = None
    cpu_model: str | None = None
    cores: int | None = None
    mem_mb: float | None = None
    gpus: tuple[GpuFacts, ...] = ()
    driver: str | None = None
    kernel: str | None = None
    simulated: bool = False


class NoSample(EngineError):
    """A look that yields nothing, for a reason that is known: a gap."""


class Source(Protocol):
    """Where samples come from: this machine's probes, or the demo's simulated sensors. May raise NoSample."""

    def facts(self) -> BoxFacts:
        """What the box is; asked at start and now and then."""

    def sample(self, dt_s: float) -> BoxSample:
        """One look; ``dt_s`` is the planned cadence. The recorder puts the database's time in ``at``."""

    def close(self) -> None:
        """Let go of drivers and threads."""


def clean(name: str, value: Any) -> Any:
    """A column's value as it is stored: finite, rounded to 3 decimals, whole where the column is; else None."""
    if value is None:
        return None
    if name in _TEXTS:
        return value[:_TEXT_LIMIT].replace("\0", "") if isinstance(value, str) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_BIGGEST <= value <= _BIGGEST:
        return None
    return int(value) if name in _INTEGERS else round(float(value), 3)


def tidy(value: Any) -> Any:
    """Named sensors as JSON that every database takes: no NaN, no NUL, numbers with 3 decimals."""
    if isinstance(value, Mapping):
        return {str(name).replace("\0", "")[:_TEXT_LIMIT]: tidy(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [tidy(part) for part in value]
    if isinstance(value, str):
        return value.replace("\0", "")[:_TEXT_LIMIT]
    if isinstance(value, float):
        return round(value, 3) if math.isfinite(value) else None
    return value if value is None or isinstance(value, int) else str(value)[:_TEXT_LIMIT]


def _values(data: Mapping[str, Any], names: frozenset[str]) -> Mapping[str, Any]:
    """What of a payload is a column, cleaned; the payload itself where all of it is. A program sends the same keys with the same kinds of values all the time:
    what is to be looked at is found once for each such form."""
    form = _form(tuple(data), tuple(map(type, data.values())), names is _GPU_NAMES)
    if form is not None:
        taken, numbers, texts = form
        words = "".join(texts(data))
        if _small(numbers(data)) and len(words) <= _TEXT_LIMIT and "\0" not in words:
            return data if taken is None else {name: data[name] for name in taken}
    return {name: clean(name, value) for name, value in data.items() if name in names}


def _small(numbers: tuple[float, ...]) -> bool:
    """Whether all of them are finite, and no column is too narrow for any."""
    try:
        return sum(map(abs, numbers)) < _MOST
    except OverflowError:  # JSON's integers know no end
        return False


def _nothing(data: Mapping[str, Any]) -> tuple[Any, ...]:
    return ()


@lru_cache(maxsize=512)
def _form(keys: tuple[str, ...], kinds: tuple[type, ...], gpu: bool) -> tuple[tuple[str, ...] | None, Any, Any] | None:
    """The columns among ``keys`` (None: all), and how to get at the numbers and at the texts of them. None: some value is of
    a kind that its column does not take as it is."""
    names = _GPU_NAMES if gpu else _BOX_NAMES
    taken = tuple(intern(key) for key in keys if key in names)
    kind_of = dict(zip(keys, kinds, strict=True))
    for name in taken:
        wanted = str if name in _TEXTS else int if name in _INTEGERS else float
        if kind_of[name] is not wanted:
            return None
    texts = tuple(name for name in taken if name in _TEXTS)
    numbers = tuple(name for name in taken if name not in _TEXTS)
    return (None if taken == keys else taken), _several(numbers), _several(texts)


def _several(keys: tuple[str, ...]) -> Any:
    """The values of ``keys`` as a tuple, however many they are."""
    if len(keys) == 1:
        (key,) = keys
        return lambda data: (data[key],)
    return itemgetter(*keys) if keys else _nothing


def _gpu_from(data: Mapping[str, Any], position: int) -> GpuSample:
    values = _values(data, _GPU_NAMES)
    if values.get("gpu_index") is None:
        values = {**values, "gpu_index": position}
    if values.get("state") not in GPU_STATES:
        values = {**values, "state": "ok" if data.get("state") is None else "error"}
    return _gpu_sample(values)


def _time(value: Any, now: datetime | None) -> datetime:
    if value is None and now is not None:
        return now
    try:
        at = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError(f"hw_metrics: {value!r} is not a time") from None
    if at.tzinfo is None:
        raise ValueError(f"hw_metrics: {value!r} has no time zone")
    return at.astimezone(UTC)


def _offered(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
