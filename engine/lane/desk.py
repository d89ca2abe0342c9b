"""What a gpu lane has beside others: devices of its own, locked; models; orders about them. One object for both threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine import config
from engine.lane.crew import Crew
from engine.lane.device_lock import DeviceLocks
from engine.lane.errands import Errands, Post
from engine.lane.gpus import Ask, Gpus
from engine.lane.slot import Slot
from engine.queue import models
from engine.queue.workers import Worker
from engine.store import Db, Store


class Desk:
    """``post(kind, value)`` brings news to the loop: ``devices`` None (a lock came or went), ``models`` [ModelOrder]."""

    def __init__(
        self,
        store: Store,
        worker: Worker,
        crew: Crew,
        share: bool,
        known: Callable[[], Mapping[str, float]],
        post: Callable[[str, Any], None],
    ) -> None:
        self._worker = worker
        keys = (slot.device.key for slot in crew.slots if slot.device.key is not None)
        self.locks = DeviceLocks(store, worker.box, worker.queue, keys, share, lambda: post("devices", None))
        self.gpus = Gpus(crew.slots, self.locks, share, float(config.get("gpu_reserve_mb")), known)
        self._letters = Post(worker, lambda orders: post("models", orders))
        self.errands = Errands(self.gpus, crew, known, self._letters.say)

    # --- the loop's thread ---

    def turn(self, claiming: bool, ready: bool, waiting: Sequence[str | None]) -> bool:
        """A turn of the loop. ``waiting``: models of claimed jobs that wait for a slot. True: the keeper should look."""
        self.errands.tick(claiming, ready)
        self.errands.step_aside()
        return self.locks.want(self.gpus.wanted(claiming, waiting)) or self._letters.full

    def peek(self, db: Db, slots: Sequence[Slot]) -> None:
        """Ask for the devices of those of these slots for which something is queued. Raises StoreError."""
        seen: dict[tuple[str, ...], bool] = {}
        for slot in slots:
            wanted = (*(("",) if slot.kind != "model" else ()), *self.gpus.fits(slot))
            if wanted not in seen:
                seen[wanted] = models.work_waits(db, self._worker, wanted)
            if seen[wanted]:
                self.gpus.seek([slot])
            else:
                self.gpus.looked([slot])

    def overlooks(self, db: Db, asks: Sequence[Ask | None]) -> bool:
        """Whether a row that runs next waits, and a slot would pass it over for its own model. Raises StoreError."""
        if all(ask is None or ask.whole for ask in asks):
            return False
        kinds = {slot.kind for slot in self.gpus.slots}
        return models.runs_next(db, self._worker, (*(("",) if kinds - {"model"} else ()), *self.gpus.models_fit))

    # --- the keeper's ---

    def tend(self, db: Db, look: bool) -> float:
        due = self.locks.tend(db)
        self._letters.tend(db, look)
        return due

    def dropped(self) -> None:
        self.locks.dropped()

    def release(self) -> None:
        self.locks.release()
