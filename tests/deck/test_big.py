"""Big charts: every reading in its place, gaps stay gaps, spikes stand, the size is exact, nothing but text comes out."""

from __future__ import annotations

import math
import unicodedata
from itertools import pairwise

import pytest

from flightdeck.charts import big
from flightdeck.charts.big import MARGIN, Chart, ChartCache, Limit, big_chart, dots, value_ticks

MARKERS = tuple(big.MARKERS)
W, H = 60, 12


def wave(count: int = dots(W), level: float = 60.0) -> list[tuple[float, float] | None]:
    return [(level + 12 * math.sin(i / 8), level + 3 + 12 * math.sin(i / 8)) for i in range(count)]


def text(chart: Chart, width: int = W, height: int = H, marker: str = "braille") -> list[str]:
    return ["".join(part for part, _ in line) for line in big_chart(chart, width, height, marker)]


def canvas(rows: list[str], ticks: bool = False) -> list[str]:
    return [row[MARGIN:] for row in rows[1 : -2 if ticks else None]]


def lit(char: str) -> int:
    """Dots of a braille cell."""
    return ord(char) - 0x2800 if "\u2800" <= char <= "\u28ff" else 0


def test_every_reading_stands_in_its_own_dot_column() -> None:
    """A single reading at each place in turn: exactly that column is drawn, at exactly its height."""
    count = dots(W)
    for place in (0, 1, 37, count - 2, count - 1):
        for level, row in ((0.0, H - 2), (100.0, 0)):
            columns = [None] * count
            columns[place] = (level, level)
            found = canvas(text(Chart("GPU C", columns, (0.0, 100.0))))
            marks = [(y, x) for y, line in enumerate(found) for x, char in enumerate(line) if char != " "]
            assert marks == [(row, place // 2)]
            bits = lit(found[row][place // 2])
            assert bits in ((0x40, 0x80)[place % 2], (0x01, 0x08)[place % 2])


@pytest.mark.parametrize("marker", MARKERS)
def test_the_size_is_exact_whatever_the_readings_are(marker: str) -> None:
    for columns in (wave(), [None] * dots(W), [], wave()[:9], wave(500), [(5.0, 5.0)]):
        for width, height in ((W, H), (20, 5), (11, 2), (9, 4), (150, 30)):
            for ticks in ((), ((3, "13:00"), (40, "13:20"))):
                rows = text(Chart("GPU C", columns, (40.0, 100.0), ticks=ticks), width, height, marker)
                assert len(rows) == height and {len(row) for row in rows} == {width}


@pytest.mark.parametrize("marker", MARKERS)
def test_none_nan_and_infinity_are_gaps(marker: str) -> None:
    """D31: a chart dies of none of them."""
    bad = [None, (math.nan, math.nan), (math.inf, math.inf), (-math.inf, 50.0), (50.0, math.nan)]
    columns = wave()
    columns[40:60] = bad * 4  # type: ignore[assignment]
    found = canvas(text(Chart("GPU C", columns, (40.0, 100.0)), marker=marker))
    assert all(line[21:29].strip() == "" for line in found)
    assert any(line[:19].strip() for line in found) and any(line[32:].strip() for line in found)


def test_a_spike_of_one_reading_reaches_its_height() -> None:
    columns = [(50.0, 50.0)] * dots(W)
    columns[33] = (50.0, 99.0)
    found = canvas(text(Chart("GPU C", columns, (40.0, 100.0))))
    assert found[0][16] != " " and all(line[16] != " " for line in found[:8])
    assert found[0].replace(found[0][16], "").strip() == ""


def test_both_edges_of_a_band_are_drawn() -> None:
    found = canvas(text(Chart("GPU W", [(20.0, 80.0)] * dots(W), (0.0, 100.0))))
    assert sum(bool(line[20].strip()) for line in found) == 2


def test_a_limit_is_a_dashed_line_under_the_readings_and_outside_the_scale_none() -> None:
    chart = Chart("GPU C", wave(), (40.0, 100.0), limits=(Limit(92.0, "slowdown 92"), Limit(150.0, "shutdown 150")))
    with_it, without = big_chart(chart, W, H), big_chart(Chart("GPU C", wave(), (40.0, 100.0)), W, H)
    changed = [y for y in range(1, H) if with_it[y] != without[y]]
    assert len(changed) == 1
    assert "slowdown 92" in "".join(part for part, _ in with_it[0])
    below = ["".join(part for part, _ in line) for line in without]
    above = ["".join(part for part, _ in line) for line in with_it]
    assert all(old in (" ", new) for y in range(H) if y for old, new in zip(below[y], above[y], strict=True))


def test_the_cursor_is_a_line_over_the_whole_height() -> None:
    lines = big_chart(Chart("GPU C", wave(), (40.0, 100.0), cursor=40), W, H)
    for line in lines[1:]:
        at = 0
        styles = []
        for part, style in line:
            styles += [style] * len(part)
            at += len(part)
        assert [x for x, style in enumerate(styles) if style == "focus"] == [MARGIN + 20]


def test_a_dead_box_has_an_end_mark_behind_its_last_reading() -> None:
    columns = wave()
    columns[80:] = [None] * len(columns[80:])
    lines = big_chart(Chart("GPU C", columns, (40.0, 100.0), ended=True), W, H)
    assert ("x", "bad+b") in lines[-1]
    assert "".join(part for part, _ in lines[-1]).index("x") == MARGIN + 40


def test_only_narrow_characters_and_no_colour_codes_come_out() -> None:
    """D26, D27: the frame's own characters are of ambiguous width, and colours are the deck's."""
    chart = Chart("GPU C", wave(), (40.0, 100.0), ticks=((5, "13:00"), (60, "13:30")), limits=(Limit(90.0, "limit"),))
    for marker in ("braille", "ascii"):
        for row in text(chart, marker=marker):
            assert "\x1b" not in row
            assert all(unicodedata.east_asian_width(char) in ("N", "Na") for char in row), row
            assert marker == "braille" or row.isascii()


def test_value_ticks_are_round_and_never_touch() -> None:
    for scale in ((40.0, 100.0), (0.0, 140.0), (0.0, 100.0), (1200.0, 2400.0), (0.0, 1e5), (30.0, 30.0), (0.0, 2.5e9)):
        for rows in (1, 2, 5, 9, 14, 30):
            ticks = value_ticks(scale, rows)
            places = [row for row, _ in ticks]
            assert ticks and all(0 <= row < rows for row in places)
            assert all(b - a > 1 for a, b in pairwise(places))
    assert [label for _, label in value_ticks((40.0, 100.0), 9)] == ["40", "60", "80", "100"]
    assert [label for _, label in value_ticks((0.0, 128 * 1024.0), 9, lambda mb: f"{mb / 1024:.0f}", 1024.0)] == [
        "0", "40", "80", "120",
    ]  # fmt: skip


def test_time_labels_stand_under_their_ticks() -> None:
    rows = text(Chart("GPU C", wave(), (40.0, 100.0), ticks=((0, "13:00"), (50, "13:20"), (52, "13:21"))))
    assert rows[-1].index("13:20") == MARGIN + 25 - 2
    assert "13:21" not in rows[-1]  # would touch its neighbour


def test_a_chart_is_drawn_again_only_when_it_looks_different() -> None:
    cache = ChartCache()
    steady = [(50.0, 51.0)] * dots(W)
    for value in ("50", "51"):  # the value beside the title changes every tick
        big_chart(Chart("GPU C", steady, (40.0, 100.0), value=value), W, H, cache=cache, name="a")
        big_chart(Chart("GPU C", [*steady[:-1], (50.01, 51.0)], (40.0, 100.0)), W, H, cache=cache, name="a")
    assert cache.drawn == 1
    big_chart(Chart("GPU C", steady, (40.0, 100.0), cursor=7), W, H, cache=cache, name="a")
    assert cache.drawn == 1  # a cursor lies over what was drawn
    big_chart(Chart("GPU C", [*steady[:-1], (50.0, 90.0)], (40.0, 100.0)), W, H, cache=cache, name="a")
    big_chart(Chart("GPU C", steady, (0.0, 100.0)), W, H, cache=cache, name="a")
    assert cache.drawn == 3


def test_one_chart_leaves_nothing_in_the_next() -> None:
    """plotext has one figure for the whole process."""
    alone = text(Chart("A", wave(), (40.0, 100.0)))
    text(Chart("B", wave(300), (0.0, 1e9), ticks=((9, "13:00"),)), 150, 30)
    text(Chart("C", [None] * 9, (0.0, 1.0)), 40, 7, "ascii")
    assert text(Chart("A", wave(), (40.0, 100.0))) == alone


def test_no_reading_at_all_says_why() -> None:
    rows = text(Chart("GPU MHz", [None] * dots(W), (0.0, 100.0), note="this driver does not report it"))
    assert "n/a  this driver does not report it" in rows[0]
