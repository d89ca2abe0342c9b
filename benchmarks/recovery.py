"""How soon work comes back: after kill -9 of an executor or a lane, after a cut cable, from a lane that was stopped.

The same again with lanes whose wall clock is ten minutes off. Every kill is a real SIGKILL to a real process that runs a job; the end of each sample is what a query by somebody else
sees. The leader counts a missing session only when it and the server have been up for 30 s, so the run waits first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import cable, ours
from benchmarks.harness import BenchError, Report
from benchmarks.processes import ROOT, Child, script, until
from benchmarks.server import Server

SETTLE_S = 35.0
SKEW_S = 600
WRONG_CLOCK = {  # the interpreter's time of day is shifted before anything of ours is imported
    "PYTHONPATH": os.pathsep.join((str(ROOT / "tests" / "chaos" / "site"), str(ROOT))),
    "CHAOS_SKEW_S": str(SKEW_S),
}


@dataclass(frozen=True)
class Sizes:
    executors: int = 50
    lanes: int = 30
    frozen: int = 1
    cables: int = 10


QUICK = Sizes(executors=3, lanes=2, frozen=0, cables=1)


class Holder:
    """Jobs that run until their process is killed, and where they run."""

    def __init__(self, connection: psycopg.Connection[Any], folder: Path) -> None:
        self.connection, self.folder = connection, folder
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
        self.number = 0

    def start(self) -> tuple[int, int, str]:
        """Queue one; (job id, pid of its executor, box) once its code runs."""
        self.number += 1
        path = self.folder / f"held-{self.number}-{time.monotonic_ns()}"
        job = ours.value(
            self.connection,
            "insert into ingest_jobs (task_name, args, max_attempts) values ('hold', jsonb_build_object('path', %s::text), 1)"
            " returning id",
            str(path),
        )
        until(path.exists, 30, "job that holds")
        box = ours.value(self.connection, "select claimed_box from ingest_jobs where id = %s", job)
        return job, int(path.read_text()), box

    def finished(self, job: int) -> None:
        look = "select status = 'completed' from ingest_jobs where id = %s"
        until(lambda: ours.value(self.connection, look, job), 30, f"job {job} at its second attempt")


def alive(pid: int) -> bool:
    """True while a process runs that is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def executor_kill(holder: Holder) -> float:
    """Seconds from kill -9 of an executor until its job is queued again (its event is there), or further."""
    job, pid, _ = holder.start()
    begun = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    look = "select 1 from job_events where job_id = %s and event_type = 'requeued' and cause = 'executor_died'"
    until(lambda: ours.value(holder.connection, look, job), 30, "requeue", every_s=0.005)
    took = time.monotonic() - begun
    holder.finished(job)
    return took


def lane_kill(holder: Holder, lanes: dict[str, Child], restart: Callable[[str], Child]) -> tuple[float, float]:
    """Seconds from kill -9 of a lane until another lane has claimed its job, and until its executor is gone."""
    job, pid, box = holder.start()
    begun = time.monotonic()
    os.kill(lanes[box].pid, signal.SIGKILL)
    until(lambda: not alive(pid), 30, "end of the executor", every_s=0.005)
    gone = time.monotonic() - begun
    look = "select 1 from ingest_jobs where id = %s and claimed_box is distinct from %s and attempt > 1"
    until(lambda: ours.value(holder.connection, look, job, box), 60, "claim by another lane", every_s=0.01)
    took = time.monotonic() - begun
    holder.finished(job)
    lanes[box].stop(0.1)
    lanes[box] = restart(box)
    return took, gone


def frozen_lane(holder: Holder, lanes: dict[str, Child]) -> tuple[float, float]:
    """Seconds until a SIGSTOPped lane's job is with another; after SIGCONT, until its executor is gone.

    Raises AssertionError when the lane that continues changes anything about the job.
    """
    job, pid, box = holder.start()
    begun = time.monotonic()
    lanes[box].signal(signal.SIGSTOP)
    look = "select 1 from ingest_jobs where id = %s and claimed_box is distinct from %s and attempt > 1"
    until(lambda: ours.value(holder.connection, look, job, box), 120, "claim by another lane", every_s=0.05)
    took = time.monotonic() - begun
    holder.finished(job)
    facts = "select row(status, attempt, fencing_token, claimed_box, result, finished_at)::text from ingest_jobs where id = %s"
    before = ours.value(holder.connection, facts, job)
    resumed = time.monotonic()
    lanes[box].signal(signal.SIGCONT)
    until(lambda: not alive(pid), 60, "end of the frozen lane's executor", every_s=0.01)
    gone = time.monotonic() - resumed
    time.sleep(2.0)  # it has had the time to write, had it been able to
    assert ours.value(holder.connection, facts, job) == before, "a lane that was frozen changed a job given away"
    return took, gone


def start_lane(server: Server, url: str, box: str, env: dict[str, str], prefix: Sequence[str] = ()) -> Child:
    args = [*prefix, script("queue-claim-worker"), "--queue", ours.QUEUE, "--slots", "1", "--db", url]
    args += ["--box", box, "--app", "benchmarks.app", "--log-level", "warning"]
    return Child(args, server.log(f"lane-{box}"), {"XDG_DATA_HOME": str(server.work / box), **env})


def measure(server: Server, report: Report, sizes: Sizes, say: Callable[[str], None]) -> None:
    for group, env in (("recovery", {}), (f"recovery, clocks {SKEW_S} s off", WRONG_CLOCK)):
        measure_kills(server, report, sizes, say, group, env)
        try:
            add(report, group, "cable cut -> claimed by another", cables(server, sizes, say, env), 20.0)
        except BenchError as error:
            report.notes.append(f"{group}: cable not measured: {error}")
            say(str(error))


def measure_kills(
    server: Server, report: Report, sizes: Sizes, say: Callable[[str], None], group: str, env: dict[str, str]
) -> None:
    template = ours.template(server)
    with server.scratch("recovery", template) as url, ours.orchestrator(server, url), ours.connect(url) as connection:
        holder = Holder(connection, server.work / "held")
        lanes: dict[str, Child] = {}

        def start(box: str) -> Child:
            child = start_lane(server, url, box, env)
            until(lambda: ours.lane_is_up(connection, box, ours.QUEUE, 1), 60, f"lane {box}", child=child)
            return child

        def restart(box: str) -> Child:
            connection.execute("update worker_heartbeats set state = 'stopping' where box = %s", [box])
            return start(box)

        try:
            lanes["left"] = start("left")
            begun = time.monotonic()
            executors = [executor_kill(holder) for _ in range(sizes.executors)]
            say(f"{len(executors)} executors killed")
            lanes["right"] = start("right")
            time.sleep(max(0.0, SETTLE_S - (time.monotonic() - begun)))
            killed = []
            for turn in range(sizes.lanes):
                killed.append(lane_kill(holder, lanes, restart))
                say(f"lane {turn + 1} of {sizes.lanes} killed: claimed by the other after {killed[-1][0]:.2f} s")
            stopped = [frozen_lane(holder, lanes) for _ in range(sizes.frozen)]
        finally:
            for child in lanes.values():
                with contextlib.suppress(OSError):
                    child.stop(2.0)
    add(report, group, "executor killed -> queued again", executors, 1.0)
    add(report, group, "lane killed -> claimed by another", [took for took, _ in killed], 5.0)
    add(report, group, "lane killed -> its executor gone", [gone for _, gone in killed])
    if stopped:
        add(report, group, "lane frozen -> job with another", [took for took, _ in stopped])
        add(report, group, "lane continues -> its executor gone, nothing changed", [gone for _, gone in stopped])


def cables(server: Server, sizes: Sizes, say: Callable[[str], None], env: dict[str, str]) -> list[float]:
    """Seconds from each cut of the cable of a busy lane until a lane on this side has its job. Raises BenchError."""
    from engine.store import open_store
    from engine.store.migrate import migrate

    if not sizes.cables:
        return []
    took = []
    with cable.laid() as wire, cable.tcp_server(wire.near) as url:
        migrate(open_store(url))
        with ours.connect(url) as connection, ours.orchestrator(server, url):
            folder = server.work / f"cut-{time.monotonic_ns()}"
            holder = Holder(connection, folder)
            far = start_lane(server, url, "far", env, wire.prefix)
            near: Child | None = None
            try:
                until(lambda: ours.lane_is_up(connection, "far", ours.QUEUE, 1), 60, "far lane", child=far)
                time.sleep(SETTLE_S)
                for turn in range(sizes.cables):
                    job, pid, _ = holder.start()  # no other lane is there to take it
                    near = start_lane(server, url, "near", env)
                    until(lambda: ours.lane_is_up(connection, "near", ours.QUEUE, 1), 60, "near lane", child=near)
                    took.append(cut_once(holder, wire, job))
                    say(f"cable {turn + 1} of {sizes.cables} cut: claimed by the other after {took[-1]:.2f} s")
                    until(lambda p=pid: not alive(p), 60, "end of the executor beyond the cable")  # type: ignore[misc]
                    near.stop()
            finally:
                wire.mend()
                for child in (far, near):
                    if child is not None:
                        child.stop(2.0)
    return took


def cut_once(holder: Holder, wire: cable.Cable, job: int) -> float:
    """Cut, wait for the job to be claimed on this side and done, mend."""
    begun = time.monotonic()
    wire.cut()
    look = "select 1 from ingest_jobs where id = %s and claimed_box = 'near' and attempt > 1"
    until(lambda: ours.value(holder.connection, look, job), 90, "claim on this side of the cable", every_s=0.02)
    took = time.monotonic() - begun
    holder.finished(job)
    facts = "select row(status, attempt, fencing_token, claimed_box, result, finished_at)::text from ingest_jobs where id = %s"
    before = ours.value(holder.connection, facts, job)
    wire.mend()
    told = "select 1 from job_events where job_id = %s and event_type = 'lost_claim' and exit_code = 77"
    until(lambda: ours.value(holder.connection, told, job), 60, "the lane beyond the cable learns of its loss")
    assert ours.value(holder.connection, facts, job) == before, "a lane beyond a cut cable changed a job given away"
    return took


def add(report: Report, group: str, name: str, seconds: list[float], at_most: float | None = None) -> None:
    if seconds:
        report.line(group, name, "s", seconds, f"maximum {max(seconds):.2f} s")
        if at_most is not None:
            report.check(group, f"{name}, maximum of {len(seconds)}", max(seconds), at_most=at_most)
