"""What the page has read lately: one reading for everybody who looks at the same, and the last good one when there is none.

A reading is taken again after a moment; while the database is away the last one is shown, with its age. Bounded.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from engine.errors import NotAllowed, StoreError
from engine.store import Db
from engine.web.databases import Databases
from engine.web.problems import Busy

T = TypeVar("T")

KEPT = 100  # readings
FRESH_S = 0.7
AGAIN_S = 0.5  # what failed is not tried again sooner: whoever waited for it is told the same
SHOWN_FOR_S = 3600.0  # so old a reading may be when the database is away


@dataclass(frozen=True)
class Look(Generic[T]):
    """What was read, how old it is in seconds, and why there is nothing newer (empty: it is fresh)."""

    value: T
    age_s: float
    trouble: str = ""


@dataclass
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    value: Any = None
    at: float | None = None  # when it was read
    outdated: bool = False  # something has been ordered since
    failed: StoreError | Busy | None = None
    failed_at: float = 0.0


class Looks:
    """Safe to use from many threads; whoever asks for what is being read just now waits for that reading."""

    def __init__(self, databases: Databases, clock: Callable[[], float] = time.monotonic) -> None:
        self._databases = databases
        self._clock = clock
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def look(self, key: Hashable, read: Callable[[Db], T], fresh_s: float = FRESH_S) -> Look[T]:
        """What ``read`` finds, read now or a moment ago. Raises what it raises; StoreError and Busy only when nothing
        was ever read that could stand in."""
        entry = self._entry(key)
        with entry.lock:
            now = self._clock()
            if entry.at is not None and not entry.outdated and now - entry.at < fresh_s:
                return Look(entry.value, now - entry.at)
            if entry.failed is None or now - entry.failed_at >= AGAIN_S:
                try:
                    with self._databases.borrow(read_only=True) as db:
                        value = read(db)
                except (StoreError, Busy) as error:
                    entry.failed, entry.failed_at = error, self._clock()
                else:
                    entry.value, entry.at, entry.outdated, entry.failed = value, self._clock(), False, None
                    return Look(value, 0.0)
            assert entry.failed is not None
            now = self._clock()
            if entry.at is None or now - entry.at > SHOWN_FOR_S:
                raise entry.failed.with_traceback(None)
            return Look(entry.value, now - entry.at, trouble_of(entry.failed))

    def forget(self) -> None:
        """Read anew whatever is asked for next: something has been ordered."""
        with self._lock:
            for entry in self._entries.values():
                entry.outdated = True

    def _entry(self, key: Hashable) -> _Entry:
        with self._lock:
            entry = self._entries.pop(key, None) or _Entry()
            self._entries[key] = entry
            if len(self._entries) > KEPT:
                self._entries.popitem(last=False)
            return entry


def trouble_of(error: Exception) -> str:
    """Why nothing could be read, without a word of the inside."""
    if isinstance(error, NotAllowed):
        return "the service's login at the database has no right to it"
    return "too many are asking at once" if isinstance(error, Busy) else "the database does not answer"
