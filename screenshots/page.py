"""Pictures of the operator's page, in a browser, on the same fleet as the deck's pictures: the recording as rows of a database."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from engine.feed import FeedUpdate
from engine.queue.family import INGEST, family_of_queue
from engine.store import Db, Json, Store
from engine.store.migrate import migrate
from engine.telemetry.history import gpu_facts
from engine.telemetry.sample import BoxFacts
from engine.telemetry.writer import this_process, write, write_facts
from screenshots.browser import BrowserError, browser

# name: (width, height, colours, address)
PICTURES: dict[str, tuple[int, int, str, str]] = {
    "page-fleet": (1280, 860, "dark", "/"),
    "page-phone": (390, 844, "dark", "/"),
    "page-park": (900, 820, "light", "/page/order?action=park&box=*&queue=gpu"),
}
LIVE = "document.getElementById('live').textContent === 'live'"
_LISTENING = re.compile(r"listening on (http://\S+)")


def draw(update: FeedUpdate, to: Path, only: str = "") -> None:
    """Write the PNGs whose names contain ``only``; says so when no browser is installed."""
    wanted = {name: picture for name, picture in PICTURES.items() if only in name}
    if not wanted:
        return
    with tempfile.TemporaryDirectory(prefix="flightdeck-page-") as directory:
        store = Store(f"sqlite:///{directory}/fleet.db")
        migrate(store)
        try:
            with browser() as chromium, service(store) as url:
                tabs = {name: chromium.tab(*of[:3]) for name, of in wanted.items()}
                with store.connect("pictures") as db:
                    fill(db, update)  # last, so that what it writes is not stale before it is drawn
                for name, tab in tabs.items():
                    tab.open(url + wanted[name][3])
                    if wanted[name][3] == "/":
                        tab.until(partial(tab.eval, LIVE), "it is live")
                    tab.picture(to / f"{name}.png")
                    print(to / f"{name}.png")
        except BrowserError as error:
            print(f"{', '.join(wanted)}: not drawn: {error}")


@contextmanager
def service(store: Store) -> Iterator[str]:
    """queue-broker-web on a free port, for this machine alone; its address."""
    process = subprocess.Popen(
        [sys.executable, "-c", "from engine.commands.broker_web import main; main()", "--db", store.url, "--port", "0"],
        env={**os.environ, "FLIGHTDECK_BOX": "workbench"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := _LISTENING.search(line):
                yield found[1]
                return
        raise SystemExit("queue-broker-web did not start")
    finally:
        process.terminate()
        process.communicate(timeout=30)


def fill(db: Db, update: FeedUpdate) -> None:
    """The recorded moment as if it were now."""
    assert update.view is not None and update.at is not None
    view, now = update.view, db.now()
    for box in view["boxes"]:
        facts = box["facts"] or {}
        write_facts(
            db,
            BoxFacts(
                box["box"], "", box["description"], facts.get("cpu_model"), facts.get("cores"), facts.get("mem_mb"),
                gpu_facts(facts.get("gpus")), facts.get("driver"), facts.get("kernel"), bool(box["simulated"]),
            ),
        )  # fmt: skip
        past = (update.history or {}).get(box["box"], [])
        samples = [replace(sample, at=sample.at + (now - update.at)) for sample in past]
        write(db, this_process(box["box"]), samples, payload=None, last_error=None)
        for lane in box["lanes"]:
            _lane(db, box["box"], lane, now)
        for job in box["jobs"]:
            _job(db, job, now)
    with db.transaction():
        for row in view["queues"]:
            for _ in range(row["queued"]):
                _waiting(db, row["queue"], row["project"])
    for event in reversed(view["events"]):
        _event(db, event, now - update.at)
    db.run("delete from services where kind = 'recorder'")
    db.run(
        "insert into services (kind, box, incarnation, is_leader, last_seen) "
        "values ('orchestrator', {box}, 'a', {true}, {clock})",
        box=(view["leader"] or {"box": "workbench"})["box"],
    )


def _lane(db: Db, box: str, lane: Mapping[str, Any], now: datetime) -> None:
    db.run(
        "insert into worker_heartbeats (box, queue, project, incarnation, state, slots, busy, current_model, version, last_seen) "
        "values ({box}, {queue}, {project}, {incarnation}, {state}, {slots}, {busy}, {model}, {version}, {seen})",
        box=box, model=lane["current_model"], seen=now - timedelta(seconds=lane["last_seen_s"]),
        **{name: lane[name] for name in ("queue", "project", "incarnation", "state", "slots", "busy", "version")},
    )  # fmt: skip
    if lane["desired"] == "off":
        db.run(
            "insert into worker_controls (box, queue, project, desired, policy, reason, requested_by) "
            "values ({box}, {queue}, {project}, 'off', {policy}, {reason}, {requested_by})",
            box=box,
            **{name: lane[name] for name in ("queue", "project", "policy", "reason", "requested_by")},
        )


def _run(db: Db, project: str) -> int:
    number: int = db.value(
        "insert into workflow_runs (workflow_name, graph, status, project) "
        "values ('recorded', {graph}, 'running', {project}) returning id",
        graph=Json({"nodes": []}),
        project=project,
    )
    return number


def _job(db: Db, job: Mapping[str, Any], now: datetime) -> None:
    begun = now - timedelta(seconds=job["age_s"] or 0.0)
    own = {"node": "run_id, node_id, node", "ingest": "task_name"}[job["family"]]
    values = {"node": "{run}, {node_id}, {name}", "ingest": "{name}"}[job["family"]]
    table = family_of_queue(job["queue"]).table
    db.run(
        f"insert into {table} (id, queue, project, status, attempt, claimed_box, claimed_by, started_at, progress_pct, "
        f"progress_text, lease_expires_at, {own}) values ({{id}}, {{queue}}, {{project}}, 'running', 1, {{box}}, {{box}}, "
        f"{{begun}}, {{pct}}, {{words}}, {{lease}}, {values})",
        id=int(job["id"]), queue=job["queue"], project=job["project"], box=job["box"], begun=begun,
        pct=job["progress_pct"], words=job["progress_text"], lease=now + timedelta(seconds=600), name=job["name"],
        **({"run": _run(db, job["project"]), "node_id": job["node_id"]} if job["family"] == "node" else {}),
    )  # fmt: skip


def _waiting(db: Db, queue: str, project: str) -> None:
    if family_of_queue(queue) is INGEST:
        db.run(
            "insert into ingest_jobs (task_name, queue, project) values ('waits', {queue}, {project})",
            queue=queue,
            project=project,
        )
    else:
        db.run(
            "insert into workflow_node_jobs (run_id, node_id, node, queue, project) "
            "values ({run}, 'waits', 'waits', {queue}, {project})",
            run=_run(db, project),
            queue=queue,
            project=project,
        )


def _event(db: Db, event: Mapping[str, Any], later: timedelta) -> None:
    names = ("family", "node_id", "attempt", "box", "queue", "project", "cause", "exit_code", "elapsed_s")
    db.run(
        "insert into job_events (job_id, run_id, event_type, detail, created_at, " + ", ".join(names) + ") values ({job_id}, "
        "{run_id}, {type}, {detail}{json}, {at}, " + ", ".join(f"{{{name}}}" for name in names) + ")",
        job_id=int(event["job_id"]), run_id=None if event["run_id"] is None else int(event["run_id"]), type=event["type"],
        detail=json.dumps(event["detail"] or {}), at=datetime.fromisoformat(str(event["at"])) + later,
        **{name: event[name] for name in names},
    )  # fmt: skip
