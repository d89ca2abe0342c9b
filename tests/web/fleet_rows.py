"""A small fleet as rows, for the page: two boxes with samples, four lanes, jobs in every state."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from html.parser import HTMLParser

from engine.store import Db, Json
from engine.telemetry.sample import BoxFacts, BoxSample, GpuFacts, GpuSample
from engine.telemetry.writer import this_process, write, write_facts


@dataclass(frozen=True)
class Seeded:
    """Ids of the jobs."""

    running: int
    queued: int
    failed: int
    completed: int


def seed(db: Db, spark: str = "spark", kite: str = "kite") -> Seeded:
    """``spark`` has a GPU that is hot and throttled and lanes of two projects; ``kite`` has a parked lane."""
    now = db.now()
    for box in (spark, kite):
        gpu = GpuFacts(0, "GPU-1", "NVIDIA RTX 4090", "nvidia", 24_564.0, False, 450.0, 90.0)
        write_facts(db, BoxFacts(box, f"machine {box}", "the loud one", "AMD EPYC", 24, 131_072.0, (gpu,)))
        minutes = [_minute(box, now.replace(second=0, microsecond=0) - timedelta(minutes=m), m) for m in range(3, 30)]
        write(db, this_process(box), [*minutes, _now(box, now)], payload=None, last_error=None)
    lane(db, spark, "frames", "render", busy=1, model="sdxl")
    lane(db, spark, "frames", "speech")
    lane(db, spark, "cpu", "render", slots=4)
    lane(db, kite, "training", "", state="parked", exit_code=78)
    db.run(
        "insert into worker_controls (box, queue, project, desired, policy, reason, requested_by) "
        "values ({box}, 'training', '', 'off', 'hard', 'fan swap', 'ops')",
        box=kite,
    )
    return Seeded(
        job(db, "drawing", "running", "frames", "render", box=spark),
        job(db, "waits", "queued", "training", ""),
        job(db, "broke", "failed", "training", "", box=kite),
        job(db, "done", "completed", "training", "", box=kite),
    )


def _now(box: str, at: object) -> BoxSample:
    gpu = GpuSample(
        0,
        "GPU-1",
        util_pct=97.0,
        mem_used_mb=20_480.0,
        mem_total_mb=24_564.0,
        temp_c=91.0,
        power_w=448.0,
        sm_mhz=2505.0,
    )
    return BoxSample(
        box,
        at,
        cpu_pct=43.0,
        load1=3.2,
        cpu_mhz=3400.0,
        cpu_temp_c=61.0,
        mem_used_mb=40_960.0,
        mem_total_mb=131_072.0,
        gpus=(gpu,),
    )  # type: ignore[arg-type]


def _minute(box: str, at: object, number: int) -> BoxSample:
    heat = 30_000.0 if number < 6 else 0.0
    gpu = GpuSample(
        0,
        "GPU-1",
        sw_power_ms=20_000.0,
        sw_thermal_ms=heat,
        hw_thermal_ms=0.0,
        hw_brake_ms=0.0,
        throttle_source="counter",
    )
    return BoxSample(box, at, "minute", power_ms=20_000.0, thermal_ms=heat, brakes=0, gpus=(gpu,))  # type: ignore[arg-type]


def lane(
    db: Db,
    box: str,
    queue: str,
    project: str,
    state: str = "running",
    slots: int = 1,
    busy: int = 0,
    model: str | None = None,
    exit_code: int | None = None,
) -> None:
    """A lane that beats, however long the test takes."""
    db.run(
        "insert into worker_heartbeats (box, queue, project, incarnation, state, slots, busy, current_model, version, "
        "last_exit_code, last_seen) values ({box}, {queue}, {project}, 'cafe', {state}, {slots}, {busy}, {model}, '0.1.0', "
        "{exit_code}, {after[kept_s]})",
        kept_s=3600.0, box=box, queue=queue, project=project, state=state, slots=slots, busy=busy, model=model, exit_code=exit_code,
    )  # fmt: skip


def job(db: Db, name: str, status: str, queue: str, project: str, box: str | None = None) -> int:
    """An ingest job in a state, as its row would be, with an event and a log where it has ended."""
    ended = status in ("failed", "completed", "cancelled")
    begun = status != "queued"
    number: int = db.value(
        "insert into ingest_jobs (task_name, queue, args, status, project, attempt, claimed_box, claimed_by, started_at, "
        "finished_at, error, progress_pct, lease_expires_at) values ({name}, {queue}, {args}, {status}, {project}, {attempt}, "
        "{box}, {owner}, {started}, {finished}, {error}, {progress}, {lease}) returning id",
        name=name,
        queue=queue,
        args=Json({"steps": 3, "note": name}),
        status=status,
        project=project,
        attempt=int(begun),
        box=box,
        owner=f"{box}/{queue}/cafe" if begun else None,
        started=db.now() if begun else None,
        finished=db.now() if ended else None,
        error="ValueError: no such dataset" if status == "failed" else None,
        progress=40.0 if status == "running" else None,
        lease=db.now() + timedelta(seconds=600) if status == "running" else None,
    )
    if ended:
        event(db, number, status, queue, project, box, exit_code=78 if status == "failed" else None)
        db.run(
            "insert into job_logs (family, job_id, attempt, tail, bytes, project, updated_at) "
            "values ('ingest', {id}, 1, {tail}, 40, {project}, {clock})",
            id=number,
            tail=f"step 1\n{name} said so\n",
            project=project,
        )
    return number


def event(
    db: Db, number: int, kind: str, queue: str, project: str, box: str | None, exit_code: int | None = None
) -> None:
    """A row of job_events."""
    db.run(
        "insert into job_events (family, job_id, attempt, fencing_token, event_type, box, queue, exit_code, elapsed_s, detail, "
        "project) values ('ingest', {id}, 1, 1, {kind}, {box}, {queue}, {code}, 12.0, {detail}, {project})",
        id=number, kind=kind, box=box, queue=queue, code=exit_code, detail=Json({"error": "no such dataset"}),
        project=project,
    )  # fmt: skip


class Page(HTMLParser):
    """What a browser would make of a page: its tags and attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._in: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            assert dict(attrs).get("src"), "a script without a file"

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        return [
            found
            for name, found in self.tags
            if name == tag and all(found.get(key) == value for key, value in attributes.items())
        ]

    def fields(self, **of: str) -> list[tuple[str, str]]:
        """Hidden fields of the first form that has all of ``of`` among them, as they would be posted."""
        for form in self.forms():
            if all(pair in form for pair in of.items()):
                return form
        raise AssertionError(f"no form with {of}")

    def forms(self) -> list[list[tuple[str, str]]]:
        """Hidden fields of each form."""
        found: list[list[tuple[str, str]]] = []
        for tag, attributes in self.tags:
            if tag == "form":
                found.append([])
            elif tag == "input" and attributes.get("type") == "hidden" and found:
                found[-1].append((str(attributes["name"]), attributes.get("value") or ""))
        return found
