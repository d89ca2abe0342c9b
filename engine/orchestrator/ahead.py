"""Signs of life that lie ahead of the database's clock.

Every sign of life is written with that clock, so one that is ahead of it is older than it says: the clock was set back, a
standby whose clock is behind took over, a backup came from another machine, or somebody wrote the row by hand. Who is dead
would count as alive until the clock is there. Such a row is taken as written at this moment: who lives writes the next one
within seconds, and who does not is silent from now on.
"""

from __future__ import annotations

import logging

from engine.store import Db

log = logging.getLogger("engine.orchestrator")

SLACK_S = 5.0  # clocks of servers that follow each other are not that close


def pull_back(db: Db) -> int:
    """Bring heartbeats and rows of services that are ahead back to now; how many. A live writer's next beat is as good."""
    count = 0
    for table in ("worker_heartbeats", "services"):
        changed = db.run(f"update {table} set last_seen = {{clock}} where last_seen > {{after[slack]}}", slack=SLACK_S)
        if changed:
            log.warning(
                "%d rows of %s were ahead of the database's clock, taken as written now; was the clock set back?",
                changed,
                table,
            )
        count += changed
    return count
