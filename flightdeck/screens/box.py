"""One box over the whole screen: what an operator looks at while one machine misbehaves."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.widget import Widget

from flightdeck.model.axis import HOUR_S, slot_step
from flightdeck.model.box_detail import Facts, gpu_samples, read_facts, read_jobs, read_sensors
from flightdeck.model.fleet import Box
from flightdeck.navigate import selected_job, stops
from flightdeck.orders import JobTarget, job_target
from flightdeck.reader import Answer, Ask
from flightdeck.screens.page import Page
from flightdeck.widgets.box_charts import BoxView
from flightdeck.widgets.box_page import box_page
from flightdeck.widgets.box_words import gpus_of
from flightdeck.widgets.lines import LineView, Row
from flightdeck.widgets.scene import Cursor

NOW_S = 5.0  # so often the named sensors are read, where live samples bring none
GPUS_S = 15.0  # and the series of the chosen GPU; live samples fill in between
LONG_S = 60.0  # of spans beyond an hour
JOBS_S = 4.0


class BoxScreen(Page):
    """``box``: the raw name of the box to show. Moving on to another box shows that one."""

    PAGE = "box"
    LOCAL_KEYS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("c", "chart"),
        ("g", "gpu"),
        ("h l", "box"),
        ("j k", "lane, job"),
        ("esc", "back"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "walk(1)", show=False),
        Binding("up,k", "walk(-1)", show=False),
        Binding("right,l", "other_box(1)", show=False),
        Binding("left,h", "other_box(-1)", show=False),
        Binding("enter", "open_job", show=False),
    ]

    def __init__(self, box: str = "") -> None:
        super().__init__()
        self.wanted = box
        self.box_view = BoxView()
        self.view = LineView(id="sheet", classes="sheet")
        self.asks: dict[str, Ask] = {}
        self._asked: tuple[object, ...] = ()
        self._shown = ""
        self._taken: datetime | None = None
        self._drawn_mono = 0.0
        self._tabs_of_gpus: list[tuple[int, int, int, str]] = []
        self._targets: dict[int, tuple[int, Cursor]] = {}

    def main(self) -> Widget:
        return self.view

    def on_mount(self) -> None:
        cursor = self.deck_app.scene.cursor
        if self.wanted and cursor.box != self.wanted:
            self.deck_app.scene.cursor = Cursor(self.wanted)
        super().on_mount()

    def on_unmount(self) -> None:
        super().on_unmount()
        self._stop()

    def on_screen_suspend(self) -> None:
        """Nobody sees it: nothing is read for it."""
        self._stop()

    def _stop(self) -> None:
        for ask in self.asks.values():
            ask.stop()
        self.asks.clear()
        self._asked = ()

    # -- drawing

    def draw_main(self, changed: set[str] | None) -> None:
        app = self.deck_app
        box = app.current_box()
        width, height = self.size.width, self.main_height
        if box is None:
            lines = [Row(width).done() for _ in range(height)]
            lines[height // 2] = Row(width).add("   No such box.   ", "bright").add("esc back", "dim").done()
            self.view.show(lines, app.ink, app.glyphs.ascii)
            return
        if box.raw != self._shown:
            self._shown, self._taken = box.raw, None
            self.box_view = BoxView(chart=self.box_view.chart, cache=self.box_view.cache)
            self._asked = ()
        elif changed is not None and box.raw not in changed:
            return
        app.pasts.want([box.raw])
        self._listen(box)
        self._ask(box)
        page = box_page(app.scene, box, self.box_view, width, height)
        self._tabs_of_gpus, self._targets = page.tabs, page.targets
        self._drawn_mono = app.clock.mono()
        self.view.show(page.lines, app.data_colors(), app.glyphs.ascii)

    def redraw_old(self, older_than_s: float) -> None:
        """Ages go on, but not beside a sample that has just been drawn."""
        if self.deck_app.clock.mono() - self._drawn_mono >= older_than_s:
            self.redraw()

    def _draw_unless_live(self) -> None:
        """What the database says over and over: the next live sample draws it, where any come."""
        box = self.deck_app.current_box()
        if box is None or self.deck_app.scene.deck.box_state(box) != "up":
            self.redraw()

    def _listen(self, box: Box) -> None:
        """Take what the newest live sample brings beyond the overview."""
        latest = self.deck_app.scene.deck.history(box).latest
        if latest is None or latest.tier != "detail" or (self._taken is not None and latest.at <= self._taken):
            return
        self._taken = latest.at
        self.box_view.series.add(latest)
        if latest.sensors and latest.sensors.keys() - {"slow"}:  # a cut payload keeps that flag only: see box_now
            self.box_view.sensors = read_sensors(latest.sensors)

    def _ask(self, box: Box) -> None:
        """Ask the database what this window, this box and this GPU need; again only when one of them is another."""
        app, view = self.deck_app, self.box_view
        gpus = gpus_of(app.scene, box, view)
        if view.gpu not in [name for name, _ in gpus]:
            view.gpu = gpus[0][0] if gpus else ""
        span = app.scene.window.span_s
        wanted = (box.raw, span, view.gpu)
        if wanted == self._asked or not self.is_current:
            return
        long = LONG_S if span > HOUR_S else None
        before, self._asked = self._asked, wanted
        if before[:1] != wanted[:1]:
            self.asks["now"] = app.reader.ask("box_now", {"box": box.raw}, self._take_now, NOW_S)
        if before[:2] != wanted[:2]:
            arguments = {"box": box.raw, "seconds": span}
            self.asks["jobs"] = app.reader.ask("box_jobs", arguments, self._take_jobs, long or JOBS_S)
        if view.gpu:
            arguments = {"box": box.raw, "seconds": span, "bucket_s": slot_step(span), "gpu": view.gpu}
            self.asks["gpus"] = app.reader.ask("box_gpus", arguments, self._take_gpus, long or GPUS_S)

    def _mine(self, answer: Answer) -> bool:
        """Whether an answer is about what is shown; one that came late is not."""
        return self.ready and answer.arguments.get("box") == self._shown

    def _take_now(self, answer: Answer) -> None:
        if not self._mine(answer) or answer.error or not isinstance(answer.value, dict):
            return
        view = self.box_view
        first = not view.sensors.offered or view.facts == Facts()
        view.facts = read_facts(answer.value.get("facts"))
        if answer.value.get("sensors"):
            view.sensors = read_sensors(answer.value["sensors"])
        view.cards = gpu_samples(answer.value)
        self.redraw() if first else self._draw_unless_live()

    def _take_jobs(self, answer: Answer) -> None:
        if not self._mine(answer):
            return
        view = self.box_view
        before = (view.jobs, view.more_jobs, view.jobs_note)
        if answer.error:
            view.jobs_note = answer.error
        else:
            view.jobs, view.more_jobs = read_jobs(answer.value)
            view.jobs_note = ""
        if before != (view.jobs, view.more_jobs, view.jobs_note):
            self.redraw()

    def _take_gpus(self, answer: Answer) -> None:
        if (
            self._mine(answer)
            and not answer.error
            and answer.arguments.get("seconds") == self.deck_app.scene.window.span_s
        ):
            first = self.box_view.card() is None
            self.box_view.series.load(answer.value)
            self.redraw() if first else self._draw_unless_live()

    # -- keys and mouse

    def turn(self, what: str, by: int) -> None:
        """The next or previous GPU, or other charts."""
        box = self.deck_app.current_box()
        if box is None:
            return
        if what == "chart":
            self.box_view.chart += by
        else:
            names = [name for name, _ in gpus_of(self.deck_app.scene, box, self.box_view)]
            if len(names) < 2:
                self.deck_app.say("this box has one GPU" if names else "no GPU in this box", "dim", 3.0)
                return
            at = names.index(self.box_view.gpu) if self.box_view.gpu in names else 0
            self.box_view.gpu = names[(at + by) % len(names)]
        self.redraw()

    def action_walk(self, by: int) -> None:
        """Up and down the lanes and jobs of this box."""
        app = self.deck_app
        box = app.current_box()
        rows = stops(app.scene, box) if box is not None else []
        if box is None or not rows:
            return
        cursor = app.scene.cursor
        here = ("", cursor.job) if cursor.job else (cursor.lane, "")
        at = rows.index(here) if here in rows else -by
        app.point_at(Cursor(box.raw, *rows[min(max(0, at + by), len(rows) - 1)]))

    def action_other_box(self, by: int) -> None:
        app = self.deck_app
        names = [box.raw for box in app.boxes()]
        if app.scene.cursor.box in names:
            at = names.index(app.scene.cursor.box) + by
            if 0 <= at < len(names):
                app.point_at(Cursor(names[at]))

    def action_open_job(self) -> None:
        app = self.deck_app
        if app.scene.cursor.job:
            app.open_cursor()

    def chosen_job(self) -> JobTarget | None:
        app = self.deck_app
        box = app.current_box()
        job = selected_job(app.scene, box, app.scene.cursor) if box is not None else None
        return None if box is None or job is None else job_target(box, job)

    def place_text(self) -> str:
        """Where among the boxes this one is."""
        names = [box.raw for box in self.deck_app.boxes()]
        at = names.index(self._shown) + 1 if self._shown in names else 0
        return f"box {at} of {len(names)}" if at and len(names) > 1 else ""

    def on_click(self, event: events.Click) -> None:
        if event.screen_y == 0:
            self.click_header(event.screen_x)
            return
        y = event.screen_y - self.view.region.y
        for row, start, stop, name in self._tabs_of_gpus:
            if row == y and start <= event.screen_x < stop:
                self.box_view.gpu = name
                self.redraw()
                return
        left, target = self._targets.get(y, (0, None))
        if target is not None and event.screen_x >= left:
            self.deck_app.point_at(target, twice=event.chain > 1 and bool(target.job))
