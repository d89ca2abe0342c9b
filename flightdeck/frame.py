"""One frame of the deck without a terminal: for ``flightdeck snapshot``, screenshots and golden tests."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from flightdeck.model.deck import Clock, Update

if TYPE_CHECKING:
    from rich.style import Style
    from textual.pilot import Pilot

    from flightdeck.app import FlightDeckApp
    from flightdeck.reader import Canned, Key


SETTLE_S = 60.0


@dataclass(frozen=True)
class Frame:
    """``text``: rows without trailing blanks. ``svg``: the same with colours; empty where it was not wanted. ``styles``:
    those of everything that is no blank."""

    text: str
    svg: str
    styles: frozenset[Style] = frozenset()


@dataclass(frozen=True)
class Shot:
    """One picture: on which page (its name in screens.pages; empty: the one that is there), after which keys, at which size
    (None: the one before)."""

    page: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    keys: Sequence[str] = ()
    size: tuple[int, int] | None = None


def render_frame(
    updates: Update | Sequence[Update],
    size: tuple[int, int] = (120, 40),
    theme: str = "dark",
    ascii: bool = False,
    *,
    keys: Sequence[str] = (),
    page: str = "",
    arguments: Mapping[str, Any] | None = None,
    **looks: Any,
) -> Frame:
    """Draw what a deck would show after these updates (on that page, after those keys), at the time of the last one.

    ``looks``: see :func:`render_frames`.
    """
    shot = Shot(page, arguments or {}, keys)
    return render_frames(updates, {"": shot}, size, theme, ascii, **looks)[""]


def render_frames(
    updates: Update | Sequence[Update],
    shots: Mapping[str, Shot],
    size: tuple[int, int] = (120, 40),
    theme: str = "dark",
    ascii: bool = False,
    *,
    project: str | None = None,
    store_name: str = "",
    plain: bool = False,
    read_only: bool = True,
    answers: Mapping[Key, Any] | Canned | None = None,
    svg: bool = True,
) -> dict[str, Frame]:
    """Several pictures of one deck, by name, in this order; what one shot leaves (a filter, a cursor) the next one finds.
    A defect that a deck would outlive is raised here.

    ``answers``: what the database would say to the pages' questions, by :func:`flightdeck.reader.question_key`; or who
    says it.
    """
    if not isinstance(updates, Sequence):
        updates = [updates]
    last = updates[-1]
    wall = next((update.at for update in reversed(updates) if update.at is not None), datetime.now(UTC))
    clock = Clock(lambda: last.mono, lambda: wall)
    frames: dict[str, Frame] = {}
    failures: list[BaseException] = []

    async def draw() -> None:
        from flightdeck.app import FlightDeckApp
        from flightdeck.reader import Canned

        app = FlightDeckApp(
            None,
            project,
            read_only,
            ascii,
            theme=theme,
            store_name=store_name,
            plain=plain,
            clock=clock,
            reader=answers if isinstance(answers, Canned) else Canned(answers),
        )
        async with app.run_test(size=size) as pilot:
            await settle(app, pilot)
            for update in updates:
                app.take_in(update)
            app.flush()
            await settle(app, pilot)
            for name, shot in shots.items():
                if shot.size is not None and shot.size != app.size:
                    await pilot.resize_terminal(*shot.size)
                    await settle(app, pilot)
                if shot.page:
                    app.show_page(shot.page, **shot.arguments)
                    await settle(app, pilot)
                for key in shot.keys:
                    await pilot.press(key)
                    await settle(app, pilot)
                picture = app.export_screenshot(title="flightdeck") if svg else ""
                frames[name] = Frame(screen_text(app), picture, screen_styles(app))
            app.faults.check()

    def work() -> None:
        try:
            asyncio.run(draw())
        except BaseException as error:
            failures.append(error)

    # In a thread of its own, so that a caller may have an event loop already.
    thread = threading.Thread(target=work, name="frame")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return frames


async def settle(app: FlightDeckApp, pilot: Pilot[int]) -> None:
    """Wait until the screen on top has been built and laid out; on a loaded machine a key is answered long before.

    Raises TimeoutError where that never comes: something lays itself out again and again.
    """
    from textual.widget import Widget

    deadline = time.monotonic() + SETTLE_S
    while True:
        await pilot.pause()
        if app._exit:
            return
        top = app.screen
        fleet = app.fleet_screen()
        built = fleet is not None and fleet.ready and top.is_running and top.is_mounted
        waiting = [widget for widget in top.walk_children(Widget, with_self=True) if widget._layout_required]
        if built and not waiting and top._compositor.size == app.size and top is app.screen:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{top} does not settle: built {built}, {waiting} want a layout, {app.size}")


def screen_styles(app: FlightDeckApp) -> frozenset[Style]:
    """The styles that stand on the screen now."""
    strips = app.screen._compositor.render_strips(app.size)
    return frozenset(segment.style for strip in strips for segment in strip if segment.style and segment.text.strip())


def screen_text(app: FlightDeckApp) -> str:
    """What stands on the screen now, row by row."""
    strips = app.screen._compositor.render_strips(app.size)
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)
