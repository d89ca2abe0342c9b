"""Which rows a gpu lane may take for which slot: by what fits its device, what is warm, and whose device it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from engine.lane import device_lock, devices
from engine.lane.slot import Slot

WHOLE_EVERY_S = 10.0  # how late a row may be found that a warm slot passes over for its own model


class Locks(Protocol):
    """What a lane asks of its device locks (device_lock.py)."""

    def state(self, key: str | None) -> str | None: ...
    def ours(self, key: str | None) -> bool: ...
    def yields(self, key: str | None) -> bool: ...


@dataclass(frozen=True)
class Ask:
    """One claim: for these slots, rows of these models, rows without a model. ``loaded`` is warm in all of them.

    ``whole`` False: of their own model only. ``strict``: whatever is most urgent, also a model warm in another idle slot.
    """

    slots: tuple[Slot, ...]
    models: tuple[str, ...]
    model_rows: bool
    free_rows: bool
    loaded: str | None
    whole: bool = True
    strict: bool = False


class Gpus:
    """For the loop's thread. ``known()``: the models that the app registered, id -> GiB."""

    def __init__(
        self,
        slots: Sequence[Slot],
        locks: Locks,
        share: bool,
        reserve_mb: float,
        known: Callable[[], Mapping[str, float]],
    ) -> None:
        self.slots, self.locks, self.share = list(slots), locks, share
        self._reserve_mb, self._known = reserve_mb, known
        self._whole_at: dict[int, float] = {}  # when a slot last asked for all that it may take (monotonic)
        self._sought: set[str] = set()  # devices that are wanted for work that was seen in the queue

    # --- what a slot may take ---

    def capacity(self, slot: Slot) -> tuple[str, ...]:
        """Models that this slot could ever hold."""
        if slot.kind == "free":
            return ()
        return devices.models_that_fit(self._known(), [slot.device.room_mb(self._reserve_mb)])

    def fits(self, slot: Slot) -> tuple[str, ...]:
        """Models that it can hold now, beside those in other slots of the same device."""
        room = slot.device.room_mb(self._reserve_mb)
        if slot.kind == "free":
            return ()
        if room is not None:
            known = self._known()
            others = (each.holds for each in self.slots if each is not slot and each.device == slot.device)
            room -= sum(known.get(model, 0.0) * 1024 for model in others if model)
        return devices.models_that_fit(self._known(), [room])

    def may_run(self, slot: Slot, model: str | None) -> bool:
        """Whether a job that was claimed may be handed to this slot."""
        if not self.locks.ours(slot.device.key):
            return False
        return slot.kind != "model" if not model else model in self.fits(slot)

    def stranded(self, model: str | None) -> bool:
        """Whether every slot that could run such a job stands on a device that another lane has."""
        able = [slot for slot in self.slots if (model in self.capacity(slot) if model else slot.kind != "model")]
        return all(self.locks.state(slot.device.key) == device_lock.WAITING for slot in able)

    def asks(self, idle: Sequence[Slot], now: float, flagged: bool = False) -> list[Ask]:
        """The claims for these idle slots in their order; one is left out when its slots have work by then.

        Where several are idle each warm one asks for its own model first, then cold ones for whatever there is, then
        warm ones too: a model is swapped out only where no idle slot has room. Not when a row that runs next waits
        (``flagged``), and every ten seconds not at all, so that nothing is passed over for ever. Where memory is shared,
        one slot of a device asks at a time.
        """
        ready = self._one_of_each(
            [slot for slot in sorted(idle, key=lambda each: each.model is None) if self._ours(slot)]
        )
        may_come = [slot for slot in idle if self.locks.state(slot.device.key) != device_lock.WAITING]
        cold = [slot for slot in may_come if slot.model is None]
        own: dict[tuple[Any, ...], list[Slot]] = {}
        first: dict[tuple[Any, ...], list[Slot]] = {}
        last: dict[tuple[Any, ...], list[Slot]] = {}
        for slot in ready:
            models = self.fits(slot)
            strict = flagged or now - self._whole_at.get(slot.index, now) > WHOLE_EVERY_S
            group = (slot.kind, slot.model, models, strict)
            if slot.model is None or strict or len(may_come) == 1:
                first.setdefault(group, []).append(slot)
                self._whole_at[slot.index] = now
                continue
            own.setdefault((slot.kind, slot.model, (slot.model,), False), []).append(slot)
            self._whole_at.setdefault(slot.index, now)
            if not any(self._covers(each, slot.kind, models) for each in cold):
                last.setdefault(group, []).append(slot)
        return [
            Ask(tuple(slots), models, kind != "free", kind != "model" and whole, loaded, whole, strict)
            for asks, whole in ((own, False), (first, True), (last, True))
            for (kind, loaded, models, strict), slots in asks.items()
        ]

    def remaining(self, ask: Ask) -> Ask | None:
        """What is left of a claim when its turn comes: for slots still idle, and without models that are warm in other
        idle slots, which ask for those themselves. None: nothing."""
        slots = tuple(slot for slot in ask.slots if slot.idle)
        others = [slot for slot in self.slots if slot.idle and slot not in slots and self._ours(slot)]
        theirs = set() if ask.strict else {slot.model for slot in others} - {ask.loaded}
        models = tuple(model for model in ask.models if model not in theirs)
        return replace(ask, slots=slots, models=models) if slots else None

    def _ours(self, slot: Slot) -> bool:
        """Its device is ours, and not to be let go for another lane's turn."""
        return self.locks.ours(slot.device.key) and not self.locks.yields(slot.device.key)

    def _one_of_each(self, slots: Sequence[Slot]) -> list[Slot]:
        """One slot of each device that several share and whose memory is known; all others."""
        taken: set[str | None] = set()
        found = []
        for slot in slots:
            if slot.device.vram_mb is None or slot.device.key not in taken:
                found.append(slot)
            taken.add(slot.device.key)
        return found

    def _covers(self, slot: Slot, kind: str, models: Iterable[str]) -> bool:
        return slot.kind == kind and set(models) <= set(self.fits(slot))

    # --- whose devices ---

    def curious(self, idle: Sequence[Slot]) -> list[Slot]:
        """Idle slots whose device is not ours: it is asked for only when there is work for them."""
        return [slot for slot in idle if not self.locks.ours(slot.device.key)]

    def seek(self, slots: Iterable[Slot]) -> None:
        """There is work for these slots: their devices are wanted."""
        self._sought |= {slot.device.key for slot in slots if slot.device.key}

    def looked(self, slots: Iterable[Slot]) -> None:
        """A claim was made for these slots: what it brought holds their device from now on, or nothing does."""
        self._sought -= {slot.device.key for slot in slots if slot.device.key}

    @property
    def seeking(self) -> bool:
        """Work waits for a device that is not ours yet."""
        return bool(self._sought)

    def wanted(self, claiming: bool, waiting: Iterable[str | None]) -> set[str]:
        """Devices to hold: where something runs, is loaded or is being killed; where work was seen; and for claimed jobs
        that wait for a slot (``waiting``: their models), wherever they may run."""
        if not claiming:
            self._sought.clear()
        keys = {slot.device.key for slot in self.slots if slot.occupies}
        for model in waiting:
            keys |= {slot.device.key for slot in self.slots if not model or model in self.capacity(slot)}
        return {key for key in keys if key} | {key for key in self._sought if not self.locks.yields(key)}

    def idle_models(self) -> list[Slot]:
        """Slots whose model stands in the way of letting their device go to another lane: nothing runs there."""
        return [slot for slot in self.slots if slot.idle and slot.model and self.locks.yields(slot.device.key)]

    # --- what others see ---

    @property
    def models_fit(self) -> tuple[str, ...]:
        return tuple(sorted({model for slot in self.slots for model in self.capacity(slot)}))

    @property
    def vram_mb(self) -> float | None:
        """MiB of the largest device; None: not known of any."""
        return max((slot.device.vram_mb for slot in self.slots if slot.device.vram_mb is not None), default=None)

    def detail(self) -> dict[str, Any]:
        """The lane's part of the heartbeat's detail."""
        by_device: dict[devices.Device, list[Slot]] = {}
        for slot in self.slots:
            by_device.setdefault(slot.device, []).append(slot)
        kinds = [slot.kind for slot in self.slots]
        return {
            "model_slots": kinds.count("model"),
            "free_slots": kinds.count("free"),
            "any_slots": kinds.count("any"),
            "share_gpu": self.share,
            "devices": [
                {
                    "index": device.index,
                    "uuid": device.uuid,
                    "name": device.name,
                    "vram_mb": device.vram_mb,
                    "unified": device.unified,
                    "model": ", ".join(sorted({slot.says for slot in slots if slot.says})) or None,
                    "fits": sorted({model for slot in slots for model in self.capacity(slot)}),
                    "jobs": sorted(slot.running.job.id for slot in slots if slot.running is not None),
                    "lock": state if (state := self.locks.state(device.key)) != device_lock.ASKED else None,
                }
                for device, slots in by_device.items()
            ],
        }
