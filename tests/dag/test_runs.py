"""Runs as rows: submitting, moving on, ending; on both stores."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from engine import config, registry
from engine.dag import runs
from engine.dag.drain import MAX_ATTEMPTS, drain
from engine.dag.outputs import Outputs
from engine.dag.runs import GraphCache, advance, submit_run
from engine.errors import BadInput, GraphError, NotFound, PayloadError, StoreUnavailable
from engine.queue.ends import end_run
from engine.store import Db, Store, adopt
from tests.dag.steps import DIAMOND, Hands, chain, drain_all, node, run_row, statuses
from tests.support import eventually


def test_a_submitted_graph_starts_without_an_orchestrator(db: Db) -> None:
    run_id = submit_run(db, DIAMOND, {"k": 1}, priority=7, project="p")
    row = run_row(db, run_id)
    assert (row["status"], row["workflow_name"], row["context"], row["graph"]) == (
        "queued",
        "diamond",
        {"k": 1},
        DIAMOND,
    )
    job = db.one("select * from workflow_node_jobs")
    assert job is not None
    assert (job["node_id"], job["status"], job["priority"], job["project"]) == ("a", "queued", 7, "p")


def test_a_diamond_runs_to_its_end_and_merges_once(db: Db) -> None:
    hands = Hands(db)
    run_id = submit_run(db, DIAMOND)
    waves = []
    while wave := hands.run_all({"from": "hands"}):
        waves.append(wave)
        drain_all(db)
    assert waves == [{"a"}, {"b", "c"}, {"d"}]
    row = run_row(db, run_id)
    assert row["status"] == "completed"
    assert row["started_at"] is not None and row["finished_at"] is not None
    assert db.value("select count(*) from workflow_dispatch_events where processed_at is null") == 0


def test_a_run_is_running_once_its_first_node_has_begun(db: Db) -> None:
    hands = Hands(db)
    run_id = submit_run(db, DIAMOND)
    assert runs.mark_all_started(db) == 0
    hands.take()
    assert runs.mark_all_started(db) == 1
    row = run_row(db, run_id)
    assert (row["status"], row["started_at"] is not None) == ("running", True)


def test_inputs_flow_from_outputs_and_context(db: Db) -> None:
    hands = Hands(db)
    submit_run(
        db,
        chain(
            node("a"),
            node(
                "b",
                depends_on=["a"],
                inputs={"rows": {"$from": "a.rows"}, "who": {"$context": "who"}, "n": [1, {"x": None}]},
            ),
        ),
        {"who": "me"},
    )
    hands.run_all({"rows": [1, 2]})
    drain_all(db)
    assert db.value("select inputs from workflow_node_jobs where node_id = 'b'") == {
        "rows": [1, 2],
        "who": "me",
        "n": [1, {"x": None}],
    }


def test_every_field_of_a_node_reaches_its_row(db: Db) -> None:
    submit_run(
        db,
        chain(
            node("g", gpu=True, model="m", max_attempts=3, budget_s=9.5, avoid_boxes=["z", "y"], only_boxes=["b"]),
            node("c"),
        ),
    )
    row = db.one("select * from workflow_node_jobs where node_id = 'g'")
    assert row is not None
    assert (row["queue"], row["required_model"], row["max_attempts"], row["budget_s"]) == ("gpu", "m", 3, 9.5)
    assert (row["avoid_boxes"], row["only_boxes"]) == (["y", "z"], ["b"])
    assert db.value("select required_model from workflow_node_jobs where node_id = 'c'") is None


@pytest.mark.parametrize(
    "graph", [chain(), chain(node("a", skip_if={"$eq": [1, 1]}), node("b", depends_on=["a"], skip_if={"$ne": [1, 2]}))]
)
def test_an_empty_or_all_skipped_graph_completes_at_submit(db: Db, graph: dict[str, Any]) -> None:
    row = run_row(db, submit_run(db, graph))
    assert row["status"] == "completed"
    assert row["finished_at"] is not None and row["started_at"] is not None
    assert set(statuses(db, row["id"]).values()) <= {"skipped"}


def test_skips_cascade_and_the_rest_runs(db: Db) -> None:
    hands = Hands(db)
    skip = {"skip_if": {"$eq": [{"$context": "dry"}, True]}}
    run_id = submit_run(
        db, chain(node("a", **skip), node("b", depends_on=["a"], **skip), node("c", depends_on=["b"])), {"dry": True}
    )
    assert statuses(db, run_id) == {"a": "skipped", "b": "skipped", "c": "queued"}
    hands.run_all()
    drain_all(db)
    assert run_row(db, run_id)["status"] == "completed"


def test_a_node_whose_input_cannot_be_resolved_fails_with_the_reason(db: Db) -> None:
    """Q34: it fails, and with it its run; it is not tried for ever, and other runs go on."""
    hands = Hands(db)
    bad = submit_run(db, chain(node("a"), node("b", depends_on=["a"], inputs={"x": {"$from": "a.rows"}}), node("c")))
    good = submit_run(db, DIAMOND)
    hands.end(*(job for job in hands.take() if job.node_id == "a"), output={})
    drain_all(db)
    assert statuses(db, bad) == {"a": "completed", "b": "failed", "c": "running"}
    reason = """{"$from": "a.rows"} cannot be resolved: the output of node 'a' has no 'rows'"""
    assert db.value("select error from workflow_node_jobs where node_id = 'b' and run_id = {r}", r=bad) == reason
    row = run_row(db, bad)
    assert (row["status"], row["error"]) == ("failed", f"node 'b' failed: {reason}")
    event = db.one("select event_type, node_id, detail from job_events where event_type = 'failed'")
    assert event == {"event_type": "failed", "node_id": "b", "detail": {"error": reason}}
    assert statuses(db, good) == {"a": "completed", "b": "queued", "c": "queued"}
    assert drain(db, GraphCache()).events == 0


def test_a_context_key_that_was_not_submitted_fails_the_run_at_once(db: Db) -> None:
    """Q34, for a first node."""
    row = run_row(db, submit_run(db, chain(node("a", inputs={"x": {"$context": "key"}}), node("b"))))
    assert row["status"] == "failed" and "the context has no 'key'" in row["error"]
    assert row["finished_at"] is not None
    assert statuses(db, row["id"]) == {"a": "failed"}


def test_submit_joins_the_callers_transaction(store: Store, db: Db) -> None:
    if store.kind == "postgresql":
        raw: Any = psycopg.connect(store.url)
    else:
        assert store.path is not None
        raw = sqlite3.connect(store.path, timeout=5)
    submit_run(adopt(raw), DIAMOND)
    raw.rollback()
    assert db.value("select count(*) from workflow_runs") == 0
    run_id = submit_run(adopt(raw), DIAMOND)
    raw.commit()
    raw.close()
    assert statuses(db, run_id) == {"a": "queued"}


def test_what_is_wrong_is_refused_before_anything_is_written(db: Db) -> None:
    for error, arguments in (
        (GraphError, {"graph_or_name": chain(node("a", depends_on=["a"]))}),
        (GraphError, {"graph_or_name": '{"nodes": ['}),
        (NotFound, {"graph_or_name": "no-such-workflow"}),
        (BadInput, {"graph_or_name": DIAMOND, "context": [1]}),
        (BadInput, {"graph_or_name": DIAMOND, "priority": "high"}),
        (BadInput, {"graph_or_name": DIAMOND, "priority": 10**9}),
        (PayloadError, {"graph_or_name": DIAMOND, "context": {"x": "y" * (1 << 20)}}),
        (PayloadError, {"graph_or_name": DIAMOND, "context": {"x": float("nan")}}),
        (PayloadError, {"graph_or_name": chain(node("a", inputs={"x": object()}))}),
    ):
        with pytest.raises(error):
            submit_run(db, **arguments)  # type: ignore[arg-type]
    assert db.value("select count(*) from workflow_runs") == 0


def test_workflows_by_name_as_text_and_from_the_host(db: Db) -> None:
    registry.register_workflow("mine", DIAMOND)
    config.configure(workflow_provider=lambda name: DIAMOND if name == "hosted" else None)
    for given in ("mine", "hosted", '{"name": "diamond", "nodes": [{"id": "a", "node": "work"}]}'):
        assert run_row(db, submit_run(db, given))["workflow_name"] == "diamond"
    registry.register_workflow("nameless", {"nodes": []})
    assert run_row(db, submit_run(db, "nameless"))["workflow_name"] == "nameless"


def test_a_failed_node_fails_the_run_and_stops_the_rest(db: Db) -> None:
    hands = Hands(db)
    run_id = submit_run(db, chain(node("a"), node("b"), node("c"), node("d", depends_on=["a", "b", "c"])))
    bad, other = hands.take(2)
    hands.end(bad, error="boom")
    drain_all(db)
    row = run_row(db, run_id)
    assert (row["status"], row["error"], row["finished_at"]) == ("failed", f"node {bad.node_id!r} failed: boom", None)
    assert sorted(statuses(db, run_id).values()) == ["cancelled", "failed", "running"]
    assert db.value("select cancel_requested from workflow_node_jobs where status = 'running'")
    hands.end(other)
    drain_all(db)
    row = run_row(db, run_id)
    assert (row["status"], row["finished_at"] is not None) == ("failed", True)


def test_a_cancelled_run_with_a_running_node_becomes_terminal(db: Db) -> None:
    """Q27: terminal means no open node; finished_at comes with the last one, by sweep as well as by event."""
    hands = Hands(db)
    run_id = submit_run(db, DIAMOND)
    (job,) = hands.take()
    assert end_run(db, run_id, "cancelled", "not wanted any more")
    assert runs.close_runs(db) == 0
    assert run_row(db, run_id)["finished_at"] is None
    hands.end(job)
    runs.close_runs(db)
    row = run_row(db, run_id)
    assert (row["status"], row["finished_at"] is not None) == ("cancelled", True)
    drain_all(db)
    assert statuses(db, run_id) == {"a": "cancelled"}


def test_a_run_cancelled_while_it_expands_stays_cancelled(store: Store) -> None:
    """Q31: transitions are guarded; no node of a run that is over is ever queued."""
    with store.connect("one") as one, store.connect("two") as two:
        for _ in range(5):
            run_id = submit_run(one, chain(node("a"), *(node(f"n{i}", depends_on=["a"]) for i in range(50))))
            Hands(one).run_all()
            begin = threading.Barrier(2)

            def cancel(run_id: int = run_id, begin: threading.Barrier = begin) -> None:
                begin.wait(10)
                end_run(two, run_id, "cancelled", "stop")

            thread = threading.Thread(target=cancel)
            thread.start()
            begin.wait(10)
            drain_all(one)
            thread.join(20)
            drain_all(one)
            runs.mark_all_started(one)
            assert run_row(one, run_id)["status"] == "cancelled"
            assert set(statuses(one, run_id).values()) <= {"completed", "cancelled"}
            assert Hands(one).take() == []


def test_every_event_is_dispatched_once_however_many_drain(store: Store) -> None:
    with store.connect("test") as db:
        hands = Hands(db)
        middle = [f"n{i}" for i in range(8)]
        ids = [
            submit_run(db, chain(node("a"), *(node(m, depends_on=["a"]) for m in middle), node("z", depends_on=middle)))
            for _ in range(10)
        ]
        stop = threading.Event()
        failures: list[BaseException] = []

        def drainer() -> None:
            try:
                with store.connect("drainer") as mine:
                    graphs = GraphCache()
                    while not stop.is_set():
                        failures.extend(AssertionError(text) for text in drain(mine, graphs, limit=7).failed)
                        stop.wait(0.002)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=drainer) for _ in range(4)]
        for thread in threads:
            thread.start()
        ran: list[tuple[int | None, str | None]] = []

        def all_done() -> bool:
            jobs = hands.take(5)
            ran.extend((job.run_id, job.node_id) for job in jobs)
            hands.end(*jobs)
            return bool(db.value("select count(*) from workflow_runs where status = 'completed'") == len(ids))

        try:
            eventually(all_done)
        finally:
            stop.set()
            for thread in threads:
                thread.join(20)
        assert not failures
        assert len(ran) == len(set(ran)) == 10 * 10
        assert db.value("select count(*) from workflow_runs where status = 'completed'") == 10
        assert db.value("select count(*) from workflow_dispatch_events where processed_at is null") == 0


def test_a_thousand_nodes_expand_in_a_bounded_number_of_statements(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mechanism behind "a 1,000-node graph expands in under 1 s": a dispatch costs the same few statements."""
    hands = Hands(db)
    middle = [f"n{i}" for i in range(998)]
    run_id = submit_run(
        db,
        chain(
            node("root"),
            *(node(m, depends_on=["root"], inputs={"x": {"$from": "root.x"}, "c": {"$context": "c"}}) for m in middle),
            node("merge", depends_on=middle, inputs={"all": [{"$from": m} for m in middle]}),
        ),
        {"c": 1},
    )
    hands.run_all({"x": 1})
    count = 0
    for name in ("all", "run", "run_many", "copy"):
        original = getattr(type(db), name)

        def counted(self: Db, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(type(db), name, counted)
    drain_all(db)
    assert count <= 20
    assert len(statuses(db, run_id)) == 999
    while len(hands.run_all({"y": 2})) > 1:
        pass
    count = 0
    drain_all(db)
    assert count <= 20
    assert statuses(db, run_id)["merge"] == "queued"
    assert len(db.value("select inputs from workflow_node_jobs where node_id = 'merge'")["all"]) == 998


def test_outputs_are_read_only_where_they_are_referred_to(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    hands = Hands(db)
    submit_run(db, chain(node("a"), node("b"), node("c", depends_on=["a", "b"], inputs={"x": {"$from": "b"}})))
    hands.run_all({"x": 1})
    asked: list[Any] = []
    monkeypatch.setattr(runs, "Outputs", lambda db, run_id, ids: asked.append(ids) or Outputs(db, run_id, ids))
    drain_all(db)
    assert asked == [("b",)]


def test_a_merge_that_is_too_large_fails_before_everything_was_read(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 outputs of 500 KB: three are too many already, and a few MiB are all that the database is asked for."""
    read: list[str] = []
    original = type(db).all

    def all(self: Db, sql: str, /, **params: Any) -> list[dict[str, Any]]:
        rows = original(self, sql, **params)
        read.extend(row["node_id"] for row in rows if row.get("output") is not None)
        return rows

    monkeypatch.setattr(type(db), "all", all)
    hands = Hands(db)
    parts = [f"p{i:02}" for i in range(40)]
    for reference in ("", ".text"):
        read.clear()
        graph = chain(
            *map(node, parts),
            node("merge", depends_on=parts, inputs={"all": [{"$from": f"{part}{reference}"} for part in parts]}),
        )
        run_id = submit_run(db, graph)
        hands.run_all({"text": "x" * 500_000})
        drain_all(db)
        row = run_row(db, run_id)
        assert row["status"] == "failed"
        assert row["error"] == (
            "node 'merge' failed: inputs of node 'merge' are more than the 1,048,576 bytes of JSON allowed"
        )
        assert 0 < len(read) <= 10


def test_parts_of_large_outputs_are_merged_a_few_mib_at_a_time(db: Db) -> None:
    hands = Hands(db)
    parts = [f"p{i:02}" for i in range(40)]
    submit_run(
        db,
        chain(
            *map(node, parts),
            node("merge", depends_on=parts, inputs={"all": [{"$from": f"{part}.n"} for part in reversed(parts)]}),
        ),
    )
    for number, job in enumerate(sorted(hands.take(), key=lambda job: str(job.node_id))):
        hands.end(job, output={"n": number, "text": "x" * 500_000})
    drain_all(db)
    assert db.value("select inputs from workflow_node_jobs where node_id = 'merge'") == {"all": list(range(40))[::-1]}


def test_a_large_output_for_many_nodes_is_written_in_portions(db: Db) -> None:
    hands = Hands(db)
    middle = [f"n{i}" for i in range(30)]
    run_id = submit_run(
        db, chain(node("a"), *(node(m, depends_on=["a"], inputs={"x": {"$from": "a"}}) for m in middle))
    )
    hands.run_all({"text": "x" * 900_000})
    drain_all(db)
    assert list(statuses(db, run_id).values()).count("queued") == 30


def test_a_context_that_is_referred_to_again_and_again_is_refused_early(db: Db) -> None:
    """1,000 times 1 MB would be a gigabyte of inputs."""
    graph = chain(node("a", inputs={"all": [{"$context": "text"}] * 1000}))
    row = run_row(db, submit_run(db, graph, {"text": "x" * 1_000_000}))
    assert row["status"] == "failed" and "more than the 1,048,576 bytes" in row["error"]


def test_a_run_inserted_by_plain_sql_is_expanded(db: Db) -> None:
    db.run(
        "insert into workflow_runs (graph) values ({graph}{json})",
        graph='{"name": "sql", "nodes": [{"id": "a", "node": "work"}]}',
    )
    assert runs.look_again(db, unexpanded=True) == 1
    assert runs.look_again(db, unexpanded=True) == 0  # one event is enough
    drain_all(db)
    run_id = db.value("select id from workflow_runs")
    assert statuses(db, run_id) == {"a": "queued"}
    assert runs.look_again(db, unexpanded=True) == 0
    Hands(db).run_all()
    drain_all(db)
    assert run_row(db, run_id)["status"] == "completed"


def test_a_cancelled_run_whose_node_still_runs_never_becomes_running(db: Db) -> None:
    """Q31: whatever comes late (the first start, the last end, an event, a sweep) finds the run over and leaves it so."""
    hands = Hands(db)
    run_id = submit_run(db, DIAMOND)
    (job,) = hands.take()
    assert end_run(db, run_id, "cancelled", "stop")
    late: tuple[Callable[[], object], ...] = (
        lambda: runs.mark_all_started(db),
        lambda: runs.mark_started(db, run_id),
        lambda: hands.end(job, status="completed"),
        lambda: advance(db, run_id, GraphCache()),
        lambda: runs._complete(db, run_id),
        lambda: runs.look_again(db, unexpanded=False),
        lambda: drain_all(db),
        lambda: end_run(db, run_id, "failed", "too late"),
    )
    for act in late:
        act()
        row = run_row(db, run_id)
        assert (row["status"], row["error"], row["started_at"]) == ("cancelled", "stop", None)
        assert set(statuses(db, run_id)) == {"a"}


def test_an_expansion_that_finds_its_run_over_queues_nothing(db: Db) -> None:
    """Q31: the run was cancelled between the end of its node and the dispatch."""
    hands = Hands(db)
    run_id = submit_run(db, DIAMOND)
    hands.run_all()
    assert end_run(db, run_id, "cancelled", "stop")
    assert advance(db, run_id, GraphCache()) == "over"
    assert drain_all(db).events == 1
    assert statuses(db, run_id) == {"a": "completed"}
    assert run_row(db, run_id)["status"] == "cancelled"


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        ('{"nodes": [{"id": "a"}]}', "node 'a': node must be the name"),
        ('{"nodes": [{"id": "a", "node": "x", "depends_on": ["a"]}]}', "depends on itself"),
        ("[]", "wants"),
        ('{"nodes": [{"id": "a", "node": "x", "input": {"prompt": 1}}]}', "node 'a': input must be"),
    ],
)
def test_a_bad_graph_written_by_plain_sql_fails_its_run_with_the_reason(db: Db, graph: str, text: str) -> None:
    db.run("insert into workflow_runs (graph) values ({graph}{json})", graph=graph)
    runs.look_again(db, unexpanded=True)
    drain_all(db)
    row = run_row(db, db.value("select id from workflow_runs"))
    assert row["status"] == "failed"
    assert text in row["error"]
    assert row["finished_at"] is not None


def test_a_run_whose_last_event_is_missing_is_looked_at_again(db: Db) -> None:
    """Q10: level-triggered: what a run needs follows from its rows, not from an event that somebody must keep."""
    hands = Hands(db)
    run_id = submit_run(db, DIAMOND)
    hands.run_all()
    db.run("delete from workflow_dispatch_events")
    assert runs.look_again(db, unexpanded=True) == 0
    assert runs.look_again(db, unexpanded=False) == 1
    drain_all(db)
    assert statuses(db, run_id) == {"a": "completed", "b": "queued", "c": "queued"}
    assert runs.look_again(db, unexpanded=False) == 0


def test_a_node_cancelled_on_its_own_ends_its_run(db: Db) -> None:
    run_id = submit_run(db, DIAMOND)
    db.run("update workflow_node_jobs set status = 'cancelled', finished_at = {now}")
    runs.look_again(db, unexpanded=False)
    drain_all(db)
    row = run_row(db, run_id)
    assert (row["status"], row["error"]) == ("cancelled", "node 'a' was cancelled")


def test_a_run_ended_by_plain_sql_leaves_nothing_behind(db: Db) -> None:
    hands = Hands(db)
    run_id = submit_run(db, chain(node("a"), node("b")))
    hands.take(1)
    db.run("update workflow_runs set status = 'cancelled'")
    assert runs.end_leftovers(db) == 2
    assert runs.end_leftovers(db) == 0
    assert sorted(statuses(db, run_id).values()) == ["cancelled", "running"]
    assert db.value("select cancel_requested from workflow_node_jobs where status = 'running'")
    assert db.value("select count(*) from job_events where event_type = 'cancelled'") == 1


def test_a_dispatch_that_keeps_failing_is_poison_and_fails_the_run(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q21: that run alone fails, with the reason, after ten attempts; the others go on meanwhile."""
    hands = Hands(db)
    bad = submit_run(db, chain(node("a"), node("b", depends_on=["a"]), name="bad"))
    good = submit_run(db, chain(node("x"), node("y", depends_on=["x"])))
    hands.run_all()
    original = runs.insert_node_jobs

    def refuse(db: Db, rows: Any) -> Any:
        if any(row["run_id"] == bad for row in rows):
            raise RuntimeError("no\nroom")
        return original(db, rows)

    monkeypatch.setattr(runs, "insert_node_jobs", refuse)
    for attempt in range(MAX_ATTEMPTS):
        assert run_row(db, bad)["status"] in ("queued", "running")
        done = drain(db, GraphCache())
        assert len(done.failed) == 1
        assert db.value("select attempts from workflow_dispatch_events where run_id = {id}", id=bad) == attempt + 1
        assert drain(db, GraphCache()).failed == []  # it waits
        db.run("update workflow_dispatch_events set not_before = null")
    row = run_row(db, bad)
    assert (row["status"], row["error"]) == ("failed", "dispatch failed 10 times: RuntimeError: no room")
    assert statuses(db, good) == {"x": "completed", "y": "queued"}
    assert db.value("select count(*) from workflow_dispatch_events where processed_at is null") == 0


def test_a_run_that_somebody_holds_is_left_for_the_next_pass(pg_store: Store) -> None:
    with pg_store.connect("one") as one, pg_store.connect("two") as two:
        run_id = submit_run(one, DIAMOND)
        Hands(one).run_all()
        with two.transaction():
            two.run("select 1 from workflow_runs where id = {id} for update", id=run_id)
            assert drain(one, GraphCache()).busy == 1
        drain_all(one)
        assert len(statuses(one, run_id)) == 3


def test_events_of_a_run_that_is_gone_are_closed(db: Db) -> None:
    db.run("insert into workflow_dispatch_events (run_id, node_id, kind) values (4711, 'a', 'completed')")
    assert drain_all(db).events == 1
    assert advance(db, 4711, GraphCache()) == "gone"


def test_the_graph_cache_is_bounded(db: Db) -> None:
    cache = GraphCache(max_nodes=5)
    ids = [submit_run(db, DIAMOND) for _ in range(3)]
    for run_id in ids:
        cache.get(db, run_id)
    assert list(cache._graphs) == ids[-1:]
    cache.forget(ids[-1])
    assert cache._nodes == 0


def test_a_dispatch_that_dies_half_way_leaves_nothing_half_done(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    hands = Hands(db)
    run_id = submit_run(db, DIAMOND)
    hands.run_all()
    with monkeypatch.context() as patch:
        patch.setattr(runs, "_mark_processed", lambda db, ids: 1 / 0)
        assert len(drain(db, GraphCache()).failed) == 1
    assert statuses(db, run_id) == {"a": "completed"}
    db.run("update workflow_dispatch_events set not_before = null")
    drain_all(db)
    assert statuses(db, run_id) == {"a": "completed", "b": "queued", "c": "queued"}


def test_a_failure_that_cannot_be_counted_stays_open_and_stops_nobody(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    hands = Hands(db)
    bad, good = submit_run(db, DIAMOND), submit_run(db, DIAMOND)
    hands.run_all()
    original = runs.wanted
    with monkeypatch.context() as patch:
        patch.setattr("engine.dag.drain.outbox.mark_failed", lambda db, event_id, error: 1 / 0)
        answers = iter([True])
        patch.setattr(runs, "wanted", lambda g, s: 1 / 0 if next(answers, False) else original(g, s))
        (text,) = drain(db, GraphCache()).failed
    assert text.count("ZeroDivisionError") == 2
    assert (len(statuses(db, bad)), len(statuses(db, good))) == (1, 3)
    drain_all(db)
    assert len(statuses(db, bad)) == 3


def test_a_lost_connection_ends_the_pass(pg_store: Store) -> None:
    with pg_store.connect("one") as one, pg_store.connect("two") as two:
        submit_run(one, DIAMOND)
        Hands(one).run_all()
        two.value("select pg_terminate_backend({pid})", pid=one.raw.info.backend_pid)
        with pytest.raises(StoreUnavailable):
            for _ in range(100):
                drain(one, GraphCache())
        drain_all(two)
        assert two.value("select count(*) from workflow_node_jobs") == 3
