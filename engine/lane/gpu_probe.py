"""The lane's look at its GPUs, in a process of its own: a driver that hangs, or kills who asks it, costs readings only.

The lane asks which executors use what of which device (telemetry/asked.py has the two ends). Until there is an answer
nothing is known, and an unknown is never idle (watchdogs.py).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.lane import tree
from engine.lane.watchdogs import Look
from engine.telemetry import asked
from engine.telemetry.asked import LEFT_BEHIND, Asked

__all__ = ["LEFT_BEHIND", "UNUSED_S", "Probe", "Subject"]

UNUSED_S = 60.0


@dataclass(frozen=True)
class Subject:
    """An executor to look at, and the device that it is to use (None: any that the lane sees)."""

    target: tree.Target
    device: str | None


class Probe:
    """For the loop's thread: :meth:`ask`, then :meth:`poll` until there is an answer. Times are monotonic seconds."""

    def __init__(self, every_s: float, root: str, environment: Mapping[str, str]) -> None:
        self._asked = Asked(
            "GPU probe",
            "engine.lane.gpu_probe",
            {"root": root, "every_s": every_s},
            environment,
            deadline_s=max(1.0, 2.5 * every_s),
            pause_s=every_s,
            unused_s=UNUSED_S,
            logger=logging.getLogger("engine.lane"),
        )

    @property
    def error(self) -> str | None:
        """Why nothing is known, in words that stay the same while it lasts."""
        return self._asked.error

    @property
    def pids(self) -> set[int]:
        """Our children."""
        return self._asked.pids

    @property
    def waits(self) -> bool:
        """A question is on its way."""
        return self._asked.waits

    def ask(self, subjects: Mapping[int, Subject], now: float) -> bool:
        """Ask about these slots, unless a question is open or a pause is on. Whether it was asked."""
        slots = {
            str(index): [subject.target.pid, subject.target.cookie, subject.device]
            for index, subject in subjects.items()
        }
        return self._asked.ask({"slots": slots}, now)

    def poll(self, now: float) -> dict[int, Look] | None:
        """The answer, by slot, if it has come. Kills a process that is late, notices one that died."""
        answer = self._asked.poll(now)
        if answer is None:
            return None
        try:
            looks = {int(index): Look(**look) for index, look in answer["looks"].items()}
            error = answer["error"]
        except (ValueError, KeyError, TypeError, AttributeError) as nonsense:
            self._asked.nonsense(now, nonsense)
            return None
        self._asked.say(str(error) if error else None)
        return looks

    def close(self) -> None:
        """End the process. It is not waited for."""
        self._asked.close()

    def wait_closed(self, timeout_s: float) -> None:
        """At the lane's end: reap what can be reaped."""
        self._asked.wait_closed(timeout_s)


def main() -> None:
    """The process."""
    options = asked.options()
    from engine import config  # what the lane's end has no use for
    from engine.lane.gpu_reading import Reader

    logging.basicConfig(stream=sys.stderr, level=str(config.get("log_level")).upper())
    reader = Reader(Path(options["root"]), float(options["every_s"]), int(options["asker"]))

    def answer(question: Mapping[str, Any]) -> Mapping[str, Any]:
        subjects = {
            int(index): Subject(tree.Target(int(pid), cookie), device)
            for index, (pid, cookie, device) in question["slots"].items()
        }
        looks, error = reader.read(subjects)
        return {"looks": looks, "error": error}

    asked.answers(answer)


if __name__ == "__main__":
    main()
