"""The recorders of the simulated boxes: three real recorders, one thread each, on sensors that follow the jobs.

``python -m flightdeck.demo.recorders`` runs until it is told to stop.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from datetime import UTC, datetime

from engine.errors import StoreError
from engine.store import Db, Store, open_store
from engine.telemetry.recorder import run_recorder
from flightdeck.demo.boxes import PROFILES, BoxProfile
from flightdeck.demo.physics import Load
from flightdeck.demo.seed import seed_day
from flightdeck.demo.sensors import SimulatedSource, add_up, past_hour

log = logging.getLogger("flightdeck.demo.recorders")

LOOK_EVERY_S = 1.5


class FleetLoad:
    """What the running jobs ask of each box, read by whichever recorder finds the last answer too old."""

    def __init__(self, store: Store, profiles: tuple[BoxProfile, ...] = PROFILES) -> None:
        self._store = store
        self._profiles = profiles
        self._guard = threading.Lock()
        self._db: Db | None = None
        self._read = float("-inf")
        self._loads: dict[str, Load] = {}

    def of(self, profile: BoxProfile) -> Load:
        with self._guard:
            if time.monotonic() - self._read >= LOOK_EVERY_S:
                self._read = time.monotonic()
                try:
                    self._loads = self._look()
                except StoreError:
                    self._db = None  # the recorders say that it is away; the last loads stay
            return self._loads.get(profile.name, Load())

    def _look(self) -> dict[str, Load]:
        if self._db is None or self._db.closed:
            self._db = self._store.connect("demo sensors", read_only=True, timeout_s=2.0)
        rows = self._db.all(
            "select claimed_box, project, node as name from workflow_node_jobs where status = 'running' and started_at is not null "
            "union all select claimed_box, project, task_name as name from ingest_jobs where status = 'running' and started_at is not null"
        )
        running: dict[str, list[tuple[str, int]]] = {}
        gpu_of = {(p.name, project): gpu for p in self._profiles for project, gpu in p.gpu_of_project}
        for row in rows:
            gpu = gpu_of.get((row["claimed_box"], row["project"]), 0)
            running.setdefault(row["claimed_box"], []).append((row["name"], gpu))
        return {p.name: add_up(p, running.get(p.name, [])) for p in self._profiles}


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    store = open_store()
    loads = FleetLoad(store)
    now = datetime.now(UTC)
    threads = []
    for profile in PROFILES:
        _, model = past_hour(profile, now)  # the same hour that was written: the traces go on where it ends
        source = SimulatedSource(profile, lambda p=profile: loads.of(p), model=model)  # type: ignore[misc]
        threads.append(
            threading.Thread(target=run_recorder, args=(store, source, profile.name, stop), name=profile.name)
        )
    for thread in threads:
        thread.start()
    try:
        with store.connect("demo day") as db:
            seed_day(db)
    except StoreError as error:
        log.warning("no simulated day: %s", error)
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
