"""Operators' orders about models, as a lane carries them out: in a free slot, and never at the cost of a job."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from engine.lane import device_lock
from engine.lane.crew import Crew
from engine.lane.gpus import Gpus
from engine.lane.slot import Slot
from engine.queue import models
from engine.queue.models import ModelOrder
from engine.queue.workers import Worker
from engine.store import Db

NOBODYS = 0  # the number of an order that no operator gave


@dataclass
class _Errand:
    """One order. ``slots``: where it is being carried out; ``sent``: their executors have been told."""

    order: ModelOrder
    slots: list[Slot]
    sent: bool = False
    said: str = ""
    results: list[str] | None = None


class Post:
    """The keeper's side: fetches orders, writes answers. Both pass through here between the two threads."""

    def __init__(self, worker: Worker, news: Callable[[list[ModelOrder]], None]) -> None:
        self._worker, self._news = worker, news
        self._answers: deque[tuple[int, str]] = deque()
        self._open: list[ModelOrder] = []

    def say(self, order_id: int, text: str) -> None:
        """From the loop: an answer to be written."""
        self._answers.append((order_id, text))

    @property
    def full(self) -> bool:
        return bool(self._answers)

    def tend(self, db: Db, look: bool) -> None:
        """From the keeper. Raises StoreError; what was not written is written later."""
        while self._answers:
            number, text = self._answers[0]
            models.answer(db, number, self._worker.owner, text)
            self._answers.popleft()
        if look:
            found = models.open_orders(db, self._worker)
            if found != self._open:
                self._open = found
                self._news(found)


class Errands:
    """The loop's side. ``known()``: the models that the app registered, id -> GiB, or nothing before it told."""

    def __init__(
        self, gpus: Gpus, crew: Crew, known: Callable[[], Mapping[str, float]], say: Callable[[int, str], None]
    ):
        self._gpus, self._crew, self._known, self._say = gpus, crew, known, say
        self._open: dict[int, _Errand] = {}
        self._done: set[int] = set()

    def ordered(self, orders: Iterable[ModelOrder]) -> None:
        """The orders that hold now. One that is not among them any more has expired."""
        now_open = {order.id: order for order in orders}
        self._done &= now_open.keys()
        for id in self._open.keys() - now_open.keys():
            if not self._open[id].sent:
                self._end(self._open[id], f"given up: {self._open[id].said or 'nothing came of it'}")
        for id, order in now_open.items():
            if id not in self._done and id not in self._open:
                self._open[id] = _Errand(order, [])

    def tick(self, claiming: bool, ready: bool) -> None:
        """Carry out what can be. ``claiming``: the lane works; ``ready``: an executor has told what models there are."""
        for errand in list(self._open.values()):
            if errand.sent:
                self._check(errand)
            elif not claiming or not ready:
                self._free(errand)
                self._wait(errand, "the lane is starting" if claiming else "the lane is parked or stops")
            elif errand.order.action == "unload":
                self._unload(errand)
            else:
                self._load(errand)

    def step_aside(self) -> None:
        """Have models dropped that keep a device from another lane whose turn it is."""
        for slot in self._gpus.idle_models():
            slot.errand = NOBODYS
            self._crew.tell(slot, "unload", model=slot.model, order=NOBODYS)

    def answered(self, slot: Slot, order_id: int, text: str) -> None:
        """An executor says what came of it."""
        errand = self._open.get(order_id)
        if errand is not None and slot in errand.slots:
            errand.slots.remove(slot)
            errand.results = [*(errand.results or ()), f"{text} on {slot.device}"]
            self._check(errand)

    # --- load ---

    def _load(self, errand: _Errand) -> None:
        model, gpus = errand.order.model, self._gpus
        known = self._known()
        if model not in known:
            return self._end(
                errand, f"model {model} is not registered here (known: {', '.join(sorted(known)) or 'none'})"
            )
        able = [slot for slot in gpus.slots if model in gpus.capacity(slot)]
        if not able:
            return self._end(errand, self._too_big(model, known[model]))
        if warm := next((slot for slot in able if slot.model == model), None):
            self._free(errand)
            return self._end(errand, f"loaded already on {warm.device}")
        if not errand.slots:
            # One without a model before one whose model has to go; one whose device is ours before one to be asked for.
            free = [slot for slot in able if slot.idle and model in gpus.fits(slot)]
            free.sort(key=lambda slot: (slot.model is not None, not gpus.locks.ours(slot.device.key)))
            if not free:
                return self._wait(errand, "every slot that could hold it is busy")
            errand.slots = free[:1]
            free[0].errand = errand.order.id
        slot = errand.slots[0]
        if slot.errand != errand.order.id:  # its executor has ended meanwhile: begin anew
            errand.slots.clear()
        elif gpus.locks.ours(slot.device.key):
            self._send(errand, "load")
        elif gpus.locks.state(slot.device.key) == device_lock.WAITING:
            self._wait(errand, f"another lane of this box has {slot.device}")
        return None

    def _too_big(self, model: str, gib: float) -> str:
        if all(slot.kind == "free" for slot in self._gpus.slots):
            return "no slot of this lane takes models"
        largest = self._gpus.vram_mb or 0.0
        return f"model {model} needs {gib:g} GiB and does not fit: the largest device here has {largest / 1024:.1f} GiB"

    # --- unload ---

    def _unload(self, errand: _Errand) -> None:
        model = errand.order.model
        having = [slot for slot in self._gpus.slots if slot.holds == model]
        if not having:
            return self._end(errand, "not loaded here")
        # A slot that works does it after its job: the frame waits in its pipe.
        errand.slots = [slot for slot in having if slot.state == "ready" and slot.why is None and slot.errand is None]
        if len(errand.slots) < len(having):
            errand.slots.clear()
            return self._wait(errand, "a slot is busy with another order")
        for slot in errand.slots:
            slot.errand = errand.order.id
        return self._send(errand, "unload")

    # --- both ---

    def _send(self, errand: _Errand, kind: str) -> None:
        errand.sent = True
        for slot in errand.slots:
            self._crew.tell(slot, kind, model=errand.order.model, order=errand.order.id)
        self._wait(errand, "loading" if kind == "load" else "unloading")

    def _check(self, errand: _Errand) -> None:
        """Whether all executors that were told have answered, or are gone."""
        for slot in [slot for slot in errand.slots if slot.errand != errand.order.id]:
            errand.slots.remove(slot)
            gone = "unloaded" if errand.order.action == "unload" else "failed"
            errand.results = [*(errand.results or ()), f"{gone}: the executor on {slot.device} ended"]
        if not errand.slots:
            self._end(errand, "; ".join(errand.results or ("nothing came of it",)))

    def _free(self, errand: _Errand) -> None:
        """Give back the slot that was kept for it."""
        for slot in errand.slots:
            if slot.errand == errand.order.id:
                slot.errand = None
        errand.slots.clear()

    def _wait(self, errand: _Errand, why: str) -> None:
        text = why if errand.sent else f"waiting: {why}"
        if text != errand.said:
            errand.said = text
            self._say(errand.order.id, text)

    def _end(self, errand: _Errand, text: str) -> None:
        self._free(errand)
        self._open.pop(errand.order.id, None)
        self._done.add(errand.order.id)
        self._say(errand.order.id, text)
