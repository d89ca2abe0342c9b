"""What a look at the entries does to the rows, on both stores."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

import engine
from engine import config, registry
from engine.scheduler import entries
from engine.scheduler.ticker import Ticker
from engine.store import Db, Store
from tests.scheduler.support import (
    EACH_MINUTE,
    EACH_SECOND,
    NEVER,
    each_once,
    entry,
    fires,
    jobs,
    look,
    put,
    set_back,
)


@pytest.fixture
def ticker() -> Ticker:
    engine.register_ingest_task("noop", lambda: None)
    engine.register_ingest_task("thrice", lambda: None, budget_s=9.0, max_attempts=3)
    return Ticker("", "b1")


def warnings(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if f"schedule {name}:" in r.getMessage()]


def test_a_due_tick_becomes_one_job_with_its_fire(db: Db, ticker: Ticker) -> None:
    put(db, "hourly", "0 * * * *", ago_s=3600, task_name="thrice", args={"path": "a"})
    look(db, ticker)
    (job,) = jobs(db)
    assert (job["task_name"], job["queue"], job["args"], job["project"]) == ("thrice", "default", {"path": "a"}, "")
    assert (job["max_attempts"], job["budget_s"], job["status"], job["run_after"]) == (3, 9.0, "queued", None)
    ((_, tick),) = fires(db)
    assert tick.minute == tick.second == 0 and timedelta(0) <= db.now() - tick < timedelta(hours=1)
    assert entry(db, "hourly")["last_tick"] == tick
    each_once(db)


def test_every_restart_enqueues_the_boot_set_again(db: Db, ticker: Ticker) -> None:
    """Q33: here nothing comes again, not from a new scheduler, not where a look was interrupted half-way."""
    put(db, "hourly", "0 * * * *", ago_s=3600)
    look(db, ticker)
    for _ in range(3):
        look(db, Ticker("", "b1"))
    assert len(jobs(db)) == 1
    set_back(
        db, "hourly", 3600
    )  # as if last_tick had not been written: the fire alone keeps the tick from coming twice
    look(db, Ticker("", "b2"))
    assert len(jobs(db)) == 1 and len(fires(db)) == 1


def test_a_new_entry_starts_from_now(db: Db, ticker: Ticker) -> None:
    put(db, "daily", "30 2 * * *")
    look(db, ticker)
    assert jobs(db) == [] and abs(db.now() - entry(db, "daily")["last_tick"]) < timedelta(minutes=1)
    put(db, "later", EACH_SECOND)  # written between two looks: no tick since then is lost
    before = db.now()
    look(db, ticker)
    assert entry(db, "later")["last_tick"] <= before


@pytest.mark.parametrize(("misfire", "expected"), [("skip", 0), ("one", 1), ("all", 5)])
def test_ticks_that_nobody_saw_follow_the_misfire_policy(
    db: Db, ticker: Ticker, misfire: str, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    now = db.now()
    hour, half = now.hour, (now.minute + 30) % 60  # half an hour from any moment at which a tick would be in time
    put(db, "e", f"{half} * * * *", ago_s=5 * 3600, misfire=misfire)
    look(db, ticker)
    assert len(jobs(db)) == expected, (hour, half)
    each_once(db)
    assert timedelta(minutes=29) < db.now() - entry(db, "e")["last_tick"] < timedelta(minutes=32)
    assert len(warnings(caplog, "e")) == 1 and f"misfire {misfire}" in warnings(caplog, "e")[0]
    look(db, ticker)
    assert len(jobs(db)) == expected


def test_a_hundred_are_made_up_for_at_most(db: Db, ticker: Ticker) -> None:
    put(db, "e", EACH_SECOND, ago_s=86_400, misfire="all")
    look(db, ticker)
    assert len(jobs(db)) == 100
    each_once(db)


def test_jitter_is_a_start_in_the_future_that_all_agree_on(db: Db, ticker: Ticker) -> None:
    put(db, "e", EACH_SECOND, ago_s=3, jitter_s=3600.0)
    look(db, ticker)
    rows = db.all(
        "select f.tick, j.run_after from schedule_fires f join ingest_jobs j on j.id = f.job_id order by f.tick"
    )
    assert len(rows) >= 2
    waits = [(row["run_after"] or row["tick"]) - row["tick"] for row in rows]
    assert len(set(waits)) == len(waits) and all(timedelta(0) <= w < timedelta(hours=1) for w in waits)


def test_one_bad_entry_stops_the_loop_for_all(db: Db, ticker: Ticker, caplog: pytest.LogCaptureFixture) -> None:
    """Q21: here it fails alone, with the reason in ``errors`` and once in the log."""
    put(db, "a_good", EACH_SECOND, ago_s=2)
    put(db, "b_cron", "61 * * * *")
    put(db, "c_zone", tz="Mars/Olympus")
    put(db, "d_queue", EACH_SECOND, ago_s=2, queue="nowhere")
    put(db, "e_gpu", EACH_SECOND, ago_s=2, queue="gpu")
    put(db, "f_task", EACH_SECOND, ago_s=2, task_name="nobody")
    put(db, "g_args", EACH_SECOND, ago_s=2, args="[1, 2]")
    put(db, "h_big", EACH_SECOND, ago_s=2, args={"x": "x" * (2**20)})
    put(db, "i_never", "* * */20 * 1L")
    put(db, "z_good", EACH_SECOND, ago_s=2)
    look(db, ticker)
    assert {name for name, _ in fires(db)} == {"a_good", "z_good"}
    each_once(db)
    said = {
        "b_cron": "Bad minute",
        "c_zone": "unknown time zone 'Mars/Olympus'",
        "d_queue": "unknown queue 'nowhere'",
        "e_gpu": "queue 'gpu' holds the nodes",
        "f_task": "task 'nobody' is not registered",
        "g_args": "must be a mapping",
        "h_big": "more than the 1,048,576 allowed",
        "i_never": "never comes true",
    }
    assert ticker.errors.keys() == said.keys()
    for name, text in said.items():
        assert text in ticker.errors[name] and len(ticker.errors[name].splitlines()) == 1
    look(db, ticker)
    look(db, ticker)
    assert all(len(warnings(caplog, name)) == 1 for name in said), "told once, not at every look"

    db.run("update schedules set queue = 'default' where name = 'd_queue'")
    db.run("delete from schedules where name = 'b_cron'")
    look(db, ticker)
    assert fires(db, "d_queue") and not {"d_queue", "b_cron"} & ticker.errors.keys(), "mended, it goes on"


def test_a_row_that_the_database_refuses_fails_alone(db: Db, ticker: Ticker) -> None:
    """Q21: the refusal comes from below, in the middle of the entry's transaction."""
    put(db, "bad", EACH_SECOND, ago_s=2, args={"poison": True})
    put(db, "good", EACH_SECOND, ago_s=2)
    if db.kind == "postgresql":
        db.run("alter table ingest_jobs add constraint no_poison check (args::text not like '%poison%')")
    else:
        db.raw.execute(
            "create trigger no_poison before insert on ingest_jobs when new.args like '%poison%' "
            "begin select raise(abort, 'no_poison'); end"
        )
    look(db, ticker)
    assert {name for name, _ in fires(db)} == {"good"}, "the fire of the refused job is taken back"
    assert "no_poison" in ticker.errors["bad"]
    each_once(db)


def test_odd_times_in_last_tick_spoil_nothing(db: Db, ticker: Ticker) -> None:
    put(db, "good", EACH_SECOND, ago_s=2)
    put(db, "old", "0 * * * *")
    db.run("update schedules set last_tick = {moment} where name = 'old'", moment=datetime(1, 1, 2, tzinfo=UTC))
    put(db, "odd", "0 * * * *")
    odd = "'infinity'" if db.kind == "postgresql" else "'one of these days'"
    db.run(f"update schedules set last_tick = {odd} where name = 'odd'")
    look(db, ticker)
    look(db, ticker)
    assert fires(db, "good")
    if db.kind == "postgresql":
        assert not ticker.errors, "infinity counts as none: from now"
    else:
        assert "is not a time" in ticker.errors["odd"]


def test_an_entry_that_is_off_is_not_fired_and_goes_on_from_when_it_is_on_again(db: Db, ticker: Ticker) -> None:
    put(db, "e", EACH_MINUTE, ago_s=7200, misfire="all", enabled=False)
    look(db, ticker)
    assert jobs(db) == []
    db.run("update schedules set enabled = {true} where name = 'e'")
    look(db, ticker)
    assert len(jobs(db)) <= 1, "what passed while it was off was not missed"


def test_other_times_by_plain_sql_count_from_the_change(db: Db, ticker: Ticker) -> None:
    """An edit must not look like hours of missed ticks."""
    put(db, "e", NEVER, ago_s=86_400, misfire="all")
    put(db, "zone", NEVER, ago_s=86_400, misfire="all")
    look(db, ticker)
    assert jobs(db) == []
    changed = db.now()
    db.run("update schedules set cron = {cron} where name = 'e'", cron=EACH_SECOND)
    db.run("update schedules set tz = 'Asia/Tokyo' where name = 'zone'")
    look(db, ticker)
    assert all(tick >= changed - timedelta(seconds=1) for _, tick in fires(db))
    assert entry(db, "zone")["last_tick"] >= changed - timedelta(seconds=1)
    set_back(db, "e", 3)  # who moves last_tick means it
    look(db, ticker)
    assert len(fires(db, "e")) >= 3


def test_only_its_own_project(db: Db, ticker: Ticker) -> None:
    put(db, "e", EACH_SECOND, ago_s=2, project="leads")
    put(db, "e", EACH_SECOND, ago_s=2, project="lead_")
    look(db, ticker)
    assert jobs(db) == []
    look(db, Ticker("leads", "b1"))
    assert {job["project"] for job in jobs(db)} == {"leads"}


def test_a_row_that_another_scheduler_holds_is_left_to_it(pg_store: Store, ticker: Ticker) -> None:
    with pg_store.connect("one") as one, pg_store.connect("two") as two:
        put(one, "held", EACH_SECOND, ago_s=2)
        put(one, "free", EACH_SECOND, ago_s=2)
        with one.transaction():
            one.all("select 1 from schedules where name = 'held' for update")
            look(two, ticker)
            assert {name for name, _ in fires(two)} == {"free"} and not ticker.errors
        look(two, ticker)
        assert fires(two, "held")


# Clocks.


class SteppedTicker(Ticker):
    """As if the database's clock had been set by ``step_s`` since the last look."""

    def pretend_step(self, step_s: float) -> None:
        assert self._seen is not None
        self._seen.database -= timedelta(seconds=step_s)


def test_a_database_clock_that_is_set_forward_fires_no_storm(
    db: Db, ticker: Ticker, caplog: pytest.LogCaptureFixture
) -> None:
    stepped = SteppedTicker("", "b1")
    put(db, "e", "0 * * * *", misfire="all")
    look(db, stepped)
    stepped.pretend_step(86_400)
    set_back(db, "e", 86_400)
    look(db, stepped)
    assert len(jobs(db)) == 1, "not a day's worth"
    assert sum("clock was set by +86" in r.getMessage() for r in caplog.records) == 1
    set_back(db, "e", 2 * 86_400)
    db.run("delete from schedule_fires")
    look(db, stepped)
    assert 1 + 24 <= len(jobs(db)) <= 1 + 26, "ticks from before the leap were missed in earnest"


def test_a_database_clock_that_is_set_back_stops_nothing(
    db: Db, ticker: Ticker, caplog: pytest.LogCaptureFixture
) -> None:
    put(db, "e", EACH_SECOND, ago_s=3)
    look(db, ticker)
    before = fires(db)
    set_back(db, "e", -86_400)  # what a clock that ran a day ahead has left
    look(db, ticker)
    assert abs(db.now() - entry(db, "e")["last_tick"]) < timedelta(minutes=1)
    assert any("set back" in text for text in warnings(caplog, "e"))
    set_back(db, "e", 3)
    look(db, ticker)
    assert fires(db)[: len(before)] == before and len(set(fires(db))) == len(fires(db))
    each_once(db)


# Entries in code.


def test_entries_of_the_app_are_written_kept_and_taken_away(db: Db, ticker: Ticker) -> None:
    config.set_flags(app="some.app")
    engine.register_schedule("nightly", "30 2 * * *", task_name="thrice", queue="default", tz="Europe/Amsterdam")
    engine.register_schedule("often", EACH_MINUTE, task_name="noop", queue="default", args={"a": [1]}, jitter_s=2)
    put(db, "by_hand", NEVER)
    entries.write_entries(db, "")
    row = entry(db, "often")
    assert (row["args"], row["jitter_s"], row["origin"], row["misfire"]) == ({"a": [1]}, 2.0, "some.app", "one")
    assert bool(row["enabled"]) and abs(db.now() - row["last_tick"]) < timedelta(minutes=1), "from now"

    set_back(db, "nightly", 86_400)
    at = entry(db, "nightly")["last_tick"]
    db.run("update schedules set enabled = {false} where name = 'often'")
    entries.write_entries(db, "")
    assert entry(db, "nightly")["last_tick"] == at, "a restart moves nothing"
    assert not entry(db, "often")["enabled"], "off is the operator's"

    engine.register_schedule("nightly", "30 3 * * *", task_name="thrice", queue="default", tz="Europe/Amsterdam")
    del registry.schedules["often"]
    entries.write_entries(db, "")
    assert entry(db, "nightly")["cron"] == "30 3 * * *" and entry(db, "nightly")["last_tick"] > at
    assert {row["name"] for row in db.all("select name from schedules")} == {"nightly", "by_hand"}

    config.set_flags(app="another.app")
    registry.schedules.clear()
    entries.write_entries(db, "")
    assert len(db.all("select name from schedules")) == 2, "another app's entries are not its to take away"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cron": "every day"}, "cron 'every day'"),
        ({"tz": "Europe/Atlantis"}, "unknown time zone 'Europe/Atlantis'"),
        ({"name": "a b"}, "'a b' is not a schedule name"),
        ({"name": ""}, "not a schedule name"),
        ({"queue": "cpu"}, "queue 'cpu'"),
        ({"queue": "gpu"}, "queue 'gpu'"),
        ({"queue": ""}, "not a queue name"),
        ({"task_name": "nobody"}, "task 'nobody' is not registered"),
        ({"misfire": "later"}, "misfire must be one of skip, one, all"),
        ({"cron": ["*"]}, "cron must be a text, got list"),
        ({"task_name": None}, "task_name must be a text"),
        ({"args": [1]}, "mapping"),
        ({"args": {"x": float("nan")}}, "JSON"),
        ({"args": {"x": "x" * 2**20}}, "more than the 1,048,576 allowed"),
        ({"jitter_s": -1}, "jitter_s"),
        ({"jitter_s": float("nan")}, "jitter_s"),
    ],
)
def test_a_bad_entry_in_code_is_refused_by_name(ticker: Ticker, change: dict[str, object], said: str) -> None:
    good = {"name": "nightly", "cron": "30 2 * * *", "task_name": "noop", "queue": "default"}
    with pytest.raises(engine.EngineError, match=said) as caught:
        engine.register_schedule(**{**good, **change})  # type: ignore[arg-type]
    assert len(str(caught.value).splitlines()) == 1
    assert "name" in change or "'nightly'" in str(caught.value)
    assert registry.schedules == {}


# A job by hand, beside them.


def test_a_direct_enqueue_follows_the_callers_transaction(store: Store, db: Db, ticker: Ticker) -> None:
    """Rolled back, it never was; committed, it is there."""
    if store.kind == "postgresql":
        raw = psycopg.connect(store.url)
    else:
        raw = sqlite3.connect(str(store.path))
    engine.enqueue_ingest_job(task_name="noop", queue="default", conn=raw)
    assert jobs(db) == []
    raw.rollback()
    assert jobs(db) == []
    job = engine.enqueue_ingest_job(task_name="noop", queue="default", conn=raw)
    raw.commit()
    assert [row["id"] for row in jobs(db)] == [int(job.id)]
    raw.close()
