"""A database restart under eight busy lanes: is anything queued again or lost, and how soon does the drain go on?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import ours
from benchmarks.harness import Report
from benchmarks.processes import Child, until
from benchmarks.server import Server

LANES, SLOTS = 8, 2


@dataclass(frozen=True)
class Sizes:
    jobs: int = 6000
    restarts: int = 4


QUICK = Sizes(jobs=1500, restarts=1)


def measure(server: Server, report: Report, sizes: Sizes, say: Callable[[str], None]) -> None:
    from engine.store import open_store
    from engine.store.migrate import migrate
    from tests.chaos.server import OwnPostgres

    folder = server.work / "restart"
    folder.mkdir()
    folder.chmod(0o755)
    own = OwnPostgres(folder)
    lanes: list[Child] = []
    resumed: list[float] = []
    try:
        migrate(open_store(own.url))
        with ours.orchestrator(server, own.url):
            lanes = [ours.start_lane(server, own.url, SLOTS, f"box{n}", ahead=False) for n in range(LANES)]
            with ours.connect(own.url) as connection:
                for n in range(LANES):
                    until(lambda b=f"box{n}": ours.lane_is_up(connection, b, ours.QUEUE, SLOTS), 60, f"lane {n}")  # type: ignore[misc]
                connection.execute(
                    "insert into ingest_jobs (task_name, args) select 'doze', '{\"seconds\": 0.1}' from generate_series(1, %s)",
                    [sizes.jobs],
                )
            for turn in range(sizes.restarts):
                time.sleep(4.0)
                own.restart("fast" if turn % 2 == 0 else "immediate", 2.0)
                back = time.monotonic()
                with ours.connect(own.url) as connection:
                    before = ours.value(connection, "select count(*) from executions")
                    until(
                        lambda c=connection, b=before: (
                            ours.value(c, "select count(*) from executions") > b + LANES * SLOTS
                        ),
                        60,
                        "drain",
                        every_s=0.02,
                    )  # type: ignore[misc]
                resumed.append(time.monotonic() - back)
                say(f"restart {turn + 1} of {sizes.restarts}: the drain went on after {resumed[-1]:.2f} s")
            with ours.connect(own.url) as connection:
                until(lambda: ours.finished(connection, sizes.jobs), 180, "drain")
                again = ours.value(
                    connection,
                    "select count(*) from job_events where event_type = 'requeued' and cause <> 'handed_back'",
                )
    finally:
        for lane in lanes:
            lane.stop(3.0)
        own.close()
    report.line(
        "restart",
        f"database back -> {LANES} lanes of {SLOTS} drain again",
        "s",
        resumed,
        f"maximum {max(resumed):.2f} s",
    )
    report.check("restart", f"drain goes on, maximum of {len(resumed)}", max(resumed), at_most=5.0)
    report.check("restart", "running jobs queued again", float(again), at_most=0.0)
