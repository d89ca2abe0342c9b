"""gpu lanes on made-up cards, and the diary of the models that they load."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.store import Db, Store
from tests.fakes.gpus import Gpus
from tests.lane.fleet import add_node, start_lane
from tests.support import Processes, eventually

APP = "tests.apps.gpu_models"
TABLE = "workflow_node_jobs"


@dataclass(frozen=True)
class Line:
    at: float
    word: str
    detail: str
    project: str
    device: str
    pid: int


class Diary:
    """What the models of all lanes of a test did, in order."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "diary"

    def lines(self, *words: str) -> list[Line]:
        text = self.path.read_text() if self.path.exists() else ""
        rows = [row.split() for row in text.splitlines()]
        found = [Line(float(row[0]), row[1], row[2], row[3], row[4], int(row[5])) for row in rows]
        return [line for line in found if not words or line.word in words]

    def said(self, *words: str) -> list[str]:
        return [f"{line.word} {line.detail}" for line in self.lines(*words)]


def gpu_lane(
    processes: Processes,
    store: Store,
    diary: Diary,
    gpus: Gpus | None,
    models: Mapping[str, Any],
    *args: str,
    project: str = "",
    box: str = "b1",
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """A gpu lane whose app knows ``models`` (see tests/apps/gpu_models.py)."""
    about = {id: value if isinstance(value, dict) else {"gib": value} for id, value in models.items()}
    settings = {
        "GPU_MODELS": json.dumps(about),
        "GPU_MODELS_LOG": str(diary.path),
        "FLIGHTDECK_PROJECT": project,
        **(gpus.env if gpus is not None else {}),
        **(env or {}),
    }
    return start_lane(processes, store, *args, "--app", APP, queue="gpu", box=box, env=settings)


def put(db: Db, model: str | None = None, project: str = "", **inputs: Any) -> int:
    """A node job for the gpu queue."""
    columns: dict[str, Any] = {"required_model": model} if model else {}
    priority = inputs.pop("priority", 100)
    return add_node(db, "infer", inputs, queue="gpu", priority=priority, project=project, **columns)


def done(db: Db, *jobs: int) -> None:
    """Wait until these have completed."""

    def all_done() -> bool:
        rows = db.all("select id, status from workflow_node_jobs")
        ended = {row["id"]: row["status"] for row in rows}
        assert not any(ended[job] in ("failed", "cancelled") for job in jobs), ended
        return all(ended[job] == "completed" for job in jobs)

    eventually(all_done, timeout_s=60, what=f"jobs {jobs} complete")


def lane_row(db: Db, project: str = "", box: str = "b1") -> dict[str, Any]:
    """The heartbeat of a gpu lane; a row of nothing before it is there."""
    found = db.one(
        "select * from worker_heartbeats where box = {box} and queue = 'gpu' and project = {project}",
        box=box,
        project=project,
    )
    return found or {"state": None, "current_model": None, "detail": {}, "models_fit": [], "models_known": []}


def device_of(db: Db, project: str = "", number: int = 0) -> dict[str, Any]:
    """What a lane's heartbeat tells of one of its devices."""
    found = (lane_row(db, project)["detail"] or {}).get("devices") or []
    return found[number] if number < len(found) else {}
