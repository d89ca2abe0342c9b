"""A program that uses the fleet's database while it comes and goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg

from engine.errors import StoreError
from engine.store import Db, Store

T = TypeVar("T")
AWAY = (StoreError, psycopg.OperationalError, psycopg.InterfaceError)


class Gone(Exception):
    """The run is over, or the database stayed away for too long."""


class Client:
    """One connection of one thread, made again when it broke."""

    def __init__(self, store: Store, name: str, stop: threading.Event) -> None:
        self._store, self._name, self._stop = store, name, stop
        self._db: Db | None = None

    def call(self, do: Callable[[Db], T], patience_s: float = 90.0) -> T:
        """``do(db)``, again after every lost connection: for what may be done twice. Raises Gone."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                return self._once(do)
            except AWAY as error:
                if time.monotonic() > deadline:
                    raise Gone(f"{self._name}: no database for {patience_s:.0f} s: {error}") from error
                time.sleep(0.2)

    def attempt(self, do: Callable[[Db], T]) -> T | None:
        """``do(db)`` once; None when the answer was lost, so that nobody knows whether it happened."""
        try:
            return self._once(do)
        except AWAY:
            time.sleep(0.2)
            return None

    def _once(self, do: Callable[[Db], T]) -> T:
        if self._stop.is_set():
            raise Gone(self._name)
        try:
            if self._db is None:
                self._db = self._store.connect(f"chaos {self._name}")
            return do(self._db)
        except AWAY:
            self.close()
            raise

    def all(self, sql: str, **params: Any) -> list[dict[str, Any]]:
        return self.call(lambda db: db.all(sql, **params))

    def value(self, sql: str, **params: Any) -> Any:
        return self.call(lambda db: db.value(sql, **params))

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
