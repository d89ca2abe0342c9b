"""What a node or task is given as ``ctx``: who it is, how to report, how to learn that it should stop."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.queue.family import Family

PROGRESS_EVERY_S = 0.2
BEAT_EVERY_S = 1.0


@dataclass(frozen=True)
class JobInfo:
    """The attempt that runs; ``fencing_token`` tells it from others of the same job (see engine.complete_job)."""

    id: int
    family_name: str  # "node" | "ingest"
    name: str
    queue: str
    project: str
    box: str
    attempt: int
    fencing_token: int
    worker: str
    run_id: int | None = None
    node_id: str | None = None
    required_model: str | None = None
    priority: int = 100
    is_priority: bool = False

    @property
    def family(self) -> Family:
        """The job's table and its names."""
        from engine.queue.family import family_named  # a task that asks for it has the database's code loaded anyway

        return family_named(self.family_name)


class Context:
    """One attempt's line to its lane. Usable from any thread of the executor; a forked child's calls do nothing."""

    def __init__(
        self,
        job: JobInfo,
        *,
        report: Callable[..., None],
        cancelled: Callable[[], bool],
        model: Any = None,
        out_root: Path,
    ) -> None:
        self.job = job
        self.model = model
        self.log = logging.getLogger(f"job.{job.name}")
        self._report = report
        self._cancelled = cancelled
        self._out_root = out_root
        self._pid = os.getpid()
        self._last_progress = float("-inf")
        self._held_back: deque[tuple[float | None, str | None]] = deque(maxlen=1)  # came too soon after another
        self._sending = threading.Lock()
        self._last_beat = float("-inf")

    def beat(self) -> None:
        """Say that the job is alive. Cheap: at most one a second leaves the process."""
        now = time.monotonic()
        if now - self._last_beat >= BEAT_EVERY_S and os.getpid() == self._pid:
            self._last_beat = now
            self._report("beat", id=self.job.id)

    def progress(self, pct: float | None = None, text: str | None = None) -> None:
        """Report progress: percent 0-100 and a short text. It is a beat too. At most five a second leave the
        process; the last one does in any case, if the job goes on."""
        if pct is not None:
            pct = float(pct)
            if pct != pct:
                raise ValueError("progress: pct is not a number")
            pct = min(100.0, max(0.0, pct))
        now = time.monotonic()
        if now - self._last_progress >= PROGRESS_EVERY_S and os.getpid() == self._pid:
            with self._sending:
                self._held_back.clear()
                self._send(now, pct, text)
        else:
            self._held_back.append((pct, text))

    def late(self, now: float) -> None:
        """Send the last progress that came too soon after another, once its time has come. For the executor."""
        if self._held_back and now - self._last_progress >= PROGRESS_EVERY_S:
            with self._sending, contextlib.suppress(IndexError):
                self._send(now, *self._held_back.pop())

    def _send(self, now: float, pct: float | None, text: str | None) -> None:
        self._last_progress = self._last_beat = now
        self._report("progress", id=self.job.id, pct=pct, text=None if text is None else str(text)[:500])

    def cancelled(self) -> bool:
        """Whether somebody asked for this job to stop. It is killed if it does not within ``cancel_grace`` (10 s)."""
        return self._cancelled()

    @property
    def out_dir(self) -> Path:
        """A directory of this job on this box, made when first asked for; for the user who runs the lane only.

        Later attempts on the box find what earlier ones left. It goes when nothing in it has changed for
        ``out_keep_days`` (30).
        """
        path = self._out_root / f"job-{self.job.id}"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path
