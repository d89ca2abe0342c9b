"""The orchestrator as a process: election, takeover, outages, --once."""

from __future__ import annotations

import signal
import subprocess
import threading
from itertools import pairwise

import pytest

from engine import config
from engine.dag.runs import submit_run
from engine.errors import StoreUnavailable
from engine.orchestrator import loop
from engine.orchestrator.leader import Leader
from engine.orchestrator.loop import run_orchestrator
from engine.queue.workers import Worker, beat
from engine.store import Db, Store
from engine.store.locks import new_incarnation
from tests.dag.steps import DIAMOND, Hands, run_row, statuses
from tests.support import Processes, RefusingServer, command, eventually


def start(processes: Processes, store: Store, box: str = "head", *args: str) -> subprocess.Popen[bytes]:
    return processes.spawn(command("queue-orchestrator", "--db", store.url, "--box", box, *args))


def leader_of(db: Db) -> str | None:
    row = db.one("select box from services where kind = 'orchestrator' and is_leader = {true}")
    return row["box"] if row else None


def to_the_end(db: Db, run_id: int) -> str:
    hands = Hands(db)

    def over() -> bool:
        hands.run_all({})
        return run_row(db, run_id)["status"] not in ("queued", "running")

    eventually(over)
    return str(run_row(db, run_id)["status"])


def test_a_second_one_waits_and_takes_over_when_the_first_is_killed(store: Store, db: Db, processes: Processes) -> None:
    first = start(processes, store, "one")
    eventually(lambda: leader_of(db) == "one")
    second = start(processes, store, "two")
    eventually(lambda: db.value("select count(*) from services where kind = 'orchestrator'") == 2)
    assert leader_of(db) == "one"
    run_id = submit_run(db, DIAMOND)
    Hands(db).run_all()
    first.kill()
    eventually(lambda: leader_of(db) == "two")
    assert to_the_end(db, run_id) == "completed"
    second.send_signal(signal.SIGTERM)
    assert second.wait(20) == 0
    assert db.value("select count(*) from services where box = 'two'") == 0


def test_it_expands_plain_sql_runs_and_marks_them_running(store: Store, db: Db, processes: Processes) -> None:
    start(processes, store)
    eventually(lambda: leader_of(db) == "head")
    db.run("insert into workflow_runs (graph) values ({graph}{json})", graph='{"nodes": [{"id": "a", "node": "x"}]}')
    run_id = db.value("select id from workflow_runs")
    eventually(lambda: statuses(db, run_id) == {"a": "queued"})
    hands = Hands(db)
    jobs = hands.take()
    eventually(lambda: run_row(db, run_id)["status"] == "running")
    hands.end(*jobs)
    eventually(lambda: run_row(db, run_id)["status"] == "completed")


def test_it_migrates_an_empty_database(pg_empty_url: str, processes: Processes) -> None:
    store = Store(pg_empty_url)
    process = start(processes, store, "head", "--once")
    assert process.wait(60) == 0, processes.log(process)
    with store.connect("test") as db:
        assert db.value("select count(*) from workflow_runs") == 0


def test_once_does_what_there_is(store: Store, db: Db, processes: Processes) -> None:
    run_id = submit_run(db, DIAMOND)
    Hands(db).run_all()
    process = start(processes, store, "head", "--once")
    assert process.wait(60) == 0, processes.log(process)
    assert statuses(db, run_id) == {"a": "completed", "b": "queued", "c": "queued"}
    assert db.value("select count(*) from services") == 0


def test_once_without_a_database_exits_1_with_one_line(processes: Processes) -> None:
    process = processes.spawn(
        command("queue-orchestrator", "--once", "--db", "postgresql://me:secret@127.0.0.1:1/none")
    )
    assert process.wait(60) == 1
    log = processes.log(process)
    assert log.count("\n") == 1 and log.startswith("queue-orchestrator: ") and "secret" not in log


def test_wrong_use_exits_2_with_one_line(processes: Processes) -> None:
    process = processes.spawn(command("queue-orchestrator", "--db", "mysql://x/y"))
    assert process.wait(60) == 2
    assert processes.log(process).count("\n") == 1


def test_it_survives_the_loss_of_its_sessions(pg_store: Store, processes: Processes) -> None:
    """Q10, Q15: whatever was under way is taken up again from the rows; one log line per change of state."""
    with pg_store.connect("test") as db:
        process = start(processes, pg_store)
        eventually(lambda: leader_of(db) == "head")
        run_id = submit_run(db, DIAMOND)
        before = db.value("select last_seen from services")
        Hands(db).run_all()
        for _ in range(3):
            db.value(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() "
                "and pid <> pg_backend_pid() and application_name like 'flightdeck%'"
            )
        assert to_the_end(db, run_id) == "completed"
        eventually(lambda: db.value("select last_seen from services where is_leader") > before)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert processes.log(process).count("database lost") <= 3


def test_however_often_it_tries_it_says_once_that_the_database_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """Q15: one line for the change of state, and ever longer pauses."""
    stop = threading.Event()
    with RefusingServer() as server, caplog.at_level("INFO"):
        thread = threading.Thread(target=run_orchestrator, args=(Store(server.url), stop))
        thread.start()
        try:
            eventually(lambda: len(server.tries) >= 7)
        finally:
            stop.set()
            thread.join(30)
        assert not thread.is_alive()
        assert max(after - before for before, after in pairwise(server.tries[4:])) >= 0.4
    (said,) = caplog.messages
    assert said.startswith("database lost") and "s3cret" not in said


def test_a_restart_does_not_cancel_or_requeue_live_work(store: Store, db: Db, processes: Processes) -> None:
    """Q32."""
    hands = Hands(db)  # a lane without a mark or heartbeat: the worst case for a leader that has just come
    run_id = submit_run(db, DIAMOND)
    (job,) = hands.take()
    for i in range(3):
        process = start(processes, store, f"head{i}")
        eventually(lambda i=i: leader_of(db) == f"head{i}")  # type: ignore[misc]
        process.kill()
        process.wait(20)
    row = db.one("select status, claimed_by, fencing_token from workflow_node_jobs")
    assert row == {"status": "running", "claimed_by": hands.worker.owner, "fencing_token": job.fencing_token}
    assert hands.end(job).done == {job.id}
    start(processes, store)
    assert to_the_end(db, run_id) == "completed"


def test_a_leader_that_died_is_no_leader_in_the_table(store: Store, db: Db) -> None:
    config.configure(box="head")
    db.run(
        "insert into services (kind, box, incarnation, is_leader, last_seen) "
        "values ('orchestrator', 'gone', 'x', {true}, {before[s]}), ('orchestrator', 'old', 'y', {true}, {before[t]})",
        s=10.0,
        t=7200.0,
    )
    with store.connect("leader") as mine:
        leader = Leader(store, mine)
        assert leader.try_lead()
        leader.beat({"sweeps": {}}, "something fails")
        rows = db.all("select box, is_leader, last_error from services order by box")
        assert rows == [
            {"box": "gone", "is_leader": False, "last_error": None},
            {"box": "head", "is_leader": True, "last_error": "something fails"},
        ]
        leader.leave()
    assert db.value("select count(*) from services where box = 'head'") == 0


def test_what_fails_is_visible_while_the_rest_carries_on(store: Store, db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q20: a side loop that fails is seen in the services table; graphs move on all the same."""
    monkeypatch.setattr(loop, "BEAT_S", 0.1)
    monkeypatch.setattr(loop.runs, "close_runs", lambda db, run_id=None: 1 / 0 if run_id is None else 0)
    stop = threading.Event()
    thread = threading.Thread(target=run_orchestrator, args=(store, stop))
    thread.start()
    try:
        eventually(lambda: "runs_closing: ZeroDivisionError" in (db.value("select last_error from services") or ""))
        assert db.value("select detail from services")["sweeps"]["runs_closing"]["failures"] >= 1
        assert to_the_end(db, submit_run(db, DIAMOND)) == "completed"
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()


def test_a_frozen_leader_loses_the_lead(pg_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process and its connection live on, but it says nothing: the server ends such a session."""
    monkeypatch.setattr("engine.orchestrator.leader._IDLE_LIMIT", "200ms")
    with pg_store.connect("one") as one, pg_store.connect("two") as two:
        frozen = Leader(pg_store, one)
        assert frozen.try_lead()
        monkeypatch.setattr("engine.orchestrator.leader._IDLE_LIMIT", "30s")
        other = Leader(pg_store, two)
        eventually(other.try_lead)
        with pytest.raises(StoreUnavailable):
            frozen.beat({}, None)
        assert not frozen.leads
        frozen.leave()
        other.leave()


def test_a_job_that_no_live_slot_could_hold_is_flagged_and_unflagged(
    store: Store, db: Db, processes: Processes
) -> None:
    processes.spawn(
        command("queue-orchestrator", "--db", store.url, "--box", "head"), env={"FLIGHTDECK_UNPLACEABLE_AFTER": "0.5"}
    )
    submit_run(db, {"nodes": [{"id": "a", "node": "work", "gpu": True, "model": "big"}]})

    def why() -> str | None:
        return db.value("select unplaceable_reason from workflow_node_jobs")  # type: ignore[no-any-return]

    assert eventually(why) == "no live lane of queue gpu"
    worker = Worker("box1", "gpu", "", new_incarnation())
    beat(db, worker, state="running", slots=1, busy=0, models_known=["big"])
    eventually(lambda: why() == "model big fits on no device of a live lane of queue gpu")
    beat(db, worker, state="running", slots=1, busy=0, models_known=["big"], models_fit=["big"])
    eventually(lambda: why() is None)
    assert [row["detail"] for row in db.all("select detail from job_events where event_type = 'unplaceable'")] == [
        {"reason": "no live lane of queue gpu"}
    ]
