"""What the page has read lately: read once for all who ask, kept while there is no database, never for too long."""

from __future__ import annotations

import threading

import pytest

from engine.errors import StoreUnavailable
from engine.store import Db, Store
from engine.web.databases import Databases
from engine.web.page import looks
from engine.web.page.looks import FRESH_S, KEPT, SHOWN_FOR_S, Looks


class Shelf:
    """Looks on a clock that stands, and a reader that counts and can fail."""

    def __init__(self, store: Store) -> None:
        self.now, self.reads, self.away = 0.0, 0, False
        self.looks = Looks(Databases(lambda: store, 2, 5.0), lambda: self.now)

    def read(self, db: Db) -> int:
        self.reads += 1
        if self.away:
            raise StoreUnavailable("gone")
        assert db.value("select 1 as one") == 1
        return self.reads

    def look(self, key: str = "fleet") -> tuple[int, float, str]:
        found = self.looks.look(key, self.read)
        return found.value, found.age_s, found.trouble


@pytest.fixture
def shelf(sqlite_store: Store) -> Shelf:
    return Shelf(sqlite_store)


def test_a_reading_serves_all_who_ask_for_a_moment(shelf: Shelf) -> None:
    assert shelf.look() == (1, 0.0, "")
    shelf.now = FRESH_S / 2
    assert shelf.look() == (1, FRESH_S / 2, "") and shelf.look("other") == (2, 0.0, "")
    shelf.now = FRESH_S
    assert shelf.look() == (3, 0.0, "")
    shelf.looks.forget()  # something was ordered
    assert shelf.look() == (4, 0.0, "")


def test_the_last_good_reading_stands_in_for_an_hour(shelf: Shelf) -> None:
    shelf.look()
    shelf.away, shelf.now = True, 60.0
    assert shelf.look() == (1, 60.0, "the database does not answer")
    shelf.now = SHOWN_FOR_S + 1
    with pytest.raises(StoreUnavailable):
        shelf.look()
    shelf.away, shelf.now = False, SHOWN_FOR_S + 2
    assert shelf.look()[2] == ""


def test_who_waited_for_what_failed_does_not_try_again_at_once(shelf: Shelf) -> None:
    shelf.away = True
    for _ in range(5):
        with pytest.raises(StoreUnavailable):
            shelf.look()
    assert shelf.reads == 1
    shelf.now = looks.AGAIN_S
    with pytest.raises(StoreUnavailable):
        shelf.look()
    assert shelf.reads == 2


def test_many_at_once_are_one_reading(shelf: Shelf) -> None:
    found: list[tuple[int, float, str]] = []
    threads = [threading.Thread(target=lambda: found.append(shelf.look())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [(1, 0.0, "")] * 8


def test_only_so_many_are_kept(shelf: Shelf) -> None:
    for number in range(KEPT + 1):
        shelf.look(str(number))
    assert shelf.look("1")[0] == 2 and shelf.look("0")[0] == KEPT + 2
