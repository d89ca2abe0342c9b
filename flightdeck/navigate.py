"""Where the cursor goes. Pure: what is on screen and a direction in, the next cursor out."""

from __future__ import annotations

from collections.abc import Sequence

from flightdeck.model.fleet import Box, Job, Lane
from flightdeck.widgets.scene import Cursor, Scene

Stop = tuple[str, str]  # (raw queue, job id); a lane has no job id


def stops(scene: Scene, box: Box) -> list[Stop]:
    """What the cursor can stand on inside a box, top to bottom: its lanes, then its jobs."""
    found: list[Stop] = [(lane.raw_queue, "") for lane in scene.lanes(box)]
    return found + [("", job.id) for job in scene.jobs(box)]


def settle(scene: Scene, boxes: Sequence[Box], cursor: Cursor) -> Cursor:
    """The cursor, or the nearest thing that still exists."""
    if not boxes:
        return Cursor()
    box = next((box for box in boxes if box.raw == cursor.box), boxes[0])
    lanes = [lane.raw_queue for lane in scene.lanes(box)]
    job = next((job for job in scene.jobs(box) if job.id == cursor.job), None) if cursor.job else None
    if job is not None:
        # Its lane comes along: when the job ends, the cursor falls to that one and not to a lane that nobody chose.
        lane = next((lane.raw_queue for lane in scene.lanes(box) if lane.queue == job.queue), "")
        return Cursor(box.raw, lane, job.id)
    lane = cursor.lane if cursor.lane in lanes else lanes[0] if lanes else ""
    return Cursor(box.raw, lane)


def step(scene: Scene, boxes: Sequence[Box], cursor: Cursor, direction: str, columns: int) -> Cursor:
    """``up`` and ``down`` walk the rows of a box and go on in the box above or below; ``left`` and ``right`` change the box."""
    cursor = settle(scene, boxes, cursor)
    if not boxes:
        return cursor
    index = next((i for i, box in enumerate(boxes) if box.raw == cursor.box), 0)
    if direction in ("left", "right"):
        target = index + (1 if direction == "right" else -1)
        return _enter(scene, boxes[target], cursor.lane) if 0 <= target < len(boxes) else cursor
    rows = stops(scene, boxes[index])
    here = ("", cursor.job) if cursor.job else (cursor.lane, "")
    position = rows.index(here) if here in rows else 0
    position += 1 if direction == "down" else -1
    if 0 <= position < len(rows):
        return Cursor(boxes[index].raw, *rows[position])
    target = index + (columns if direction == "down" else -columns)
    if not 0 <= target < len(boxes):
        return cursor
    inside = stops(scene, boxes[target])
    if direction == "up" and inside:
        return Cursor(boxes[target].raw, *inside[-1])
    return _enter(scene, boxes[target], "")


def cycle(scene: Scene, boxes: Sequence[Box], cursor: Cursor, by: int) -> Cursor:
    """The next lane of the box, round and round."""
    cursor = settle(scene, boxes, cursor)
    box = next((box for box in boxes if box.raw == cursor.box), None)
    lanes = [lane.raw_queue for lane in scene.lanes(box)] if box is not None else []
    if not lanes or box is None:
        return cursor
    position = lanes.index(cursor.lane) if cursor.lane in lanes else (-1 if by > 0 else 0)
    return Cursor(box.raw, lanes[(position + by) % len(lanes)])


def selected_lane(scene: Scene, box: Box, cursor: Cursor) -> Lane | None:
    """The lane under the cursor; on a job, the lane that runs it."""
    lanes = scene.lanes(box)
    if cursor.job:
        job = next((job for job in scene.jobs(box) if job.id == cursor.job), None)
        return next((lane for lane in lanes if job is not None and lane.queue == job.queue), None)
    return next((lane for lane in lanes if lane.raw_queue == cursor.lane), None)


def selected_job(scene: Scene, box: Box, cursor: Cursor) -> Job | None:
    """The job under the cursor; on a lane that runs exactly one, that one."""
    jobs = scene.jobs(box)
    if cursor.job:
        return next((job for job in jobs if job.id == cursor.job), None)
    lane = selected_lane(scene, box, cursor)
    mine = [job for job in jobs if lane is not None and job.queue == lane.queue]
    return mine[0] if len(mine) == 1 else None


def _enter(scene: Scene, box: Box, lane: str) -> Cursor:
    lanes = [row.raw_queue for row in scene.lanes(box)]
    return Cursor(box.raw, lane if lane in lanes else lanes[0] if lanes else "")
