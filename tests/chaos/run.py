"""One chaos run from the first process to the verdict."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.store import Store
from engine.store.migrate import migrate
from tests.chaos import app, audit, books, server
from tests.chaos.client import Client, Gone
from tests.chaos.door import Functions, Http
from tests.chaos.fleet import Fleet
from tests.chaos.journal import Breach, Journal
from tests.chaos.load import Load, clear_ghosts
from tests.chaos.options import Options
from tests.chaos.trouble import Trouble
from tests.chaos.verdict import Verdict, judge

_OPEN = """
select (select count(*) from ingest_jobs where status in ('queued', 'running'))
     + (select count(*) from workflow_node_jobs where status in ('queued', 'running', 'awaiting_input'))
     + (select count(*) from workflow_runs where status in ('queued', 'running') or finished_at is null)
     + (select count(*) from workflow_dispatch_events where processed_at is null) as open
"""
UP_WITHIN_S = 60.0
RESERVE_S = 60.0  # of the limit: for the end and the verdict


def run(options: Options, say: Callable[[str], None]) -> dict[str, Any]:
    """Do it; the report as plain data. ``breaches`` is empty when all is as it must be. Raises server.WrongUse."""
    options.out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="flightdeck-chaos-"))
    folder.chmod(0o755)  # as root the server runs under a user of its own
    begun = time.monotonic()
    database = server.opened(options.store, options.db_url, folder)
    journal = Journal(options.out / "journal.jsonl")
    try:
        return _Run(options, database, journal, folder, begun, say).whole()
    finally:
        journal.close()
        database.close()
        _keep(folder / "logs", options.out / "logs")
        shutil.rmtree(folder, ignore_errors=True)


class _Run:
    def __init__(
        self,
        options: Options,
        database: server.Database,
        journal: Journal,
        folder: Path,
        begun: float,
        say: Callable[[str], None],
    ) -> None:
        self.options, self.database, self.journal, self.folder = options, database, journal, folder
        self.begun, self.say = begun, say
        self.store = Store(database.url)
        self.stop = threading.Event()
        self.watch = books.Watch(self.store.lock_dir()) if self.store.kind == "sqlite" else None

    def whole(self) -> dict[str, Any]:
        app.register()  # this process submits
        migrate(self.store)
        with self.store.connect("chaos") as db:
            if db.value("select count(*) as n from ingest_jobs") or db.value("select count(*) as n from workflow_runs"):
                raise server.WrongUse("the database holds jobs already; give an empty one")
            audit.install(db)
        fleet = Fleet(self.options, self.database.url, self.folder, self.journal)
        door = Http(fleet.port, self.journal, self.stop) if self.options.http else Functions()
        load = Load(self.options, self.store, self.journal, self.stop, door)
        client = Client(self.store, "run", self.stop)
        if self.watch is not None:
            self.watch.start()
        try:
            for member in fleet.members:
                fleet.start(member)
            self._until(lambda: self._all_up(client, fleet), UP_WITHIN_S, "the fleet did not start")
            self.say(f"{len(fleet.lanes)} lanes up; {len(load.items)} submissions over {self.options.feed_s:.0f} s")
            trouble = self._storm(fleet, load, client)
            settled = self._settle(fleet, client)
            fleet.drain()
            self.stop.set()
            if self.watch is not None:
                self.watch.end()
            with self.store.connect("chaos", timeout_s=60.0) as db:
                verdict = judge(books.read(db, load.asked, self.journal, self.watch))
            return self._report(verdict, load, trouble, settled)
        finally:
            self.stop.set()
            client.close()
            fleet.end()

    def _all_up(self, client: Client, fleet: Fleet) -> bool:
        rows = client.all("select box, queue from worker_heartbeats where state = 'running'")
        if fleet.doors and client.value("select 1 as one from services where kind = 'web'") is None:
            return False
        return {f"{row['box']}/{row['queue']}" for row in rows} >= {lane.name for lane in fleet.lanes}

    def _storm(self, fleet: Fleet, load: Load, client: Client) -> Trouble:
        """Jobs come and blows fall, until both are through."""
        trouble = Trouble(self.options, fleet, self.database, self.journal, self.folder)
        load.start()
        told = begun = time.monotonic()
        while time.monotonic() - begun < self.options.feed_s or not trouble.finished:
            trouble.deal(client)
            time.sleep(0.05)
            if time.monotonic() - told > 20.0:
                told = time.monotonic()
                self.say(
                    f"{self.journal.counts['kill'] + self.journal.counts['kill_executor']} kills; {self._open(client)} open"
                )
            if time.monotonic() - self.begun > self.options.limit_s - RESERVE_S:
                self.journal.breach("harness", "the storm did not end in time")
                break
        trouble.stop()
        load.join(60.0)
        return trouble

    def _settle(self, fleet: Fleet, client: Client) -> float:
        """Wait until nothing is open any more; seconds. A breach when that takes too long."""
        begun = time.monotonic()
        self.say(f"no more blows; {self._open(client)} open")
        left = self.options.limit_s - RESERVE_S / 2 - (begun - self.begun)

        def over() -> bool:
            fleet.look_after()
            client.call(clear_ghosts)
            return self._open(client) == 0

        self._until(over, max(10.0, left), "something is still open", every_s=0.5)
        return time.monotonic() - begun

    def _open(self, client: Client) -> int:
        try:
            return int(client.value(_OPEN))
        except Gone as error:
            self.journal.breach("harness", str(error))
            return -1

    def _until(self, look: Callable[[], bool], within_s: float, otherwise: str, every_s: float = 0.1) -> None:
        deadline = time.monotonic() + within_s
        while not look():
            if time.monotonic() > deadline:
                self.journal.breach("too_late", f"{otherwise} within {within_s:.0f} s")
                return
            time.sleep(every_s)

    def _report(self, verdict: Verdict, load: Load, trouble: Trouble, settled: float) -> dict[str, Any]:
        breaches: list[Breach] = [*self.journal.breaches, *verdict.breaches]
        done = self.journal.counts
        blows = {
            key: done[key] for key in ("kill", "kill_executor", "kill_helper", "freeze", "database_back") if done[key]
        }
        return {
            "verdict": "breach" if breaches else "ok",
            "breaches": [{"rule": each.rule, "text": each.text} for each in breaches],
            "rules": dict(Counter(each.rule for each in breaches)),
            "options": {
                "jobs": self.options.jobs,
                "lanes": self.options.lanes,
                "store": self.options.store,
                "seed": self.options.seed,
                "plant": self.options.plant,
                "through": "http" if self.options.http else "functions",
            },
            "blows": blows,
            "submitted": {"jobs": len(load.asked.jobs), "runs": len(load.asked.runs)},
            "cancelled": {"jobs": len(load.asked.cancelled_jobs), "runs": len(load.asked.cancelled_runs)},
            "replays": {"same": load.asked.replayed, "refused": load.asked.refused},
            "stale_writes": load.asked.stale,
            "executors_ended_77_after_a_freeze": trouble.seventy_sevens,
            "found": dict(sorted(verdict.counts.items())),
            "settled_s": round(settled, 1),
            "took_s": round(time.monotonic() - self.begun, 1),
        }


def _keep(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    if source.exists():
        shutil.copytree(source, target)


def write(report: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(report, indent=1) + "\n")
