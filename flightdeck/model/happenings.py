"""What happened, as the events page shows it: what the question ``events`` answers, cleaned, as immutable values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from flightdeck.model.fleet import show_project
from flightdeck.model.rows import integer, mapping, moment, rows
from flightdeck.model.text import clean

# As the engine names them, as people read them; the order of the tabs.
KINDS = (
    ("telling", "telling"),
    ("trouble", "trouble"),
    ("orders", "orders"),
    ("jobs", "jobs"),
    ("all", "all"),
)
_TROUBLE = ("failed", "trip", "lost_claim", "refused", "stale_write")
_WARNING = (
    "requeued",
    "stall_suspected",
    "unplaceable",
    "cancelled",
    "park",
    "cordon",
    "cancel_job",
    "cancel_run",
    "kill_job",
)
_WELL = ("completed", "resume", "uncordon", "run_next", "retry_job", "retry_run", "submit_input")


@dataclass(frozen=True, slots=True)
class Happening:
    """``source``: job or control; with ``id`` it names the row."""

    source: str
    id: str
    at: datetime | None
    box: str
    queue: str
    project: str
    kind: str
    cause: str
    job_id: str
    run_id: str
    by: str
    text: str

    @property
    def key(self) -> tuple[str, str]:
        return self.source, self.id

    @property
    def tone(self) -> str:
        if self.kind in _TROUBLE:
            return "bad"
        if self.kind == "alert":
            return "ok" if self.cause == "box_back" else "bad"
        if self.kind in _WARNING:
            return "bad" if self.cause in ("executor_died", "lane_lost", "lease_lapsed") else "warn"
        return "ok" if self.kind in _WELL else "dim"

    @property
    def word(self) -> str:
        """What it is in a word or two."""
        if self.kind == "alert" and self.cause:
            return self.cause.replace("_", " ")
        return {"stall_suspected": "stall?", "stale_write": "late write"}.get(self.kind, self.kind.replace("_", " "))


@dataclass(frozen=True, slots=True)
class Happenings:
    """One answer, newest first. ``next_page``: how to ask for what is older, empty: there is nothing."""

    events: tuple[Happening, ...] = ()
    next_page: tuple[tuple[str, str], ...] = ()
    whole: bool = True


def read_happenings(answer: object) -> Happenings:
    """Raises nothing for odd content."""
    data = mapping(answer)
    return Happenings(
        events=tuple(
            Happening(
                source=clean(row.get("source"), 10),
                id=clean(row.get("id"), 30),
                at=moment(row.get("at")),
                box=clean(row.get("box"), 60),
                queue=clean(row.get("queue"), 40),
                project=show_project(row.get("project")),
                kind=clean(row.get("type"), 30),
                cause=clean(row.get("cause"), 30),
                job_id=clean(row.get("job_id"), 30),
                run_id=clean(row.get("run_id"), 30),
                by=clean(row.get("by"), 60),
                text=_text(row.get("text"), row.get("box"), row.get("queue"), integer(row.get("exit_code"))),
            )
            for row in rows(data.get("events"))
        ),
        next_page=tuple(sorted((clean(k, 20), clean(v, 30)) for k, v in mapping(data.get("next")).items())),
        whole=data.get("whole") is not False,
    )


def _text(text: object, box: object, queue: object, code: int | None) -> str:
    """Box and queue have columns of their own."""
    where = " ".join(part for part in (clean(box, 60), clean(queue, 40)) if part)
    found = clean(text, 400)
    return found.removeprefix(f"{where}: ") if where else found


def with_newer(kept: tuple[Happening, ...], newest: tuple[Happening, ...]) -> tuple[Happening, ...] | None:
    """What is on screen with what is new in front of it; None: they do not meet, something would be missing between."""
    if not kept:
        return newest
    known = {event.key for event in kept}
    fresh = [event for event in newest if event.key not in known]
    if len(fresh) == len(newest) and newest:
        return None
    return tuple(fresh) + kept


def boxes_of(events: Iterable[Happening]) -> list[str]:
    return sorted({event.box for event in events if event.box not in ("", "*")})
