"""Brings the ends of the jobs' logs into the database: of what runs every few seconds, of what ended soon after.

Off the loop: the keeper calls :meth:`Tails.tend` on its thread, with its connection. What cannot be written now is
written later; what piles up beyond a bound is left to the files on the box.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine import config
from engine.errors import StoreError
from engine.lane import logs
from engine.lane.book import Book, Held
from engine.queue.logs import TAIL_BYTES, Tail, cut, write_tails
from engine.queue.workers import Worker
from engine.store import Db

log = logging.getLogger("engine.lane")
SOON_S = 0.25  # the ends of jobs wait so long for company
WAITING = 1000  # ended jobs that wait to be written; beyond, the oldest are left out
STATEMENT_BYTES = 1 << 20  # about so much text goes with one statement
ROUND_S = 1.0  # the keeper has other things to do
PRUNE_EVERY_S = 60.0
FULL_BYTES = 64 << 10  # a disk with less room is full,
ROOMY_BYTES = 1 << 20  # and with more it is not any longer


@dataclass(frozen=True)
class _Attempt:
    """An attempt, and the file that it wrote to (the slot's spool, until its file has its name)."""

    id: int
    token: int
    attempt: int
    spool: Path | None

    @staticmethod
    def of(held: Held, log_dir: Path) -> _Attempt:
        job, slot = held.job, held.slot
        spool = logs.spool_of(log_dir, slot.index) if slot is not None else None
        return _Attempt(job.id, job.fencing_token, job.attempt, spool)


class Tails:
    """``poke()``: the keeper is to call :meth:`tend` soon. ``ended`` is for the loop's thread, the rest for the keeper's."""

    def __init__(self, worker: Worker, log_dir: Path, book: Book, poke: Callable[[], None]) -> None:
        self._worker, self._log_dir, self._book, self._poke = worker, log_dir, book, poke
        self._every_s = float(config.get("log_tail_seconds"))
        self._ended: deque[_Attempt] = deque(maxlen=WAITING)
        self._sizes: dict[int, tuple[int, int]] = {}  # job -> fence and size, as last written
        self._unsure: dict[int, tuple[Held, int, Tail]] = {}  # job -> what a spool held, in which turn of the loop
        self._next_running = time.monotonic() + self._every_s
        self._next_ended = 0.0
        self._next_prune = time.monotonic() + PRUNE_EVERY_S
        self._told: str | None = None
        self._full = False

    def ended(self, held: Held) -> None:
        """An attempt is over and has printed something."""
        first = not self._ended
        self._ended.append(_Attempt.of(held, self._log_dir))
        if first:
            self._poke()

    def tend(self, db: Db) -> float:
        """Write what is due; when the next turn is (monotonic). Raises StoreError; then it is written another time."""
        now = time.monotonic()
        if now >= self._next_prune:
            self._next_prune = now + PRUNE_EVERY_S
            logs.prune(self._log_dir)
        if self._ended and now >= self._next_ended:
            self._write_ended(db, now + ROUND_S)
            self._next_ended = time.monotonic() + SOON_S
        if now >= self._next_running:
            self._look_for_room()
            self._write(db, list(self._running()))
            self._next_running = time.monotonic() + self._every_s
        return min(self._next_running, self._next_ended if self._ended else self._next_running)

    def finish(self, db: Db) -> None:
        """The lane ends: what waits is written, as far as a second goes. Raises StoreError."""
        if self._ended:
            self._write_ended(db, time.monotonic() + ROUND_S)

    def _look_for_room(self) -> None:
        """A job whose print finds no room fails with the system's words, which name no file: say where, once."""
        room = logs.room(self._log_dir)
        if room is None or (room >= ROOMY_BYTES) is not self._full:
            return
        if self._full:
            log.info("%s: there is room for the jobs' logs again", self._log_dir)
        elif room < FULL_BYTES:
            log.error("%s: the disk is full; jobs that print fail until there is room", self._log_dir)
        else:
            return
        self._full = not self._full

    # --- what is there ---

    def _write_ended(self, db: Db, until: float) -> None:
        while self._ended and time.monotonic() < until:
            taken: list[_Attempt] = []
            found: list[Tail] = []
            size = 0
            while self._ended and size < STATEMENT_BYTES:
                one = self._ended.popleft()
                taken.append(one)
                tail = _read(one, logs.job_log(self._log_dir, one.id, one.attempt), over=True)
                if tail is not None:
                    found.append(tail)
                    size += len(tail.text)
            try:
                self._write(db, found)
            except StoreError:
                room = max(0, WAITING - len(self._ended))
                self._ended.extendleft(reversed(taken[max(0, len(taken) - room) :]))
                raise
            for one in taken:
                self._sizes.pop(one.id, None)

    def _running(self) -> Iterator[Tail]:
        """Of what runs: the logs that have grown since they were last written."""
        held_now = [held for held in self._book.all() if held.began is not None and not held.settling]
        unsure, self._unsure = self._unsure, {}
        known, self._sizes = self._sizes, {}
        for held in held_now:
            one = _Attempt.of(held, self._log_dir)
            if one.id in known and known[one.id][0] == one.token:
                self._sizes[one.id] = known[one.id]
            tail = _read(one, logs.job_log(self._log_dir, one.id, one.attempt), over=False)
            if tail is None and one.spool is not None:
                # It holds its interpreter, so that its log has no name yet. What the spool says is this job's if the
                # job is found to be still running by a loop that has read the executor's pipe since.
                before = unsure.get(one.id)
                if before is not None and before[0] is held and self._book.turns >= before[1] + 2:
                    tail = before[2]
                turn = self._book.turns
                if (spooled := _read(one, one.spool, over=False)) is not None:
                    self._unsure[one.id] = (held, turn, spooled)
            if tail is not None and tail.size > self._sizes.get(one.id, (0, 0))[1]:
                yield tail

    def _write(self, db: Db, tails: Iterable[Tail]) -> None:
        for batch in _batches(tails):
            try:
                write_tails(db, self._worker, batch)
            except StoreError:
                raise
            except Exception as error:  # a text that the database refuses: the file on the box has it
                said = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
                if said != self._told:
                    self._told = said
                    log.warning("the ends of %d job logs were refused (%s)", len(batch), said)
            self._sizes.update((tail.job_id, (tail.fencing_token, tail.size)) for tail in batch)


def _batches(tails: Iterable[Tail]) -> Iterator[list[Tail]]:
    batch: list[Tail] = []
    size = 0
    for tail in tails:
        batch.append(tail)
        size += len(tail.text)
        if size >= STATEMENT_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _read(one: _Attempt, path: Path, *, over: bool) -> Tail | None:
    """The end of one log file; None when there is none, or nothing in it."""
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            start = max(0, size - TAIL_BYTES)
            data = os.pread(file.fileno(), TAIL_BYTES, start)
    except OSError:
        return None
    if not size:
        return None
    return Tail(one.id, one.token, one.attempt, cut(data, whole=start == 0, over=over), size)
