"""What the run did, line by line as JSON, and what it found wrong on the way."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Breach:
    """One thing that must not be. ``rule`` is its kind, ``text`` the case in one line."""

    rule: str
    text: str


class Journal:
    """Append-only; usable from any thread. Times are seconds since the epoch."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w")
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.breaches: list[Breach] = []
        self.freezes: list[tuple[str, float, float]] = []  # owner's box/queue, from, to

    def did(self, what: str, **fields: Any) -> None:
        line = json.dumps({"at": round(time.time(), 3), "did": what, **fields}, default=str)
        with self._lock:
            self.counts[what] += 1
            self._file.write(line + "\n")

    def breach(self, rule: str, text: str) -> None:
        with self._lock:
            self.breaches.append(Breach(rule, text))
        self.did("breach", rule=rule, text=text)

    def froze(self, place: str, begun: float, ended: float) -> None:
        with self._lock:
            self.freezes.append((place, begun, ended))

    def close(self) -> None:
        with self._lock:
            self._file.close()
