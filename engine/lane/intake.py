"""From free slots to running jobs: what to claim for, and who gets what was claimed."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from engine import config
from engine.errors import StoreError
from engine.lane import watchdogs
from engine.lane.ahead import Ahead
from engine.lane.book import Book, Held
from engine.lane.crew import Crew
from engine.lane.duty import Duty
from engine.lane.fates import Fates
from engine.lane.gpus import Ask, Gpus
from engine.lane.settle import Settler
from engine.lane.slot import Slot
from engine.queue import lease
from engine.queue.claim import ClaimedJob, ClaimRequest
from engine.queue.workers import Worker
from engine.store import Db


class Intake:
    """Builds claims and hands jobs over. ``holding()``: the lane's lock is ours."""

    def __init__(
        self,
        worker: Worker,
        lease_s: float,
        host_priority: int,
        duty: Duty,
        book: Book,
        crew: Crew,
        fates: Fates,
        ahead: Ahead,
        holding: Callable[[], bool],
        gpus: Gpus | None = None,
    ) -> None:
        self._worker, self._lease_s, self._host_priority = worker, lease_s, host_priority
        self._duty, self._book, self._crew, self._fates, self._ahead = duty, book, crew, fates, ahead
        self._holding = holding
        self._gpus = gpus
        self._gpu = worker.queue == "gpu"
        self._wait_s = float(config.get("affinity_max_wait_s"))
        self._budget_s = float(config.get("node_budget_s" if worker.family.has_run else "ingest_budget_s"))
        self._usual: dict[tuple[int, bool], ClaimRequest] = {}  # by rows, begin: the same again and again
        self.waiting: deque[Held] = deque()  # claimed, and no slot to hand it to just now

    # --- claims ---

    def requests(self, flagged: bool = False) -> list[tuple[ClaimRequest, Ask | None]]:
        """What to claim for: all free slots at once; on gpu queues those together that hold and fit the same models."""
        if not self._duty.claiming or not self._holding() or self.waiting or self._fates.verify:
            return []
        if self._gpus is not None:
            asks = self._gpus.asks(self._crew.idle, time.monotonic(), flagged)
            return [(self._request(len(ask.slots), ask), ask) for ask in asks]
        depth = self._ahead.depth
        if depth == 1:
            room = idle = flowing = len(self._crew.idle)
        else:
            now = time.monotonic()
            flows = [slot for slot in self._crew.ready if slot.flows(now)]
            room, flowing = depth * len(flows) - sum(len(slot.jobs) for slot in flows), len(flows)
            idle = sum(1 for slot in flows if not slot.jobs)
        if not self._ahead.worth_claiming(room, idle, flowing):
            return []
        usual = (room, not self._ahead.short)
        if usual not in self._usual:
            self._usual[usual] = self._request(room, None)
        return [(self._usual[usual], None)]

    def _request(self, n: int, ask: Ask | None) -> ClaimRequest:
        return ClaimRequest(
            worker=self._worker,
            n=n,
            lease_s=self._lease_s,
            host_priority=self._host_priority,
            models=ask.models if ask is not None else None,
            loaded_model=ask.loaded if ask is not None else None,
            affinity_max_wait_s=self._wait_s,
            model_rows=ask is None or ask.model_rows,
            free_rows=ask is None or ask.free_rows,
            begin=not self._ahead.short,
        )

    def still_free(self, asked: tuple[ClaimRequest, Ask | None]) -> tuple[ClaimRequest, Ask | None] | None:
        """A claim as it is after those before it; None: it is no longer due."""
        request, ask = asked
        if ask is None or self._gpus is None:
            return asked
        left = self._gpus.remaining(ask)
        return (replace(request, n=len(left.slots), models=left.models), left) if left is not None else None

    # --- hand-over ---

    def take(self, jobs: list[ClaimedJob], ask: Ask | None) -> None:
        """Enter claimed jobs in the book and hand them over, most urgent first."""
        if not jobs:
            return
        for held in self._book.add(jobs):
            held.budget_s = watchdogs.budget_for(
                self._gpu, held.job.budget_s, self._fates.budgets.get(held.job.name), self._budget_s
            )
        self._hand([entered for job in jobs if (entered := self._book.get(job.id)) is not None], ask)

    def serve_waiting(self) -> None:
        """Hand over what was claimed when no slot was free for it (an executor died in between)."""
        held, self.waiting = list(self.waiting), deque()
        self._hand(held, None)

    def _hand(self, claims: list[Held], ask: Ask | None) -> None:
        """To a slot it was claimed for, else to the least loaded one. What is too old is asked about first."""
        now = time.monotonic()
        if ask is None and self._ahead.pack > 1 and self._duty.claiming:
            claims = self._deal(claims, self._ahead.pack, now)
        idle = [slot for slot in ask.slots if slot.idle] if ask is not None else []
        idle = idle or self._crew.idle
        flows: list[Slot] | None = None
        for held in claims:
            chosen: Slot | None = None
            if now > held.good_until:
                self._fates.never_began(held)
                continue
            if not self._duty.claiming:
                pass
            elif self._gpus is not None:
                chosen = next((each for each in idle if self._gpus.may_run(each, held.job.required_model)), None)
                if chosen is not None:
                    idle.remove(chosen)
            elif idle:
                chosen = idle.pop(0)
            elif held.job.ahead:
                if flows is None:
                    flows = [each for each in self._crew.ready if each.flows(now)]
                chosen = min(flows, key=lambda each: len(each.jobs), default=None)
            if chosen is None:
                self.waiting.append(held)
            else:
                self._give(chosen, held, now)

    def _give(self, slot: Slot, held: Held, now: float) -> None:
        """A row that cannot be put into a frame (bytes in a text column, on SQLite) fails alone."""
        try:
            slot.hand(held, now)
        except Exception as error:
            self._fates.unfit(held, error)

    def _deal(self, claims: list[Held], pack: int, now: float) -> list[Held]:
        """Tiny jobs: ``pack`` together to the slot that has the fewest, so that few executors stay warm and the others
        asleep. Returns what is not of that kind."""
        slots = [(len(slot.jobs), slot.index, slot) for slot in self._crew.ready if slot.flows(now)]
        heapq.heapify(slots)
        mine = [held for held in claims if held.job.ahead and now <= held.good_until] if slots else []
        for start in range(0, len(mine), pack):
            _, index, slot = slots[0]
            for held in mine[start : start + pack]:
                self._give(slot, held, now)
            heapq.heapreplace(slots, (len(slot.jobs), index, slot))
        dealt = set(map(id, mine))
        return [held for held in claims if id(held) not in dealt]

    def verify(self, db: Db, now: float) -> None:
        """This process stood still between a claim and its start: start only what is still ours. Raises StoreError."""
        asked, self._fates.verify = self._fates.verify, []
        try:
            answer = lease.renew(
                db, self._worker, {held.job.id: held.job.fencing_token for held in asked}, self._lease_s
            )
        except StoreError:
            self._fates.verify = asked + self._fates.verify
            raise
        self._book.renewed(answer.renewed, now)
        for held in asked:
            held.lost = held.job.id in answer.lost
            if held.lost:
                self._fates.never_began(held)
            elif held.job.id not in answer.renewed:
                self._fates.verify.append(held)
        self._hand([held for held in asked if held.job.id in answer.renewed], None)

    # --- back ---

    def forget_lost(self) -> None:
        """Of what waits, drop what is no longer ours."""
        for held in [held for held in self.waiting if held.lost]:
            self.waiting.remove(held)
            self._fates.never_began(held)

    def find_strays(self) -> None:
        """An unexpected error came between a claim and its hand-over: what was entered and not handed over, waits."""
        waiting = {id(held) for held in (*self.waiting, *self._fates.verify)}
        self.waiting.extend(
            held for held in self._book.all() if held.slot is None and not held.settling and id(held) not in waiting
        )

    def give_back_stranded(self, settler: Settler) -> None:
        """Jobs that wait for a GPU which another lane has got meanwhile (ours went with a connection): as before the claim."""
        if self._gpus is not None and self.waiting:
            stranded = [held for held in self.waiting if self._gpus.stranded(held.job.required_model)]
            for held in stranded:
                self.waiting.remove(held)
            settler.never_began(stranded)

    def give_up(self, settler: Settler) -> None:
        """The lane is off or ends: what waits for a slot, or for an answer whose it is, goes back, nothing spent."""
        back, self.waiting = [*self.waiting, *self._fates.verify], deque()
        self._fates.verify = []
        for held in back:
            if held.job.ahead:
                self._fates.never_began(held)
        settler.give_back(
            [held for held in back if not held.job.ahead], self._duty.back, None, {"reason": "it had not begun"}
        )
