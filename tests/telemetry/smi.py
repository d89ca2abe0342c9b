"""What ``nvidia-smi -q -d PERFORMANCE`` prints, and a stand-in for the program that answers at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine.telemetry.probes.nvidia_smi import Smi

LABELS = {
    "sw_power_ms": "SW Power Capping",
    "sync_boost_ms": "Sync Boost",
    "sw_thermal_ms": "SW Thermal Slowdown",
    "hw_thermal_ms": "HW Thermal Slowdown",
    "hw_brake_ms": "HW Power Braking",
}


def text(cards: Mapping[str, Mapping[str, str]], driver: str = "580.95.05", word: str = "Event") -> str:
    """``cards``: by bus id what stands behind each cause, such as ``173453251 us`` or ``N/A``."""
    lines = [
        "",
        "==============NVSMI LOG==============",
        "",
        "Timestamp                                 : Tue Nov 11 10:00:00 2025",
        f"Driver Version                            : {driver}",
        "CUDA Version                              : 13.0",
        "",
        f"Attached GPUs                             : {len(cards)}",
    ]
    for bus, values in cards.items():
        lines += [
            f"GPU {bus}",
            "    Performance State                     : P0",
            f"    Clocks {word} Reasons",
            "        Idle                              : Not Active",
            "        SW Power Cap                      : Not Active",
            "        HW Slowdown                       : Not Active",
            "            HW Thermal Slowdown           : Not Active",
            "            HW Power Brake Slowdown       : Not Active",
            "        SW Thermal Slowdown               : Not Active",
            f"    Clocks {word} Reasons Counters",
            *(f"        {LABELS[cause]:<34}: {value}" for cause, value in values.items()),
            "    Sparse Operation Mode                 : N/A",
            "",
        ]
    return "\n".join(lines)


class PromptSmi(Smi):
    """Prints what ``show`` gives, in no time and in the caller's thread."""

    def __init__(self, clock: Callable[[], float], show: Callable[[], str | None]) -> None:
        super().__init__("nvidia-smi", clock)
        self._show = show
        self.runs: list[float] = []

    def _begin(self) -> None:
        self.runs.append(self._clock())
        self._work()

    def _run(self) -> str | None:
        return self._show()
