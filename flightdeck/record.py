"""``flightdeck record FILE``: writes down what a deck would hear, until it is told to stop."""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

from engine import config
from engine.errors import BadInput, StoreError
from engine.feed import Feed, FeedUpdate
from engine.store import Db, Store
from flightdeck.launch import store_name
from flightdeck.recorded import canonical
from flightdeck.recording import Said, Writer
from flightdeck.rounds import questions
from flightdeck.snapshot import open_to_look

ROUND_S = 1.0  # so often it is looked whether a question is due
CALL_S = 4.0


def main(*, path: str, seconds: float | None = None, overwrite: bool = False) -> int:
    """The command; its exit code. ``seconds`` None: until ctrl+c or SIGTERM. Raises BadInput, ConfigError, StoreError."""
    file = Path(path)
    store = open_to_look()
    try:
        writer = Writer(file, store_name(config.db_url()), overwrite=overwrite)
    except FileExistsError:
        raise BadInput(f"{file} is there already; another name, or --overwrite") from None
    except OSError as error:
        raise BadInput(f"cannot write {file}: {error.strerror or error}") from None
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    recorder = Recorder(store, writer, stop)
    _say(f"recording {store_name(config.db_url())} to {file}; ctrl+c ends it")
    try:
        recorder.run(seconds)
    finally:
        try:
            writer.close()
        except OSError as error:
            recorder.failure = recorder.failure or str(error.strerror or error)
    _say(f"{writer.last_t:.0f} s, {writer.lines} lines, {file.stat().st_size / 1024:.0f} kB in {file}")
    if recorder.failure:
        _say(f"flightdeck: cannot write {file}: {recorder.failure}")
        return 1
    return 0


class Recorder:
    """One recording in progress: the feed writes from its thread, questions are asked on the caller's."""

    def __init__(self, store: Store, writer: Writer, stop: threading.Event) -> None:
        self.failure = ""
        self._store = store
        self._writer = writer
        self._stop = stop
        self._view: dict[str, object] | None = None
        self._state = ""
        self._db: Db | None = None
        self._due: dict[tuple[str, str], float] = {}  # when a question is asked again

    def stop(self) -> None:
        self._stop.set()

    def run(self, seconds: float | None) -> None:
        """Until ``stop`` is set, or for so many seconds."""
        end = None if seconds is None else time.monotonic() + seconds
        feed = Feed(lambda: self._store, self._take, read_only=True)
        feed.start()
        try:
            due = time.monotonic() + 1.0  # the first view comes first
            while not self._stop.is_set():
                now = time.monotonic()
                if end is not None and now >= end:
                    return
                if now >= due and self._view is not None:
                    self._round(end)
                    due = now + ROUND_S
                wait_s = 0.25 if end is None else min(0.25, max(0.0, end - now))
                self._stop.wait(wait_s)
        finally:
            feed.stop(timeout_s=CALL_S)
            self._close()

    def _take(self, update: FeedUpdate) -> None:
        """An update of the feed, on its thread."""
        if update.state != self._state and update.state == "lost":
            _say(f"the database is away: {update.error}; the recording says so")
        elif update.state != self._state and self._state == "lost":
            _say("the database is back")
        self._state = update.state
        self._view = update.view if update.view is not None else self._view
        try:
            self._writer.update(update)
        except OSError as error:
            self.failure = error.strerror or str(error)
            self._stop.set()

    def _round(self, end: float | None) -> None:
        """Ask what is due."""
        for question in questions(self._view or {}):
            now = time.monotonic()
            if self._stop.is_set() or (end is not None and now >= end):
                return
            key = (question.name, canonical(question.arguments))
            if now < self._due.get(key, 0.0):
                continue
            self._due[key] = now + question.every_s
            try:
                said = self._ask(question.name, question.arguments)
            except StoreError:
                self._close()  # the feed tells that the database is away
                return
            except Exception as error:  # one question that fails must not end a night's recording
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                said = Said(question.name, question.arguments, None, reason[:200])
            try:
                self._writer.answer(said, time.monotonic())
            except OSError as error:
                self.failure = error.strerror or str(error)
                self._stop.set()

    def _ask(self, name: str, arguments: dict[str, object]) -> Said:
        from flightdeck.questions import QUESTIONS

        if self._db is None or self._db.closed:
            self._db = self._store.connect("deck recording", read_only=True, timeout_s=CALL_S)
        return Said(name, arguments, QUESTIONS[name](self._db, **arguments))

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
