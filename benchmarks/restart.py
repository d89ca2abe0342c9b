"""A database restart under eight busy lanes: is anything queued again or lost, and how soon does the drain go on?

Then a database that is stopped for a minute under a recorder and a deck: when does the deck say so, when is it live again,
and is there a hole in the traces afterwards?
"""

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
    away_s: float = 60.0


QUICK = Sizes(jobs=1500, restarts=1, away_s=11.0)


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
    away(server, report, sizes.away_s, say)


def away(server: Server, report: Report, down_s: float, say: Callable[[str], None]) -> None:
    """The database stopped for ``down_s`` seconds under a recorder at 2 s and the deck's feed and model."""
    from engine.store import open_store
    from engine.store.migrate import migrate
    from tests.chaos.server import OwnPostgres
    from tests.feed import outage

    folder = server.work / "away"
    folder.mkdir()
    folder.chmod(0o755)
    own = OwnPostgres(folder)
    try:
        store = open_store(own.url)
        migrate(store)
        story = outage.run(store, own.stop, own.start, down_s, cadence_s=2.0)
    finally:
        own.close()
    if story.failure is not None:
        raise story.failure
    report.line("restart", f"database away for {down_s:.0f} s: stopped -> the deck says so", "s", [story.lost_after_s])
    report.line("restart", "started again -> the deck is live", "s", [story.live_after_s])
    report.line(
        "restart", "started again -> traces without a hole", "s", [story.whole_after_s], f"{story.slots} slots of 5 s"
    )
    report.check("restart", "traces with a hole", float(len(story.holes)), at_most=0.0)
    report.check("restart", "longest pause between tries, s", max(story.tries), at_most=30.0)
    say(f"away for {down_s:.0f} s: live again after {story.live_after_s:.1f} s, holes: {story.holes or 'none'}")
