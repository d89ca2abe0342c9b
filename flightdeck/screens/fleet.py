"""The fleet: boxes next to each other, each with its lanes, jobs, hour and throttling."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.containers import Container
from textual.geometry import Region
from textual.screen import Screen

from flightdeck.actions import hints
from flightdeck.model.fleet import Box
from flightdeck.sorting import SORTS
from flightdeck.widgets.arrange import Arrangement, Place, arrange
from flightdeck.widgets.box_card import Drawn, card, one_row, opened, shape_of
from flightdeck.widgets.header import Tabs, banner_line, event_line, header_line, key_line
from flightdeck.widgets.lines import Line, LineView, Row, Span
from flightdeck.widgets.scene import Cursor

if TYPE_CHECKING:
    from flightdeck.app import FlightDeckApp

TINY_W, TINY_H = 50, 9


class BoxPane(LineView):
    """One box on screen; which one and how may change at every arrangement."""

    def __init__(self) -> None:
        super().__init__()
        self.box = ""
        self.place: Place | None = None
        self.drawn_mono = 0.0
        self.targets: dict[int, Cursor] = {}

    def put_at(self, place: Place) -> None:
        if place == self.place:
            return
        self.place = place
        self.styles.offset = (place.x, place.y)
        self.styles.width = place.width
        self.styles.height = place.height

    def settled(self, region: Region) -> bool:
        place, parent = self.place, self.parent
        if place is None or not isinstance(parent, Container) or region.size != (place.width, place.height):
            return False
        return region.offset - parent.region.offset == (place.x, place.y)

    def on_click(self, event: events.Click) -> None:
        event.stop()
        deck_app = cast("FlightDeckApp", self.app)
        deck_app.point_at(self.targets.get(event.y, Cursor(self.box)), twice=event.chain > 1)


class FleetScreen(Screen[None], inherit_bindings=False):
    """Header, cards or rows, event line, key line. On a terminal too small for that: one line that says so."""

    def __init__(self) -> None:
        super().__init__()
        self.arrangement = Arrangement((), 1)
        self._tabs = Tabs([])
        self.ready = False  # between mount and unmount; updates also come before and after
        self.lines = {name: LineView(id=name) for name in ("tiny", "header", "banner", "events", "keys")}
        self.body = Container(id="fleet")
        self.panes: list[BoxPane] = []

    @property
    def deck_app(self) -> FlightDeckApp:
        return cast("FlightDeckApp", self.app)

    def compose(self) -> ComposeResult:
        for name in ("tiny", "header", "banner"):
            yield self.lines[name]
        yield self.body
        for name in ("events", "keys"):
            yield self.lines[name]

    def on_mount(self) -> None:
        self.ready = True
        self.redraw()

    def on_unmount(self) -> None:
        self.ready = False

    def on_resize(self) -> None:
        self.redraw()

    def on_screen_resume(self) -> None:
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        if event.screen_y != 0:
            return
        for start, stop, project in self._tabs.places:
            if start <= event.screen_x < stop:
                self.deck_app.show_project(project)

    # -- drawing

    def redraw(self, changed: set[str] | None = None) -> None:
        """Bring the screen up to date; ``changed`` names the boxes that may look different, None means all."""
        if not self.ready:
            return
        app = self.deck_app
        width, height = self.size
        tiny = width < TINY_W or height < TINY_H
        self.set_class(tiny, "tiny")
        if tiny:
            text = f"flightdeck: {width}x{height} is too small, {TINY_W}x{TINY_H} is the least"
            self._line("tiny", Row(width).add(text, "text").done())
            return
        if app.settle():
            changed = None
        self.draw_header()
        boxes = app.boxes()
        focus = next((index for index, box in enumerate(boxes) if box.raw == app.scene.cursor.box), 0)
        room = height - 3 - (1 if self.has_class("banner") else 0)
        arrangement = arrange(len(boxes), focus, width, room, app.expanded)
        if arrangement != self.arrangement or not boxes:
            changed = None
            self.arrangement = arrangement
        self.draw_bottom()
        panes = self.panes
        wanted = max(1, len(arrangement.places))
        while len(panes) < wanted:
            pane = BoxPane()
            self.body.mount(pane)
            panes.append(pane)
            changed = None
        for pane in panes[wanted:]:
            pane.display = False
        if not arrangement.places:
            self._explain(panes[0], width, room, bool(boxes))
            return
        shown = [boxes[place.index] for place in arrangement.places]
        inner = min(place.height for place in arrangement.places) - 2
        app.scene.shape = shape_of(app.scene, shown, inner) if arrangement.cards and not app.expanded else None
        app.scene.name_cells = max(cell_len(box.name) for box in shown)
        app.scene.shape_height = inner
        for pane, place, box in zip(panes, arrangement.places, shown, strict=False):
            pane.display = True
            pane.put_at(place)
            if changed is None or box.raw in changed or pane.box != box.raw:
                self._draw_pane(pane, place, box)

    def _draw_pane(self, pane: BoxPane, place: Place, box: Box) -> None:
        app = self.deck_app
        if place.kind == "card":
            drawn = card(app.scene, box, place.width, place.height)
        elif place.kind == "open":
            drawn = opened(app.scene, box, place.width, place.height)
        else:
            drawn = Drawn([one_row(app.scene, box, place.width)], {0: Cursor(box.raw)})
        pane.box, pane.targets = box.raw, drawn.targets
        pane.drawn_mono = app.clock.mono()
        pane.show(drawn.lines, app.data_colors(), app.glyphs.ascii)

    def redraw_old(self, older_than_s: float) -> None:
        """Redraw panes whose ages may have moved on; those that a sample has just redrawn are left alone."""
        now = self.deck_app.clock.mono()
        old = {pane.box for pane in self.panes if pane.display and now - pane.drawn_mono >= older_than_s}
        if old:
            self.redraw(old)

    def draw_header(self) -> None:
        app = self.deck_app
        width = self.size.width
        line, self._tabs = header_line(
            app.scene.deck, app.scene.project, width, app.store_name, app.frozen_s(), app.read_only
        )
        self._line("header", line)
        banner = banner_line(app.deck, width)
        if (banner is not None) != self.has_class("banner"):
            self.set_class(banner is not None, "banner")
        if banner is not None:
            self._line("banner", banner)

    def draw_bottom(self) -> None:
        app = self.deck_app
        width = self.size.width
        self._line("events", event_line(app.scene.deck, app.scene.deck.events(app.scene.project), width, app.message()))
        self._line("keys", key_line(hints(app.actions), width, self._place_text()))

    def _explain(self, pane: BoxPane, width: int, height: int, filtered: bool) -> None:
        pane.display = True
        pane.put_at(Place(0, "card", 0, 0, width, height))
        app = self.deck_app
        rows: list[Line] = [Row(width).done() for _ in range(height)]
        for offset, (text, style) in enumerate(self._explanation(filtered)):
            y = max(0, height // 2 - 3) + offset
            if y < height:
                rows[y] = Row(width).add(" " * max(2, (width - 64) // 2)).add(text, style).done()
        pane.box = ""
        pane.show(rows, app.ink, app.glyphs.ascii)

    def _place_text(self) -> str:
        """Right end of the key line: filter, order, and where in the fleet the cursor is when not all of it is shown."""
        app = self.deck_app
        boxes = app.boxes()
        parts = [f"/{app.filter_text}"] if app.filter_text else []
        if app.sort_index:
            parts.append(f"by {SORTS[app.sort_index].name}")
        if boxes and (self.arrangement.above or self.arrangement.below):
            index = next((i for i, box in enumerate(boxes) if box.raw == app.scene.cursor.box), 0)
            parts.append(f"box {index + 1} of {len(boxes)}")
        return "  ".join(parts)

    def _explanation(self, filtered: bool) -> list[Span]:
        """What stands on an empty screen."""
        app = self.deck_app
        if not app.deck.loaded:
            return [("Connecting to the database", "bright"), (app.store_name, "dim"), (app.deck.link.error, "warn")]
        if app.filter_text or filtered:
            return [("No box matches the filter.", "bright"), ("esc clears it", "dim")]
        return [
            ("No boxes yet.", "bright"),
            ("A box appears here with its first recorder, lane or sample.", "text"),
            ("", "text"),
            ("flightdeck up      runs this box: recorder, orchestrator, lanes", "dim"),
            ("flightdeck demo    shows a living fleet, needs nothing", "dim"),
        ]

    def _line(self, name: str, line: Line) -> None:
        app = self.deck_app
        self.lines[name].show([line], app.ink, app.glyphs.ascii)
