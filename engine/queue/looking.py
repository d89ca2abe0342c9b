"""What somebody looks for among jobs, as SQL, which columns a list of jobs shows, and how it is read: by index."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from engine.queue.family import INGEST, Family
from engine.store import Db

Row = dict[str, Any]


@contextmanager
def by_index(db: Db) -> Iterator[None]:
    """A transaction in which the planner takes the indexes that these statements are written for.

    Left to itself it reads and sorts a class of 5,000 rows for the first 200 of them, and more with every row. SQLite
    needs no telling, nor a transaction, which would lock the file.
    """
    if db.kind == "sqlite":
        yield
        return
    with db.transaction():
        db.all(
            "select "
            + ", ".join(f"set_config('enable_{way}', 'off', true)" for way in ("seqscan", "bitmapscan", "hashjoin"))
        )
        yield


@contextmanager
def in_order(db: Db) -> Iterator[None]:
    """Within :func:`by_index`: statements whose order an index has, and which shall not read all to sort it."""
    if db.kind == "sqlite":
        yield
        return
    db.all("select set_config('enable_sort', 'off', true)")
    yield
    db.all("select set_config('enable_sort', 'on', true)")  # what failed has ended the transaction, and this with it


@dataclass(frozen=True)
class Wanted:
    """What is asked for, and its filters as SQL. None: any. ``words``: in lower case; each must be somewhere on a row."""

    project: str | None
    queue: str | None
    box: str | None
    words: tuple[str, ...]
    sort: str
    limit: int
    after: dict[str, Any]

    @property
    def filtered(self) -> bool:
        """Whether rows are left out that their index does not leave out."""
        return bool(self.words) or self.box is not None

    def where(self, db: Db, family: Family, of: str = "j") -> tuple[str, dict[str, Any]]:
        """Conditions on a row called ``of``, each after ``and``, and their parameters."""
        sql, given = "", {}
        for name, value in (("project", self.project), ("queue", self.queue)):
            if value is not None:
                sql += f" and {of}.{name} = {{one_{name}}}"
                given[f"one_{name}"] = value
        if self.box is not None:
            only = f"{{one_box}} = any({of}.only_boxes)"
            if db.kind == "sqlite":
                only = f"exists (select 1 from json_each({of}.only_boxes) where value = {{one_box}})"
            sql += f" and ({of}.claimed_box = {{one_box}} or ({of}.status = 'queued' and {only}))"
            given["one_box"] = self.box
        parts = _TEXTS[family.name]
        for number, word in enumerate(self.words):
            hay = " || ' ' || ".join(f"coalesce({part.format(of=of)}, '')" for part in parts)
            sql += f" and {_position(db)}(lower({hay}), {{word{number}}}) > 0"
            given[f"word{number}"] = word
        return sql, given


def _position(db: Db) -> str:
    return "strpos" if db.kind == "postgresql" else "instr"


# The start of an error tells what it is; all of each would be fetched from beside the table.
_COMMON = ("cast({of}.id as text)", "{of}.progress_text", "substr({of}.error, 1, 400)", "{of}.unplaceable_reason")
_TEXTS = {
    "node": ("{of}.node", "{of}.node_id", "{of}.required_model", "cast({of}.run_id as text)", *_COMMON),
    "ingest": ("{of}.task_name", "{of}.idempotency_key", *_COMMON),
}


@dataclass(frozen=True)
class Found:
    """Rows in order, more of them than asked for where there are more.

    ``looked``: rows looked at; ``whole``: False when a filter gave up before the end; ``more``: others are behind these.
    """

    rows: list[Row]
    looked: int
    whole: bool = True
    more: bool = False


def columns(db: Db, family: Family, of: str = "j") -> str:
    """What of a row is shown in a list."""
    error = f"substr({of}.error, 1, 300) as error"
    shared = (
        "id, queue, status, project, priority, is_priority, attempt, max_attempts, claimed_box, progress_pct, "
        "progress_text, unplaceable_reason, cancel_requested, kill_requested, run_after, created_at, started_at, finished_at"
    )
    names = ", ".join(f"{of}.{name}" for name in shared.split(", "))
    own = "run_id, node_id, node as name, required_model as model"
    if family is INGEST:
        own = "null as run_id, null as node_id, task_name as name, null as model"
    own = ", ".join(part if part.startswith("null") else f"{of}.{part}" for part in own.split(", "))
    return f"'{family.name}' as family, {names}, {own}, {error}"


def stamp(at: datetime | None) -> float:
    return 0.0 if at is None else at.timestamp()
