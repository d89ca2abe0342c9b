"""What the database would answer to the questions of a box page, made from the fleet in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from engine.telemetry.box_span import CAUSES, SERIES
from engine.telemetry.sample import BoxSample
from flightdeck.frame import render_frame
from flightdeck.model.axis import slot_step
from flightdeck.model.box_detail import read_jobs, read_sensors
from flightdeck.model.deck import Deck
from flightdeck.model.fleet import Box
from flightdeck.reader import Key, question_key
from flightdeck.widgets.box_charts import BoxView
from flightdeck.widgets.box_page import box_page
from flightdeck.widgets.lines import ASCII, UNICODE, Line, plain
from flightdeck.widgets.scene import Cursor, Scene
from tests.deck.fleet_data import NOW, FleetData
from tests.deck.piloting import StandingClock

SENSORS: dict[str, Any] = {
    "zones": {"acpitz": 84.2, "acpitz 2": 79.0, "nvme0": 51.9, "soc thermal": 88.4},
    "fans": {"nct6798 fan1": 2140.0},
    "rails": {"spbm sys_total": 131.4, "spbm dc_input": 140.2},
    "net": {"enP7s7": [1_250_000.0, 90_000.0], "wlan0": [0.0, 0.0]},
    "disks": {"nvme0n1": [2.5e6, 410_000.0]},
    "mounts": {"/": 41.2, "/data": 93.0},
    "uptime_s": 1_040_000.0,
    "absent": {"cpu_throttle_ms": "no thermal_throttle counters"},
    "gpu_absent": {"0": {"fan_pct": "no fan tach", "power_limit_w": "firmware hides the limit"}},
}


def attempt(number: int, name: str, began_min: float, minutes: float | None, **over: Any) -> dict[str, Any]:
    """A job that began ``began_min`` minutes ago and ran for so many; None: it still runs."""
    began = NOW - timedelta(minutes=began_min)
    row = {
        "id": str(number), "family": "node", "name": name, "queue": "gpu", "project": "lm_content", "attempt": 1,
        "run_id": "7", "node_id": "n", "started_at": began.isoformat(),
        "finished_at": None if minutes is None else (began + timedelta(minutes=minutes)).isoformat(),
        "outcome": "running" if minutes is None else "completed", "cause": None, "exit_code": None,
        "progress_pct": None, "power_ms": None, "thermal_ms": None, "brake_ms": None,
    }  # fmt: skip
    return row | over


JOBS = [
    attempt(200, "comfyui_video", 6.0, None, progress_pct=61.0),
    attempt(199, "comfyui_video", 24.0, 16.5, thermal_ms=88_000.0),
    attempt(198, "upscale", 27.0, 2.0, outcome="requeued", cause="executor_died", exit_code=-9),
    attempt(197, "train_lora", 58.0, 29.0, outcome="failed", exit_code=78, power_ms=415_000.0),
    attempt(196, "compute_storm_grids", 40.0, 9.0, queue="cpu", project="ai_leads"),
]


def gpus_answer(samples: Sequence[BoxSample], uuid: str, seconds: int, **over: Any) -> dict[str, Any]:
    """As ``box_gpus`` would answer about one card."""
    bucket_s = slot_step(seconds)
    last = int(NOW.timestamp() // bucket_s)
    count = seconds // bucket_s
    first = last - count + 1
    series: dict[str, list[Any]] = {name: [None] * count for name in SERIES}
    held: dict[str, list[Any]] = {name: [None] * count for name in CAUSES}
    brakes: list[Any] = [None] * count
    index, xid = 0, None
    for sample in samples:
        at = int(sample.at.timestamp() // bucket_s) - first
        for gpu in sample.gpus:
            if gpu.gpu_uuid != uuid or not 0 <= at < count:
                continue
            index, xid = gpu.gpu_index, gpu.xid or xid
            for name in SERIES:
                if (value := getattr(gpu, name)) is not None:
                    low, high = series[name][at] or (value, value)
                    series[name][at] = [min(low, value), max(high, value)]
            for name in CAUSES:
                if (value := getattr(gpu, name)) is not None:
                    held[name][at] = (held[name][at] or 0.0) + value
            if gpu.brakes is not None:
                brakes[at] = (brakes[at] or 0) + gpu.brakes
    card = {
        "uuid": uuid, "index": index, "series": {name: values for name, values in series.items() if any(values)},
        "held": held, "brakes": brakes, "source": "counter", "xid": xid, "xid_at": None,
    } | over  # fmt: skip
    return {"box": "", "at": NOW.isoformat(), "bucket_s": bucket_s, "first": first, "count": count, "gpus": [card]}


def answers(fleet: FleetData, box: str, seconds: int = 3600, sensors: Any = None, jobs: Any = None,
            kernel: str = "6.11.0-1016-nvidia", **card: Any) -> dict[Key, Any]:  # fmt: skip
    """All answers about one box and one window."""
    samples = fleet.hour()[box]
    row = next(row for row, _ in fleet.boxes if row["box"] == box)
    facts = row["facts"] | {"kernel": kernel}
    found: dict[Key, Any] = {
        question_key("box_now", {"box": box}): {
            "box": box, "at": NOW.isoformat(), "facts": facts, "sample_at": NOW.isoformat(), "sample": {},
            "sensors": SENSORS if sensors is None else sensors, "gpus": [],
        },
        question_key("box_jobs", {"box": box, "seconds": seconds}): {
            "box": box, "at": NOW.isoformat(), "more": False, "jobs": JOBS if jobs is None else jobs,
        },
    }  # fmt: skip
    for gpu in facts["gpus"]:
        arguments = {"box": box, "seconds": seconds, "bucket_s": slot_step(seconds), "gpu": gpu["uuid"]}
        found[question_key("box_gpus", arguments)] = gpus_answer(samples, gpu["uuid"], seconds, **card)
    return found


def when(minutes_ago: float) -> datetime:
    return NOW - timedelta(minutes=minutes_ago)


def only(fleet: FleetData, box: str) -> FleetData:
    """The fleet with one box first, so that enter opens it."""
    fleet.boxes = sorted(fleet.boxes, key=lambda pair: pair[0]["box"] != box)
    return fleet


def page(
    fleet: FleetData, box: str, size: tuple[int, int] = (120, 40), keys: tuple[str, ...] = (), **options: Any
) -> str:
    canned = options.pop("answers", None)
    found = answers(fleet, box) if canned is None else canned
    return render_frame(only(fleet, box).first(), size, keys=("enter", *keys), answers=found, **options).text


def still(
    fleet: FleetData,
    box: str,
    sensors: Any = None,
    jobs: Any = None,
    ascii: bool = False,
    history: list[BoxSample] | None = None,
    read: bool = True,
) -> tuple[Scene, Box, BoxView]:
    """A scene, a box and what its page has read, without an app."""
    fleet.boxes = [pair for pair in fleet.boxes if pair[0]["box"] == box]
    deck = Deck(StandingClock())
    first = fleet.first()
    deck.apply(first if history is None else replace(first, history={box: history}))
    scene = Scene(deck, Cursor(box), glyphs=ASCII if ascii else UNICODE)
    found = next(each for each in deck.boxes() if each.raw == box)
    view = BoxView()
    known = answers(fleet, box, sensors=sensors, jobs=jobs) if read else {}
    for (name, _), value in known.items():
        if name == "box_gpus":
            view.series.load(value)
        elif name == "box_now":
            view.sensors = read_sensors(value["sensors"])
        else:
            view.jobs, view.more_jobs = read_jobs(value)
            view.jobs_note = ""
    return scene, found, view


def rows(lines: list[Line]) -> list[str]:
    return [plain(line) for line in lines]


def drawn_page(known: tuple[Scene, Box, BoxView], width: int = 120, height: int = 36) -> str:
    return "\n".join(rows(box_page(*known, width, height).lines))
