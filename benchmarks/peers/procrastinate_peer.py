"""procrastinate: one worker, asyncio, psycopg pool. Its documented knobs are `concurrency` and the pool's size.

Jobs are async no-ops (its fastest kind: sync ones go through a thread). Jobs are kept after success (its default), as
ours are. Its log is at WARNING. LISTEN stays on, as by default.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time

FINISHED = "select extract(epoch from at)::float8 from procrastinate_events where type = 'succeeded'"
STARTED = "select extract(epoch from min(at))::float8 from procrastinate_events where type = 'started'"
GRID = (10, 30, 100)  # concurrency; the best one is found at the start of a run
CHUNK = 1000  # jobs per batch_defer


def _app(url: str, concurrency: int):  # type: ignore[no-untyped-def]
    import procrastinate

    # Every running job may want a connection for its completion, one is for fetching, one listens.
    app = procrastinate.App(
        connector=procrastinate.PsycopgConnector(conninfo=url, min_size=1, max_size=min(concurrency, 30) + 2)
    )

    @app.task(name="noop")
    async def noop() -> None:
        return None

    return app, noop


async def install(url: str) -> None:
    app, _ = _app(url, 1)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def enqueue(url: str, jobs: int) -> float:
    """Bulk enqueue; returns seconds."""
    app, noop = _app(url, 1)
    async with app.open_async():
        begun = time.perf_counter()
        for start in range(0, jobs, CHUNK):
            await noop.batch_defer_async(*[{} for _ in range(min(CHUNK, jobs - start))])
        return time.perf_counter() - begun


async def drain(url: str, concurrency: int) -> None:
    """Work until nothing is queued."""
    app, _ = _app(url, concurrency)
    async with app.open_async():
        await app.run_worker_async(wait=False, concurrency=concurrency, install_signal_handlers=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("install", "enqueue", "drain"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--concurrency", type=int, default=1)
    asked = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    if asked.what == "install":
        asyncio.run(install(asked.url))
    elif asked.what == "enqueue":
        print(asyncio.run(enqueue(asked.url, asked.jobs)))
    else:
        asyncio.run(drain(asked.url, asked.concurrency))


if __name__ == "__main__":
    main()
