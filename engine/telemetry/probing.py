"""This machine's sensors, read by a process of its own: the recorder never calls a driver.

A probe that hangs is cut off inside that process (probes/guard.py) and loses its own values. The whole process is
replaced when it does not answer, when it dies, and when a probe has hung in it for long: a call into a sick driver never
returns, and only a new process can ask anew. Whatever happens to it is a gap, told in ``problem``.
"""

from __future__ import annotations

import logging
import select
import time
from typing import Any

from engine import config
from engine.telemetry import wire
from engine.telemetry.asked import LEFT_BEHIND, Asked
from engine.telemetry.sample import BoxFacts, BoxSample, NoSample

log = logging.getLogger("engine.recorder")

HUNG_S, HUNG_MAX_S = 60.0, 600.0  # a probe may hang for so long; doubling while a new process hangs, too
GRACE_S = 2.0  # to end by itself
FIRST_S = 25.0  # for the first facts: without them there is little to record


class ProbeProcess:
    """A Source. For one thread, whose end is the process' end, too."""

    def __init__(self, box: str, cadence_s: float, *, root: str = "/", log_level: str = "warning") -> None:
        self._cadence_s = cadence_s
        self._wait_s = max(4.0, 2.0 * cadence_s)  # its own deadlines are at a second; a busy machine may take longer
        self._patience_s = HUNG_S
        self._fresh = True  # nothing was ever heard of it
        self._problem: str | None = None
        self._process = Asked(
            "probes",
            "engine.telemetry.probes.program",
            {"box": box, "root": root, "cadence_s": cadence_s, "log_level": log_level},
            {},
            deadline_s=self._wait_s,
            pause_s=min(cadence_s, 2.0),
            logger=log,
        )

    @property
    def problem(self) -> str | None:
        """What is wrong with the probes now, in one line."""
        return self._process.error or self._problem

    @property
    def pids(self) -> set[int]:
        """The process, and those that were killed and have not ended."""
        return self._process.pids

    def facts(self) -> BoxFacts:
        """What this box is. Raises NoSample."""
        try:
            patience_s = FIRST_S if self._fresh else self._wait_s
            return wire.unpack_facts(self._answer({"want": "facts"}, patience_s)["facts"])
        except (ValueError, TypeError, KeyError) as error:
            raise self._not_understood(error) from None

    def sample(self, dt_s: float) -> BoxSample:
        """One look. Raises NoSample: none in time, or no process to ask for the moment."""
        try:
            return wire.unpack_sample(self._answer({"want": "sample", "dt_s": dt_s}, self._wait_s)["sample"])
        except (ValueError, TypeError, KeyError) as error:
            raise self._not_understood(error) from None

    def close(self) -> None:
        """End the process, and what it has started."""
        self._process.dismiss(GRACE_S)
        self._process.wait_closed(5.0)

    def _answer(self, question: dict[str, Any], patience_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + patience_s
        if self._process.waits:  # of an earlier turn: whatever it says is late
            self._listen(deadline)
        answer = self._listen(deadline) if self._process.ask(question, time.monotonic()) else None
        if answer is None:
            raise NoSample(self._process.error or "probes: no answer yet")
        self._fresh = False
        self._problem = answer.get("problem")
        if (said := answer.get("error")) is not None:
            self._problem = f"no {question['want']}: {said}"
            raise NoSample(self._problem)
        self._process.say(None)
        self._replace_if_hung(float(answer.get("hung_s") or 0.0))
        return answer

    def _listen(self, deadline: float) -> dict[str, Any] | None:
        """The answer to the open question, if it comes in time."""
        while self._process.waits:
            now = time.monotonic()
            if (answer := self._process.poll(now)) is not None or now >= deadline or not self._process.waits:
                return answer
            select.select([self._process], [], [], min(0.5, max(0.0, deadline - now)))
        return None

    def _replace_if_hung(self, hung_s: float) -> None:
        """A probe that has hung for long gets a new process, unless those before are still there: then this one stays."""
        if hung_s < HUNG_S / 2:
            self._patience_s = HUNG_S if hung_s == 0.0 else self._patience_s
        elif hung_s >= self._patience_s and self._process.left + 1 < LEFT_BEHIND:
            self._patience_s = min(HUNG_MAX_S, self._patience_s * 2)
            log.warning("a probe hangs since %.0f s (%s): the probes are started anew", hung_s, self._problem)
            self._process.close()

    def _not_understood(self, error: Exception) -> NoSample:
        self._process.nonsense(time.monotonic(), error)
        return NoSample(self._process.error or "probes: not understood")


def probes_of(box: str) -> ProbeProcess:
    """The source of this box, by the configuration."""
    return ProbeProcess(
        box,
        float(config.get("sample_seconds")),
        root=str(config.get("probe_root")),
        log_level="warning" if config.get("log_level") == "info" else str(config.get("log_level")),
    )
