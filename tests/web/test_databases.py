"""The connections that requests share."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from engine.errors import ConfigError, ReadOnlyStore, SchemaMismatch, StoreUnavailable
from engine.store import Db, Store
from engine.web.databases import Databases
from engine.web.problems import Busy


@pytest.fixture
def databases(store: Store) -> Iterator[Databases]:
    databases = Databases(lambda: store, 2, 0.01)
    yield databases
    databases.close()


def test_connections_are_used_again_and_never_more_than_are_allowed(databases: Databases) -> None:
    with databases.borrow() as first, databases.borrow() as second:
        assert first is not second
        with pytest.raises(Busy):
            with databases.borrow():
                pass
    with databases.borrow() as again:
        assert again in (first, second)
    databases.close()
    assert first.closed
    assert second.closed


def test_who_waits_gets_the_next_connection(store: Store) -> None:
    databases = Databases(lambda: store, 1, 60.0)
    got: list[Db] = []

    def wait() -> None:
        with databases.borrow() as db:
            got.append(db)

    with databases.borrow() as first:
        waiting = threading.Thread(target=wait)
        waiting.start()
    waiting.join(60)
    assert got == [first]
    databases.close()


def test_a_connection_that_comes_back_unwell_is_not_used_again(databases: Databases) -> None:
    with databases.borrow() as first:
        first.raw.execute("begin")  # as no code of ours would leave it
    assert first.closed
    with databases.borrow() as second:
        second.close()
    with pytest.raises(RuntimeError), databases.borrow() as third:
        raise RuntimeError("a bug of a route")
    with databases.borrow() as fourth:
        assert fourth is third
        fourth.ping()


def test_a_reader_cannot_write(databases: Databases) -> None:
    with databases.borrow(read_only=True) as db, pytest.raises(ReadOnlyStore):
        db.run("delete from services")
    with databases.borrow() as writer:
        assert writer.run("delete from services") == 0


def test_a_database_that_is_away_is_not_asked_by_every_request(store: Store) -> None:
    asked = 0

    def away() -> Store:
        nonlocal asked
        asked += 1
        raise StoreUnavailable("nobody there")

    databases = Databases(away, 2, 0.01)
    began = time.monotonic()
    for _ in range(50):
        with pytest.raises(StoreUnavailable), databases.borrow():
            pass
    assert asked <= 1 + (time.monotonic() - began) / 0.3


def test_a_schema_that_does_not_fit_is_said(pg_empty_url: str) -> None:
    databases = Databases(lambda: Store(pg_empty_url), 1, 0.01)
    with pytest.raises(SchemaMismatch), databases.borrow():
        pass


def test_a_wrong_url_is_a_wrong_url() -> None:
    databases = Databases(lambda: Store("mysql://x"), 1, 0.01)
    with pytest.raises(ConfigError), databases.borrow():
        pass
