"""Lanes behind PgBouncer in transaction mode: with an address past it, without one, with prepared statements off."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from engine.store import Store
from tests.external.conftest import Pooled
from tests.lane.fleet import QUICK, add, beats, ended, history, pid_in, row
from tests.support import Processes, command, eventually

NO_PREPARE = {"FLIGHTDECK_DB_PREPARE": "0"}


def lane(processes: Processes, pooler: Pooled, box: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
    args = ("--queue", "default", "--slots", "2", "--db", pooler.pooled, "--box", box, "--app", "tests.apps.lane_jobs")
    return processes.spawn(command("queue-claim-worker", *args), env={**QUICK, **env})


def head(processes: Processes, pooler: Pooled, env: dict[str, str]) -> subprocess.Popen[bytes]:
    return processes.spawn(command("queue-orchestrator", "--db", pooler.pooled, "--box", "head"), env={**QUICK, **env})


def test_prepared_statements_collide_behind_a_transaction_pooler(pooler: Pooled, processes: Processes) -> None:
    """Q14: with prepared statements off, and an address for LISTEN and locks past the pooler, all is as without it."""
    env = {**NO_PREPARE, "FLIGHTDECK_DB_DIRECT_URL": pooler.direct}
    started = [head(processes, pooler, env), *(lane(processes, pooler, box, env) for box in ("b1", "b2", "b3"))]
    with pooler.store.connect("test") as db:
        for box in ("b1", "b2", "b3"):
            beats(db, "running", box=box)
        jobs = [add(db, "echo", {"n": n}) for n in range(300)]
        for job in jobs:
            assert ended(db, job)["status"] == "completed"
        assert {each["event_type"] for job in jobs for each in history(db, job)} == {"completed"}
    for process in started:
        said = processes.log(process).lower()
        assert "prepared statement" not in said
        assert "error" not in said


def test_a_dead_lane_behind_a_pooler_is_seen_at_once_by_its_own_session(
    pooler: Pooled, processes: Processes, tmp_path: Path
) -> None:
    """Q14: the session lock goes past the pooler, which would keep it for ever."""
    env = {**NO_PREPARE, "FLIGHTDECK_DB_DIRECT_URL": pooler.direct}
    head(processes, pooler, env)
    doomed = lane(processes, pooler, "b1", env)
    with pooler.store.connect("test") as db:
        beats(db, "running", box="b1")
        job = add(db, "touch_and_wait", {"path": str(tmp_path / "began")})
        pid_in(tmp_path / "began")
        lane(processes, pooler, "b2", env)
        beats(db, "running", box="b2")
        doomed.send_signal(signal.SIGKILL)
        eventually(lambda: row(db, job)["claimed_box"] == "b2", what="the other lane has it")
        lost = [each for each in history(db, job) if each["cause"] == "lane_lost"]
        assert lost[0]["detail"]["reason"] == "its session is gone"
        (tmp_path / "began.go").touch()


@pytest.mark.timeout(300)
def test_without_an_address_past_the_pooler_start_up_says_so_and_heartbeats_decide(
    pooler: Pooled, processes: Processes, tmp_path: Path
) -> None:
    """Q14: the lane says what is missing; a dead one is seen by its heartbeat within 45 s, a live one loses nothing."""
    leader = head(processes, pooler, NO_PREPARE)
    doomed, other = (lane(processes, pooler, box, NO_PREPARE) for box in ("b1", "b2"))
    with pooler.store.connect("test") as db:
        for box, process in (("b1", doomed), ("b2", other)):
            beats(db, "running", box=box)
            eventually(lambda p=process: "FLIGHTDECK_DB_DIRECT_URL" in processes.log(p), what="the lane says so")
        eventually(lambda: "heartbeat" in processes.log(leader), what="the leader says so")
        job = add(db, "touch_and_wait", {"path": str(tmp_path / "began")}, only_boxes=["b1"])
        pid_in(tmp_path / "began")
        db.run("update ingest_jobs set only_boxes = '{{}}' where id = {id}", id=job)
        doomed.send_signal(signal.SIGKILL)
        eventually(lambda: row(db, job)["claimed_box"] == "b2", timeout_s=90, what="the other lane has it")
        told = [(each["event_type"], each["cause"]) for each in history(db, job)]
        assert told == [("requeued", "lane_lost")]


@pytest.mark.timeout(300)
def test_a_leader_that_died_behind_a_pooler_is_followed(pooler: Pooled, processes: Processes) -> None:
    """Its lock would stay on the pooled connection for as long as that lives."""
    first = head(processes, pooler, NO_PREPARE)
    led_by = "select pid from services where kind = 'orchestrator' and is_leader order by last_seen desc limit 1"
    with pooler.store.connect("test") as db:
        eventually(lambda: db.value(led_by) == first.pid, what="the first leads")
        second = head(processes, pooler, NO_PREPARE)
        eventually(lambda: "another orchestrator leads" in processes.log(second), what="the second waits")
        first.kill()
        eventually(lambda: db.value(led_by) == second.pid, timeout_s=90, what="the second leads")


def test_the_url_of_a_pooler_alone_is_enough_to_enqueue(pooler: Pooled) -> None:
    """Q14: callers need no session of their own."""
    from engine import config, registry
    from engine.queue.enqueue import enqueue

    config.configure(db_prepare=False)
    registry.register_ingest_task("noop", lambda: None)
    with Store(pooler.pooled).connect("caller") as db:
        ids = {enqueue(db, task_name="noop", queue="default", idempotency_key=f"k{n % 3}").id for n in range(30)}
    assert len(ids) == 3
