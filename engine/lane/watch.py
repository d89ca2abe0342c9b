"""Watching over what runs: lost claims, cancels, kills, the watchdogs, jobs claimed ahead that do not get to run."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from engine import config
from engine.lane import exits, stacks, watchdogs
from engine.lane.book import AHEAD_MARGIN_S, Book, Held
from engine.lane.crew import Crew
from engine.lane.fates import Fates
from engine.lane.gpu_probe import Probe, Subject
from engine.lane.slot import Slot, Why
from engine.lane.watchdogs import Dismissed, Limits, Verdict, Vigil
from engine.queue import events, lease
from engine.queue.workers import Worker
from engine.store import Db

log = logging.getLogger("engine.lane")
BEGIN_AFTER_S = 0.1  # a job claimed ahead that runs longer gets its started_at before it ends
TELL = 100  # suspicions that wait for an unreachable database; older ones are dropped


class Watch:
    """Acts on the jobs in the slots. For the loop's thread."""

    def __init__(self, worker: Worker, book: Book, crew: Crew, fates: Fates, cancel_grace_s: float) -> None:
        self._worker, self._book, self._crew, self._fates = worker, book, crew, fates
        self._cancel_grace_s = cancel_grace_s
        self._limits = Limits.configured()
        self._vigils: dict[int, tuple[Held, Vigil]] = {}  # by slot
        self._ticked: float | None = None
        self._asked: dict[int, Held] = {}  # what the reading that is under way is about, by slot
        self._suspicions: list[tuple[Held, float, Mapping[str, Any]]] = []  # job, seconds run, evidence
        self._probe: Probe | None = None
        if worker.queue == "gpu":
            environment = crew.slots[0].spec.environment
            self._probe = Probe(self._limits.probe_seconds, str(config.get("probe_root")), environment)

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
        """Watchdogs, cancels that were not heeded, claims ahead whose time is up."""
        gap_s = now - self._ticked if self._ticked is not None else 0.0
        self._ticked = now
        away_s = gap_s if gap_s > watchdogs.AWAY_S else 0.0
        self._take_looks(now)
        for slot in self._crew.slots:
            if not slot.jobs or slot.why is not None:
                continue
            running = slot.running
            if running is not None and running.began is not None:
                vigil = self._vigil(slot, running, running.began)
                if away_s:
                    vigil.away(now, away_s)
                self._check(slot, running, vigil, now)
            self._expire(slot, now)
        self._ask_for_looks(now)

    def _vigil(self, slot: Slot, held: Held, began: float) -> Vigil:
        known = self._vigils.get(slot.index)
        if known is None or known[0] is not held:
            known = self._vigils[slot.index] = (held, Vigil(began, self._limits))
        return known[1]

    def _check(self, slot: Slot, held: Held, vigil: Vigil, now: float) -> None:
        if held.cancel_since is not None:
            self._ask_to_stop(held)
            if now - held.cancel_since > self._cancel_grace_s:
                self._kill_cancelled(slot, held, vigil.elapsed_s(now))
                return
        found: Verdict | Dismissed | None = watchdogs.budget(vigil.elapsed_s(now), held.budget_s)
        if found is None and self._probe is not None:
            found = vigil.tick(now, self._beat_of(slot, held))
        if found is not None:
            self._act(slot, held, vigil, now, found)

    def _kill_cancelled(self, slot: Slot, held: Held, elapsed_s: float) -> None:
        self._fates.read(slot)  # it may have stopped by now
        if slot.running is held and slot.why is None:
            reason = f"cancelled; killed, because it did not stop within {self._cancel_grace_s:g} s"
            self._crew.kill([slot], Why(None, "cancel", {"reason": reason, **self._evidence(slot, elapsed_s)}))

    @staticmethod
    def _beat_of(slot: Slot, held: Held) -> float | None:
        """When this job beat last; a beat of the job before it is none."""
        beat = slot.last_beat
        return beat if beat is not None and held.began is not None and beat >= held.began else None

    def _act(self, slot: Slot, held: Held, vigil: Vigil, now: float, found: Verdict | Dismissed) -> None:
        """A verdict kills; a suspicion that was not confirmed is told."""
        elapsed_s = vigil.elapsed_s(now)
        if isinstance(found, Dismissed):
            log.info("slot %d: job %d: %s", slot.index, held.job.id, found.evidence["reason"])
            self._suspicions = [*self._suspicions, (held, elapsed_s, found.evidence)][-TELL:]
            return
        beat = self._beat_of(slot, held)
        self._fates.read(slot)  # its end, or a beat, may have come while we looked elsewhere
        if slot.running is not held or slot.why is not None:
            return
        if found.code != exits.BUDGET and self._beat_of(slot, held) != beat:
            return
        evidence = {**found.evidence, **self._evidence(slot, elapsed_s)}
        self._crew.kill([slot], Why(found.code, "trip", evidence))

    @staticmethod
    def _evidence(slot: Slot, elapsed_s: float) -> dict[str, Any]:
        evidence: dict[str, Any] = {"elapsed_s": round(elapsed_s, 1), "slot": slot.index, "pid": slot.pid}
        if slot.pid is not None and (stack := stacks.dump(slot.pid)) is not None:
            evidence["stack"] = stack
        return evidence

    # --- the readings of a gpu lane ---

    def _take_looks(self, now: float) -> None:
        looks = self._probe.poll(now) if self._probe is not None else None
        for index, look in (looks or {}).items():
            held = self._asked.get(index)
            slot = held.slot if held is not None else None
            known = self._vigils.get(index)
            if held is None or slot is None or slot.running is not held or known is None or known[0] is not held:
                continue  # its job has ended since
            found = known[1].look(look, self._beat_of(slot, held))
            if found is not None:
                self._act(slot, held, known[1], now, found)

    def _ask_for_looks(self, now: float) -> None:
        if self._probe is None or self._probe.waits:
            return
        subjects: dict[int, Subject] = {}
        about: dict[int, Held] = {}
        due = False
        for slot in self._crew.slots:
            held, target, known = slot.running, slot.target, self._vigils.get(slot.index)
            if held is None or target is None or slot.why is not None or known is None or known[0] is not held:
                continue
            subjects[slot.index], about[slot.index] = Subject(target, slot.device.key), held
            due = due or now >= known[1].next_look
        if due and self._probe.ask(subjects, now):
            self._asked = about

    @property
    def pids(self) -> set[int]:
        """Processes of ours that are no executors."""
        return self._probe.pids if self._probe is not None else set()

    def detail(self) -> dict[str, Any]:
        """For the heartbeat: trips since the start, and what does not work now."""
        said: dict[str, Any] = {"trips": self._fates.trips} if self._fates.trips else {}
        if self._probe is not None and self._probe.error:
            said["loops"] = {"gpu probe": self._probe.error}
        return said

    def close(self) -> None:
        """The lane ends."""
        if self._probe is not None:
            self._probe.wait_closed(1.0)

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
                db, self._worker, [(id, token, pct, text) for id, (token, pct, text) in reports.items()]
            )
            self.lost({id: reports[id][0] for id in lost})

    def write_suspicions(self, db: Db) -> None:
        """Tell of suspicions that were not confirmed."""
        while self._suspicions:
            held, elapsed_s, evidence = self._suspicions[0]
            events.record_attempt(
                db, held.job, "stall_suspected", box=self._worker.box, elapsed_s=elapsed_s, detail=evidence
            )
            del self._suspicions[0]

    @property
    def has_rows_to_write(self) -> bool:
        """Whether a job ahead has begun and its row does not say so, or a suspicion is to be told."""
        return bool(self._suspicions) or any(
            held is not None and not held.begun_written for held in (slot.running for slot in self._crew.slots)
        )
