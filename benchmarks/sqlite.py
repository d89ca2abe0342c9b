"""Four lanes of one box drain one SQLite file: how fast in all, whether anybody hears of a lock, whether leases stay young.

Beside the no-ops each lane runs one job that lasts, with a lease that is renewed every second: how old such a lease ever
gets while four writers compete tells whether the renewer starves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Report, finish_rate
from benchmarks.processes import Child, script, until
from benchmarks.server import Server

LANES, SLOTS, LEASE_S, RENEW_S = 4, 2, 60.0, 1.0


@dataclass(frozen=True)
class Sizes:
    jobs: int = 20_000
    rounds: int = 3


QUICK = Sizes(jobs=2000, rounds=1)


def drain(server: Server, folder: Path, jobs: int) -> tuple[float, float, float, int]:
    """Jobs a second (whole, steady), the oldest age of a lease in seconds, and how many log lines tell of a lock."""
    from engine.store import open_store
    from engine.store.migrate import migrate

    folder.mkdir()
    store = open_store(f"sqlite:///{folder / 'bench_test.db'}")
    migrate(store)
    lanes: list[Child] = []
    try:
        with store.connect("bench") as db:
            for n in range(LANES):
                args = [
                    script("queue-claim-worker"),
                    "--queue",
                    "default",
                    "--slots",
                    str(SLOTS + 1),
                    "--db",
                    store.url,
                ]
                args += ["--box", f"box{n}", "--app", "benchmarks.app", "--log-level", "warning"]
                args += ["--lease-seconds", str(LEASE_S)]
                env = {"FLIGHTDECK_RENEW_SECONDS": str(RENEW_S), "XDG_DATA_HOME": str(folder / "data")}
                lanes.append(Child(args, server.log(f"sqlite-{n}"), env))
                db.run(
                    "insert into ingest_jobs (task_name, args, only_boxes) values ('hold', {args}, {boxes})",
                    args=f'{{"path": "{folder / f"held-{n}"}"}}',
                    boxes=[f"box{n}"],
                )
            until(lambda: len(list(folder.glob("held-?"))) == LANES, 60, "four lanes with a job that lasts")
            with db.transaction():
                db.copy("ingest_jobs", ["task_name", "queue"], [("noop", "default")] * jobs)
            begun = time.monotonic()
            oldest = 0.0

            def done() -> bool:
                nonlocal oldest
                age = db.value(
                    "select max((julianday('now') - julianday(lease_expires_at)) * 86400.0 + {lease}) as age "
                    "from ingest_jobs where status = 'running' and task_name = 'hold'",
                    lease=LEASE_S,
                )
                oldest = max(oldest, float(age))
                return int(db.value("select count(*) as n from executions")) >= jobs

            until(done, 120, "drain", every_s=0.2)
            took = time.monotonic() - begun
            times = [
                float(row["ended_s"])
                for row in db.all(
                    "select (julianday(finished_at) - 2440587.5) * 86400.0 as ended_s from ingest_jobs where status = 'completed'"
                )
            ]
    finally:
        for lane in lanes:
            lane.stop(3.0)
    locked = sum("locked" in line.lower() for lane in lanes for line in lane.log.read_text().splitlines())
    return jobs / took, finish_rate(times), oldest, locked


def measure(server: Server, report: Report, sizes: Sizes, say: Callable[[str], None]) -> None:
    rounds = []
    for turn in range(sizes.rounds):
        rounds.append(drain(server, server.work / f"sqlite-{turn}", sizes.jobs))
        say(
            f"round {turn + 1}: {rounds[-1][0]:,.0f} jobs/s, oldest lease {rounds[-1][2]:.1f} s, {rounds[-1][3]} told of a lock"
        )
    whole, steady, oldest, locked = zip(*rounds, strict=True)
    name = f"sqlite, {LANES} lanes, {sizes.jobs:,} jobs"
    report.line("sqlite", f"{name}, whole", "jobs/s", list(whole))
    report.line("sqlite", f"{name}, steady", "jobs/s", list(steady))
    report.line("sqlite", f"age of a lease that is renewed every {RENEW_S:g} s", "s", list(oldest))
    report.check("sqlite", "jobs a second, the slowest round", min(whole), at_least=1000.0)
    report.check("sqlite", "log lines that tell of a lock", float(sum(locked)), at_most=0.0)
    report.check("sqlite", "oldest lease, seconds", max(oldest), at_most=3 * RENEW_S)
