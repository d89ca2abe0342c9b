"""The page of one box: charts, throttling and jobs on one axis; every GPU, every sensor; what is absent says why."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from engine.telemetry.sample import BoxSample, GpuSample
from flightdeck.charts.big import MARGIN
from flightdeck.frame import render_frame
from flightdeck.model.axis import Window
from flightdeck.model.box_detail import read_jobs, read_sensors
from flightdeck.model.gpu_series import Series
from flightdeck.model.timeline import Timeline
from flightdeck.widgets import box_charts
from flightdeck.widgets.box_page import box_page
from flightdeck.widgets.job_lanes import job_lines
from flightdeck.widgets.lines import BLOCKS, UNICODE
from tests.deck.box_data import JOBS, SENSORS, attempt, drawn_page, page, rows, still
from tests.deck.fleet_data import (
    HOSTILE,
    NOW,
    hostile_fleet,
    three_boxes,
    twelve_boxes,
    update,
)

MAINS = ((80, 20), (120, 36), (210, 46))  # what is between the edges of the three usual terminals


# -- sizes, looks, hostile data


@pytest.mark.parametrize("kind", ["spark", "hangar", "attic", "mute", "workshop"])
def test_every_size_is_filled_exactly(kind: str) -> None:
    scene, box, view = still(twelve_boxes(), kind)
    for width, height in (
        (50, 6),
        (64, 9),
        (80, 20),
        (80, 21),
        (103, 30),
        (104, 33),
        (149, 36),
        (150, 36),
        (210, 46),
        (300, 97),
    ):
        drawn = rows(box_page(scene, box, view, width, height).lines)
        assert len(drawn) == height
        assert {len(row) for row in drawn} == {width}


def test_ascii_is_ascii_and_all_chrome_is_narrow() -> None:
    """D27."""
    scene, box, view = still(three_boxes(), "spark", ascii=True)
    assert all(row.isascii() for row in rows(box_page(scene, box, view, 210, 46).lines))
    scene, box, view = still(three_boxes(), "spark")
    for row in rows(box_page(scene, box, view, 210, 46).lines):
        assert all(unicodedata.east_asian_width(char) in ("N", "Na") for char in row), row


def test_a_terminal_without_braille_gets_blocks() -> None:
    scene, box, view = still(three_boxes(), "spark")
    scene.glyphs = BLOCKS
    scene.window = Window(3600, 600.0)
    text = drawn_page((scene, box, view))
    assert "\u2584" in text and not any("\u2801" <= char <= "\u28ff" for char in text)


def test_hostile_texts_are_shown_as_typed_and_do_nothing() -> None:
    """D19, D20: names of boxes, sensors, jobs, processes and reasons are data."""
    fleet = hostile_fleet()
    name = HOSTILE[0]
    bad = dict.fromkeys(HOSTILE, 50.0)
    sensors = {
        "zones": bad, "fans": bad, "rails": bad, "mounts": bad, "net": {text: [1.0, 2.0] for text in HOSTILE},
        "disks": {"x": "y", "z": [1]}, "processes": [{"pid": 1, "name": text, "gpu_index": 0, "mem_mb": 5.0} for text in HOSTILE] + ["x"],
        "absent": dict.fromkeys(HOSTILE, "\x1b[31mred"), "gpu_absent": {"0": dict.fromkeys(("temp_c", "sm_mhz"), "\x07bell"), "x": {}, "1": 7},
        "uptime_s": "soon",
    }  # fmt: skip
    jobs = [
        attempt(n, text, 30 - n, 10, project=text, queue=text, outcome=text, cause=text)
        for n, text in enumerate(HOSTILE)
    ]
    scene, box, view = still(fleet, name, sensors, [*jobs, {"started_at": "x"}, 7])
    for width, height in ((80, 20), (120, 36), (210, 46)):
        for row in rows(box_page(scene, box, view, width, height).lines):
            assert not any(unicodedata.category(char) in ("Cc", "Cf") for char in row)
    assert "[bold]x" in "".join(rows(box_page(scene, box, view, 210, 46).lines))


def test_nonsense_from_the_database_is_no_answer() -> None:
    series = Series()
    for answer in (
        None,
        7,
        [],
        {"bucket_s": "x"},
        {"bucket_s": 5, "first": 1, "gpus": [7, {}, {"uuid": 3, "series": {"temp_c": [1, [2], [None, 3]]}}]},
    ):
        series.load(answer)
    assert all(not any(card.pairs.values()) for card in series.cards.values())
    assert read_jobs({"jobs": [7, {}]}) == ((), False) and not read_sensors("x").offered


def test_colours_say_nothing_that_words_do_not() -> None:
    """D26."""
    assert page(three_boxes(), "spark", theme="light") == page(three_boxes(), "spark", plain=True)


# -- one axis


def test_a_job_and_its_throttling_stand_at_the_columns_of_their_time() -> None:
    """Charts, throttle strip and jobs share the axis: the same instant is the same character in all of them."""
    fleet = three_boxes()
    began, minutes = 30.0, 10.0
    scene, box, view = still(fleet, "spark", jobs=[attempt(1, "x", began, minutes)])
    card = view.series.cards["GPU-spark-0"]
    begin, end = NOW - timedelta(minutes=began), NOW - timedelta(minutes=began - minutes)
    first, last = (int(at.timestamp() // 5) for at in (begin, end))
    card.held = {"T": {slot: (5000.0 if first <= slot <= last else 0.0) for slot in range(first - 400, first + 360)}}
    card.brakes = {}
    card.pairs["temp_c"] = {
        slot: (90.0, 90.0) if first <= slot <= last else (50.0, 50.0) for slot in range(first - 350, first + 359)
    }
    for width in (80, 120, 210):
        drawn = rows(box_page(scene, box, view, width, 46).lines)
        strip = next(row for row in drawn if row.startswith(" THROT"))
        job = next(row for row in drawn if row.startswith(" gpu ") and "|" in row)
        hot = next(row for row in drawn if row.startswith("    80"))  # between 50 and 90 there are only the two edges
        left, right = strip.index("T", MARGIN), strip.rindex("T")
        bar = [x for x, char in enumerate(job[: right + 3]) if char in "\u2836|" and x >= MARGIN]
        assert (bar[0], bar[-1]) == (left, right)
        edges = [
            x
            for x, char in enumerate(hot[: len(strip)])
            if char not in " \u2812\u2809\u2824\u28c0" and MARGIN <= x <= right + 2
        ]
        assert abs(edges[0] - left) <= 1 and abs(edges[-1] - right) <= 1


def test_a_spike_of_one_sample_shows_in_an_hour() -> None:
    scene, box, view = still(three_boxes(), "spark")
    card = view.series.cards["GPU-spark-0"]
    slot = int((NOW - timedelta(minutes=20)).timestamp() // 5)
    card.pairs["temp_c"][slot] = (80.0, 99.0)
    drawn = rows(box_page(scene, box, view, 120, 36).lines)
    title = next(index for index, row in enumerate(drawn) if row.startswith(" GPU C"))
    assert "peak 99" in drawn[title]
    line = Timeline(NOW, 3600, 60)
    x = MARGIN + line.cell(line.column(NOW - timedelta(minutes=20)))
    assert drawn[title + 1][x] not in " \u2812\u2809"


def test_ticks_are_round_times_of_the_viewer_also_across_a_change_of_the_clock() -> None:
    """D12, D24: snapped, and in the viewer's zone."""
    berlin = ZoneInfo("Europe/Berlin")
    for end, span in (
        (datetime(2026, 10, 25, 3, 10, tzinfo=UTC), 21_600),  # the hour from 2 to 3 comes twice
        (datetime(2026, 3, 29, 6, 0, tzinfo=UTC), 86_400),
        (datetime(2026, 3, 29, 6, 0, tzinfo=UTC), 604_800),
        (datetime(2026, 7, 1, 12, 0, 7, tzinfo=UTC), 600),
    ):
        line = Timeline(end, span, 72)
        ticks = line.ticks(berlin)
        assert 3 <= len(ticks) <= 10
        columns = [column for column, _ in ticks]
        assert columns == sorted(set(columns)) and all(0 <= column < line.count for column in columns)
        for column, text in ticks:
            at = datetime.fromtimestamp((line.first + column + 1) * line.column_s, UTC).astimezone(berlin)
            if ":" in text:
                assert (
                    abs((at - at.replace(hour=int(text[:2]), minute=int(text[3:5]), second=0)).total_seconds())
                    <= line.column_s + 60
                )
    a, b = (Timeline(NOW + timedelta(seconds=s), 3600, 72) for s in (0, 3))
    assert (a.ticks(UTC), a.first) == (b.ticks(UTC), b.first)  # between two rolls nothing moves


def test_looking_back_says_the_value_of_every_chart_at_that_instant() -> None:
    fleet = three_boxes()
    known = still(fleet, "spark")
    known[0].window = Window(3600, 600.0)
    text = drawn_page(known, 210, 46)
    at = NOW - timedelta(seconds=600)
    around = [s for s in fleet.hour()["spark"] if abs((s.at - at).total_seconds()) < 60]
    shown = re.search(r"GPU W  (\d+)(?:-(\d+))? ", text)
    assert shown
    values = [gpu.power_w for sample in around for gpu in sample.gpus if gpu.power_w is not None]
    low, high = float(shown[1]), float(shown[2] or shown[1])
    assert min(values) - 1 <= low <= high <= max(values) + 1
    crossed = [line for line, _ in zip(text.split("\n"), range(46), strict=True) if "\u2847" in line[MARGIN:79]]
    assert len(crossed) > 20  # over charts, strip and jobs
    figures = re.search(
        r"as it was at 13:53:22.*?power (\d+)/131 W.*?mem unified \d+\.\d/121 G.*?throttle ([PTB]*)", text, re.S
    )
    assert figures and int(figures[1]) == round(high) and figures[2]


# -- the cases


@pytest.mark.parametrize("kind", ["spark", "workshop"])
def test_charts_side_by_side_have_each_the_columns_of_its_own_axis(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those at the right were drawn from the columns of those at the left: the mark of an instant stood at another time, and
    where they are narrower there was no such column at all."""
    scene, box, view = still(twelve_boxes(), kind)
    scene.window = Window(3600, 5.0)
    seen: list[tuple[int, int]] = []
    draw = box_charts.draw

    def note(*given: Any) -> Any:
        seen.append((len(given[3].columns), given[4].count))
        return draw(*given)

    monkeypatch.setattr(box_charts, "draw", note)
    for width in (150, 180, 210, 250, 300):
        box_page(scene, box, view, width, 40)
    assert seen and all(columns in (0, count) for columns, count in seen), seen


def test_a_lost_gpu_has_a_tab_its_last_values_and_their_age_and_the_others_go_on() -> None:
    """D1."""
    known = still(twelve_boxes(), "hangar")
    text = drawn_page(known)
    assert " 3 LOST" in text and re.search(r" 0 \d\dC", text)
    known[2].gpu = "GPU-hangar-3"
    lost = drawn_page(known)
    assert re.search(r"GPU 3  NVIDIA H200  LOST  last \d+ C  \d+ W  3m\d\d ago", lost)
    assert "throttle n/a" in lost and "GPU-hangar-3" in lost


def test_a_gpu_is_followed_by_its_uuid_when_its_index_moves() -> None:
    """D1: the chosen card stays chosen when a neighbour drops off the bus."""
    scene, box, view = still(twelve_boxes(), "hangar")
    view.gpu = "GPU-hangar-5"
    box_page(scene, box, view, 120, 36)
    history = scene.deck.histories["hangar"]
    assert history.latest is not None
    left = tuple(
        replace(gpu, gpu_index=n) for n, gpu in enumerate(gpu for gpu in history.latest.gpus if gpu.gpu_index != 3)
    )
    history.add(replace(history.latest, at=NOW + timedelta(seconds=1), gpus=left))
    text = "\n".join(rows(box_page(scene, box, view, 120, 36).lines))
    assert view.gpu == "GPU-hangar-5" and "GPU 4  NVIDIA H200  GPU-hangar-5" in text


def test_unified_memory_is_the_boxes_and_its_link_is_hidden() -> None:
    """D4: GB10 says 0/0 memory, PCIe Gen1 x1, no fan: unified, nothing, n/a with the reason."""
    fleet = three_boxes()
    hour = list(fleet.hour()["spark"])
    odd = replace(hour[-1].gpus[0], pcie_gen=1, pcie_width=1, mem_used_mb=None, mem_total_mb=None)
    hour[-1] = replace(hour[-1], gpus=(odd,))
    known = still(fleet, "spark", history=hour)
    for width, height in MAINS:
        text = drawn_page(known, width, height)
        assert re.search(r"mem unified \d+\.\d/121 G", text)
        assert "PCIe" not in text and "0/0" not in text and "fan n/a no fan tach" in text


def test_every_metric_absent_at_once_is_all_n_a() -> None:
    """D5: no crash, no zero; each says that it is not there."""
    known = still(twelve_boxes(), "mute", sensors={}, jobs=[])
    for width, height in MAINS:
        text = drawn_page(known, width, height)
        assert "temp n/a" in text and "GPU C  n/a" in text and "throttle n/a" in text
        assert not re.search(r"\b0 (C|W|MHz|rpm)\b", text) and "0%" not in text
    nothing = render_frame(update(view={"boxes": [{"box": "bare"}]}), (100, 30), keys=("enter",)).text
    assert "no GPU in this box" in nothing and "no detail of this box" in nothing and "no lanes on this box" in nothing


def test_a_failed_reader_is_a_gap_in_the_chart_and_n_a_beside_it() -> None:
    """D6: 0 W and 0 C are never made up."""
    fleet = three_boxes()
    hour = [
        replace(s, gpus=tuple(replace(g, power_w=None) for g in s.gpus)) if (NOW - s.at).total_seconds() < 1200 else s
        for s in fleet.hour()["spark"]
    ]
    text = drawn_page(still(fleet, "spark", history=hour, read=False))
    lines = text.split("\n")
    title = next(index for index, line in enumerate(lines) if line.startswith(" GPU W"))
    assert "GPU W  n/a" in lines[title] and "power n/a" in text
    dashes = " \u2812\u2809\u2824\u28c0"
    assert not any(line[MARGIN + 42 : MARGIN + 60].strip(dashes) for line in lines[title + 1 : title + 5])
    assert any(line[MARGIN : MARGIN + 38].strip(dashes) for line in lines[title + 1 : title + 5])


def test_a_box_that_went_down_keeps_its_hour_and_says_how_old_it_is() -> None:
    text = drawn_page(still(twelve_boxes(), "attic"))
    assert "DOWN" in text and "as it was 11m40 ago" in text and "none then" in text
    assert re.search(r"GPU C  -   peak \d\d", text)
    assert len(re.findall(r"[\u2800-\u28ff ]x[ \u2800-\u28ff]", text)) >= 3  # an end mark in each chart


def test_an_xid_has_its_age() -> None:
    scene, box, view = still(three_boxes(), "spark")
    view.series.cards["GPU-spark-0"].xid, view.series.cards["GPU-spark-0"].xid_at = 79, NOW - timedelta(minutes=12)
    assert "Xid 79 12m00 ago" in "\n".join(rows(box_page(scene, box, view, 210, 46).lines))


# -- sensors, processes, jobs


def test_all_named_sensors_and_what_is_absent_with_its_reason() -> None:
    processes = [{"pid": 4711, "name": "python train.py", "gpu_index": 0, "mem_mb": 20_480.0}]
    sensors = {
        **SENSORS,
        "processes": processes,
        "fans": {},
        "absent": {"fan_max_rpm": "no fan tach", "cpu_mhz": "constant in a virtual machine"},
    }
    sensors["pressure"] = {"memory": 12.5}
    text = drawn_page(still(three_boxes(), "spark", sensors=sensors), 210, 46)
    assert "12.5% waiting" in text
    for word in ("soc thermal", "88.4 C", "spbm sys_total", "131.4 W", "enP7s7", "1.2M in 90k out", "nvme0n1", "/data", "93% full",
                 "4711 python train.py", "20.0 G", "up 12d"):  # fmt: skip
        assert word in text, word
    assert "fans  n/a  no fan tach" in text and "cpu clock  n/a  constant in a virtual machine" in text


def test_a_long_list_of_sensors_says_how_many_more() -> None:
    many = {**SENSORS, "zones": {f"zone {n}": 40.0 + n for n in range(40)}}
    scene, box, view = still(three_boxes(), "spark", sensors=many)
    text = "\n".join(rows(box_page(scene, box, view, 120, 36).lines))
    assert re.search(r"ZONES +\+\d+ more", text) and "zone 39" in text  # the hottest comes first


def test_jobs_say_how_they_went_and_what_held_them_back() -> None:
    line = Timeline(NOW, 3600, 100)
    jobs, _ = read_jobs({"jobs": JOBS})
    text = "\n".join(rows(job_lines(jobs, line, MARGIN, 107, 6, UNICODE)))
    for word in (
        "comfyui_video 61%",
        "comfyui_video T 88 s",
        "upscale executor died (-9)",
        "train_lora gpu idle (78) P 415 s",
        "compute_storm_grids",
    ):
        assert word in text


def test_more_jobs_than_rows_share_rows_and_the_rest_is_counted() -> None:
    line = Timeline(NOW, 3600, 100)
    jobs, _ = read_jobs({"jobs": [attempt(n, f"job{n}", 58 - n, 0.5) for n in range(57)]})
    found = rows(job_lines(jobs, line, MARGIN, 107, 4, UNICODE))
    assert len(found) == 4 and {len(row) for row in found} == {107}
    shown = sum(row.count("job") for row in found[1:])
    hidden = re.search(r"\+(\d+) not shown", found[0])
    assert shown > 3 and hidden and shown + int(hidden[1]) == 57
    long, _ = read_jobs(
        {"jobs": [attempt(900, "long", 50, 40), *(attempt(n, f"job{n}", 58 - n, 0.5) for n in range(57))]}
    )
    assert "long" in "".join(rows(job_lines(long, line, MARGIN, 107, 2, UNICODE)))  # the one that tells something
    alone = rows(job_lines(jobs[:3], line, MARGIN, 107, 4, UNICODE))
    assert [row.count("job") for row in alone[1:]] == [1, 1, 1]


def test_jobs_of_another_project_are_left_out_in_a_projects_tab() -> None:
    known = still(three_boxes(), "spark")
    known[0].project = "lm_content"
    text = drawn_page(known)
    assert "compute_storm_grids" not in text and "train_lora" in text


def test_live_samples_are_added_to_what_was_read() -> None:
    series = Series()
    series.load({"bucket_s": 5, "first": 100, "gpus": [{"uuid": "GPU-a", "series": {"temp_c": [[50.0, 50.0]]}}]})
    at = datetime.fromtimestamp(102 * 5 + 1, UTC)
    for value in (61.0, 64.0, None):
        series.add(
            BoxSample("b", at, gpus=(GpuSample(0, "GPU-a", temp_c=value, sw_power_ms=700.0), GpuSample(1, "GPU-b")))
        )
    card = series.cards["GPU-a"]
    assert card.pairs["temp_c"] == {100: (50.0, 50.0), 102: (61.0, 64.0)} and card.held["P"] == {102: 2100.0}
    assert "GPU-b" not in series.cards  # nothing was read of it: a tail is not taken for its past
