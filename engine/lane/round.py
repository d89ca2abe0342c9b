"""One round of a lane with its database: write what ended, claim for what is free, in as few statements as there can be."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from engine.errors import StoreError
from engine.lane.ahead import Ahead
from engine.lane.crew import Crew
from engine.lane.desk import Desk
from engine.lane.duty import Duty
from engine.lane.fates import Fates
from engine.lane.gpus import Ask
from engine.lane.intake import Intake
from engine.lane.link import Backoff, Link
from engine.lane.settle import Settler
from engine.lane.watch import Watch
from engine.queue.claim import ClaimedJob, ClaimRequest, claim
from engine.queue.workers import Worker
from engine.store import Db, Store

log = logging.getLogger("engine.lane")
ROWS_S = 0.25  # progress and begun rows are written this often


class Round:
    """The loop's connection and what goes over it. ``look``: there may be something to claim."""

    def __init__(
        self,
        store: Store,
        worker: Worker,
        duty: Duty,
        link: Link,
        crew: Crew,
        ahead: Ahead,
        fates: Fates,
        settler: Settler,
        intake: Intake,
        watch: Watch,
        desk: Desk | None,
        pump: Callable[[], None],
    ) -> None:
        self._store, self._worker, self._duty, self._link = store, worker, duty, link
        self._crew, self._ahead, self._fates = crew, ahead, fates
        self._settler, self._intake, self._watch, self._desk = settler, intake, watch, desk
        self._pump = pump
        self.db: Db | None = None
        self.look = True
        self._at = 0.0  # when a connection is tried again
        self._rows_at = 0.0
        self._refusal: str | None = None  # the last unexpected error, as it was told
        self._backoff = Backoff()

    def turn(self, now: float) -> None:
        """One round with the database, when there is reason for one: write what ended, claim for what is free."""
        ended = len(self._settler.outcomes)
        coming = sum(len(slot.jobs) for slot in self._crew.ready if slot.flows(now)) if ended else 0
        flush = self._ahead.flush_due(ended, now - self._settler.oldest, len(self._crew.idle), coming)
        requests = self._intake.requests() if self.look or flush else []
        self.look = self.look or len(requests) > 1  # one of them goes with what ended; what it leaves is for the others
        strange = self._desk.gpus.curious(self._crew.idle) if self._desk and self.look and self._duty.claiming else []
        rows = now >= self._rows_at and (bool(self._fates.progress) or self._watch.has_rows_to_write)
        if not (flush or self._settler.urgent or self._fates.verify or rows or (self.look and (requests or strange))):
            return
        db = self._connected(now)
        if db is None:
            return
        try:
            if self._fates.verify:
                self._intake.verify(db, now)
            if rows:
                self._rows_at = now + ROWS_S
                self._watch.write_progress(db)
                self._watch.write_begun(db, now)
                self._watch.write_suspicions(db)
            full: list[bool] = []
            if self._desk is not None and self._desk.overlooks(db, [ask for _, ask in requests]):
                requests = self._intake.requests(flagged=True)
            if flush or self._settler.urgent:
                fused = requests[0] if flush and requests else None
                claimed = self._settler.write(db, fused[0] if fused else None)
                if fused:
                    del requests[0]
                    self._took(fused, claimed, full)
            if self.look:
                for asked in requests:
                    if (left := self._intake.still_free(asked)) is not None:
                        self._took(left, claim(db, left[0]), full)
                if strange and self._desk is not None:
                    self._desk.peek(db, strange)
                    full.append(False)  # when a device becomes ours that is news
            if full:
                self.look = all(full)
            self._link.works("loop")
            self._refusal = None
            self._backoff.reset()
        except StoreError as error:
            self._lost(error)
        except Exception as error:  # a deadlock, a full disk, a row that cannot be read: not the end of a lane
            self._refused(error)
        self._pump()

    def _took(self, asked: tuple[ClaimRequest, Ask | None], claimed: list[ClaimedJob], full: list[bool]) -> None:
        """Hand over what a claim brought. ``full``: was it all that was asked for, so that there may be more?"""
        request, ask = asked
        self._intake.take(claimed, ask)
        if ask is None or ask.whole:
            full.append(len(claimed) == request.n)
        if ask is not None and self._desk is not None:
            self._desk.gpus.looked(ask.slots)

    def _connected(self, now: float) -> Db | None:
        if self.db is None and now >= self._at:
            try:
                self.db = self._store.connect(f"lane {self._worker.queue}", claims=True)
                self.look = True
            except StoreError as error:
                self._lost(error)
        return self.db

    def _lost(self, error: StoreError) -> None:
        if self.db is not None:
            self.db.close()
            self.db = None
        self._at = time.monotonic() + self._backoff.wait_s()
        self._link.broken("loop", error)

    def _refused(self, error: Exception) -> None:
        """The database, or we, could not make sense of a statement: start over with a new connection, tell it once."""
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
        if said != self._refusal:
            self._refusal = said
            log.error("%s: a round with the database failed; trying again", self._link.name, exc_info=error)
            self._fates.last_exit = (None, said)
        self._intake.find_strays()
        self._lost(StoreError(said))
