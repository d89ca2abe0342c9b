"""Ingest jobs on real lanes: effects and completions in one commit, reports that cost nothing, refusals that do not spin."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from engine import registry
from engine.context import BEAT_EVERY_S, PROGRESS_EVERY_S, Context, JobInfo
from engine.queue import operate
from engine.queue.enqueue import enqueue
from engine.store import Db, Store
from tests.lane.fleet import (
    add,
    add_node,
    beats,
    ended,
    gone,
    heartbeat,
    history,
    pid_in,
    row,
    start_lane,
    status,
    stop,
)  # fmt: skip
from tests.support import ROOT, Processes, eventually

LAST = "select count(*) as n from {} where job_id = {{id}}"


def counted(db: Db, table: str, job: int) -> int:
    found: int = db.value(LAST.format(table), id=job)
    return found


# --- effects ---


def test_a_job_that_completed_itself_is_left_alone_until_it_returns(
    store: Store, db: Db, processes: Processes, tmp_path: Path
) -> None:
    """Its own rows and its completion are one commit; what it does afterwards changes neither, and is not cut short."""
    db.run("create table effects (job_id bigint)")
    lane = start_lane(processes, store)
    job = add(db, "complete_itself", {"path": str(tmp_path / "pid"), "then": "raise"})
    pid = pid_in(tmp_path / "pid")
    assert (status(db, job), counted(db, "effects", job), counted(db, "executions", job)) == ("completed", 1, 1)
    seen = heartbeat(db)["last_seen"]
    eventually(lambda: heartbeat(db)["last_seen"] > seen, what="a renewal and a look have passed")
    seen = heartbeat(db)["last_seen"]
    eventually(lambda: heartbeat(db)["last_seen"] > seen)
    os.kill(pid, 0)
    (tmp_path / "pid.go").touch()
    after = ended(db, add(db, "who_am_i"))
    assert after["result"] == {"pid": pid}, "the executor was not killed for it"
    assert row(db, job)["result"] == {"by": "itself"} and row(db, job)["error"] is None
    events = [(event["event_type"], event["exit_code"]) for event in history(db, job)]
    assert events == [("completed", None), ("stale_write", None)]
    stop(lane)


def test_a_cancel_beats_a_completion_that_is_not_committed(
    pg_store: Store, processes: Processes, tmp_path: Path
) -> None:
    """The completion looks again under the row lock: StaleClaim, and the task's own rows are rolled back. (A SQLite
    file has one writer: nobody can ask for anything in the middle of the task's transaction.)"""
    with pg_store.connect("test") as db:
        db.run("create table effects (job_id bigint)")
        lane = start_lane(processes, pg_store)
        job = add(db, "complete_itself", {"path": str(tmp_path / "pid"), "then": "wait first"})
        pid_in(tmp_path / "pid")
        operate.cancel_job(db, job)
        (tmp_path / "pid.go").touch()
        assert ended(db, job)["status"] == "cancelled"
        assert counted(db, "effects", job) == 0 and counted(db, "executions", job) == 0
        stop(lane)


# --- reports ---


def test_reports_by_the_thousand_reach_the_row_as_the_last_one(store: Store, db: Db, processes: Processes) -> None:
    lane = start_lane(processes, store)
    job = add(db, "spam", {"seconds": 0.3})
    eventually(lambda: row(db, job)["progress_text"] == "the last word", what="the last report, though it was too soon")
    assert row(db, job)["progress_pct"] == 77.0 and status(db, job) == "running"
    assert ended(db, job)["result"]["calls"] > 1000
    stop(lane)


def test_what_leaves_the_process_is_bounded_however_often_a_job_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, object]] = []
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    job = JobInfo(1, "ingest", "t", "default", "", "b1", 1, 7, "b1/default/x")
    ctx = Context(
        job, report=lambda kind, **head: sent.append((kind, head.get("text"))), cancelled=bool, out_root=tmp_path
    )
    for index in range(10_000):  # one second
        clock[0] += 0.0001
        ctx.beat()
        ctx.progress(index / 100, str(index))
    assert len(sent) <= 1 + 1 / PROGRESS_EVERY_S + 1 / BEAT_EVERY_S
    ctx.late(clock[0])
    assert sent[-1] != ("progress", "9999"), "not yet"
    clock[0] += PROGRESS_EVERY_S
    ctx.late(clock[0])
    ctx.late(clock[0])
    assert sent[-1] == ("progress", "9999") and [text for _, text in sent].count("9999") == 1


# --- refusals ---


def test_a_lane_whose_executors_cannot_start_claims_nothing_and_does_not_spin(
    sqlite_store: Store, processes: Processes, tmp_path: Path
) -> None:
    """Q30: no attempt is spent on a lane that cannot run anything; another one may have the job meanwhile."""
    (tmp_path / "broken_app.py").write_text(
        f"open({str(tmp_path / 'starts')!r}, 'a').write('x')\nraise RuntimeError('no license server')\n"
    )
    lane = start_lane(
        processes, sqlite_store, "--app", "broken_app", env={"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    )
    with sqlite_store.connect("test") as db:
        job = add(db, "noop", max_attempts=3)
        eventually(lambda: "no license server" in (heartbeat(db).get("last_exit_reason") or ""), what="it says why")
        eventually(lambda: len((tmp_path / "starts").read_text()) >= 3, what="it tries again")
        eventually(lambda: "next try in 3.0 s" in processes.log(lane), what="with growing pauses")
        seen = row(db, job)
        assert (seen["status"], seen["attempt"], seen["failures"], history(db, job)) == ("queued", 0, 0, [])
        other = start_lane(processes, sqlite_store, box="b2")
        assert ended(db, job)["attempt"] == 1
        stop(other)
    stop(lane)


def test_what_no_attempt_can_mend_fails_at_once_with_the_reason(sqlite_store: Store, processes: Processes) -> None:
    """Q30: a row that names no known task, or whose args are no object, neither spins nor spends attempt after attempt."""
    lane = start_lane(processes, sqlite_store)
    with sqlite_store.connect("test") as db:
        for job, says in (
            (add(db, "nobody_knows", max_attempts=5), "nobody_knows' is not registered"),
            (add(db, "noop", [1], max_attempts=5), "are a list, not an object"),
        ):
            failed = ended(db, job)
            assert says in failed["error"]
            assert (failed["status"], failed["attempt"], failed["failures"]) == ("failed", 1, 1)
            assert [event["event_type"] for event in history(db, job)] == ["failed"]
        stop(lane)
        assert row(db, job)["attempt"] == 1


def test_a_model_that_no_slot_holds_is_not_claimed(sqlite_store: Store, processes: Processes) -> None:
    """Q30: such a row is passed over by the claim itself; nothing is spent, what is behind it runs."""
    lane = start_lane(processes, sqlite_store, queue="gpu")
    with sqlite_store.connect("test") as db:
        strange = add_node(db, "noop", queue="gpu", required_model="nobody-has-it", priority=1)
        plain = add_node(db, "noop", queue="gpu")
        assert ended(db, plain, "workflow_node_jobs")["status"] == "completed"
        seen = row(db, strange, "workflow_node_jobs")
        assert (seen["status"], seen["attempt"], seen["fencing_token"]) == ("queued", 0, 0)
    stop(lane)


# --- a file that somebody holds ---


class Holder:
    """Another process that keeps the write lock of the file."""

    def __init__(self, processes: Processes, store: Store) -> None:
        script = (
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60); "
            "c.execute('begin immediate'); print('held', flush=True); sys.stdin.read()"
        )
        path = store.url.removeprefix("sqlite:///")
        self.process = subprocess.Popen(
            ["python3", "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None and self.process.stdout.readline() == "held\n"

    def let_go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


def test_a_busy_file_loses_no_beat_and_leaves_no_zombie(
    sqlite_store: Store, processes: Processes, tmp_path: Path
) -> None:
    """Q26: what is busy is tried again until its deadline; past --max-offline the work is stopped, and given back as
    soon as the file can be written; the lane is then its old self."""
    lane = start_lane(processes, sqlite_store, "--max-offline", "3")
    with sqlite_store.connect("test") as db:
        job = add(db, "touch_and_wait", {"path": str(tmp_path / "pid")})
        first = pid_in(tmp_path / "pid")
        beats(db, "running")
        holder = Holder(processes, sqlite_store)
        try:
            seen = heartbeat(db)["last_seen"]
            eventually(lambda: "database unreachable" in processes.log(lane), what="a beat met its deadline")
            gone(first)
            assert heartbeat(db)["last_seen"] == seen and status(db, job) == "running"
        finally:
            holder.let_go()
        eventually(lambda: len((tmp_path / "pid").read_text().split()) == 2, what="the next attempt")
        assert history(db, job)[0]["cause"] == "drain" and row(db, job)["watchdog_retries"] == 0
        (tmp_path / "pid.go").touch()
        assert ended(db, job)["status"] == "completed"
        assert heartbeat(db)["last_seen"] > seen
    assert processes.log(lane).count("database unreachable") == 1
    stop(lane)


def test_a_lane_ends_though_its_file_is_held(sqlite_store: Store, processes: Processes, tmp_path: Path) -> None:
    """Q19: every step of the shutdown is bounded; what could not be written is left to the sweeps."""
    lane = start_lane(processes, sqlite_store, "--grace", "0.2")
    with sqlite_store.connect("test") as db:
        job = add(db, "touch_and_wait", {"path": str(tmp_path / "pid")})
        first = pid_in(tmp_path / "pid")
        holder = Holder(processes, sqlite_store)
        try:
            lane.send_signal(signal.SIGTERM)
            assert lane.wait(60) == 0
            gone(first)
            assert status(db, job) == "running"
        finally:
            holder.let_go()


def test_a_key_and_its_job_under_a_lane(store: Store, db: Db, processes: Processes) -> None:
    """Q29 end to end: twenty requests of the same key at once run one job."""
    registry.register_ingest_task("nap", lambda **_: None)
    lane = start_lane(processes, store)
    made: list[str] = []

    def ask() -> None:
        with store.connect("web") as own:
            made.append(enqueue(own, task_name="nap", queue="default", idempotency_key="k").id)

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 20 and len(set(made)) == 1
    assert ended(db, int(made[0]))["attempt"] == 1
    assert db.value("select count(*) as n from executions") == 1
    stop(lane)
