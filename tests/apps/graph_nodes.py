"""Nodes for the scenarios with graphs: each writes down that it ran, one line per attempt."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from engine.registry import node


@node("note")
def note(path: str, name: str, wait_for: str | None = None, **inputs: Any) -> dict[str, Any]:
    """Append ``name`` to the file ``path``; then wait until the file ``wait_for`` exists; return the inputs."""
    with open(path, "a") as out:
        out.write(f"{name} {os.getpid()}\n")
    deadline = time.monotonic() + 120
    while wait_for is not None and not Path(wait_for).exists():
        assert time.monotonic() < deadline, f"{wait_for} never came"
        time.sleep(0.01)
    return {"name": name, "inputs": inputs}
