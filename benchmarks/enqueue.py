"""Bulk enqueue: `engine.enqueue_many` against raw COPY into the same table, and against the peers' bulk calls.

The raw side streams ready-made text: the least that a COPY of these columns can cost. Both sides fire the table's
triggers and commit once. The table is emptied before every side.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import ours
from benchmarks.drain import Peer
from benchmarks.harness import Report, alternate
from benchmarks.peers import pgqueuer_peer, procrastinate_peer
from benchmarks.processes import run
from benchmarks.server import Server


@dataclass(frozen=True)
class Sizes:
    rows: int = 50_000
    peer_rows: int = 20_000
    rounds: int = 5


QUICK = Sizes(rows=5000, peer_rows=2000, rounds=2)


def through_engine(url: str, rows: int) -> float:
    """Rows per second by the public call, payloads checked and serialised as for anyone."""
    import engine

    args = [{"n": n, "source": "s3://bucket/key"} for n in range(rows)]
    begun = time.perf_counter()
    ids = engine.enqueue_many(task_name="noop", queue=ours.QUEUE, args_list=args)
    seconds = time.perf_counter() - begun
    assert len(ids) == rows
    return rows / seconds


def raw_copy(url: str, rows: int) -> float:
    """Rows per second of COPY into the same columns."""
    text = "".join(f'noop\t{ours.QUEUE}\t{{"n": {n}, "source": "s3://bucket/key"}}\n' for n in range(rows)).encode()
    with ours.connect(url) as connection:
        begun = time.perf_counter()
        with connection.cursor().copy("copy ingest_jobs (task_name, queue, args) from stdin") as copy:
            for start in range(0, len(text), 1 << 16):
                copy.write(text[start : start + (1 << 16)])
        return rows / (time.perf_counter() - begun)


def emptied(url: str, side: Callable[[str, int], float], rows: int) -> Callable[[], float]:
    def measure() -> float:
        with ours.connect(url) as connection:
            connection.execute("truncate ingest_jobs")
            connection.execute("checkpoint")
        return side(url, rows)

    return measure


def peer_side(peer: Peer, rows: int) -> Callable[[], float]:
    def measure() -> float:
        with peer.server.scratch(peer.module, peer.template) as url:
            log = peer.server.log(f"{peer.module}-enqueue")
            args = [sys.executable, "-m", f"benchmarks.peers.{peer.module}", "enqueue", "--url", url]
            run([*args, "--jobs", str(rows), *peer.options], log, 120)
            return rows / float(log.read_text().strip().splitlines()[-1])

    return measure


def measure(server: Server, report: Report, sizes: Sizes, say: Callable[[str], None]) -> None:
    import benchmarks.app  # noqa: F401  (registers the task that is enqueued)
    import engine

    url = ours.template(server)
    os.environ["FLIGHTDECK_DB_URL"] = url
    engine.configure(db_url=url)
    procrastinate = Peer(server, "procrastinate_peer", procrastinate_peer.FINISHED, procrastinate_peer.STARTED)
    pgqueuer = Peer(server, "pgqueuer_peer", pgqueuer_peer.FINISHED, pgqueuer_peer.STARTED, ["--driver", "asyncpg"])
    values = alternate(
        {
            "enqueue_many": emptied(url, through_engine, sizes.rows),
            "raw COPY, same table": emptied(url, raw_copy, sizes.rows),
            "pgqueuer/asyncpg, 1,000 a call": peer_side(pgqueuer, sizes.peer_rows),
            "procrastinate, 1,000 a call": peer_side(procrastinate, sizes.peer_rows),
        },
        sizes.rounds,
        say,
    )
    lines = {name: report.line("enqueue", name, "rows/s", rounds) for name, rounds in values.items()}
    mine, raw, *peers = lines.values()
    report.ratio(mine, raw, at_least=0.5)
    for peer in peers:
        report.ratio(mine, peer)
