"""Questions that a page asks the database: by name, on a thread of their own, answered on the UI thread.

What can be asked stands in :mod:`flightdeck.questions`. The thread has a connection of its own, read-only, with a
deadline; a database that does not answer holds up no key. In still frames and replays :class:`Canned` answers instead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from flightdeck.model.text import clean

if TYPE_CHECKING:
    from engine.store import Db, Store

CALL_S = 4.0  # deadline of one question
REFUSED_S = 2.0  # so long after a connection failed nothing is tried again: every question would wait for its deadline
AGAIN_S = 5.0  # a question that is repeated and failed is asked again that soon
ERROR_CELLS = 200

Key = tuple[str, tuple[tuple[str, Hashable], ...]]


@dataclass(frozen=True)
class Answer:
    """``value``: plain data; None with an ``error`` of one line. ``mono``: when it was answered."""

    name: str
    arguments: Mapping[str, Any]
    value: Any
    error: str
    mono: float


Take = Callable[[Answer], None]


@dataclass(eq=False)
class Ask:
    """One question that waits, or is repeated every ``every_s`` until ``stop()``."""

    name: str
    arguments: Mapping[str, Any]
    take: Take
    every_s: float | None
    owner: object
    due: float = 0.0
    live: bool = True

    def stop(self) -> None:
        """What is still on its way is not taken any more."""
        self.live = False


class Answers(Protocol):
    """Who answers a page's questions."""

    def ask(
        self, name: str, arguments: Mapping[str, Any], take: Take, every_s: float | None = None, owner: object = None
    ) -> Ask: ...

    def close(self) -> None: ...


def question_key(name: str, arguments: Mapping[str, Any]) -> Key:
    """A question as a key: the same arguments in any order are the same question. Lists count as tuples."""
    return name, tuple(sorted((word, _hashable(value)) for word, value in arguments.items()))


def _hashable(value: Any) -> Hashable:
    if isinstance(value, list | tuple):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, Mapping):
        return tuple(sorted((str(word), _hashable(item)) for word, item in value.items()))
    return value  # type: ignore[no-any-return]


def owner_of(take: Take, owner: object) -> object:
    """A bound method belongs to its object: a page that asks again wants the newest answer alone."""
    return owner if owner is not None else getattr(take, "__self__", None)


class Canned:
    """Answers that are known beforehand, by :func:`question_key`. ``soon`` runs a callable on the UI thread a little later."""

    def __init__(self, answers: Mapping[Key, Any] | None = None, mono: Callable[[], float] = time.monotonic) -> None:
        self.answers = dict(answers or {})
        self.mono = mono
        self.soon: Callable[..., None] = lambda work, *arguments: work(*arguments)

    def ask(
        self, name: str, arguments: Mapping[str, Any], take: Take, every_s: float | None = None, owner: object = None
    ) -> Ask:
        ask = Ask(name, dict(arguments), take, every_s, owner_of(take, owner))
        self.soon(self._deliver, ask)
        return ask

    def _deliver(self, ask: Ask) -> None:
        if not ask.live:
            return
        value, error = self.look_up(ask.name, ask.arguments)
        ask.take(Answer(ask.name, ask.arguments, value, error, self.mono()))

    def look_up(self, name: str, arguments: Mapping[str, Any]) -> tuple[Any, str]:
        """The value, or None and why there is none."""
        found = self.answers.get(question_key(name, arguments))
        return found, "" if found is not None else "not asked: there is no database here"

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Reader:
    """Asks a real database. ``soon`` hands work to the UI thread; of two asks of one (name, owner) the newer one counts."""

    opener: Callable[[], Store]
    soon: Callable[..., None]
    questions: Mapping[str, Callable[..., Any]] | None = None  # None: flightdeck.questions
    _asks: list[Ask] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _current: Ask | None = None  # being answered
    _thread: threading.Thread | None = None
    _closed: bool = False
    _store: Store | None = None
    _db: Db | None = None
    _failed: tuple[float, str] | None = None  # when connecting failed last, and why

    def ask(
        self, name: str, arguments: Mapping[str, Any], take: Take, every_s: float | None = None, owner: object = None
    ) -> Ask:
        """Never waits. ``take`` gets an :class:`Answer` on the UI thread, again every ``every_s`` seconds if given."""
        ask = Ask(name, dict(arguments), take, every_s, owner_of(take, owner))
        with self._changed:
            for other in [*self._asks, *([self._current] if self._current is not None else [])]:
                if other.name == name and other.owner is not None and other.owner == ask.owner:
                    other.stop()
            self._asks = [*(other for other in self._asks if other.live), ask]
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name="reader", daemon=True)
                self._thread.start()
            self._changed.notify()
        return ask

    def close(self) -> None:
        """Ask the thread to end; never waits for it."""
        with self._changed:
            self._closed = True
            self._asks.clear()
            self._changed.notify()

    # -- the thread

    def _work(self) -> None:
        while (ask := self._next()) is not None:
            answer = self._answer(ask)
            if answer.error:
                ask.due = min(ask.due, time.monotonic() + AGAIN_S)
            if ask.live:
                self.soon(_deliver, ask, answer)
        if self._db is not None:
            self._db.close()

    def _next(self) -> Ask | None:
        """The next question that is due; None: closed."""
        with self._changed:
            while not self._closed:
                self._asks = [ask for ask in self._asks if ask.live]
                now = time.monotonic()
                ask = min(self._asks, key=lambda ask: ask.due, default=None)
                if ask is not None and ask.due <= now:
                    if ask.every_s is None:
                        self._asks.remove(ask)
                    else:
                        ask.due = now + ask.every_s
                    self._current = ask
                    return ask
                self._changed.wait(None if ask is None else ask.due - now)
            return None

    def _answer(self, ask: Ask) -> Answer:
        value, error = None, ""
        try:
            value = self._function(ask.name)(self._connection(), **ask.arguments)
        except Exception as failure:  # a page shows it and goes on; the next question may be answered
            error = self._judge(failure)
        return Answer(ask.name, ask.arguments, value, clean(error, ERROR_CELLS), time.monotonic())

    def _function(self, name: str) -> Callable[..., Any]:
        from engine.errors import BadInput

        if self.questions is None:
            from flightdeck.questions import QUESTIONS  # imports what answers them: not before somebody asks

            self.questions = QUESTIONS
        if name not in self.questions:
            raise BadInput(f"there is no question {name!r}")
        return self.questions[name]

    def _connection(self) -> Db:
        if self._db is not None and not self._db.closed:
            return self._db
        from engine.errors import StoreUnavailable

        if self._failed is not None and time.monotonic() < self._failed[0] + REFUSED_S:
            raise StoreUnavailable(self._failed[1])
        try:
            if self._store is None:
                self._store = self.opener()
            self._db = self._store.connect("deck pages", read_only=True, timeout_s=CALL_S)
        except Exception as failure:
            self._failed = (time.monotonic(), str(failure))
            raise
        return self._db

    def _judge(self, failure: Exception) -> str:
        """What a page says about a failure. A connection that has failed is not used again."""
        from engine.errors import BadInput, EngineError, NotFound

        if self._db is not None and not isinstance(failure, BadInput | NotFound):
            self._db.close()
            self._db = None
        text = str(failure) if isinstance(failure, EngineError) else f"{type(failure).__name__}: {failure}"
        return " ".join(text.split())


def _deliver(ask: Ask, answer: Answer) -> None:
    if ask.live:
        ask.take(answer)
