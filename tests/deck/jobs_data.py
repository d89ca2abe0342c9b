"""What a database would say to the questions of the pages about jobs, queues and events. Deterministic; times before NOW."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from flightdeck.reader import Key, question_key
from tests.deck.fleet_data import NOW


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat()


def job(number: int, name: str = "render_still", **over: Any) -> dict[str, Any]:
    """A row of the list of jobs; running for a minute unless said otherwise."""
    row: dict[str, Any] = {
        "family": "ingest", "id": str(number), "queue": "default", "status": "running", "project": "", "priority": 100,
        "is_priority": False, "attempt": 1, "max_attempts": 1, "claimed_box": "spark", "progress_pct": None,
        "progress_text": None, "unplaceable_reason": None, "cancel_requested": False, "kill_requested": False,
        "run_after": None, "created_at": ago(90), "started_at": ago(60), "finished_at": None, "run_id": None,
        "node_id": None, "name": name, "model": None, "error": None,
    }  # fmt: skip
    return row | over


def waiting(number: int, name: str = "render_still", **over: Any) -> dict[str, Any]:
    return job(number, name, **({"status": "queued", "claimed_box": None, "started_at": None, "attempt": 0} | over))


def ended(number: int, status: str, name: str = "render_still", **over: Any) -> dict[str, Any]:
    return job(number, name, **({"status": status, "finished_at": ago(20)} | over))


def job_list(jobs: list[dict[str, Any]], status: str = "live", **over: Any) -> dict[str, Any]:
    found = {"at": NOW.isoformat(), "status": status, "sort": "oldest", "jobs": jobs, "more": False, "next": None}
    return found | {"looked": len(jobs), "whole": True} | over


COUNTS = {
    "queued": {"n": 5140, "capped": True}, "running": {"n": 25, "capped": False},
    "awaiting_input": {"n": 1, "capped": False}, "failed": {"n": 12, "capped": False},
    "cancelled": {"n": 0, "capped": False},
}  # fmt: skip

LIVE = [
    job(200, "comfyui_video", family="node", queue="gpu", project="lm_content", run_id="31", node_id="render", model="comfyui",
        started_at=ago(362), created_at=ago(1500), progress_pct=61.0, progress_text="frame 61 of 100", attempt=2),
    job(300, project="video_gen", queue="cpu", claimed_box="workshop", started_at=ago(41), progress_pct=12.0),
    job(301, "fetch_sources", claimed_box="beelink", cancel_requested=True, started_at=ago(12)),
    job(302, "embed_batch", claimed_box="beelink", started_at=None, progress_text=None),
    job(33, "approve_cut", family="node", status="awaiting_input", queue="cpu", project="video_gen", run_id="32",
        node_id="approve", claimed_box=None, started_at=None, created_at=ago(7300)),
    waiting(210, "upscale", queue="gpu", family="node", project="lm_content", run_id="31", node_id="upscale",
            model="esrgan-x4", is_priority=True, created_at=ago(300)),
    waiting(211, "train_lora", queue="gpu", family="node", project="ai_leads", run_id="40", node_id="train",
            model="flux-dev", unplaceable_reason="model flux-dev fits on no device of a live lane of queue gpu", created_at=ago(5400)),
    waiting(212, "nightly_report", run_after=(NOW + timedelta(hours=3)).isoformat(), created_at=ago(7200)),
    *(waiting(5000 + i, "compute_storm_grids", queue="cpu", family="node", project="lm_content", run_id="50",
              node_id=f"grid-{i}", created_at=ago(4000 - i)) for i in range(40)),
]  # fmt: skip

FAILED = [
    ended(99, "failed", "compute_storm_grids", family="node", run_id="50", node_id="grid-x", queue="cpu", project="lm_content",
          error="ValueError: negative rainfall in tile 17", attempt=3, finished_at=ago(600)),
    ended(98, "failed", "fetch_sources", error="trip: stalled (76), the cap of 3 is reached", attempt=4, finished_at=ago(90000)),
]  # fmt: skip


def answers(*pairs: tuple[str, dict[str, Any], Any]) -> dict[Key, Any]:
    return {question_key(name, arguments): value for name, arguments, value in pairs}


ANSWERS = answers(
    ("jobs", {"status": "live", "project": None}, job_list(LIVE, more=True)),
    ("jobs", {"status": "failed", "project": None}, job_list(FAILED, "failed", sort="newest")),
    ("job_counts", {"project": None}, COUNTS),
)
