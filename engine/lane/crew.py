"""The slots of a lane together: started, replaced, killed in one sweep, buried."""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable, Sequence
from typing import Any

from engine.lane import logs, tree
from engine.lane.book import Held
from engine.lane.slot import START_BACKOFF_S, Slot, Why, collect_unburied

log = logging.getLogger("engine.lane")
ABANDON_S = 1.0  # a killed executor that has not ended by then (uninterruptible sleep) is not waited for


class Crew:
    """All executors of one lane. At every end ``drain(slot)`` may read what is left in its pipe, then
    ``on_end(slot, jobs, code)`` is told what it left undone, oldest first."""

    def __init__(
        self,
        slots: Sequence[Slot],
        selector: selectors.BaseSelector,
        drain: Callable[[Slot], None],
        on_end: Callable[[Slot, list[Held], int], None],
    ) -> None:
        self.slots = list(slots)
        self._selector = selector
        self._drain = drain
        self._on_end = on_end
        self._killed_at: dict[int, float] = {}

    # --- who is there ---

    @property
    def ready(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.state == "ready" and slot.why is None]

    @property
    def idle(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.idle]

    @property
    def alive(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.pid is not None]

    @property
    def busy(self) -> int:
        """Slots in which user code runs."""
        return sum(1 for slot in self.slots if slot.running is not None)

    @property
    def has_jobs(self) -> bool:
        return any(slot.jobs for slot in self.slots)

    # --- start ---

    def start_due(self, now: float) -> None:
        """Start executors in empty slots whose time has come."""
        for slot in self.slots:
            if slot.pid is None and now >= slot.start_at:
                try:
                    slot.start(self._selector)
                except OSError as error:
                    self.delay(slot, now, f"cannot start an executor: {error}")

    def delay(self, slot: Slot, now: float, reason: str) -> None:
        """An executor did not become ready: try again later. One line per slot and reason is enough."""
        slot.failed_starts += 1
        wait = START_BACKOFF_S[min(slot.failed_starts, len(START_BACKOFF_S) - 1)]
        slot.start_at = now + wait
        if slot.failed_starts <= 3 or slot.failed_starts % 20 == 0:
            log.error("slot %d: executor not ready (%s); next try in %.1f s", slot.index, reason.splitlines()[0], wait)

    def tell(self, slot: Slot, kind: str, **header: Any) -> None:
        """Put an order about a model into a slot's pipe, behind the job that runs there."""
        slot.order(kind, **header)
        slot.pump(self._selector)

    # --- end ---

    def kill(self, slots: Sequence[Slot], why: Why) -> None:
        """Kill these executors with everything they started. Their ends are reported when they are seen."""
        doomed = [slot for slot in slots if slot.pid is not None]
        if not doomed:
            return
        for slot in doomed:
            slot.condemn(why)
        tree.kill_trees([slot.target for slot in doomed if slot.target is not None])
        now = time.monotonic()
        for slot in doomed:
            self._killed_at.setdefault(slot.index, now)

    def ended(self, slot: Slot) -> None:
        """The executor is dead or as good as: end what it left behind, free the slot, tell."""
        if slot.target is not None and slot.index not in self._killed_at:
            tree.kill_trees([slot.target])  # before it is reaped, while its group's number is still its own
        self._drain(slot)
        jobs = list(slot.jobs.values())
        slot.jobs.clear()
        first = jobs[0] if jobs else None
        code = slot.bury(self._selector)
        self._killed_at.pop(slot.index, None)
        if first is not None and first.began is not None:
            logs.keep_spool(slot.spec.log_dir, slot.index, first.job.id, first.job.attempt)
        self._on_end(slot, jobs, code)

    def look_for_the_dying(self, now: float) -> None:
        """See ends before the kernel is done with them: freeing many GB takes seconds, a wedged driver for ever."""
        for slot in self.slots:
            if slot.pid is None:
                continue
            killed_at = self._killed_at.get(slot.index)
            if slot.silent_since is not None and killed_at is None and now - slot.silent_since > 0.5:
                self.kill([slot], Why(None, "executor_died", {"reason": "it closed its pipe"}))
            abandoned = killed_at is not None and now - killed_at > ABANDON_S
            if abandoned or ((slot.jobs or killed_at is not None) and tree.is_exiting(slot.pid)):
                if abandoned and not tree.is_exiting(slot.pid):
                    log.error("slot %d: executor %d does not die (uninterruptible); leaving it", slot.index, slot.pid)
                slot.state = "dying"
                self.ended(slot)
        collect_unburied()

    def dismiss(self, timeout_s: float) -> None:
        """Let executors leave by themselves (they drop their models), then kill what is left. Tells nobody."""
        for slot in self.alive:
            slot.say_goodbye()
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and any(
            slot.pid is not None and not tree.is_exiting(slot.pid) for slot in self.slots
        ):
            time.sleep(0.005)
        tree.kill_trees([slot.target for slot in self.alive if slot.target is not None])
        deadline = time.monotonic() + ABANDON_S  # for all together
        while time.monotonic() < deadline and any(not tree.is_exiting(slot.pid) for slot in self.alive if slot.pid):
            time.sleep(0.001)
        for slot in self.alive:
            slot.state = "dying"
            slot.jobs.clear()
            slot.bury(self._selector)
        collect_unburied()

    def bound_logs(self) -> None:
        """Keep the logs of what runs within their size."""
        paths = []
        for slot in self.slots:
            paths.append(logs.spool_of(slot.spec.log_dir, slot.index))
            if (held := slot.running) is not None:
                paths.append(logs.job_log(slot.spec.log_dir, held.job.id, held.job.attempt))
        logs.bound(paths)
