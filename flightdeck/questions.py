"""What a page may ask the database, by name. Each is a function of a connection and plain arguments that returns plain,
JSON-able data (times as ISO text in UTC, ids as text), reads a limited number of rows, and is quick: < 50 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.telemetry import throttle_history
from engine.telemetry.spans import span

QUESTIONS: dict[str, Callable[..., Any]] = {
    "span": span,
    "throttle": throttle_history.history,
    "throttle_jobs": throttle_history.jobs,
}
