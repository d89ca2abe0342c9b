"""Bugs to plant in the processes of a chaos run, to see that the verdict notices. Nothing of the product knows of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BUGS = ("fence",)


def plant(bug: str) -> None:
    """Break this process. Raises ValueError for an unknown bug, AssertionError where there is nothing to break."""
    if bug != "fence":
        raise ValueError(f"unknown bug {bug!r} (known: {', '.join(BUGS)})")
    from engine.queue import finish, finish_sql

    check = "and j.fencing_token = d.token and j.claimed_by = {owner} "

    def without(make: Callable[..., str]) -> Callable[..., str]:
        def made(*args: Any) -> str:
            text = make(*args)
            assert check in text, "the finish statement has no fence check where it was: adapt tests/chaos/plant.py"
            return text.replace(check, "")

        return made

    # A late result lands on whatever attempt runs now, whoever holds it.
    finish.finish_statement = finish_sql.finish_statement = without(finish_sql.finish_statement)  # type: ignore[assignment]
    finish.complete_statement = finish_sql.complete_statement = without(finish_sql.complete_statement)  # type: ignore[assignment]
    attempt = finish._attempt

    def blind(db: Any, family: Any, job_id: int) -> dict[str, Any] | None:
        row = attempt(db, family, job_id)
        return None if row is None else _Blind(row)

    finish._attempt = blind


class _Any:
    """Equal to every fence and every owner."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(self.value)


class _Blind(dict[str, Any]):
    """A row as the SQLite path of the finish sees it, without its fence and owner."""

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        return value if name not in ("fencing_token", "claimed_by") or _written() else _Any(value)


def _written() -> bool:
    """Whether the caller writes the value down instead of comparing it."""
    import sys

    return sys._getframe(2).f_code.co_name not in ("_finish_sqlite", "complete_job")
