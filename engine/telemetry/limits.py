"""From when on a reading is worth a colour, and from when on an alert: by class of hardware. Pure.

A temperature that is an emergency in one machine is an ordinary afternoon in another (a GB10 works at 83-98 C), so there
are classes, found by the names of GPU and CPU; a deck's profile puts its own before these. Every level has its
hysteresis: an alert begins when the reading was at or above ``hot`` for ``hold_s``, and ends when it was below ``clear``
for as long. A power cap that is reached under load is no level at all: that is what a full load looks like.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class Level:
    """``warn`` colours, ``hot`` colours and alerts, below ``clear`` the alert ends; ``hold_s``: so long, either way."""

    warn: float
    hot: float
    clear: float
    hold_s: float = 20.0

    def tone(self, value: float) -> str:
        """``ok``, ``warn`` or ``hot``."""
        return "hot" if value >= self.hot else "warn" if value >= self.warn else "ok"


@dataclass(frozen=True, slots=True)
class Limits:
    """The levels of one class; None: this class has no such level.

    ``gpu_c`` None: the card's own slowdown temperature counts where the driver tells it. Temperatures in C, ``memory_pct`` of
    the host's memory, ``power_w`` of each GPU, throttling in seconds per minute and cause.
    """

    name: str = "any"
    gpu_c: Level | None = None
    cpu_c: Level | None = None
    memory_pct: Level | None = None
    power_w: Level | None = None
    thermal_s: Level | None = None
    brake_s: Level | None = None
    cpu_throttle_s: Level | None = None

    def over(self, other: Limits) -> Limits:
        """These levels, and those of ``other`` where this class says nothing."""
        return Limits(self.name, *(getattr(self, name) or getattr(other, name) for name in LEVELS))


LEVELS = tuple(field.name for field in fields(Limits) if field.name != "name")
THROTTLE_LEVELS = {"T": "thermal_s", "B": "brake_s", "C": "cpu_throttle_s"}  # by the letter of the strip; P has none

ANY = Limits(
    "any",
    cpu_c=Level(90.0, 97.0, 93.0),
    memory_pct=Level(90.0, 97.0, 94.0),
    thermal_s=Level(2.0, 10.0, 3.0, 0.0),
    brake_s=Level(0.1, 1.0, 0.2, 0.0),
    cpu_throttle_s=Level(5.0, 20.0, 5.0, 0.0),
)
UNKNOWN_GPU = Level(80.0, 90.0, 86.0)  # of a card that tells no limit of its own

# The first pattern that fits the name of a GPU, else of the CPU, else of the box.
CLASSES: tuple[tuple[str, Limits], ...] = (
    (
        "*GB10*",
        Limits(
            "GB10",
            gpu_c=Level(99.0, 103.0, 100.0, 30.0),
            cpu_c=Level(100.0, 105.0, 101.0, 30.0),
            thermal_s=Level(10.0, 30.0, 15.0, 0.0),
        ),
    ),
    (
        "*Strix Halo*",
        Limits("Strix Halo", gpu_c=Level(92.0, 99.0, 95.0), cpu_c=Level(96.0, 100.0, 97.0, 30.0)),
    ),
    ("*Radeon 8060S*", Limits("Strix Halo", gpu_c=Level(92.0, 99.0, 95.0), cpu_c=Level(96.0, 100.0, 97.0, 30.0))),
    ("*Ryzen AI*", Limits("Ryzen AI", gpu_c=Level(92.0, 99.0, 95.0), cpu_c=Level(96.0, 100.0, 97.0, 30.0))),
    ("*Orin*", Limits("Jetson", gpu_c=Level(85.0, 97.0, 92.0), cpu_c=Level(85.0, 97.0, 92.0))),
    ("*EPYC*", Limits("EPYC", cpu_c=Level(85.0, 95.0, 90.0))),
    ("*Threadripper*", Limits("Threadripper", cpu_c=Level(88.0, 95.0, 91.0))),
    ("*Xeon*", Limits("Xeon", cpu_c=Level(88.0, 96.0, 92.0))),
)


def limits_for(box: str, cpu: str, gpus: Iterable[str], classes: Sequence[tuple[str, Limits]] = ()) -> Limits:
    """The levels of one box. ``classes``: patterns that are looked at before the known ones (a profile's); those that fit
    are laid over each other, the first on top. Patterns know ``*``, ``?`` and ``[...]``; case does not matter."""
    names = [name.lower() for name in (*gpus, cpu, box) if name]
    found = [limits for pattern, limits in classes if fits(pattern, names)]
    known = next((limits for name in names for pattern, limits in CLASSES if fnmatchcase(name, pattern.lower())), None)
    answer = (known or ANY).over(ANY)
    for limits in reversed(found):
        answer = limits.over(answer)
    return answer


def fits(pattern: str, names: Iterable[str]) -> bool:
    """Whether a pattern fits one of these names (already lower case)."""
    return any(fnmatchcase(name, pattern.lower()) for name in names)


def gpu_level(limits: Limits, slowdown_c: float | None) -> Level:
    """Of one GPU: its class's, else 8 C below its own slowdown temperature, else what is warm for any card."""
    if limits.gpu_c is not None:
        return limits.gpu_c
    return Level(slowdown_c - 8.0, slowdown_c, slowdown_c - 3.0) if slowdown_c is not None else UNKNOWN_GPU
