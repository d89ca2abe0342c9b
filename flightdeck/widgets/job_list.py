"""Running jobs, one row each: queue, project, name, progress, age."""

from __future__ import annotations

from collections.abc import Sequence

from flightdeck.charts.cells import bar
from flightdeck.model import units
from flightdeck.model.fleet import Job
from flightdeck.widgets.lines import Glyphs, Line, Row


def job_row(
    job: Job, width: int, g: Glyphs, selected: bool, since_view_s: float, show_project: bool = True, more: int = 0
) -> Line:
    row = Row(width, "s" if selected else "")
    row.add(f"{g.mark} " if selected else "  ", "focus+b")
    row.add(job.queue, "dim", 5).add(" ")
    if show_project and job.project != "-":
        row.add(job.project, "accent", min(len(job.project), max(6, (width - 26) // 2))).add(" ")
    row.add("! " if job.is_priority else "", "warn+b")
    row.add(job.name, "bright" if selected else "text")
    if job.stopping:
        row.add("  stopping", "warn")
    if more:
        text = f"  +{units.count(more)} more"
        row.add(text if row.used + len(text) < width - 9 else f" +{units.count(more)}", "dim")
    age = None if job.age_s is None else job.age_s + since_view_s
    tail = [(units.age(age).rjust(7), "dim")]
    if job.progress_pct is not None:
        cells = 8 if width >= 56 else 0
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
    for job in shown:
        inline = more if room == 1 else 0
        rows.append((job_row(job, width, g, job.id == chosen, since_view_s, show_project, inline), job))
        if job.note and spare > 0:
            spare -= 1
            rows.append((Row(width).add("        ").add(job.note, "warn").done(), job))
    if more > 0 and len(rows) < room:
        rows.append((Row(width).add(f"  +{units.count(more)} more", "dim").done(), None))
    return rows
