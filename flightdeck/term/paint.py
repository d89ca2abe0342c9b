"""Puts cells that changed straight into Textual's output, past its compositor.

Nearly every frame of a deck changes a few figures inside panes that stay where they are. The compositor would wait for
its next frame slot, lay strips over each other and send whole rows; here a row's old and new spans are compared, and the
cells that differ go out at once: some ten bytes and a tenth of the time. Whatever is not that simple (a layout to come,
another screen on top, a pane that is not placed yet) is refused, and the caller asks for an ordinary refresh. The
compositor reads the same lines, so a frame of its own always ends with the same picture.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.segment import Segment
from textual._compositor import CompositorUpdate
from textual.strip import Strip

if TYPE_CHECKING:
    from rich.console import Console
    from textual.geometry import Region
    from textual.widget import Widget

    from flightdeck.app import FlightDeckApp
    from flightdeck.styles.palette import Palette
    from flightdeck.widgets.lines import LineView

Spans = list[tuple[str, str]]  # text, style name
Change = tuple[int, Spans, Spans]  # row, what stands there, what shall

_PLAIN = re.compile("[\\0-\\x7f\u2800-\u28ff]")  # one cell each, whatever stands before them: ASCII and braille
_ALL_PLAIN = re.compile(f"{_PLAIN.pattern}*")

JOIN_CELLS = 4  # equal cells between two changes that are cheaper to send than to jump over


class Painted(CompositorUpdate):
    """A frame that is bytes already."""

    def __init__(self, text: str) -> None:
        self._text = text

    def render_segments(self, console: Console) -> str:
        return self._text


class Painter:
    """Collects what changes in one turn of the event loop and sends it as one frame."""

    def __init__(self, app: FlightDeckApp) -> None:
        self._app = app
        self._pending: list[str] = []
        self._held: dict[tuple[Widget, int], Spans] = {}  # rows that could not leave: what the terminal shows of them
        self._codes: dict[tuple[str, bool, str], tuple[str, str]] = {}

    def paint(self, view: Widget, region: Region, rows: Iterable[Change], colors: Palette) -> bool:
        """Send what differs in these rows of ``view``, which stands at ``region``; False: the compositor has to do it."""
        app = self._app
        screen = view.screen
        if app.loop is None or app.screen is not screen or screen._layout_required or not screen.is_running:
            return False
        if not region or not screen.region.contains_region(region):
            return False
        if app.outlet is not None and not app.outlet.room():
            for y, old, _ in rows:
                self._held.setdefault((view, y), old)
            return True
        out: list[str] = []
        for y, old, new in rows:
            found = changes(old, new, region.width)
            if found is None or y >= region.height:
                return False
            for start, spans in found:
                out.append(f"\x1b[{region.y + y + 1};{region.x + start + 1}H")
                out += [self._styled(text, style, colors) for text, style in spans]
        if out:
            if not self._pending:
                app.loop.call_soon(app.guarded, self.flush)
            self._pending += out
        return True

    def release(self) -> None:
        """The link keeps up again: send what differs between what stands on the terminal and what is known now."""
        held, self._held = self._held, {}
        views: dict[LineView, list[tuple[int, Spans]]] = {}
        for (view, y), old in held.items():
            if (
                view.is_attached and view.screen is self._app.screen
            ):  # of another screen: that is drawn whole when it is on top
                views.setdefault(view, []).append((y, old))  # type: ignore[arg-type]
        for view, rows in views.items():
            view.repaint(rows)

    def forget(self) -> None:
        """The whole screen is drawn anew."""
        self._held.clear()

    def flush(self) -> None:
        """Send the frame. Also called before any other frame, so that they go out in the order they were made."""
        if self._pending:
            text = "".join(self._pending)
            self._pending.clear()
            self._app.show_frame(Painted(text))

    def _styled(self, text: str, style: str, colors: Palette) -> str:
        key = (colors.name, colors.greyed, style)
        codes = self._codes.get(key)
        if codes is None:
            before, _, after = Strip([Segment("x", colors.style(style))]).render(self._app.console).partition("x")
            codes = self._codes[key] = (before, after)
        return f"{codes[0]}{text}{codes[1]}"


def changes(old: Spans, new: Spans, width: int) -> list[tuple[int, Spans]] | None:
    """Runs of cells of ``new`` that differ from ``old``: first column, and the styled text. None: not of this width."""
    head, tail = _alike(old, new)
    begun, ended = _size(new[:head]), _size(new[len(new) - tail :])
    before, after = cells(old[head : len(old) - tail]), cells(new[head : len(new) - tail])
    if not begun + len(before) + ended == begun + len(after) + ended == width:
        return None
    runs: list[tuple[int, int]] = []
    for index in [index for index, (was, now) in enumerate(zip(before, after, strict=True)) if was != now]:
        if runs and index - runs[-1][1] <= JOIN_CELLS:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    found = [_run(after, *_whole(before, *_whole(after, *run))) for run in runs]
    return [(begun + start, spans) for start, spans in found]


def _alike(old: Spans, new: Spans) -> tuple[int, int]:
    """How many spans at the beginning and at the end are the same in both, so that only those between are looked at by the
    cell. No mark that belongs to the character before it is cut off from it."""
    most = min(len(old), len(new))
    head = tail = 0
    while head < most and old[head] == new[head]:
        head += 1
    while head and not (_begins(old, head) and _begins(new, head)):
        head -= 1
    while tail < most - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    while tail and not _begins(new, len(new) - tail):
        tail -= 1
    return head, tail


def _begins(line: Spans, index: int) -> bool:
    """Whether a cell of its own begins with this span."""
    return index == len(line) or _PLAIN.match(line[index][0]) is not None


def cells(line: Spans) -> Spans:
    """One entry per cell; the second cell of a wide character is empty, a mark joins the character before it."""
    out: Spans = []
    for text, style in line:
        if _ALL_PLAIN.fullmatch(text):
            out += [(char, style) for char in text]
            continue
        for char in text:
            size = cell_len(char)
            if size == 0 and out:
                out[-1] = (out[-1][0] + char, style)
            elif size:
                out.append((char, style))
                out += [("", style)] * (size - 1)
    return out


def _size(line: Spans) -> int:
    """Cells of a part of a line that begins with a cell of its own."""
    text = "".join([text for text, _ in line])
    return len(text) if _ALL_PLAIN.fullmatch(text) else len(cells(line))


def _whole(line: Spans, start: int, stop: int) -> tuple[int, int]:
    """Widened so that no wide character is cut."""
    while start > 0 and not line[start][0]:
        start -= 1
    while stop < len(line) and not line[stop][0]:
        stop += 1
    return start, stop


def _run(line: Spans, start: int, stop: int) -> tuple[int, Spans]:
    spans: Spans = []
    for text, style in line[start:stop]:
        if spans and spans[-1][1] == style:
            spans[-1] = (spans[-1][0] + text, style)
        else:
            spans.append((text, style))
    return start, spans
