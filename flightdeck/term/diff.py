"""Sends only cells that changed. Textual repaints whole rows of a widget; over ssh most of such a row is known already.

Sits between Textual's compositor and its driver and remembers, per row and column where a strip begins, the strip that
the terminal shows. Anything that is not an ordinary partial update makes it forget, so it can never hide a change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.control import Control
from textual._compositor import ChopsUpdate, CompositorUpdate

if TYPE_CHECKING:
    from rich.console import Console
    from rich.style import Style
    from textual.strip import Strip

JOIN_CELLS = 4  # equal cells between two changes that are cheaper to send than to jump over

Cell = tuple[str, "Style | None"]


class CellDiff:
    """One terminal's memory."""

    def __init__(self) -> None:
        self._shown: dict[tuple[int, int], tuple[Strip, list[Cell] | None]] = {}

    def forget(self) -> None:
        self._shown.clear()

    def trim(self, update: Any) -> Any:
        """The same update, or one that draws less and ends with the same picture."""
        if isinstance(update, ChopsUpdate):
            return _Trimmed(update, self)
        if update is not None:
            self.forget()
        return update

    def runs(self, y: int, x: int, strip: Strip) -> list[tuple[int, int]]:
        """Cell ranges of ``strip`` that differ from what stands at (x, y); remembers it."""
        key = (y, x)
        known = self._shown.get(key)
        if known is None or known[0].cell_length != strip.cell_length:
            self._shown[key] = (strip, None)
            return [(0, strip.cell_length)]
        if known[0] is strip:
            return []
        old = known[1] or _cells(known[0])
        new = _cells(strip)
        self._shown[key] = (strip, new)
        if len(old) != len(new):
            return [(0, strip.cell_length)]
        runs: list[tuple[int, int]] = []
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            if before == after:
                continue
            if runs and index - runs[-1][1] <= JOIN_CELLS:
                runs[-1] = (runs[-1][0], index + 1)
            else:
                runs.append((index, index + 1))
        return [_whole(new, start, stop) for start, stop in runs]


def _whole(cells: list[Cell], start: int, stop: int) -> tuple[int, int]:
    """Widened so that no wide character is cut."""
    while start > 0 and not cells[start][0]:
        start -= 1
    while stop < len(cells) and not cells[stop][0]:
        stop += 1
    return start, stop


class _Trimmed(CompositorUpdate):
    def __init__(self, update: ChopsUpdate, diff: CellDiff) -> None:
        self._update = update
        self._diff = diff

    def render_segments(self, console: Console) -> str:
        update, out = self._update, []
        for y in sorted({span[0] for span in update.spans}):
            spans = [(x1, x2) for row, x1, x2 in update.spans if row == y]
            for end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
                if strip is None or not any(x < x2 and end > x1 for x1, x2 in spans):
                    continue
                for start, stop in self._diff.runs(y, x, strip):
                    out.append(Control.move_to(x + start, y).segment.text)
                    out.append(strip.crop(start, stop).render(console))
        return "".join(out)


def _cells(strip: Strip) -> list[Cell]:
    """One entry per cell; the second cell of a wide character is empty, a mark joins the character before it."""
    cells: list[Cell] = []
    for segment in strip:
        if segment.control:
            continue
        text, style = segment.text, segment.style
        if text.isascii():
            cells.extend((char, style) for char in text)
            continue
        for char in text:
            size = cell_len(char)
            if size == 0 and cells:
                cells[-1] = (cells[-1][0] + char, style)
            elif size:
                cells.append((char, style))
                cells.extend([("", style)] * (size - 1))
    return cells
