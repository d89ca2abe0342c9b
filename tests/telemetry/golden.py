"""A made-up GPU whose truth is known: episodes of throttling, counters that count them, and what was recorded of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from engine.telemetry.probes.gpu import GpuReading
from engine.telemetry.probes.nvidia import NvidiaProbe
from engine.telemetry.probes.source import over_gpus
from engine.telemetry.rollup import by_minute, roll_up
from engine.telemetry.sample import BoxSample, GpuSample
from tests.telemetry import smi, trees
from tests.telemetry.nvml import FakeNvml, ordinary

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
CADENCE = 2.0
BITS = {"sw_power_ms": 0x04, "hw_brake_ms": 0x88, "sw_thermal_ms": 0x20, "hw_thermal_ms": 0x48, "sync_boost_ms": 0x10}
IDS_580 = {"sw_power_ms": 74, "sync_boost_ms": 76, "sw_thermal_ms": 269, "hw_thermal_ms": 270, "hw_brake_ms": 271}
IDS_575 = {"sw_power_ms": 74, "sync_boost_ms": 76, "sw_thermal_ms": 251, "hw_thermal_ms": 252, "hw_brake_ms": 253}
IDS_570 = {"sw_power_ms": 74, "sync_boost_ms": 76, "sw_thermal_ms": 75}

Episode = tuple[str, float, float]

# Power for 25 minutes with heat on top of it, short brakes, a hardware slowdown that outlasts the power cap.
BUSY: tuple[Episode, ...] = (
    ("sw_power_ms", 31.0, 700.5),
    ("sw_power_ms", 760.25, 1500.0),
    ("sw_thermal_ms", 400.0, 1210.75),
    ("hw_thermal_ms", 1100.5, 1630.0),
    ("hw_brake_ms", 500.0, 740.125),
    ("sync_boost_ms", 100.0, 333.0),
)
LONG = 1800.0


def overlap(episodes: Sequence[Episode], cause: str, begin: float, end: float) -> float:
    """Seconds of a cause between two times. Episodes of one cause do not overlap."""
    return sum(max(0.0, min(until, end) - max(since, begin)) for name, since, until in episodes if name == cause)


@dataclass
class Hardware:
    """The GPU itself: what its counters stood at when the first sample was taken, and when it was reset since."""

    episodes: Sequence[Episode]
    base_s: float = 0.0
    resets: Sequence[float] = ()

    def seconds(self, cause: str, now: float) -> float:
        """What the time counter of a cause stands at."""
        reset = max((at for at in self.resets if at <= now), default=None)
        if reset is not None:
            return overlap(self.episodes, cause, reset, now)
        return self.base_s + overlap(self.episodes, cause, float("-inf"), now)

    def mask(self, now: float) -> int:
        found = 0
        for cause, since, until in self.episodes:
            found |= BITS[cause] if since <= now < until else 0
        return found


@dataclass
class Line:
    """Times of the looks, and what each gave."""

    samples: list[BoxSample] = field(default_factory=list)

    def add(self, at: float, gpus: tuple[GpuSample, ...]) -> None:
        self.samples.append(BoxSample("box", NOON + timedelta(seconds=at), gpus=gpus, **over_gpus(gpus)))

    def seconds(self, cause: str) -> float | None:
        """As the minute rows have it, which is what is kept."""
        minutes = [roll_up(samples) for samples in by_minute(self.samples).values()]
        known = [value for row in minutes for gpu in row.gpus if (value := getattr(gpu, cause)) is not None]
        assert all(value >= 0 for value in known), "negative seconds"
        return sum(known) / 1000 if known else None

    def source(self) -> str | None:
        return self.samples[-1].gpus[0].throttle_source


def every(until: float = LONG, without: Sequence[tuple[float, float]] = ()) -> list[float]:
    """The times of the looks: every two seconds, none within the gaps."""
    times = [n * CADENCE for n in range(int(until / CADENCE) + 1)]
    return [at for at in times if not any(since < at < end for since, end in without)]


class Nvidia:
    """A card whose driver writes its counters under ``ids``, ``ticks`` a second; ``junk`` stands in other fields."""

    def __init__(self, root: Path, hardware: Hardware, driver: str, ids: dict[str, int], **options: object) -> None:
        self.hardware, self.ids, self.now = hardware, ids, 0.0
        self.ticks = float(options.pop("ticks", 1e9))
        self.junk: dict[int, Callable[[float], int]] = options.pop("junk", {})
        self.flags = bool(options.pop("flags", True))
        self.card = ordinary()
        self.card.fields = {}
        self.nvml = FakeNvml(self.card, driver=driver)
        trees.put(root, {"proc/driver/nvidia/version": "NVRM"})
        self.probe = NvidiaProbe(root, CADENCE, lambda: self.nvml, lambda: self.now)
        if options.pop("text", False):
            self.probe._watch = True
            self.probe._smi = smi.PromptSmi(lambda: self.now, self.text)
        assert not options

    def text(self) -> str:
        values = {cause: f"{int(self.hardware.seconds(cause, self.now) * 1e6)} us" for cause in BITS}
        return smi.text({"00000000:01:00.0": values})

    def look(self, now: float) -> GpuReading:
        self.now = now
        self.card.fields = {field: value(now) for field, value in self.junk.items()}
        self.card.fields |= {
            field: int(self.hardware.seconds(cause, now) * self.ticks) for cause, field in self.ids.items()
        }
        self.card.answers["nvmlDeviceGetCurrentClocksEventReasons"] = self.hardware.mask(now) if self.flags else 0
        return self.probe.read()

    def record(self, times: Sequence[float]) -> Line:
        line = Line()
        for at in times:
            line.add(at, self.look(at).gpus)
        return line
