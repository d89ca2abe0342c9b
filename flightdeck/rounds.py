"""Which questions a recording answers, and how often: those that the deck's pages ask when they are opened. Pure.

A replay can answer nothing else, but for what is a part of it (:func:`wider`): a filter or an older page of a list says so. ``tests/deck/test_pages_frames.py`` walks
through every page of a recording and fails where one asks what does not stand here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flightdeck.model.axis import HOUR_S, SPANS_S, slot_step
from flightdeck.model.happenings import KINDS
from flightdeck.model.jobs import STATUSES
from flightdeck.model.rows import moment

QUICK_S = 20.0  # lists that change all the time
SLOW_S = 120.0  # series: live samples fill in between
RARE_S = 600.0  # days and weeks
BOXES = 16  # so many boxes are asked about; a larger fleet is a recording of its overview
GPUS = 8
LONG_GPUS = 16  # with more cards than that their days and weeks are left out
JOBS = 24
PROJECTS = 8
_LIVELY = frozenset({"live", "running", "failed", "telling", "all"})  # the lists that somebody watches


@dataclass(frozen=True)
class Question:
    name: str
    arguments: dict[str, Any] = field(hash=False)
    every_s: float


def questions(view: Mapping[str, Any]) -> list[Question]:
    """What the pages would ask about this view, lists first."""
    boxes = [row for row in view.get("boxes") or [] if isinstance(row, Mapping)][:BOXES]
    projects = [None, *(row["project"] for row in view.get("projects") or [])][: PROJECTS + 1]
    return [*_lists(projects), *_jobs(view, boxes), *_throttling(boxes), *_boxes(boxes)]


def wider(name: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments of a question that is recorded and whose answer holds that to this one; None: there is none."""
    if name != "throttle_jobs" or "since" not in arguments:
        return None
    return {key: value for key, value in arguments.items() if key not in ("since", "until")}


def narrow(arguments: Mapping[str, Any], value: Any) -> Any:
    """Of the answer to the wider question what is asked: jobs that ran in these hours, of those that were recorded."""
    since, until = moment(arguments.get("since")), moment(arguments.get("until"))
    if not isinstance(value, list) or since is None or until is None:
        return value
    return [
        row
        for row in value
        if isinstance(row, Mapping)
        and (ended := moment(row.get("finished_at"))) is not None
        and (began := moment(row.get("started_at"))) is not None
        and ended >= since
        and began <= until
    ]


def _lists(projects: list[str | None]) -> Iterator[Question]:
    for project in projects:
        quick = QUICK_S if project is None else SLOW_S
        for status, _ in STATUSES:
            rest = quick if status in _LIVELY else SLOW_S
            yield Question("jobs", {"status": status, "project": project}, rest)
        yield Question("job_counts", {"project": project}, quick)
        yield Question("queues", {"project": project}, quick)
        for kind, _ in KINDS:
            rest = quick if kind in _LIVELY else SLOW_S
            yield Question("events", {"kind": kind, "project": project}, rest)


def _jobs(view: Mapping[str, Any], boxes: list[Mapping[str, Any]]) -> Iterator[Question]:
    """Of what runs, and of what last happened to a job."""
    ids = [str(job["id"]) for row in boxes for job in row.get("jobs") or []]
    ids += [str(event["job_id"]) for event in view.get("events") or [] if event.get("job_id")]
    for job_id in list(dict.fromkeys(ids))[:JOBS]:
        yield Question("job", {"job_id": job_id}, QUICK_S)
        yield Question("job_hardware", {"job_id": job_id}, QUICK_S)


def _throttling(boxes: list[Mapping[str, Any]]) -> Iterator[Question]:
    for span_s in SPANS_S[-2:]:
        yield Question("throttle", {"span_s": span_s}, SLOW_S)
        for box in (None, *(row["box"] for row in boxes)):
            asked = {"span_s": span_s} | ({"box": box} if box is not None else {})
            yield Question("throttle_jobs", asked, SLOW_S)
            for cause in "PTB":
                yield Question("throttle_jobs", asked | {"cause": cause}, RARE_S)


def _boxes(boxes: list[Mapping[str, Any]]) -> Iterator[Question]:
    cards = {row["box"]: ((row.get("facts") or {}).get("gpus") or [])[:GPUS] for row in boxes}
    few = sum(map(len, cards.values())) <= LONG_GPUS
    for box, gpus in cards.items():
        yield Question("box_now", {"box": box}, QUICK_S)
        for span_s in SPANS_S:
            long = span_s > HOUR_S
            yield Question("box_jobs", {"box": box, "seconds": span_s}, RARE_S if long else QUICK_S)
            if long:
                yield Question("span", {"box": box, "span_s": span_s}, RARE_S)
            for gpu in gpus if few or not long else ():
                name = gpu.get("uuid") or f"#{gpu.get('index')}"
                arguments = {"box": box, "seconds": span_s, "bucket_s": slot_step(span_s), "gpu": name}
                yield Question("box_gpus", arguments, RARE_S if long else SLOW_S)
