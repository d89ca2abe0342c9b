"""Rows of ``schedules``, and schedulers that read them."""

from __future__ import annotations

import json
import subprocess
import threading
from datetime import datetime
from typing import Any

from engine.scheduler.ticker import Ticker
from engine.store import Db, Store
from tests.support import Processes, command

APP = "tests.apps.lane_jobs"
NEVER = "0 0 29 2 *"
EACH_SECOND = "* * * * * *"
EACH_MINUTE = "* * * * *"


def put(db: Db, name: str, cron: str = EACH_MINUTE, ago_s: float | None = None, **columns: Any) -> None:
    """An entry by plain SQL; ``ago_s``: dealt with until so many seconds ago by the database's clock."""
    values = {"name": name, "cron": cron, "task_name": "noop", **columns}
    if ago_s is not None:
        values["ago_s"] = ago_s
    names = [name for name in values if name != "ago_s"] + (["last_tick"] if ago_s is not None else [])
    marks = {"args": "{args}{json}", "last_tick": "{before[ago_s]}"}
    slots = ", ".join(marks.get(name, f"{{{name}}}") for name in names)
    if "args" in values and not isinstance(values["args"], str):
        values["args"] = json.dumps(values["args"])
    db.run(f"insert into schedules ({', '.join(names)}) values ({slots})", **values)


def set_back(db: Db, name: str, seconds: float) -> None:
    """Deal with an entry as if nothing had been fired for so long."""
    db.run("update schedules set last_tick = {before[s]} where name = {name}", name=name, s=seconds)


def start_scheduler(
    processes: Processes,
    store: Store,
    *args: str,
    box: str = "b1",
    app: str | None = APP,
    env: dict[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    given = ("--app", app) if app else ()
    return processes.spawn(
        command("queue-scheduler", "--db", store.url, "--box", box, *given, *args),
        env={"PYTHONUNBUFFERED": "1", **(env or {})},
    )


def jobs(db: Db) -> list[dict[str, Any]]:
    return db.all("select * from ingest_jobs order by id")


def fires(db: Db, name: str | None = None) -> list[tuple[str, datetime]]:
    rows = db.all("select name, tick from schedule_fires order by tick, name")
    return [(row["name"], row["tick"]) for row in rows if name in (None, row["name"])]


def entry(db: Db, name: str) -> dict[str, Any]:
    row = db.one("select * from schedules where name = {name}", name=name)
    assert row is not None
    return row


def services(db: Db) -> list[dict[str, Any]]:
    return db.all("select * from services where kind = 'scheduler' order by box")


def look(db: Db, ticker: Ticker) -> float:
    return ticker.look(db, threading.Event())


def each_once(db: Db) -> None:
    """As many jobs as fires, and each fire knows its own."""
    known = db.all("select job_id from schedule_fires")
    assert sorted(row["job_id"] for row in known) == sorted(row["id"] for row in jobs(db))
    assert len(set(fires(db))) == len(fires(db))
