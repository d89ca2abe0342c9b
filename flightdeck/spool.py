"""Lines of a file, uncompressed, of which any can be read at any time; those of a long one lie on the disk."""

from __future__ import annotations

import tempfile
import threading
from dataclasses import dataclass

IN_MEMORY = 64 * 2**20  # bytes; what is longer goes to a temporary file


@dataclass(frozen=True, slots=True)
class Entry:
    """When a line was written (seconds) and where it stands."""

    t: float
    offset: int
    size: int


class Lines:
    """First all are added by one thread, then any thread reads."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115  (it goes when this goes)
        self._lock = threading.Lock()

    def add(self, t: float, line: bytes) -> Entry:
        offset = self._file.tell()
        self._file.write(line)
        return Entry(t, offset, len(line))

    def line(self, entry: Entry) -> bytes:
        with self._lock:
            self._file.seek(entry.offset)
            return self._file.read(entry.size)
