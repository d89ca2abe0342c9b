"""A recording keeps what the feed brought, and reads whatever a file may hold."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path

import pytest

from engine.errors import BadInput
from engine.feed import FeedUpdate
from engine.snapshot import jsonable
from engine.telemetry.sample import BoxSample, GpuSample
from flightdeck.recorded import Row, apply, difference
from flightdeck.recording import FULL_VIEW_S, VERSION, Recording, Said, Writer
from tests.deck.fleet_data import MONO, NOW, four_boxes, hostile_fleet, twelve_boxes, update


@cache
def flight() -> list[FeedUpdate]:
    """A minute and a half of a fleet: a start, samples, views that change a little, an outage, a return."""
    fleet = four_boxes()
    out = [update(view=fleet.view(), history=fleet.hour(60))]
    for second in range(2, 90, 2):
        tick = fleet.tick(second)
        if second % 6 == 0:
            fleet.boxes[0][0]["lanes"][0] |= {"busy": second % 20}
            fleet.boxes[1][0]["jobs"] = fleet.boxes[1][0]["jobs"][: second % 4 // 2]
            fleet.events = [{"id": str(second), "at": NOW, "type": "park", "text": f"at {second}"}, *fleet.events][:5]
            tick = replace(tick, view=json.loads(json.dumps(jsonable(fleet.view()))))
        out.append(tick)
    gone = {"error": "connection refused", "next_try_s": 0.5, "lost_since_mono": MONO + 88.5, "at": None}
    out.append(update(state="lost", mono=MONO + 90.0, listening=False, **gone))
    out.append(
        update(at=NOW + timedelta(seconds=95), mono=MONO + 95.0, history={"spark": fleet.hour(60)["spark"][-30:]})
    )
    return out


def written(path: Path, updates: list[FeedUpdate], answers: list[tuple[float, Said]] = []) -> Path:  # noqa: B006
    writer = Writer(path, "fleet@db", NOW)
    writer.update(FeedUpdate("connecting", None, MONO - 1.0))  # says nothing yet: it is not kept
    pending = list(answers)
    for one in updates:
        writer.update(one)
        while pending and pending[0][0] <= one.mono - updates[0].mono:
            at, said = pending.pop(0)
            writer.answer(said, updates[0].mono + at)
    writer.close()
    return path


@pytest.mark.parametrize("name", ["flight.jsonl", "flight.jsonl.gz"])
def test_what_was_written_is_read(tmp_path: Path, name: str) -> None:
    """Every update comes back as it was: states, views, samples to the last digit, hours, ages of an outage."""
    updates = flight()
    recording = Recording.load(written(tmp_path / name, updates))
    assert (recording.skipped, recording.cut) == (0, False)
    assert recording.header.store == "fleet@db" and recording.header.at == NOW
    assert recording.duration_s == pytest.approx(95.0, abs=0.001)
    back = recording.updates(0, len(updates), updates[0].mono)
    for was, now in zip(updates, back, strict=True):
        assert now.mono == pytest.approx(was.mono, abs=0.0011)
        assert replace(now, mono=0, lost_since_mono=None, view=None) == replace(
            was, mono=0, lost_since_mono=None, view=None
        )
        assert now.view == jsonable(was.view)
    assert back[-2].lost_since_mono == pytest.approx(MONO + 88.5, abs=0.01)


def test_every_reading_of_a_sample_comes_back(tmp_path: Path) -> None:
    """Ranges of minute rows, named sensors, cards that are lost, readings that are absent; microseconds too."""
    card = GpuSample(3, "GPU-a", "lost", xid=79, low={"temp_c": 40.5}, high={"temp_c": 91.0})
    rows = [
        BoxSample("a", NOW + timedelta(microseconds=1), "minute", cpu_pct=0.0, gpus=(card, GpuSample(0)),
                  low={"cpu_pct": 0.0}, high={"cpu_pct": 99.9}, sensors={"zones": {"acpitz": 61.0}}),
        BoxSample("\u2603", NOW, zone_max_name="x" * 40, brakes=0),
        BoxSample("bare", NOW),
    ]  # fmt: skip
    path = written(tmp_path / "r", [update(samples=tuple(rows), view={"boxes": []})])
    assert list(Recording.load(path).updates(0, 1, 0.0)[0].samples) == rows


def test_a_view_is_kept_as_what_changed(tmp_path: Path) -> None:
    """A fleet that hardly changes costs little; once a minute the whole view stands there."""
    path = written(tmp_path / "r", flight())
    rows = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    full = [row["t"] for row in rows if "view" in row]
    assert len(full) == 2 and full[1] - full[0] >= FULL_VIEW_S
    whole = max(len(json.dumps(row["view"])) for row in rows if "view" in row)
    changes = [len(json.dumps(row["change"])) for row in rows if "change" in row]
    assert changes and max(changes) < whole / 2


def test_a_difference_leads_from_one_view_to_the_other() -> None:
    """Whatever comes, goes, moves or changes; where a key is gone the view is written in full."""
    chance = random.Random(7)

    def some_view() -> Row:
        boxes = [
            {"box": name, "lanes": chance.randrange(3), "jobs": []}
            for name in chance.sample("abcd", chance.randrange(5))
        ]
        for box in boxes:
            if chance.random() < 0.1:
                del box["jobs"]
        view: Row = {"leader": chance.random() < 0.5, "events": [chance.randrange(2)], "boxes": boxes}
        return view | ({"store": "x"} if chance.random() < 0.8 else {})

    said = 0
    for _ in range(600):
        old, new = some_view(), some_view()
        change = difference(old, new)
        if change is None:
            kept = {box["box"]: box for box in old["boxes"]}
            assert old.keys() - new.keys() or any(kept.get(box["box"], {}).keys() - box.keys() for box in new["boxes"])
        else:
            said += 1
            assert apply(old, change) == new
    assert said > 200


def test_answers_are_those_of_their_time(tmp_path: Path) -> None:
    one, two = Said("job", {"job_id": "7"}, {"status": "running"}), Said("job", {"job_id": "7"}, {"status": "failed"})
    no = Said("job", {"job_id": "8"}, None, "no such job")
    path = written(tmp_path / "r", flight(), [(10.0, one), (20.0, one), (30.0, no), (40.0, two)])
    recording = Recording.load(path)
    found = [recording.said("job", {"job_id": "7"}, t) for t in (5.0, 39.9, 40.5)]
    assert [(answer[0].value["status"], int(answer[1])) for answer in found if answer] == [
        ("running", 10), ("running", 10), ("failed", 40),
    ]  # fmt: skip
    missing = recording.said("job", {"job_id": "8"}, 50.0)
    assert missing is not None and missing[0].error == "no such job"
    assert recording.said("job", {"job_id": "9"}, 50.0) is None
    assert path.read_text().count('"ask"') == 3  # the same answer again is not written


def test_a_crash_costs_the_last_line_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "r", flight())
    data = path.read_bytes()
    path.write_bytes(data[:-40])
    recording = Recording.load(path)
    assert recording.cut and not recording.skipped
    assert len(recording.times()) == len(flight()) - 1


def test_a_compressed_recording_may_end_anywhere(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole.gz", flight()).read_bytes()
    path = tmp_path / "r.gz"
    sizes = []
    for part in (0.8, 0.95, 0.999):
        path.write_bytes(whole[: int(len(whole) * part)])
        recording = Recording.load(path)
        assert recording.cut
        sizes.append(len(recording.times()))
    assert 0 < sizes[0] <= sizes[1] <= sizes[2]
    path.write_bytes(whole[:-1500] + b"\xff" * 500 + whole[-1000:])  # and one that was damaged
    assert Recording.load(path).cut


def test_garbage_between_lines_is_skipped_and_counted(tmp_path: Path) -> None:
    lines = written(tmp_path / "r", flight()).read_bytes().splitlines(keepends=True)
    rubbish = [
        b"\0\0\0\0\n", b"\n", b"{}\n", b"[1,2]\n", b'{"t":-1,"link":[]}\n', b'{"t":NaN,"link":[]}\n',
        b'{"t":1e300,"link":[]}\n', b'{"t":1,"link":7}\n', b"\xff\xfe\n", b"[" * 100_000 + b"\n", b'{"t":2,"ask":"x","with":[1]}\n',
    ]  # fmt: skip
    path = tmp_path / "mixed"
    path.write_bytes(b"".join([*lines[:20], *rubbish, *lines[20:]]))
    recording = Recording.load(path)
    assert recording.skipped == len(rubbish) and not recording.cut
    assert recording.updates(0, 99, 0.0) == Recording(lines).updates(0, 99, 0.0)


def test_a_number_that_json_has_no_word_for_ends_no_recording(tmp_path: Path) -> None:
    """A column of numbers may hold NaN and infinity: one such row kept every view out of the file, or ended it."""
    fleet = four_boxes()
    fleet.boxes[0][0]["facts"]["mem_mb"] = float("inf")
    fleet.boxes[1][0]["jobs"][0]["progress_pct"] = float("nan")
    said = Said("throttle", {}, {"boxes": [{"total_s": float("nan")}]})
    recording = Recording.load(written(tmp_path / "r", [update(view=fleet.view())], [(0.0, said)]))
    view = recording.updates(0, 1, MONO)[0].view
    assert view is not None and view["boxes"][0]["facts"]["mem_mb"] is None
    assert view["boxes"][1]["jobs"][0]["progress_pct"] is None and len(view["boxes"]) == 4
    assert list(recording.answers(1.0).values()) == [{"boxes": [{"total_s": None}]}]


def test_odd_values_do_not_stop_a_replay() -> None:
    """Whatever a line holds that is JSON, the deck gets an update it can draw, or nothing."""
    head = written_header()
    odd = [None, 1, "x", [], {}, [[]], [{}], [None], [[None]], {"boxes": 3}, {"boxes": [3]}, 1e308, [["a", 1e300]],
           [["a", 10**30]], [["a", 5, 0, [1e308, True, "x"], [[7, None, "odd"]], 3, [3, {"a": "b"}], [[1]]]]]  # fmt: skip
    random.seed(4)
    lines = []
    for t in range(300):
        link = [random.choice([*odd, "live", "lost"]) for _ in range(random.randrange(7))]
        row = {"t": t, "link": link} | {key: random.choice(odd) for key in ("view", "change", "samples", "hour")}
        lines.append(json.dumps(row).encode() + b"\n")
    recording = Recording([head, *lines])
    assert len(recording.updates(0, 300, 0.0)) == 300
    assert recording.still(150.0, 0.0)


def written_header(**over: object) -> bytes:
    columns = {"box": ["cpu_pct", "one_of_tomorrow"], "gpu": ["gpu_index", "temp_c", "state"]}
    row = {"flightdeck": "recording", "version": VERSION, "at": NOW.isoformat(), "store": "s", "columns": columns}
    return json.dumps(row | over).encode() + b"\n"


def test_columns_that_this_version_does_not_know_are_left_out() -> None:
    row = {"t": 0, "link": ["live", 0], "samples": [["a", 1_000_000, 0, [5.0, "new"], [[1, 60.0, "ok"]]]]}
    sample = Recording([written_header(), json.dumps(row).encode()]).updates(0, 1, 0.0)[0].samples[0]
    assert (sample.cpu_pct, sample.gpus[0].temp_c, sample.at.timestamp()) == (5.0, 60.0, 1.0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no recording"),
        (b"hello\n", "no recording"),
        (b"\x1f\x8bnot really", "no recording"),
        (gzip.compress(b"hello\n", mtime=0), "no recording"),
        (b'{"log": 1}\n', "no recording"),
        (written_header(version=99), "version 99"),
        (written_header(columns=None), "makes no sense"),
        (written_header(), "no update"),
    ],
    ids=["empty", "text", "cut gzip", "gzip of text", "json", "version", "columns", "header alone"],
)
def test_a_file_that_is_none_is_told_in_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=said) as caught:
        Recording.load(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        Recording.load(tmp_path / "none")
    with pytest.raises(BadInput, match="directory"):
        Recording.load(tmp_path)


def test_a_recording_is_not_overwritten_unless_told(tmp_path: Path) -> None:
    path = written(tmp_path / "r", flight())
    with pytest.raises(FileExistsError):
        Writer(path, "x")
    Writer(path, "x", overwrite=True).close()


def test_names_from_rows_stay_data(tmp_path: Path) -> None:
    """D19, D20: hostile names are kept as they are; cleaning is the model's."""
    fleet = hostile_fleet()
    first = update(view=fleet.view(), samples=fleet.tick(2.0).samples)
    back = Recording.load(written(tmp_path / "r", [first])).updates(0, 1, 0.0)[0]
    assert back.view == jsonable(first.view)
    assert [sample.box for sample in back.samples] == [sample.box for sample in first.samples]


def test_ten_minutes_are_small(tmp_path: Path) -> None:
    """Twelve boxes, one of them with eight cards: a compressed minute of samples takes some tens of kilobytes."""
    fleet = twelve_boxes()
    path = written(tmp_path / "r.gz", [update(view=fleet.view()), *(fleet.tick(second) for second in range(2, 62, 2))])
    assert path.stat().st_size < 60_000
