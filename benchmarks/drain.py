"""How fast a backlog of no-op jobs is worked off: our lanes against procrastinate, pgqueuer and pgbench.

Every side gets a fresh database and a backlog that is there before it looks. Two rates from the database's own
timestamps: from the first claim to the last finish (what is checked), and the steady rate after the first tenth.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks import ours
from benchmarks.harness import BenchError, Report, alternate, finish_rate, median, number
from benchmarks.peers import pgbench_peer, pgqueuer_peer, procrastinate_peer
from benchmarks.processes import run, until
from benchmarks.server import Server

STEADY = "drain, steady (after the first tenth)"
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Sizes:
    """Rows per drain: so many that each side works for seconds; one number for all that are compared at 32 slots."""

    one: int = 3000
    ahead: int = 10_000
    many: int = 20_000
    slow: int = 1500  # peers one at a time
    rounds: int = 3


QUICK = Sizes(one=300, ahead=600, many=1000, slow=200, rounds=1)


@dataclass(frozen=True)
class Drained:
    """Jobs per second: first claim to last finish, and steady."""

    whole: float
    steady: float


def drained(times: Sequence[float], first_claim: float, jobs: int) -> Drained:
    if len(times) != jobs:
        raise BenchError(f"{len(times)} of {jobs} jobs were finished")
    return Drained(jobs / (max(times) - first_claim), finish_rate(times))


def our_side(server: Server, template: str, slots: int, ahead: bool, jobs: int) -> Callable[[], Drained]:
    """A lane that is up and has run something; then the backlog comes in one commit."""

    def measure() -> Drained:
        with (
            server.scratch("flightdeck", template) as url,
            ours.lane(server, url, slots, ahead=ahead) as child,
            ours.connect(url) as connection,
        ):
            warm = 50 + 10 * slots
            ours.load(connection, warm)
            until(lambda: ours.finished(connection, warm), TIMEOUT_S, "warm-up", child=child)
            ours.load(connection, jobs)
            until(lambda: ours.finished(connection, warm + jobs), TIMEOUT_S, "drain", every_s=0.25, child=child)
            rows = connection.execute(
                """
                select extract(epoch from finished_at)::float8, extract(epoch from claimed_at)::float8
                from ingest_jobs where status = 'completed' order by id desc limit %s
                """,
                [jobs],
            ).fetchall()
            ours.verify(connection, warm + jobs)
            return drained([row[0] for row in rows], min(row[1] for row in rows), jobs)

    return measure


class Peer:
    """A peer module with its template database; a drain is its own process."""

    def __init__(self, server: Server, module: str, finished: str, started: str, options: Sequence[str] = ()) -> None:
        self.server, self.module, self.finished, self.started = server, module, finished, started
        self.options = list(options)
        self.template = server.create(module.split("_")[0])
        self.call("install", self.template)

    def call(self, what: str, url: str, *more: str) -> None:
        args = [sys.executable, "-m", f"benchmarks.peers.{self.module}", what, "--url", url, *more]
        run(args, self.server.log(f"{self.module}-{what}"), TIMEOUT_S)

    def side(self, jobs: int, *settings: str) -> Callable[[], Drained]:
        def measure() -> Drained:
            with self.server.scratch(self.module, self.template) as url:
                self.call("enqueue", url, "--jobs", str(jobs), *self.options)
                with ours.connect(url) as connection:
                    connection.execute("analyze")
                    self.call("drain", url, *self.options, *settings)
                    times = [row[0] for row in connection.execute(self.finished)]
                    return drained(times, float(ours.value(connection, self.started)), jobs)

        return measure

    def best(self, jobs: int, grid: Sequence[Sequence[str]], say: Callable[[str], None]) -> Sequence[str]:
        """The settings of the grid that drained fastest, tried once each; by the steady rate, which flatters it."""
        rates = {}
        for settings in grid:
            try:
                rates[tuple(settings)] = self.side(jobs, *settings)().steady
            except BenchError as error:
                say(f"{self.module} {' '.join(settings)}: {error}")
        if not rates:
            raise BenchError(f"{self.module}: no setting worked")
        chosen = max(rates, key=lambda s: rates[s])
        say(
            f"{self.module} {' '.join(self.options)} best of {len(grid)}: {' '.join(chosen)} ({number(rates[chosen])}/s)"
        )
        return chosen


def pgbench_side(server: Server, jobs: int) -> Callable[[], Drained]:
    script = server.work / "claim_complete.sql"
    script.write_text(pgbench_peer.SCRIPT)

    def measure() -> Drained:
        with server.scratch("pgbench") as url, ours.connect(url) as connection:
            connection.execute(pgbench_peer.SCHEMA)
            connection.execute(pgbench_peer.LOAD, {"jobs": jobs})
            connection.execute("analyze")
            run(
                pgbench_peer.command(str(server.bin / "pgbench"), url, str(script), jobs),
                server.log("pgbench"),
                TIMEOUT_S,
            )
            times = [row[0] for row in connection.execute(pgbench_peer.FINISHED)]
            return drained(times, float(ours.value(connection, pgbench_peer.STARTED)), jobs)

    return measure


def measure(server: Server, report: Report, sizes: Sizes, say: Callable[[str], None]) -> None:
    """All sides, alternating; lines, ratios and the bounds that must hold."""
    template = ours.template(server)
    procrastinate = Peer(server, "procrastinate_peer", procrastinate_peer.FINISHED, procrastinate_peer.STARTED)
    psycopg_ = Peer(server, "pgqueuer_peer", pgqueuer_peer.FINISHED, pgqueuer_peer.STARTED, ["--driver", "psycopg"])
    asyncpg_ = Peer(server, "pgqueuer_peer", pgqueuer_peer.FINISHED, pgqueuer_peer.STARTED, ["--driver", "asyncpg"])
    queuer_grid = [["--batch", str(b), "--consumers", str(c)] for b, c in pgqueuer_peer.GRID]
    best_procrastinate = procrastinate.best(
        sizes.slow, [["--concurrency", str(c)] for c in procrastinate_peer.GRID], say
    )
    best_psycopg = psycopg_.best(sizes.many, queuer_grid, say)
    best_asyncpg = asyncpg_.best(sizes.many, queuer_grid, say)
    one = "ours, 1 slot"
    sides = {
        one: our_side(server, template, 1, False, sizes.one),
        f"{one}, ahead": our_side(server, template, 1, True, sizes.ahead),
        "ours, 4 slots": our_side(server, template, 4, False, sizes.ahead),
        "ours, 4 slots, ahead": our_side(server, template, 4, True, sizes.ahead),
        "ours, 32 slots": our_side(server, template, 32, False, sizes.many),
        "ours, 32 slots, ahead": our_side(server, template, 32, True, sizes.many),
        "procrastinate, concurrency 1": procrastinate.side(sizes.slow, "--concurrency", "1"),
        "procrastinate, best": procrastinate.side(sizes.slow, *best_procrastinate),
        "pgqueuer/psycopg, batch 1": psycopg_.side(sizes.slow, "--batch", "1"),
        "pgqueuer/psycopg, best": psycopg_.side(sizes.many, *best_psycopg),
        "pgqueuer/asyncpg, best": asyncpg_.side(sizes.many, *best_asyncpg),
        "pgbench, 1 connection": pgbench_side(server, sizes.one),
    }
    notes = {
        "procrastinate, best": " ".join(best_procrastinate),
        "pgqueuer/psycopg, best": " ".join(best_psycopg),
        "pgqueuer/asyncpg, best": " ".join(best_asyncpg),
    }
    values = alternate(sides, sizes.rounds, say)
    whole, steady = {}, {}
    for name, rounds in values.items():
        found = [v if isinstance(v, Drained) else Drained(math.nan, math.nan) for v in rounds]
        whole[name] = report.line("drain", name, "jobs/s", [v.whole for v in found], notes.get(name, ""))
        steady[name] = report.line(STEADY, name, "jobs/s", [v.steady for v in found], notes.get(name, ""))
    for lines, bound in ((whole, True), (steady, False)):
        for peer in ("procrastinate, concurrency 1", "pgqueuer/psycopg, batch 1"):
            report.ratio(lines[one], lines[peer], at_least=2.5 if bound else None)
            report.ratio(lines[f"{one}, ahead"], lines[peer], at_least=10 if bound else None)
        fastest = max(("ours, 32 slots", "ours, 32 slots, ahead"), key=lambda n: median(lines[n].values))
        report.ratio(lines[fastest], lines["procrastinate, best"])
        report.ratio(lines[fastest], lines["pgqueuer/psycopg, best"], at_least=2 if bound else None)
        report.ratio(lines[fastest], lines["pgqueuer/asyncpg, best"])
        report.ratio(lines[one], lines["pgbench, 1 connection"])
        report.ratio(lines[f"{one}, ahead"], lines["pgbench, 1 connection"])
