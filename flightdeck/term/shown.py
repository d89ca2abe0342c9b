"""What an app does so that its terminal shows the present: frames that a slow link cannot take are left out, not queued."""

from __future__ import annotations

import contextlib
from abc import ABCMeta, abstractmethod
from typing import TYPE_CHECKING, Any

from textual import events
from textual._compositor import ChopsUpdate
from textual.app import App
from textual.geometry import Region, Size
from textual.message_pump import _MessagePumpMeta

from flightdeck.term.paint import Painted, Painter

if TYPE_CHECKING:
    from rich.console import RenderableType
    from textual.driver import Driver
    from textual.screen import Screen

    from flightdeck.term.outlet import Outlet

FRAMES_AHEAD = 8192  # bytes; a new page need not wait for the end of the one before


class _AppType(_MessagePumpMeta, ABCMeta):
    """An app that may be abstract."""


class Shown(App[int], metaclass=_AppType):
    """``outlet`` None: no terminal (tests, still frames)."""

    painter: Painter
    outlet: Outlet | None = None
    repaint_due = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._missing: dict[
            Screen[object], set[Region]
        ] = {}  # of frames that were left out: where they would have drawn

    @abstractmethod
    def draw_now(self, changed: set[str] | None = None) -> None:
        """Draw what is known now."""

    def get_driver_class(self) -> type[Driver]:
        from flightdeck.term.driver import DeckDriver

        return DeckDriver

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        """Frames in the order they were made: what is painted directly goes out before the compositor's."""
        self.painter.flush()
        if self.outlet is not None and renderable is not None and not self.outlet.room(FRAMES_AHEAD):
            if isinstance(renderable, ChopsUpdate):
                cells = {Region(x, y, end - x, 1) for y, x, end in renderable.spans}
                self._missing.setdefault(screen, set()).update(cells)
            else:
                self.repaint_due = True  # drawn whole when the link keeps up
            return
        self._send(screen, renderable)

    def show_frame(self, frame: Painted) -> None:
        self._send(self.screen, frame)  # type: ignore[arg-type]

    def _send(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        with self.outlet.frame() if self.outlet is not None else contextlib.nullcontext():
            super()._display(screen, renderable)

    def look_at_size(self) -> None:
        """The size that counts is the terminal's now: of two changes in one breath Textual may hear the older one last."""
        driver = self._driver
        if self.outlet is None or driver is None or self._exit:
            return
        size = Size(*driver._get_terminal_size())  # type: ignore[attr-defined]
        if size != self.size:
            self.post_message(events.Resize(size, size))

    def output_flows(self, whole: bool) -> None:
        """The terminal has shown what was sent: now what changed since. ``whole``: nobody knows what stands there."""
        missing, self._missing = self._missing.get(self.screen), {}  # another screen is drawn whole when it is on top
        if whole or self.repaint_due:
            self.repaint_due = False
            self.painter.forget()
            self.draw_now()
            self.screen.refresh(layout=True)
            return
        self.painter.release()
        if missing:
            self.screen._compositor._dirty_regions.update(missing)
            self.screen._compositor_refresh()
