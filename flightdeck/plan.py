"""What a supervisor is to run, and where it can be reached."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Program:
    """One program: a name for people, its command line, what it has in its environment beyond ours.

    ``after_s``: start so many seconds after the supervisor. ``drains``: SIGTERM lets it finish what it runs, as a lane
    does, and one more signal makes it give that back at once.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    after_s: float = 0.0
    drains: bool = False


@dataclass(frozen=True)
class Plan:
    """What to run and where. ``keep``: an ``embedded:`` URL whose server must outlive the programs.

    ``orphan``: what to do when the owner is gone without a word, "stop" or "drain".
    """

    programs: tuple[Program, ...]
    directory: str
    keep: str | None = None
    stop_s: float = 5.0  # "stop": seconds from asking to killing
    drain_s: float = 40.0  # "drain": the same
    orphan: str = "stop"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        data = json.loads(text)
        programs = tuple(
            Program(p["name"], tuple(p["argv"]), dict(p["env"]), p["after_s"], p["drains"])
            for p in data.pop("programs")
        )
        return cls(programs=programs, **data)


@contextlib.contextmanager
def control_path(directory: Path) -> Iterator[str]:
    """The socket's path in a form that always fits: socket paths are limited to 107 bytes, data directories are not."""
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/control.sock"
    finally:
        os.close(folder)
