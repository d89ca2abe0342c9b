"""What the hardware did to a job: against sums made from the story itself, not from rows."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from typing import Any

import pytest

from engine.store import Db, Store
from engine.telemetry import writer
from engine.telemetry.job_hardware import PROCESSOR, JobShares, Piece, add_up, choose, share_of, uncovered
from engine.telemetry.recorder import run_recorder
from engine.telemetry.rollup import by_minute, minute_of, roll_up
from engine.telemetry.sample import BoxFacts, BoxSample, GpuSample
from tests.queue.conftest import add_node, add_run

ME = writer.Recorder("spark", "00000000000000aa", 4711, "1.0")
Spans = tuple[tuple[float, float], ...]


class Story:
    """When one GPU was held back, in seconds from a beginning; heat and clock follow."""

    def __init__(self, begin: datetime, power: Spans = (), thermal: Spans = (), brake: Spans = ()) -> None:
        self.begin = begin
        self.spans = {"power": power, "thermal": thermal, "brake": brake}

    def held_ms(self, cause: str, start: float, end: float) -> float:
        return 1000 * sum(max(0.0, min(end, b) - max(start, a)) for a, b in self.spans[cause])

    def temp(self, at: float) -> float:
        return 88.0 if self.held_ms("thermal", at - 0.5, at) else 61.0

    def mhz(self, at: float) -> float:
        return 1200.0 if self.held_ms("thermal", at - 0.5, at) else 2400.0

    def gpu(self, at: float, since: float, index: int = 0) -> GpuSample:
        return GpuSample(
            index, f"GPU-{index}", temp_c=self.temp(at), power_w=60.0 + 40.0 * bool(self.held_ms("power", at - 0.5, at)),
            sm_mhz=self.mhz(at), sw_power_ms=self.held_ms("power", since, at),
            sw_thermal_ms=self.held_ms("thermal", since, at), hw_thermal_ms=self.held_ms("thermal", since, at) / 2,
            hw_brake_ms=self.held_ms("brake", since, at), throttle_source="counter",
        )  # fmt: skip

    def details(self, start: float, end: float, step: float = 2.0, *, gpus: int = 1) -> list[BoxSample]:
        found = []
        at = start
        while at <= end:
            found.append(
                BoxSample(
                    "spark", self.begin + timedelta(seconds=at), cpu_temp_c=self.temp(at) - 5, cpu_mhz=3000.0,
                    cpu_throttle_ms=self.held_ms("thermal", at - step, at) / 4,
                    gpus=tuple(self.gpu(at, at - step, index) for index in range(gpus)),
                )
            )  # fmt: skip
            at += step
        return found

    def check(self, row: dict[str, Any], start: float, end: float) -> None:
        """Within 1 % of what the story says of this time."""
        for cause in self.spans:
            assert row[f"{cause}_ms"] == pytest.approx(self.held_ms(cause, start, end), rel=0.01, abs=1.0), cause


def put(db: Db, details: list[BoxSample], *, minutes: bool = True, kept_since: datetime | None = None) -> None:
    """As a recorder leaves it: a row for each minute that is over, details as far as they are kept."""
    rows = [roll_up(some) for minute, some in by_minute(details).items()][:-1] if minutes else []
    rows += [sample for sample in details if kept_since is None or sample.at >= kept_since]
    for first in range(0, len(rows), 500):
        writer.write(db, ME, rows[first : first + 500], payload=None, last_error=None)


def end_job(
    db: Db, start: datetime, end: datetime, *, queue: str = "training", box: str = "spark", detail: dict[str, Any] | None = None
) -> int:  # fmt: skip
    """A job of an ingest queue (or the cpu, gpu queues) that has ended, with its event. Returns its id."""
    if queue in ("cpu", "gpu"):
        run = db.value("insert into workflow_runs (workflow_name) values ('w') returning id")
        table, more, values, family = "workflow_node_jobs", "run_id, node_id, node", f"{run}, 'n', 'n'", "node"
    else:
        table, more, values, family = "ingest_jobs", "task_name", "'train'", "ingest"
    elapsed = (end - start).total_seconds()
    job = db.value(
        f"insert into {table} ({more}, queue, status, claimed_box, started_at, finished_at) values "
        f"({values}, {{queue}}, 'completed', {{box}}, {{start}}, {{end}}) returning id",
        queue=queue, box=box, start=start, end=end,
    )  # fmt: skip
    db.run(
        "insert into job_events (family, job_id, event_type, box, queue, elapsed_s, detail, created_at) values "
        "({family}, {job}, 'completed', {box}, {queue}, {elapsed}, {detail}, {end})",
        family=family, job=job, box=box, queue=queue, elapsed=elapsed, detail=_json(detail or {}), end=end,
    )  # fmt: skip
    return int(job)


def _json(value: dict[str, Any]) -> Any:
    from engine.store import Json

    return Json(value)


def stored(db: Db, job: int) -> list[dict[str, Any]]:
    return db.all("select * from job_hardware where job_id = {job} order by gpu_index", job=job)


def ago(db: Db, seconds: float) -> datetime:
    return db.now().replace(microsecond=0) - timedelta(seconds=seconds)


def test_a_job_of_forty_minutes(db: Db) -> None:
    """D9, D11: minutes inside, details at the edges; every cause by itself, none added to another."""
    story = Story(ago(db, 3000), ((10, 1700),), ((300, 330), (900, 1500.5), (2400, 2700)), ((950, 951.25),))
    put(db, story.details(0, 2800))
    start, end = 153.0, 2553.0
    job = end_job(db, story.begin + timedelta(seconds=start), story.begin + timedelta(seconds=end))
    assert JobShares("spark").catch_up(db, db.now()) == 1
    (row,) = stored(db, job)
    story.check(row, start, end)
    assert (row["gpu_index"], row["temp_max_c"], row["power_max_w"], row["samples"]) == (0, 88.0, 100.0, 1200)
    slow = story.held_ms("thermal", start, end) / 1000
    assert row["sm_mean_mhz"] == pytest.approx((slow * 1200 + (2400 - slow) * 2400) / 2400, rel=0.01)


def test_a_job_of_five_hours_whose_details_are_gone(db: Db) -> None:
    story = Story(ago(db, 18600), ((600, 9000),), ((60, 4000), (17000, 18000)))
    put(db, story.details(0, 18500, 10.0), kept_since=story.begin + timedelta(seconds=16200))
    start, end = 95.0, 18121.0
    job = end_job(db, story.begin + timedelta(seconds=start), story.begin + timedelta(seconds=end))
    JobShares("spark").catch_up(db, db.now())
    (row,) = stored(db, job)
    story.check(row, start, end)
    assert row["temp_max_c"] == 88.0 and row["samples"] > 0


def test_a_job_of_a_few_seconds_between_two_samples_of_a_minute(db: Db) -> None:
    """Rows that reach over the start and the end count by their part, in whichever minute they are."""
    story = Story(ago(db, 300), ((0, 300),), ((101, 108),))
    put(db, story.details(0, 280))
    start, end = 97.3, 111.9
    job = end_job(db, story.begin + timedelta(seconds=start), story.begin + timedelta(seconds=end))
    JobShares("spark").catch_up(db, db.now())
    (row,) = stored(db, job)
    story.check(row, start, end)
    assert row["power_ms"] == pytest.approx(14_600) and row["samples"] == 7


@pytest.mark.parametrize("kept", [True, False], ids=["details", "minutes"])
def test_rows_over_an_edge_count_by_their_part(db: Db, kept: bool) -> None:
    """Held back half of every second: the share is half of the job's time, whatever the rows at its edges tell of."""
    story = Story(ago(db, 600), tuple((n, n + 0.5) for n in range(600)))
    put(db, story.details(0, 540), kept_since=None if kept else db.now())
    start, end = (97.3, 111.9) if kept else (94.0, 294.0)
    job = end_job(db, story.begin + timedelta(seconds=start), story.begin + timedelta(seconds=end))
    JobShares("spark").catch_up(db, db.now())
    (row,) = stored(db, job)
    assert row["power_ms"] == pytest.approx((end - start) * 500, rel=0.01)
    assert row["samples"] == (7 if kept else 100)


@pytest.mark.parametrize("shift", [0.0, 1.3], ids=["a sample on the minute", "a sample over the minute"])
def test_a_job_counts_the_same_wherever_in_a_minute_it_begins(db: Db, shift: float) -> None:
    """D11: what a detail over the edge of a minute tells of is not told by that minute's row once more."""
    story = Story(minute_of(ago(db, 900)) + timedelta(seconds=shift), tuple((n, n + 0.5) for n in range(600)))
    put(db, story.details(0, 540))
    edge = 180.0 - shift
    starts = [edge + seconds for seconds in (-31, -10.5, -9.5, -2.2, -1.9, -1.1, -0.5, -0.2, 0, 0.4, 1.1, 1.9)]
    lengths = {
        end_job(db, story.begin + timedelta(seconds=start), story.begin + timedelta(seconds=start + length)): length
        for start in starts
        for length in (11.0, 94.0)
    }
    assert JobShares("spark").catch_up(db, db.now()) == len(lengths)
    found = {row["job_id"]: row for row in db.all("select job_id, power_ms, samples from job_hardware")}
    for job, length in lengths.items():
        assert found[job]["power_ms"] == pytest.approx(length * 500, rel=0.01), (job, length)
        assert found[job]["samples"] == pytest.approx(length / 2, abs=1), (job, length)


@pytest.mark.parametrize("hole", [(0, 0), (40, 61)])
def test_minutes_that_nobody_rolled_up_are_read_from_their_details(db: Db, hole: tuple[int, int]) -> None:
    """D6: a gap is a gap; what a counter says of it counts, and nothing twice."""
    story = Story(ago(db, 900), ((0, 800),), ((200, 500),))
    details = [s for s in story.details(0, 800) if not hole[0] < (s.at - story.begin).total_seconds() / 10 < hole[1]]
    put(db, details, minutes=False)
    if hole[1]:  # the first sample after the hole tells of all of it
        after = next(s for s in details if (s.at - story.begin).total_seconds() >= hole[1] * 10)
        writer.write(db, ME, [BoxSample("spark", after.at, gpus=(story.gpu(610, 400),))], payload=None, last_error=None)
    job = end_job(db, story.begin + timedelta(seconds=31), story.begin + timedelta(seconds=731))
    JobShares("spark").catch_up(db, db.now())
    story.check(stored(db, job)[0], 31, 731)


def test_which_gpus_a_job_had(db: Db) -> None:
    """The one that its lane noted; else those of its lane; else those of the box; the cpu queue has none."""
    story = Story(ago(db, 200))
    put(db, story.details(0, 180, gpus=3))
    start, end = story.begin + timedelta(seconds=60), story.begin + timedelta(seconds=90)
    noted = end_job(db, start, end, queue="gpu", detail={"gpu": {"index": 7, "uuid": "GPU-2"}})
    box_wide = end_job(db, start, end)
    of_none = end_job(db, start, end, queue="cpu")
    unknown = end_job(db, start, end, queue="gpu", detail={"gpu": {"index": 9, "uuid": "GPU-gone"}})
    JobShares("spark").catch_up(db, db.now())
    assert [row["gpu_index"] for row in stored(db, noted)] == [2]
    assert (
        [row["gpu_index"] for row in stored(db, box_wide)] == [0, 1, 2] == [r["gpu_index"] for r in stored(db, unknown)]
    )
    assert [row["gpu_index"] for row in stored(db, of_none)] == [PROCESSOR]
    db.run(
        "insert into worker_heartbeats (box, queue, project, detail) values ('spark', 'gpu', '', {detail})",
        detail=_json({"devices": [{"index": 0, "uuid": "GPU-0"}, {"index": 1, "uuid": None}]}),
    )
    of_lane = end_job(db, start, end, queue="gpu")
    unwritten = end_job(db, start, end, queue="gpu", detail={"gpu": {"index": 2, "uuid": "GPU-2"}})
    assert [row["gpu_index"] for row in share_of(db, unwritten)] == [2]
    JobShares("spark").catch_up(db, db.now())
    assert [row["gpu_index"] for row in stored(db, of_lane)] == [0]


def test_a_running_job_is_told_of_the_card_that_it_runs_on(db: Db) -> None:
    """Both cards of the box stood there, and the heat of the other one."""
    story = Story(ago(db, 200), ((0, 200),))
    put(db, story.details(0, 180, gpus=2))
    run = add_run(db)
    began = {"status": "running", "claimed_box": "spark", "started_at": story.begin + timedelta(seconds=60)}
    jobs = [add_node(db, run, name, queue="gpu", **began) for name in ("one", "two", "three")]
    cards: list[dict[str, Any]] = [{"index": 0, "uuid": "GPU-0"}, {"index": 1, "uuid": "GPU-1"}]
    db.run(
        "insert into worker_heartbeats (box, queue, project, detail) values ('spark', 'gpu', '', {d})",
        d=_json({"devices": cards}),
    )
    assert [row["gpu_index"] for row in share_of(db, jobs[0])] == [0, 1], "a lane that does not tell"
    cards[0]["jobs"], cards[1]["jobs"] = [jobs[0]], [jobs[1]]
    db.run("update worker_heartbeats set detail = {d}", d=_json({"devices": cards}))
    assert [[row["gpu_index"] for row in share_of(db, job)] for job in jobs] == [[0], [1], [0, 1]]


def test_a_box_without_gpus_tells_of_its_processor(db: Db) -> None:
    story = Story(ago(db, 200), thermal=((80, 100),))
    put(db, story.details(0, 180, gpus=0))
    job = end_job(db, story.begin + timedelta(seconds=60), story.begin + timedelta(seconds=120))
    JobShares("spark").catch_up(db, db.now())
    (row,) = stored(db, job)
    assert (row["gpu_index"], row["temp_max_c"], row["sm_mean_mhz"], row["samples"]) == (PROCESSOR, 83.0, 3000.0, 30)
    assert row["thermal_ms"] == pytest.approx(5000) and row["power_ms"] is None and row["brake_ms"] is None


def test_every_long_job_gets_its_row_once_and_short_ones_get_none(db: Db) -> None:
    """Level-triggered: whoever was down when it ended; a second look writes nothing, a restart neither."""
    story = Story(ago(db, 400), ((0, 400),))
    put(db, story.details(0, 380))
    at = story.begin + timedelta(seconds=100)
    long = end_job(db, at, at + timedelta(seconds=30))
    old = end_job(db, at - timedelta(hours=20), at - timedelta(hours=19))
    short = end_job(db, at, at + timedelta(seconds=9.5))
    other = end_job(db, at, at + timedelta(seconds=30), box="elsewhere")
    fresh = end_job(db, at + timedelta(seconds=200), db.now())
    recorder = JobShares("spark")
    assert recorder.catch_up(db, story.begin + timedelta(seconds=380)) == 2
    assert not stored(db, short) and not stored(db, other)
    assert not stored(db, fresh), "it ended after the last sample"
    assert stored(db, old)[0]["samples"] == 0 and stored(db, old)[0]["power_ms"] is None, "nothing was recorded: n/a"
    assert recorder.catch_up(db, story.begin + timedelta(seconds=380)) == 0
    assert JobShares("spark").catch_up(db, db.now()) == 1 and stored(db, fresh)
    assert len(stored(db, long)) == 1


def test_a_running_job_tells_so_far(db: Db) -> None:
    story = Story(ago(db, 120), ((0, 200),))
    put(db, story.details(0, 118))
    job = db.value(
        "insert into ingest_jobs (task_name, queue, status, claimed_box, started_at) "
        "values ('train', 'training', 'running', 'spark', {at}) returning id",
        at=story.begin + timedelta(seconds=20),
    )
    (row,) = share_of(db, str(job))
    assert row["power_ms"] == pytest.approx(98_000, rel=0.01) and row["samples"] == 49
    assert not stored(db, job)
    queued = db.value("insert into ingest_jobs (task_name) values ('t') returning id")
    assert share_of(db, queued) == [] == share_of(db, 999)
    done = end_job(db, story.begin, story.begin + timedelta(seconds=60))
    assert share_of(db, done)[0]["power_ms"] == pytest.approx(60_000, rel=0.01)
    JobShares("spark").catch_up(db, db.now())
    assert share_of(db, done)[0]["samples"] == stored(db, done)[0]["samples"] == 30


class Still:
    """A source that has nothing to say."""

    def facts(self) -> BoxFacts:
        return BoxFacts("spark", "m-1", simulated=True)

    def sample(self, dt_s: float) -> BoxSample:
        return BoxSample("spark", datetime.now().astimezone())

    def close(self) -> None:
        pass


def test_the_recorder_writes_them(store: Store) -> None:
    with store.connect("test") as db:
        story = Story(ago(db, 100), ((0, 100),))
        put(db, story.details(0, 90))
        job = end_job(db, story.begin + timedelta(seconds=30), story.begin + timedelta(seconds=60))
        run_recorder(store, Still(), "spark", threading.Event(), once=True)
        assert stored(db, job)[0]["power_ms"] == pytest.approx(30_000)


def at(seconds: float) -> datetime:
    return datetime.fromisoformat("2026-11-29T12:00:00+00:00") + timedelta(seconds=seconds)


def test_sums_are_never_negative_and_never_longer_than_the_job() -> None:
    """D11: a counter that fell, or one that ran ahead."""
    pieces = [Piece(at(0), at(10), power_ms=-500.0, thermal_ms=12_000.0), Piece(at(10), at(20), thermal_ms=9_000.0)]
    assert add_up(pieces, at(0), at(20)) | {"brake_ms": None} == {
        "power_ms": 0.0, "thermal_ms": 20_000.0, "brake_ms": None, "temp_max_c": None, "power_max_w": None,
        "sm_mean_mhz": None,
    }  # fmt: skip
    assert add_up([], at(0), at(20))["power_ms"] is None, "nobody looked: not 0"


def test_a_minute_counts_once() -> None:
    details = [Piece(at(n), at(n + 2), 2000.0) for n in range(0, 300, 2)]
    minutes = {at(60 * n): Piece(at(60 * n), at(60 * n + 60), 60_000.0, instant=False) for n in range(4)}
    for start, end in ((10, 250), (60, 240), (0, 300), (70, 100), (119, 121), (60, 120)):
        found = choose(minutes, details, at(start), at(end))
        assert add_up(found, at(start), at(end))["power_ms"] == pytest.approx((end - start) * 1000)


def test_details_are_read_only_where_minutes_do_not_tell() -> None:
    covered = {at(60), at(120), at(240)}
    ahead = timedelta(seconds=30)
    assert uncovered(at(10), at(310), covered) == [(at(10), at(60)), (at(180), at(240)), (at(300), at(310) + ahead)]
    assert uncovered(at(60), at(120), {at(60)}) == [(at(120), at(120) + ahead)]
    assert uncovered(at(10), at(40), set()) == [(at(10), at(40) + ahead)]
    assert minute_of(at(61)) == at(60)
