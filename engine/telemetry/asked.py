"""A process that answers questions, one line of JSON each way: what hangs or dies in it costs answers only.

:class:`Asked` is the end that asks, and never waits: an answer that is late means that the process is killed and, after a
pause, started anew. :func:`answers` is the other end. The lane's GPU probe and the recorder's probes are such processes.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

log = logging.getLogger("engine.probes")

START_S = 20.0  # for the first answer: the bindings are loaded, a driver may have to be woken
PAUSE_MAX_S = 60.0
LEFT_BEHIND = 2  # killed ones that a driver keeps from ending; with so many no other is started
GOOD_ANSWERS = 5  # in a row, and the next pause is a short one again
ANSWER_MOST = 1 << 24  # bytes; more is no answer

_PR_SET_PDEATHSIG = 1


class Asked:
    """For one thread: :meth:`ask`, then :meth:`poll` until there is an answer. Times are monotonic seconds.

    ``name`` is told in :attr:`error`; ``module`` is run as a program with ``options`` (and the asker's pid) as its argument;
    ``unused_s``: so long without a question, and the process may end, because a driver is not held open for nothing.
    """

    def __init__(
        self,
        name: str,
        module: str,
        options: Mapping[str, Any],
        environment: Mapping[str, str],
        *,
        deadline_s: float,
        pause_s: float,
        unused_s: float = float("inf"),
        logger: logging.Logger = log,
    ) -> None:
        self._name, self._module, self._options, self._environment = name, module, options, environment
        self._deadline_s, self._pause_s, self._unused_s = deadline_s, pause_s, unused_s
        self._log = logger
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

    @property
    def left(self) -> int:
        """Killed ones that have not ended yet."""
        self._reap()
        return len(self._left)

    def fileno(self) -> int:
        """Readable when there may be an answer; only while :attr:`waits`."""
        assert self._process is not None and self._process.stdout is not None
        return self._process.stdout.fileno()

    def ask(self, question: Mapping[str, Any], now: float) -> bool:
        """Ask, unless a question is open or a pause is on. Whether it was asked."""
        self._reap()
        if self._due is not None or now < self._not_before:
            return False
        if self._process is None and not self._start(now):
            return False
        self._asked_at = now
        self._number += 1
        assert self._process is not None and self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), json.dumps({"no": self._number, **question}).encode() + b"\n")
        except OSError as error:
            self.end(now, f"does not listen ({error})")
            return False
        self._due = now + (START_S if self._fresh else self._deadline_s)
        return True

    def poll(self, now: float) -> dict[str, Any] | None:
        """The answer, if it has come; whoever understands it says so by :meth:`say`. Kills a process that is late."""
        if self._due is None:
            if self._process is not None and now - self._asked_at > self._unused_s:
                self.close()
            self._reap()
            return None
        try:
            data = os.read(self.fileno(), 1 << 20)
        except BlockingIOError:
            if now > self._due:
                self.end(now, "does not answer")
            return None
        if not data:
            self.end(now, "died")
            return None
        self._buffer += data
        if len(self._buffer) > ANSWER_MOST:
            self.end(now, "talks without end")
            return None
        if not self._buffer.endswith(b"\n"):
            return None
        try:
            answer = json.loads(self._buffer)
            number = int(answer["no"])
        except (ValueError, KeyError, TypeError, RecursionError) as nonsense:
            self.nonsense(now, nonsense)
            return None
        self._buffer.clear()
        if number != self._number:
            return None
        self._due, self._fresh = None, False
        self._good += 1
        if self._good >= GOOD_ANSWERS:
            self._bad = 0
        return dict(answer)

    def nonsense(self, now: float, error: Exception) -> None:
        """What it said cannot be understood: it is replaced."""
        self.end(now, f"talks nonsense ({type(error).__name__})")

    def end(self, now: float, why: str) -> None:
        """Kill the process; another one is started after a pause."""
        self.close()
        self._bad += 1
        self._good = 0
        self._not_before = now + min(PAUSE_MAX_S, self._pause_s * 2 ** min(self._bad - 1, 10))
        self.say(f"{self._name}: {why}")

    def close(self) -> None:
        """End the process. It is not waited for."""
        process, self._process = self._process, None
        self._due = None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        process.kill()
        if process.poll() is None:
            self._left.append(process)

    def dismiss(self, grace_s: float) -> None:
        """Let the process end by itself, with what it has started; after ``grace_s`` seconds it is killed."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                self._process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self._log.warning("%s: does not end by itself", self._name)
        self.close()

    def wait_closed(self, timeout_s: float) -> None:
        """At the asker's own end: reap what can be reaped."""
        self.close()
        for process in self._left:
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._log.error("%s: process %d does not die; leaving it", self._name, process.pid)
        self._left.clear()

    def say(self, error: str | None) -> None:
        """One log line per change of state."""
        if error != self.error:
            self._log.warning("%s; until it answers nothing is known", error) if error else self._log.info(
                "%s: answers again", self._name
            )
        self.error = error

    def _reap(self) -> None:
        if self._left:
            self._left = [process for process in self._left if process.poll() is None]

    def _start(self, now: float) -> bool:
        if len(self._left) >= LEFT_BEHIND:
            self._not_before = now + PAUSE_MAX_S
            self.say(f"{self._name}: killed ones do not end; not started again")
            return False
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, json.dumps({**self._options, "asker": os.getpid()})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                env={**os.environ, **self._environment},
            )
        except OSError as error:
            self.end(now, f"cannot be started ({error})")
            return False
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._buffer.clear()
        self._fresh = True
        return True


def options() -> dict[str, Any]:
    """In the process: what it was started with. It ends with the thread that started it, and at once if that is gone."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        pass  # not Linux: the end of stdin has to do
    if os.getppid() != given["asker"]:
        raise SystemExit(0)
    return given


def answers(answer: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """In the process: answer every line of stdin until it closes."""
    for line in sys.stdin:
        question = json.loads(line)
        sys.stdout.write(json.dumps({**answer(question), "no": question["no"]}) + "\n")
        sys.stdout.flush()
