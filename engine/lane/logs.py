"""Where jobs write: one file per job that wrote anything, bounded, pruned.

A slot's stdout and stderr go to its spool. A job that wrote something gets the spool by rename (descriptors follow the
file), and the slot a fresh one; a silent job costs one fstat. A job that runs for a second gets its file at once.
A pipe through the lane would cost a third of a core, and hang the job whenever the lane stops reading.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import time
from pathlib import Path

from engine import config

_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


def lane_dir(data_dir: Path, box: str, queue: str, project: str) -> Path:
    """The directory of one lane's logs."""
    parts = [_UNSAFE.sub("_", part) for part in (box, queue, project) if part]
    return data_dir / "logs" / "-".join(parts)


def job_log(log_dir: Path, job_id: int, attempt: int) -> Path:
    """The file of one attempt."""
    return log_dir / f"job-{job_id}-{attempt}.log"


def spool_of(log_dir: Path, slot: int) -> Path:
    """Where a slot writes between jobs, and a job in its first second."""
    return log_dir / f"slot-{slot}.log"


def open_spool(path: Path) -> int:
    """A descriptor that appends to the spool; 0600, because jobs print what they like."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


class JobLog:
    """The executor's side: descriptors 1 and 2 of this process."""

    def __init__(self, log_dir: Path, slot: int) -> None:
        self._dir = log_dir
        self._spool = spool_of(log_dir, slot)
        self._named = False  # the running job's file has its name already

    def began(self) -> None:
        self._named = False

    def name(self, job_id: int, attempt: int) -> None:
        """Give what was written so far, and what follows, to this job. Safe from another thread; never raises."""
        if not self._named:
            self._named = True
            with contextlib.suppress(OSError):
                os.replace(self._spool, job_log(self._dir, job_id, attempt))

    def ended(self, job_id: int, attempt: int) -> bool:
        """The job is over: if it wrote anything, its file gets its name and the slot a new spool. Whether it did."""
        printed = True
        with contextlib.suppress(OSError):
            try:
                printed = os.fstat(1).st_size > 0
                if not self._named and not printed:
                    return False
            except OSError:
                _reopen_standard()  # or the next file that anybody opens would be stdout
            self.name(job_id, attempt)
            fd = open_spool(self._spool)
            os.dup2(fd, 1)
            os.dup2(fd, 2)
            os.close(fd)
        return printed


def _reopen_standard() -> None:
    """User code closed some of descriptors 0 to 2: make them exist. New descriptors are the lowest free ones."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def keep_spool(log_dir: Path, slot: int, job_id: int, attempt: int) -> None:
    """The lane's side: an executor died in this job; what it wrote last becomes the job's."""
    with contextlib.suppress(OSError):
        if spool_of(log_dir, slot).stat().st_size:
            os.replace(spool_of(log_dir, slot), job_log(log_dir, job_id, attempt))


def bound(paths: list[Path], limit: int | None = None) -> None:
    """Give the oldest blocks of logs that outgrew ``limit`` bytes back to the disk; the writer notices nothing.

    Half of the limit stays. None: the setting ``log_job_bytes``.
    """
    if limit is None:
        limit = int(config.get("log_job_bytes"))
    for path in paths:
        with contextlib.suppress(OSError):
            stat = path.stat()
            if limit <= 0 or stat.st_blocks * 512 <= limit:
                continue
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                length = (stat.st_size - limit // 2) // 4096 * 4096
                libc = ctypes.CDLL(None, use_errno=True)
                libc.fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_longlong(0), ctypes.c_longlong(length))
            finally:
                os.close(fd)


def room(log_dir: Path) -> int | None:
    """Bytes that jobs can still print; 0 also where no file can be made any more. None: it cannot be said."""
    try:
        seen = os.statvfs(log_dir)
    except OSError:
        return None
    if not seen.f_blocks:
        return None  # a file system that does not tell
    return 0 if seen.f_files and not seen.f_favail else seen.f_bavail * seen.f_frsize


def prune(log_dir: Path) -> None:
    """Remove old job logs: of this lane beyond the newest ``log_keep_files``; of all lanes of the box those older than
    ``log_keep_days``, and the oldest beyond ``log_total_bytes`` of disk in all. 0 means no limit."""
    keep = int(config.get("log_keep_files"))
    days = float(config.get("log_keep_days"))
    oldest = time.time() - days * 86400.0 if days > 0 else float("-inf")
    room = int(config.get("log_total_bytes"))
    found: list[tuple[float, int, str]] = []
    with contextlib.suppress(OSError):
        for directory in os.scandir(log_dir.parent):
            if directory.is_dir(follow_symlinks=False):
                found += _job_logs(directory.path)
    found.sort(reverse=True)
    mine = str(log_dir) + os.sep
    kept = used = 0
    for modified, size, path in found:
        used += size
        kept += path.startswith(mine)
        too_many = 0 < keep < kept and path.startswith(mine)
        if too_many or modified < oldest or 0 < room < used:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _job_logs(directory: str) -> list[tuple[float, int, str]]:
    """(modified, bytes on disk, path) of each."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(directory):
            if entry.name.startswith("job-"):
                with contextlib.suppress(OSError):
                    stat = entry.stat(follow_symlinks=False)
                    found.append((stat.st_mtime, stat.st_blocks * 512, entry.path))
    return found
