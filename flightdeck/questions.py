"""What a page may ask the database, by name. Each is a function of a connection and plain arguments that returns plain,
JSON-able data (times as ISO text in UTC, ids as text), reads a limited number of rows, and is quick: < 50 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.queue.box_jobs import box_jobs
from engine.queue.browse import browse, counts
from engine.queue.detail import job_detail
from engine.queue.queues import queues_view
from engine.queue.timeline import happened
from engine.snapshot import jsonable
from engine.store import Db
from engine.telemetry import throttle_history
from engine.telemetry.box_now import box_now
from engine.telemetry.box_span import box_span
from engine.telemetry.job_hardware import share_of
from engine.telemetry.spans import span


def _plain(work: Callable[..., Any]) -> Callable[..., Any]:
    """``work`` with its times and names as JSON has them."""

    def answer(db: Db, **arguments: Any) -> Any:
        return jsonable(work(db, **arguments))

    return answer


QUESTIONS: dict[str, Callable[..., Any]] = {
    "span": span,
    "box_now": box_now,
    "box_gpus": box_span,
    "box_jobs": box_jobs,
    "jobs": _plain(browse),
    "job_counts": _plain(counts),
    "job": _plain(job_detail),
    "job_hardware": share_of,
    "queues": _plain(queues_view),
    "events": _plain(happened),
    "throttle": throttle_history.history,
    "throttle_jobs": throttle_history.jobs,
}
