"""A fleet of many boxes: it shows before its hour is read, the hour comes in parts, and a hole costs its own box only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from engine import feed as feed_module
from engine.feed import MANY, Feed, FeedUpdate
from engine.store import Db, Store
from engine.telemetry import writer
from engine.telemetry.rollup import by_minute, minute_of, roll_up
from engine.telemetry.sample import BoxFacts, BoxSample, GpuSample
from tests.support import eventually

BOXES = [f"box{number:02}" for number in range(MANY + 3)]


def record(db: Db, box: str, age_s: float = 0.0, tell: bool = False) -> BoxSample:
    sample = BoxSample(
        box,
        db.now() - timedelta(seconds=age_s),
        cpu_pct=50.0,
        gpus=(GpuSample(0, temp_c=60.0), GpuSample(1, temp_c=70.0)),
    )
    payload = sample.payload() if tell else None
    writer.write(db, writer.Recorder(box, "0" * 16, 1, "0"), [sample], payload=payload, last_error=None)
    return sample


class Watched:
    """What a feed sends about a fleet that has been recorded for three minutes; ``silent``: a box, but for the last one."""

    def __init__(self, store: Store, db: Db, silent: str = "") -> None:
        now = db.now()
        for box in BOXES:
            writer.write_facts(db, BoxFacts(box, cores=8))
            first = 10 if box == silent else 0
            details = [
                BoxSample(box, now - timedelta(seconds=6 * n), cpu_pct=50.0, gpus=(GpuSample(0, temp_c=60.0 + n),))
                for n in range(first, 30)
            ]
            minutes = [roll_up(rows) for minute, rows in by_minute(details).items() if minute < minute_of(now)]
            writer.write(
                db, writer.Recorder(box, "0" * 16, 1, "0"), [*minutes, *details], payload=None, last_error=None
            )
        self.updates: list[FeedUpdate] = []
        self.feed = Feed(lambda: store, self.updates.append)
        self.feed.start()
        eventually(lambda: {box for part in self.parts() for box in part} == set(BOXES), 60, "everybody's hour")

    def parts(self) -> list[dict[str, list[BoxSample]]]:
        return [update.history for update in list(self.updates) if update.history]


@pytest.fixture
def watch(store: Store, db: Db) -> Iterator[Callable[..., Watched]]:
    found: list[Watched] = []

    def start(**silent: str) -> Watched:
        found.append(Watched(store, db, **silent))
        return found[-1]

    yield start
    for watched in found:
        watched.feed.stop(5.0)


def test_the_fleet_shows_at_once_and_its_hour_comes_in_parts(watch: Callable[..., Watched]) -> None:
    watched = watch()
    first = next(update for update in watched.updates if update.state == "live")
    assert first.view is not None and [box["box"] for box in first.view["boxes"]] == BOXES
    assert {box["sample_age_s"] is not None for box in first.view["boxes"]} == {True}
    assert sorted(sample.box for sample in first.samples) == BOXES and first.history is None
    parts = watched.parts()
    assert [len(part) for part in parts] == [MANY, len(BOXES) - MANY], "each box once"
    assert all(len(rows) > 3 for part in parts for rows in part.values())


def test_a_hole_of_one_box_has_its_own_past_read_again_only(
    watch: Callable[..., Watched], db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D15: the gap is filled from the table; of a hundred boxes the others are left alone."""
    monkeypatch.setattr(feed_module, "LATE_ROWS_S", 0.2)
    watched = watch(silent=BOXES[1])
    before = len(watched.parts())
    record(db, BOXES[1], tell=True)
    again = eventually(lambda: watched.parts()[before:], 60, "its past")
    assert [set(part) for part in again] == [{BOXES[1]}]
