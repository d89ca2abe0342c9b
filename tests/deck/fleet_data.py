"""A fleet in memory: views, samples and a realistic hour, for tests that need no database. Deterministic by name."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from engine.feed import FeedUpdate
from engine.telemetry.sample import BoxSample, GpuSample

NOW = datetime(2026, 3, 4, 14, 3, 22, tzinfo=UTC)
MONO = 50_000.0


def update(**fields: Any) -> FeedUpdate:
    """What the feed would bring; live and at NOW unless said otherwise."""
    return FeedUpdate(**({"state": "live", "at": NOW, "mono": MONO, "listening": True} | fields))


@dataclass(frozen=True)
class Kind:
    """A class of machine and how its hour goes."""

    gpu: str | None
    cores: int
    mem_mb: float
    watts: tuple[float, float]
    mhz: tuple[float, float]
    heat: tuple[float, float]
    throttles: bool = False
    unified: bool = False
    counters: bool = True
    gpus: int = 1
    driver: str = "580.95"
    zone: bool = False


KINDS = {
    "halo": Kind("AMD Strix Halo", 32, 126_976, (25, 120), (600, 2900), (48, 66), counters=False, driver=""),
    "gb10": Kind(
        "NVIDIA GB10", 20, 123_904, (10, 119), (1300, 2186), (46, 86), throttles=True, unified=True, zone=True
    ),
    "rtx": Kind("NVIDIA RTX 4090", 24, 131_072, (22, 440), (210, 2730), (35, 78)),
    "eight": Kind("NVIDIA H200", 192, 2_064_384, (75, 690), (345, 1980), (28, 71), gpus=8),
    "cpu": Kind(None, 64, 262_144, (0, 0), (0, 0), (0, 0)),
}


def wave(name: str, t: float, period: float) -> float:
    """0..1, smooth with a little grain, the same every time."""
    seed = zlib.crc32(name.encode("utf-8", "replace")) % 1000
    base = math.sin((t + seed * 7) / period * 2 * math.pi) + 0.45 * math.sin(
        (t + seed * 3) / (period / 3.7) * 2 * math.pi
    )
    grain = ((zlib.crc32(f"{name}{int(t // 2)}".encode("utf-8", "replace")) % 1000) / 1000 - 0.5) * 0.16
    return min(1.0, max(0.0, 0.5 + base * 0.36 + grain))


def sample(box: str, kind: Kind, at: datetime, lost: tuple[int, ...] = (), blank: bool = False) -> BoxSample:
    """One look at a box. ``lost``: GPU indexes off the bus; ``blank``: every metric absent."""
    if blank:
        return BoxSample(box=box, at=at)
    t = at.timestamp()
    load = wave(box, t, 2600)
    busy = 1.0 if wave(box + "gpu", t, 3100) > 0.42 else 0.06
    gpus = []
    hot = busy > 0.5 and kind.throttles
    for index in range(kind.gpus if kind.gpu else 0):
        identity = f"GPU-{box}-{index}"
        if index in lost:
            gpus.append(GpuSample(gpu_index=index, gpu_uuid=identity, state="lost"))
            continue
        level = busy * (0.86 + 0.14 * wave(f"{box}{index}", t, 90))
        watts = kind.watts[0] + (kind.watts[1] - kind.watts[0]) * level
        thermal = hot and wave(box + "th", t, 2900) > 0.62
        power = hot and not thermal and wave(box + "pw", t, 1500) > 0.4
        counted = kind.counters
        gpus.append(
            GpuSample(
                gpu_index=index,
                gpu_uuid=identity,
                util_pct=round(96 * level + 3 * wave(box + "u", t, 20), 1),
                mem_used_mb=None if kind.unified else 14_000 + 700.0 * index,
                mem_total_mb=None if kind.unified else 24_564.0 if kind.gpus == 1 else 143_771.0,
                temp_c=round(kind.heat[0] + (kind.heat[1] - kind.heat[0]) * (0.75 * level + 0.25 * load), 1),
                power_w=round(watts, 1),
                sm_mhz=None
                if not counted
                else round(kind.mhz[1] - (kind.mhz[1] - kind.mhz[0]) * (0.16 if hot else 0.05) * load),
                throttle_source="counter" if counted else "none",
                sw_power_ms=(900.0 if power else 0.0) if counted else None,
                sw_thermal_ms=(1500.0 if thermal else 0.0) if counted else None,
                hw_thermal_ms=0.0 if counted else None,
                hw_brake_ms=0.0 if counted else None,
                sync_boost_ms=0.0 if counted else None,
                brakes=(1 if hot and int(t) % 900 < 2 else 0) if counted else None,
            )
        )
    throttled = [gpu for gpu in gpus if gpu.sw_power_ms is not None]
    return BoxSample(
        box=box,
        at=at,
        cpu_pct=round(8 + 91 * load, 1),
        load1=round(kind.cores * (0.2 + 1.7 * load), 1),
        cpu_mhz=round(2200 + 1900 * (0.4 + 0.6 * wave(box + "c", t, 700))),
        cpu_temp_c=None if kind.zone else round(52 + 41 * load, 1),
        zone_max_c=round(58 + 40 * load, 1),
        zone_max_name="acpitz",
        mem_used_mb=round(kind.mem_mb * (0.2 + 0.3 * load)),
        mem_total_mb=kind.mem_mb,
        net_rx_bps=round(90_000 + 4e6 * max(0.0, wave(box + "n", t, 300) - 0.8) * 5),
        net_tx_bps=50_000.0,
        cpu_throttle_ms=None,
        power_ms=max((gpu.sw_power_ms or 0.0 for gpu in throttled), default=None),
        thermal_ms=max((gpu.sw_thermal_ms or 0.0 for gpu in throttled), default=None),
        brakes=max((gpu.brakes or 0 for gpu in throttled), default=None),
        gpus=tuple(gpus),
    )


def lane(queue: str, project: str = "", **over: Any) -> dict[str, Any]:
    row = {
        "queue": queue, "project": project, "state": "running", "desired": "on", "policy": "hard", "slots": 1, "busy": 0,
        "queued": 0, "current_model": None, "incarnation": "0123456789abcdef", "last_seen_s": 2.0, "flagged": False,
        "last_exit_code": None, "last_exit_reason": None,
    }  # fmt: skip
    return row | over


def job(number: int, name: str, queue: str, project: str = "", age_s: float = 60.0, **over: Any) -> dict[str, Any]:
    row = {
        "id": str(number), "family": "node", "project": project, "name": name, "queue": queue, "age_s": age_s,
        "progress_pct": None, "progress_text": None, "run_id": "7", "node_id": "n", "attempt": 1, "is_priority": False,
    }  # fmt: skip
    return row | over


def box_row(
    name: str, kind: Kind, lanes: list[dict[str, Any]], jobs: list[dict[str, Any]], **over: Any
) -> dict[str, Any]:
    gpus = [
        {
            "index": index, "uuid": f"GPU-{name}-{index}", "name": kind.gpu, "vendor": "nvidia", "mem_mb": None if kind.unified else 24_564,
            "unified": kind.unified, "power_limit_w": round(kind.watts[1] * 1.1), "temp_slowdown_c": 90, "clock_max_mhz": kind.mhz[1],
        }
        for index in range(kind.gpus if kind.gpu else 0)
    ]  # fmt: skip
    row = {
        "box": name, "state": "up", "sample_age_s": 1.0, "simulated": False, "description": "",
        "facts": {"cpu_model": "AMD EPYC", "cores": kind.cores, "mem_mb": kind.mem_mb, "gpus": gpus, "driver": kind.driver},
        "now": None, "gpus": [], "lanes": lanes, "jobs": jobs, "hour": {},
    }  # fmt: skip
    return row | over


@dataclass
class FleetData:
    """A whole fleet: ``first()`` is what the feed brings at start."""

    boxes: list[tuple[dict[str, Any], Kind]]
    lost: dict[str, tuple[int, ...]] = field(default_factory=dict)
    blank: set[str] = field(default_factory=set)
    dead_since: dict[str, float] = field(default_factory=dict)  # box -> seconds since its last sample
    leader: Any = field(default_factory=lambda: {"box": "beelink", "incarnation": "aa"})
    projects: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    now: datetime = NOW

    def view(self) -> dict[str, Any]:
        return {
            "at": self.now.isoformat(), "store": "fleet@postgres", "leader": self.leader, "projects": self.projects,
            "boxes": [row for row, _ in self.boxes], "events": self.events,
        }  # fmt: skip

    def hour(self, cadence_s: int = 10) -> dict[str, list[BoxSample]]:
        return {row["box"]: self._hour(row["box"], kind, cadence_s) for row, kind in self.boxes}

    def _hour(self, name: str, kind: Kind, cadence_s: int) -> list[BoxSample]:
        return _hour(
            name, kind, cadence_s, self.now, self.dead_since.get(name, 0.0), self.lost.get(name, ()), name in self.blank
        )

    def first(self) -> FeedUpdate:
        return update(view=self.view(), history=self.hour(), at=self.now)

    def tick(self, seconds: float) -> FeedUpdate:
        """New samples of every living box, ``seconds`` after the first update; the view is unchanged."""
        at = self.now + timedelta(seconds=seconds)
        living = [(row, kind) for row, kind in self.boxes if row["box"] not in self.dead_since]
        samples = tuple(
            sample(row["box"], kind, at, self.lost.get(row["box"], ()), row["box"] in self.blank)
            for row, kind in living
        )
        return update(at=at, mono=MONO + seconds, samples=samples)


@cache
def _hour(
    name: str, kind: Kind, cadence_s: int, now: datetime, dead_s: float, lost: tuple[int, ...], blank: bool
) -> list[BoxSample]:
    rows = []
    at = now - timedelta(hours=1)
    while at <= now - timedelta(seconds=dead_s):
        gone = lost if (now - at).total_seconds() < 200 else ()
        rows.append(_long(sample(name, kind, at, gone, blank), cadence_s))
        at += timedelta(seconds=cadence_s)
    return rows


def _long(row: BoxSample, cadence_s: int) -> BoxSample:
    """A sample that stands for ``cadence_s`` seconds instead of two: its throttle time grows with it."""
    from dataclasses import replace

    factor = cadence_s / 2
    return replace(
        row,
        power_ms=None if row.power_ms is None else row.power_ms * factor,
        thermal_ms=None if row.thermal_ms is None else row.thermal_ms * factor,
    )


def three_boxes() -> FleetData:
    """The fleet of the drawing: a control box, one that throttles, one with a parked lane."""
    beelink = box_row(
        "beelink", KINDS["halo"],
        [lane("cpu", "lm_content", slots=33, busy=24, queued=5140), lane("gpu", "lm_content", slots=2, queued=28, current_model="qwen2.5:7b")],
        [job(100 + i, "compute_storm_grids", "cpu", "lm_content", 552 - 2 * i) for i in range(24)],
        description="control hub", simulated=True,
    )  # fmt: skip
    spark = box_row(
        "spark", KINDS["gb10"],
        [lane("cpu", "lm_content"), lane("gpu", "lm_content", busy=1, queued=28, state="draining", desired="off", policy="drain", current_model="comfyui")],
        [job(200, "comfyui_video", "gpu", "lm_content", 362, progress_pct=61.0, note="throttled 88 s thermal")],
        simulated=True,
    )  # fmt: skip
    spark2 = box_row(
        "spark2", KINDS["gb10"],
        [lane("cpu", "ai_leads", state="parked", desired="off"), lane("gpu", "ai_leads", queued=28), lane("gpu", "lm_content", queued=3)],
        [], simulated=True,
    )  # fmt: skip
    return FleetData(
        [(beelink, KINDS["halo"]), (spark, KINDS["gb10"]), (spark2, KINDS["gb10"])],
        projects=[
            {"project": "ai_leads", "queued": 6, "running": 0},
            {"project": "lm_content", "queued": 5140, "running": 25},
            {"project": "video_gen", "queued": 28, "running": 0},
        ],
        events=[
            {"id": "3", "at": "2026-03-04T14:02:51+00:00", "family": "node", "job_id": "200", "box": "spark", "queue": "gpu", "project": "lm_content", "type": "stall_suspected", "cause": None, "exit_code": None, "text": "stall not confirmed (gpu 41 %)"},
            {"id": "2", "at": "2026-03-04T14:02:40+00:00", "family": "node", "job_id": None, "box": "spark2", "queue": "cpu", "project": "ai_leads", "type": "park", "cause": None, "exit_code": None, "text": "parked by ops"},
            {"id": "1", "at": "2026-03-04T14:01:12+00:00", "family": "node", "job_id": "99", "box": "beelink", "queue": "cpu", "project": "lm_content", "type": "requeued", "cause": "executor_died", "exit_code": -9, "text": ""},
        ],
    )  # fmt: skip


def four_boxes() -> FleetData:
    """Three simulated boxes and a real one without a GPU."""
    fleet = three_boxes()
    here = box_row("workshop", KINDS["cpu"], [lane("cpu", "video_gen", slots=8, busy=2), lane("default", "", slots=2)],
                   [job(300, "render_still", "cpu", "video_gen", 41, progress_pct=12.0), job(301, "render_still", "cpu", "video_gen", 12)])  # fmt: skip
    fleet.boxes.append((here, KINDS["cpu"]))
    return fleet


def one_box() -> FleetData:
    fleet = three_boxes()
    fleet.boxes = fleet.boxes[1:2]
    return fleet


def twelve_boxes() -> FleetData:
    """Everything that can be odd at once: a dead box, a lost GPU of eight, a blank one, many that are well."""
    fleet = four_boxes()
    fleet.boxes.append((box_row("hangar", KINDS["eight"], [lane("gpu", "video_gen", slots=8, busy=5, queued=12)],
                                [job(400 + i, "train_lora", "gpu", "video_gen", 900 - i, progress_pct=10.0 * i) for i in range(5)]), KINDS["eight"]))  # fmt: skip
    fleet.lost["hangar"] = (3,)
    dead = lane("gpu", "video_gen", slots=1, busy=1, last_seen_s=95.0, flagged=True, last_exit_code=76)
    fleet.boxes.append(
        (
            box_row("attic", KINDS["rtx"], [dead], [job(500, "upscale", "gpu", "video_gen", 700)], state="down"),
            KINDS["rtx"],
        )
    )
    fleet.dead_since["attic"] = 700.0
    fleet.boxes.append((box_row("mute", KINDS["rtx"], [lane("gpu", "video_gen")], []), KINDS["rtx"]))
    fleet.blank.add("mute")
    for number in range(5):
        name = f"rack{number + 1}"
        fleet.boxes.append((box_row(name, KINDS["rtx"], [lane("cpu", "ai_leads", slots=4, busy=number % 3), lane("gpu", "ai_leads", busy=1)],
                                    [job(600 + number, "embed_batch", "gpu", "ai_leads", 30.0 * number)]), KINDS["rtx"]))  # fmt: skip
    return fleet


HOSTILE = (
    "[bold]x", "[/]", "[b", "[@click=app.quit]run[/]", "a\x1b[31mred", "\x1b]52;c;aGk=\x07", "\x9b2J", "bell\x07", "bidi\u202egnp",
    "zero\u200bwidth", "tab\tnew\nline", "wide\u6f22\u5b57", "e\u0301" + "\u0301" * 20, "", "x" * 500, "\ud800lone",
)  # fmt: skip


def hostile_fleet() -> FleetData:
    """Every name and text is one that breaks other tools."""
    boxes = []
    for index, text in enumerate(HOSTILE):
        lanes = [lane(text, text, current_model=text, last_exit_reason=text, last_exit_code=75)]
        jobs = [job(index, text, text, text, progress_text=text, progress_pct=50.0)]
        kind = KINDS["rtx"]
        row = box_row(text, kind, lanes, jobs, description=text)
        row["facts"]["driver"] = text
        for gpu in row["facts"]["gpus"]:
            gpu["name"] = text
        boxes.append((row, kind))
    fleet = FleetData(boxes)
    fleet.projects = [{"project": text, "queued": 1, "running": 1} for text in HOSTILE]
    fleet.events = [
        {
            "id": str(index),
            "at": NOW.isoformat(),
            "box": text,
            "queue": text,
            "project": text,
            "type": text,
            "cause": text,
            "text": text,
        }
        for index, text in enumerate(HOSTILE)
    ]
    return fleet
