"""``train`` over HTTP: a real service, a real lane, a result that a client works out for itself, a cancel that is honoured."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import httpx

from engine.store import Db
from tests.lane.fleet import QUICK, stop
from tests.support import ROOT, Processes, command, eventually
from tests.web.conftest import Service


def recomputed(steps: int, samples: int, tmp_path: Path) -> list[float]:
    """Loss and weights by the program of docs/api.md."""
    text = (ROOT / "docs" / "api.md").read_text()
    program = tmp_path / "train.awk"
    program.write_text(text.partition("```awk\n")[2].partition("```")[0])
    shown = subprocess.run(
        ["awk", "-v", f"steps={steps}", "-v", f"n={samples}", "-f", program], capture_output=True, text=True, check=True
    )
    return [float(number) for number in shown.stdout.split()]


def test_a_training_job_from_a_program_that_knows_no_python(
    service: Service, client: httpx.Client, db: Db, processes: Processes, tmp_path: Path
) -> None:
    lane = processes.spawn(
        command("queue-claim-worker", "--queue", "training", "--db", service.store.url, "--box", "b1"),
        env={**QUICK, "FLIGHTDECK_CANCEL_GRACE": "100"},
    )

    def submit(**payload: Any) -> str:
        answer = client.post("/jobs", json={"payload": payload})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def job(job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = client.get(f"/jobs/{job_id}").json()
        return found

    def over(job_id: str) -> dict[str, Any]:
        eventually(lambda: job(job_id)["status"] in ("succeeded", "failed", "cancelled"), what=f"job {job_id} ends")
        return job(job_id)

    quick, wrong = submit(steps=60, samples=37), submit(steps=-1)
    found = over(quick)
    assert (found["status"], found["attempt"], found["progress"]) == ("succeeded", 1, 100.0)
    for told, own in zip(
        (found["result"]["loss"], *found["result"]["weights"]), recomputed(60, 37, tmp_path), strict=True
    ):
        assert abs(told - own) < 1e-6
    row = db.one("select * from executions where job_id = {id}", id=int(quick))
    assert row is not None and row["result"] == found["result"]
    if db.kind == "postgresql":  # the effect and the end of the job were written by one transaction
        same = (
            "select e.xmin = j.xmin as same from executions e join ingest_jobs j on j.id = e.job_id where j.id = {id}"
        )
        assert db.value(same, id=int(quick)) is True
    assert over(wrong)["error"] == "BadInput: train: steps must be a whole number from 1 to 1,000,000, got -1"
    slow = submit(steps=1_000_000, step_delay_seconds=0.02)
    eventually(lambda: (job(slow)["progress"] or 0) > 0, what="progress")
    assert client.delete(f"/jobs/{slow}").status_code == 202
    ended = over(slow)
    assert (ended["status"], ended["result"]) == ("cancelled", None) and 0 < ended["progress"] < 100
    (event,) = client.get(f"/jobs/{slow}/events").json()["items"]
    assert event["type"] == "cancelled" and event["exit_code"] is None  # it stopped by itself, nobody killed it
    assert db.value("select count(*) as n from executions") == 1
    stop(lane)
