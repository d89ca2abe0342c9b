"""The lane's look at its GPUs, in a process of its own: a driver that hangs, or kills who asks it, costs readings only.

The lane writes one line of JSON (which executors run on which device), the process answers with one: use, memory and
bytes of each. :class:`Probe` is the lane's end and never waits: an answer that is late means that the process is
killed and, after a pause, started again. Until then nothing is known, and an unknown is never idle (watchdogs.py).
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.lane import tree
from engine.lane.watchdogs import Look

log = logging.getLogger("engine.lane")
START_S = 20.0  # for the first answer: the bindings are loaded, a driver may have to be woken
PAUSE_MAX_S = 60.0
LEFT_BEHIND = 2  # killed ones that a driver keeps from ending; with so many no other is started
GOOD_ANSWERS = 5  # in a row, and the next pause is a short one again
UNUSED_S = 60.0  # so long without a question, and the process may end: a driver is not held open for nothing


@dataclass(frozen=True)
class Subject:
    """An executor to look at, and the device that it is to use (None: any that the lane sees)."""

    target: tree.Target
    device: str | None


class Probe:
    """For the loop's thread: :meth:`ask`, then :meth:`poll` until there is an answer. Times are monotonic seconds."""

    def __init__(self, every_s: float, root: str, environment: Mapping[str, str]) -> None:
        self._every_s = every_s
        self._deadline_s = max(1.0, 2.5 * every_s)
        self._root = root
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._left: list[subprocess.Popen[bytes]] = []
        self._buffer = bytearray()
        self._number = 0
        self._due: float | None = None  # when the answer that is waited for is late
        self._fresh = True  # this process has not answered yet
        self._bad = 0  # ends in a row
        self._good = 0  # answers in a row
        self._not_before = float("-inf")
        self._asked_at = float("-inf")
        self.error: str | None = None  # why nothing is known, in words that stay the same while it lasts

    @property
    def pids(self) -> set[int]:
        """Our children."""
        mine = [*self._left, *([self._process] if self._process is not None else [])]
        return {process.pid for process in mine}

    @property
    def waits(self) -> bool:
        """A question is on its way."""
        return self._due is not None

    def ask(self, subjects: Mapping[int, Subject], now: float) -> bool:
        """Ask about these slots, unless a question is open or a pause is on. Whether it was asked."""
        self._reap()
        if self._due is not None or now < self._not_before:
            return False
        if self._process is None and not self._start(now):
            return False
        self._asked_at = now
        self._number += 1
        question = {
            "no": self._number,
            "slots": {
                str(index): [subject.target.pid, subject.target.cookie, subject.device]
                for index, subject in subjects.items()
            },
        }
        assert self._process is not None and self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), json.dumps(question).encode() + b"\n")
        except OSError as error:
            self._end(now, f"does not listen ({error})")
            return False
        self._due = now + (START_S if self._fresh else self._deadline_s)
        return True

    def poll(self, now: float) -> dict[int, Look] | None:
        """The answer, by slot, if it has come. Kills a process that is late, notices one that died."""
        if self._due is None:
            if self._process is not None and now - self._asked_at > UNUSED_S:
                self.close()
            self._reap()
            return None
        assert self._process is not None and self._process.stdout is not None
        try:
            data = os.read(self._process.stdout.fileno(), 1 << 20)
        except BlockingIOError:
            if now > self._due:
                self._end(now, "does not answer")
            return None
        if not data:
            self._end(now, "died")
            return None
        self._buffer += data
        if not self._buffer.endswith(b"\n"):
            return None
        try:
            answer = json.loads(self._buffer)
            looks = {int(index): Look(**look) for index, look in answer["looks"].items()}
            number, error = int(answer["no"]), answer["error"]
        except (ValueError, KeyError, TypeError, AttributeError) as nonsense:
            self._end(now, f"talks nonsense ({type(nonsense).__name__})")
            return None
        self._buffer.clear()
        if number != self._number:
            return None
        self._due, self._fresh = None, False
        self._good += 1
        if self._good >= GOOD_ANSWERS:
            self._bad = 0
        self._say(str(error) if error else None)
        return looks

    def close(self) -> None:
        """End the process. It is not waited for."""
        process, self._process = self._process, None
        self._due = None
        if process is None:
            return
        for end in (process.stdin, process.stdout):
            if end is not None:
                end.close()
        process.kill()
        if process.poll() is None:
            self._left.append(process)

    def wait_closed(self, timeout_s: float) -> None:
        """At the lane's end: reap what can be reaped."""
        self.close()
        for process in self._left:
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                log.error("the GPU probe %d does not die; leaving it", process.pid)
        self._left.clear()

    def _reap(self) -> None:
        if self._left:
            self._left = [process for process in self._left if process.poll() is None]

    def _start(self, now: float) -> bool:
        if len(self._left) >= LEFT_BEHIND:
            self._not_before = now + PAUSE_MAX_S
            self._say("GPU probe: killed ones do not end; not started again")
            return False
        options = {"root": self._root, "every_s": self._every_s, "lane": os.getpid()}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engine.lane.gpu_probe", json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                env={**os.environ, **self._environment},
            )
        except OSError as error:
            self._pause(now, f"cannot be started ({error})")
            return False
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._buffer.clear()
        self._fresh = True
        return True

    def _end(self, now: float, why: str) -> None:
        self.close()
        self._pause(now, why)

    def _pause(self, now: float, why: str) -> None:
        self._bad += 1
        self._good = 0
        self._not_before = now + min(PAUSE_MAX_S, self._every_s * 2 ** min(self._bad - 1, 10))
        self._say(f"GPU probe: {why}")

    def _say(self, error: str | None) -> None:
        """One log line per change of state."""
        if error != self.error:
            log.warning("%s; until it answers nothing is known of the GPUs", error) if error else log.info(
                "GPU probe: answers again"
            )
        self.error = error


def main() -> None:
    """The process: answer every line of stdin until it closes."""
    options: dict[str, Any] = json.loads(sys.argv[1])
    tree.die_with_parent()
    if os.getppid() != options["lane"]:
        return
    from engine import config  # what the lane's end has no use for
    from engine.lane.gpu_reading import Reader

    logging.basicConfig(stream=sys.stderr, level=str(config.get("log_level")).upper())
    reader = Reader(Path(options["root"]), float(options["every_s"]), int(options["lane"]))
    for line in sys.stdin:
        question = json.loads(line)
        subjects = {
            int(index): Subject(tree.Target(int(pid), cookie), device)
            for index, (pid, cookie, device) in question["slots"].items()
        }
        looks, error = reader.read(subjects)
        answer = {"no": question["no"], "looks": looks, "error": error}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
