"""What waits, queue by queue and project by project, who could take it and why nobody does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flightdeck.model.queue_rows import QueueList, QueueRow, read_queues
from flightdeck.orders import QueueTarget
from flightdeck.reader import Answer
from flightdeck.screens.asking import AskingSheet, Question
from flightdeck.widgets import queue_table
from flightdeck.widgets.lines import Line, Row

EVERY_S = 2.0
DETAIL_ROWS = 8
DETAIL_FROM = 16  # rows of the page, below which the list has all of them

_SORTS: tuple[tuple[str, Callable[[QueueRow], Any] | None], ...] = (
    ("by name", None),
    ("longest queue first", lambda row: -row.queued),
    ("oldest waiting first", lambda row: row.oldest_at.timestamp() if row.oldest_at else float("inf")),
    ("most failed first", lambda row: -row.failed),
)


class QueuesScreen(AskingSheet):
    PAGE = "queues"
    FILTERS = "queue, project, model"
    LOCAL_KEYS = (("enter", "its jobs"), ("esc", "back"))

    def __init__(self) -> None:
        super().__init__()
        self.found = QueueList()
        self.queues: tuple[QueueRow, ...] = ()  # as shown
        self.chosen: tuple[str, str] | None = None  # raw queue and project under the cursor: rows come and go
        self.sort_index = 0

    # -- asking

    def questions(self) -> list[Question]:
        return [Question("queues", {"project": self.wanted_project()}, self.take, EVERY_S)]

    def forget(self) -> None:
        self.found = QueueList()

    def take(self, answer: Answer) -> None:
        if not self.takes(answer):
            return
        if answer.value is not None:
            self.found = read_queues(answer.value)
        self.redraw()

    # -- keys

    def filtered(self) -> None:
        self.redraw()

    def next_sort(self) -> str:
        self.sort_index = (self.sort_index + 1) % len(_SORTS)
        return f"queues {_SORTS[self.sort_index][0]}"

    def action_move(self, by: int) -> None:
        index = min(max(0, self.index + by), max(0, len(self.queues) - 1))
        if index < len(self.queues):
            self.chosen = (self.queues[index].raw_queue, self.queues[index].raw_project)
        super().action_move(by)

    def picked(self, index: int) -> None:
        """Its jobs: the page of jobs, narrowed to its name and project."""
        if index < len(self.queues):
            row = self.queues[index]
            self.deck_app.show_page("jobs", status="queued", queue=row.raw_queue, project=row.raw_project)

    def chosen_queue(self) -> QueueTarget | None:
        if self.index >= len(self.queues):
            return QueueTarget("", "")
        row = self.queues[self.index]
        return QueueTarget(row.raw_queue, row.raw_project)

    # -- drawing

    def body(self, width: int, height: int) -> list[Line]:
        app = self.deck_app
        self._settle()
        note = self.trouble_line(width) or queue_table.note_line(self.found, self.where(), width)
        head = [note, queue_table.heading(width)]
        now = app.scene.deck.now()
        foot: list[Line] = []
        if height >= DETAIL_FROM and self.queues:
            foot = queue_table.detail_lines(self.queues[self.index], width, DETAIL_ROWS, app.glyphs, now)
        room = max(1, height - len(head) - len(foot))
        self.above, self.count = len(head), len(self.queues)
        self.top = min(max(self.top, self.index - room + 1), self.index)
        self.top = min(max(0, self.top), max(0, self.count - room))
        shown = list(enumerate(self.queues[self.top : self.top + room], self.top))
        lines = [queue_table.queue_row(row, width, app.glyphs, now, at == self.index) for at, row in shown]
        if not lines and self.answered and not self.error:
            lines = [Row(width).add("  no queue has a job or a lane", "faint").done()]
        lines += [Row(width).done() for _ in range(room - len(lines))]
        return [*head, *lines, *foot]

    def _settle(self) -> None:
        """The rows that match, in the chosen order, and the cursor on the queue that it stood on."""
        words = self.filter_text.split()
        found = [row for row in self.found.queues if all(word in _hay(row) for word in words)]
        key = _SORTS[self.sort_index][1]
        self.queues = tuple(found if key is None else sorted(found, key=key))
        names = [(row.raw_queue, row.raw_project) for row in self.queues]
        self.index = (
            names.index(self.chosen) if self.chosen in names else min(max(0, self.index), max(0, len(names) - 1))
        )
        self.chosen = names[self.index] if names else self.chosen

    def on_click(self, event: Any) -> None:
        row = self.top + event.screen_y - self.view.region.y - self.above
        if event.screen_y > 0 and 0 <= row < len(self.queues):
            self.chosen = (self.queues[row].raw_queue, self.queues[row].raw_project)
        super().on_click(event)


def _hay(row: QueueRow) -> str:
    return " ".join([row.queue, row.project, *(need.model for need in row.models)]).lower()
