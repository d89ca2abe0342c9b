"""The fleet: boxes next to each other, each with its lanes, jobs, hour and throttling."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rich.cells import cell_len
from textual import events
from textual.containers import Container
from textual.geometry import Region
from textual.widget import Widget

from flightdeck.model.fleet import Box
from flightdeck.navigate import selected_job
from flightdeck.orders import JobTarget, job_target
from flightdeck.screens.page import Page
from flightdeck.sorting import SORTS
from flightdeck.widgets.arrange import Arrangement, Place, arrange
from flightdeck.widgets.box_card import Drawn, card, opened, shape_of
from flightdeck.widgets.box_row import one_row
from flightdeck.widgets.lines import Line, LineView, Row, Span
from flightdeck.widgets.scene import Cursor

if TYPE_CHECKING:
    from flightdeck.app import FlightDeckApp


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


class FleetScreen(Page):
    """Cards next to each other, or rows with the focused box opened."""

    PAGE = "fleet"
    FILTERS = "box, queue, model, project or job"

    def __init__(self) -> None:
        super().__init__()
        self.arrangement = Arrangement((), 1)
        self.area = Container(id="fleet")
        self.panes: list[BoxPane] = []

    def main(self) -> Widget:
        return self.area

    # -- drawing

    def draw_main(self, changed: set[str] | None) -> None:
        app = self.deck_app
        width, room = self.size.width, self.main_height
        boxes = app.boxes()
        focus = next((index for index, box in enumerate(boxes) if box.raw == app.scene.cursor.box), 0)
        arrangement = arrange(len(boxes), focus, width, room)
        if arrangement != self.arrangement or not boxes:
            changed = None
            self.arrangement = arrangement
        panes = self.panes
        wanted = max(1, len(arrangement.places))
        while len(panes) < wanted:
            pane = BoxPane()
            self.area.mount(pane)
            panes.append(pane)
            changed = None
        for pane in panes[wanted:]:
            pane.display = False
        if not arrangement.places:
            self._explain(panes[0], width, room, bool(boxes))
            return
        shown = [boxes[place.index] for place in arrangement.places]
        inner = min(place.height for place in arrangement.places) - 2
        app.scene.shape = shape_of(app.scene, shown, inner) if arrangement.cards else None
        app.scene.name_cells = max(cell_len(box.name) for box in shown)
        app.scene.shape_height = inner
        app.pasts.want(boxes[place.index].raw for place in arrangement.places if place.kind != "row")
        for pane, place, box in zip(panes, arrangement.places, shown, strict=False):
            pane.display = True
            pane.put_at(place)
            if changed is None or box.raw in changed or pane.box != box.raw:
                self._draw_pane(pane, place, box)

    def _draw_pane(self, pane: BoxPane, place: Place, box: Box) -> None:
        """One box that cannot be drawn says so in its own place; its neighbours go on."""
        app = self.deck_app
        try:
            drawn = self._drawn(place, box)
        except Exception as error:
            told = f" {box.name}: cannot be drawn: {app.faults.note(f'box {box.name}', error)}"
            lines = [Row(place.width).add(text, "bad").done() for text in [told, *[""] * (place.height - 1)]]
            drawn = Drawn(lines, {0: Cursor(box.raw)})
        pane.box, pane.targets = box.raw, drawn.targets
        pane.drawn_mono = app.clock.mono()
        pane.show(drawn.lines, app.data_colors(), app.glyphs.ascii)

    def _drawn(self, place: Place, box: Box) -> Drawn:
        scene = self.deck_app.scene
        if place.kind == "card":
            return card(scene, box, place.width, place.height)
        if place.kind == "open":
            return opened(scene, box, place.width, place.height)
        return Drawn([one_row(scene, box, place.width)], {0: Cursor(box.raw)})

    def redraw_old(self, older_than_s: float) -> None:
        """Redraw panes whose ages may have moved on; those that a sample has just redrawn are left alone."""
        now = self.deck_app.clock.mono()
        old = {pane.box for pane in self.panes if pane.display and now - pane.drawn_mono >= older_than_s}
        if old:
            self.redraw(old)

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

    def next_sort(self) -> str:
        return f"boxes by {self.deck_app.roster.next_sort()}"

    def chosen_job(self) -> JobTarget | None:
        app = self.deck_app
        box = app.current_box()
        job = selected_job(app.scene, box, app.scene.cursor) if box is not None else None
        return job_target(box, job) if box is not None and job is not None else None

    def place_text(self) -> str:
        """Filter, order, and where in the fleet the cursor is when not all of it is shown."""
        app = self.deck_app
        parts = [f"/{self.filter_text}"] if self.filter_text else []
        if app.roster.sort_index:
            parts.append(f"by {SORTS[app.roster.sort_index].name}")
        if self.arrangement.above or self.arrangement.below:
            boxes = app.boxes()
            index = next((i for i, box in enumerate(boxes) if box.raw == app.scene.cursor.box), 0)
            parts.append(f"box {index + 1} of {len(boxes)}")
        return "  ".join(parts)

    def _explanation(self, filtered: bool) -> list[Span]:
        """What stands on an empty screen."""
        app = self.deck_app
        if not app.deck.loaded:
            return [("Connecting to the database", "bright"), (app.store_name, "dim"), (app.deck.link.error, "warn")]
        if self.filter_text or filtered:
            return [("No box matches the filter.", "bright"), ("esc clears it", "dim")]
        return [
            ("No boxes yet.", "bright"),
            ("A box appears here with its first recorder, lane or sample.", "text"),
            ("", "text"),
            ("flightdeck up      runs this box: recorder, orchestrator, lanes", "dim"),
            ("flightdeck demo    shows a living fleet, needs nothing", "dim"),
        ]
