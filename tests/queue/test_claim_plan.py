"""The claim's plan, through the statement that lanes run: index only, and as cheap with 100,000 rows as with 100."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import tuple_row

from engine.queue.claim import ClaimRequest, Plan, claim
from engine.queue.claim_sql import claim_statement
from engine.queue.finish_sql import complete_statement, finish_statement
from engine.store import Db, Store
from engine.store.dialect import render_postgres
from tests.queue.conftest import FUTURE, PAST, add_many, add_run, ask, lane

JOBS = {"workflow_node_jobs", "ingest_jobs"}


def explain(db: Db, sql: str, given: dict[str, Any]) -> dict[str, Any]:
    """The generic plan of a prepared statement, executed and rolled back."""
    text, names = render_postgres(sql)
    marks = f"({', '.join(f'%({name})s' for name in names)})" if names else ""
    with db.raw.transaction(force_rollback=True), psycopg.ClientCursor(db.raw, row_factory=tuple_row) as cursor:
        cursor.execute(f"prepare probe as {text}")
        cursor.execute(f"explain (analyze, buffers, format json) execute probe{marks}", given)
        found = cursor.fetchone()
        cursor.execute("deallocate probe")
    assert found is not None
    plan = found[0] if isinstance(found[0], list) else json.loads(found[0])
    root: dict[str, Any] = plan[0]["Plan"]
    return root


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def buffers(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def claim_plan(
    db: Db, request: ClaimRequest, *, bands: bool = False, look: int = 8, plain: bool = False
) -> dict[str, Any]:
    plan = Plan(look, bands or request.host_priority < 0)
    newest = request.host_priority < 0
    sql = claim_statement(request.worker.family, request.by_model, newest, plan.bands, plan.look, plain)
    return explain(db, sql, request.params)


def assert_by_index(plan: dict[str, Any]) -> None:
    for node in nodes(plan):
        assert not (node["Node Type"] == "Seq Scan" and node["Relation Name"] in JOBS), node
        assert node.get("Rows Removed by Filter", 0) <= 300, node
    used = {node.get("Index Name") for node in nodes(plan)}
    assert used & {"workflow_node_jobs_claim", "ingest_jobs_claim"}, used


def _fill(db: Db, queue: str, n: int, run: int) -> None:
    if queue == "default":
        add_many(db, n)
    elif queue == "cpu":
        add_many(db, n, table="workflow_node_jobs", run_id=run)
    else:
        for model in range(10):
            add_many(
                db,
                n // 10,
                table="workflow_node_jobs",
                run_id=run,
                queue="gpu",
                required_model=f"m{model}",
                priority=model,
            )


FORMS: dict[str, tuple[int, bool, bool]] = {  # host priority, every band, the short form
    "oldest first": (0, False, False),
    "short form": (0, False, True),
    "newest first": (-1, True, False),
    "every band": (0, True, False),
}


@pytest.mark.parametrize("queue", ["default", "cpu", "gpu"])
def test_a_claim_reads_no_more_with_100_000_queued_than_with_100(pg_store: Store, queue: str) -> None:
    models = tuple(f"m{i}" for i in range(10))
    worker = lane(queue)
    forms = [form for form in FORMS if queue != "gpu" or form != "short form"]
    with pg_store.connect("lane", claims=True, timeout_s=60) as db:

        def look(form: str) -> dict[str, Any]:
            host_priority, bands, plain = FORMS[form]
            request = ask(worker, host_priority=host_priority, models=models, loaded_model="m7")
            return claim_plan(db, request, bands=bands, plain=plain)

        run = add_run(db)
        _fill(db, queue, 100, run)
        for form in forms:
            look(form)  # the first run also reads catalogs
        few = {form: look(form) for form in forms}
        _fill(db, queue, 99_900, run)
        many = {form: look(form) for form in forms}
    for form in forms:
        assert_by_index(few[form])
        assert_by_index(many[form])
        # A tree of 100,000 entries is one level higher; a scan or a sort of the queue would read thousands.
        before, after = buffers(few[form]), buffers(many[form])
        assert after <= 2.5 * before + 10 and after < 400, (form, before, after)


@pytest.mark.parametrize("wall", ["another box", "scheduled", "unknown models", "due elsewhere"])
def test_a_wall_of_50_000_rows_that_this_slot_may_not_take_costs_nothing(pg_store: Store, wall: str) -> None:
    queue = "gpu" if wall == "unknown models" else "default"
    request = ask(lane(queue), models=("m1",))
    with pg_store.connect("lane", claims=True, timeout_s=60) as db:
        run = add_run(db)

        def build(n: int) -> None:
            if wall == "another box":
                add_many(db, n, only_boxes=["b2"], priority=1)
            elif wall == "scheduled":
                add_many(db, n, run_after=FUTURE)
            elif wall == "due elsewhere":
                add_many(db, n, run_after=PAST, only_boxes=["b2"])
            else:
                values = {"run_id": run, "queue": "gpu", "required_model": "z", "priority": 1}
                add_many(db, n, table="workflow_node_jobs", **values)

        _fill(db, queue, 100, run)
        if queue == "gpu":
            add_many(db, 10, table="workflow_node_jobs", run_id=run, queue="gpu", required_model="m1")
        build(10)
        claim_plan(db, request)
        few = claim_plan(db, request)
        build(50_000)
        many = claim_plan(db, request)
        finds_the_wall = claim_plan(db, request, plain=queue != "gpu")
    assert_by_index(many)
    assert buffers(many) <= 2.5 * buffers(few) + 10, (buffers(few), buffers(many))
    assert buffers(finds_the_wall) <= 2.5 * buffers(few) + 10


def test_finish_and_claim_in_one_statement_go_by_index(pg_store: Store) -> None:
    with pg_store.connect("lane", claims=True, timeout_s=60) as db:
        worker = lane()
        add_many(db, 20_000)
        given = {
            "ids": [1, 2], "tokens": [1, 1], "outcomes": ["completed"] * 2, "outputs": ["{}"] * 2, "errors": [None] * 2,
            "elapsed": [0.1] * 2, "exits": [None] * 2, "details": ["{}"] * 2, "finals": [False] * 2, "box": "b1", "lane": "default",
            "owner": worker.owner,
        }  # fmt: skip
        plans = [
            explain(db, statement(worker.family, (False, False, False, 8, plain)), given | ask(worker).params)
            for statement in (finish_statement, complete_statement)
            for plain in (False, True)
        ]
    for plan in plans:
        assert_by_index(plan)
        assert buffers(plan) < 400


def test_ends_are_written_before_rows_are_locked_for_the_next_claim(pg_store: Store) -> None:
    """Two lanes whose claims lock rows before their ends do would wait for each other."""
    with pg_store.connect("lane", claims=True, timeout_s=60) as db:
        worker = lane()
        add_many(db, 1000)
        given = {"ids": [1], "tokens": [1], "outputs": [None], "elapsed": [0.1], "box": "b1", "owner": worker.owner}
        plans = [
            explain(db, complete_statement(worker.family, (False, False, False, 8, plain)), given | ask(worker).params)
            for plain in (False, True)
        ]
    for plan in plans:
        (update,) = (
            node for node in nodes(plan) if node["Node Type"] == "ModifyTable" and node["Operation"] == "Update"
        )
        (loop,) = update["Plans"]
        outer = loop["Plans"][0]
        assert loop["Node Type"] == "Nested Loop" and outer["Node Type"] == "Append", loop
        assert [next(n["CTE Name"] for n in nodes(part) if "CTE Name" in n) for part in outer["Plans"]] == [
            "done",
            "locked",
        ]


@pytest.mark.parametrize("wall", ["none", "another box", "scheduled", "due elsewhere"])
def test_sqlite_works_no_harder_for_a_claim_behind_50_000_rows(sqlite_store: Store, wall: str) -> None:
    values: dict[str, dict[str, Any]] = {
        "none": {},
        "another box": {"only_boxes": ["b2"], "priority": 1},
        "scheduled": {"run_after": "2100-01-01T00:00:00.000000+00:00"},
        "due elsewhere": {"run_after": "2020-01-01T00:00:00.000000+00:00", "only_boxes": ["b2"]},
    }
    with sqlite_store.connect("lane") as db:
        add_many(db, 100)
        add_many(db, 10, **values[wall])
        few = _steps(db)
        add_many(db, 50_000, **values[wall])
        many = _steps(db)
    assert many <= 2 * few + 200, (few, many)


@pytest.mark.parametrize(("queue", "host_priority"), [("default", -1), ("cpu", 0), ("gpu", 0), ("gpu", -1)])
def test_sqlite_works_no_harder_in_any_order(sqlite_store: Store, queue: str, host_priority: int) -> None:
    request = ask(lane(queue), host_priority=host_priority, models=("m1", "m2"), loaded_model="m2")
    with sqlite_store.connect("lane") as db, sqlite_store.connect("again") as again:
        run = add_run(db)
        _fill(db, queue, 200, run)
        few = _steps(db, request)
        _fill(db, queue, 50_000, run)
        many = _steps(again, request)  # another connection: its first claim by model is an exact one too
    assert many <= 2 * few + 200, (few, many)


def _steps(db: Db, request: ClaimRequest | None = None) -> int:
    """How many times 10 instructions of SQLite's machine one claim takes."""
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    db.raw.set_progress_handler(tick, 10)
    try:
        assert len(claim(db, request or ask(lane()))) == 1
    finally:
        db.raw.set_progress_handler(None, 10)
    return count
