"""Who leads: one orchestrator at a time, by a lock that dies with its database session.

Behind a transaction pooler a lock stays on the pooled connection when its taker is dead, and nobody could ever follow. There
the rows of ``services`` decide: whoever sees no fresh leader leads. Two may for a moment; every sweep and every dispatch
is harmless when done twice.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from engine import config
from engine.orchestrator.ahead import SLACK_S
from engine.queue import services
from engine.store import Db, Store
from engine.store.locks import Exclusive, new_incarnation
from engine.store.postgres import PostgresDb, is_pooled

log = logging.getLogger("engine.orchestrator")

KIND = "orchestrator"

# A frozen leader (SIGSTOP, a hung box whose network still answers) would keep the lock for ever: the server ends a
# session that has been silent for so long. A leader that works is never silent for more than a second.
_IDLE_LIMIT = "30s"
FRESH_S = 45.0  # behind a pooler: a leader that has not beaten for so long is gone


class Leader:
    """One candidate: its lock, on the session of ``db``, and its row in ``services``."""

    def __init__(self, store: Store, db: Db, incarnation: str | None = None) -> None:
        self.db = db
        self.incarnation = incarnation or new_incarnation()
        self._service = services.Service(KIND, config.box_name(), self.incarnation)
        self._lock = Exclusive(store, KIND)
        self._pooled = isinstance(db, PostgresDb) and is_pooled(db)
        self._leads_by_row = False
        if self._pooled:
            log.warning(
                "a pooler stands before the database; set FLIGHTDECK_DB_DIRECT_URL to an address past it. Without one "
                "a leader that died is followed after %.0f s",
                FRESH_S,
            )
        elif db.kind == "postgresql":
            db.run(f"set idle_session_timeout = '{_IDLE_LIMIT}'")

    @property
    def leads(self) -> bool:
        return self._lock.held or self._leads_by_row

    def try_lead(self) -> bool:
        """Take the lead if nobody has it; True when we lead. Raises StoreUnavailable."""
        if not self._pooled:
            return self._lock.try_acquire(self.db)
        led = self.db.value(
            "select 1 from services where kind = {kind} and is_leader = {true} and incarnation <> {incarnation} "
            "and last_seen > {before[fresh]} and last_seen < {after[slack]} limit 1",
            kind=KIND,
            incarnation=self.incarnation,
            fresh=FRESH_S,
            slack=SLACK_S,  # or nobody could lead while a dead one's row is ahead of the clock
        )
        self._leads_by_row = led is None
        return self._leads_by_row

    def beat(self, detail: Mapping[str, Any], error: str | None) -> None:
        """Write our row: that we are here, whether we lead, and what fails."""
        services.beat(self.db, self._service, detail, error, leads=self.leads)
        if self.leads:
            self._demote_others()

    def _demote_others(self) -> None:
        """Rows of leaders that died say ``is_leader`` still; we lead, so they are wrong."""
        self.db.run(
            "update services set is_leader = {false} where kind = {kind} and is_leader = {true} "
            "and incarnation <> {incarnation}",
            kind=KIND,
            incarnation=self.incarnation,
        )

    def leave(self) -> None:
        """Give up the lead and take our row away. Raises nothing that a dead session could cause."""
        try:
            if not self.db.closed:
                services.leave(self.db, self._service)
        except Exception:  # the row is left behind; the next leader demotes it
            pass
        self._lock.release()
