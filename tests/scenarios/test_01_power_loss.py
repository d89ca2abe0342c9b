"""Scenario 1: a box loses power mid-job. Another box finishes it, once; what comes back late changes nothing."""

from __future__ import annotations

import signal
from pathlib import Path

from engine.store import Db, Store
from tests.lane.fleet import (
    add,
    beats,
    ended,
    gone,
    heartbeat,
    history,
    pid_in,
    row,
    runs,
    start_lane,
    start_orchestrator,
    status,
    stop,
)
from tests.support import Processes, eventually


def cut_lanes(db: Db) -> None:
    """What the server sees of a power cut once its keepalives have given up."""
    db.run(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
        "and (application_name like '%lane%' or application_name like '%wakes%') and pid <> pg_backend_pid()"
    )


def test_a_box_loses_power_and_a_peer_takes_its_job(pg_store: Store, processes: Processes, tmp_path: Path) -> None:
    with pg_store.connect("test") as db:
        start_orchestrator(processes, pg_store)
        first = start_lane(processes, pg_store, box="b1")
        job = add(db, "touch_and_wait", {"path": str(tmp_path / "pid")})
        old_pid = pid_in(tmp_path / "pid")
        first.send_signal(signal.SIGSTOP)
        others = [add(db, "noop") for _ in range(3)]
        assert row(db, job)["claimed_box"] == "b1"
        eventually(lambda: db.one("select 1 as x from services where kind = 'orchestrator' and is_leader = {true}"))

        cut_lanes(db)
        back = eventually(lambda: [e for e in history(db, job) if e["event_type"] == "requeued"])[0]
        assert (back["cause"], back["box"]) == ("lane_lost", "b1")
        waiting = row(db, job)
        assert waiting["status"] == "queued" and waiting["is_priority"] and waiting["priority"] <= 10
        assert (waiting["losses"], waiting["watchdog_retries"]) == (1, 0)

        second = start_lane(processes, pg_store, box="b2")
        eventually(lambda: len((tmp_path / "pid").read_text().split()) == 2, what="the peer's attempt")
        assert row(db, job)["claimed_box"] == "b2"
        assert all(status(db, other) == "queued" for other in others), "what came back is first in line"

        assert runs(old_pid)
        first.send_signal(signal.SIGCONT)
        gone(old_pid)
        lost = eventually(lambda: [e for e in history(db, job) if e["event_type"] == "lost_claim"])[0]
        assert (lost["exit_code"], lost["box"], lost["attempt"]) == (77, "b1", 1)
        eventually(lambda: heartbeat(db, box="b1")["last_exit_code"] == 77)
        assert (row(db, job)["status"], row(db, job)["claimed_box"]) == ("running", "b2")

        (tmp_path / "pid.go").touch()
        done = ended(db, job)
        assert (done["status"], done["attempt"], done["claimed_box"]) == ("completed", 2, "b2")
        assert done["result"]["pid"] != old_pid
        assert db.value("select count(*) from executions where job_id = {id}", id=job) == 1
        assert [e["event_type"] for e in history(db, job)].count("completed") == 1
        for other in others:
            assert ended(db, other)["status"] == "completed"
        stop(first)
        stop(second)


def test_a_killed_lanes_jobs_run_elsewhere(store: Store, db: Db, processes: Processes, tmp_path: Path) -> None:
    """kill -9 of the lane: seen through its session, on either store, long before any lease or heartbeat."""
    start_orchestrator(processes, store)
    first = start_lane(processes, store, box="b1")
    beats(db, "running", box="b1")
    job = add(db, "touch_and_wait", {"path": str(tmp_path / "pid")})
    old_pid = pid_in(tmp_path / "pid")
    second = start_lane(processes, store, box="b2")
    beats(db, "running", box="b2")
    first.kill()
    gone(old_pid)
    eventually(lambda: row(db, job)["claimed_box"] == "b2", timeout_s=60)
    (tmp_path / "pid.go").touch()
    done = ended(db, job)
    assert (done["status"], done["attempt"], done["losses"]) == ("completed", 2, 1)
    assert history(db, job)[0]["cause"] == "lane_lost"
    stop(second)
