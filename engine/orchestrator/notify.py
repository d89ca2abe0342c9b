"""``--on-event``: tells a command what happened, one JSON object on its stdin; never faster than is good for a telephone.

A token bucket per kind: a burst is told one by one, what comes faster waits and goes out as one message that says how many
more there are. The command runs on a thread of its own, in a process group of its own, with a deadline; whatever it does, no
sweep waits for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.errors import BadInput

Clock = Callable[[], float]

TRIES = 3
AGAIN_S = (5.0, 30.0)  # pauses between the tries
LOOK_S = 0.1  # so often a command that prints nothing is looked at
PRINTED_MOST = 2**22  # bytes of one command
OTHERS_TOLD = 20  # texts of "and N more" that go along


def parse_command(text: str | None) -> tuple[str, ...] | None:
    """The words of a command as a shell would split them; no shell runs it. None for no command. Raises BadInput."""
    if text is None:
        return None
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise BadInput(f"--on-event {text!r}: {error}") from None
    if not words:
        raise BadInput("--on-event: the command is empty")
    if any("\0" in word for word in words):
        raise BadInput("--on-event: a command has no NUL in it")
    if shutil.which(words[0]) is None:
        raise BadInput(f"--on-event: there is no program {words[0]!r} here")
    return words


class Bucket:
    """So many at once, then one every ``every_s`` seconds."""

    def __init__(self, burst: int, every_s: float, clock: Clock) -> None:
        self._burst, self._every_s, self._clock = max(1, burst), every_s, clock
        self._tokens, self._at = float(self._burst), clock()

    def left(self) -> int:
        now = self._clock()
        gained = (now - self._at) / self._every_s if self._every_s > 0 else float(self._burst)
        self._tokens, self._at = min(float(self._burst), self._tokens + gained), now
        return int(self._tokens + 1e-9)

    def take(self) -> bool:
        if self.left() < 1:
            return False
        self._tokens -= 1.0
        return True


@dataclass(frozen=True)
class Pending:
    """A row of ``control_events`` that is to be told."""

    id: int
    kind: str


@dataclass(frozen=True)
class Told:
    """What became of one message: the rows that it stood for; ``error`` None: the command took it."""

    ids: tuple[int, ...]
    kind: str
    error: str | None


@dataclass
class _Put:
    """A message that failed and comes again."""

    tries: int
    due: float


@dataclass
class Courier:
    """Carries messages to the command, one after the other. Called from one thread; the command has its own."""

    argv: tuple[str, ...]
    timeout_s: float
    burst: int
    every_s: float
    clock: Clock = time.monotonic
    error: str | None = None  # of the newest message that failed; None once one is taken
    _buckets: dict[str, Bucket] = field(default_factory=dict)
    _put_off: dict[int, _Put] = field(default_factory=dict)  # by the first row of a message
    _process: subprocess.Popen[bytes] | None = None
    _thread: threading.Thread | None = None
    _ids: tuple[int, ...] = ()
    _kind: str = ""
    _answer: str | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None

    def pick(self, waiting: Sequence[Pending]) -> tuple[Pending, ...]:
        """The rows of the next message, oldest first: one alone while there are tokens; with the last token all of its kind.
        Empty: nothing may be told now. Takes the token."""
        if self.busy:
            return ()
        now = self.clock()
        for kind in dict.fromkeys(one.kind for one in waiting):
            mine = [one for one in waiting if one.kind == kind]
            later = self._put_off.get(mine[0].id)
            if later is not None and later.due > now:
                continue
            bucket = self._buckets.setdefault(kind, Bucket(self.burst, self.every_s, self.clock))
            if later is None and not bucket.take():
                continue
            return tuple(mine) if bucket.left() < 1 else (mine[0],)
        return ()

    def send(self, rows: Sequence[Pending], message: Mapping[str, Any]) -> None:
        """Start the command with this message; :meth:`collect` tells what became of it."""
        self._ids, self._kind, self._answer = tuple(row.id for row in rows), rows[0].kind, None
        self._thread = threading.Thread(target=self._run, args=(dict(message),), name="on-event", daemon=True)
        self._thread.start()

    def collect(self) -> Told | None:
        """What became of the last message, once: taken, or given up after three tries. None: nothing to tell yet."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        if self._answer is None:
            self._put_off.pop(self._ids[0], None)
            self.error = None
            return Told(self._ids, self._kind, None)
        self.error = self._answer
        put = self._put_off.setdefault(self._ids[0], _Put(0, 0.0))
        put.tries += 1
        if put.tries < TRIES:
            put.due = self.clock() + AGAIN_S[put.tries - 1]
            return None
        del self._put_off[self._ids[0]]
        return Told(self._ids, self._kind, self._answer)

    def close(self, wait_s: float) -> Told | None:
        """Give a running command so long to end, then kill its group."""
        if self._thread is not None:
            self._thread.join(wait_s)
            if self._thread.is_alive() and self._process is not None:
                _kill(self._process)
                self._thread.join(10.0)  # it is killed: what takes long now is the machine
        return self.collect()

    def _run(self, message: Mapping[str, Any]) -> None:
        try:
            self._answer = self._call(json.dumps(message).encode() + b"\n")
        except Exception as error:
            self._answer = f"{self.argv[0]}: {type(error).__name__}: {' '.join(str(error).split())}"

    def _call(self, text: bytes) -> str | None:
        """Run the command once; None, or one line about what went wrong. It need not read (a file), nor stop writing: the end
        of what it prints is kept in memory, and after ``PRINTED_MOST`` bytes nobody takes any more."""
        with tempfile.TemporaryFile() as given:
            given.write(text)
            given.seek(0)
            try:
                self._process = process = subprocess.Popen(
                    self.argv, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
                )
            except OSError as error:
                return f"{self.argv[0]}: cannot start: {error.strerror or error}"
            assert process.stdout is not None
            with process.stdout as output:
                printed = self._watch(process, output.fileno())
            if printed is None:
                _kill(process)
                process.wait()
                return f"{self.argv[0]}: killed: it took longer than {self.timeout_s:g} s"
            if process.returncode == 0:
                return None
            said = printed.decode("utf-8", "replace").strip().splitlines()
            return f"{self.argv[0]}: ended with {process.returncode}" + (f": {said[-1][:200]}" if said else "")

    def _watch(self, process: subprocess.Popen[bytes], output: int) -> bytes | None:
        """Until it has ended: the last of what it printed. None: its time is over. What it has started is not
        waited for."""
        os.set_blocking(output, False)
        end, tail, size, ended = time.monotonic() + self.timeout_s, b"", 0, False
        while True:
            ended = ended or process.poll() is not None
            left = end - time.monotonic()
            if left <= 0 and not ended:
                return None
            open_ = 0 <= size < PRINTED_MOST
            ready = select.select([output] if open_ else [], [], [], 0.0 if ended else min(LOOK_S, left))[0]
            if not ready:
                if ended:
                    return tail
                continue
            try:
                piece = os.read(output, 65_536)
            except BlockingIOError:
                continue
            size = size + len(piece) if piece else -1
            tail = (tail + piece)[-4096:]


def message(rows: Sequence[Mapping[str, Any]], more: int) -> dict[str, Any]:
    """What the command reads: the first of these rows of ``control_events``, and how many like it there are beside it.

    ``more`` counts those that are not among ``rows`` any more.
    """
    first = rows[0]
    detail = dict(first["detail"]) if isinstance(first["detail"], Mapping) else {}
    kind, text = detail.pop("kind", ""), detail.pop("text", "")
    others = [str(row["detail"].get("text", "")) for row in rows[1 : 1 + OTHERS_TOLD]]
    count = len(rows) - 1 + more
    return {
        "id": str(first["id"]),
        "kind": kind,
        "at": first["at"].isoformat(),
        "text": f"{text} (and {count} more)" if count else text,
        "box": first["box"],
        "queue": first["queue"],
        "project": first["project"],
        "detail": detail,
        "more": count,
        "others": others,
    }


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
