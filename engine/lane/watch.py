"""Watching over what runs: lost claims, cancels, kills, budgets, jobs claimed ahead that do not get to run."""

from __future__ import annotations

import time
from collections.abc import Mapping

from engine.lane import exits, watchdogs
from engine.lane.book import AHEAD_MARGIN_S, Book, Held
from engine.lane.crew import Crew
from engine.lane.fates import Fates
from engine.lane.slot import Slot, Why
from engine.queue import lease
from engine.queue.workers import Worker
from engine.store import Db

BEGIN_AFTER_S = 0.1  # a job claimed ahead that runs longer gets its started_at before it ends


class Watch:
    """Acts on the jobs in the slots. For the loop's thread."""

    def __init__(self, worker: Worker, book: Book, crew: Crew, fates: Fates, cancel_grace_s: float) -> None:
        self._worker, self._book, self._crew, self._fates = worker, book, crew, fates
        self._cancel_grace_s = cancel_grace_s

    # --- news of the keeper: {id: fencing_token} ---

    def lost(self, ids: Mapping[int, int]) -> None:
        """These rows are no longer ours: kill what runs them, forget what did not begin."""
        doomed: list[Slot] = []
        for held in self._meant(ids):
            held.lost = True
            slot = held.slot
            if slot is None:
                continue
            if slot.running is held:
                doomed.append(slot)
            elif held.number in slot.jobs:
                slot.control("revoke", nos=[held.number])
        self._crew.kill(doomed, Why(exits.LOST_CLAIM, "lost", {"reason": "the row is somebody else's now"}))

    def cancel(self, ids: Mapping[int, int]) -> None:
        """Ask these jobs to stop; see :meth:`tick` for those that do not."""
        for held in self._meant(ids):
            if held.cancel_since is None:
                held.cancel_since = time.monotonic()
            self._ask_to_stop(held)

    def kill(self, ids: Mapping[int, int]) -> None:
        """An operator wants these executors gone: queued again, nothing spent."""
        doomed = [held.slot for held in self._meant(ids) if held.slot is not None and held.slot.running is held]
        self._crew.kill(doomed, Why(exits.OPERATOR_STOP, "operator_stop", {"reason": "killed by an operator"}))

    def _meant(self, ids: Mapping[int, int]) -> list[Held]:
        found = []
        for id, token in ids.items():
            held = self._book.get(id)
            # What is on its way to the database is settled there: its fence decides.
            if held is not None and held.job.fencing_token == token and not held.settling:
                found.append(held)
        return found

    def _ask_to_stop(self, held: Held) -> None:
        if not held.cancel_sent and held.slot is not None:
            held.cancel_sent = held.slot.control("cancel", no=held.number)

    # --- time ---

    def tick(self, now: float) -> None:
        """Budgets, cancels that were not heeded, claims ahead whose time is up."""
        for slot in self._crew.slots:
            if not slot.jobs or slot.why is not None:
                continue
            running = slot.running
            if running is not None and running.began is not None:
                self._check(slot, running, now - running.began, now)
            self._expire(slot, now)

    def _check(self, slot: Slot, held: Held, elapsed_s: float, now: float) -> None:
        if held.cancel_since is not None:
            self._ask_to_stop(held)
            if now - held.cancel_since > self._cancel_grace_s:
                reason = f"cancelled; killed, because it did not stop within {self._cancel_grace_s:g} s"
                self._crew.kill([slot], Why(None, "cancel", {"reason": reason}))
                return
        verdict = watchdogs.budget(elapsed_s, held.budget_s)
        if verdict is not None:
            self._crew.kill([slot], Why(verdict.code, "trip", verdict.evidence))

    def _expire(self, slot: Slot, now: float) -> None:
        """Give back jobs ahead past their second. The executor refuses to start them from then on (protocol.py)."""
        late = [
            held
            for held in slot.jobs.values()
            if held.job.ahead and held.began is None and now > held.good_until + AHEAD_MARGIN_S
        ]
        if not late:
            return
        self._fates.read(slot, "jobs")  # a ``began`` written in time can be read by now
        late = [held for held in late if held.began is None and slot.jobs.pop(held.number, None) is not None]
        if late:
            slot.control("revoke", nos=[held.number for held in late])
            for held in late:
                self._fates.never_began(held)

    def revoke_ahead(self) -> None:
        """Take back at once what was claimed ahead; executors answer with what they had not begun."""
        for slot in self._crew.slots:
            numbers = [held.number for held in slot.jobs.values() if held.job.ahead and held.began is None]
            if numbers:
                slot.control("revoke", nos=numbers)

    # --- rows of what runs ---

    def write_begun(self, db: Db, now: float) -> None:
        """Give jobs that were claimed ahead and run for a while their started_at."""
        begun = {
            held.job.id: held
            for slot in self._crew.slots
            if (held := slot.running) is not None
            and not held.begun_written
            and now - (held.began or now) > BEGIN_AFTER_S
        }
        if begun:
            lost = lease.begin(db, self._worker, {id: held.job.fencing_token for id, held in begun.items()})
            for id, held in begun.items():
                held.begun_written = True
                if id in lost:
                    self.lost({id: held.job.fencing_token})

    def write_progress(self, db: Db) -> None:
        """Write the latest progress of each job."""
        reports, self._fates.progress = self._fates.progress, {}
        if reports:
            lost = lease.progress(
                db, self._worker.family, [(id, token, pct, text) for id, (token, pct, text) in reports.items()]
            )
            self.lost({id: reports[id][0] for id in lost})

    @property
    def has_rows_to_write(self) -> bool:
        """Whether a job ahead has begun and its row does not say so."""
        return any(held is not None and not held.begun_written for held in (slot.running for slot in self._crew.slots))
