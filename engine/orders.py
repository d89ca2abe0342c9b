"""What an order may name: checks that need to know the configuration and the database both."""

from __future__ import annotations

from engine import config
from engine.errors import UnknownQueue
from engine.queue.texts import check_word
from engine.store import Db


def check_queue(db: Db, queue: str) -> None:
    """Raise UnknownQueue (or BadInput: no name) unless the queue is configured here or a lane, an order or a job knows it; ``*`` is all."""
    known = {"*", "cpu", "gpu", *config.ingest_queues()}
    if check_word(queue, "queue") in known:
        return
    for source in ("worker_heartbeats", "worker_controls", "ingest_jobs"):
        if db.value(f"select 1 as found from {source} where queue = {{queue}} limit 1", queue=queue):
            return
    raise UnknownQueue(f"unknown queue {queue!r} (known: {', '.join(sorted(known - {'*'}))}, and those of live lanes)")
