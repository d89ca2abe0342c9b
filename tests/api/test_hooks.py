"""The five hooks of a host: each is called where it should be, and what it does wrong stays one clear line."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import engine
from engine import registry
from engine.dag.runs import submit_run
from engine.errors import HookError, NotFound, UnknownTask
from engine.queue import events
from engine.queue.ends import end_run
from engine.queue.enqueue import enqueue, get_job
from engine.queue.sink import Sink
from engine.store import Db, Store
from tests.support import Processes, command, eventually

GRAPH = {"name": "g", "nodes": [{"id": "a", "node": "hosted:a"}]}


def broken(*_: Any) -> Any:
    raise ValueError("the host\nis broken")


# --- in the process of whoever calls ---


def test_a_workflow_provider_gives_the_graphs_that_are_not_registered(db: Db) -> None:
    with pytest.raises(NotFound):
        submit_run(db, "nightly")  # the default: there are none
    engine.configure(workflow_provider=lambda name: GRAPH if name == "nightly" else None)
    submit_run(db, "nightly")
    with pytest.raises(NotFound):
        submit_run(db, "weekly")
    engine.configure(workflow_provider=broken)
    with pytest.raises(HookError, match="hook workflow_provider failed: ValueError: the host is broken"):
        submit_run(db, "nightly")
    assert db.value("select count(*) from workflow_runs") == 1


def test_a_node_resolver_finds_what_is_not_registered() -> None:
    with pytest.raises(UnknownTask):
        registry.resolve_node("hosted:a")
    engine.configure(resolve_node=lambda name: dict if name == "hosted:a" else None)
    assert registry.resolve_node("hosted:a") is dict
    with pytest.raises(UnknownTask):
        registry.resolve_node("other")
    registry.register_node("mine", list)
    engine.configure(resolve_node=broken)
    assert registry.resolve_node("mine") is list  # what is registered needs no hook
    with pytest.raises(HookError, match="hook resolve_node failed: ValueError: the host is broken"):
        registry.resolve_node("other")
    engine.configure(resolve_node=lambda name: 7)
    with pytest.raises(HookError, match="hook resolve_node gave a int for node 'other'"):
        registry.resolve_node("other")


def test_a_model_registrar_runs_when_an_app_is_loaded() -> None:
    registry.load_app()
    engine.configure(register_models=lambda: registry.register_model("m", dict))
    registry.load_app()
    assert list(registry.models) == ["m"]
    engine.configure(register_models=broken)
    with pytest.raises(HookError, match="hook register_models failed: ValueError: the host is broken"):
        registry.load_app()


# --- in a lane ---


class Hooked:
    """Lanes with the app of tests.apps.hooked, and what its hooks wrote down."""

    def __init__(self, store: Store, db: Db, processes: Processes, tmp_path: Path) -> None:
        self.store, self.db, self.processes, self.notes = store, db, processes, tmp_path / "notes"
        registry.register_ingest_task("greet", lambda **_: None)
        registry.register_ingest_task("greet_later", lambda **_: None)

    def greet(self, task: str = "greet", **args: Any) -> str:
        return enqueue(self.db, task_name=task, queue="default", args=args).id

    def drain(self, mode: str = "", queue: str = "default", told: int = 0) -> str:
        """Run one lane until its queue is empty and the sink was told of so many events; what the lane logged."""
        lane = self.processes.spawn(
            [
                *command("queue-claim-worker", "--db", self.store.url, "--queue", queue, "--box", "here"),
                *("--app", "tests.apps.hooked"),
            ],
            env={"HOOKED_NOTES": str(self.notes), "HOOKED_MODE": mode},
        )
        table = "ingest_jobs" if queue == "default" else "workflow_node_jobs"
        left = f"select count(*) from {table} where status in ('queued', 'running')"
        eventually(lambda: self.db.value(left) == 0 and len(self.noted("event")) >= told, timeout_s=60)
        lane.terminate()
        assert lane.wait(60) == 0, self.processes.log(lane)
        return self.processes.log(lane)

    def noted(self, hook: str) -> list[dict[str, Any]]:
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return [note for line in lines if (note := json.loads(line))["hook"] == hook]

    def error(self, job: str) -> str:
        return str(get_job(self.db, job).error)


@pytest.fixture
def hooked(store: Store, db: Db, processes: Processes, tmp_path: Path) -> Hooked:
    return Hooked(store, db, processes, tmp_path)


def test_a_lane_calls_the_resolver_the_surroundings_and_the_sink(hooked: Hooked) -> None:
    good, bad = hooked.greet(name="ana"), hooked.greet(fail=True)
    later = hooked.greet("greet_later")
    hooked.drain(told=3)
    assert get_job(hooked.db, good).result == {"hello": "ana"}
    assert "RuntimeError: user error" in hooked.error(bad)  # not the hook's fault, and not called so
    assert get_job(hooked.db, later).result == {"hello": "later"}
    assert [note["job"] for note in hooked.noted("enter")] == ["greet", "greet", "greet_later"]
    assert [note["job"] for note in hooked.noted("leave")] == ["greet", "greet_later"]
    order = [json.loads(line)["hook"] for line in hooked.notes.read_text().splitlines() if '"event"' not in line]
    assert order[-3:] == ["enter", "body", "leave"]  # also where the body is a coroutine
    told = hooked.noted("event")
    assert [(note["job"], note["type"]) for note in told] == [
        (good, "completed"),
        (bad, "failed"),
        (later, "completed"),
    ]
    assert len({note["id"] for note in told}) == 3
    ran = {note["pid"] for note in hooked.noted("enter")}
    assert not ran & {note["pid"] for note in told}  # neither in the lane nor where jobs run
    run_id = submit_run(hooked.db, GRAPH)
    hooked.drain(queue="cpu")
    output = hooked.db.value("select output from workflow_node_jobs where run_id = {id}", id=run_id)
    assert output == {"resolved": "hosted:a"}


def test_surroundings_that_fail_fail_the_job_with_one_line(
    pg_store: Store, processes: Processes, tmp_path: Path
) -> None:
    with pg_store.connect("test") as db:
        hooked = Hooked(pg_store, db, processes, tmp_path)
        first = hooked.greet()
        hooked.drain("no way in")
        second, third = hooked.greet(), hooked.greet(fail=True)
        hooked.drain("no way out")
        assert hooked.error(first) == "HookError: hook invoke_context failed before the job: ValueError: no session"
        assert hooked.error(second) == "HookError: hook invoke_context failed after the job: ValueError: no commit"
        assert hooked.error(third).startswith("RuntimeError: user error")


def test_a_sink_that_fails_or_hangs_holds_no_lane_up(pg_store: Store, processes: Processes, tmp_path: Path) -> None:
    with pg_store.connect("test") as db:
        hooked = Hooked(pg_store, db, processes, tmp_path)
        jobs = [hooked.greet() for _ in range(20)]
        log = hooked.drain("broken sink", told=20)
        assert log.count("hook event_sink failed: ValueError: nobody listens (told once)") == 1
        assert len(hooked.noted("event")) == 20  # it is called all the same
        jobs += [hooked.greet() for _ in range(20)]
        hooked.drain("slow sink")
        assert {get_job(db, job).status for job in jobs} == {"completed"}


def test_the_orchestrator_tells_what_it_wrote(pg_store: Store, processes: Processes, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with pg_store.connect("test") as db:
        submit_run(db, {"name": "g", "nodes": [{"id": "a", "node": "x"}, {"id": "b", "node": "x"}]})
        db.run(
            "update workflow_node_jobs set status = 'failed', error = 'boom', finished_at = now() where node_id = 'a'"
        )
        db.run(
            "insert into workflow_dispatch_events (run_id, node_id, kind) select id, 'a', 'failed' from workflow_runs"
        )
        orchestrator = processes.spawn(
            command("queue-orchestrator", "--db", pg_store.url, "--app", "tests.apps.hooked"),
            env={"HOOKED_NOTES": str(notes)},
        )
        eventually(lambda: notes.exists() and '"cancelled"' in notes.read_text())
        orchestrator.terminate()
        orchestrator.wait(20)
        lost = processes.spawn(
            command("queue-orchestrator", "--db", pg_store.url, "--app", "tests.no_such_app", "--once")
        )
        assert lost.wait(60) == 0
        assert "going on without the app's hooks: ConfigError: --app tests.no_such_app" in processes.log(lost)


# --- the thread that passes events on ---


class Told:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.go = threading.Event()

    def __call__(self, event: dict[str, Any]) -> None:
        assert self.go.wait(30)
        self.events.append(event)


def test_an_event_is_told_after_its_commit_and_never_if_there_is_none(store: Store, db: Db) -> None:
    told = Told()
    told.go.set()
    sink = Sink(store, told).begin()
    try:
        run_id = submit_run(db, GRAPH)
        with pytest.raises(RuntimeError):
            with db.transaction():
                end_run(db, run_id, "cancelled", "one")
                raise RuntimeError
        with db.transaction():
            events.record(db, family="ingest", job_id=7, event_type="refused")
            end_run(db, run_id, "cancelled", "two")
            assert told.events == []
        eventually(lambda: len(told.events) == 2)
        assert [(e["type"], e["detail"].get("reason")) for e in told.events] == [
            ("refused", None),
            ("cancelled", "two"),
        ]
        json.dumps(told.events)
        assert told.events[1]["text"] == "cpu: a cancelled: two"
    finally:
        sink.end(10)
    end_run(db, submit_run(db, GRAPH), "cancelled", "three")
    assert len(told.events) == 2


def test_what_a_slow_sink_cannot_take_is_dropped_and_counted(
    sqlite_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()
    sink = Sink(sqlite_store, told, waiting=5).begin()
    try:
        with sqlite_store.connect("test") as db, caplog.at_level(logging.WARNING):
            for job_id in range(20):
                events.record(db, family="ingest", job_id=job_id, event_type="refused")
        assert sink.dropped >= 10
        assert sum("the event sink is too slow" in record.message for record in caplog.records) == 1
        told.go.set()
        eventually(lambda: sink.passed_on == 20 - sink.dropped)
    finally:
        told.go.set()
        sink.end(10)


def test_a_sink_outlives_the_database_going_away(pg_store: Store) -> None:
    told = Told()
    told.go.set()
    sink = Sink(pg_store, told).begin()
    with pg_store.connect("test") as db:
        events.record(db, family="ingest", job_id=1, event_type="refused")
        eventually(lambda: len(told.events) == 1)
        db.all("select pg_terminate_backend(pid) from pg_stat_activity where application_name like '%event sink%'")
        events.record(db, family="ingest", job_id=2, event_type="refused")
        eventually(lambda: len(told.events) == 2)
    sink.end(10)
