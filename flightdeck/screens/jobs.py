"""Jobs of all boxes and projects, of both families: by status, project and words, in an order of one's choice."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.binding import Binding, BindingType

from flightdeck.model.jobs import SORTS, STATUSES, Count, JobList, JobRow, read_counts, read_jobs, sort_words
from flightdeck.model.text import clean
from flightdeck.orders import JobTarget
from flightdeck.reader import Answer
from flightdeck.screens.asking import AskingSheet, Question
from flightdeck.widgets import job_table
from flightdeck.widgets.lines import Line, Row

EVERY_S = 2.0
COUNTS_EVERY_S = 5.0
_NAMES = tuple(name for name, _ in STATUSES)


class JobsScreen(AskingSheet):
    PAGE = "jobs"
    FILTERS = "name, node, id, run, model, error"
    LOCAL_KEYS = (("tab", "status"), ("enter", "open"), (">", "older"))
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab,right,l", "status(1)", show=False),
        Binding("shift+tab,left,h", "status(-1)", show=False),
        Binding("greater_than_sign", "older", show=False),
        Binding("less_than_sign", "newest", show=False),
    ]

    def __init__(self, status: str = "live", queue: str | None = None, project: str | None = None) -> None:
        """``queue``: only that one (by its name in the database), and with it ``project`` instead of the tab's."""
        super().__init__()
        self.queue, self.project = queue, project
        self.status = status if status in _NAMES else "live"
        self.sorts: dict[str, str] = {}  # chosen orders by status
        self.found = JobList()
        self.counts: dict[str, Count] = {}
        self.pages: list[dict[str, str]] = []  # where the pages before this one began; empty: the first
        self._turned: list[dict[str, str]] = []  # the same of the page that is turned to
        self._tabs_at: list[tuple[int, int, str]] = []

    # -- asking

    def arguments(self) -> dict[str, Any]:
        """What is asked; what is left out is the engine's default."""
        asked: dict[str, Any] = {"status": self.status, "project": self.wanted_project()}
        if self.queue is not None:
            asked["queue"] = self.queue
        if self.filter_text:
            asked["text"] = self.filter_text
        if self.status in self.sorts:
            asked["sort"] = self.sorts[self.status]
        if self.pages:
            asked["after"] = self.pages[-1]
        return asked

    def wanted_project(self) -> str | None:
        return self.deck_app.scene.project if self.queue is None else self.project

    def questions(self) -> list[Question]:
        return [
            Question("jobs", self.arguments(), self.take_jobs, EVERY_S),
            Question("job_counts", {"project": self.wanted_project()}, self.take_counts, COUNTS_EVERY_S),
        ]

    def take_jobs(self, answer: Answer) -> None:
        if not self.takes(answer):
            return
        if answer.value is not None:
            self.found = read_jobs(answer.value)
        self.redraw()

    def take_counts(self, answer: Answer) -> None:
        if answer.value is not None and self.deck_app.frozen is None:
            self.counts = read_counts(answer.value)
            self.redraw()

    def forget(self) -> None:
        """From the first page unless another one is turned to."""
        self.found, self.pages, self._turned = JobList(status=self.status), self._turned, []

    # -- keys

    def action_status(self, by: int) -> None:
        self.status = _NAMES[(_NAMES.index(self.status) + by) % len(_NAMES)]
        self.again()

    def action_older(self) -> None:
        """The page behind this one, where there is one."""
        if not self.found.next_page:
            self.deck_app.say(
                "there is nothing older" if not self.found.more else "narrow by / to see the rest", "dim", 4.0
            )
            return
        self._turned = [*self.pages, dict(self.found.next_page)]
        self.again()

    def action_newest(self) -> None:
        if self.pages:
            self.again()

    def filtered(self) -> None:
        self.again()

    def next_sort(self) -> str:
        offered = SORTS.get(self.status, ())
        if not offered:
            return "this list has one order: tab to running or queued for more"
        at = offered.index(self.sorts.get(self.status, offered[0]))
        self.sorts[self.status] = offered[(at + 1) % len(offered)]
        self.again()
        return sort_words(self.status, self.sorts[self.status])

    def picked(self, index: int) -> None:
        if index < len(self.found.jobs):
            self.deck_app.show_page("job", job_id=self.found.jobs[index].id)

    def chosen_job(self) -> JobTarget | None:
        jobs = self.found.jobs
        return target(jobs[self.index]) if self.index < len(jobs) else None

    # -- drawing

    def body(self, width: int, height: int) -> list[Line]:
        app = self.deck_app
        where = self.where()
        if self.queue is not None:
            where = f"queue {clean(self.queue, 40)}, {where}"
        tabs, self._tabs_at = job_table.status_line(self.status, self.counts, width)
        where += "   older page, < newest" if self.pages else ""
        note = self.trouble_line(width) or job_table.note_line(self.found, where, width)
        size = job_table.columns(width, job_table.wide_ids(self.found.jobs))
        head = [tabs, note, job_table.heading(width, size, self.status)]
        self.above = len(head)
        self.count = len(self.found.jobs)
        self.index = min(max(0, self.index), max(0, self.count - 1))
        room = max(1, height - len(head))
        self.top = min(max(self.top, self.index - room + 1), self.index)
        self.top = min(max(0, self.top), max(0, self.count - room))
        now = app.scene.deck.now()
        shown = list(enumerate(self.found.jobs))[self.top : self.top + room]
        rows = [job_table.job_row(job, size, width, app.glyphs, now, at == self.index) for at, job in shown]
        if not rows and self.answered and not self.error:
            rows = [Row(width).add(f"  {self._nothing()}", "faint").done()]
        return [*head, *rows]

    def _nothing(self) -> str:
        word = dict(STATUSES)[self.status]
        if self.filter_text:
            return f"nothing among these matches {self.filter_text!r}"
        return {
            "live": "nothing runs and nothing waits",
            "all": "there are no jobs",
            "input": "no node waits for a person",
            "later": "nothing is scheduled for later",
        }.get(word, f"no job is {word}")

    def on_click(self, event: Any) -> None:
        if event.screen_y == self.view.region.y:
            for start, stop, status in self._tabs_at:
                if start <= event.screen_x < stop and status != self.status:
                    self.status = status
                    self.again()
            return
        super().on_click(event)


def target(job: JobRow) -> JobTarget:
    """A job as an order names it."""
    return JobTarget(job.id, job.family, job.title, job.queue, job.box, job.project, job.run_id, job.status)
