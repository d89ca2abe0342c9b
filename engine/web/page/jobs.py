"""What a list of jobs is narrowed to, as it stands in the page's address. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import BadInput
from engine.queue.browse import SORTS

STATUSES = tuple(SORTS)
LIMIT = 100
TEXT_MOST = 200
ID_MOST = 2**63 - 1


@dataclass(frozen=True)
class Filter:
    """``project`` None: of all; empty texts: any. ``after``: where the page begins, ``node:12,ingest:40``."""

    status: str = "live"
    project: str | None = None
    queue: str = ""
    box: str = ""
    text: str = ""
    sort: str = ""
    after: str = ""
    limit: int = LIMIT

    def pairs(self, **changes: str) -> list[tuple[str, str]]:
        """As the address has them; a change of what is looked for leads to the first page."""
        found = {"status": self.status, "queue": self.queue, "box": self.box, "text": self.text, "sort": self.sort}
        found |= {"project": self.project} if self.project is not None else {}
        return [(name, value) for name, value in (found | changes).items() if value or name == "project"]


def read_filter(asked: Mapping[str, str]) -> Filter:
    """From an address. What makes no sense counts as not said; an unknown status is refused. Raises BadInput."""
    status = asked.get("status") or "live"
    if status not in SORTS:
        raise BadInput(f"status: one of {', '.join(STATUSES)}")
    project = asked.get("project")
    # A choice "all" in a form has a value of its own: the empty project has the empty name.
    return Filter(
        status,
        None if project in (None, "*") else project[:TEXT_MOST],
        asked.get("queue", "").strip()[:TEXT_MOST],
        asked.get("box", "").strip()[:TEXT_MOST],
        asked.get("text", "").strip()[:TEXT_MOST],
        asked.get("sort", "") if asked.get("sort", "") in SORTS[status] else "",
        asked.get("after", "")[:100],
    )


def after_of(text: str, names: tuple[str, ...] = ("node", "ingest")) -> dict[str, int]:
    """Where a page begins. Raises BadInput."""
    found: dict[str, int] = {}
    for part in filter(None, text[:100].split(",")):
        name, _, number = part.partition(":")
        if name not in names or not (number.isascii() and number.isdigit()) or int(number) > ID_MOST:
            raise BadInput("after: take it from the page before")
        found[name] = int(number)
    return found
