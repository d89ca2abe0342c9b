"""Questions to the database: asked on the UI thread, answered there, worked on elsewhere."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine.errors import NotFound
from engine.store import Db, Store
from flightdeck.reader import Answer, Canned, Reader, question_key
from tests.support import RefusingServer, eventually


class Deck:
    """The UI thread of a test: runs what the reader hands over when it is looked at."""

    def __init__(self) -> None:
        self.handed: queue.SimpleQueue[tuple[Callable[..., None], tuple[object, ...]]] = queue.SimpleQueue()
        self.answers: list[Answer] = []

    def soon(self, work: Callable[..., None], *arguments: object) -> None:
        self.handed.put((work, arguments))

    def look(self) -> list[Answer]:
        while not self.handed.empty():
            work, arguments = self.handed.get()
            work(*arguments)
        return self.answers

    def wait(self, count: int) -> list[Answer]:
        return eventually(lambda: self.look() if len(self.look()) >= count else None)


def one_more(db: Db, number: int) -> int:
    found = db.value("select {number} + 1 as n", number=number)
    return int(found)


def missing(db: Db) -> None:
    raise NotFound("no job 7")


def writes(db: Db) -> None:
    db.run("update boxes set description = 'x'")


def breaks(db: Db) -> None:
    db.value("select nonsense from\nnowhere")


@pytest.fixture
def deck() -> Deck:
    return Deck()


@pytest.fixture
def reader(store: Store, deck: Deck) -> Iterator[Reader]:
    reader = Reader(
        lambda: store, deck.soon, {"one_more": one_more, "missing": missing, "writes": writes, "breaks": breaks}
    )
    yield reader
    reader.close()
    if reader._thread is not None:
        reader._thread.join(20)
        assert not reader._thread.is_alive()


def test_an_answer_comes_back_on_the_thread_that_looks(reader: Reader, deck: Deck) -> None:
    here: list[threading.Thread] = []

    def take(answer: Answer) -> None:
        here.append(threading.current_thread())
        deck.answers.append(answer)

    reader.ask("one_more", {"number": 41}, take)
    answer = deck.wait(1)[0]
    assert (answer.value, answer.error, answer.arguments) == (42, "", {"number": 41})
    assert here == [threading.current_thread()]


def test_a_failing_question_is_one_line_and_the_next_is_answered(reader: Reader, deck: Deck) -> None:
    for name in ("missing", "breaks", "unheard of"):
        reader.ask(name, {}, deck.answers.append)
    reader.ask("one_more", {"number": 1}, deck.answers.append)
    answers = deck.wait(4)
    assert [answer.value for answer in answers] == [None, None, None, 2]
    assert answers[0].error == "no job 7" and "unheard of" in answers[2].error
    assert answers[1].error and "\n" not in answers[1].error


def test_no_question_can_write(reader: Reader, deck: Deck) -> None:
    """The connection itself is read-only, whatever a question does."""
    reader.ask("writes", {}, deck.answers.append)
    assert deck.wait(1)[0].error


def test_the_newest_question_of_a_page_counts(store: Store, deck: Deck) -> None:
    """A list that is filtered while it is being read shows the last filter, never an older one that came late."""
    go, asked = threading.Event(), threading.Event()

    def slow(db: Db, number: int) -> int:
        asked.set()
        go.wait(30)
        return number

    class Page:
        def take(self, answer: Answer) -> None:
            deck.answers.append(answer)

    page, other = Page(), Page()
    reader = Reader(lambda: store, deck.soon, {"slow": slow})
    try:
        reader.ask("slow", {"number": 1}, page.take)
        assert asked.wait(30)
        reader.ask("slow", {"number": 2}, page.take)
        reader.ask("slow", {"number": 3}, page.take)
        reader.ask("slow", {"number": 4}, other.take)
        go.set()
        assert [answer.value for answer in deck.wait(2)] == [3, 4]
    finally:
        go.set()
        reader.close()
        assert reader._thread is not None
        reader._thread.join(20)


def test_a_question_is_repeated_until_it_is_stopped(reader: Reader, deck: Deck) -> None:
    ask = reader.ask("one_more", {"number": 1}, deck.answers.append, every_s=0.01)
    deck.wait(3)
    ask.stop()
    count = len(deck.look())
    reader.ask("one_more", {"number": 5}, deck.answers.append, owner="another")
    eventually(lambda: deck.look()[-1].value == 6)
    assert len(deck.answers) == count + 1


def test_a_repeated_question_that_failed_is_asked_again_soon(
    store: Store, deck: Deck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only after the minute for which a good answer is good."""
    monkeypatch.setattr("flightdeck.reader.AGAIN_S", 0.01)
    tries: list[int] = []

    def second_time(db: Db) -> int:
        tries.append(1)
        if len(tries) < 2:
            raise TimeoutError("too slow")
        return len(tries)

    reader = Reader(lambda: store, deck.soon, {"second_time": second_time})
    try:
        reader.ask("second_time", {}, deck.answers.append, every_s=3600.0, owner=1)
        assert [answer.value for answer in deck.wait(2)] == [None, 2]
    finally:
        reader.close()
        assert reader._thread is not None
        reader._thread.join(20)


def test_a_database_that_is_away_is_told_and_asked_again_later(deck: Deck) -> None:
    """D13, D14: one line, no waiting on the UI thread, and no connection attempt per question."""
    from engine.store import open_store

    with RefusingServer() as server:
        reader = Reader(lambda: open_store(server.url), deck.soon, {"one_more": one_more})
        began = time.thread_time()
        for number in range(5):
            reader.ask("one_more", {"number": number}, deck.answers.append, owner=number)
        assert time.thread_time() - began < 1.0
        answers = deck.wait(5)
        reader.close()
        assert reader._thread is not None
        reader._thread.join(20)
    assert all(answer.error and answer.value is None for answer in answers)
    assert "s3cret" not in " ".join(answer.error for answer in answers)


def test_nothing_is_delivered_after_it_was_closed(store: Store, deck: Deck) -> None:
    reader = Reader(lambda: store, deck.soon, {"one_more": one_more})
    reader.close()
    reader.ask("one_more", {"number": 1}, deck.answers.append)
    assert reader._thread is None and not deck.look()


def test_canned_answers_are_found_whatever_the_order_of_arguments() -> None:
    canned = Canned({question_key("jobs", {"a": [1, 2], "b": "x"}): {"rows": []}})
    answers: list[Answer] = []
    canned.ask("jobs", {"b": "x", "a": (1, 2)}, answers.append)
    canned.ask("jobs", {"b": "y"}, answers.append)
    assert answers[0].value == {"rows": []} and not answers[0].error
    assert answers[1].value is None and answers[1].error
    waiting: list[Any] = []
    canned.soon = lambda work, *arguments: waiting.append((work, arguments))
    canned.ask("jobs", {"b": "y"}, answers.append).stop()
    waiting[0][0](*waiting[0][1])
    assert len(answers) == 2
