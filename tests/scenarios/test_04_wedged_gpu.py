"""Scenario 4: a wedged GPU. 76 or 78 with evidence; what is busy, moves or cannot be read is never killed; cap, then fail."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.store import Db, Store
from tests.fakes.gpus import UNKNOWN, Gpus, card
from tests.lane.fleet import add_node, beats, gone, heartbeat, history, pid_in, row, start_lane, status, stop
from tests.support import Processes, eventually

TABLE = "workflow_node_jobs"
QUICK = {  # the same dogs, sooner
    "FLIGHTDECK_PROBE_SECONDS": "0.1",
    "FLIGHTDECK_HEALTH_WINDOW": "1.5",
    "FLIGHTDECK_HEALTH_WINDOW_BEATING": "1.5",
    "FLIGHTDECK_STALL_SECONDS": "0",
    "FLIGHTDECK_STALL_SAMPLE_GAP": "0.1",
    "FLIGHTDECK_GPU_MOVE_GIB": "0.03",
    "FLIGHTDECK_GPU_IO_MIB": "0.3",
    "FLIGHTDECK_SHUN_SECONDS": "0",
}


@contextlib.contextmanager
def a_source() -> Iterator[int]:
    """A server that sends about 3 MiB a second to whoever connects."""
    over = threading.Event()

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            client, _ = listener.accept()
            with client:
                while not over.wait(0.02):
                    client.sendall(bytes(1 << 16))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def start(processes: Processes, store: Store, gpus: Gpus, *args: str, **env: str) -> Any:
    return start_lane(
        processes, store, "--app", "tests.apps.gpu_jobs", *args, queue="gpu", env={**QUICK, **gpus.env, **env}
    )


def device_of(gpus: Gpus, path: Path) -> int:
    """The number of the card on which the job that writes there was last begun."""
    pid_in(path)
    name = path.read_text().split()[-2]
    return next(n for n, each in enumerate(gpus.state["cards"]) if name in (each["uuid"], str(n)))


def test_what_is_wedged_goes_with_78_also_when_it_spins_and_what_lives_never_does(
    store: Store, db: Db, processes: Processes, tmp_path: Path
) -> None:
    """Q35: what cannot be read is not idle."""
    lively = ["beating", "busy", "moving", "loading", "downloading", "unreadable"]
    node = {"busy": "wedge", "moving": "wedge", "unreadable": "wedge"}
    # Nothing is known until every job has said where it is.
    gpus = Gpus(tmp_path, *(card(number, util=UNKNOWN) for number in range(8)))
    lane = start(processes, store, gpus, FLIGHTDECK_WATCHDOG_RETRIES_CAP="1")
    with a_source() as port:
        jobs: dict[str, int] = {}
        for name in ["wedge", "spin", *lively]:
            inputs = {"path": str(tmp_path / name)} | ({"port": port} if name == "downloading" else {})
            jobs[name] = add_node(db, node.get(name, name), inputs, queue="gpu")
        where = {name: device_of(gpus, tmp_path / name) for name in jobs}
        pids = {name: pid_in(tmp_path / name) for name in jobs}
        assert sorted(where.values()) == list(range(8)), "one job per device"
        for name, number in where.items():
            util = UNKNOWN if name == "unreadable" else 60 if name == "busy" else 2
            gpus.set(number, util=util, processes=[{"pid": pids[name], "mb": 1000}])

        swings = 0

        def both_have_failed() -> bool:
            nonlocal swings
            swings += 1
            if swings % 10 == 0:
                gpus.set(where["moving"], processes=[{"pid": pids["moving"], "mb": 1000 + swings % 20 * 50}])
            return all(status(db, jobs[name], TABLE) == "failed" for name in ("wedge", "spin"))

        eventually(both_have_failed, timeout_s=90, what="the wedged ones are tripped twice")
        for name in lively:
            seen = row(db, jobs[name], TABLE)
            assert (seen["status"], seen["attempt"], history(db, jobs[name])) == ("running", 1, []), name
        assert heartbeat(db, "gpu")["last_exit_code"] == 78

        for name, function in (("wedge", "wedge"), ("spin", "spin")):
            told = history(db, jobs[name])
            tripped = [event for event in told if event["cause"] == "trip"]
            assert len(tripped) == 2, (told, processes.log(lane))
            first, last = tripped
            assert (first["event_type"], first["exit_code"]) == ("requeued", 78)
            assert (last["event_type"], last["exit_code"]) == ("failed", 78)
            for event in (first, last):
                evidence = event["detail"]
                assert evidence["window_s"] == 1.5 and evidence["use_pct_max"] <= 2 and evidence["samples"] >= 5
                assert evidence["moved_mb"] < 31 and evidence["io_mib"] < 0.3 and evidence["elapsed_s"] >= 1.5
                assert function in evidence["stack"] and len(evidence["stack"]) <= 4000
            assert first["detail"]["pid"] == pids[name] and last["detail"]["pid"] != pids[name]
            failed = row(db, jobs[name], TABLE)
            assert failed["attempt"] == 2 and failed["watchdog_retries"] == 1
            assert "GPU at 2 % or less for 2 s" in failed["error"] and "no retries left (1 of 1" in failed["error"]
        told = db.all("select run_id, kind from workflow_dispatch_events order by run_id")
        runs = [row(db, jobs[name], TABLE)["run_id"] for name in ("wedge", "spin")]
        assert told == [{"run_id": run, "kind": "failed"} for run in sorted(runs)], "each run is told once"

        for name in lively:
            (tmp_path / f"{name}.go").touch()
        eventually(lambda: all(status(db, jobs[name], TABLE) == "completed" for name in lively))
        assert eventually(lambda: heartbeat(db, "gpu")["detail"].get("trips") == 4)
        stop(lane)


def test_a_node_that_falls_silent_is_suspected_and_goes_with_76_once_its_gpu_stands_still(
    store: Store, db: Db, processes: Processes, tmp_path: Path
) -> None:
    gpus = Gpus(tmp_path, card(util=90))
    lane = start(
        processes,
        store,
        gpus,
        "--exit-on-trip",
        FLIGHTDECK_STALL_SECONDS="0.5",
        FLIGHTDECK_HEALTH_WINDOW="0",
        FLIGHTDECK_HEALTH_WINDOW_BEATING="0",
    )
    job = add_node(db, "beat_once", {"path": str(tmp_path / "pid")}, queue="gpu")
    pid = pid_in(tmp_path / "pid")

    def suspected(why: str) -> dict[str, Any]:
        return eventually(lambda: next((e for e in history(db, job) if why in e["detail"]["reason"]), None), what=why)

    first = suspected("its GPU is at 90 %")
    assert (first["event_type"], first["cause"], first["attempt"], first["box"]) == ("stall_suspected", None, 1, "b1")
    gpus.set(0, util=UNKNOWN)
    suspected("not killed: GPU 0")
    gpus.driver(hang=True)
    suspected("no reading of its GPU")
    assert status(db, job, TABLE) == "running"

    gpus.set(0, util=0)
    gpus.driver(hang=False)
    assert lane.wait(60) == 76, processes.log(lane)
    gone(pid)
    *_, trip = history(db, job)
    assert (trip["event_type"], trip["cause"], trip["exit_code"]) == ("requeued", "trip", 76)
    assert len(trip["detail"]["samples"]) == 3 and all(look["use_pct"] == 0 for look in trip["detail"]["samples"])
    assert trip["detail"]["silent_s"] > 0.5 and "beat_once" in trip["detail"]["stack"]
    back = row(db, job, TABLE)
    assert (back["status"], back["is_priority"], back["watchdog_retries"]) == ("queued", True, 1)
    last = heartbeat(db, "gpu")
    assert (last["last_exit_code"], last["state"]) == (76, "stopping")
    assert last["last_exit_reason"].startswith("stall: no beat for")


def test_a_lane_of_several_slots_cannot_end_with_a_trip(processes: Processes, sqlite_store: Store) -> None:
    lane = start_lane(processes, sqlite_store, "--exit-on-trip", "--slots", "2")
    assert lane.wait(60) == 2
    assert "--exit-on-trip is for a lane of one slot" in processes.log(lane)


@pytest.mark.parametrize("how", ["no bindings", "no GPU"])
def test_on_a_machine_without_gpu_tools_a_gpu_node_may_use_its_processor(
    sqlite_store: Store, processes: Processes, tmp_path: Path, how: str
) -> None:
    """Q35."""
    gpus = Gpus(tmp_path)
    if how == "no bindings":
        gpus.driver(start_error="DRIVER_NOT_LOADED")
    lane = start(processes, sqlite_store, gpus, FLIGHTDECK_HEALTH_WINDOW="0.5")
    with sqlite_store.connect("test") as db:
        beats(db, "running", "gpu")
        job = add_node(db, "wedge", {"path": str(tmp_path / "pid")}, queue="gpu")
        pid_in(tmp_path / "pid")
        eventually(lambda: "gpu probe" in heartbeat(db, "gpu")["detail"].get("loops", {}), what="the lane says so")
        # Long after its window: the readings after that one count.
        eventually(lambda: (db.value("select count(*) from job_events") == 0) and _older(db, job, 2.0))
        assert status(db, job, TABLE) == "running"
        (tmp_path / "pid.go").touch()
        eventually(lambda: status(db, job, TABLE) == "completed")
    stop(lane)


def _older(db: Db, job: int, seconds: float) -> bool:
    return (db.now() - row(db, job, TABLE)["started_at"]).total_seconds() > seconds
