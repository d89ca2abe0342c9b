"""Characters for values: thin min-max lines in braille or ASCII, bars of blocks, meter bars. Pure; no width but one cell per character."""

from __future__ import annotations

from flightdeck.model.slots import Columns, Pair
from flightdeck.model.units import known

# Bits of a braille cell for four dots from the bottom up: left column, right column.
_LEFT_DOTS, _RIGHT_DOTS = (0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)
_LEFT = [sum(bit for dot, bit in enumerate(_LEFT_DOTS) if mask >> dot & 1) for mask in range(16)]
_RIGHT = [sum(bit for dot, bit in enumerate(_RIGHT_DOTS) if mask >> dot & 1) for mask in range(16)]
_BLANK = 0x2800
_ASCII = " _-|^|||"  # by three dots from the bottom up

Level = tuple[int, int]
NARROW = 3  # a band of so few dots is a line, not a hole


def levels(columns: Columns, scale: Pair, steps: int) -> list[Level | None]:
    """Columns as dot levels (lowest, highest), 0 at the bottom and ``steps`` - 1 at the top; None is a gap.

    Values outside the scale stick to its edge. Not a number is a gap.
    """
    low, high = scale
    span = (high - low) or 1.0
    top = steps - 1
    out: list[Level | None] = []
    for pair in columns:
        if pair is None or not known(pair[0]) or not known(pair[1]):
            out.append(None)
            continue
        bottom = round((pair[0] - low) / span * top)
        head = bottom if pair[1] == pair[0] else round((pair[1] - low) / span * top)
        if bottom < 0 or head > top or head < bottom:
            bottom, head = min(top, max(0, bottom)), min(top, max(0, head))
        out.append((bottom, head))
    return out


def outline(found: list[Level | None]) -> list[int]:
    """Dots per column as bits, bit 0 at the bottom: the lowest and the highest value, each joined to its neighbour.

    The inside of a band stays empty: where load swings faster than a column is wide, two thin lines say more than a
    filled area. A spike between quiet columns is a full stroke, because both its edges are joined.
    """
    out: list[int] = []
    before: Level | None = None
    for level in found:
        if level is None:
            out.append(0)
            before = None
            continue
        low, high = level
        bits = 1 << low | 1 << high
        if high - low <= NARROW:
            bits |= (1 << high) - (1 << low)
        if before is not None and before != level:
            bits |= _between(low, before[0]) | _between(high, before[1])
        out.append(bits)
        before = level
    return out


def _between(one: int, other: int) -> int:
    """The dots that lie between two, as bits."""
    low, high = (one, other) if one < other else (other, one)
    return (1 << high) - (2 << low) if high > low else 0


def braille(columns: Columns, scale: Pair, rows: int) -> list[str]:
    """A min-max line, ``rows`` characters high, top row first; two columns share a character."""
    dots = outline(levels(columns, scale, rows * 4))
    if len(dots) % 2:
        dots.insert(0, 0)
    lines = []
    for row in range(rows):
        base = (rows - 1 - row) * 4
        cells = []
        for left, right in zip(dots[::2], dots[1::2], strict=True):
            bits = _LEFT[left >> base & 15] | _RIGHT[right >> base & 15]
            cells.append(chr(_BLANK | bits) if bits else " ")
        lines.append("".join(cells))
    return lines


def ascii_line(columns: Columns, scale: Pair, rows: int) -> list[str]:
    """The same in ASCII: ``_ - ^`` for a level, ``|`` where a cell holds more than one."""
    dots = outline(levels(columns, scale, rows * 3))
    if len(dots) % 2:
        dots.insert(0, 0)
    lines = []
    for row in range(rows):
        base = (rows - 1 - row) * 3
        lines.append(
            "".join(_ASCII[(left | right) >> base & 7] for left, right in zip(dots[::2], dots[1::2], strict=True))
        )
    return lines


_BLOCKS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"


def blocks(columns: Columns, scale: Pair, rows: int) -> list[str]:
    """For terminals without braille: a bar per character up to the highest value of its two columns, an eighth of a row
    at least; a gap is blank."""
    found = levels(columns, scale, rows * 8)
    if len(found) % 2:
        found.insert(0, None)
    highs = [
        max((level[1] + 1 for level in pair if level is not None), default=0)
        for pair in zip(found[::2], found[1::2], strict=True)
    ]
    return ["".join(_BLOCKS[min(8, max(0, high - base))] for high in highs) for base in range((rows - 1) * 8, -1, -8)]


DRAWERS = {"braille": braille, "blocks": blocks, "ascii": ascii_line}
_STEPS = {"braille": 4, "blocks": 8, "ascii": 3}  # levels per row


def newest(columns: Columns, scale: Pair, rows: int, charts: str) -> Level | None:
    """The dot level of the last column, which is still being filled: what of it can be seen."""
    return levels(columns[-1:], scale, rows * _STEPS[charts])[0] if columns else None


def limit_mark(value: float, scale: Pair, rows: int, charts: str) -> tuple[int, str] | None:
    """Where a limit lies in a trace: (row from the top, the character of its dotted line)."""
    level = levels([(value, value)], scale, rows * _STEPS[charts])[0]
    if level is None:
        return None
    row, dot = divmod(level[0], _STEPS[charts])
    return rows - 1 - row, chr(_BLANK | _LEFT_DOTS[dot]) if charts == "braille" else "."


def bar(fraction: float | None, width: int) -> int:
    """How many of ``width`` cells a meter fills; anything above nothing shows at least one."""
    if not known(fraction) or width <= 0:
        return 0
    assert fraction is not None
    filled = round(min(1.0, max(0.0, fraction)) * width)
    return max(1, filled) if fraction > 0.005 else filled
