"""Every running job of every box in one list."""

from __future__ import annotations

from flightdeck.model import units
from flightdeck.model.fleet import Job
from flightdeck.screens.sheet import Sheet
from flightdeck.widgets.lines import Line, Row
from flightdeck.widgets.scene import Cursor


class JobsScreen(Sheet[None]):
    TITLE_TEXT = "JOBS"

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[tuple[str, Job]] = []

    @property
    def KEYS(self) -> str:  # type: ignore[override]
        return (
            "j k move   enter its box   x cancel   X kill   esc back"
            if not self.deck_app.read_only
            else "j k move   enter its box   esc back"
        )

    def on_mount(self) -> None:
        for action in self.deck_app.actions:
            if action.id in ("cancel", "kill", "run_next", "help", "events", "fleet"):
                self._bindings.bind(",".join(action.keys), f"on_job('{action.id}')", show=False)
        super().on_mount()

    def note(self) -> str:
        where = (
            "all projects" if self.deck_app.scene.project is None else f"project {self.deck_app.scene.project or '-'}"
        )
        return f"  {len(self.jobs)} running, {where}"

    def heading(self, width: int) -> Line:
        return _columns(
            Row(width), ("", "id", "queue", "box", "project", "name", "progress", "attempt", "age"), "faint", width
        )

    def rows(self, width: int) -> list[Line]:
        app = self.deck_app
        chosen = self.jobs[self.index][1].id if self.index < len(self.jobs) else None
        self.jobs = [(box.raw, job) for box in app.boxes() for job in app.scene.jobs(box)]
        self.jobs.sort(key=lambda pair: -(pair[1].age_s or 0.0))
        self.index = next((i for i, (_, job) in enumerate(self.jobs) if job.id == chosen), self.index)
        since = app.scene.deck.view_age()
        lines = []
        for index, (_, job) in enumerate(self.jobs):
            here = index == self.index
            age = units.age(None if job.age_s is None else job.age_s + since)
            name = ("! " if job.is_priority else "") + job.name + ("  stopping" if job.stopping else "")
            done = "" if job.progress_pct is None else units.percent(job.progress_pct)
            cells = (
                app.glyphs.mark if here else "",
                job.id,
                job.queue,
                job.box,
                job.project,
                name,
                done,
                str(job.attempt),
                age,
            )
            lines.append(_columns(Row(width, "s" if here else ""), cells, "bright" if here else "text", width))
        return lines or [Row(width).add("  no jobs running", "faint").done()]

    def picked(self, index: int) -> None:
        if index < len(self.jobs):
            box, job = self.jobs[index]
            self.dismiss(None)
            self.deck_app.point_at(Cursor(box, "", job.id))

    def action_on_job(self, name: str) -> None:
        """Act on the chosen job; other keys act as on the fleet."""
        if name in ("cancel", "kill", "run_next") and self.index < len(self.jobs):
            box, job = self.jobs[self.index]
            self.deck_app.scene.cursor = Cursor(box, "", job.id)
        elif name in ("fleet", "events"):
            self.dismiss(None)
        self.deck_app.action_act(name)


def _columns(row: Row, cells: tuple[str, ...], style: str, width: int) -> Line:
    spare = max(10, width - 2 - 8 - 9 - 14 - 14 - 10 - 8 - 8)
    sizes = (2, 8, 9, 14, 14, spare, 10, 8, 8)
    for text, size in zip(cells, sizes, strict=True):
        row.add(text, style, size - 1).add(" ")
    return row.done()
