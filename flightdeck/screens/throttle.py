"""Who was held back, when and why: all boxes by the hour, and below the jobs that ran under it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType

from flightdeck.model.axis import Window
from flightdeck.model.throttling import (
    ALL,
    CAUSES,
    DAY_S,
    HOUR_S,
    NAMES,
    WEEK_S,
    BoxHours,
    Hours,
    Suffered,
    read_hours,
    read_jobs,
    worst_first,
    worst_of,
)
from flightdeck.reader import Answer, Ask
from flightdeck.screens.sheet import Sheet
from flightdeck.widgets import throttle_matrix as matrix
from flightdeck.widgets.lines import Line, Row

EVERY_S = {DAY_S: 30.0, WEEK_S: 120.0}  # a minute row is new once a minute
JOBS_EVERY_S = 30.0
LEAST_ROWS = 3  # of boxes, however many jobs there are
FIXED = 5  # title, axis, legend, what is chosen, heading of the jobs


class ThrottleScreen(Sheet):
    PAGE = "throttle"
    FILTERS = "boxes"
    LOCAL_KEYS = (
        ("j k", "box"), ("h l", "hour"), ("c", "cause"), ("tab", "jobs"), ("enter", "open")
    )  # fmt: skip
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right,l", "hour(1)", show=False),
        Binding("left,h", "hour(-1)", show=False),
        Binding("c", "cause", show=False),
        Binding("tab,shift+tab", "turn", show=False),
        Binding("left_square_bracket", "span(86400)", show=False),
        Binding("right_square_bracket", "span(604800)", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.hours = Hours()
        self.jobs: list[Suffered] = []
        self.error = self.jobs_error = ""
        self.answered = self.jobs_answered = False
        self.cause = ""
        self.by_name = False
        self.chosen = ALL  # the box's raw name
        self.hour: datetime | None = None  # of the cell that is looked at, its first hour; None: all of them
        self.on_jobs = False
        self.job_index = 0
        self._plan: matrix.Plan | None = None
        self._ordered: tuple[tuple[Any, ...], list[BoxHours]] | None = None  # for what, and the boxes in their order
        self._asks: dict[str, tuple[tuple[Any, ...], Ask]] = {}
        self._rows_at = self._jobs_at = self._job_top = 0

    # -- asking

    @property
    def span_s(self) -> int:
        return WEEK_S if self.deck_app.scene.window.span_s == WEEK_S else DAY_S

    def on_mount(self) -> None:
        super().on_mount()
        self.ask()

    def on_unmount(self) -> None:
        super().on_unmount()
        for _, ask in self._asks.values():
            ask.stop()

    def ask(self) -> None:
        """Ask for what is to be seen now, again and again, until something else is."""
        self._ask("throttle", {"span_s": self.span_s}, self.take_hours, EVERY_S[self.span_s])
        if self.hours.boxes:
            self._ask("throttle_jobs", self.job_arguments(), self.take_jobs, JOBS_EVERY_S)

    def _ask(self, name: str, arguments: dict[str, Any], take: Any, every_s: float) -> None:
        wanted = tuple(arguments.items())
        if name in self._asks:
            asked, ask = self._asks[name]
            if asked == wanted:
                return
            ask.stop()
        self._asks[name] = (wanted, self.deck_app.reader.ask(name, arguments, take, every_s))

    def job_arguments(self) -> dict[str, Any]:
        asked: dict[str, Any] = {"span_s": self.span_s} | ({"box": self.chosen} if self.chosen else {})
        first, count = self.looked_at()
        if self.hour is not None and self.hours.starts:
            since = self.hours.starts[first]
            asked |= {"since": since.isoformat(), "until": (since + timedelta(seconds=count * HOUR_S)).isoformat()}
        if self.cause in ("P", "T", "B"):
            asked["cause"] = self.cause
        return asked

    def take_hours(self, answer: Answer) -> None:
        if self.deck_app.frozen is not None and self.answered:
            return
        self.error, self.answered = answer.error, True
        if answer.value is not None:
            self.hours, self._ordered = read_hours(answer.value), None
            self._settle()
            self.ask()
        self.redraw()

    def take_jobs(self, answer: Answer) -> None:
        self.jobs_answered, self.jobs_error = True, answer.error
        if answer.value is not None:
            self.jobs = read_jobs(answer.value)
        self.redraw()

    # -- what is chosen

    def boxes(self) -> list[BoxHours]:
        """Those that match the filter, in order; before several of them the row that stands for all."""
        asked = (self.filter_text, self.by_name, self.cause)
        if self._ordered is None or asked != self._ordered[0]:
            words = self.filter_text.split()
            found = [box for box in self.hours.boxes if all(word in box.name.lower() for word in words)]
            fleet = [worst_of(found)] if len(found) > 1 and not words else []
            ordered = sorted(found, key=lambda box: box.name) if self.by_name else worst_first(found, self.cause)
            self._ordered = (asked, [*fleet, *ordered])
        return self._ordered[1]

    def _settle(self) -> list[BoxHours]:
        """Put the cursor on a box that exists."""
        boxes = self.boxes()
        self.count = len(boxes)
        names = [box.raw for box in boxes]
        self.index = (
            names.index(self.chosen) if self.chosen in names else min(max(0, self.index), max(0, len(names) - 1))
        )
        self.chosen = names[self.index] if names else ALL
        return boxes

    def looked_at(self) -> tuple[int, int]:
        """First hour and number of hours that the jobs below are about."""
        count = len(self.hours.starts)
        at = self.deck_app.scene.at()
        if at is not None:
            hour = next((start for start in self.hours.starts if start <= at < start + timedelta(seconds=HOUR_S)), None)
            self.hour = hour or self.hour
        if self.hour is None or self._plan is None or not count:
            return 0, count
        hour = min(self.hours.starts, key=lambda start: abs((start - (self.hour or start)).total_seconds()))
        column = self._plan.column_of(self.hours.starts.index(hour), count)
        return self._plan.hours_of(max(0, column), count)

    def _changed(self) -> None:
        """Something else is chosen: the jobs below are others."""
        self._settle()
        self.jobs, self.jobs_answered, self.job_index = [], False, 0
        self.ask()
        self.redraw()

    # -- keys

    def action_move(self, by: int) -> None:
        if self.on_jobs:
            self.job_index = min(max(0, self.job_index + by), max(0, len(self.jobs) - 1))
            self.redraw()
            return
        boxes = self.boxes()
        index = min(max(0, self.index + by), max(0, len(boxes) - 1))
        if boxes and boxes[index].raw != self.chosen:
            self.chosen = boxes[index].raw
            self._changed()

    def action_hour(self, by: int) -> None:
        """Through the cells; past the newest one all of them are meant again."""
        here, count = self._plan, len(self.hours.starts)
        if here is None or not count:
            return
        first, _ = self.looked_at()
        column = here.cells if self.hour is None else here.column_of(first, count)
        column = column + by if self.hour is not None or by < 0 else 0
        self.hour = None if not 0 <= column < here.cells else self.hours.starts[here.hours_of(column, count)[0]]
        self._changed()

    def action_cause(self) -> None:
        order = ["", *CAUSES]
        self.cause = order[(order.index(self.cause) + 1) % len(order)]
        self._changed()

    def action_turn(self) -> None:
        self.on_jobs = not self.on_jobs and bool(self.jobs)
        self.redraw()

    def action_span(self, span_s: int) -> None:
        app = self.deck_app
        if span_s != self.span_s:
            app.scene.window = Window(span_s)
            self.answered, self.hour = False, None
            self.hours, self._ordered = Hours(), None
            self._changed()

    def next_sort(self) -> str:
        self.by_name = not self.by_name
        self._settle()
        return "boxes by name" if self.by_name else "worst box first"

    def filtered(self) -> None:
        self._changed()

    def action_pick(self) -> None:
        """The job, else the box at the time that is looked at."""
        app = self.deck_app
        if self.on_jobs:
            if self.job_index < len(self.jobs):
                app.show_page("job", job_id=self.jobs[self.job_index].id)
            return
        if not self.chosen:
            app.say("choose a box: j k", "dim", 3.0)
            return
        if self.hour is not None:
            first, count = self.looked_at()
            middle = self.hours.starts[first] + timedelta(seconds=count * HOUR_S / 2)
            back = (app.scene.end().astimezone(UTC) - middle).total_seconds()
            app.looker.look(Window(self.span_s, min(max(0.0, back), self.span_s * 0.99)))
        app.show_page("box", box=self.chosen)

    def on_click(self, event: events.Click) -> None:
        if event.screen_y == 0:
            self.click_header(event.screen_x)
            return
        row = event.screen_y - self.view.region.y
        boxes = self.boxes()
        if self._rows_at <= row < self._rows_at + min(len(boxes) - self.top, self.above):
            self.on_jobs = False
            here = self._plan
            index = self.top + row - self._rows_at
            left = matrix.MARK_CELLS + (here.name if here else 0) + 1
            if here is not None and left <= event.screen_x < left + here.cells * here.size:
                column = (event.screen_x - left) // here.size
                self.hour = self.hours.starts[here.hours_of(column, len(self.hours.starts))[0]]
            self.chosen = boxes[index].raw
            self._changed()
            if event.chain > 1:
                self.action_pick()
        elif 0 <= row - self._jobs_at < len(self.jobs) - self._job_top:
            self.on_jobs, self.job_index = True, self._job_top + row - self._jobs_at
            self.redraw()
            if event.chain > 1:
                self.action_pick()

    # -- drawing

    def note(self) -> str:
        span = "the last 7 days" if self.span_s == WEEK_S else "the last 24 hours"
        cause = f"{self.cause} {NAMES[self.cause]} alone" if self.cause else "the gravest cause of each hour"
        return f"  {span}, {cause}, {'by name' if self.by_name else 'worst box first'}"

    def body(self, width: int, height: int) -> list[Line]:
        app = self.deck_app
        boxes = self._settle()
        if not boxes:
            return [Row(width).add(self.note(), "dim").done(), Row(width).add(f"  {self._nothing()}", "faint").done()]
        here = self._plan = matrix.plan(self.hours, width)
        first, count = self.looked_at()
        if app.scene.at() is not None:
            self.ask()  # somebody scrubs: the jobs below are those of another hour
        column = None if self.hour is None else here.column_of(first + count - 1, len(self.hours.starts))
        room = max(1, height - FIXED)
        shown = min(len(boxes), max(LEAST_ROWS, room - max(2, min(len(self.jobs), room // 2))), room)
        self.top = min(max(self.top, self.index - shown + 1), self.index)
        self.top = min(max(0, self.top), max(0, len(boxes) - shown))
        lines = [Row(width).add(self.note(), "dim").done(), matrix.axis_line(self.hours, here, width)]
        self._rows_at, self.above = len(lines), shown
        for box in boxes[self.top : self.top + shown]:
            chosen = box.raw == self.chosen
            lines.append(
                matrix.box_line(
                    box, here, len(self.hours.starts), width, app.glyphs, cause=self.cause, chosen=chosen, column=column
                )
            )
        lines.append(matrix.legend_line(width, self.cause, here.size))
        lines.append(
            matrix.chosen_line(
                boxes[self.index], self.hours, first, count, width, app.glyphs, self._words(first, count)
            )
        )
        return [*lines, *self._job_lines(width, height - len(lines))]

    def _job_lines(self, width: int, height: int) -> list[Line]:
        if not self.jobs:
            text = "no job of 10 s or more was held back" if self.jobs_answered else "reading ..."
            text = self.jobs_error or text
            return [Row(width).add(f"  {text}", "faint").done()]
        room = max(1, height - 1)
        self._job_top = min(max(self._job_top, self.job_index - room + 1), self.job_index)
        self._job_top = min(self._job_top, max(0, len(self.jobs) - room))
        self._jobs_at = self.size.height - 3 - height + 1 - (1 if self.has_class("banner") else 0)
        rows = self.jobs[self._job_top : self._job_top + room]
        glyphs = self.deck_app.glyphs
        return [
            matrix.jobs_heading(width),
            *(
                matrix.job_line(job, width, glyphs, self.on_jobs and self._job_top + at == self.job_index)
                for at, job in enumerate(rows)
            ),
        ]

    def _words(self, first: int, count: int) -> str:
        """The time that is looked at, in the reader's zone."""
        if self.hour is None:
            return "all of it"
        start = self.hours.starts[first].astimezone()
        end = (self.hours.starts[first] + timedelta(seconds=count * HOUR_S)).astimezone()
        day = start.strftime("%a %d ") if self.span_s == WEEK_S else ""
        return f"{day}{start:%H:%M}-{end:%H:%M}"

    def _nothing(self) -> str:
        if self.error:
            return self.error
        if not self.answered:
            return "reading ..."
        return (
            "no box has such a name" if self.filter_text and self.hours.boxes else "nothing was recorded in that time"
        )

    def place_text(self) -> str:
        shown = f"{min(self.count, self.top + self.above)} of {self.count}" if self.count > self.above else ""
        return "  ".join(part for part in (f"/{self.filter_text}" if self.filter_text else "", shown) if part)
