"""The host app of a chaos run (`--app tests.chaos.app`): tasks that leave traces which the verdict can count."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engine
from engine import registry


def plain(seconds: float = 0.0) -> dict[str, Any]:
    time.sleep(seconds)
    return {"slept": seconds}


def steps(ctx: Any, seconds: float = 0.5) -> dict[str, Any]:
    """Reports its progress, heeds a cancel."""
    for part in range(10):
        if ctx.cancelled():
            return {"part": part}
        ctx.progress(part * 10, f"part {part}")
        time.sleep(seconds / 10)
    return {"parts": 10}


def effect(ctx: Any, seconds: float = 0.0, value: int = 0, **_: Any) -> dict[str, Any]:
    """Its own row and its completion in one transaction: the row is there exactly as often as the job completed."""
    time.sleep(seconds)
    result = {"value": value}
    with _transaction() as conn:
        job = ctx.job
        conn.execute(
            f"insert into chaos_effects (job_id, fence, attempt, worker) values "
            f"({job.id}, {job.fencing_token}, {job.attempt}, '{job.worker}')"
        )
        time.sleep(min(0.05, seconds / 4))
        engine.complete_job(conn, job, result)
    return result


def flaky(ctx: Any, fails: int = 1, seconds: float = 0.0) -> dict[str, Any]:
    """Fails in its first attempts."""
    time.sleep(seconds)
    if ctx.job.attempt <= fails:
        raise RuntimeError(f"attempt {ctx.job.attempt} fails on purpose")
    return {"attempt": ctx.job.attempt}


def doomed(seconds: float = 0.0) -> None:
    time.sleep(seconds)
    raise RuntimeError("fails every time")


def endure(ctx: Any, seconds: float = 90.0) -> dict[str, Any]:
    """The first attempt says who it is and runs until it is killed; a later one ends at once."""
    path = Path(os.environ["CHAOS_DIR"]) / f"endure-{ctx.job.id}"
    if ctx.job.attempt > 1:
        return {"attempt": ctx.job.attempt}
    path.with_suffix(".draft").write_text(str(os.getpid()))
    path.with_suffix(".draft").rename(path)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ctx.beat()
        time.sleep(0.1)
    return {"attempt": 1}


def source(value: int = 0, seconds: float = 0.0) -> dict[str, Any]:
    time.sleep(seconds)
    return {"value": value}


def branch(ctx: Any, value: int, seconds: float = 0.0, add: int = 0) -> dict[str, Any]:
    time.sleep(seconds)
    return {"value": value + add}


def branch_effect(ctx: Any, value: int, seconds: float = 0.0, add: int = 0) -> dict[str, Any]:
    return effect(ctx, seconds, value + add)


def merge(left: int, right: int, seconds: float = 0.0) -> dict[str, Any]:
    time.sleep(seconds)
    return {"value": left + right}


@contextlib.contextmanager
def _transaction() -> Iterator[Any]:
    url = os.environ["CHAOS_DB"]
    if url.startswith("sqlite:"):
        conn = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=20.0, isolation_level=None)
        try:
            conn.execute("begin immediate")
            yield conn
            conn.execute("commit")
        finally:
            conn.close()
        return
    import psycopg

    with psycopg.connect(url, connect_timeout=3, application_name="chaos task") as raw:
        yield raw


def register() -> None:
    """Make all of this known to this process."""
    for task, attempts in ((plain, 1), (steps, 1), (effect, 4), (flaky, 6), (doomed, 2), (endure, 1)):
        registry.register_ingest_task(task.__name__, task, max_attempts=attempts)
    for node in (source, branch, branch_effect, merge):
        registry.register_node(node.__name__, node)


register()
