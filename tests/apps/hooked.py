"""An app with every hook; what they do is chosen by environment variables, what they did stands in a file."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import engine

NOTES = os.environ.get("HOOKED_NOTES", os.devnull)
MODE = os.environ.get("HOOKED_MODE", "")


def write(**what: Any) -> None:
    with open(NOTES, "a") as out:
        out.write(json.dumps({**what, "pid": os.getpid()}) + "\n")


@contextmanager
def around(ctx: Any) -> Iterator[None]:
    if MODE == "no way in":
        raise ValueError("no\nsession")
    write(hook="enter", job=ctx.job.name)
    yield
    if MODE == "no way out":
        raise ValueError("no commit")
    write(hook="leave", job=ctx.job.name)


def told(event: dict[str, Any]) -> None:
    if MODE == "slow sink":
        time.sleep(60)
    write(hook="event", type=event["type"], id=event["id"], job=event["job_id"], parent=os.getppid())
    if MODE == "broken sink":
        raise ValueError("nobody\nlistens")


def models() -> None:
    engine.register_model("hosted-model", dict)


@engine.ingest_task("greet")
def greet(name: str = "you", fail: bool = False) -> dict[str, Any]:
    if fail:
        raise RuntimeError("user error")
    return {"hello": name}


@engine.ingest_task("greet_later")
async def greet_later() -> dict[str, Any]:
    write(hook="body")
    return {"hello": "later"}


engine.configure(
    resolve_node=lambda name: (lambda: {"resolved": name}) if name.startswith("hosted:") else None,
    register_models=models,
    invoke_context=around if MODE != "slow sink" else lambda ctx: None,
    event_sink=told,
)
