"""Running jobs, one row each: queue, project, name, progress, age."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from flightdeck.charts.cells import bar
from flightdeck.model import units
from flightdeck.model.fleet import Job
from flightdeck.widgets.lines import Glyphs, Line, Row

QUEUE_MIN = 5


def bar_cells(width: int) -> int:
    """How long a progress bar is in a row of this width."""
    return 0 if width < 55 else min(24, 8 + max(0, width - 56) // 4)


def queue_cells(jobs: Sequence[Job], width: int, show_project: bool) -> int:
    """Room for the queue's name: all of it where project and name leave as much."""
    if not jobs:
        return QUEUE_MIN
    rest = max(cell_len(job.name) + (cell_len(job.project) + 1 if show_project else 0) for job in jobs)
    tail = max(_tail_cells(job, width) for job in jobs)
    longest, free = max(cell_len(job.queue) for job in jobs), width - 3 - rest - tail
    return min(QUEUE_MIN, longest) if free < QUEUE_MIN else max(QUEUE_MIN, min(longest, free))


def _tail_cells(job: Job, width: int) -> int:
    return 8 if job.progress_pct is None else 13 + bar_cells(width)


def job_row(
    job: Job,
    width: int,
    g: Glyphs,
    selected: bool,
    since_view_s: float,
    show_project: bool = True,
    more: int = 0,
    queue_cells: int = QUEUE_MIN,
) -> Line:
    row = Row(width, "s" if selected else "")
    row.add(f"{g.mark} " if selected else "  ", "focus+b")
    row.add(job.queue, "dim", queue_cells).add(" ")
    if show_project and job.project != "-":
        whole, room = cell_len(job.project), width - row.used - 1 - cell_len(job.name) - _tail_cells(job, width)
        row.add(job.project, "accent", whole if whole <= room else min(whole, max(6, (width - 26) // 2))).add(" ")
    row.add("! " if job.is_priority else "", "warn+b")
    row.add(job.name, "bright" if selected else "text")
    if job.stopping:
        row.add("  stopping", "warn")
    age = None if job.age_s is None else job.age_s + since_view_s
    tail = [(units.age(age).rjust(7), "dim")]
    if job.progress_pct is not None:
        cells = bar_cells(width)
        filled = bar(job.progress_pct / 100.0, cells)
        tail = [
            (" ", "text"),
            (g.full * filled, "info"),
            (g.track * (cells - filled), "track"),
            (units.percent(max(0.0, min(100.0, job.progress_pct))).rjust(5), "text"),
            *tail,
        ]
    else:
        tail.insert(0, (" ", "text"))
    if more:
        tail.insert(0, (f" +{units.count(more)} more" if width >= 56 else f" +{units.count(more)}", "dim"))
    row.right(*tail)
    return row.done()


def job_rows(
    jobs: Sequence[Job],
    room: int,
    width: int,
    g: Glyphs,
    chosen: str,
    since_view_s: float,
    hidden: int,
    show_project: bool,
) -> list[tuple[Line, Job | None]]:
    """At most ``room`` rows, with ``+N more`` as the last when they do not fit; the chosen job is always among them."""
    if room <= 0:
        return []
    if not jobs and not hidden:
        return [(Row(width).add("  no jobs running", "faint").done(), None)]
    fits = len(jobs) + (1 if hidden else 0) <= room
    shown = list(jobs) if fits else list(jobs[: max(1, room - 1)])
    if not fits and chosen and shown and all(job.id != chosen for job in shown):
        found = next((job for job in jobs if job.id == chosen), None)
        if found is not None:
            shown[-1] = found
    more = len(jobs) - len(shown) + hidden
    spare = room - len(shown) - (1 if more else 0)
    rows: list[tuple[Line, Job | None]] = []
    queues = queue_cells(shown, width, show_project)
    for job in shown:
        inline = more if room == 1 else 0
        rows.append((job_row(job, width, g, job.id == chosen, since_view_s, show_project, inline, queues), job))
        if job.note and spare > 0:
            spare -= 1
            rows.append((Row(width).add("        ").add(job.note, "warn").done(), job))
    if more > 0 and len(rows) < room:
        rows.append((Row(width).add(f"  +{units.count(more)} more", "dim").done(), None))
    return rows
