"""Nodes for the scenarios with graphs: each writes down that it ran, one line per attempt."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from engine.context import Context
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


def _note(path: str, name: str) -> int:
    """Write down that ``name`` began; how often it has."""
    with open(path, "a") as out:
        out.write(f"{name} {os.getpid()}\n")
    with open(path) as lines:
        return sum(line.startswith(f"{name} ") for line in lines)


@node("fail_first")
def fail_first(path: str, name: str, times: int) -> dict[str, Any]:
    """Raise so many times, then return which attempt this is."""
    began = _note(path, name)
    if began <= times:
        raise ValueError(f"attempt {began} of {name} fails")
    return {"attempt": began}


@node("hold_on")
def hold_on(ctx: Context, path: str, name: str, heed: bool) -> dict[str, Any]:
    """Run until asked to stop; with ``heed`` false, go on all the same."""
    _note(path, name)
    deadline = time.monotonic() + 120
    while not (heed and ctx.cancelled()):
        assert time.monotonic() < deadline, "nobody wanted it to stop"
        time.sleep(0.01)
    _note(path, f"{name}-stopped")
    return {}
