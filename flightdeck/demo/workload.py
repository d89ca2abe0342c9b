"""What the demo's fleet has to do: graphs and stand-alone jobs, refilled for ever whenever they run low.

``python -m flightdeck.demo.workload`` keeps the queues of FLIGHTDECK_DB_URL filled until it is told to stop.
"""

from __future__ import annotations

import logging
import random
import signal
import threading
from typing import Any

log = logging.getLogger("flightdeck.demo.workload")

SEED = 20_26
LOOK_EVERY_S = 3.0
RUNS_LOW, RUNS_FULL = 5, 13  # open runs of a project: refilled from LOW to FULL, so that the queues breathe
IMPORTS_LOW, IMPORTS_FULL = 1, 6
THUMBNAILS_LOW, THUMBNAILS_FULL = 4, 60
SHORT_SHARE = 0.4  # of the runs begin on a GPU, so that no GPU waits for a whole graph
CRASH_EVERY = 9  # every ninth run has a part whose process dies once

_SCENES = ("harbour", "orchard", "foundry", "glacier", "lantern", "viaduct", "meadow", "atrium")
_SHOWS = ("longwave", "low-tide", "cold-open", "side-b", "field-notes")
_SUPPLIERS = ("acorn", "birch", "cedar", "elder", "hazel", "rowan")


class Writer:
    """Writes the fleet's work, one thing after the other; the same for the same seed."""

    def __init__(self, seed: int = SEED) -> None:
        self._rng = random.Random(seed)
        self._runs = 0

    def graph(self, project: str) -> dict[str, Any]:
        """The next graph of a project."""
        self._runs += 1
        crash = self._runs % CRASH_EVERY == 3
        short = not crash and self._rng.random() < SHORT_SHARE
        if project == "render":
            return self._turntable() if short else self._animation(crash)
        return self._dictation() if short else self._episode(crash)

    def _s(self, low: float, high: float) -> float:
        return round(self._rng.uniform(low, high), 1)

    def _turntable(self) -> dict[str, Any]:
        """A GPU, then a CPU."""
        scene = self._rng.choice(_SCENES)
        render = {"frames": [], "seconds": self._s(60, 180)}
        return {
            "name": f"turntable_{scene}",
            "nodes": [
                {"id": "render", "node": "render", "gpu": True, "model": "aurora-xl", "inputs": render},
                {
                    "id": "compose",
                    "node": "compose",
                    "depends_on": ["render"],
                    "inputs": {"frames": {"$from": "render.frames"}, "seconds": self._s(3, 8)},
                },
            ],
        }

    def _dictation(self) -> dict[str, Any]:
        """A GPU, then a CPU."""
        return {
            "name": "dictation",
            "nodes": [
                {
                    "id": "transcribe",
                    "node": "transcribe",
                    "gpu": True,
                    "model": "lyra-large",
                    "inputs": {"minutes": self._rng.randint(6, 30), "seconds": self._s(40, 110)},
                },
                {
                    "id": "publish",
                    "node": "publish",
                    "depends_on": ["transcribe"],
                    "inputs": {"words": {"$from": "transcribe.words"}, "seconds": self._s(2, 6)},
                },
            ],
        }

    def _animation(self, crash: bool) -> dict[str, Any]:
        """One cpu node, three to five in parallel, two on a GPU, one that merges."""
        scene = self._rng.choice(_SCENES)
        parts = [f"simulate_{n}" for n in range(1, self._rng.randint(3, 5) + 1)]
        nodes: list[dict[str, Any]] = [
            {"id": "storyboard", "node": "storyboard", "inputs": {"scene": scene, "seconds": self._s(2, 6)}}
        ]
        for number, part in enumerate(parts, 1):
            inputs: dict[str, Any] = {
                "scene": {"$from": "storyboard.scene"},
                "part": number,
                "seconds": self._s(8, 26),
            }
            if crash and number == 2:
                inputs["crash"] = True
            nodes.append({"id": part, "node": "simulate", "depends_on": ["storyboard"], "inputs": inputs})
        nodes += [
            {
                "id": "render",
                "node": "render",
                "gpu": True,
                "model": "aurora-xl",
                "depends_on": parts,
                "inputs": {"frames": [{"$from": f"{part}.frames"} for part in parts], "seconds": self._s(80, 260)},
            },
            {
                "id": "upscale",
                "node": "upscale",
                "gpu": True,
                "model": "upscaler-4x",
                "depends_on": ["render"],
                "inputs": {"frames": {"$from": "render.frames"}, "seconds": self._s(20, 60)},
            },
            {
                "id": "compose",
                "node": "compose",
                "depends_on": ["upscale"],
                "inputs": {"frames": {"$from": "upscale.frames"}, "seconds": self._s(3, 8)},
            },
        ]
        return {"name": f"animate_{scene}", "nodes": nodes}

    def _episode(self, crash: bool) -> dict[str, Any]:
        """One cpu node, then a GPU and a CPU in parallel, then a GPU that merges, then one more cpu node."""
        show = self._rng.choice(_SHOWS)
        diarize: dict[str, Any] = {"minutes": {"$from": "fetch.minutes"}, "seconds": self._s(12, 34)}
        if crash:
            diarize["crash"] = True
        return {
            "name": f"episode_{show}",
            "nodes": [
                {"id": "fetch", "node": "fetch", "inputs": {"episode": show, "seconds": self._s(3, 9)}},
                {
                    "id": "transcribe",
                    "node": "transcribe",
                    "gpu": True,
                    "model": "lyra-large",
                    "depends_on": ["fetch"],
                    "inputs": {"minutes": {"$from": "fetch.minutes"}, "seconds": self._s(60, 170)},
                },
                {"id": "diarize", "node": "diarize", "depends_on": ["fetch"], "inputs": diarize},
                {
                    "id": "summarize",
                    "node": "summarize",
                    "gpu": True,
                    "model": "quill-14b",
                    "depends_on": ["transcribe", "diarize"],
                    "inputs": {
                        "words": {"$from": "transcribe.words"},
                        "speakers": {"$from": "diarize.speakers"},
                        "seconds": self._s(30, 90),
                    },
                },
                {
                    "id": "publish",
                    "node": "publish",
                    "depends_on": ["summarize"],
                    "inputs": {"words": {"$from": "summarize.words"}, "seconds": self._s(2, 6)},
                },
            ],
        }

    def imports(self, count: int) -> list[dict[str, Any]]:
        return [{"supplier": self._rng.choice(_SUPPLIERS), "seconds": self._s(20, 70)} for _ in range(count)]

    def thumbnails(self, count: int) -> list[dict[str, Any]]:
        return [{"picture": self._rng.randrange(100_000), "seconds": self._s(2, 6)} for _ in range(count)]


def refill(db: Any, writer: Writer) -> int:
    """Look at what is open and write what is missing; the number of runs and jobs written."""
    import engine

    written = 0
    runs = {
        row["project"]: row["open_runs"]
        for row in db.all(
            "select project, count(*) as open_runs from workflow_runs where status in ('queued', 'running') group by project"
        )
    }
    for project in ("render", "speech"):
        if runs.get(project, 0) < RUNS_LOW:
            for _ in range(RUNS_FULL - runs.get(project, 0)):
                engine.submit_run(writer.graph(project), project=project, conn=db.raw)
                written += 1
    waiting = {
        row["queue"]: row["waiting"]
        for row in db.all("select queue, count(*) as waiting from ingest_jobs where status = 'queued' group by queue")
    }
    if waiting.get("imports", 0) < IMPORTS_LOW:
        jobs = writer.imports(IMPORTS_FULL)
        engine.enqueue_many(task_name="import_catalog", queue="imports", args_list=jobs, project="", conn=db.raw)
        written += len(jobs)
    if waiting.get("thumbnails", 0) < THUMBNAILS_LOW:
        jobs = writer.thumbnails(THUMBNAILS_FULL)
        engine.enqueue_many(task_name="thumbnail", queue="thumbnails", args_list=jobs, project="", conn=db.raw)
        written += len(jobs)
    return written


def main() -> None:
    """Refill until SIGTERM; a database that is away is waited for."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    import flightdeck.demo.jobs  # noqa: F401  (registers the tasks that are enqueued here)
    from engine.errors import StoreError
    from engine.store import open_store

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    store = open_store()
    writer = Writer()
    db = None
    while not stop.is_set():
        try:
            if db is None or db.closed:
                db = store.connect("demo workload")
            refill(db, writer)
        except StoreError as error:
            log.warning("%s", error)
        stop.wait(LOOK_EVERY_S)
    if db is not None:
        db.close()


if __name__ == "__main__":
    main()
