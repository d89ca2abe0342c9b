"""Jobs laid over the time axis, column by column with the charts and the throttle strip above them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from flightdeck.model import units
from flightdeck.model.box_detail import Attempt
from flightdeck.model.lanes import EXIT_CODES, cause_text
from flightdeck.model.timeline import Timeline
from flightdeck.widgets.lines import Glyphs, Line, Row, fit

TONES = {"running": "info", "completed": "ok", "failed": "bad", "requeued": "warn", "cancelled": "dim"}
_MARKS = {"running": ">", "failed": "x", "requeued": "<", "cancelled": "-", "completed": "|"}
LEGEND = ("> running", "x failed", "< queued again", "| completed", "- cancelled")
HELD_MS = 1000.0  # from a second on a job says that the hardware held it back

Placed = tuple[int, int, Attempt, str, int]  # first and last cell, the attempt, its text, where the text starts


def job_lines(
    jobs: Sequence[Attempt], line: Timeline, margin: int, width: int, rows: int, g: Glyphs, project: str | None = None,
    more: bool = False, note: str = "",
) -> list[Line]:  # fmt: skip
    """``rows`` lines of ``width`` cells: a heading, then the attempts that ran in the window. Each has a row of its own
    as long as there is room; else those share a row that do not touch, and what does not fit is counted."""
    if rows <= 0:
        return []
    mine = [job for job in jobs if project is None or job.raw_project == project]
    placed = [found for job in mine if (found := _place(job, line)) is not None]
    room = rows - 1
    lanes = _apart(placed) if len(placed) <= room else _together(placed, room)
    hidden = len(placed) - sum(len(lane) for lane in lanes)
    heading = Row(width).add(" JOBS", "text", margin)
    if note:
        heading.add(note, "faint")
    elif not placed:
        heading.add("none ran here in this window", "faint")
    tail = f" +{hidden} not shown " if hidden else " older ones not shown " if more else ""
    if placed and not note:
        for word in LEGEND:
            if heading.used + len(word) + 2 + len(tail) <= width:
                heading.add(f"{word}  ", "faint")
    if tail:
        heading.right((tail, "dim"))
    out = [heading.done()]
    for lane in lanes[:room]:
        out.append(_row(lane, line, margin, width, g))
    while len(out) < rows:
        out.append(Row(width).done())
    return out


def wanted_rows(jobs: Sequence[Attempt], line: Timeline, project: str | None = None) -> int:
    """How many lines they want: the heading, and one for each that is in sight."""
    mine = [job for job in jobs if project is None or job.raw_project == project]
    return 1 + sum(_place(job, line) is not None for job in mine)


def _place(job: Attempt, line: Timeline) -> Placed | None:
    """Where a job stands; None: outside the window."""
    end = line.end if job.finished is None else min(job.finished, line.end)
    first, last = line.column(job.started), line.column(end)
    if last < 0 or first >= line.count or job.started > line.end:
        return None
    left, right = line.cell(max(0, first)), line.cell(min(line.count - 1, max(first, last)))
    text = _text(job)
    size = cell_len(text) + 2
    if right - left - 1 >= size + 4:  # enough of the bar is left to see where it begins and ends
        start = left + 1 + max(0, (right - left - 1 - size) // 2)
    elif right + 1 + size <= line.cells:
        start = right + 1
    elif left - size >= 0:
        start = left - size
    else:
        start = left + 1
    return left, right, job, text, start


def _text(job: Attempt) -> str:
    parts = [job.name]
    if job.attempt > 1:
        parts.append(f"try {job.attempt}")
    if job.outcome == "running":
        parts += [units.percent(min(100.0, max(0.0, job.progress_pct)))] if job.progress_pct is not None else []
    elif job.outcome != "completed":
        why = EXIT_CODES.get(job.exit_code or 0, "") or cause_text(job.cause)
        parts.append(f"{why} ({job.exit_code})" if why and job.exit_code else why or _exit(job))
    for letter, held in (("T", job.thermal_ms), ("P", job.power_ms)):
        if held is not None and held >= HELD_MS:
            parts.append(f"{letter} {units.seconds(held)}")
    return " ".join(part for part in parts if part)


def _exit(job: Attempt) -> str:
    return f"{job.outcome} ({job.exit_code})" if job.exit_code else job.outcome


def _extent(found: Placed) -> tuple[int, int]:
    """The cells that a job takes, its text included."""
    left, right, _, text, start = found
    return min(left, start), max(right, start + cell_len(text) + 1)


def _apart(placed: Sequence[Placed]) -> list[list[Placed]]:
    return [[found] for found in placed]


def _together(placed: Sequence[Placed], rows: int) -> list[list[Placed]]:
    """Into at most ``rows`` rows, in which nothing touches: what runs first, then what ran longest, beside jobs of its
    queue where that can be. The row of the latest start stands first."""
    lanes: list[list[Placed]] = [[] for _ in range(max(0, rows))]
    for found in sorted(placed, key=lambda found: (found[2].finished is not None, found[0] - found[1])):
        low, high = _extent(found)
        free = [
            lane
            for lane in lanes
            if all(high + 1 < other_low or other_high + 1 < low for other_low, other_high in map(_extent, lane))
        ]
        free.sort(key=lambda lane: 1 if not lane else 0 if lane[0][2].queue == found[2].queue else 2)
        if free:
            free[0].append(found)
    full = [lane for lane in lanes if lane]
    return sorted(full, key=lambda lane: max(found[2].started for found in lane), reverse=True)


def _row(lane: Sequence[Placed], line: Timeline, margin: int, width: int, g: Glyphs) -> Line:
    ordered = sorted(lane, key=lambda found: _extent(found)[0])
    row = Row(width)
    queues = {found[2].queue for found in ordered}
    row.add(f" {fit(queues.pop(), margin - 2)}" if len(queues) == 1 else "", "dim", margin)
    for left, right, job, text, start in ordered:
        tone = TONES.get(job.outcome, "dim")
        mark = _MARKS.get(job.outcome, "|")
        bar = [g.full] * (right - left)
        cut = fit(text, min(cell_len(text), max(1, line.cells - start - 2)))
        if start < left:
            row.to(margin + start).add(f" {cut} ", "text")
        row.to(margin + left)
        inside = left < start <= right
        if inside:
            row.add("".join(bar[: start - left]), tone).add(
                f" {cut} ", "bright" if job.outcome == "running" else "text"
            )
            row.add("".join(bar[start - left + cell_len(cut) + 2 :]), tone)
        else:
            row.add("".join(bar), tone)
        row.to(margin + right).add(mark, f"{tone}+b")
        if start > right:
            row.add(f" {cut} ", "text")
    return row.done()
