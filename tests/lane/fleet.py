"""Lanes as processes, and the rows that they work on."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

from engine.lane import tree
from engine.store import Db, Store
from tests.support import Processes, command, eventually

APP = "tests.apps.lane_jobs"
QUICK = {  # the same behaviour, sooner
    "FLIGHTDECK_LEADER_UP_SECONDS": "1",
    "FLIGHTDECK_RENEW_SECONDS": "1",
    "FLIGHTDECK_BEAT_SECONDS": "1",
}


def start_lane(
    processes: Processes,
    store: Store,
    *args: str,
    queue: str = "default",
    box: str = "b1",
    env: dict[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """A lane as a process of its own."""
    return processes.spawn(
        command("queue-claim-worker", "--queue", queue, "--db", store.url, "--box", box, "--app", APP, *args),
        env={**QUICK, **(env or {})},
    )


def start_orchestrator(processes: Processes, store: Store) -> subprocess.Popen[bytes]:
    return processes.spawn(command("queue-orchestrator", "--db", store.url, "--box", "head"), env=QUICK)


def add(db: Db, task: str, args: Any = None, queue: str = "default", **columns: Any) -> int:
    """Enqueue by a plain INSERT, as any program may."""
    values = {"task_name": task, "queue": queue, "args": json.dumps(args or {}), **columns}
    marks = ", ".join(f"{{{name}}}{{json}}" if name == "args" else f"{{{name}}}" for name in values)
    found = db.value(f"insert into ingest_jobs ({', '.join(values)}) values ({marks}) returning id", **values)
    assert isinstance(found, int)
    return found


def add_node(db: Db, node: str, inputs: dict[str, Any] | None = None, queue: str = "cpu", **columns: Any) -> int:
    """One node of a run of its own."""
    run_id = db.value("insert into workflow_runs (status) values ('running') returning id")
    values = {
        "run_id": run_id,
        "node_id": "n1",
        "node": node,
        "queue": queue,
        "inputs": json.dumps(inputs or {}),
        **columns,
    }
    marks = ", ".join(f"{{{name}}}{{json}}" if name == "inputs" else f"{{{name}}}" for name in values)
    found = db.value(f"insert into workflow_node_jobs ({', '.join(values)}) values ({marks}) returning id", **values)
    assert isinstance(found, int)
    return found


def row(db: Db, job_id: int, table: str = "ingest_jobs") -> dict[str, Any]:
    found = db.one(f"select * from {table} where id = {{id}}", id=job_id)
    assert found is not None
    return found


def status(db: Db, job_id: int, table: str = "ingest_jobs") -> str:
    return str(row(db, job_id, table)["status"])


def ended(db: Db, job_id: int, table: str = "ingest_jobs") -> dict[str, Any]:
    """The row once it is terminal."""
    eventually(lambda: status(db, job_id, table) in ("completed", "failed", "cancelled"), what=f"job {job_id} ends")
    return row(db, job_id, table)


def history(db: Db, job_id: int) -> list[dict[str, Any]]:
    return db.all("select * from job_events where job_id = {id} order by id", id=job_id)


def heartbeat(db: Db, queue: str = "default", box: str = "b1") -> dict[str, Any]:
    found = db.one("select * from worker_heartbeats where box = {box} and queue = {queue}", box=box, queue=queue)
    return found or {"state": None, "busy": None, "incarnation": None, "last_exit_code": None}


def beats(db: Db, state: str, queue: str = "default", box: str = "b1") -> dict[str, Any]:
    """The heartbeat once it says ``state``."""
    eventually(lambda: heartbeat(db, queue, box)["state"] == state, what=f"{box}/{queue} {state}")
    return heartbeat(db, queue, box)


def pid_in(path: Path) -> int:
    """The pid that a task wrote first."""
    return int(eventually(lambda: path.exists() and path.read_text().split(), what=str(path))[-1])


def runs(pid: int) -> bool:
    """The process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gone(*pids: int) -> None:
    eventually(lambda: not any(runs(pid) for pid in pids), what=f"processes {pids} end")


def stop(process: subprocess.Popen[bytes], expected: int = 0) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == expected


def children(pid: int) -> list[int]:
    """Pids of the processes that ``pid`` started, and those that these did (a lane's guard starts its executors)."""
    table = tree.processes()
    return [child for child in tree.descendants(table, [pid]) if table[child].state not in "ZX"]


def freeze(lane: subprocess.Popen[bytes], db: Db) -> None:
    """SIGSTOP; on SQLite not inside a write, where nobody else could write until the lane goes on."""
    while True:
        lane.send_signal(signal.SIGSTOP)
        if db.kind != "sqlite" or _writable(str(db.value("select file from pragma_database_list where name = 'main'"))):
            return
        lane.send_signal(signal.SIGCONT)


def _writable(path: str) -> bool:
    with contextlib.closing(sqlite3.connect(path, timeout=0.5, isolation_level=None)) as other:
        try:
            other.execute("begin immediate")
        except sqlite3.OperationalError:
            return False
        other.execute("rollback")
        return True
