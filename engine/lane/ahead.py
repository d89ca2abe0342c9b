"""When a lane claims more than it has free slots, and when a finished job waits for company.

A claim and its commit cost a millisecond or two, a short job much less. So where jobs are short a few are claimed ahead
and wait in the executors' pipes. Longer jobs never are: what waits here could be running elsewhere.
"""

from __future__ import annotations

SHORT_S = 0.020  # mean run under which jobs are claimed ahead
ENOUGH = 4  # runs seen before the mean is believed
QUEUED_S = 0.100  # about so much work waits in a pipe at most
COMPANY_S = 0.004  # how long a finished job waits for others, at most
PACK_S = 0.001  # about so much work goes to a slot together: waking an executor costs more than a tiny job
PACK_MOST = 16


class Ahead:
    """The policy of one lane. ``limit``: claims beyond the slots, in all; 0 = never."""

    def __init__(self, limit: int, slots: int) -> None:
        self.limit = max(0, limit)
        self.slots = max(1, slots)
        self._runs = 0
        self._mean_s = 0.0

    def ran(self, elapsed_s: float) -> None:
        """One more job has run; a moving average that follows within some ten jobs."""
        self._runs += 1
        self._mean_s += (elapsed_s - self._mean_s) * (1.0 / self._runs if self._runs < 10 else 0.1)

    @property
    def short(self) -> bool:
        """Jobs are so short that it pays."""
        return self.limit > 0 and self._runs >= ENOUGH and self._mean_s < SHORT_S

    @property
    def depth(self) -> int:
        """Jobs per slot to hold, the running one included."""
        if not self.short:
            return 1
        worth = int(QUEUED_S / max(self._mean_s, 1e-5))
        return 1 + max(1, min(worth, self.limit // self.slots))

    @property
    def pack(self) -> int:
        """How many jobs go to the same slot together."""
        return min(PACK_MOST, max(1, int(PACK_S / max(self._mean_s, 1e-5)))) if self.short else 1

    def worth_claiming(self, room: int, idle: int, flowing: int) -> bool:
        """A claim for ``room`` jobs is due: a slot waits, or half of what ``flowing`` slots hold ahead has run.

        Tiny jobs keep few slots busy: an idle one is no reason for a claim of its own, half of all is.
        """
        half = room * 2 >= self.depth * flowing
        return room > 0 and (half or (idle > 0 and (self.pack == 1 or idle == flowing)))

    def flush_due(self, finished: int, oldest_s: float, idle: int, coming: int = 0) -> bool:
        """Finished jobs are to be written now. They wait only while every slot has more to run; tiny ones while more of
        them, ``coming``, are still to finish, and only for a moment."""
        if finished == 0:
            return False
        if self.pack > 1:
            return finished >= coming or oldest_s >= COMPANY_S
        return not self.short or idle > 0 or finished * 2 >= self.depth * self.slots or oldest_s >= COMPANY_S
