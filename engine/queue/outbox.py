"""The outbox of the graphs: what a node's end means for its run, written with that end, drained by the leader."""

from __future__ import annotations

import random
from typing import Any

from engine.queue.texts import clean_text
from engine.store import Db


def emit(db: Db, run_id: int, node_id: str, kind: str) -> None:
    """Add one event (kind ``completed failed skipped input``) in the caller's transaction."""
    db.run(
        "insert into workflow_dispatch_events (run_id, node_id, kind) values ({run_id}, {node_id}, {kind})",
        run_id=run_id,
        node_id=node_id,
        kind=kind,
    )


def open_events(db: Db, n: int = 100, after: int = 0) -> list[dict[str, Any]]:
    """Up to ``n`` unprocessed events that are due, oldest first; only those with an id above ``after``.

    Inside a transaction their rows are locked, and those that another drainer holds are left out.
    """
    return db.all(
        "select id, run_id, node_id, kind, attempts, error, created_at from workflow_dispatch_events "
        "where processed_at is null and id > {past} and (not_before is null or not_before <= {now}) "
        "order by id limit {n} {skip_locked}",
        n=n,
        past=after,
    )


def mark_processed(db: Db, event_id: int, error: str | None = None) -> bool:
    """Close one event; ``error`` says why it came to nothing. False: somebody else closed it."""
    return (
        db.run(
            "update workflow_dispatch_events set processed_at = {now}, error = coalesce({error}, error) "
            "where id = {id} and processed_at is null",
            id=event_id,
            error=clean_text(error),
        )
        == 1
    )


def mark_failed(db: Db, event_id: int, error: str) -> int:
    """Count one failed dispatch and put the event off (0.5 s doubling to 60 s, jittered). Returns its attempts."""
    attempts = db.value("select attempts from workflow_dispatch_events where id = {id}", id=event_id)
    if attempts is None:
        return 0
    delay = min(60.0, 0.5 * 2 ** min(int(attempts), 10)) * random.uniform(0.75, 1.25)
    db.run(
        "update workflow_dispatch_events set attempts = attempts + 1, error = {error}, not_before = {after[delay]} "
        "where id = {id} and processed_at is null",
        id=event_id,
        error=clean_text(error),
        delay=delay,
    )
    return int(attempts) + 1
