"""pgqueuer: one process, uvloop as in its own benchmark, drivers psycopg and asyncpg.

Its documented knob is `batch_size`; its benchmark also runs several consumers in one process. The schema is its
default durability (`durable`: logged tables) with its autovacuum settings (`pgq autovac`). Its log aggregation timer
is off. A finished job is deleted from the queue and logged; there is no fence.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from datetime import timedelta
from typing import Any

FINISHED = "select extract(epoch from created)::float8 from pgqueuer_log where status = 'successful'"
STARTED = "select extract(epoch from min(created))::float8 from pgqueuer_log where status = 'picked'"
GRID = ((10, 5), (100, 1), (100, 5), (500, 1))  # (batch size, consumers); the best is found at the start of a run
CHUNK = 1000  # jobs per enqueue call


async def _connect(url: str, driver: str) -> Any:
    if driver == "asyncpg":
        import asyncpg
        from pgqueuer.db import AsyncpgDriver

        return AsyncpgDriver(await asyncpg.connect(url))
    import psycopg
    from pgqueuer.db import PsycopgDriver

    return PsycopgDriver(await psycopg.AsyncConnection.connect(url, autocommit=True))


async def install(url: str) -> None:
    from pgqueuer.queries import Queries

    queries = Queries(await _connect(url, "asyncpg"))
    await queries.install()
    await queries.optimize_autovacuum()


async def enqueue(url: str, driver: str, jobs: int) -> float:
    """Bulk enqueue; returns seconds."""
    from pgqueuer.queries import Queries

    queries = Queries(await _connect(url, driver))
    begun = time.perf_counter()
    for start in range(0, jobs, CHUNK):
        n = min(CHUNK, jobs - start)
        await queries.enqueue(["noop"] * n, [None] * n, [0] * n)
    return time.perf_counter() - begun


async def drain(url: str, driver: str, batch: int, consumers: int) -> None:
    """Work until nothing is queued."""
    from pgqueuer import PgQueuer
    from pgqueuer.types import QueueExecutionMode

    queuers = [PgQueuer(await _connect(url, driver)) for _ in range(consumers)]
    for queuer in queuers:

        @queuer.entrypoint("noop")
        async def noop(job: Any) -> None:
            return None

    await asyncio.gather(
        *(
            queuer.run(batch_size=batch, mode=QueueExecutionMode.drain, log_aggregation_interval=timedelta(0))
            for queuer in queuers
        )
    )


def main() -> None:
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("install", "enqueue", "drain"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--driver", choices=("psycopg", "asyncpg"), default="psycopg")
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--consumers", type=int, default=1)
    asked = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    if asked.what == "install":
        uvloop.run(install(asked.url))
    elif asked.what == "enqueue":
        print(uvloop.run(enqueue(asked.url, asked.driver, asked.jobs)))
    else:
        uvloop.run(drain(asked.url, asked.driver, asked.batch, asked.consumers))


if __name__ == "__main__":
    main()
