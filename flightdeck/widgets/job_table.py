"""The list of jobs: tabs of its statuses, heads, a row each. Columns depend on the width alone, so that nothing jumps. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from rich.cells import cell_len

from flightdeck.charts.cells import bar
from flightdeck.model import units
from flightdeck.model.jobs import STATUSES, Count, JobList, JobRow, sort_words
from flightdeck.widgets.lines import Glyphs, Line, Row, fit

STATE_CELLS = 9
TIME_CELLS = 7
TONES = {
    "running": "ok", "claimed": "info", "stopping": "warn", "killing": "warn", "queued": "text", "later": "dim",
    "input?": "accent+b", "failed": "bad", "cancelled": "warn", "done": "dim", "skipped": "dim",
}  # fmt: skip


@dataclass(frozen=True)
class Columns:
    """Cells of each column; 0: not shown. ``name`` and ``note`` share what is left."""

    id: int
    queue: int
    box: int
    project: int
    model: int
    tries: int
    priority: int
    two_times: bool
    name: int
    note: int


def columns(width: int, wide_ids: bool) -> Columns:
    """``wide_ids``: ids of thirteen digits, as SQLite gives to nodes."""
    id_cells = 14 if wide_ids else 9
    queue, box = (8, 10) if width < 140 else (12, 14)
    project = 0 if width < 110 else 12 if width < 160 else 16
    model = 0 if width < 150 else 16
    tries = 0 if width < 100 else 3
    priority = 0 if width < 130 else 5
    two = width >= 100
    fixed = [STATE_CELLS, id_cells, queue, box, project, model, tries, priority, TIME_CELLS, TIME_CELLS if two else 0]
    left = max(12, width - 3 - sum(size + 1 for size in fixed if size) - 1)
    name = max(8, left * (60 if width < 100 else 52 if width < 160 else 45) // 100)
    return Columns(id_cells, queue, box, project, model, tries, priority, two, name, max(3, left - name))


def wide_ids(jobs: tuple[JobRow, ...]) -> bool:
    return any(len(job.id) > 9 for job in jobs)


def status_line(chosen: str, counts: Mapping[str, Count], width: int) -> tuple[Line, list[tuple[int, int, str]]]:
    """The statuses as tabs, with how many where that is known, and where each stands: (first column, last + 1, status)."""
    for level in range(3):
        parts = []
        for status, word in STATUSES:
            count = counts.get(status)
            known = count is not None and (level == 0 or status in ("running", "queued", "awaiting_input", "failed"))
            number = "" if count is None or not known or level == 2 else count.text if level == 0 else count.short
            parts.append((status, word, f"{number} " if number else ""))
        if sum(len(word) + 2 + len(number) for _, word, number in parts) + 1 <= width:
            break
    row = Row(width).add(" ")
    places = []
    for status, word, number in parts:
        start = row.used
        row.add(f" {word} ", "bright+r" if status == chosen else "dim")
        loud = (
            {"awaiting_input": "accent", "failed": "bad"}.get(status, "text")
            if number.strip() not in ("", "0")
            else "faint"
        )
        row.add(number, loud)
        places.append((start, row.used, status))
    return row.done(), places


def note_line(found: JobList, where: str, width: int) -> Line:
    """What the list holds, and what it does not: said, not guessed."""
    many = f"{len(found.jobs)} {'job' if len(found.jobs) == 1 else 'jobs'}"
    if found.more:
        many = f"the first {len(found.jobs)}, more behind" + ("" if found.next_page else ": narrow by /")
    row = Row(width).add(f"  {many}", "text").add(f"   {where}", "dim")
    row.add(f"   {sort_words(found.status, found.sort)}", "dim")
    if not found.whole:
        row.add(f"   looked through {found.looked:,} rows only", "warn")
    return row.done()


def heading(width: int, size: Columns, status: str) -> Line:
    row = Row(width).add("", "faint", 2)
    for word, cells in (("state", STATE_CELLS), ("id", size.id), ("queue", size.queue), ("box", size.box)):
        row.add(fit(word, cells), "faint").add(" ")
    for word, cells in (("project", size.project), ("model", size.model)):
        if cells:
            row.add(fit(word, cells), "faint").add(" ")
    row.add(fit("job", size.name), "faint").add(" ")
    row.add("progress, reason, error" if size.note >= 24 else "progress, reason" if size.note >= 16 else "why", "faint")
    return row.right(*_tail_heads(size, status)).done()


def _tail_heads(size: Columns, status: str) -> list[tuple[str, str]]:
    heads = []
    if size.priority:
        heads.append(("prio".rjust(size.priority) + " ", "faint"))
    if size.tries:
        heads.append(("try".rjust(size.tries) + " ", "faint"))
    if size.two_times:
        heads.append(("ran".rjust(TIME_CELLS) + " ", "faint"))
    word = {"failed": "ended", "cancelled": "ended", "completed": "ended"}.get(status, "since")
    heads.append((word.rjust(TIME_CELLS) + " ", "faint"))
    return heads


def job_row(job: JobRow, size: Columns, width: int, g: Glyphs, now: datetime, here: bool) -> Line:
    row = Row(width, "s" if here else "").add(g.mark if here else "", "focus+b", 2)
    word = job.word(now)
    row.add(fit(word, STATE_CELLS), TONES.get(word, "text")).add(" ")
    row.add(fit(job.id, size.id), "dim").add(" ").add(fit(job.queue, size.queue), "dim").add(" ")
    row.add(fit(job.box, size.box), "text").add(" ")
    if size.project:
        row.add(fit(job.project, size.project), "accent").add(" ")
    if size.model:
        row.add(fit(job.model, size.model), "dim").add(" ")
    name = f"! {job.title}" if job.is_priority else job.title
    row.add(fit(name, size.name), "bright" if here else "text").add(" ")
    _note(row, job, size.note, g, now)
    tail = []
    if size.priority:
        tail.append((units.number(job.priority).rjust(size.priority)[: size.priority] + " ", "dim"))
    if size.tries:
        tries = str(job.attempt) if job.attempt else ""  # 0: not begun
        tail.append((tries.rjust(size.tries) + " ", "text" if job.attempt > 1 else "faint"))
    ran, since = job.ran_s(now), job.since_s(now)
    if size.two_times:
        tail.append((("" if ran is None else units.age(ran)).rjust(TIME_CELLS) + " ", "dim"))
    tail.append((units.age(since).rjust(TIME_CELLS) + " ", "text"))
    return row.right(*tail).done()


def _note(row: Row, job: JobRow, room: int, g: Glyphs, now: datetime) -> None:
    """What is worth knowing of a job in one cell: how far it is, why it does not run, how it ended."""
    if job.status == "running" and job.progress_pct is not None:
        cells = 0 if room < 12 else min(16, room - 6)
        filled = bar(job.progress_pct / 100.0, cells) if cells else 0
        row.add(g.full * filled, "info").add(g.track * (cells - filled), "track")
        row.add(units.percent(max(0.0, min(100.0, job.progress_pct))).rjust(5), "text")
        room -= cells + 5
        if job.progress_text and room > 4:
            row.add(" ").add(fit(job.progress_text, min(cell_len(job.progress_text), room - 1)), "dim")
        return
    text, tone = note_text(job, now)
    if text:
        row.add(fit(text, min(cell_len(text), room)), tone)


def note_text(job: JobRow, now: datetime) -> tuple[str, str]:
    """The same in words, and its tone."""
    if job.status == "running":
        return job.progress_text, "dim"
    if job.status == "awaiting_input":
        return "waits for a person: enter", "accent"
    if job.status == "queued":
        if job.unplaceable:
            return job.unplaceable, "bad"
        if job.later(now) and job.run_after is not None:
            left = (job.run_after - now).total_seconds()
            return (f"in {units.age(left)}" if left >= 1.0 else "now"), "dim"
        return ("runs next", "info") if job.is_priority else ("", "dim")
    if job.status == "failed":
        return job.error or "no error was kept", "bad"
    return job.error, "dim"
