"""What the pages ask costs no more with 200,000 jobs than with few: by index, and never more rows than a list may look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.queue.browse import SORTS, browse, counts
from engine.queue.detail import job_detail
from engine.queue.queues import queues_view
from engine.queue.timeline import KINDS, happened
from engine.store import Db, Store
from tests.queue.conftest import FUTURE, add_many, add_run
from tests.queue.test_claim_plan import buffers, explain, nodes

BIG = {"workflow_node_jobs", "ingest_jobs", "job_events", "control_events"}
ROWS_MOST = 12_000  # one node of one plan: what a filter may look at, counts that stop, and some
COUNTED_MOST = 20_000  # the same where each queue that waits is counted, along an index: fewer of each of many
BUFFERS_MOST = 60_000  # 8 KiB each, most of them the same few: a probe of an index for every row looked at

QUESTIONS: dict[str, Callable[[Db], Any]] = {
    **{
        f"jobs {status} {sort}": lambda db, status=status, sort=sort: browse(db, status, sort=sort)  # type: ignore[misc]
        for status, sorts in SORTS.items()
        for sort in sorts
    },
    **{f"jobs {status} of a project": lambda db, status=status: browse(db, status, project="p1") for status in SORTS},  # type: ignore[misc]
    **{f"jobs {status} by text": lambda db, status=status: browse(db, status, text="zz top") for status in SORTS},  # type: ignore[misc]
    **{
        f"jobs {status} of a box": lambda db, status=status: browse(db, status, box="b9")
        for status in ("queued", "all")
    },  # type: ignore[misc]
    "counts": counts,
    "counts of a project": lambda db: counts(db, "p1"),
    "queues": queues_view,
    **{f"events {kind}": lambda db, kind=kind: happened(db, kind) for kind in (*KINDS, "trip")},  # type: ignore[misc]
    **{f"events {kind} by text": lambda db, kind=kind: happened(db, kind, text="zz", project="p1") for kind in KINDS},  # type: ignore[misc]
}


def _fill(db: Db) -> None:
    """200,000 jobs of every status, queue and place, and as many events as have ended."""
    run = add_run(db)
    for project in ("", "p1", "p2"):
        for queue in ("default", "other"):
            add_many(db, 10_000, queue=queue, project=project)
        add_many(db, 10_000, queue="default", project=project, priority=5, only_boxes=["b1"])
    for model in range(4):
        values = {"run_id": run, "queue": "gpu", "required_model": f"m{model}", "project": "p1", "priority": model}
        add_many(db, 5_000, table="workflow_node_jobs", **values)
    add_many(db, 5_000, table="workflow_node_jobs", run_id=add_run(db), run_after=FUTURE)
    add_many(db, 60_000, status="completed", claimed_box="b1")
    add_many(db, 15_000, status="failed", error="ValueError: " + "x" * 500)
    add_many(db, 8_000, status="cancelled", table="workflow_node_jobs", run_id=add_run(db))
    add_many(db, 2_000, status="running")
    db.run(
        "insert into job_events (family, job_id, event_type, attempt, queue, project, elapsed_s) "
        "select 'ingest', id, status, 1, queue, project, 1 from ingest_jobs where status in ('completed', 'failed')"
    )


def _plans(db: Db, ask: Callable[[Db], Any]) -> list[tuple[str, dict[str, Any]]]:
    """The plan of every statement that answers a question, each as it was asked."""
    seen: list[tuple[str, dict[str, Any]]] = []
    plain = db.all

    def watched(sql: str, /, **params: Any) -> list[dict[str, Any]]:
        if " from " in sql:
            seen.append((sql, explain(db, sql, params)))
        return plain(sql, **params)

    db.all = watched  # type: ignore[method-assign]
    try:
        ask(db)
    finally:
        db.all = plain  # type: ignore[method-assign]
    return seen


def _assert_bounded(name: str, plans: list[tuple[str, dict[str, Any]]]) -> None:
    for sql, plan in plans:
        for node in nodes(plan):
            loops = node.get("Actual Loops", 1)
            touched = loops * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
            assert touched <= (COUNTED_MOST if name == "queues" else ROWS_MOST), (
                name,
                touched,
                node["Node Type"],
                node.get("Relation Name"),
                sql,
            )
            big = node.get("Relation Name") in BIG
            assert not (big and node["Node Type"] == "Seq Scan"), (name, sql)
    spent = sum(buffers(plan) for _, plan in plans)
    assert plans and spent <= BUFFERS_MOST, (name, spent)


def test_no_question_of_a_page_walks_200_000_jobs(pg_store: Store) -> None:
    """D25: counts stop, lists end, filters give up; with figures about the tables and without, prepared and not."""
    with pg_store.connect("pages", timeout_s=60) as db:
        _fill(db)
        node = db.value("select max(id) as id from workflow_node_jobs where status = 'queued' and run_after is null")
        job = db.value("select max(id) as id from ingest_jobs where status = 'queued'")
        details = {"a node": lambda db: job_detail(db, node), "an ingest job": lambda db: job_detail(db, job)}
        asked = QUESTIONS | details
        db.run("set plan_cache_mode = force_generic_plan")
        for name, ask in asked.items():
            _assert_bounded(name, _plans(db, ask))
        db.run("analyze")
        db.run("set plan_cache_mode = auto")
        for name in (
            "jobs queued oldest",
            "jobs running priority",
            "jobs failed newest",
            "jobs failed of a project",
            "jobs failed by text",
            "jobs cancelled of a project",
            "counts",
            "queues",
            *details,
        ):
            _assert_bounded(name, _plans(db, asked[name]))


def test_sqlite_works_no_harder_for_a_page_with_ten_times_the_jobs(sqlite_store: Store) -> None:
    """D25, by the instructions of its machine."""
    asked = (
        "jobs live oldest",
        "jobs queued newest",
        "jobs failed newest",
        "jobs all newest",
        "counts",
        "queues",
        "events telling",
    )
    with sqlite_store.connect("pages") as db:
        run = add_run(db)

        def grow(n: int) -> None:
            add_many(db, n)
            add_many(db, n, priority=5, project="p1")
            add_many(db, n // 10, status="failed")
            add_many(db, n, table="workflow_node_jobs", run_id=run, queue="gpu", required_model="m1")
            add_many(db, n, status="completed")

        grow(6_000)
        few = {name: _steps(db, QUESTIONS[name]) for name in asked}
        grow(24_000)
        many = {name: _steps(db, QUESTIONS[name]) for name in asked}
    for name in asked:
        assert many[name] <= 1.5 * few[name] + 500, (name, few[name], many[name])


def _steps(db: Db, ask: Callable[[Db], Any]) -> int:
    """How many times 100 instructions of SQLite's machine one answer takes."""
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    ask(db)
    db.raw.set_progress_handler(tick, 100)
    try:
        ask(db)
    finally:
        db.raw.set_progress_handler(None, 100)
    return count
