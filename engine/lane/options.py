"""What a lane is started with."""

from __future__ import annotations

from dataclasses import dataclass

from engine.lane.devices import UNKNOWN, Device
from engine.lane.slot import Slot, Spec


@dataclass(frozen=True)
class LaneOptions:
    """What a lane is started with (SPEC section 15). Times in seconds."""

    queue: str
    slots: int = 1  # 0: one per device
    model_slots: int = 0
    free_slots: int = 0
    devices: tuple[str, ...] = ()  # as named
    gpus: tuple[Device, ...] = (UNKNOWN,)  # what they are
    share_gpu: bool = False
    host_priority: int = 0
    lease_seconds: float = 600.0
    renew_seconds: float = 10.0
    beat_seconds: float = 10.0
    grace: float = 30.0
    max_offline: float = 1800.0
    cancel_grace: float = 10.0
    exit_on_trip: bool = False
    once: bool = False
    claims_ahead: int = 64  # beyond the slots, in all; 0 = never
    version: str = ""

    def make_slots(self, spec: Spec) -> list[Slot]:
        """The slots of the lane, dealt out over its devices; of two kinds when those are counted."""
        kinds = ["model"] * self.model_slots + ["free"] * self.free_slots
        kinds = kinds or ["any"] * (self.slots or len(self.gpus))
        return [
            Slot(index, spec, kind=kind, device=self.gpus[index % len(self.gpus)]) for index, kind in enumerate(kinds)
        ]
