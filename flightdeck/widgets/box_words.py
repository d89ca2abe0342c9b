"""The column of words of a box page: lanes, what runs, every named sensor, who uses the GPUs. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.telemetry.sample import GpuSample
from flightdeck.model.fleet import Box
from flightdeck.model.text import clean
from flightdeck.model.traces import gpu_identity
from flightdeck.widgets import sensor_list
from flightdeck.widgets.box_charts import BoxView
from flightdeck.widgets.job_list import job_rows
from flightdeck.widgets.lane_row import exit_row, lane_row, model_row, room_for_words
from flightdeck.widgets.lines import Line, Row
from flightdeck.widgets.meter import cpu_limits
from flightdeck.widgets.scene import Cursor, Scene


@dataclass
class Page:
    """Lines of equal width; what a click on a line means; where the tabs of the GPUs stand: (row, first, last + 1, GPU)."""

    lines: list[Line] = field(default_factory=list)
    targets: dict[int, tuple[int, Cursor]] = field(default_factory=dict)  # row -> (first column, what)
    tabs: list[tuple[int, int, int, str]] = field(default_factory=list)


def gpus_of(scene: Scene, box: Box, view: BoxView) -> list[tuple[str, GpuSample]]:
    """(identity, newest look) of the box's GPUs by index: of live samples, else as the database has them; of cards that
    are known and say nothing, their names alone."""
    sample = scene.deck.history(box).latest
    found = sample.gpus if sample is not None and sample.gpus else view.cards
    found = found or tuple(GpuSample(device.index, device.uuid or None) for device in box.devices)
    return [(clean(gpu_identity(gpu), 60), gpu) for gpu in sorted(found, key=lambda gpu: gpu.gpu_index)]


def words_column(scene: Scene, box: Box, view: BoxView, width: int, height: int) -> Page:
    """The column of words: lanes, what runs, sensors, processes."""
    column = Page()
    lanes = scene.lanes(box)
    jobs = len(scene.jobs(box)) + scene.hidden_jobs(box)
    column.lines.append(Row(width).add("LANES", "dim").done())
    most = max(1, height // 4)
    details = sum(lane.queue == "gpu" or lane.silent(scene.deck.view_age()) for lane in lanes)
    lane_lines(column, scene, box, width, min(max(1, len(lanes)), most), details if height >= 24 else 0)
    if height >= 30:
        column.lines.append(Row(width).done())
    column.lines.append(Row(width).add("RUNNING", "dim").done())
    running_lines(column, scene, box, width, min(max(1, jobs), max(1, height // 4)))
    processes = view.sensors.processes
    below = 1 if processes is None or not processes else min(len(processes) + 1, max(2, height // 5))
    if not box.devices:
        below = 0
    if height >= 30:
        column.lines.append(Row(width).done())
    room = height - len(column.lines) - below
    state = scene.deck.box_state(box)
    column.lines += sensor_list.sensor_lines(view.sensors, cpu_limits(box), width, max(0, room), stale=state == "down")
    chosen = next((gpu.gpu_index for name, gpu in gpus_of(scene, box, view) if name == view.gpu), None)
    column.lines += sensor_list.process_lines(processes, chosen, width, below)
    del column.lines[height:]
    return column


def lane_lines(page: Page, scene: Scene, box: Box, width: int, rows: int, details: int) -> None:
    lanes = scene.lanes(box)
    if not lanes:
        where = "no lanes on this box" if scene.project is None else "no lanes of this project here"
        page.lines.append(Row(width).add(f"  {where}", "faint").done())
        return
    since = scene.deck.view_age()
    chosen = scene.cursor.lane if scene.cursor.box == box.raw and not scene.cursor.job else None
    shown = list(lanes[:rows])
    if chosen and shown and all(lane.raw_queue != chosen for lane in shown):
        shown[-1] = next((lane for lane in lanes if lane.raw_queue == chosen), shown[-1])
    words = room_for_words(shown, width)
    for lane in shown:
        target = Cursor(box.raw, lane.raw_queue)
        page.targets[len(page.lines)] = (0, target)
        page.lines.append(lane_row(lane, width, scene.glyphs, lane.raw_queue == chosen, since, words))
        if details and (lane.queue == "gpu" or lane.silent(since)):
            details -= 1
            page.targets[len(page.lines)] = (0, target)
            page.lines.append(exit_row(lane, width, since) if lane.silent(since) else model_row(lane, width))


def running_lines(page: Page, scene: Scene, box: Box, width: int, rows: int) -> None:
    chosen = scene.cursor.job if scene.cursor.box == box.raw else ""
    found = job_rows(
        scene.jobs(box), rows, width, scene.glyphs, chosen, scene.deck.view_age(), scene.hidden_jobs(box),
        scene.project is None,
    )  # fmt: skip
    for line, job in found:
        if job is not None:
            page.targets[len(page.lines)] = (0, Cursor(box.raw, job.queue, job.id))
        page.lines.append(line)
