"""The service's row in ``services`` (kind "web"), written every few seconds by a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from engine.errors import EngineError
from engine.queue import services
from engine.queue.services import Service
from engine.store import Db, Store
from engine.store.locks import new_incarnation
from engine.web.problems import refused_by_database

log = logging.getLogger("engine.web")

KIND = "web"
BEAT_S = 5.0
AGAIN_S = 1.0
STATEMENT_S = 5.0


class Presence:
    """Says that the service is there while it is, and in the log when the database goes and comes."""

    def __init__(self, store: Callable[[], Store], box: str, detail: Callable[[], Mapping[str, Any]]) -> None:
        """``store`` raises StoreError while there is none; ``detail`` is what the row says of the service."""
        self._store = store
        self._detail = detail
        self._service = Service(KIND, box, new_incarnation())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Take the row away, if the database is there."""
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        db: Db | None = None
        told = False
        while True:
            try:
                if db is None:
                    db = self._store().connect(KIND, timeout_s=STATEMENT_S)
                if self._stop.is_set():
                    services.leave(db, self._service)
                    break
                services.beat(db, self._service, self._detail(), None)
                if told:
                    log.info("the database answers again")
                told = False
                self._stop.wait(BEAT_S)
            except Exception as error:  # whatever it is, requests are answered without this row
                if not told:
                    if refused_by_database(error):
                        log.warning("this service has no row in services: %s", " ".join(str(error).split()))
                    elif isinstance(error, EngineError):
                        log.warning("the database does not answer, requests are refused: %s", error)
                    else:
                        log.exception("presence: unexpected error, starting over")
                told = True
                if db is not None:
                    db.close()
                    db = None
                if self._stop.wait(AGAIN_S):
                    break
        if db is not None:
            db.close()
