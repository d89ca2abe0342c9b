"""Where jobs put their files (``ctx.out_dir``): a directory per job, of one lane on one box, removed when it is old."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from engine.lane import logs

log = logging.getLogger("engine.lane")

EVERY_S = 3600.0  # between two looks for what is old; more often where little is kept
DAY_S = 86400.0


def lane_root(data_dir: Path, box: str, queue: str, project: str, database: str) -> Path:
    """The directory of one lane; ids of jobs are unique within a ``database`` only, so its name goes into the path."""
    name = logs.lane_dir(data_dir, box, queue, project).name
    return data_dir / "out" / f"{name}-{hashlib.blake2b(database.encode(), digest_size=4).hexdigest()}"


class OutDirs:
    """Removes directories in which nothing has changed for ``keep_days`` (0: never) and whose job does not run here."""

    def __init__(self, root: Path, keep_days: float, running: Callable[[], Collection[int]]) -> None:
        self._root, self._keep_s, self._running = root, keep_days * DAY_S, running
        self._due = 0.0
        self._thread: threading.Thread | None = None

    def tidy(self, now: float) -> None:
        """Look for old ones when it is time, on a thread of its own: trees may be large. ``now``: monotonic seconds."""
        if self._keep_s <= 0 or now < self._due or (self._thread is not None and self._thread.is_alive()):
            return
        self._due = now + min(EVERY_S, self._keep_s / 2)
        self._thread = threading.Thread(target=self.remove_old, name="old files", daemon=True)
        self._thread.start()

    def remove_old(self) -> int:
        """How many were removed; raises nothing."""
        removed = 0
        with contextlib.suppress(OSError):
            for entry in list(os.scandir(self._root)):
                name, _, number = entry.name.partition("-")
                if name != "job" or not number.isdigit() or not entry.is_dir(follow_symlinks=False):
                    continue
                if not self._is_old(Path(entry.path)) or int(number) in self._running():
                    continue
                shutil.rmtree(entry.path, ignore_errors=True)
                removed += not os.path.exists(entry.path)
        if removed:
            log.info(
                "removed the files of %d job(s), older than %g days, from %s", removed, self._keep_s / DAY_S, self._root
            )
        return removed

    def _is_old(self, directory: Path) -> bool:
        """Whether nothing in it has changed for so long; the first thing that has ends the look."""
        limit = time.time() - self._keep_s
        try:
            if directory.stat().st_mtime > limit:
                return False
            for path, folders, files in os.walk(directory):
                if any(os.lstat(os.path.join(path, name)).st_mtime > limit for name in (*folders, *files)):
                    return False
        except OSError:
            return False  # it changes right now
        return True
