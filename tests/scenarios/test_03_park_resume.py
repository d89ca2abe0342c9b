"""Scenario 3: park and resume. Exactly the lanes named; hard gives the work back unspent; it survives a restart."""

from __future__ import annotations

import subprocess
from datetime import timedelta
from pathlib import Path

from engine.queue import operate
from engine.store import Db, Store
from tests.lane.fleet import (
    add,
    beats,
    children,
    ended,
    gone,
    heartbeat,
    history,
    pid_in,
    row,
    runs,
    start_lane,
    status,
    stop,
)
from tests.support import Processes, command, eventually


def control(processes: Processes, store: Store, *args: str) -> None:
    process: subprocess.Popen[bytes] = processes.spawn(command("queue-worker-control", "--db", store.url, *args))
    assert process.wait(60) == 0, processes.log(process)


def test_hard_park_gives_the_job_back_unspent_and_leaves_the_neighbours_alone(
    store: Store, db: Db, processes: Processes, tmp_path: Path
) -> None:
    lane = start_lane(processes, store)
    neighbour = start_lane(processes, store, queue="training")
    other_project = start_lane(processes, store, "--project", "p2")
    job = add(db, "touch_and_wait", {"path": str(tmp_path / "job")})
    beside = add(db, "touch_and_wait", {"path": str(tmp_path / "beside")}, queue="training")
    elsewhere = add(db, "touch_and_wait", {"path": str(tmp_path / "elsewhere")}, project="p2")
    pid, beside_pid, elsewhere_pid = (pid_in(tmp_path / name) for name in ("job", "beside", "elsewhere"))
    behind = add(db, "noop")
    incarnation = beats(db, "running")["incarnation"]

    control(processes, store, "--queue", "default", "--box", "b1", "--off", "--reason", "hot")
    parked = beats(db, "parked")
    assert parked["busy"] == 0 and parked["incarnation"] == incarnation
    gone(pid)
    back = row(db, job)
    assert (back["status"], back["is_priority"], back["priority"]) == ("queued", True, 10)
    assert (back["failures"], back["watchdog_retries"], back["losses"]) == (0, 0, 0)
    event = history(db, job)[0]
    assert (event["event_type"], event["cause"], event["exit_code"]) == ("requeued", "operator_stop", 79)
    assert len(children(lane.pid)) <= 1, "no executor is left, only the guard"
    assert runs(beside_pid) and runs(elsewhere_pid)
    assert status(db, behind) == "queued"
    last = heartbeat(db)["last_seen"]
    eventually(lambda: heartbeat(db)["last_seen"] > last, what="a parked lane beats")

    stop(lane)
    lane = start_lane(processes, store)
    eventually(lambda: heartbeat(db)["incarnation"] != incarnation)
    beats(db, "parked")
    assert status(db, job) == status(db, behind) == "queued"

    control(processes, store, "--queue", "default", "--box", "b1", "--on")
    eventually(lambda: len((tmp_path / "job").read_text().split()) == 2, what="first in line runs again")
    assert status(db, behind) == "queued"
    for name in ("job", "beside", "elsewhere"):
        (tmp_path / f"{name}.go").touch()
    assert [ended(db, each)["attempt"] for each in (job, beside, elsewhere, behind)] == [2, 1, 1, 1]
    for process in (lane, neighbour, other_project):
        stop(process)


def test_drain_lets_the_job_end_and_a_later_hard_is_honoured(
    store: Store, db: Db, processes: Processes, tmp_path: Path
) -> None:
    lane = start_lane(processes, store, "--slots", "2")
    short = add(db, "touch_and_wait", {"path": str(tmp_path / "short")})
    long = add(db, "touch_and_wait", {"path": str(tmp_path / "long")})
    short_pid, long_pid = pid_in(tmp_path / "short"), pid_in(tmp_path / "long")
    operate.park(db, box="b1", queue="default", policy="drain")
    beats(db, "draining")
    later = add(db, "noop")
    (tmp_path / "short.go").touch()
    assert ended(db, short)["status"] == "completed"
    assert runs(long_pid) and status(db, later) == "queued"
    eventually(lambda: heartbeat(db)["busy"] == 1)
    assert heartbeat(db)["state"] == "draining"

    operate.park(db, box="b1", queue="default", policy="hard")
    beats(db, "parked")
    gone(short_pid, long_pid)
    assert (status(db, long), history(db, long)[0]["cause"]) == ("queued", "operator_stop")
    assert status(db, later) == "queued"

    incarnation = heartbeat(db)["incarnation"]
    (tmp_path / "long.go").touch()
    operate.resume(db, box="b1", queue="default")
    assert ended(db, later)["status"] == ended(db, long)["status"] == "completed"
    assert heartbeat(db)["incarnation"] == incarnation, "it resumed in place"
    stop(lane)


def test_a_drained_lane_is_parked_when_the_last_job_has_ended(
    store: Store, db: Db, processes: Processes, tmp_path: Path
) -> None:
    lane = start_lane(processes, store)
    job = add(db, "touch_and_wait", {"path": str(tmp_path / "job")})
    pid = pid_in(tmp_path / "job")
    operate.park(db, box="b1", queue="default", policy="drain")
    beats(db, "draining")
    (tmp_path / "job.go").touch()
    assert ended(db, job)["status"] == "completed"
    beats(db, "parked")
    gone(pid)
    stop(lane)


def test_orders_for_every_box_and_queue_and_orders_that_lapse(store: Store, db: Db, processes: Processes) -> None:
    lane = start_lane(processes, store)
    beats(db, "running")
    operate.park(db, box="*", queue="*")
    beats(db, "parked")
    job = add(db, "noop")
    operate.resume(db, box="b1", queue="default")
    assert ended(db, job)["status"] == "completed"
    operate.park(db, box="*", queue="default", until=db.now() + timedelta(seconds=3))
    beats(db, "parked")
    waiting = add(db, "noop")
    assert ended(db, waiting)["status"] == "completed"
    assert heartbeat(db)["state"] == "running"
    stop(lane)


def test_a_plain_sql_write_is_an_order(store: Store, db: Db, processes: Processes) -> None:
    lane = start_lane(processes, store)
    beats(db, "running")
    db.run("insert into worker_controls (box, queue, desired) values ('b1', 'default', 'off')")
    beats(db, "parked")
    db.run("update worker_controls set desired = 'on' where box = 'b1'")
    beats(db, "running")
    stop(lane)
