"""A lane as a process: what it runs, what it survives, how it ends."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psycopg
import pytest

from engine.queue import operate
from engine.store import Db, Store
from tests.lane.fleet import (
    add,
    add_node,
    beats,
    children,
    ended,
    freeze,
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
)  # fmt: skip
from tests.support import Processes, eventually


def test_jobs_of_both_families_run_and_are_finished(store: Store, db: Db, processes: Processes) -> None:
    node = add_node(db, "echo", {"x": [1, {"y": "\u00e9"}]})
    cpu = start_lane(processes, store, queue="cpu")
    ingest = start_lane(processes, store)
    job = add(db, "echo", {"b": None})
    assert ended(db, job)["result"] == {"b": None}
    assert ended(db, node, "workflow_node_jobs")["output"] == {"x": [1, {"y": "\u00e9"}]}
    assert [event["event_type"] for event in history(db, job)] == ["completed"]
    assert db.value("select kind from workflow_dispatch_events") == "completed"
    assert db.value("select count(*) from executions where job_id = {id}", id=job) == 1
    stop(cpu)
    stop(ingest)
    assert heartbeat(db)["state"] == "stopping"


def test_many_short_jobs_claimed_ahead_run_once_each_and_in_order(
    store: Store, db: Db, processes: Processes, tmp_path: Path
) -> None:
    ids = [add(db, "noop") for _ in range(300)]
    lane = start_lane(processes, store)
    eventually(lambda: db.value("select count(*) from ingest_jobs where status = 'completed'") == len(ids))
    assert db.value("select max(attempt) from ingest_jobs") == 1
    order = [event["job_id"] for event in db.all("select job_id from job_events order by id")]
    assert sorted(order) == ids
    assert db.value("select count(*) from ingest_jobs where started_at is null or started_at > finished_at") == 0
    stop(lane)


def test_a_task_that_is_not_registered_fails_and_nothing_is_imported(
    store: Store, db: Db, processes: Processes
) -> None:
    """Q36."""
    lane = start_lane(processes, store, queue="cpu")
    job = add_node(db, "os.path")
    error = ended(db, job, "workflow_node_jobs")["error"]
    assert error.startswith("UnknownTask") and "not registered" in error
    stop(lane)


@pytest.mark.parametrize(
    ("task", "args", "says"),
    [
        ("fail", {"text": "boom"}, "ValueError: boom"),
        ("fail", {"nope": 1}, "TypeError"),
        ("leave", {}, "SystemExit: 3"),
        ("bad_result", {"kind": "list"}, "returned a list"),
        ("bad_result", {"kind": "object"}, "does not serialise"),
        ("bad_result", {"kind": "nan"}, "does not serialise"),
        ("bad_result", {"kind": "nul"}, "NUL"),
        ("bad_result", {"kind": "big"}, "more than the"),
    ],
)
def test_what_goes_wrong_in_user_code_fails_that_job_only(
    sqlite_store: Store, processes: Processes, task: str, args: dict[str, object], says: str
) -> None:
    with sqlite_store.connect("test") as db:
        bad = add(db, task, args)
        good = add(db, "later")
        lane = start_lane(processes, sqlite_store, "--once")
        assert lane.wait(60) == 0, processes.log(lane)
        assert status(db, bad) == "failed" and says in row(db, bad)["error"]
        assert row(db, good)["result"] == {"async": True}
        assert len(history(db, bad)) == 1


def test_executor_killed_is_replaced_and_its_job_queued_again_at_once(
    store: Store, db: Db, processes: Processes, tmp_path: Path
) -> None:
    lane = start_lane(processes, store)
    job = add(db, "touch_and_wait", {"path": str(tmp_path / "pid")}, priority=50)
    first = pid_in(tmp_path / "pid")
    os.kill(first, signal.SIGKILL)
    eventually(lambda: len((tmp_path / "pid").read_text().split()) == 2, what="the second attempt")
    (tmp_path / "pid.go").touch()
    done = ended(db, job)
    assert (done["status"], done["attempt"], done["watchdog_retries"], done["losses"]) == ("completed", 2, 1, 0)
    assert done["result"]["pid"] != first
    died, finished = history(db, job)
    assert (died["event_type"], died["cause"], died["exit_code"]) == ("requeued", "executor_died", 128 + 9)
    assert finished["event_type"] == "completed" and finished["attempt"] == 2
    stop(lane)


def test_a_job_that_kills_every_executor_fails_at_the_cap(store: Store, db: Db, processes: Processes) -> None:
    lane = start_lane(processes, store)
    job = add(db, "die", {"how": "exit"})
    good = add(db, "noop")
    failed = ended(db, job)
    assert failed["status"] == "failed" and failed["attempt"] == 4
    assert [event["exit_code"] for event in history(db, job)] == [7] * 4
    assert ended(db, good)["status"] == "completed"
    assert eventually(lambda: heartbeat(db)["last_exit_code"]) == 7
    stop(lane)


def test_everything_that_a_job_started_dies_with_it(store: Store, db: Db, processes: Processes, tmp_path: Path) -> None:
    lane = start_lane(processes, store)
    job = add(db, "family_tree", {"path": str(tmp_path / "pids")})
    pids = [
        int(pid) for pid in eventually(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().split())
    ]
    (tmp_path / "pids").unlink()
    assert len(pids) == 4 and all(runs(pid) for pid in pids)
    operate.kill_job(db, job)
    gone(*pids)
    requeued = eventually(lambda: history(db, job))[0]
    assert (requeued["cause"], requeued["exit_code"]) == ("operator_stop", 79)
    assert (row(db, job)["watchdog_retries"], row(db, job)["losses"]) == (0, 0)
    stop_with_running_job(lane, db)


def stop_with_running_job(lane: object, db: Db) -> None:
    """Two signals: no grace."""
    lane.send_signal(signal.SIGTERM)  # type: ignore[attr-defined]
    eventually(lambda: heartbeat(db)["state"] in ("draining", "stopping"))
    lane.send_signal(signal.SIGTERM)  # type: ignore[attr-defined]
    assert lane.wait(30) == 0  # type: ignore[attr-defined]


def test_executors_and_all_they_started_die_with_a_killed_lane(
    store: Store, db: Db, processes: Processes, tmp_path: Path
) -> None:
    lane = start_lane(processes, store, "--slots", "2")
    add(db, "family_tree", {"path": str(tmp_path / "pids")})
    pids = [
        int(pid) for pid in eventually(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().split())
    ]
    eventually(lambda: len(children(lane.pid)) >= 3)
    helpers = children(lane.pid)
    lane.kill()
    gone(*pids, *helpers)


def test_a_handler_that_holds_the_gil_keeps_its_lease(store: Store, db: Db, processes: Processes) -> None:
    """Q6."""
    lane = start_lane(processes, store, "--lease-seconds", "3")
    job = add(db, "hold_gil", {"seconds": 6.0})
    eventually(lambda: status(db, job) == "running")
    first = row(db, job)["lease_expires_at"]
    leases = set()
    while (seen := row(db, job))["status"] == "running":
        leases.add(seen["lease_expires_at"])
        assert seen["lease_expires_at"] > db.now() or status(db, job) != "running"
        time.sleep(0.05)
    assert max(leases) > first and len(leases) >= 3
    done = ended(db, job)
    assert (done["status"], done["attempt"]) == ("completed", 1)
    stop(lane)


def test_heartbeat_says_busy_and_idle_as_it_changes(store: Store, db: Db, processes: Processes, tmp_path: Path) -> None:
    lane = start_lane(processes, store, "--slots", "2", env={"FLIGHTDECK_BEAT_SECONDS": "600"})
    idle = beats(db, "running")
    assert (idle["slots"], idle["busy"]) == (2, 0)
    job = add(db, "touch_and_wait", {"path": str(tmp_path / "pid")})
    eventually(lambda: heartbeat(db)["busy"] == 1)
    (tmp_path / "pid.go").touch()
    ended(db, job)
    eventually(lambda: heartbeat(db)["busy"] == 0)
    stop(lane)


def test_a_cancel_is_heeded_or_else_the_executor_is_killed(
    store: Store, db: Db, processes: Processes, tmp_path: Path
) -> None:
    """Q11."""
    lane = start_lane(processes, store, "--slots", "2", env={"FLIGHTDECK_CANCEL_GRACE": "0.5"})
    heeds = add(db, "heed_cancel", {"path": str(tmp_path / "heeds")})
    ignores = add(db, "touch_and_wait", {"path": str(tmp_path / "ignores")})
    pid_in(tmp_path / "heeds")
    stubborn = pid_in(tmp_path / "ignores")
    operate.cancel_job(db, heeds)
    operate.cancel_job(db, ignores)
    assert ended(db, heeds)["status"] == "cancelled"
    assert ended(db, ignores)["status"] == "cancelled"
    gone(stubborn)
    evidence = history(db, ignores)[-1]["detail"]
    assert "did not stop" in evidence["reason"] and "touch_and_wait" in evidence["stack"]
    again = add(db, "noop")
    assert ended(db, again)["status"] == "completed"
    stop(lane)


def test_over_its_budget_a_job_is_tripped_and_goes_back(store: Store, db: Db, processes: Processes) -> None:
    lane = start_lane(processes, store)
    job = add(db, "nap_briefly", {"seconds": 60.0})
    trip = eventually(lambda: history(db, job))[0]
    assert (trip["event_type"], trip["cause"], trip["exit_code"]) == ("requeued", "trip", 75)
    assert trip["detail"]["budget_s"] == 0.5 and "in nap" in trip["detail"]["stack"]
    assert row(db, job)["watchdog_retries"] >= 1
    stop_with_running_job(lane, db)


def test_exit_on_trip_ends_with_the_code(store: Store, db: Db, processes: Processes) -> None:
    lane = start_lane(processes, store, "--exit-on-trip")
    job = add(db, "nap_briefly", {"seconds": 60.0})
    assert lane.wait(60) == 75, processes.log(lane)
    assert status(db, job) == "queued"
    assert heartbeat(db)["last_exit_code"] == 75


def test_sigterm_finishes_what_runs_claims_nothing_and_beats_last(
    store: Store, db: Db, processes: Processes, tmp_path: Path
) -> None:
    """Q3, Q9."""
    lane = start_lane(processes, store, "--slots", "2")
    job = add(db, "touch_and_wait", {"path": str(tmp_path / "pid")})
    pid_in(tmp_path / "pid")
    lane.send_signal(signal.SIGTERM)
    before = beats(db, "draining")["last_seen"]
    unclaimed = add(db, "noop")
    eventually(lambda: heartbeat(db)["last_seen"] > before, what="it beats while it drains")
    assert status(db, unclaimed) == "queued"
    (tmp_path / "pid.go").touch()
    assert lane.wait(30) == 0
    done = row(db, job)
    assert done["status"] == "completed" and status(db, unclaimed) == "queued"
    last = heartbeat(db)
    assert last["state"] == "stopping" and last["busy"] == 0 and last["last_seen"] >= done["finished_at"]


def test_sigterm_past_its_grace_gives_the_jobs_back(store: Store, db: Db, processes: Processes, tmp_path: Path) -> None:
    """Q12: a shutdown leaves no claimed row."""
    lane = start_lane(processes, store, "--grace", "0.3")
    job = add(db, "touch_and_wait", {"path": str(tmp_path / "pid")})
    pid = pid_in(tmp_path / "pid")
    stop(lane)
    gone(pid)
    back = row(db, job)
    assert (back["status"], back["is_priority"], back["watchdog_retries"], back["losses"]) == ("queued", True, 0, 0)
    event = history(db, job)[0]
    assert (event["cause"], event["detail"]["reason"]) == ("drain", "the lane was stopped and its grace is over")
    assert back["claimed_by"] is None


def test_a_second_lane_waits_and_takes_over(store: Store, db: Db, processes: Processes) -> None:
    first = start_lane(processes, store)
    incarnation = beats(db, "running")["incarnation"]
    second = start_lane(processes, store)
    eventually(lambda: "another lane holds b1/default" in processes.log(second))
    assert heartbeat(db)["incarnation"] == incarnation
    assert children(second.pid) == children(second.pid)[:1], "only its guard: no executors yet"
    first.kill()
    eventually(lambda: heartbeat(db)["incarnation"] != incarnation and heartbeat(db)["state"] == "running")
    assert ended(db, add(db, "noop"))["status"] == "completed"
    stop(second)


def test_other_projects_lane_runs_beside_it(store: Store, db: Db, processes: Processes) -> None:
    first = start_lane(processes, store)
    beats(db, "running")
    other = start_lane(processes, store, "--project", "p2")
    mine, theirs = add(db, "noop"), add(db, "noop", project="p2")
    assert (
        "/default/" in ended(db, theirs)["claimed_by"]
        and ended(db, mine)["claimed_by"] != row(db, theirs)["claimed_by"]
    )
    stop(first)
    stop(other)


def test_at_most_three_connections_whatever_the_slots(pg_store: Store, processes: Processes) -> None:
    """Q18."""
    with pg_store.connect("test") as db:
        lane = start_lane(processes, pg_store, "--slots", "6")
        for _ in range(30):
            add(db, "nap", {"seconds": 0.02})
        most = 0
        while db.value("select count(*) from ingest_jobs where status <> 'completed'"):
            most = max(
                most,
                db.value(
                    "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
                ),
            )
        assert 2 <= most <= 3
        stop(lane)


def test_sessions_lost_in_the_middle_of_work_change_nothing(
    pg_store: Store, processes: Processes, tmp_path: Path
) -> None:
    """Q10, Q13: every connection dies; what runs goes on, everything resumes, LISTEN is there again; Q15: few lines."""
    with pg_store.connect("test") as db:
        lane = start_lane(processes, pg_store)
        job = add(db, "touch_and_wait", {"path": str(tmp_path / "pid")})
        pid = pid_in(tmp_path / "pid")
        for rebuilt in (2, 3, 4):
            cut_sessions(db)
            eventually(lambda n=rebuilt: processes.log(lane).count("listening for changes") >= n)  # type: ignore[misc]
            eventually(lambda: db.value(f"select count(*) {OTHERS}") >= 2, what="keeper and wakes are back")
        assert runs(pid)
        (tmp_path / "pid.go").touch()
        done = ended(db, job)
        assert (done["status"], done["attempt"]) == ("completed", 1)
        assert ended(db, add(db, "noop"))["status"] == "completed"
        eventually(lambda: heartbeat(db)["last_seen"] > done["finished_at"])
        lines = [line for line in processes.log(lane).splitlines() if "unreachable" in line]
        assert len(lines) <= 6, processes.log(lane)
        stop(lane)


OTHERS = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"


def cut_sessions(db: Db) -> None:
    db.run(f"select pg_terminate_backend(pid) {OTHERS}")


def test_without_a_database_for_too_long_running_work_is_stopped_and_given_back(
    pg_store: Store, processes: Processes, tmp_path: Path
) -> None:
    with pg_store.connect("test") as db:
        lane = start_lane(processes, pg_store, "--max-offline", "1")
        job = add(db, "touch_and_wait", {"path": str(tmp_path / "pid")})
        pid = pid_in(tmp_path / "pid")
        name = db.value("select current_database()")
        db.close()
    admin = (
        pg_store.url.rpartition("/")[0] + "/postgres"
        if "?" not in pg_store.url
        else pg_store.url.replace(name, "postgres")
    )
    with psycopg.connect(admin, autocommit=True) as raw:
        raw.execute(f"alter database {name} allow_connections false")
        raw.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (name,))
        gone(pid)
        raw.execute(f"alter database {name} allow_connections true")
    with pg_store.connect("test") as db:
        eventually(lambda: history(db, job))
        event = history(db, job)[0]
        assert (event["event_type"], event["cause"]) == ("requeued", "drain")
        assert "no database" in event["detail"]["reason"]
        assert (row(db, job)["watchdog_retries"], row(db, job)["losses"]) == (0, 0)
        (tmp_path / "pid.go").touch()
        assert ended(db, job)["status"] == "completed"
        stop(lane)


def test_stopped_lane_whose_jobs_were_given_away_changes_nothing_when_it_continues(
    store: Store, db: Db, processes: Processes, tmp_path: Path
) -> None:
    """Q2: SIGSTOP, another attempt elsewhere, SIGCONT: its executor is gone with code 77, its writes changed nothing."""
    frozen = start_lane(processes, store)
    job = add(db, "touch_and_wait", {"path": str(tmp_path / "pid")})
    pid = pid_in(tmp_path / "pid")
    freeze(frozen, db)
    token = row(db, job)["fencing_token"]
    db.run(
        "update ingest_jobs set fencing_token = fencing_token + 1, attempt = attempt + 1, "
        "claimed_by = 'b2/default/0123456789abcdef', claimed_box = 'b2' where id = {id}",
        id=job,
    )
    assert runs(pid)
    frozen.send_signal(signal.SIGCONT)
    gone(pid)
    lost = eventually(lambda: [event for event in history(db, job) if event["event_type"] == "lost_claim"])[0]
    assert (lost["exit_code"], lost["fencing_token"]) == (77, token)
    now = row(db, job)
    assert (now["status"], now["claimed_box"], now["fencing_token"]) == ("running", "b2", token + 1)
    assert eventually(lambda: heartbeat(db)["last_exit_code"]) == 77
    stop(frozen)
    assert row(db, job)["claimed_box"] == "b2"


def test_a_short_freeze_loses_nothing(store: Store, db: Db, processes: Processes, tmp_path: Path) -> None:
    start_orchestrator(processes, store)
    lane = start_lane(processes, store)
    job = add(db, "touch_and_wait", {"path": str(tmp_path / "pid")})
    pid_in(tmp_path / "pid")
    freeze(lane, db)
    eventually(lambda: (db.now() - heartbeat(db)["last_seen"]).total_seconds() > 5)
    lane.send_signal(signal.SIGCONT)
    (tmp_path / "pid.go").touch()
    done = ended(db, job)
    assert (done["status"], done["attempt"], [e["event_type"] for e in history(db, job)]) == (
        "completed",
        1,
        ["completed"],
    )
    stop(lane)


def test_a_result_that_comes_after_the_claim_was_lost_is_dropped(
    store: Store, db: Db, processes: Processes, tmp_path: Path
) -> None:
    """Q2."""
    lane = start_lane(processes, store)
    job = add(db, "touch_and_wait", {"path": str(tmp_path / "pid")})
    pid_in(tmp_path / "pid")
    freeze(lane, db)
    db.run(
        "update ingest_jobs set fencing_token = fencing_token + 1, claimed_by = 'b2/default/0123456789abcdef' where id = {id}",
        id=job,
    )
    (tmp_path / "pid.go").touch()
    eventually(lambda: (tmp_path / "pid.done").exists(), what="the executor, which is not stopped, is done")
    lane.send_signal(signal.SIGCONT)
    events = eventually(lambda: history(db, job))
    assert events[0]["event_type"] in ("stale_write", "lost_claim")
    assert status(db, job) == "running" and row(db, job)["result"] is None
    assert db.value("select count(*) from executions") == 0
    stop(lane)


def test_jobs_ahead_behind_a_long_one_are_given_back_unspent(
    store: Store, db: Db, processes: Processes, tmp_path: Path
) -> None:
    for _ in range(20):
        add(db, "noop")
    lane = start_lane(processes, store)
    eventually(lambda: db.value("select count(*) from ingest_jobs where status = 'completed'") == 20)
    with db.transaction():
        long = add(db, "touch_and_wait", {"path": str(tmp_path / "pid")}, priority=1)
        behind = [add(db, "noop") for _ in range(5)]
    pid_in(tmp_path / "pid")
    eventually(lambda: not db.value("select count(*) from ingest_jobs where task_name = 'noop' and status = 'running'"))
    assert row(db, long)["started_at"] is not None or eventually(lambda: row(db, long)["started_at"])
    for job in behind:
        seen = row(db, job)
        assert (seen["status"], seen["attempt"], seen["is_priority"], seen["priority"]) == ("queued", 0, False, 100)
    (tmp_path / "pid.go").touch()
    for job in behind:
        assert ended(db, job)["attempt"] == 1
    stop(lane)


def test_progress_and_context_reach_the_row_and_the_log(
    store: Store, db: Db, processes: Processes, tmp_path: Path
) -> None:
    lane = start_lane(processes, store)
    job = add(db, "report")
    eventually(lambda: row(db, job)["progress_pct"] == 12.5)
    done = ended(db, job)
    assert done["result"]["id"] == job and done["result"]["family"] == "ingest"
    assert (Path(done["result"]["out"]) / "made.txt").exists()
    talker = add(db, "talk", {"text": "hello from the job"})
    ended(db, talker)
    logs = Path(os.environ["XDG_DATA_HOME"]) / "flightdeck" / "logs" / "b1-default"
    assert "hello from the job\nand on stderr" in eventually(lambda: (logs / f"job-{talker}-1.log").read_text())
    assert "said by the job's logger" in (logs / f"job-{job}-1.log").read_text()
    stop(lane)


def test_a_gpu_slot_keeps_its_model_warm_and_swaps_it(
    store: Store, db: Db, processes: Processes, tmp_path: Path
) -> None:
    loads = tmp_path / "loads"
    for model in ("alpha", "beta", "alpha", "alpha"):
        add_node(db, "with_model", queue="gpu", required_model=model)
    free = add_node(db, "visible_device", queue="gpu")
    lane = start_lane(processes, store, "--devices", "3", queue="gpu", env={"LANE_JOBS_LOADS": str(loads)})
    eventually(lambda: db.value("select count(*) from workflow_node_jobs where status = 'completed'") == 5)
    assert loads.read_text().splitlines() == ["load alpha", "unload <alpha>", "load beta"]
    assert row(db, free, "workflow_node_jobs")["output"] == {"cuda": "3"}
    beat = eventually(lambda: (b := heartbeat(db, "gpu"))["current_model"] == "beta" and b)
    assert beat["models_known"] == ["alpha", "beta"] and beat["models_fit"] == ["alpha", "beta"]
    stop(lane)
    assert loads.read_text().splitlines()[-1] == "unload <beta>"


def test_once_does_what_there_is_and_ends(store: Store, db: Db, processes: Processes) -> None:
    jobs = [add(db, "noop") for _ in range(3)]
    lane = start_lane(processes, store, "--once", "--slots", "2")
    assert lane.wait(60) == 0, processes.log(lane)
    assert all(status(db, job) == "completed" for job in jobs)
    empty = start_lane(processes, store, "--once")
    assert empty.wait(60) == 0


def test_nothing_is_left_behind(sqlite_store: Store, processes: Processes) -> None:
    with sqlite_store.connect("test") as db:
        lane = start_lane(processes, sqlite_store, "--slots", "3")
        beats(db, "running")
        eventually(lambda: len(children(lane.pid)) == 4)
        helpers = children(lane.pid)
        stop(lane)
        gone(*helpers)
