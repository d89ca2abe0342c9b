"""Whether the lane is to work: orders of operators, signals, and the name of the state that follows. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.queue.controls import Order


@dataclass
class Duty:
    """What is wanted of this lane. Times are monotonic seconds."""

    order: Order = field(default_factory=Order)
    holding: bool = False  # the lane's lock is ours
    stops: int = 0  # signals seen, or an end of our own choice
    stop_by: float = float("inf")  # what still runs then is given back
    exit_code: int = 0

    def stop(self, now: float, grace_s: float) -> None:
        """Drain and end within ``grace_s``; a second call ends at once."""
        self.stops += 1
        self.stop_by = now if self.stops > 1 else now + grace_s

    @property
    def off(self) -> bool:
        return self.order.desired == "off"

    @property
    def parking(self) -> bool:
        """Parked, and hard: nothing may run."""
        return self.off and self.order.policy == "hard"

    @property
    def draining(self) -> bool:
        """What runs may end; nothing new starts."""
        return self.stops > 0 or (self.off and self.order.policy == "drain")

    @property
    def claiming(self) -> bool:
        """A draining or parked lane claims nothing, nor does one whose lock is somebody else's."""
        return self.holding and not self.stops and not self.off

    @property
    def back(self) -> str:
        """The cause under which work that must go goes back."""
        return "drain" if self.stops else "operator_stop"

    def state(self, *, ever_ready: bool, executors: bool, work: bool) -> str:
        """The heartbeat's word. ``work``: jobs run or their fate is not yet committed."""
        if self.stops:
            return "draining" if work else "stopping"
        if self.off:
            if not executors and not work:
                return "parked"
            return "parking" if self.parking else "draining"
        return "running" if ever_ready else "starting"
