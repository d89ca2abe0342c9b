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

EVENTS: list[dict[str, Any]] = [
    {"source": "job", "id": "903", "at": ago(31), "box": "spark", "queue": "gpu", "project": "lm_content", "type": "stall_suspected", "cause": None, "job_id": "200", "run_id": "31", "text": "spark gpu: render stall not confirmed: gpu 41 %"},
    {"source": "control", "id": "71", "at": ago(42), "box": "spark2", "queue": "cpu", "project": "ai_leads", "type": "park", "cause": "drain", "by": "ops (deck)", "job_id": None, "text": "cpu on spark2 (project ai_leads) ordered off (drain): 1 lane, by ops (deck)"},
    {"source": "control", "id": "70", "at": ago(95), "box": "attic", "queue": None, "project": "", "type": "alert", "cause": "box_dead", "by": "orchestrator", "job_id": None, "text": "box attic is silent since 14:01:12 UTC with 1 job aboard"},
    {"source": "job", "id": "902", "at": ago(130), "box": "beelink", "queue": "cpu", "project": "lm_content", "type": "requeued", "cause": "executor_died", "exit_code": 137, "job_id": "99", "run_id": "50", "text": "beelink cpu: grid-x requeued (executor died), exit 137: killed by SIGKILL"},
    {"source": "job", "id": "901", "at": ago(600), "box": "beelink", "queue": "cpu", "project": "lm_content", "type": "failed", "cause": None, "job_id": "99", "run_id": "50", "text": "beelink cpu: grid-x failed: ValueError: negative rainfall in tile 17"},
    {"source": "job", "id": "880", "at": ago(90_000), "box": "spark2", "queue": "default", "project": "", "type": "trip", "cause": None, "exit_code": 75, "job_id": "98", "run_id": None, "text": "spark2 default: fetch_sources (job 98) watchdog trip, exit 75: budget"},
    {"source": "control", "id": "60", "at": ago(90_400), "box": None, "queue": "gpu", "project": "lm_content", "type": "run_next", "by": "maria (deck)", "job_id": "210", "text": "job 210 (upscale) runs next on queue gpu, by maria (deck)"},
]  # fmt: skip


def queue(name: str, project: str = "", **over: Any) -> dict[str, Any]:
    """A queue that one lane serves and nobody waits in, unless said otherwise."""
    row: dict[str, Any] = {
        "queue": name, "project": project, "family": "node" if name in ("cpu", "gpu") else "ingest", "queued": 0, "capped": False,
        "scheduled": 0, "next_at": None, "running": 0, "awaiting": 0, "oldest_at": None,
        "ended": {"done": 0, "failed": 0, "run_mean_s": None, "run_p95_s": None, "wait_mean_s": None, "wait_p95_s": None},
        "lanes": {"on": 1, "parked": 0, "down": 0, "changing": 0, "slots": 1, "busy": 0}, "desired": "on", "orders": [],
        "models": [], "unplaceable": 0, "unplaceable_capped": False, "reason": None,
    }  # fmt: skip
    return row | over


def ended_figures(done: int, failed: int, run_s: float, wait_s: float) -> dict[str, Any]:
    return {
        "done": done,
        "failed": failed,
        "run_mean_s": run_s,
        "run_p95_s": 2.1 * run_s,
        "wait_mean_s": wait_s,
        "wait_p95_s": 3.0 * wait_s,
    }


QUEUES = [
    queue("cpu", "lm_content", queued=5000, capped=True, oldest_at=ago(4000), running=24, ended=ended_figures(3120, 4, 22.0, 840.0),
          lanes={"on": 2, "parked": 0, "down": 0, "changing": 0, "slots": 53, "busy": 24}),
    queue("cpu", "ai_leads", lanes={"on": 0, "parked": 1, "down": 0, "changing": 0, "slots": 8, "busy": 0}, desired="off",
          orders=[{"box": "spark2", "queue": "cpu", "desired": "off", "policy": "drain", "reason": "new disk", "requested_by": "ops (deck)",
                   "until": (NOW + timedelta(hours=2)).isoformat(), "updated_at": ago(42)}]),
    queue("cpu", "video_gen", running=2, awaiting=1, ended=ended_figures(48, 0, 61.0, 0.004), lanes={"on": 1, "parked": 0, "down": 0, "changing": 0, "slots": 8, "busy": 2}),
    queue("gpu", "ai_leads", queued=28, oldest_at=ago(5400), unplaceable=28, reason="model flux-dev fits on no device of a live lane of queue gpu of project ai_leads",
          models=[{"model": "flux-dev", "queued": 28, "capped": False, "warm": 0}]),
    queue("gpu", "lm_content", queued=31, oldest_at=ago(900), running=1, ended=ended_figures(210, 1, 340.0, 610.0), scheduled=3, next_at=(NOW + timedelta(hours=1)).isoformat(),
          lanes={"on": 1, "parked": 0, "down": 0, "changing": 1, "slots": 3, "busy": 1}, desired="mixed",
          models=[{"model": "comfyui", "queued": 28, "capped": False, "warm": 1}, {"model": "esrgan-x4", "queued": 3, "capped": False, "warm": 0}]),
    queue("default", queued=12, oldest_at=ago(3), ended=ended_figures(9800, 0, 0.034, 0.2), lanes={"on": 1, "parked": 0, "down": 0, "changing": 0, "slots": 2, "busy": 2}),
    queue("mail", "ai_leads", queued=4, oldest_at=ago(86400), lanes={"on": 0, "parked": 0, "down": 0, "changing": 0, "slots": 0, "busy": 0}, desired="none"),
]  # fmt: skip


def answers(*pairs: tuple[str, dict[str, Any], Any]) -> dict[Key, Any]:
    return {question_key(name, arguments): value for name, arguments, value in pairs}


ANSWERS = answers(
    ("jobs", {"status": "live", "project": None}, job_list(LIVE, more=True)),
    ("jobs", {"status": "failed", "project": None}, job_list(FAILED, "failed", sort="newest")),
    ("job_counts", {"project": None}, COUNTS),
    ("job", {"job_id": "200"}, DETAIL),
    ("queues", {"project": None}, {"at": NOW.isoformat(), "window_s": 3600.0, "backlog_limit": 0, "queues": QUEUES}),
    ("events", {"kind": "telling", "project": None}, {"events": EVENTS, "more": False, "next": None, "whole": True}),
    ("job_hardware", {"job_id": "200"}, HARDWARE),
)
