"""A host app with work by the clock."""

from __future__ import annotations

from pathlib import Path

import engine


def note(path: str) -> None:
    """Leave a line for every run."""
    with Path(path).open("a") as out:
        out.write("ran\n")


engine.register_ingest_task("note", note)
engine.register_ingest_task("noop", lambda: None)
engine.register_schedule(
    "report", "0 * * * *", task_name="noop", queue="default", args={}, tz="Europe/Amsterdam", misfire="one"
)
