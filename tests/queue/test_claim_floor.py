"""An old snapshot is held somewhere: what was claimed stays in the index, and claims start behind it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from engine.queue import operate
from engine.queue.claim import ClaimedJob, ClaimRequest, Plan, claim
from engine.queue.claim_sql import claim_statement
from engine.queue.finish import Outcome, finish
from engine.queue.finish_sql import complete_statement, finish_statement
from engine.queue.floor import EXACT, EXACT_EVERY_S, FAR, Floor, floor_of, is_exact, look_at_the_head, owes_a_look
from engine.queue.workers import Worker
from engine.store import Db, Store
from tests.lane.fleet import start_lane
from tests.queue.conftest import add_ingest, add_many, add_node, add_run, ask, job, lane
from tests.queue.test_claim_plan import buffers, explain
from tests.support import Processes, eventually

DEAD = 4 * FAR
LAST: dict[str, Any] = {"id": 7, "attempt": 100, "name": "2026-01-01 00:00:00+00", "fencing_token": 40_000}


class Clock:
    """Monotonic seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def db(pg_store: Store) -> Iterator[Db]:
    """A lane's connection, while somebody else holds a snapshot from before anything was claimed."""
    with pg_store.connect("lane", claims=True, timeout_s=60) as db, psycopg.connect(pg_store.url) as held:
        held.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        held.execute("select count(*) from ingest_jobs")
        yield db


def end(db: Db, worker: Worker, jobs: list[ClaimedJob], next: ClaimRequest | None = None) -> list[ClaimedJob]:
    return finish(db, worker, [Outcome(each.id, each.fencing_token, "completed") for each in jobs], next).claimed


def pile_up(db: Db, worker: Worker, dead: int = DEAD, left: int = 40) -> Clock:
    """``dead`` entries at the head of the index, ``left`` rows behind them; the connection has seen it."""
    clock = Clock()
    floor_of(db, worker).clock = clock
    if worker.family.has_run:
        add_many(db, dead + left, table="workflow_node_jobs", run_id=add_run(db))
    else:
        add_many(db, dead + left)
    for _ in range(4):
        end(db, worker, claim(db, ask(worker, dead // 4)))
    end(db, worker, claim(db, ask(worker)))
    assert floor_of(db, worker).on
    return clock


def floored(db: Db, worker: Worker) -> bool:
    """Whether the next claim starts behind a row."""
    return not is_exact(Plan.for_request(db, ask(worker)).floor)


# --- the verdict ---


def test_a_floor_is_used_for_a_second_and_given_up_when_the_head_is_short_again() -> None:
    clock = Clock()
    floor = Floor(clock)
    assert floor.start() is None
    floor.needed()
    assert floor.start() is EXACT
    floor.learn(EXACT, LAST, full=True)
    behind = floor.start()
    assert behind is not None and (behind["floor_id"], behind["floor_band"], behind["far"]) == (7, 100, -1)
    floor.learn(behind, {**LAST, "id": 8}, full=True)
    again = floor.start()
    assert again is not None and again["floor_id"] == 8
    clock.now += EXACT_EVERY_S
    assert floor.start() is EXACT
    floor.learn(EXACT, None, full=True)
    assert floor.start() is None


def test_a_short_answer_from_behind_the_floor_owes_a_look_at_the_head_that_takes_a_tenth_of_the_time() -> None:
    clock = Clock()
    floor = Floor(clock)
    floor.needed()
    floor.learn(EXACT, LAST, full=False)
    behind = floor.start()
    assert not floor.owes and behind is not None and not is_exact(behind)
    floor.learn(behind, {**LAST, "id": None}, full=False)
    assert floor.owes and floor.start() == behind  # 40,000 entries were read just now: some 10 ms
    clock.now += 0.11
    assert floor.start() is EXACT
    floor.learn(EXACT, {**LAST, "fencing_token": 10**9}, full=False)
    floor.learn(behind, None, full=False)
    clock.now += EXACT_EVERY_S
    assert floor.start() is EXACT


def test_an_operator_makes_the_next_claim_an_exact_one() -> None:
    floor = Floor(Clock())
    floor.needed()
    floor.learn(EXACT, LAST, full=True)
    floor.forget()
    assert floor.start() is EXACT


# --- the statements ---


@pytest.mark.parametrize("queue", ["default", "cpu"])
def test_claims_stay_cheap_while_somebody_holds_an_old_snapshot(db: Db, queue: str) -> None:
    """Every claim read again all that had been claimed since."""
    worker = lane(queue)
    pile_up(db, worker)
    behind = floor_of(db, worker).start()
    assert behind is not None and not is_exact(behind)
    shape = (worker.family, False, False, False, 8, True, True)
    given = {
        "ids": [1], "tokens": [1], "outcomes": ["completed"], "outputs": [None], "errors": [None], "elapsed": [0.1],
        "exits": [None], "details": ["{}"], "finals": [False], "box": "b1", "lane": queue, "owner": worker.owner,
    }  # fmt: skip
    for sql in (
        claim_statement(*shape),
        complete_statement(shape[0], shape[1:]),
        finish_statement(shape[0], shape[1:]),
    ):
        params = ask(worker).params | given
        explain(db, sql, params | EXACT)
        exact, cheap = (buffers(explain(db, sql, params | floor)) for floor in (EXACT, behind))
        assert cheap < exact / 4 and cheap < 100, (exact, cheap)


def test_with_nothing_dead_at_the_head_there_is_no_floor(pg_store: Store) -> None:
    with pg_store.connect("lane", claims=True) as db:
        worker, clock = lane(), Clock()
        floor_of(db, worker).clock = clock
        add_many(db, 4000)
        jobs = claim(db, ask(worker, 100))

        def without_a_floor() -> bool:
            """Not at once: the server's own analyze of some table may hold a snapshot just now."""
            nonlocal jobs
            clock.now += EXACT_EVERY_S
            if not jobs:
                add_many(db, 100)
            jobs = end(db, worker, jobs, ask(worker, 100))
            return not floor_of(db, worker).on

        while jobs:
            without_a_floor()
        eventually(without_a_floor)


def test_the_floor_is_given_up_when_the_snapshot_is_gone(pg_store: Store) -> None:
    with pg_store.connect("lane", claims=True) as db:
        worker = lane()
        with psycopg.connect(pg_store.url) as held:
            held.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            held.execute("select 1 from ingest_jobs")
            clock = pile_up(db, worker)
            assert floored(db, worker)

        def given_up() -> bool:
            clock.now += EXACT_EVERY_S
            return len(claim(db, ask(worker))) == 1 and not floor_of(db, worker).on

        eventually(given_up)


# --- what lies before the floor ---


def test_what_comes_to_lie_before_the_floor_is_taken_within_a_second(db: Db) -> None:
    worker = lane()
    clock = pile_up(db, worker)
    (before,) = claim(db, ask(worker))
    assert floored(db, worker)
    late = add_ingest(db, created_at="2020-01-01T00:00:00+00:00")
    urgent = add_ingest(db, priority=1)
    flagged = add_ingest(db, is_priority=True)
    here = add_ingest(db, only_boxes=["b1"])
    (other,) = end(db, worker, [before], ask(worker))
    assert other.id not in (late, urgent, flagged, here)
    clock.now += EXACT_EVERY_S
    assert [each.id for each in end(db, worker, [other], ask(worker, 2))] == [flagged, urgent]
    assert claim(db, ask(worker))[0].id == late  # the last answer ended before it
    clock.now += EXACT_EVERY_S
    assert here in [each.id for each in claim(db, ask(worker, 100))]


def test_run_next_tells_the_lanes_to_look_at_the_head(db: Db, pg_store: Store) -> None:
    worker = lane()
    pile_up(db, worker)
    flagged = add_ingest(db, priority=200)
    with psycopg.connect(pg_store.url, autocommit=True) as ear:
        ear.execute("listen worker_control")
        operate.run_next(db, flagged)
        assert [note.payload for note in ear.notifies(timeout=30, stop_after=1)] == ["*:default"]
    assert floored(db, worker)
    look_at_the_head(db)
    assert [each.id for each in claim(db, ask(worker))] == [flagged]


def test_a_claim_that_falls_short_behind_the_floor_looks_before_it(db: Db) -> None:
    worker = lane()
    clock = pile_up(db, worker, left=3)
    assert len(claim(db, ask(worker, 2))) == 2
    late = [add_ingest(db, created_at="2020-01-01T00:00:00+00:00") for _ in range(2)]
    clock.now += 0.5
    assert [each.id for each in claim(db, ask(worker, 5))] == late
    assert claim(db, ask(worker, 5)) == [] and owes_a_look(db)  # too early for another look at the head
    clock.now += 0.5
    assert claim(db, ask(worker, 5)) == [] and not owes_a_look(db)
    new = add_ingest(db)
    assert [each.id for each in claim(db, ask(worker, 5))] == [new]


def test_nodes_of_a_run_that_is_over_are_not_taken_behind_a_floor(db: Db) -> None:
    worker = lane("cpu")
    clock = pile_up(db, worker, left=0)
    over = add_node(db, add_run(db, "failed"), "a")
    alive = add_node(db, add_run(db), "a")
    assert [each.id for each in claim(db, ask(worker))] == [alive]
    clock.now += EXACT_EVERY_S
    assert claim(db, ask(worker)) == [] and job(db, over)["status"] != "running"


def test_lanes_with_floors_take_every_job_once(db: Db, pg_store: Store) -> None:
    """Four connections claim and finish while rows arrive before and behind their floors."""
    add_many(db, 3 * FAR)
    taken: list[int] = []
    stop = threading.Event()
    used = threading.Event()

    def work() -> None:
        worker = lane()
        with pg_store.connect("lane", claims=True) as mine:
            jobs = claim(mine, ask(worker, 25))
            while jobs or not stop.is_set() or owes_a_look(mine):
                taken.extend(each.id for each in jobs)
                jobs = end(mine, worker, jobs, ask(worker, 25)) or claim(mine, ask(worker, 25))
                if floored(mine, worker):
                    used.set()

    lanes = [threading.Thread(target=work) for _ in range(4)]
    for each in lanes:
        each.start()
    for i in range(300):
        add_ingest(db, priority=100 - i % 3)
    add_many(db, 300)  # created an hour ago
    stop.set()
    for each in lanes:
        each.join()
    assert used.is_set() and len(taken) == len(set(taken)) == 3 * FAR + 600
    assert db.value("select count(*) from executions") == len(taken)


def test_a_lane_that_ends_when_there_is_nothing_left_leaves_nothing_behind(
    processes: Processes, db: Db, pg_store: Store
) -> None:
    add_many(db, 3 * FAR)
    db.run("update ingest_jobs set task_name = 'noop'")
    process = start_lane(processes, pg_store, "--once", "--slots", "2")
    for i in range(50):
        add_ingest(db, task_name="noop", priority=99 - i)
    eventually(lambda: process.poll() is not None, timeout_s=60)
    assert db.value("select count(*) from ingest_jobs where status <> 'completed'") == 0
    assert db.value("select count(*) from executions") == 3 * FAR + 50
