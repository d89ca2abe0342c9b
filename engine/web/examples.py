"""What the OpenAPI document shows: one job, one event, one graph and its run."""

from __future__ import annotations

from typing import Any

JOB: dict[str, Any] = {
    "id": "1042",
    "task": "train",
    "queue": "training",
    "status": "succeeded",
    "payload": {"steps": 3, "samples": 100},
    "result": {
        "steps": 3,
        "samples": 100,
        "loss": 2.247130285,
        "losses": [4.05633369, 3.281837789, 2.697837158],
        "weights": [0.565222074, -0.50098868],
    },
    "error": None,
    "attempt": 1,
    "max_attempts": 1,
    "progress": 100.0,
    "created_at": "2026-01-31T12:00:00.123456Z",
    "started_at": "2026-01-31T12:00:00.131072Z",
    "finished_at": "2026-01-31T12:00:00.140288Z",
}

EVENT: dict[str, Any] = {
    "id": "88",
    "at": "2026-01-31T12:00:07.500000Z",
    "type": "requeued",
    "cause": "executor_died",
    "attempt": 1,
    "box": "spark",
    "exit_code": 137,
    "elapsed_s": 7.25,
    "text": "spark training: train (job 1042) requeued (executor died), exit 137: killed by SIGKILL",
    "detail": {"reason": "137: killed by SIGKILL"},
}

GRAPH: dict[str, Any] = {
    "name": "prepare-and-merge",
    "nodes": [
        {"id": "fetch", "node": "fetch", "inputs": {"url": {"$context": "url"}}},
        {"id": "merge", "node": "merge", "depends_on": ["fetch"], "inputs": {"rows": {"$from": "fetch.rows"}}},
    ],
}

RUN: dict[str, Any] = {
    "id": "7",
    "workflow": "prepare-and-merge",
    "status": "running",
    "priority": 100,
    "error": None,
    "retry_of": None,
    "created_at": "2026-01-31T12:00:00.123456Z",
    "started_at": "2026-01-31T12:00:00.131072Z",
    "finished_at": None,
    "nodes": [
        {
            "id": "fetch",
            "node": "fetch",
            "status": "succeeded",
            "queue": "cpu",
            "depends_on": [],
            "job_id": "1043",
            "attempt": 1,
            "progress": None,
            "output_bytes": 17,
            "error": None,
            "started_at": "2026-01-31T12:00:00.131072Z",
            "finished_at": "2026-01-31T12:00:02.500000Z",
            "output": {"rows": [1, 2, 3]},
        },
        {
            "id": "merge",
            "node": "merge",
            "status": "queued",
            "queue": "cpu",
            "depends_on": ["fetch"],
            "job_id": "1044",
            "attempt": 0,
            "progress": None,
            "output_bytes": None,
            "error": None,
            "started_at": None,
            "finished_at": None,
            "output": None,
        },
    ],
}
