"""What one chaos run does, in numbers that follow from its size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PER_LANE = 6.0  # jobs a second that a lane of this run is fed
SLOTS = 3
EVERY_S = 2.0  # one blow
GHOSTS = "ghosts"  # a queue without a lane


@dataclass(frozen=True)
class Options:
    """``quick``: the short settings of the tests, no freeze of more than some seconds. Times in seconds."""

    out: Path
    jobs: int = 10_000
    lanes: int = 8
    store: str = "postgresql"  # | "sqlite"
    seed: int = 1
    db_url: str | None = None
    plant: str | None = None
    http: bool = False  # the users come through `queue-broker-web`, which is killed, too
    quick: bool = False
    limit_s: float = 600.0

    @property
    def feed_s(self) -> float:
        """How long jobs are submitted, and blows dealt."""
        return max(8.0, self.jobs / (self.lanes * PER_LANE))

    @property
    def replays(self) -> int:
        return self.jobs // 10

    @property
    def cancels(self) -> int:
        return self.jobs // 20

    @property
    def stale_writes(self) -> int:
        return max(20, self.jobs // 50)

    @property
    def long_freezes(self) -> int:
        return 0 if self.quick or self.feed_s < 60 else 2

    @property
    def restarts(self) -> tuple[str, ...]:
        if self.store == "sqlite":
            return ()
        return ("fast",) if self.quick else ("immediate", "fast")

    @property
    def places(self) -> list[tuple[str, str]]:
        """(box, queue) of each lane: pairs of lanes on simulated boxes, or one box with a queue for each lane."""
        if self.store == "sqlite":
            names = ["default", "cpu", *(f"queue{n}" for n in range(3, self.lanes + 1))]
            return [("box1", name) for name in names[: self.lanes]]
        return [(f"box{1 + n // 2}", ("default", "cpu")[n % 2]) for n in range(self.lanes)]

    @property
    def ingest_queues(self) -> list[str]:
        return sorted({queue for _, queue in self.places} - {"cpu"})

    @property
    def environment(self) -> dict[str, str]:
        quick = {
            "FLIGHTDECK_LEADER_UP_SECONDS": "1",
            "FLIGHTDECK_RENEW_SECONDS": "1",
            "FLIGHTDECK_BEAT_SECONDS": "1",
        }
        return {
            "FLIGHTDECK_INGEST_QUEUES": ",".join((*self.ingest_queues, GHOSTS)),
            "CHAOS_PLANT": self.plant or "",
            **(quick if self.quick else {}),
        }
