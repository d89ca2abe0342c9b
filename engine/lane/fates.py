"""What executors say, and how they end: turned into fates for the database (settle.py)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from engine.lane import exits
from engine.lane.ahead import Ahead
from engine.lane.book import Book, Held
from engine.lane.crew import Crew
from engine.lane.protocol import Frame, ProtocolError
from engine.lane.settle import Settler
from engine.lane.slot import Slot, Why
from engine.queue.finish import Outcome

log = logging.getLogger("engine.lane")

NOTED_S = 9.0  # attempts of that length say which GPU they had (engine/telemetry/job_hardware.py asks)


class Fates:
    """Reads the executors' pipes. ``on_ready(slot)``: an executor can take jobs now."""

    def __init__(
        self,
        name: str,
        book: Book,
        settler: Settler,
        ahead: Ahead,
        selector_read: Callable[[Slot, str], list[Frame]],
        on_ready: Callable[[Slot], None],
    ) -> None:
        self._name, self._book, self._settler, self._ahead = name, book, settler, ahead
        self._read, self._on_ready = selector_read, on_ready
        self.crew: Crew | None = None  # set once it exists; each knows the other
        self.verify: list[Held] = []  # not begun, and too old to begin without asking whether they are still ours
        self.progress: dict[int, tuple[int, float | None, str | None]] = {}  # id -> fence, percent, text
        self.models: dict[str, float] = {}  # as the app registered them: id -> GiB
        self.budgets: dict[str, float] = {}
        self.printed: Callable[[Held], None] = lambda held: None  # an attempt ended that has written to its log
        self.on_sink: Callable[[bool], None] = lambda sink: None  # whether the app wants to be told of events
        self.ever_ready = False
        self.last_exit: tuple[int | None, str | None] = (None, None)
        self.tripped: int | None = None  # the code of the last trip
        self.trips = 0
        self.on_answer: Callable[[Slot, int, str], None] = lambda slot, order, text: None  # to an order about a model
        self.bad_app: str | None = None  # the app cannot be imported, and never could

    def read(self, slot: Slot, which: str | None = None) -> None:
        """Read what has come in on one pipe (None: on both)."""
        for end in (which,) if which else ("jobs", "control"):
            try:
                for frame in self._read(slot, end):
                    self._on_frame(slot, frame)
            except (ProtocolError, KeyError, TypeError, ValueError) as error:  # user code got hold of the descriptor
                if self.crew is not None and slot.why is None:
                    reason = f"it wrote nonsense into its pipe: {error!r}"
                    self.crew.kill([slot], Why(None, "executor_died", {"reason": reason}))

    def _on_frame(self, slot: Slot, frame: Frame) -> None:
        head = frame.header
        kind = frame.kind
        if kind == "done":
            if (held := slot.jobs.pop(head["no"], None)) is not None:
                self._done(held, head["s"], frame.payload, float(head["e"]), slot)
                if head.get("p"):
                    self.printed(held)
        elif kind == "began":
            if (held := slot.jobs.get(head["no"])) is not None:
                held.began = time.monotonic()
        elif kind in ("progress", "beat"):
            held = self._book.get(int(head["id"]))
            if held is None or held.slot is not slot:
                return  # said by a thread that a job left behind
            slot.last_beat = time.monotonic()
            if kind == "progress":
                self.progress[held.job.id] = (held.job.fencing_token, head["pct"], head["text"])
        elif kind == "model":
            slot.model, slot.loading = head["model"], head["loading"]
        elif kind == "answer":
            slot.errand = None
            self.on_answer(slot, int(head["order"]), str(head["text"]))
        elif kind == "retire":
            if self.crew is not None:
                self.crew.kill([slot], Why(None, "model", {"reason": f"{head['reason']}; a fresh one takes its place"}))
        elif kind == "expired":
            if (held := slot.jobs.pop(head["no"], None)) is not None:
                self.never_began(held)
        elif kind == "revoked":
            for number in head["nos"]:
                if (held := slot.jobs.pop(number, None)) is not None:
                    self.never_began(held)
        elif kind == "ready":
            slot.state, slot.was_ready, slot.failed_starts = "ready", True, 0
            self.models = {str(id): float(gib) for id, gib in head["models"]}
            self.budgets = {str(name): float(seconds) for name, seconds in head["budgets"].items()}
            self.ever_ready = True
            self.on_sink(bool(head.get("sink")))
            self._on_ready(slot)
        elif kind == "fatal":
            text = frame.payload.decode("utf-8", "replace")
            slot.condemn(Why(None, "start", {"reason": text}))
            if head["config"] and not self.ever_ready:
                self.bad_app = text

    def _done(self, held: Held, status: str, payload: bytes, elapsed_s: float, slot: Slot) -> None:
        self._ahead.ran(elapsed_s)
        self.progress.pop(held.job.id, None)
        if held.lost:
            self._settler.lost(held, True, {"reason": "given away while it ran"})
            return
        text = payload.decode("utf-8", "replace")
        self._settler.ended(
            held,
            Outcome(
                id=held.job.id,
                fencing_token=held.job.fencing_token,
                status="failed" if status == "refused" else status,
                output_json=(text or None) if status == "completed" else None,
                error=text
                if status in ("failed", "refused")
                else "cancelled while it ran"
                if status == "cancelled"
                else None,
                elapsed_s=elapsed_s,
                detail=_device(slot) if elapsed_s >= NOTED_S else None,
                final=status == "refused",
            ),
        )

    def unfit(self, held: Held, error: Exception) -> None:
        """It cannot be handed to an executor: its own fault, and its own failure."""
        text = f"the row cannot be handed to an executor: {type(error).__name__}: {error}"
        log.error("%s: job %d: %s", self._name, held.job.id, text)
        self._settler.ended(held, Outcome(held.job.id, held.job.fencing_token, "failed", error=text, final=True))

    def never_began(self, held: Held) -> None:
        """Back as it was (claimed ahead), or to be asked about and handed over again."""
        held.slot = held.began = None
        if held.lost:
            self._settler.lost(held, False, {"reason": "given away before it began"})
        elif held.job.ahead:
            self._settler.never_began([held])
        else:
            self.verify.append(held)

    def ended(self, slot: Slot, jobs: list[Held], code: int) -> None:
        """Sort what a dead executor left undone: cut short, never begun, or no longer ours."""
        why = slot.why
        exit_code = why.code if why is not None else exits.from_returncode(code)
        cut: list[Held] = []
        for held in jobs:
            self.progress.pop(held.job.id, None)
            if held.began is not None:
                self.printed(held)
            if held.lost and held.began is not None:
                self._settler.lost(held, True, {"reason": "given away while it ran"})
            elif held.began is None:
                self.never_began(held)
            else:
                cut.append(held)
        if why is None:
            died = exits.explain(exit_code or 0)
            self._settler.give_back(cut, "executor_died", exit_code, {"reason": died} | (_device(slot) or {}))
        elif why.cause == "cancel":
            for held in cut:
                reason = str(why.detail["reason"])
                self._settler.ended(
                    held,
                    Outcome(held.job.id, held.job.fencing_token, "cancelled", error=reason, detail=dict(why.detail)),
                )
        else:
            self._settler.give_back(cut, why.cause, exit_code, {**why.detail, **(_device(slot) or {})})
        if slot.was_ready or (why is not None and why.cause != "start"):
            self._note(slot, why, exit_code, cut)
        elif self.crew is not None:
            reason = str(why.detail["reason"]) if why is not None else exits.explain(exit_code or 0)
            self.last_exit = (exit_code, f"executor not ready: {reason.splitlines()[0] if reason else '?'}")
            self.crew.delay(slot, time.monotonic(), reason)

    def _note(self, slot: Slot, why: Why | None, exit_code: int | None, cut: list[Held]) -> None:
        """The exit for the heartbeat and the log."""
        jobs = f"job {cut[0].job.id}" if cut else "no job"
        if why is None:
            self.last_exit = (exit_code, f"executor died: {exits.explain(exit_code or 0)}")
            log.warning(
                "%s: slot %d: executor died (%s), %s", self._name, slot.index, exits.explain(exit_code or 0), jobs
            )
            return
        reason = str(why.detail.get("reason", why.cause))
        if why.code is not None:
            self.last_exit = (why.code, f"{exits.NAMES[why.code]}: {reason}")
        log.info("%s: slot %d: executor killed, %s (%s)", self._name, slot.index, reason, jobs)
        if why.code in exits.TRIPS:
            self.tripped = why.code
            self.trips += 1


def _device(slot: Slot) -> dict[str, Any] | None:
    """For the event of an end: the GPU of the slot, where it is known."""
    if slot.device.key is None:
        return None
    return {"gpu": {"index": slot.device.index, "uuid": slot.device.uuid}}
