"""Characters for values: thin min-max lines in braille or ASCII, meter bars. Pure; no width but one cell per character."""

from __future__ import annotations

from flightdeck.model.traces import Columns, Pair
from flightdeck.model.units import known

# Bits of a braille cell, by dot row from the top: left column, right column.
_LEFT = (0x01, 0x02, 0x04, 0x40)
_RIGHT = (0x08, 0x10, 0x20, 0x80)
_BLANK = 0x2800
_ASCII_LEVELS = "_-^"  # bottom, middle, top of a cell


def levels(columns: Columns, scale: Pair, steps: int) -> list[tuple[int, int] | None]:
    """Columns as dot levels (0 at the bottom, ``steps`` - 1 at the top), each joined to its neighbour; None is a gap.

    Values outside the scale stick to its edge. Not a number is a gap.
    """
    low, high = scale
    span = (high - low) or 1.0
    top = steps - 1
    out: list[tuple[int, int] | None] = []
    before: tuple[int, int] | None = None
    for pair in columns:
        if pair is None or not known(pair[0]) or not known(pair[1]):
            out.append(None)
            before = None
            continue
        bottom = min(top, max(0, round((pair[0] - low) / span * top)))
        head = min(top, max(0, round((pair[1] - low) / span * top)))
        mine = (bottom, head)
        if before is not None:
            if before[1] < bottom - 1:
                bottom = before[1] + 1
            elif before[0] > head + 1:
                head = before[0] - 1
        out.append((bottom, head))
        before = mine
    return out


def braille(columns: Columns, scale: Pair, rows: int) -> list[str]:
    """A min-max line, ``rows`` characters high, top row first; two columns share a character."""
    dots = levels(columns, scale, rows * 4)
    if len(dots) % 2:
        dots.insert(0, None)
    width = len(dots) // 2
    cells = [[0] * width for _ in range(rows)]
    top = rows * 4 - 1
    for index, level in enumerate(dots):
        if level is None:
            continue
        bits = _RIGHT if index & 1 else _LEFT
        column = index >> 1
        for dot in range(top - level[1], top - level[0] + 1):
            cells[dot >> 2][column] |= bits[dot & 3]
    return ["".join(chr(_BLANK | cell) if cell else " " for cell in line) for line in cells]


def ascii_line(columns: Columns, scale: Pair, rows: int) -> list[str]:
    """The same in ASCII: ``_ - ^`` for a level, ``|`` where a cell spans more than one."""
    dots = levels(columns, scale, rows * 3)
    if len(dots) % 2:
        dots.insert(0, None)
    lines = [[" "] * (len(dots) // 2) for _ in range(rows)]
    for column in range(len(dots) // 2):
        pair = [level for level in dots[column * 2 : column * 2 + 2] if level is not None]
        if not pair:
            continue
        low, high = min(level[0] for level in pair), max(level[1] for level in pair)
        for row in range(rows):
            floor = (rows - 1 - row) * 3
            inside = [level for level in range(low, high + 1) if floor <= level < floor + 3]
            if inside:
                lines[row][column] = _ASCII_LEVELS[inside[0] - floor] if len(inside) == 1 else "|"
    return ["".join(line) for line in lines]


def bar(fraction: float | None, width: int) -> int:
    """How many of ``width`` cells a meter fills; anything above nothing shows at least one."""
    if not known(fraction) or width <= 0:
        return 0
    assert fraction is not None
    filled = round(min(1.0, max(0.0, fraction)) * width)
    return max(1, filled) if fraction > 0.005 else filled
