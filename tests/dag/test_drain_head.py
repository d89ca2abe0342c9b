"""Where a look into the outbox begins, on both stores, with the clock in our hands."""

from __future__ import annotations

import pytest

from engine.dag import drain as module
from engine.dag.drain import Head, drain
from engine.dag.runs import GraphCache
from engine.store import Db


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def event(db: Db, id: int, run_id: int | None = None) -> None:
    """An event of a run that is over: closing it is all that there is to do."""
    run_id = run_id or db.value("insert into workflow_runs (status) values ('completed') returning id")
    db.run(
        "insert into workflow_dispatch_events (id, run_id, node_id, kind) values ({id}, {run_id}, 'a', 'completed')",
        id=id,
        run_id=run_id,
    )


def test_what_was_closed_long_ago_is_not_read_again_and_nothing_is_overlooked(db: Db) -> None:
    """Under an old snapshot every look read all that had been closed since, and graphs moved on ever more slowly."""
    clock = Clock()
    head, graphs = Head(clock), GraphCache()

    def closes() -> int:
        return drain(db, graphs, head=head).events

    event(db, 100)
    assert closes() == 1
    event(db, 90)
    assert closes() == 1, "committed a moment later than one with a higher id"
    clock.now += module.LAG_S
    assert closes() == 0 and head.start() == 100, "a look from the beginning, the next one behind what was closed"
    event(db, 80)
    event(db, 110)
    assert closes() == 1, "the new one at once"
    clock.now += module.EXACT_EVERY_S
    assert closes() == 1, "one that came very late within a second"


def test_a_dispatch_that_was_put_off_is_tried_again(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    head, graphs = Head(clock), GraphCache()
    event(db, 100)
    event(db, 101)
    real = module.advance
    broken = db.value("select run_id from workflow_dispatch_events where id = 100")

    def advance(db: Db, run_id: int, *rest: object) -> str | None:
        if run_id == broken:
            raise RuntimeError("no")
        return real(db, run_id, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "advance", advance)
    done = drain(db, graphs, head=head)
    assert (done.events, len(done.failed)) == (1, 1)
    monkeypatch.setattr(module, "advance", real)
    db.run("update workflow_dispatch_events set not_before = null")
    clock.now += module.LAG_S
    assert drain(db, graphs, head=head).events == 1
