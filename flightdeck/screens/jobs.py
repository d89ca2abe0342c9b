"""Every running job of every box in one list."""

from __future__ import annotations

from rich.cells import cell_len

from flightdeck.charts.cells import bar
from flightdeck.model import units
from flightdeck.model.fleet import Job
from flightdeck.orders import JobTarget
from flightdeck.screens.sheet import Sheet
from flightdeck.widgets.lines import Line, Row, fit
from flightdeck.widgets.scene import Cursor

AGE_CELLS = 8
TAIL_CELLS = 3 + AGE_CELLS + 1  # try, age, edge
PROGRESS_MIN = 9
_HEADS = ("id", "queue", "box", "project", "name", "progress")


class JobsScreen(Sheet):
    PAGE = "jobs"
    LOCAL_KEYS = (("j k", "move"), ("enter", "its box"), ("esc", "back"))

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[tuple[str, Job]] = []

    def note(self) -> str:
        where = (
            "all projects" if self.deck_app.scene.project is None else f"project {self.deck_app.scene.project or '-'}"
        )
        return f"  {len(self.jobs)} running, {where}"

    def heading(self, width: int) -> Line:
        row = Row(width).add("", "faint", 2)
        for name, size in zip(_HEADS, self._sizes(width), strict=True):
            row.add(fit(name, size), "faint").add("  ")
        return row.right(("try", "faint"), ("age".rjust(AGE_CELLS), "faint"), (" ", "faint")).done()

    def _sizes(self, width: int) -> tuple[int, ...]:
        """Cells of the columns left of try and age: what their texts need; what is left over goes to progress."""
        texts = [(job.id, job.queue, job.box, job.project, _name(job)) for _, job in self.jobs]
        wanted = [max([len(head), *(cell_len(row[index]) for row in texts)]) for index, head in enumerate(_HEADS[:-1])]
        room = width - 2 - TAIL_CELLS - 2 * len(_HEADS)
        sizes = [min(size, most) for size, most in zip(wanted, (12, 16, 20, 20, 60), strict=True)]
        over = sum(sizes) + PROGRESS_MIN - room
        for index in (4, 3, 2, 1):  # the longest texts give way first
            cut = max(0, min(over, sizes[index] - 8))
            sizes[index] -= cut
            over -= cut
        return (*sizes, max(PROGRESS_MIN, room - sum(sizes)))

    def rows(self, width: int) -> list[Line]:
        app = self.deck_app
        chosen = self.jobs[self.index][1].id if self.index < len(self.jobs) else None
        self.jobs = [(box.raw, job) for box in app.boxes() for job in app.scene.jobs(box)]
        self.jobs.sort(key=lambda pair: -(pair[1].age_s or 0.0))
        self.index = next((i for i, (_, job) in enumerate(self.jobs) if job.id == chosen), self.index)
        sizes = self._sizes(width)
        lines = [self._row(job, width, sizes, index == self.index) for index, (_, job) in enumerate(self.jobs)]
        return lines or [Row(width).add("  no jobs running", "faint").done()]

    def _row(self, job: Job, width: int, sizes: tuple[int, ...], here: bool) -> Line:
        app = self.deck_app
        g = app.glyphs
        row = Row(width, "s" if here else "").add(g.mark if here else "", "focus+b", 2)
        texts = (job.id, job.queue, job.box, job.project, _name(job))
        tones = ("dim", "dim", "text", "accent", "bright" if here else "text")
        for text, size, tone in zip(texts, sizes, tones, strict=False):
            row.add(fit(text, size), tone).add("  ")
        room = sizes[-1]
        if job.progress_pct is not None:
            cells = max(0, min(24, room - 5, max(8, room // 3)))
            filled = bar(job.progress_pct / 100.0, cells)
            row.add(g.full * filled, "info").add(g.track * (cells - filled), "track")
            row.add(units.percent(max(0.0, min(100.0, job.progress_pct))).rjust(5), "text")
            room -= cells + 5
        note = job.progress_text or job.note
        if note and room > 8:
            row.add("  ").add(fit(note, min(cell_len(note), room - 2)), "dim")
        age = None if job.age_s is None else job.age_s + app.scene.deck.view_age()
        return row.right(
            (str(job.attempt).rjust(3), "text" if job.attempt > 1 else "dim"),
            (units.age(age).rjust(AGE_CELLS), "dim"),
            (" ", "text"),
        ).done()

    def picked(self, index: int) -> None:
        if index < len(self.jobs):
            box, job = self.jobs[index]
            self.deck_app.show_page("fleet")
            self.deck_app.point_at(Cursor(box, "", job.id))

    def chosen_job(self) -> JobTarget | None:
        if self.index >= len(self.jobs):
            return None
        _, job = self.jobs[self.index]
        return JobTarget(job.id, job.family, job.name, job.queue, job.box, job.project, job.run_id)


def _name(job: Job) -> str:
    return ("! " if job.is_priority else "") + job.name + ("  stopping" if job.stopping else "")
