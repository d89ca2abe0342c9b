"""One job in full: scrolls, jumps from section to section, follows the log while the job runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from typing import Any, ClassVar

from textual.binding import Binding, BindingType

from flightdeck.model.job_detail import JobDetail, Share, read_detail, read_shares
from flightdeck.model.text import clean
from flightdeck.orders import JobTarget
from flightdeck.reader import Answer
from flightdeck.screens.asking import AskingSheet, Question
from flightdeck.screens.dialog import PromptScreen
from flightdeck.screens.jobs import target
from flightdeck.widgets import job_sections as draw
from flightdeck.widgets.job_sections import Section
from flightdeck.widgets.lines import Line, Row

RUNNING_S = 1.5
OVER_S = 10.0
HARDWARE_S = 10.0
JUMPS = "ioarwl"


class JobScreen(AskingSheet):
    """``job_id`` as the database has it."""

    PAGE = "job"
    PICKS = False
    LOCAL_KEYS = (("j k", "scroll"), ("tab", "section"), ("i o a r w l", "jump"), ("esc", "back"))
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "section(1)", show=False),
        Binding("shift+tab", "section(-1)", show=False),
        *(Binding(key, f"jump('{key}')", show=False) for key in JUMPS),
    ]

    def __init__(self, job_id: str) -> None:
        super().__init__()
        self.job_id = job_id
        self.found: JobDetail | None = None
        self.shares: tuple[Share, ...] = ()
        self.follow = False  # stays at the end as it grows
        self.starts: list[tuple[str, int]] = []  # where each section begins
        self._cache: dict[str, tuple[Hashable, list[Line]]] = {}

    # -- asking

    def wanted_project(self) -> None:
        """A job is the same in every project's tab."""

    def questions(self) -> list[Question]:
        arguments = {"job_id": self.job_id}
        over = self.found is not None and self.found.over
        return [
            Question("job", arguments, self.take_job, OVER_S if over else RUNNING_S),
            Question("job_hardware", arguments, self.take_hardware, HARDWARE_S),
        ]

    def take_job(self, answer: Answer) -> None:
        if not self.takes(answer):
            return
        if not answer.error:
            over = self.found is not None and self.found.over
            self.found = read_detail(answer.value)
            if self.found is not None and self.found.over and not over and "job" in self.asks:
                self.asks["job"].every_s = OVER_S  # it changes no more, but for what is still on its way
        self.redraw()

    def take_hardware(self, answer: Answer) -> None:
        if answer.value is not None and self.deck_app.frozen is None:
            self.shares = read_shares(answer.value)
            self.redraw()

    # -- drawing

    def body(self, width: int, height: int) -> list[Line]:
        if self.found is None:
            text, tone = self.error or "asking the database...", "bad" if self.error else "dim"
            if self.answered and not self.error:
                text, tone = f"there is no job {clean(self.job_id, 40)}: perhaps it was too old to be kept", "warn"
            return [
                Row(width).add(f" job {clean(self.job_id, 40)} ", "info").done(),
                Row(width).add(f"  {text}", tone).done(),
            ]
        app = self.deck_app
        now = app.scene.deck.now()
        head = draw.head_lines(self.found, width, app.glyphs, now)
        if self.error:
            head[1] = Row(width).add(f"  {self.error}", "bad").done()
        lines: list[Line] = []
        self.starts = []
        for section in self.sections(width):
            if section.title:
                lines += [Row(width).done(), draw.title_line(section, width, app.glyphs)]
            self.starts.append((section.key, max(0, len(lines) - 1)))
            lines += section.lines
        self.above, self.count = len(head), len(lines)
        room = max(1, height - len(head))
        last = max(0, len(lines) - room)
        self.top = last if self.follow else min(max(0, self.top), last)
        return [*head, *lines[self.top : self.top + room]]

    def sections(self, width: int) -> list[Section]:
        """What there is to say of it, the most wanted first; the log, which grows, last."""
        found, app = self.found, self.deck_app
        assert found is not None
        now = app.scene.deck.now()
        made = [Section("", "", draw.facts(found, width, now))]
        if found.job.status == "awaiting_input":
            made.append(Section("", "WAITS FOR A PERSON", draw.asked(found, width, app.read_only)))
        if found.error:
            made.append(
                Section(
                    "", "ERROR", self._kept("error", (found.error, width), lambda: draw.error_lines(found.error, width))
                )
            )
        if found.job.status == "queued":
            made.append(Section("", "WHY IT WAITS", draw.waits(found, width)))
        if found.job.started_at is not None:
            shares = found.hardware or self.shares
            made.append(Section("w", "HARDWARE", draw.hardware(shares, found.hardware_why, width)))
        made.append(
            Section(
                "a",
                "ATTEMPTS",
                self._kept(
                    "events", (found.events, width), lambda: draw.attempts(found.events, found.events_cut, width)
                ),
            )
        )
        if found.run is not None:
            made.append(Section("r", "RUN", draw.run_lines(found.run, found.job.node_id, width, now)))
        made.append(
            Section(
                "i", "INPUT", self._kept("in", (found.input, width), lambda: draw.payload(found.input, "none", width))
            )
        )
        made.append(
            Section(
                "o",
                "OUTPUT",
                self._kept("out", (found.output, width), lambda: draw.payload(found.output, "none yet", width)),
            )
        )
        made.append(Section("l", "LOG", draw.log_lines(found.log, width, now, found.over)))
        return made

    def _kept(self, name: str, key: Hashable, make: Callable[[], list[Line]]) -> list[Line]:
        """The lines of a section that has not changed, as they were drawn."""
        kept = self._cache.get(name)
        if kept is None or kept[0] != key:
            kept = self._cache[name] = (key, make())
        return kept[1]

    # -- keys

    def action_move(self, by: int) -> None:
        if by < 0:
            self.follow = False
        room = max(1, self.main_height - self.above)
        self.top = min(max(0, self.top + by), max(0, self.count - room))
        self.redraw()

    def action_edge(self, end: int) -> None:
        self.follow = bool(end)
        super().action_edge(end)

    def action_section(self, by: int) -> None:
        places = [start for _, start in self.starts]
        if by > 0:
            self._go(next((place for place in places if place > self.top), self.top))
        else:
            self._go(max((place for place in places if place < self.top), default=0))

    def action_jump(self, key: str) -> None:
        place = next((start for letter, start in self.starts if letter == key), None)
        if place is None:
            self.deck_app.say("this job has no such section", "dim", 3.0)
        else:
            self._go(place)
            if key == "l":
                self.action_edge(1)  # its end, which follows

    def _go(self, place: int) -> None:
        self.follow = False
        self.top = place
        self.redraw()

    def chosen_job(self) -> JobTarget | None:
        return target(self.found.job) if self.found is not None else None

    def picked(self, index: int) -> None:
        """Enter answers a node that waits for a person."""
        found, app = self.found, self.deck_app
        if found is None or found.job.status != "awaiting_input" or app.read_only:
            return
        if found.submitted:
            app.say("an answer is on its way to it already", "warn")
            return
        job = found.job

        def go(typed: str | None) -> None:
            if typed is not None and typed.strip():
                app.operator.answer(target(job), job.node_id, typed_value(typed))

        app.push_screen(PromptScreen("ANSWER", "", found.prompt or "JSON, or a text"), go)


def typed_value(text: str) -> Any:
    """What was typed as JSON; what is no JSON is a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()
