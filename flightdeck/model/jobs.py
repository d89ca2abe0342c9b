"""Jobs as a list shows them: what the questions ``jobs`` and ``job_counts`` answer, cleaned, as immutable values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from flightdeck.model.fleet import show_project
from flightdeck.model.rows import integer, mapping, moment, number, rows, seconds_since
from flightdeck.model.text import clean

# As the engine names them, as people read them; the order of the tabs.
STATUSES = (
    ("live", "live"),
    ("running", "running"),
    ("queued", "queued"),
    ("scheduled", "later"),
    ("awaiting_input", "input"),
    ("failed", "failed"),
    ("cancelled", "cancelled"),
    ("completed", "done"),
    ("all", "all"),
)
SORTS = {
    "running": ("longest", "newest", "priority"),
    "queued": ("oldest", "newest", "priority"),
}
_SORT_WORDS = {
    "longest": "longest running first",
    "newest": "last enqueued first",
    "oldest": "longest waiting first",
    "priority": "as they are claimed: run next, priority, age",
    "soonest": "soonest first",
}


def sort_words(status: str, sort: str) -> str:
    """The order of a list, in words; empty: of no list that is known."""
    return "last begun first" if (status, sort) == ("running", "newest") else _SORT_WORDS.get(sort, "")


@dataclass(frozen=True, slots=True)
class JobRow:
    id: str
    family: str
    project: str
    name: str
    node_id: str
    run_id: str
    queue: str
    model: str
    box: str
    status: str
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    run_after: datetime | None
    attempt: int
    max_attempts: int
    priority: int
    is_priority: bool
    progress_pct: float | None
    progress_text: str
    error: str
    unplaceable: str
    stopping: bool
    killing: bool

    @property
    def title(self) -> str:
        """The name, and which node of a graph it is where that says more."""
        if not self.node_id or self.node_id == self.name:
            return self.name
        return f"{self.name} ({self.node_id})"

    def later(self, now: datetime) -> bool:
        """Whether its time has not come yet."""
        return self.status == "queued" and self.run_after is not None and self.run_after > now

    def word(self, now: datetime) -> str:
        """Its state in at most nine cells."""
        if self.status == "running":
            if self.killing:
                return "killing"
            if self.stopping:
                return "stopping"
            return "running" if self.started_at is not None else "claimed"
        if self.status == "queued":
            return "later" if self.later(now) else "queued"
        return {"awaiting_input": "input?", "completed": "done"}.get(self.status, self.status)

    def ran_s(self, now: datetime) -> float | None:
        """How long its latest attempt has run; None: it has not begun."""
        if self.started_at is None:
            return None
        return seconds_since(self.started_at, self.finished_at or now)

    def since_s(self, now: datetime) -> float | None:
        """How long it has been what it is: waiting since it was enqueued, over since it ended."""
        if self.status == "running":
            return seconds_since(self.started_at or self.created_at, now)
        return seconds_since(self.finished_at or self.created_at, now)


@dataclass(frozen=True, slots=True)
class JobList:
    """One answer. ``more``: others are behind these; ``next_page``: how to ask for them, empty: not; ``whole`` False: a
    filter gave up after ``looked`` rows."""

    status: str = "live"
    sort: str = ""
    jobs: tuple[JobRow, ...] = ()
    more: bool = False
    next_page: tuple[tuple[str, str], ...] = ()
    looked: int = 0
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Count:
    n: int
    capped: bool

    @property
    def text(self) -> str:
        """``5,000+`` where counting stopped."""
        return f"{self.n:,}{'+' if self.capped else ''}"

    @property
    def short(self) -> str:
        """``5k+``."""
        return f"{self.n if self.n < 1000 else f'{self.n // 1000}k'}{'+' if self.capped else ''}"


def read_jobs(answer: object) -> JobList:
    """Raises nothing for odd content."""
    data = mapping(answer)
    return JobList(
        status=clean(data.get("status"), 20),
        sort=clean(data.get("sort"), 20),
        jobs=tuple(read_job(row) for row in rows(data.get("jobs"))),
        more=bool(data.get("more")),
        next_page=tuple(sorted((clean(k, 20), clean(v, 30)) for k, v in mapping(data.get("next")).items())),
        looked=integer(data.get("looked")) or 0,
        whole=data.get("whole") is not False,
    )


def read_counts(answer: object) -> dict[str, Count]:
    return {
        clean(name, 20): Count(integer(row.get("n")) or 0, bool(row.get("capped")))
        for name, row in mapping(answer).items()
        if isinstance(row, Mapping)
    }


def read_job(row: Mapping[str, Any]) -> JobRow:
    """A row of a list, or the columns of one job."""
    node_id = clean(row.get("node_id"), 80)
    return JobRow(
        id=clean(row.get("id"), 30),
        family=clean(row.get("family"), 10),
        project=show_project(row.get("project")),
        name=clean(row.get("name"), 120) or node_id or "?",
        node_id=node_id,
        run_id=clean(row.get("run_id"), 30),
        queue=clean(row.get("queue"), 60),
        model=clean(row.get("model"), 80),
        box=clean(row.get("box") or row.get("claimed_box"), 60),
        status=clean(row.get("status"), 20),
        created_at=moment(row.get("created_at")),
        started_at=moment(row.get("started_at")),
        finished_at=moment(row.get("finished_at")),
        run_after=moment(row.get("run_after")),
        attempt=integer(row.get("attempt")) or 0,
        max_attempts=integer(row.get("max_attempts")) or 1,
        priority=integer(row.get("priority")) or 0,
        is_priority=bool(row.get("is_priority")),
        progress_pct=number(row.get("progress_pct")),
        progress_text=clean(row.get("progress_text"), 200),
        error=clean(row.get("error"), 300),
        unplaceable=clean(row.get("unplaceable_reason"), 300),
        stopping=bool(row.get("cancel_requested")),
        killing=bool(row.get("kill_requested")),
    )
