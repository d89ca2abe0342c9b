"""A fleet for a deck to look at, as its own process: `python -m benchmarks.feeder --db URL --boxes 3 --gpus 2`.

Every box writes a sample every 2 s, as its recorder does (rows and notification in one statement), spread over the two
seconds; lanes beat, jobs run, make progress, end, and others begin. It prints "ready" when the hour behind it is there.
"""

from __future__ import annotations

import argparse
import math
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from types import FrameType
from typing import Any

CADENCE_S = 2.0
BEAT_S = 10.0
JOB_S = 45.0  # a job lasts so long, and another takes its slot
LANES = (("gpu", "render"), ("cpu", "render"), ("training", "labs"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.feeder")
    parser.add_argument("--db", required=True)
    parser.add_argument("--boxes", type=int, required=True)
    parser.add_argument("--gpus", type=int, required=True)
    asked = parser.parse_args()
    from benchmarks.hour import fill
    from engine.store import Store

    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, end)
    with Store(asked.db).connect("feeder", timeout_s=120.0) as db:
        fill(db, 2, asked.boxes, asked.gpus)
        fleet = Fleet(db, asked.boxes, asked.gpus)
        fleet.begin()
        print("ready", flush=True)
        for due in fleet.work():
            if stop.wait(max(0.0, due - time.monotonic())):
                return 0
    return 0


class Fleet:
    """``work`` yields when the next thing is due, and does it when asked for the one after."""

    def __init__(self, db: Any, boxes: int, gpus: int) -> None:
        from engine.telemetry import writer

        self._db, self._gpus = db, gpus
        self._boxes = [f"box{n:03}" for n in range(1, boxes + 1)]
        self._me = {box: writer.Recorder(box, f"{n:016x}", 1, "1") for n, box in enumerate(self._boxes)}
        self._rng = random.Random(7)
        self._phase = {box: self._rng.uniform(0, 6.28) for box in self._boxes}

    def begin(self) -> None:
        """Lanes, a leader, a queue, running jobs."""
        self._db.run(
            "insert into services (kind, box, incarnation, pid, version, is_leader, last_seen) "
            "values ('orchestrator', 'box001', 'bench', 1, '1', true, now())"
        )
        for queue, project in LANES:
            self._db.run(
                "insert into worker_heartbeats (box, queue, project, incarnation, state, slots, busy, last_seen) "
                "select box, {queue}, {project}, 'bench', 'running', 2, 1, now() from boxes",
                queue=queue,
                project=project,
            )
        self._db.run(
            "insert into ingest_jobs (task_name, queue, project, status) select 'embed', 'training', 'labs', 'queued' "
            "from generate_series(1, 300)"
        )
        for box in self._boxes:
            self._start_job(box)

    def work(self) -> Iterator[float]:
        step = CADENCE_S / len(self._boxes)
        begun, turn = time.monotonic(), 0
        while True:
            turn += 1
            yield begun + turn * step
            now = time.monotonic()
            box = self._boxes[turn % len(self._boxes)]
            self._sample(box, now)
            visits = turn // len(self._boxes)
            if visits % int(BEAT_S / CADENCE_S) == 0:
                self._db.run("update worker_heartbeats set last_seen = now() where box = {box}", box=box)
            if visits % 3 == 1:
                self._db.run(
                    "update ingest_jobs set progress_pct = least(99, coalesce(progress_pct, 0) + 5) "
                    "where status = 'running' and claimed_box = {box}",
                    box=box,
                )
            if visits % int(JOB_S / CADENCE_S) == int(self._phase[box] * 3):
                self._end_job(box)
                self._start_job(box)

    def _start_job(self, box: str) -> None:
        self._db.run(
            "insert into ingest_jobs (task_name, queue, project, status, attempt, fencing_token, claimed_by, claimed_box, "
            "claimed_at, started_at, lease_expires_at) values ('train', 'training', 'labs', 'running', 1, 1, "
            "{box} || '/training/bench', {box}, now(), now(), now() + interval '1 hour')",
            box=box,
        )

    def _end_job(self, box: str) -> None:
        for row in self._db.all("select id from ingest_jobs where status = 'running' and claimed_box = {box}", box=box):
            self._db.run(
                "with done as (update ingest_jobs set status = 'completed', finished_at = now() where id = {id} returning id) "
                "insert into job_events (family, job_id, attempt, fencing_token, event_type, box, queue, project, elapsed_s) "
                "select 'ingest', id, 1, 1, 'completed', {box}, 'training', 'labs', 45 from done",
                id=row["id"],
                box=box,
            )

    def _sample(self, box: str, now: float) -> None:
        from engine.telemetry import writer

        sample = self._look(box, now)
        writer.write(self._db, self._me[box], [sample], payload=sample.payload(), last_error=None)

    def _look(self, box: str, now: float) -> Any:
        """A busy box: slow waves with a little noise on them, throttled now and then."""
        from engine.telemetry.sample import BoxSample, GpuSample

        rng, wave = self._rng, math.sin(now / 40 + self._phase[box])
        hot = wave > 0.6
        gpus = tuple(
            GpuSample(
                n, f"GPU-{int(box[3:])}-{n}", util_pct=92 + 6 * wave + rng.uniform(-2, 2), mem_used_mb=60_000 + 500 * wave,
                mem_total_mb=81_920.0, temp_c=70 + 9 * wave + n + rng.uniform(-0.5, 0.5), power_w=560 + 120 * wave + rng.uniform(-9, 9),
                power_limit_w=700.0, sm_mhz=1700 - 200 * wave, pcie_gen=5, pcie_width=16, pstate=0,
                throttle_mask=0x24 if hot else 0, throttle_source="counter", sw_power_ms=900.0 if hot else 0.0,
                sw_thermal_ms=400.0 if hot else 0.0, hw_brake_ms=0.0, hw_thermal_ms=0.0, sync_boost_ms=0.0, brakes=0,
            )
            for n in range(self._gpus)
        )  # fmt: skip
        return BoxSample(
            box, datetime.now().astimezone(), cpu_pct=60 + 20 * wave + rng.uniform(-3, 3), core_max_pct=99.0, load1=20 + 5 * wave,
            cpu_mhz=3200.0, cpu_temp_c=72 + 8 * wave, mem_used_mb=200_000 + 9_000 * wave, mem_total_mb=515_000.0,
            zone_max_c=78 + 6 * wave, zone_max_name="acpitz", net_rx_bps=2e6 * (1.2 + wave), net_tx_bps=1e6 * (1.2 + wave),
            disk_read_bps=1e6, disk_write_bps=2e6, disk_used_pct=40.0, throttle_index=50.0 if hot else 0.0,
            power_ms=900.0 if hot else 0.0, thermal_ms=400.0 if hot else 0.0, brakes=0, gpus=gpus,
            sensors={"zones": {"acpitz": 78 + 6 * wave, "nvme": 48.9}},
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
