"""The fleet as the page draws it: boxes with what they read, their lanes with a word each, what runs. Pure but for the reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from engine import snapshot
from engine.display.lanes import LANE_SILENT_S, LaneWord, lane_word
from engine.display.text import clean
from engine.display.units import gigabytes, gigahertz, known, number
from engine.queue import controls
from engine.queue.sections import COUNT_CAP
from engine.store import Db
from engine.telemetry import history
from engine.telemetry.limits import Level, Limits, gpu_level, limits_for
from engine.telemetry.sample import BoxFacts, BoxSample, GpuFacts, GpuSample
from engine.telemetry.strip import Strip, strip

BOX_WORDS = {
    "ok": LaneWord("OK", "ok"),
    "stale": LaneWord("STALE", "warn"),
    "down": LaneWord("DOWN", "bad"),
    "ended": LaneWord("ended", "dim"),
    "never": LaneWord("no sign yet", "dim"),
}
GPU_WORDS = {"lost": "LOST", "asleep": "asleep", "error": "error"}
FIRST = {"cpu": 0, "gpu": 1}


def project_name(value: object) -> str:
    """A project as the page names it; the unnamed one in words: a dash before a number reads as a minus."""
    return clean(value, 60) or "no project"


@dataclass(frozen=True)
class Reading:
    """One row of a box's readings, as text. ``heat``: a word beside the temperature, ``tone`` how it is meant."""

    label: str
    name: str = ""
    use: str = ""
    temp: str = ""
    heat: str = ""
    tone: str = ""
    power: str = ""
    clock: str = ""
    memory: str = ""
    state: str = ""


@dataclass(frozen=True)
class Lane:
    """``box``, ``queue`` and ``project`` are raw, as an order must name them."""

    box: str
    queue: str
    project: str
    word: LaneWord
    desired: str
    cordoned: bool
    slots: int
    busy: int
    queued: int
    model: str
    by: str
    reason: str
    seen_s: float | None
    row: Mapping[str, Any] = field(repr=False)

    @property
    def ended(self) -> bool:
        return self.word.text == "ended"

    @property
    def why(self) -> str:
        """Who ordered it off and why: ``by ops: fan swap``; empty while it is wanted, or when nobody said."""
        if self.desired != "off":
            return ""
        return ": ".join(part for part in (f"by {self.by}" if self.by else "", self.reason) if part)


@dataclass(frozen=True)
class Box:
    name: str
    word: LaneWord
    age_s: float | None
    description: str
    simulated: bool
    readings: tuple[Reading, ...]
    lanes: tuple[Lane, ...]
    jobs: tuple[Mapping[str, Any], ...]

    @property
    def cordoned(self) -> bool:
        live = [lane for lane in self.lanes if not lane.ended]
        return bool(live) and all(lane.cordoned for lane in live)

    @property
    def why(self) -> str:
        """Why the whole box is cordoned, when it is for one reason: said once, not at each lane."""
        said = {lane.why for lane in self.lanes if not lane.ended}
        return said.pop() if self.cordoned and len(said) == 1 else ""


@dataclass(frozen=True)
class Unserved:
    """Jobs that wait in a queue which no lane of their project serves. ``capped``: there are more."""

    queue: str
    project: str
    queued: int
    capped: bool


@dataclass(frozen=True)
class Fleet:
    """``queued`` and ``running`` over all projects; ``capped``: there are more."""

    at: datetime
    store: str
    leader: Mapping[str, Any] | None
    projects: tuple[Mapping[str, Any], ...]
    boxes: tuple[Box, ...]
    events: tuple[Mapping[str, Any], ...]
    unserved: tuple[Unserved, ...]
    orders: tuple[Mapping[str, Any], ...] = field(repr=False)  # rows of worker_controls that hold, newest first

    @property
    def lanes(self) -> list[Lane]:
        return [lane for box in self.boxes for lane in box.lanes]

    @property
    def jobs(self) -> list[Mapping[str, Any]]:
        return [job for box in self.boxes for job in box.jobs]

    def standing(self) -> dict[str, int]:
        """How many lanes are parked, draining, down; how many boxes are up."""
        words = [lane.word.text for lane in self.lanes]
        return {
            "parked": sum(word == "PARKED" for word in words),
            "draining": sum(word.startswith("draining") for word in words),
            "down": sum(word in ("DOWN", "REFUSED") for word in words),
            "up": sum(box.word.text == "OK" for box in self.boxes),
        }


def read_fleet(db: Db) -> Fleet:
    """Everything at this moment, of all projects."""
    newest, facts = history.latest(db), history.box_facts(db)
    found, at = snapshot.view(
        db, None, snapshot.facts_rows(facts), {name: sample.at for name, sample in newest.items()}
    )
    boxes = tuple(_box(row, facts.get(row["box"]), newest.get(row["box"])) for row in found["boxes"])
    return Fleet(
        at, found["store"], found["leader"], tuple(found["projects"]), boxes, tuple(found["events"]),
        unserved(found["queues"], boxes), tuple(controls.all_orders(db)),
    )  # fmt: skip


def unserved(queues: Sequence[Mapping[str, Any]], boxes: Sequence[Box]) -> tuple[Unserved, ...]:
    """The queues in which something waits and that no lane serves, not even one that is parked or down."""
    served = {(lane.queue, lane.project) for box in boxes for lane in box.lanes if not lane.ended}
    return tuple(
        Unserved(row["queue"], row["project"], row["queued"], row["queued"] >= COUNT_CAP)
        for row in queues
        if row["queued"] and (row["queue"], row["project"]) not in served
    )


def read_strips(db: Db, minutes: int = 60) -> dict[str, Strip]:
    """The last hour of every box, as a strip."""
    now = db.now()
    return {box: strip(rows, now, minutes) for box, rows in history.hour(db).items()}


def _box(row: Mapping[str, Any], facts: BoxFacts | None, sample: BoxSample | None) -> Box:
    lanes = tuple(
        sorted(
            (read_lane({**lane, "box": row["box"]}) for lane in row["lanes"]),
            key=lambda lane: (FIRST.get(lane.queue, 2), lane.queue, lane.project),
        )
    )
    state = row["state"]
    if state == "down" and lanes and all(lane.ended for lane in lanes):
        state = "ended"  # somebody stopped it in order: its silence is no fault
    return Box(
        row["box"],
        BOX_WORDS[state],
        row["sample_age_s"],
        clean(row["description"], 80),
        row["simulated"],
        readings(row["box"], facts, sample) if sample is not None else (),
        lanes,
        tuple(row["jobs"]),
    )


def read_lane(row: Mapping[str, Any]) -> Lane:
    """A lane of ``lanes_view``, with its ``box``."""
    seen = row["last_seen_s"]
    silent = bool(row["flagged"]) or (seen is not None and seen > LANE_SILENT_S)
    word = lane_word(row["state"], row["desired"], row["policy"], row["busy"] or 0, bool(row["flagged"]), silent)
    return Lane(
        row["box"], row["queue"], row["project"], word, row["desired"], bool(row["cordoned"]), row["slots"] or 0,
        row["busy"] or 0, row["queued"], clean(row["current_model"], 60), clean(row["requested_by"], 60),
        clean(row["reason"], 120), seen, row,
    )  # fmt: skip


def readings(box: str, facts: BoxFacts | None, sample: BoxSample) -> tuple[Reading, ...]:
    """What a box reads now: its processor, then each GPU."""
    cards = {gpu.index: gpu for gpu in facts.gpus} if facts is not None else {}
    names = [str(gpu.name or "") for gpu in cards.values()]
    limits = limits_for(box, str(facts.cpu_model or "") if facts is not None else "", names)
    cores = f"{facts.cores} cores" if facts is not None and facts.cores else ""
    load = f"load {number(sample.load1, 1)}" if known(sample.load1) else ""
    temp, heat, tone = _heat(sample.cpu_temp_c, limits.cpu_c)
    host = Reading(
        "cpu", ", ".join(part for part in (cores, load) if part), _percent(sample.cpu_pct), temp, heat, tone, "",
        gigahertz(sample.cpu_mhz), _memory(sample.mem_used_mb, sample.mem_total_mb),
    )  # fmt: skip
    return (host, *(_card(gpu, cards.get(gpu.gpu_index), limits) for gpu in sample.gpus))


def _card(gpu: GpuSample, facts: GpuFacts | None, limits: Limits) -> Reading:
    label, name = f"gpu {gpu.gpu_index}", clean(facts.name, 60) if facts is not None else ""
    if gpu.state in GPU_WORDS:
        return Reading(label, name, state=GPU_WORDS[gpu.state], tone="bad" if gpu.state == "lost" else "warn")
    temp, heat, tone = _heat(gpu.temp_c, gpu_level(limits, _real(facts and facts.temp_slowdown_c)))
    limit = gpu.power_limit_w or _real(facts and facts.power_limit_w)
    power = number(gpu.power_w) + (f" / {number(limit)}" if known(limit) and known(gpu.power_w) else "")
    total = gpu.mem_total_mb or _real(facts and facts.mem_mb)
    return Reading(
        label, name, _percent(gpu.util_pct), temp, heat, tone, power, gigahertz(gpu.sm_mhz),
        _memory(gpu.mem_used_mb, total),
    )  # fmt: skip


def _real(value: Any) -> float | None:
    """A fact that any program may have written: a number, or nothing."""
    return float(value) if known(value) else None


def _percent(value: float | None) -> str:
    return number(value) if known(value) else "n/a"


def _heat(value: float | None, level: Level | None) -> tuple[str, str, str]:
    """A temperature, the word beside it, and its tone."""
    if value is None or not known(value):
        return "n/a", "", ""
    tone = level.tone(value) if level is not None else "ok"
    return number(value), {"warn": "warm", "hot": "HOT"}.get(tone, ""), {"warn": "warn", "hot": "bad"}.get(tone, "")


def _memory(used: float | None, total: float | None) -> str:
    return gigabytes(used) + (f" / {gigabytes(total)}" if known(total) and known(used) else "")


def title(job: Mapping[str, Any]) -> str:
    """``job 200 comfyui_video (gpu on spark, project lm_content)``; what is not known is not said."""
    where = " on ".join(clean(part, 60) for part in (job.get("queue"), job.get("box")) if part)
    project = clean(job.get("project"), 60)
    about = ", ".join(part for part in (where, f"project {project}" if project else "") if part)
    return f"job {clean(job.get('id'), 30)} {clean(job.get('name'), 80)}" + (f" ({about})" if about else "")


def lanes_of(fleet: Fleet, box: str, queue: str, projects: Sequence[str] | None) -> list[Lane]:
    """The lanes that an order would be about; ``*`` is all, ``projects`` None: of every project."""
    return [
        lane
        for lane in fleet.lanes
        if box in ("*", lane.box) and queue in ("*", lane.queue) and (projects is None or lane.project in projects)
    ]
