"""What the recorder writes, how often it asks the database, how long it keeps it, and the hour of a large fleet."""

from __future__ import annotations

import signal
import threading
from datetime import datetime, timedelta
from typing import Any

import pytest

from engine import config
from engine.store import Db, Store
from engine.telemetry import history, hour, writer
from engine.telemetry.recorder import run_recorder
from engine.telemetry.rollup import by_minute, minute_of, roll_up
from engine.telemetry.sample import BOX_FOLDED, FOLDED_RANGES, BoxFacts, BoxSample, GpuSample
from engine.telemetry.together import TOGETHER, fold
from flightdeck.model.metrics import METRICS
from flightdeck.model.traces import History
from tests.support import Processes, command, eventually

ME = writer.Recorder("box00", "a" * 16, 1, "1")
BOXES = hour.LARGE_FLEET + 2


def cards(n: int, **changes: Any) -> tuple[GpuSample, ...]:
    return tuple(
        GpuSample(
            index, f"GPU-{index}", util_pct=90.0 + index, temp_c=50.0 + n + index, power_w=300.0 - index, sm_mhz=1500.0,
            hw_brake_ms=float(index), throttle_source="counter" if index else "mask", **changes,
        )
        for index in range(3)
    )  # fmt: skip


def fleet(db: Db, now: datetime) -> None:
    """An hour of more boxes than are read card by card; one has no GPU, one is dead since a quarter of an hour."""
    for number in range(BOXES):
        name = f"box{number:02}"
        writer.write_facts(db, BoxFacts(name))
        end = now - timedelta(minutes=15) if number == 1 else now
        details = [
            BoxSample(name, end - timedelta(seconds=2 * n), cpu_pct=50.0 + n % 7, power_ms=10.0, gpus=cards(n % 5) if number else ())
            for n in range(100)
        ]  # fmt: skip
        minutes = [roll_up(rows) for minute, rows in by_minute(details).items() if minute < minute_of(end)]
        writer.write(db, ME, [*minutes, *details], payload=None, last_error=None)


def drawn(rows: list[BoxSample]) -> dict[str, Any]:
    """What a deck makes of an hour: every trace, and its newest sample."""
    history_of = History()
    history_of.load(rows)
    rings = {m.key: (list(r.lo), list(r.hi), list(r.stamp)) for m in METRICS for r in [history_of.rings[m.key]]}
    rings["throttle"] = ([list(ms) for ms in history_of.throttle.ms.values()], [], list(history_of.throttle.stamp))
    assert history_of.latest is not None
    return rings | {"latest": history_of.latest.gpus, "mask": history_of.sampled_source}


@pytest.mark.parametrize("foreign", [False, True], ids=["recorded", "foreign"])
def test_the_hour_of_a_large_fleet_draws_the_same_as_card_by_card(
    db: Db, foreign: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet(db, db.now())
    if foreign:  # rows of a program that knows nothing of the columns about all cards
        db.run(f"update flight_recorder set {', '.join(f'{column} = null' for column in BOX_FOLDED)}")
    together = history.hour(db)
    monkeypatch.setattr(hour, "LARGE_FLEET", 1000)
    apart = history.hour(db)
    assert together.keys() == apart.keys() and len(together) == BOXES
    assert max(len(row.gpus) for row in together["box05"][:-1]) == 2 < len(together["box05"][-1].gpus)
    assert {card.gpu_index for row in together["box05"][:-1] for card in row.gpus} == {TOGETHER}
    for box, rows in together.items():
        assert [(row.tier, row.at) for row in rows] == [(row.tier, row.at) for row in apart[box]]
        assert drawn(rows) == drawn(apart[box]), box
        assert history.hour_summary(rows) == history.hour_summary(apart[box])


def test_a_large_fleet_is_read_without_its_cards(db: Db) -> None:
    """All but the newest of each box: what 48,000 rows would say stands on the box's own."""
    fleet(db, db.now())
    ran: list[str] = []
    original = db.all

    def spy(sql: str, /, **params: Any) -> list[dict[str, Any]]:
        rows = original(sql, **params)
        ran.append(f"{len(rows)} {sql}")
        return rows

    db.all = spy  # type: ignore[method-assign]
    history.hour(db, [f"box{number:02}" for number in range(1, BOXES)])
    of_cards = [text for text in ran if "flight_recorder_gpu" in text]
    assert sum(int(text.split()[0]) for text in of_cards) == 3 * (BOXES - 1)


def test_two_seconds_of_one_card_are_still_there_in_the_minute_of_eight() -> None:
    """The spike of one card of one sample, in the card's minute row and in the one about all of them."""
    start = datetime.fromisoformat("2026-03-01T12:00:00+00:00")
    samples = [
        BoxSample("b", start + timedelta(seconds=2 * n), gpus=tuple(
            GpuSample(i, f"G{i}", temp_c=94.5 if (n, i) == (7, 5) else 60.0, power_w=12.0 if (n, i) == (9, 2) else 400.0)
            for i in range(8)
        ))
        for n in range(30)
    ]  # fmt: skip
    row = roll_up(samples)
    assert row.gpus[5].high["temp_c"] == 94.5 and row.gpus[4].high["temp_c"] == 60.0
    found = fold(row.gpus)
    assert (found["gpu_temp_c_max"], found["gpu_temp_c_min"]) == (94.5, 60.0)
    assert (found["gpu_power_w_min"], found["gpu_power_w_max"]) == (12.0, 400.0)
    assert fold(()) == {} and fold((GpuSample(0),)) == {}, "nothing known is nothing written"


def test_cards_that_do_not_answer_do_not_count_as_zero() -> None:
    """D6."""
    found = fold((GpuSample(0, temp_c=60.0), GpuSample(1, state="lost"), GpuSample(2, temp_c=float("nan"))))
    assert found == {"gpu_temp_c_min": 60.0, "gpu_temp_c_max": 60.0}
    assert {f"gpu_{metric}_min" for metric in FOLDED_RANGES} < set(BOX_FOLDED)


class Looks:
    """A source that only counts."""

    def __init__(self) -> None:
        self.count = 0

    def facts(self) -> BoxFacts:
        return BoxFacts("lab", "m")

    def sample(self, dt_s: float) -> BoxSample:
        self.count += 1
        return BoxSample("lab", datetime.now().astimezone(), load1=1.0, gpus=cards(1))

    def close(self) -> None:
        pass


class CountingStore(Store):
    """Counts the round trips of the recorder's connection, by statement."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.trips: list[str] = []

    def connect(self, name: str = "engine", **options: Any) -> Db:
        db = super().connect(name, **options)
        if name == "recorder":
            for method in ("all", "run", "run_many"):
                setattr(db, method, self._counted(getattr(db, method)))
            transaction = db.transaction

            def counted() -> Any:
                self.trips.extend(("begin", "commit"))
                return transaction()

            db.transaction = counted  # type: ignore[method-assign]
        return db

    def _counted(self, method: Any) -> Any:
        def call(sql: str, /, *args: Any, **params: Any) -> Any:
            self.trips.append(sql)
            return method(sql, *args, **params)

        return call


def test_a_sample_is_one_round_trip(pg_store: Store) -> None:
    """Sixty samples are sixty statements at most, but for a few that come with the minute and with ended jobs."""
    store, source, stop = CountingStore(pg_store.url), Looks(), threading.Event()
    thread = threading.Thread(target=run_recorder, args=(store, source, "lab", stop), kwargs={"cadence_s": 0.05})
    thread.start()
    try:
        with pg_store.connect("test") as db:
            written = "select count(*) from flight_recorder where tier = 'detail'"
            eventually(lambda: db.value(written) >= 5, 60, "samples")
            trips, looks = len(store.trips), db.value(written)
            eventually(lambda: db.value(written) >= looks + 60, 60, "more samples")
            asked, took = store.trips[trips:], db.value(written) - looks
    finally:
        stop.set()
        thread.join(60)
    samples = [text for text in asked if "hw_metrics" in text]
    assert 0 < len(samples) <= took + 1, "a backlog shares a statement, a sample never needs two"
    assert len(asked) - len(samples) <= 25, asked


def test_how_long_samples_are_kept_is_a_setting(db: Db) -> None:
    now = db.now()
    rows = [BoxSample("box00", now - timedelta(minutes=minutes)) for minutes in (1, 20, 50, 200)]
    minute = roll_up([BoxSample("box00", now - timedelta(days=2))])
    writer.write(db, ME, [*rows, minute], payload=None, last_error=None)
    count = "select count(*) from flight_recorder"
    config.configure(retention_detail_hours=0, retention_minutes_days=0)
    assert writer.prune(db, "box00", *writer.kept_seconds()) == 0 and db.value(count) == 5, "0 keeps for ever"
    config.configure(retention_detail_hours=0.5, retention_minutes_days=7)
    assert writer.prune(db, "box00", *writer.kept_seconds()) == 2 and db.value(count) == 3
    config.configure(retention_minutes_days=1)
    assert writer.prune(db, "box00", *writer.kept_seconds()) == 1 and db.value(count) == 2
    config.configure(retention_detail_hours=48, retention_minutes_days=0.01)
    assert writer.prune(db, "box00", *writer.kept_seconds()) == 0, "details are never kept shorter than they are to be"


def test_a_read_only_database_is_tried_again_until_it_is_not(pg_store: Store, processes: Processes) -> None:
    """One line says so; nothing is lost but the time before the first connection."""
    with pg_store.connect("test") as db:
        name = db.value("select current_database()")
        db.run(f"alter database {name} set default_transaction_read_only = on")
        process = processes.spawn(command("queue-recorder", "--db", pg_store.url, "--box", "lab"))
        eventually(lambda: "read-only" in processes.log(process), 60, "its word")
        db.run(f"alter database {name} reset default_transaction_read_only")
        eventually(lambda: db.value("select count(*) from flight_recorder"), 60, "a sample")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0 and processes.log(process).count("read-only") == 1
