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


DETAIL: dict[str, Any] = {
    "at": NOW.isoformat(),
    "job": {
        **LIVE[0], "failures": 1, "max_attempts": 3, "watchdog_retries": 1, "losses": 0, "budget_s": None,
        "claimed_by": "spark/gpu/9f2c71aa", "claimed_at": ago(363), "fencing_token": "7", "lease_expires_at": (NOW + timedelta(seconds=594)).isoformat(),
        "last_lost_box": "spark2", "last_lost_at": ago(420), "avoid_boxes": [], "only_boxes": ["spark", "spark2"], "error": None,
    },
    "input": {"text": '{\n  "prompt": "storm over the bay, slow pan",\n  "frames": 100,\n  "seed": 71\n}', "size": 71, "cut": False},
    "output": None,
    "events": [
        {"at": ago(900), "type": "stall_suspected", "cause": None, "attempt": 1, "box": "spark2", "queue": "gpu", "exit_code": None,
         "elapsed_s": 130.0, "detail": {"gpu_pct": [41, 38, 44], "silent_s": 124}, "text": ""},
        {"at": ago(420), "type": "requeued", "cause": "trip", "attempt": 1, "box": "spark2", "queue": "gpu", "exit_code": 76,
         "elapsed_s": 611.0, "detail": {"reason": "no beat for 120 s", "evidence": {"gpu_pct": [0, 0, 0], "moved_gib": 0.0}}, "text": ""},
    ],
    "events_cut": False,
    "log": {"text": "loading comfyui\nmodel warm after 41 s\n" + "".join(f"frame {i} of 100 done in 3.1 s\n" for i in range(1, 62)),
            "size": 2113, "attempt": 2, "updated_at": ago(3), "cut": False},
    "run": {
        "id": "31", "workflow": "storm_clip", "status": "running", "error": None, "retry_of": "28", "hidden": 0,
        "states": {"completed": 2, "running": 1, "not yet": 2},
        "nodes": [
            {"node_id": "fetch", "depth": 0, "waits_for": [], "id": "198", "status": "completed", "queue": "cpu", "box": "beelink", "started_at": ago(1400), "finished_at": ago(1380)},
            {"node_id": "grids", "depth": 1, "waits_for": [], "id": "199", "status": "completed", "queue": "cpu", "box": "workshop", "started_at": ago(1300), "finished_at": ago(1210)},
            {"node_id": "render", "depth": 2, "waits_for": [], "id": "200", "status": "running", "queue": "gpu", "box": "spark", "progress_pct": 61.0, "started_at": ago(362)},
            {"node_id": "upscale", "depth": 3, "waits_for": ["render"], "id": None, "status": "not yet"},
            {"node_id": "publish", "depth": 4, "waits_for": ["upscale"], "id": None, "status": "not yet"},
        ],
    },
    "asked": None, "execution": None, "hardware": [], "hardware_why": "n/a yet", "waits": [], "ahead": None,
}  # fmt: skip
HARDWARE = [
    {"gpu_index": 0, "power_ms": 12_400.0, "thermal_ms": 88_000.0, "brake_ms": 0.0, "temp_max_c": 86.0, "power_max_w": 119.2,
     "sm_mean_mhz": 1840.0, "samples": 180},
]  # fmt: skip


def answers(*pairs: tuple[str, dict[str, Any], Any]) -> dict[Key, Any]:
    return {question_key(name, arguments): value for name, arguments, value in pairs}


ANSWERS = answers(
    ("jobs", {"status": "live", "project": None}, job_list(LIVE, more=True)),
    ("jobs", {"status": "failed", "project": None}, job_list(FAILED, "failed", sort="newest")),
    ("job_counts", {"project": None}, COUNTS),
    ("job", {"job_id": "200"}, DETAIL),
    ("job_hardware", {"job_id": "200"}, HARDWARE),
)
