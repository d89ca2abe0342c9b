"""What the leader tells: levels and histories, over restarts of it and of the database. On both stores, the clock in our hands."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import config
from engine.dag.runs import submit_run
from engine.errors import BadInput, ConfigError
from engine.orchestrator import notices as module
from engine.orchestrator.loop import run_orchestrator
from engine.orchestrator.notices import Notices
from engine.orchestrator.notify import Courier
from engine.orchestrator.sweeps import PartlyDone
from engine.queue.events import record
from engine.store import Db, Json, Store
from engine.store.locks import new_incarnation
from engine.telemetry import limits_file, slow
from tests.dag.steps import Hands, chain, drain_all, node
from tests.support import Processes, command, eventually


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Watch:
    """A leader's notices; ``restart`` is another leader on another session."""

    def __init__(self, store: Store, argv: tuple[str, ...] | None = None) -> None:
        self.store, self.argv, self.clock = store, argv, Clock()
        self.told = 0
        self.restart(first=True)

    def restart(self, first: bool = False) -> None:
        if not first:
            self.db.close()
        self.db = self.store.connect("leader")
        self.courier = Courier(self.argv, 30.0, 5, 60.0, self.clock) if self.argv else None
        self.notices = Notices(self.courier, self.clock)

    def look(self, seconds: float = 2.0) -> list[dict[str, Any]]:
        """One look, so much later; the alerts that were written since the last one."""
        self.clock.now += seconds
        self.notices.look(self.db)
        rows = self.db.all(
            "select * from control_events where action = 'alert' and id > {told} order by id", told=self.told
        )
        self.told = max([self.told, *(row["id"] for row in rows)])
        return rows

    def settle(self) -> None:
        """Past the time in which nothing is judged."""
        assert self.look() == []
        assert self.look(31.0) == []


@pytest.fixture
def watch(store: Store) -> Iterator[Watch]:
    found = Watch(store)
    yield found
    found.db.close()


def kinds(rows: list[dict[str, Any]]) -> list[str]:
    return [row["detail"]["kind"] for row in rows]


def lane(db: Db, box: str, queue: str = "cpu", silent_s: float = 0.0, state: str = "running") -> None:
    db.run("delete from worker_heartbeats where box = {box} and queue = {queue}", box=box, queue=queue)
    db.run(
        "insert into worker_heartbeats (box, queue, incarnation, state, slots, last_seen) "
        "values ({box}, {queue}, {life}, {state}, 1, {before[silent_s]})",
        box=box, queue=queue, life=new_incarnation(), state=state, silent_s=silent_s,
    )  # fmt: skip


def fail_run(db: Db) -> int:
    run_id = submit_run(db, chain(node("a")))
    hands = Hands(db)
    hands.end(*hands.take(), error="it broke")
    drain_all(db)
    return int(run_id)


def test_a_box_that_dies_and_comes_back_is_told_once_each(watch: Watch, db: Db) -> None:
    lane(db, "kestrel")
    lane(db, "kestrel", "gpu")
    watch.settle()
    lane(db, "kestrel", silent_s=40)
    assert watch.look() == [], "the other lane beats"
    lane(db, "kestrel", silent_s=50)
    lane(db, "kestrel", "gpu", silent_s=40)
    [row] = watch.look()
    assert (
        row["box"] == "kestrel" and row["detail"]["kind"] == "box_dead" and "silent for 40 s" in row["detail"]["text"]
    )
    assert row["detail"]["queues"] == ["cpu", "gpu"], "its lanes are not told beside it"
    assert watch.look() == []
    watch.restart()
    assert watch.look() == [] and watch.look(31.0) == [], "a new leader neither repeats"
    lane(db, "kestrel")
    lane(db, "kestrel", "gpu")
    assert kinds(watch.look()) == ["box_back"], "nor misses"
    assert watch.look() == []


def test_a_row_ahead_of_the_clock_keeps_no_dead_box_alive(watch: Watch, db: Db) -> None:
    """The clock was set back, or anybody wrote it: its sample was never silent, and its minute the newest for ever."""
    db.run("insert into boxes (box) values ('kestrel')")
    db.run("insert into flight_recorder (box, at) values ('kestrel', {after[s]})", s=86_400.0)
    minute(db, "kestrel", -86_400, thermal_ms=60_000.0)
    lane(db, "kestrel")
    watch.settle()
    lane(db, "kestrel", silent_s=40)
    assert kinds(watch.look(16.0)) == ["box_dead"]


def test_what_was_dead_before_anybody_looked_is_not_told(watch: Watch, db: Db) -> None:
    lane(db, "gone", silent_s=9000)
    watch.settle()
    lane(db, "gone")
    assert watch.look() == []
    lane(db, "gone", silent_s=40)
    assert kinds(watch.look()) == ["box_dead"]


def test_a_box_that_died_while_nobody_led_is_told_by_the_next_leader(watch: Watch, db: Db) -> None:
    lane(db, "kestrel")
    watch.settle()
    watch.restart()
    lane(db, "kestrel", silent_s=600)
    assert watch.look() == [], "after an outage lanes have 30 s to say that they live"
    assert kinds(watch.look(31.0)) == ["box_dead"]


def test_a_lost_lane_of_a_living_box_is_told(watch: Watch, db: Db) -> None:
    lane(db, "kestrel")
    lane(db, "kestrel", "gpu")
    watch.settle()
    lane(db, "kestrel", "gpu", silent_s=50)
    [row] = watch.look()
    assert (row["box"], row["queue"], row["detail"]["kind"]) == ("kestrel", "gpu", "lane_lost")
    assert watch.look() == []


def test_a_box_that_went_in_order_is_not_dead(watch: Watch, db: Db) -> None:
    lane(db, "kestrel")
    watch.settle()
    lane(db, "kestrel", silent_s=400, state="stopping")
    assert watch.look() == []


def test_a_failed_run_is_told_once_whoever_leads(watch: Watch, db: Db) -> None:
    old = fail_run(db)
    assert watch.look() == [], "what failed before the first look is history"
    new = fail_run(db)
    [row] = watch.look()
    assert row["detail"]["run_id"] == str(new) != str(old)
    assert "it broke" in row["detail"]["text"]
    assert watch.look() == []
    watch.restart()
    missed = fail_run(db)
    assert [row["detail"]["run_id"] for row in watch.look()] == [str(missed)]
    assert watch.look() == [] and watch.look(60.0) == [] and watch.look() == []


def test_a_run_that_ends_after_its_node_is_waited_for(watch: Watch, db: Db) -> None:
    watch.look()
    submit_run(db, chain(node("a")))
    hands = Hands(db)
    hands.end(*hands.take(), error="it broke\n\nTraceback (most recent call last):\n")
    assert watch.look() == [] and watch.look(20.0) == [] and watch.look(20.0) == []
    drain_all(db)
    (row,) = watch.look()
    assert row["detail"]["kind"] == "run_failed" and row["detail"]["text"].endswith("it broke")


def test_a_poison_job_is_told_with_its_reason(watch: Watch, db: Db) -> None:
    watch.look()
    for number, cause in ((1, "lane_lost"), (2, None), (3, "executor_died")):
        record(
            db, family="ingest", job_id=number, event_type="failed", cause=cause, box="kestrel", queue="default",
            detail={"error": "the lane was lost; no retries left (5 of 5 spent)"},
        )  # fmt: skip
    rows = watch.look()
    assert kinds(rows) == ["poison_job"] * 2
    assert [row["detail"]["job_id"] for row in rows] == ["1", "3"], "an ordinary failure is none"
    assert "no retries left" in rows[0]["detail"]["text"]
    assert watch.look() == []


def test_more_poison_than_one_look_reads_is_told_whole(watch: Watch, db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 3)
    watch.look()
    for number in range(8):
        record(db, family="ingest", job_id=number, event_type="failed", cause="trip")
    found = [row["detail"]["job_id"] for _ in range(8) for row in watch.look(4.0)]
    assert found == [str(number) for number in range(8)]


def minute(db: Db, box: str, ago_s: float, **columns: float) -> None:
    names = ", ".join(columns)
    db.run(
        f"insert into flight_recorder (box, tier, at, {names}) values ({{box}}, 'minute', {{before[ago_s]}}, "
        + ", ".join(f"{{{name}}}" for name in columns) + ")",
        box=box, ago_s=ago_s, **columns,
    )  # fmt: skip


def test_throttling_is_told_by_cause_and_class_and_has_hysteresis(watch: Watch, db: Db) -> None:
    """D28: the power cap is no alarm; what is much for one class of machine is ordinary for another."""
    db.run(
        "insert into boxes (box, cpu_model, gpus) values ('spark', '', {gpus})", gpus=Json([{"name": "NVIDIA GB10"}])
    )
    db.run("insert into boxes (box) values ('kestrel')")
    lane(db, "spark")
    lane(db, "kestrel")
    minute(db, "kestrel", 180, thermal_ms=0.0, power_ms=60_000.0)
    watch.settle()
    minute(db, "kestrel", 120, thermal_ms=12_000.0, power_ms=60_000.0)
    minute(db, "spark", 120, thermal_ms=12_000.0, power_ms=60_000.0)
    [row] = watch.look(16.0)
    assert row["box"] == "kestrel" and row["detail"]["seconds"] == {"heat": 12.0}
    minute(db, "kestrel", 60, thermal_ms=5_000.0)
    assert watch.look(16.0) == []
    minute(db, "kestrel", 30, thermal_ms=12_000.0)
    assert watch.look(16.0) == [], "one episode"
    minute(db, "kestrel", 20, thermal_ms=0.0)
    minute(db, "kestrel", 10, thermal_ms=0.0)
    assert watch.look(16.0) == []
    minute(db, "kestrel", 5, thermal_ms=12_000.0)
    assert kinds(watch.look(16.0)) == ["throttling"], "another one"


def test_the_leader_judges_by_the_levels_of_a_profile(store: Store, db: Db, tmp_path: Path) -> None:
    """The deck showed an alert by its profile, and the command was told by other levels."""
    file = tmp_path / "profiles.toml"
    file.write_text(
        "[night]\ndsn = 'postgresql://x:secret@db/fleet'\n[[night.class]]\nmatch = 'kestrel'\nthermal_s = { hot = 20 }\n"
    )
    config.configure(profile="night", profiles=str(file))
    watch = Watch(store)
    watch.notices = Notices(None, watch.clock, limits_file.configured())
    try:
        for box in ("kestrel", "spark"):
            db.run("insert into boxes (box) values ({box})", box=box)
            lane(db, box)
            minute(db, box, 180, thermal_ms=0.0)
        watch.settle()
        for box in ("kestrel", "spark"):
            minute(db, box, 120, thermal_ms=12_000.0)
        assert [row["box"] for row in watch.look(16.0)] == ["spark"], "and the class of the other stays"
        minute(db, "kestrel", 60, thermal_ms=21_000.0)
        assert [row["box"] for row in watch.look(16.0)] == ["kestrel"]
    finally:
        watch.db.close()


@pytest.mark.parametrize(("profile", "says"), [("day", "has no such profile"), ("night", "[night] class 1")])
def test_a_profile_that_does_not_exist_is_refused_before_anything_starts(
    sqlite_store: Store, tmp_path: Path, profile: str, says: str
) -> None:
    file = tmp_path / "profiles.toml"
    file.write_text("[night]\ndsn = 'postgresql://x:secret@db/fleet'\n[[night.class]]\nthermal_s = { hot = 20 }\n")
    config.configure(profile=profile, profiles=str(file))
    with pytest.raises(ConfigError) as refused:
        run_orchestrator(sqlite_store, threading.Event(), once=True)
    assert says in str(refused.value) and "secret" not in str(refused.value)


def slowed(db: Db, id: int, box: str = "spark") -> None:
    """What a recorder writes when a GPU of its box begins to be slow without a reason."""
    slow.tell(db, box, slow.Slow(0, None, db.now(), 612.0, 2418.0))
    db.run("update control_events set id = {id} where id = (select max(id) from control_events)", id=id)


def test_a_gpu_that_is_slow_without_a_reason_is_told_once_whoever_leads(store: Store, db: Db, tmp_path: Path) -> None:
    """Its recorder judges and writes the row; nobody was called. A row that is committed late is told too."""
    out = tmp_path / "out"
    watch = Watch(store, ("sh", "-c", f"cat >> '{out}'"))

    def told() -> list[str]:
        watch.notices.look(watch.db)
        return [json.loads(line)["id"] for line in out.read_text().splitlines()] if out.exists() else []

    def busy() -> bool:
        assert watch.courier is not None
        return watch.courier.busy

    try:
        slowed(db, 1000)
        assert watch.look() != [], "it is there, and older than the first look"
        slowed(db, 1020)
        eventually(lambda: told() == ["1020"])
        first = json.loads(out.read_text())
        assert (first["kind"], first["box"], first["more"]) == ("slow_without_reason", "spark", 0)
        assert "spark: GPU 0 slow without a reason: 612 MHz, usually 2418" in first["text"]
        slowed(db, 1010, "kestrel")
        eventually(lambda: told() == ["1020", "1010"])
        db.run(
            "insert into control_events (action, requested_by, detail) values ('alert', 'recorder@x', {detail})",
            detail=Json({"kind": "something else"}),
        )
        eventually(lambda: told() and not busy(), what="the command has ended, and what it took is written down")
        for _ in range(8):  # past the time in which ids may be late
            watch.look()
            assert not busy()
        watch.restart()
        watch.look()
        assert not busy() and told() == ["1020", "1010"] and db.value("select count(*) from control_events") == 4
    finally:
        watch.notices.end(store)
        watch.db.close()


def test_a_command_that_fails_is_told_and_holds_up_nothing(store: Store, db: Db) -> None:
    watch = Watch(store, ("sh", "-c", "echo no route; exit 3"))
    try:
        watch.look()
        fail_run(db)
        assert kinds(watch.look()) == ["run_failed"]

        def failed() -> str:
            try:
                watch.look(0.0)
            except PartlyDone as error:
                return str(error)
            return ""

        assert "ended with 3: no route" in eventually(failed)
    finally:
        watch.db.close()


def test_what_the_command_did_not_take_is_told_by_the_next_leader(store: Store, db: Db, tmp_path: Path) -> None:
    """Killed in the middle: once more. Taken: never again."""
    out = tmp_path / "out"
    watch = Watch(store, ("sh", "-c", "sleep 600"))
    try:
        watch.look()
        run_id = fail_run(db)
        watch.look()
        assert watch.courier is not None and watch.courier.busy
        watch.courier.close(0.0)
        watch.argv = ("sh", "-c", f"cat >> '{out}'")
        watch.restart()
        watch.look()
        text = eventually(lambda: out.exists() and out.read_text())
        assert json.loads(text)["detail"]["run_id"] == str(run_id)
        watch.notices.end(store)
        watch.restart()
        watch.look()
        assert watch.courier is not None and not watch.courier.busy
    finally:
        watch.db.close()


def test_the_whole_way_from_a_failed_run_to_the_command(
    sqlite_store: Store, processes: Processes, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    script = tmp_path / "tell me"
    script.write_text(f"#!/bin/sh\ncat >> '{out}'\n")
    script.chmod(0o755)
    processes.spawn(
        command("queue-orchestrator", "--db", sqlite_store.url, "--box", "head", "--on-event", f"'{script}' loud")
    )
    with sqlite_store.connect("test") as db:
        eventually(lambda: db.value("select 1 from notices"))
        submit_run(db, chain(node("a")))
        hands = Hands(db)
        hands.end(*hands.take(), error="it broke")
    told = json.loads(eventually(lambda: out.exists() and out.read_text()))
    assert told["kind"] == "run_failed" and "it broke" in told["text"] and told["more"] == 0


def test_a_command_that_cannot_run_is_refused_before_anything_starts(sqlite_store: Store) -> None:
    config.configure(on_event="/no/such/program")
    with pytest.raises(BadInput, match="no program"):
        run_orchestrator(sqlite_store, threading.Event())
