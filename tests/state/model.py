"""The queue in a hundred lines of plain Python: what every job should look like, and what should have been told of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.queue.family import INGEST, NODE, Family

TERMINAL = ("completed", "failed", "cancelled")
CAPS = {"watchdog_retries": 3, "losses": 5}
SPENDS = {
    "executor_died": "watchdog_retries",
    "trip": "watchdog_retries",
    "lane_lost": "losses",
    "lease_lapsed": "losses",
}

Told = tuple[int, int, str, str | None]  # attempt, fence, event, cause


@dataclass
class Job:
    """One row. ``later``: it waits for its next attempt; ``run``: the id of a node's run, ``over``: which has ended."""

    id: int
    family: Family
    priority: int
    max_attempts: int
    run: int | None = None
    over: bool = False
    status: str = "queued"
    flag: bool = False
    attempt: int = 0
    fence: int = 0
    failures: int = 0
    losses: int = 0
    watchdog_retries: int = 0
    owner: str | None = None
    begun: bool = False
    cancel: bool = False
    kill: bool = False
    later: bool = False
    effect: int | None = None  # the fence of its committed effect
    told: list[Told] = field(default_factory=list)
    outbox: list[str] = field(default_factory=list)
    retries: list[int] = field(default_factory=list)  # the ids of the jobs that are it once more

    @property
    def claimable(self) -> bool:
        return self.status == "queued" and not self.later and not self.over

    @property
    def place(self) -> tuple[bool, int, int]:
        """Where it stands in its queue."""
        return (not self.flag, self.priority, self.id)

    def tell(self, event: str, cause: str | None = None) -> None:
        self.told.append((self.attempt, self.fence, event, cause))

    def mine(self, owner: str, fence: int) -> bool:
        return self.status == "running" and self.fence == fence and self.owner == owner

    def kept(self, owner: str, fence: int) -> bool:
        """Not lost: it runs, or it completed, perhaps by itself while its lane waits for its end."""
        return self.status in ("running", "completed") and self.fence == fence and self.owner == owner

    # --- what may happen to it ---

    def claimed(self, owner: str, begin: bool) -> None:
        self.status, self.owner, self.begun = "running", owner, begin
        self.attempt += 1
        self.fence += 1

    def _back(self) -> None:
        self.status, self.owner, self.begun, self.kill = "queued", None, False, False

    def _end(self, status: str, cause: str | None = None) -> None:
        self.tell(status, cause)
        self.status, self.kill = status, False
        if self.family is NODE:
            self.outbox.append("completed" if status == "completed" else "failed")

    def finished(self, status: str) -> None:
        """What an attempt reports is written; a cancel that was asked for wins."""
        if self.cancel:
            status = "cancelled"
        if status == "failed":
            self.failures += 1
            if self.failures < self.max_attempts:
                self.tell("requeued", "retry")
                self._back()
                self.later = True
                return
        if status == "completed" and self.family is INGEST:
            self.effect = self.fence
        self._end(status)

    def came_back(self, cause: str) -> None:
        """An attempt was cut short."""
        if self.cancel or self.over:
            self._end("cancelled", cause)
            return
        spends = SPENDS.get(cause)
        if spends is not None and getattr(self, spends) >= CAPS[spends]:
            self._end("failed", cause)
            return
        if spends is not None:
            setattr(self, spends, getattr(self, spends) + 1)
        self.tell("requeued", cause)
        self._back()
        self.flag, self.later, self.priority = True, False, min(self.priority, 10)

    def handed_back(self) -> None:
        """It was claimed and never began."""
        if self.cancel or self.over:
            self._end("cancelled")
            self.attempt -= 1
            return
        self.tell("requeued", "handed_back")
        self._back()
        self.attempt -= 1

    def cancelled(self) -> None:
        if self.status == "queued":
            self._end("cancelled")
        elif self.status == "running":
            self.cancel = True

    def run_ended(self) -> None:
        self.over = True
        if self.status == "queued":
            self.tell("cancelled")
            self.status = "cancelled"
        elif self.status == "running":
            self.cancel = True


def row_of(job: Job) -> dict[str, Any]:
    """The columns that a row must show. An owner is kept by a row that ended, so only running ones are compared."""
    return {
        "status": job.status,
        "priority": job.priority,
        "is_priority": job.flag,
        "attempt": job.attempt,
        "fencing_token": job.fence,
        "failures": job.failures,
        "losses": job.losses,
        "watchdog_retries": job.watchdog_retries,
        "cancel_requested": job.cancel,
        "kill_requested": job.kill,
        "owner": job.owner if job.status == "running" else None,
        "begun": job.begun if job.status == "running" else None,
        "waits": job.later if job.status == "queued" else None,
        "leased": job.status == "running",
    }
