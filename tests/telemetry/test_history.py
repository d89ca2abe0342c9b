"""Writing and reading the flight recorder, on both stores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from engine.errors import Conflict
from engine.store import Db, Store
from engine.telemetry import history, writer
from engine.telemetry.history import HourSummary, hour_summary
from engine.telemetry.rollup import by_minute, minute_of, roll_up
from engine.telemetry.sample import BoxFacts, BoxSample, GpuFacts, GpuSample
from tests.support import eventually

ME = writer.Recorder("spark", "00000000000000aa", 4711, "1.0")
FACTS = BoxFacts(
    "spark", "m-1", "NVIDIA GB10", "Grace", 20, 124000.0,
    (GpuFacts(0, "GPU-1", "NVIDIA GB10", "nvidia", 124000.0, True, None, 85.0, 90.0, 3003.0),), "580.95", "6.11",
)  # fmt: skip


def sample(at: datetime, box: str = "spark", **values: object) -> BoxSample:
    gpu = GpuSample(
        0, "GPU-1", util_pct=96.0, temp_c=80.0, power_w=67.5, throttle_mask=4, throttle_source="counter",
        sw_power_ms=500.0, brakes=1,
    )  # fmt: skip
    base = BoxSample(
        box, at, cpu_pct=50.0, cpu_temp_c=70.0, power_ms=500.0, brakes=1, zone_max_name="acpitz", gpus=(gpu,),
        sensors={"zones": {"acpitz": 71.5}},
    )  # fmt: skip
    return replace(base, **values)  # type: ignore[arg-type]


def put(db: Db, *samples: BoxSample, payload: str | None = None) -> None:
    by_box: dict[str, list[BoxSample]] = {}
    for one in samples:
        by_box.setdefault(one.box, []).append(one)
    for box, some in by_box.items():
        writer.write(db, replace(ME, box=box), some, payload=payload, last_error=None)


def test_a_sample_comes_back_as_it_went_in(db: Db) -> None:
    at = db.now().replace(microsecond=123456)
    writer.write_facts(db, FACTS)
    one = sample(at)
    put(db, one)
    assert history.details(db, "spark", at) == [one]
    assert history.latest(db) == {"spark": one}
    assert history.newest(db, "spark") == at
    assert history.box_facts(db) == {"spark": FACTS}
    row = db.one("select pid, last_seen, last_error from services where kind = 'recorder' and box = 'spark'")
    assert row and row["pid"] == 4711 and abs((row["last_seen"] - db.now()).total_seconds()) < 60


def test_a_minute_row_comes_back_with_its_range(db: Db) -> None:
    at = minute_of(db.now())
    row = roll_up([sample(at), sample(at + timedelta(seconds=2), cpu_pct=90.0)])
    put(db, row)
    assert history.hour(db, ["spark"], every_column=True)["spark"] == [row]
    drawn = history.hour(db, ["spark"])["spark"][0]
    assert (drawn.cpu_pct, drawn.low["cpu_pct"], drawn.high["cpu_pct"]) == (70.0, 50.0, 90.0)
    assert drawn.gpus[0].high["power_w"] == 67.5 and drawn.sensors is None


def test_the_same_rows_again_change_nothing(db: Db) -> None:
    """A retry after a lost answer, a minute that is rolled up again."""
    at = db.now()
    rows = [sample(at), roll_up([sample(minute_of(at))])]
    put(db, *rows)
    put(db, *rows)
    put(db, replace(rows[1], cpu_pct=10.0))
    assert db.value("select count(*) from flight_recorder") == 2
    assert db.value("select count(*) from flight_recorder_gpu") == 2
    assert db.value("select cpu_pct from flight_recorder where tier = 'minute'") == 10.0


def test_two_minute_rows_of_one_minute_in_one_batch(db: Db) -> None:
    """After the clock was set back: the later one stands, nothing fails."""
    row = roll_up([sample(minute_of(db.now()))])
    put(db, row, replace(row, cpu_pct=1.0))
    assert db.value("select cpu_pct from flight_recorder") == 1.0


def test_odd_sensors_do_not_stop_the_recorder(db: Db) -> None:
    """D31: NaN and NUL are refused by JSON columns; they never get there."""
    put(db, sample(db.now(), sensors={"zones": {"a\0b": float("nan")}, "odd": {1, 2}}, zone_max_name="x\0y"))
    assert db.value("select zone_max_name from flight_recorder") == "xy"
    assert db.value("select sensors from flight_recorder")["zones"] == {"ab": None}


def test_an_hour_is_minutes_and_then_the_detail_since(db: Db) -> None:
    now = minute_of(db.now()) + timedelta(seconds=30)
    start = now - timedelta(minutes=10)
    details = [sample(start + timedelta(seconds=2 * n), box) for n in range(315) for box in ("spark", "idle")]
    minutes = [
        roll_up(rows)
        for box in ("spark", "idle")
        for minute, rows in by_minute(d for d in details if d.box == box).items()
        if minute < minute_of(now)
    ]
    writer.write_facts(db, FACTS)
    put(db, *details, *minutes, sample(now - timedelta(hours=2)))
    found = history.hour(db)
    assert set(found) == {"spark", "idle"}
    for rows in found.values():
        assert [row.at for row in rows] == sorted(row.at for row in rows)
        tiers = [row.tier for row in rows]
        assert tiers.count("minute") == 10 and tiers.count("detail") == 30
        assert rows[9].at + timedelta(minutes=1) <= rows[10].at
        assert all(len(row.gpus) == 1 for row in rows)
    assert set(history.hour(db, ["idle"])) == {"idle"}
    assert history.hour(db, ["nobody"]) == {"nobody": []}


def test_a_new_box_has_only_details_and_a_dead_one_keeps_its_last_hour(db: Db) -> None:
    now = db.now()
    put(db, sample(now, "new"), sample(now - timedelta(minutes=20), "dead"))
    writer.write_facts(db, replace(FACTS, box="new"))
    writer.write_facts(db, replace(FACTS, box="dead"))
    assert {box: len(rows) for box, rows in history.hour(db).items()} == {"new": 1, "dead": 1}


def test_only_what_is_new_is_read(db: Db) -> None:
    now = db.now()
    old, new, newer = (sample(now + timedelta(seconds=s)) for s in (-4, -2, 0))
    put(db, old, new, newer, roll_up([old]))
    assert [row.at for row in history.since(db, old.at)] == [new.at, newer.at]
    assert [row.at for row in history.since(db, old.at, limit=1)] == [new.at]
    assert history.since(db, newer.at) == [] and history.since(db, old.at, ["other"]) == []
    with pytest.raises(ValueError, match="no time zone"):
        history.since(db, datetime(2026, 1, 1))


def test_the_summary_of_an_hour() -> None:
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    rows = [
        sample(at),
        roll_up([sample(at), sample(at, gpus=(GpuSample(0, power_w=99.0, temp_c=91.0),), thermal_ms=88.0)]),
    ]
    assert hour_summary(rows) == HourSummary(1.5, 0.1, 3, 99.0, 91.0)
    assert hour_summary([]) == hour_summary([BoxSample("b", at)]) == HourSummary(None, None, None, None, None)


def test_what_is_too_old_goes_in_small_batches(db: Db) -> None:
    """Details after an hour, minutes after a week; the last hour of a box without a recorder stays a week."""
    now = db.now()
    kept = [
        sample(now - timedelta(minutes=59)),
        roll_up([sample(now - timedelta(days=6))]),
        sample(now - timedelta(hours=5), "dead"),
    ]
    gone = [sample(now - timedelta(minutes=61, seconds=n)) for n in range(2 * writer.PRUNE_ROWS + 5)]
    gone += [roll_up([sample(now - timedelta(days=8))]), sample(now - timedelta(days=8), "dead")]
    put(db, *kept, *gone)
    assert writer.prune(db, "spark", *writer.kept_seconds()) == 2 * len(gone)
    assert writer.prune(db, "spark", *writer.kept_seconds()) == 0
    left = db.all("select box, tier from flight_recorder order by box, tier")
    assert left == [
        {"box": "dead", "tier": "detail"},
        {"box": "spark", "tier": "detail"},
        {"box": "spark", "tier": "minute"},
    ]
    assert db.value("select count(*) from flight_recorder_gpu") == 3


def test_a_second_machine_of_the_same_name_is_refused_with_both_named(db: Db) -> None:
    writer.write_facts(db, FACTS)
    other = replace(FACTS, machine_id="m-2", cpu_model="Ryzen")
    with pytest.raises(Conflict, match=r"m-1.*Grace.*m-2.*Ryzen"):
        writer.claim_name(db, other)
    writer.claim_name(db, other, replace=True)
    writer.claim_name(db, FACTS)
    writer.claim_name(db, replace(FACTS, machine_id=""))
    writer.claim_name(db, replace(other, box="another"))


def test_a_description_that_somebody_gave_stays(db: Db) -> None:
    writer.write_facts(db, FACTS)
    db.run("update boxes set description = 'under the desk'")
    writer.write_facts(db, replace(FACTS, description=None))
    assert history.box_facts(db)["spark"].description == "under the desk"


def test_signing_on_clears_the_lines_of_dead_recorders_of_this_box(db: Db) -> None:
    for incarnation, box in (("1" * 16, "spark"), ("2" * 16, "other")):
        writer.sign_on(db, replace(ME, incarnation=incarnation, box=box))
    writer.sign_on(db, ME)
    rows = db.all("select box, incarnation from services order by box")
    assert rows == [{"box": "other", "incarnation": "2" * 16}, {"box": "spark", "incarnation": ME.incarnation}]
    writer.sign_off(db, ME)
    assert db.value("select count(*) from services") == 1


@pytest.fixture
def listener(pg_store: Store) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(pg_store.url, autocommit=True) as raw:
        raw.execute("listen hw_metrics")
        yield raw


def test_a_sample_is_one_statement_and_one_notification(
    pg_store: Store, listener: psycopg.Connection[tuple[object, ...]]
) -> None:
    """Both tables, the box, the service and the payload in one round trip that commits or not as a whole."""
    with pg_store.connect("test") as db:
        writer.write_facts(db, FACTS)
        one = sample(db.now())
        ran = []
        original = db.all
        db.all = lambda *args, **kwargs: ran.append(args) or original(*args, **kwargs)  # type: ignore[method-assign,assignment,func-returns-value]
        put(db, one, payload=one.payload())
        assert len(ran) == 1
        with pytest.raises(psycopg.Error):
            put(db, sample(db.now() + timedelta(seconds=2), gpus=(GpuSample(0, state="molten"),)), payload="{}")
        assert db.value("select count(*) from flight_recorder") == 1
    told = eventually(lambda: list(listener.notifies(timeout=0.1, stop_after=1)), what="hw_metrics")
    assert BoxSample.from_payload(json.loads(told[0].payload)) == one
    assert list(listener.notifies(timeout=0.2)) == [], "a refused sample was told"


PLAN_BOXES, PLAN_GPUS = 100, 2


def test_the_hour_of_a_hundred_boxes_is_read_by_index(pg_store: Store) -> None:
    """index scans only, so that what is older than the hour costs nothing."""
    with pg_store.connect("test", timeout_s=60) as db:
        db.run("insert into boxes (box) select 'box' || n from generate_series(1, {n}) n", n=PLAN_BOXES)
        for table, more, cross in (
            ("flight_recorder", "", ""),
            ("flight_recorder_gpu", ", gpu_index", f"cross join generate_series(0, {PLAN_GPUS - 1}) g"),
        ):
            column = ", g" if cross else ""
            db.run(
                f"insert into {table} (box, at, tier{more}) select 'box' || b, now() - make_interval(mins => m), 'minute'{column} "
                f"from generate_series(0, 119) m cross join generate_series(1, {{n}}) b {cross}", n=PLAN_BOXES,
            )  # fmt: skip
            db.run(
                f"insert into {table} (box, at, tier{more}) select 'box' || b, now() - make_interval(secs => 2 * s), 'detail'{column} "
                f"from generate_series(0, 75) s cross join generate_series(1, {{n}}) b {cross}", n=PLAN_BOXES,
            )  # fmt: skip
            db.run(f"analyze {table}")
        ran: list[tuple[str, dict[str, object]]] = []
        original = db.all

        def spy(sql: str, /, **params: object) -> list[dict[str, object]]:
            ran.append((sql, params))
            return original(sql, **params)

        db.all = spy  # type: ignore[method-assign]
        found = history.hour(db)
        history.since(db, db.now() - timedelta(seconds=4))
        history.latest(db)
        db.all = original  # type: ignore[method-assign]
        assert sum(len(rows) for rows in found.values()) >= 60 * PLAN_BOXES
        for sql, params in ran:
            if "flight_recorder" in sql:
                plan = "\n".join(str(row["QUERY PLAN"]) for row in db.all("explain " + sql, **params))
                assert "Seq Scan on flight_recorder" not in plan, plan
