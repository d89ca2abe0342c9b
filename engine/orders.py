"""What an order may name: checks that need to know the configuration and the database both."""

from __future__ import annotations

import re
from datetime import timedelta

from engine import config
from engine.errors import BadInput, UnknownQueue
from engine.queue.texts import check_word
from engine.store import Db

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def check_queue(db: Db, queue: str) -> None:
    """Raise UnknownQueue (or BadInput: no name) unless the queue is configured here or a lane, an order or a job knows it; ``*`` is all."""
    known = {"*", "cpu", "gpu", *config.ingest_queues()}
    if check_word(queue, "queue") in known:
        return
    for source in ("worker_heartbeats", "worker_controls", "ingest_jobs"):
        if db.value(f"select 1 as found from {source} where queue = {{queue}} limit 1", queue=queue):
            return
    raise UnknownQueue(f"unknown queue {queue!r} (known: {', '.join(sorted(known - {'*'}))}, and those of live lanes)")


def parse_span(text: str, what: str = "time span") -> timedelta:
    """``90s``, ``30m``, ``2h``, ``1d``, or seconds. Raises BadInput. ``what`` names it in the error."""
    match = _SPAN.fullmatch(text.strip().lower())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < seconds <= 3650 * 86400:
        raise BadInput(f"{what}: {text!r} is no time span; write 90s, 30m, 2h or 1d")
    return timedelta(seconds=seconds)
