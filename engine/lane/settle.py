"""What became of the lane's claims, on its way into the database. Nothing is dropped before it is committed.

Everything here is fenced in the database, so writing it late or twice changes nothing that is no longer ours.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from engine.errors import ReadOnlyStore, StoreUnavailable
from engine.lane import exits
from engine.lane.book import Book, Held
from engine.queue import events
from engine.queue.claim import ClaimedJob, ClaimRequest
from engine.queue.finish import Outcome, finish
from engine.queue.requeue import hand_back, requeue
from engine.queue.workers import Worker
from engine.store import Db

log = logging.getLogger("engine.lane")


@dataclass(frozen=True)
class _Return:
    """Jobs that go back for one reason."""

    held: list[Held]
    cause: str
    exit_code: int | None
    detail: Mapping[str, Any]


@dataclass
class Settler:
    """Collects fates, writes them when asked to. For the loop's thread only."""

    worker: Worker
    book: Book
    outcomes: list[tuple[Held, Outcome]] = field(default_factory=list)
    returns: list[_Return] = field(default_factory=list)
    unbegun: list[Held] = field(default_factory=list)
    losses: list[tuple[Held, int | None, Mapping[str, Any]]] = field(default_factory=list)
    oldest: float = 0.0  # monotonic time of the first outcome that waits

    def ended(self, held: Held, outcome: Outcome) -> None:
        """An attempt ended by itself."""
        if not self.outcomes:
            self.oldest = time.monotonic()
        held.settling = True
        self.outcomes.append((held, outcome))

    def give_back(self, held: list[Held], cause: str, exit_code: int | None, detail: Mapping[str, Any]) -> None:
        """Attempts that were cut short: queued again (or failed, at the cap of what the cause spends)."""
        for each in held:
            each.settling = True
        if held:
            self.returns.append(_Return(held, cause, exit_code, detail))

    def never_began(self, held: list[Held]) -> None:
        """Claims whose user code did not start: as before the claim."""
        for each in held:
            each.settling = True
        self.unbegun += held

    def lost(self, held: Held, began: bool, detail: Mapping[str, Any]) -> None:
        """The row is somebody else's: only the history is told."""
        held.settling = True
        self.losses.append((held, exits.LOST_CLAIM if began else None, detail))

    @property
    def urgent(self) -> bool:
        """Something waits that should not wait for company."""
        return bool(self.returns or self.unbegun or self.losses)

    @property
    def empty(self) -> bool:
        return not (self.outcomes or self.urgent)

    def write(self, db: Db, request: ClaimRequest | None) -> list[ClaimedJob]:
        """Write everything, and claim for ``request`` with the same commit. Raises StoreUnavailable; then ask again."""
        self._write_returns(db)
        if self.outcomes:
            return self._write_outcomes(db, request)
        return []

    def _write_returns(self, db: Db) -> None:
        while self.losses:
            held, exit_code, detail = self.losses[0]
            events.record_attempt(db, held.job, "lost_claim", box=self.worker.box, exit_code=exit_code, detail=detail)
            self.book.drop(held)
            del self.losses[0]
        while self.returns:
            back = self.returns[0]
            jobs = {held.job.id: held.job.fencing_token for held in back.held}
            requeue(db, self.worker, jobs, back.cause, exit_code=back.exit_code, detail=back.detail)
            for held in back.held:
                self.book.drop(held)
            del self.returns[0]
        if self.unbegun:
            hand_back(db, self.worker, {held.job.id: held.job.fencing_token for held in self.unbegun})
            for held in self.unbegun:
                self.book.drop(held)
            self.unbegun.clear()

    def _write_outcomes(self, db: Db, request: ClaimRequest | None) -> list[ClaimedJob]:
        try:
            written = finish(db, self.worker, [outcome for _, outcome in self.outcomes], next=request)
        except (StoreUnavailable, ReadOnlyStore):
            raise
        except Exception as error:
            # One result that the database refuses must not stop the others: each goes alone.
            log.warning("a batch of %d results was refused (%s); writing one by one", len(self.outcomes), error)
            while self.outcomes:
                self._write_alone(db, *self.outcomes[0])
                self._committed(1)
            return []
        self._committed(len(self.outcomes))
        for id in written.stale:
            log.warning("job %s: its result came too late and was dropped; the row is no longer ours", id)
        return written.claimed

    def _write_alone(self, db: Db, held: Held, outcome: Outcome) -> None:
        try:
            finish(db, self.worker, [outcome], next=None)
        except (StoreUnavailable, ReadOnlyStore):
            raise
        except Exception as error:
            reason = f"the database refused the result: {' '.join(str(error).split())}"
            log.error("job %s: %s", held.job.id, reason)
            try:
                finish(
                    db,
                    self.worker,
                    [replace(outcome, status="failed", output_json=None, error=reason, detail=None)],
                    next=None,
                )
            except (StoreUnavailable, ReadOnlyStore):
                raise
            except Exception:
                log.exception("job %s: its end cannot be written; its lease will lapse", held.job.id)

    def _committed(self, count: int) -> None:
        for held, _ in self.outcomes[:count]:
            self.book.drop(held)
        del self.outcomes[:count]
        self.oldest = time.monotonic()
