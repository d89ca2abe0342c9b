"""What the database would say to the throttle page's questions, for frames: six boxes, a day and a week."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from flightdeck.reader import Key, question_key

CAUSES = "PTBCS"


def hours_of(box: int, hour: int) -> dict[str, float | None]:
    """Seconds per cause of one hour: a box at its power cap, one that gets too hot at night, one that nobody can ask."""
    wave = (1 + math.sin(hour / 3.0 + box)) / 2
    if box == 1:  # no counters, no mask
        return dict.fromkeys(CAUSES)
    if box == 2:  # a processor, no GPU
        return {**dict.fromkeys(CAUSES), "C": 40.0 if hour % 11 == 3 else 0.0}
    if box == 3:  # nothing ever
        return dict.fromkeys(CAUSES, 0.0)
    hot = 2400.0 * wave if hour % 12 > 6 else 0.04
    return {
        "P": 3300.0 * wave,
        "T": hot if box in (0, 5) else 0.0,
        "B": 2.5 if hour % 9 == 4 and box == 0 else 0.0,
        "C": 0.0,
        "S": 0.0,
    }


def history(end: datetime, count: int, names: Iterable[str]) -> dict[str, Any]:
    top = end.replace(minute=0, second=0, microsecond=0)
    starts = [top - timedelta(hours=count - 1 - n) for n in range(count)]
    boxes = []
    for index, name in enumerate(names):
        rows = [hours_of(index % 6, start.hour + 24 * start.day) for start in starts]
        dead = [index == 4 and n > count * 2 // 3 for n in range(count)]
        causes = {}
        for cause in CAUSES:
            seconds = [None if gone else row[cause] for gone, row in zip(dead, rows, strict=True)]
            known = [value for value in seconds if value is not None]
            causes[cause] = {"total_s": sum(known) if known else None, "hours": seconds}
        brakes = [None if gone or index == 1 else int(bool(row["B"])) * 2 for gone, row in zip(dead, rows, strict=True)]
        boxes.append(
            {
                "box": name, "sampled": index == 5, "minutes": [0 if gone else 60 for gone in dead[:-1]] + [0 if dead[-1] else 41],
                "brakes": {"total": sum(n or 0 for n in brakes), "hours": brakes}, "causes": causes,
            }
        )  # fmt: skip
    return {"at": end.isoformat(), "hours": [start.isoformat() for start in starts], "boxes": boxes}


def jobs(end: datetime, box: str) -> list[dict[str, Any]]:
    found = []
    for n in range(9):
        thermal, power = max(0.0, 900.0 - 130.0 * n), 1200.0 - 90.0 * n
        found.append(
            {
                "job_id": str(5170 - n), "family": "node", "name": ["comfyui_video", "train_lora", "embed"][n % 3], "project": "lm_content",
                "queue": "gpu", "box": box, "run_s": 2000.0 - 100 * n, "gpu_index": 0,
                "seconds": {"P": power, "T": thermal, "B": 1.5 if n == 1 else None},
                "share": {"P": power / (2000.0 - 100 * n), "T": thermal / (2000.0 - 100 * n), "B": 0.001 if n == 1 else None},
                "temp_max_c": 86.0 - n, "power_max_w": 102.0, "sm_mean_mhz": 1880.0 + 40 * n,
                "started_at": (end - timedelta(hours=n + 1)).isoformat(), "finished_at": (end - timedelta(hours=n)).isoformat(),
            }
        )  # fmt: skip
    return found


def answers(
    end: datetime, names: Iterable[str] = ("spark", "beelink", "xeon", "spark2", "old", "mill")
) -> dict[Key, Any]:
    names = list(names)
    found: dict[Key, Any] = {}
    for span_s, count in ((86_400, 24), (604_800, 168)):
        found[question_key("throttle", {"span_s": span_s})] = history(end, count, names)
        found[question_key("throttle_jobs", {"span_s": span_s})] = jobs(end, "spark")
        for name in names:
            found[question_key("throttle_jobs", {"span_s": span_s, "box": name})] = (
                jobs(end, name) if name == "spark" else []
            )
    return found
