"""The host app of the benchmarks: what the jobs do. Lanes import it (`--app benchmarks.app`)."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from engine import registry


def noop() -> None:
    """Nothing."""


def stamp() -> dict[str, Any]:
    """The instant of its first line, in monotonic nanoseconds (one clock for all processes of a machine)."""
    now = time.monotonic_ns()
    return {"at": now}


def hold(path: str) -> dict[str, Any] | None:
    """The first attempt says in ``path`` which process it is, then runs until it is killed; a later one ends at once."""
    file = Path(path)
    if file.exists():
        return {"attempt": "later"}
    draft = file.with_suffix(".draft")
    draft.write_text(str(os.getpid()))
    draft.rename(file)
    time.sleep(600)
    return {"attempt": "first"}


def doze(seconds: float) -> None:
    time.sleep(seconds)


registry.register_ingest_task("doze", doze)
registry.register_ingest_task("noop", noop)
registry.register_ingest_task("stamp", stamp)
registry.register_ingest_task("hold", hold)
registry.register_node("noop", noop)
