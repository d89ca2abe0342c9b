"""GPUs that a test makes up and changes while other processes look at them (see pynvml.py beside this)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STATE = "FAKE_NVML_STATE"  # the variable that names the JSON file
HERE = Path(__file__).resolve().parent

NOT_SUPPORTED: Mapping[str, Any] = {"error": "NOT_SUPPORTED"}
UNKNOWN: Mapping[str, Any] = {"error": "UNKNOWN"}


def card(number: int = 0, **changes: Any) -> dict[str, Any]:
    """An ordinary card of 24 GiB. Every value may be ``{"error": "UNKNOWN"}`` (a name of NVML_ERROR_*) or
    ``{"hang": true}`` instead. ``kind="gb10"``: no memory of its own. ``lost=True``: it refuses everything."""
    return {
        "kind": "ordinary",
        "uuid": f"GPU-{number:08d}-0000-0000-0000-000000000000",
        "bus": f"00000000:{number + 1:02x}:00.0",
        "name": "NVIDIA RTX 4090",
        "lost": False,
        "util": 0,
        "used_mb": 1024,
        "total_mb": 24576,
        "temp_c": 45,
        "processes": [],  # {"pid", "mb"}; "mb" null: the driver does not tell
        "answers": {},  # further functions by name
    } | changes


class Gpus:
    """The cards of one made-up machine. ``env`` is what a process needs to see them instead of the real ones."""

    def __init__(self, directory: Path, *cards: dict[str, Any], driver: str = "580.95.05") -> None:
        self.path = directory / "nvml.json"
        self.root = directory / "nvml_root"  # where probes look for /proc and /sys
        (self.root / "proc" / "driver" / "nvidia").mkdir(parents=True)
        self.host_memory(65536, 32768)
        self.state: dict[str, Any] = {"driver": driver, "start_error": None, "hang": False, "cards": list(cards)}
        self.save()

    @property
    def env(self) -> dict[str, str]:
        """PYTHONPATH with the fake bindings in front, and where their state is."""
        paths = [str(HERE), str(HERE.parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            "PYTHONPATH": os.pathsep.join(paths),
            STATE: str(self.path),
            "FLIGHTDECK_PROBE_ROOT": str(self.root),
        }

    def set(self, number: int = 0, **changes: Any) -> None:
        """Change one card; whoever looks next sees it."""
        self.state["cards"][number].update(changes)
        self.save()

    def driver(self, **changes: Any) -> None:
        """Change the driver: ``hang`` (every call stands still), ``start_error`` (a name of NVML_ERROR_*)."""
        self.state.update(changes)
        self.save()

    def host_memory(self, total_mb: int, used_mb: int) -> None:
        """The machine's memory, which is that of a card without memory of its own too."""
        lines = {"MemTotal": total_mb, "MemFree": total_mb - used_mb, "MemAvailable": total_mb - used_mb}
        text = "".join(f"{name}: {mb * 1024} kB\n" for name, mb in lines.items())
        self._write(self.root / "proc" / "meminfo", text + "SwapTotal: 0 kB\nSwapFree: 0 kB\n")

    def save(self) -> None:
        self._write(self.path, json.dumps(self.state))

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").replace(path)
