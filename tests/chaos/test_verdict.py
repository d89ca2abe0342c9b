"""The verdict of a chaos run sees what it is there to see: one planted wrong for each rule."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.server import WrongUse, opened
from tests.chaos.verdict import Books, judge

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
OWNER = "b1/default/0123456789abcdef"


def job(**values: Any) -> dict[str, Any]:
    return {
        "family": "ingest", "id": 1, "status": "completed", "attempt": 2, "failures": 0, "losses": 1,
        "watchdog_retries": 0, "fencing_token": 2, "name": "effect", "idempotency_key": "k", "run_id": None,
        "node_id": None, "output": None, **values,
    }  # fmt: skip


def step(
    id: int, old: str, new: str, old_fence: int, fence: int, old_attempt: int, attempt: int, **values: Any
) -> dict[str, Any]:
    return {
        "id": id, "at": NOON, "job_id": 1, "old": old, "new": new, "old_fence": old_fence, "fence": fence,
        "old_attempt": old_attempt, "attempt": attempt, "old_owner": OWNER, "owner": OWNER, "held": False, **values,
    }  # fmt: skip


def event(kind: str, fence: int, attempt: int, cause: str | None = None) -> dict[str, Any]:
    return {
        "job_id": 1, "event_type": kind, "cause": cause, "fencing_token": fence, "attempt": attempt,
        "detail": {"reason": "its session is gone"},
    }  # fmt: skip


AUDIT = (
    step(1, "queued", "running", 0, 1, 0, 1),
    step(2, "running", "queued", 1, 1, 1, 1),
    step(3, "queued", "running", 1, 2, 1, 2),
    step(4, "running", "completed", 2, 2, 2, 2),
)
GOOD = Books(
    jobs=[job()],
    audit=AUDIT,
    events=[event("requeued", 1, 1, "lane_lost"), event("completed", 2, 2)],
    executions=[{"job_id": 1, "fencing_token": 2, "worker": OWNER}],
    effects=[{"job_id": 1, "fence": 2}],
    asked_jobs={1: "effect"},
)


def rules(books: Books) -> set[str]:
    return {breach.rule for breach in judge(books).breaches}


def test_a_job_lost_once_and_completed_once_is_fine() -> None:
    verdict = judge(GOOD)
    assert verdict.breaches == []
    assert verdict.counts["given away"] == 1


def changed(number: int, **values: Any) -> tuple[dict[str, Any], ...]:
    return tuple({**each, **values} if each["id"] == number else each for each in AUDIT)


WRONGS: dict[str, Books] = {
    "not_terminal": replace(GOOD, jobs=[job(status="running")]),
    "reopened": replace(GOOD, audit=(*AUDIT, step(5, "completed", "queued", 2, 2, 2, 2))),
    "two_owners": replace(GOOD, audit=(*AUDIT[:3], step(9, "running", "running", 2, 3, 2, 3), *AUDIT[3:])),
    "fence": replace(GOOD, audit=changed(3, fence=1)),
    "attempt": replace(GOOD, audit=changed(3, attempt=4)),
    "audit": replace(GOOD, audit=(*AUDIT[:2], AUDIT[3])),
    "event_missing": replace(GOOD, events=GOOD.events[1:]),
    "event_contradicts": replace(GOOD, events=[*GOOD.events, event("failed", 2, 2)]),
    "event_order": replace(GOOD, events=list(reversed(GOOD.events))),
    "counters": replace(GOOD, jobs=[job(losses=2)]),
    "given_away": replace(GOOD, audit=changed(2, held=True)),
    "executions": replace(GOOD, executions=[{"job_id": 1, "fencing_token": 2, "worker": "b2/default/other"}]),
    "effect_twice": replace(GOOD, effects=[{"job_id": 1, "fence": 1}, {"job_id": 1, "fence": 2}]),
    "effect": replace(GOOD, effects=[{"job_id": 1, "fence": 1}]),
    "lost": replace(GOOD, asked_jobs={1: "effect", 2: "plain"}),
    "cancel": replace(GOOD, cancelled_jobs=frozenset({1})),
    "key": replace(GOOD, jobs=[job(), job(id=2, status="cancelled", losses=0, name="plain")]),
    "run_open": replace(GOOD, runs=[{"id": 5, "status": "cancelled", "finished_at": None, "error": None}]),
    "graph": replace(GOOD, runs=[{"id": 5, "status": "completed", "finished_at": NOON, "error": None}]),
    "outbox": replace(
        GOOD, outbox=[{"id": 1, "run_id": 5, "node_id": "a", "kind": "completed", "processed_at": None, "error": None}]
    ),
}


@pytest.mark.parametrize("rule", WRONGS)
def test_what_is_wrong_is_called_by_its_name(rule: str) -> None:
    assert rule in rules(WRONGS[rule])


def test_a_lane_may_lose_work_while_it_holds_its_session_only_when_it_was_stopped_for_half_a_minute() -> None:
    held = replace(GOOD, audit=changed(2, held=True))
    at = NOON.timestamp()
    assert rules(replace(held, freezes=[("b1/default", at - 31, at + 5)])) == set()
    assert rules(replace(held, freezes=[("b1/default", at - 10, at + 5)])) == {"given_away"}
    assert rules(replace(held, freezes=[("b2/default", at - 31, at + 5)])) == {"given_away"}
    watched = {"0123456789abcdef": [(at - 5, at + 5)]}  # SQLite: the mark as it was seen
    assert rules(replace(GOOD, held_at=watched)) == {"given_away"}


def test_a_database_that_is_not_for_tests_is_refused(tmp_path: Path) -> None:
    for url in ("postgresql://db/fleet", "sqlite:////srv/fleet.db", "embedded:"):
        with pytest.raises(WrongUse):
            opened("postgresql", url, tmp_path)
    assert not list(tmp_path.iterdir())
