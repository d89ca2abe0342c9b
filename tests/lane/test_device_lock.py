"""One gpu slot per device: locks among lanes of one box, and two real lanes of two projects on one made-up card."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import config
from engine.lane import device_lock
from engine.lane.device_lock import ASKED, HELD, SHARED, WAITING, DeviceLocks
from engine.queue import operate
from engine.store import Store
from tests.fakes.gpus import Gpus, card
from tests.lane.fleet import stop
from tests.lane.gpu_fleet import Diary, device_of, done, gpu_lane, lane_row, put
from tests.support import Processes, eventually

KEY = "GPU-1"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock may be tried again at once."""
    monkeypatch.setattr(device_lock, "APART_S", 0.0)


class Side:
    """One lane's locks with a connection of its own."""

    def __init__(self, store: Store, share: bool = False, box: str = "b1") -> None:
        self.store = store
        self.news = 0
        self.locks = DeviceLocks(store, box, "gpu", [KEY], share, self._heard)
        self.db = store.connect("test lane", direct=True)

    def _heard(self) -> None:
        self.news += 1

    def tend(self) -> str | None:
        self.locks.tend(self.db)
        return self.locks.state(KEY)

    def wants(self, *keys: str) -> str | None:
        self.locks.want(keys)
        return self.tend()

    def lose_connection(self) -> None:
        self.db.close()
        self.locks.dropped()
        self.db = self.store.connect("test lane", direct=True)


def test_a_device_is_held_by_one_lane_of_a_box_at_a_time(store: Store) -> None:
    one, two, elsewhere = Side(store), Side(store), Side(store, box="b2")
    assert not one.locks.ours(KEY) and one.locks.state(KEY) is None
    one.locks.want([KEY])
    assert one.locks.state(KEY) == ASKED and not one.locks.ours(KEY), "nothing starts before the answer"
    assert one.tend() == HELD and one.locks.ours(KEY) and one.news == 1
    assert two.wants(KEY) == WAITING and not two.locks.ours(KEY)
    assert elsewhere.wants(KEY) == HELD, "another box's GPU"
    assert one.wants(KEY) == HELD and one.news == 1, "nothing new, no news"
    assert one.wants() is None and not one.locks.ours(KEY)
    eventually(lambda: two.tend() == HELD, what="it is taken over when it is free")
    assert one.wants(KEY) == WAITING
    two.locks.release()
    eventually(lambda: one.tend() == HELD)


def test_those_who_share_share_and_keep_out_who_does_not(store: Store) -> None:
    one, two, alone = Side(store, share=True), Side(store, share=True), Side(store)
    assert (one.wants(KEY), two.wants(KEY), alone.wants(KEY)) == (SHARED, SHARED, WAITING)
    one.wants()
    assert alone.tend() == WAITING
    two.wants()
    eventually(lambda: alone.tend() == HELD)
    assert one.wants(KEY) == WAITING


def test_a_lane_that_lost_its_connection_gets_its_device_back_before_others(pg_store: Store) -> None:
    """A restarted server has forgotten all locks: who waited must not overtake who works."""
    config.configure(session_grace_seconds=600.0)
    works, waits = Side(pg_store), Side(pg_store)
    assert (works.wants(KEY), waits.wants(KEY)) == (HELD, WAITING)
    works.lose_connection()
    waits.lose_connection()
    assert works.locks.state(KEY) == ASKED and not works.locks.ours(KEY) and works.news == 2
    assert waits.tend() == WAITING, "it lets the other come first"
    assert works.tend() == HELD and works.locks.ours(KEY)


def test_a_device_without_a_name_cannot_be_locked_and_is_free(sqlite_store: Store) -> None:
    side = Side(sqlite_store)
    assert side.locks.ours(None) and side.locks.state(None) is None
    assert not side.locks.want(["GPU-unheard-of"]), "only devices of this lane"


@pytest.fixture
def quick_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    config.configure(gpu_turn_seconds=0.001)
    monkeypatch.setattr(device_lock, "LOOK_S", 0.0)


def test_a_turn_ends_when_another_lane_waits_and_not_before(store: Store, quick_turns: None) -> None:
    one, two = Side(store), Side(store)
    assert one.wants(KEY) == HELD and one.tend() == HELD
    assert not one.locks.yields(KEY), "nobody waits"
    assert two.wants(KEY) == WAITING and not two.locks.yields(KEY)
    eventually(lambda: one.tend() == HELD and one.locks.yields(KEY), what="its turn is over")
    assert one.locks.ours(KEY) and one.news == 2, "what runs there may end"
    assert two.wants() is None
    eventually(lambda: one.tend() == HELD and not one.locks.yields(KEY), what="the other waits no longer")
    assert two.wants(KEY) == WAITING
    eventually(lambda: one.tend() == HELD and one.locks.yields(KEY))
    one.wants()
    assert one.wants(KEY) == ASKED, "the other comes first, who may be slow to notice"
    assert two.tend() == HELD and not two.locks.yields(KEY)


def test_who_waited_and_is_gone_ends_no_turn(store: Store, quick_turns: None) -> None:
    one, two = Side(store), Side(store)
    assert (one.wants(KEY), two.wants(KEY)) == (HELD, WAITING)
    eventually(lambda: one.tend() == HELD and one.locks.yields(KEY))
    two.locks.release()
    two.db.close()
    eventually(lambda: one.tend() == HELD and not one.locks.yields(KEY))


def test_without_turns_a_lane_keeps_its_device(store: Store, quick_turns: None) -> None:
    config.configure(gpu_turn_seconds=0)
    one, two = Side(store), Side(store)
    assert (one.wants(KEY), two.wants(KEY)) == (HELD, WAITING)
    assert (one.tend(), one.tend()) == (HELD, HELD) and not one.locks.yields(KEY)


# --- real lanes ---

QUICK = {"FLIGHTDECK_MODEL_IDLE_SECONDS": "0.4"}


def overlaps(diary: Diary) -> list[str]:
    """Times at which two processes had the card: from the begin of a load to the unload, from begin to end of a job."""
    users: set[int] = set()
    loaded: set[int] = set()
    bad = []
    for line in diary.lines():
        if line.word in ("loading", "begin"):
            others = (users | loaded) - {line.pid}
            bad += [f"{line} while {others}"] if others else []
            users.add(line.pid)
        if line.word == "load":
            loaded.add(line.pid)
        if line.word == "unload":
            loaded.discard(line.pid)
            users.discard(line.pid)
        if line.word == "end":
            users.discard(line.pid)
    return bad


def test_two_projects_on_one_gpu_never_run_at_once_and_take_turns(
    store: Store, processes: Processes, tmp_path: Path
) -> None:
    """The one that waits claims nothing, so that its jobs stay free for other boxes; it takes over on the idle unload."""
    gpus, diary = Gpus(tmp_path, card()), Diary(tmp_path)
    with store.connect("test") as db:
        first = gpu_lane(processes, store, diary, gpus, {"alpha": 1}, project="one", env=QUICK)
        go = tmp_path / "go"
        held = put(db, "alpha", project="one", go=str(go))
        eventually(lambda: diary.lines("begin"), what="the first project's job")
        second = gpu_lane(processes, store, diary, gpus, {"beta": 2}, project="two", env=QUICK)
        theirs = [put(db, "beta", project="two"), put(db, project="two")]
        eventually(lambda: device_of(db, "two").get("lock") == "waiting", what="the second lane waits")
        assert device_of(db, "one")["lock"] == "held"
        states = "select distinct status, attempt from workflow_node_jobs where project = 'two'"
        assert db.all(states) == [{"status": "queued", "attempt": 0}], "it does not claim what it cannot run"
        go.touch()
        done(db, held, *theirs)
        assert overlaps(diary) == []
        assert diary.said("load", "unload")[:3] == ["load alpha", "unload alpha", "load beta"]
        back = put(db, "alpha", project="one")
        done(db, back)
        assert overlaps(diary) == []
        eventually(lambda: device_of(db, "one").get("lock") is None, what="the device is let go on the idle unload")
        stop(first)
        stop(second)


def test_a_lane_that_always_has_jobs_lets_another_project_have_its_turn(
    pg_store: Store, processes: Processes, tmp_path: Path
) -> None:
    """Its model stays warm for the next job, so it never let the GPU go: the other project waited for ever."""
    gpus, diary = Gpus(tmp_path, card()), Diary(tmp_path)
    turns = {"FLIGHTDECK_GPU_TURN_SECONDS": "0.2", "FLIGHTDECK_MODEL_IDLE_SECONDS": "600"}
    with pg_store.connect("test") as db:
        first = gpu_lane(processes, pg_store, diary, gpus, {"alpha": 1}, project="one", env=turns)
        go = tmp_path / "go"
        put(db, "alpha", project="one", go=str(go))
        eventually(lambda: diary.lines("begin"), what="the first project's job")
        for _ in range(300):
            put(db, "alpha", project="one", seconds=0.1)
        second = gpu_lane(processes, pg_store, diary, gpus, {"beta": 1}, project="two", env=turns)
        theirs = put(db, "beta", project="two")
        eventually(lambda: device_of(db, "two").get("lock") == "waiting", what="the second lane waits")
        go.touch()
        done(db, theirs)
        left = "select count(*) from workflow_node_jobs where project = 'one' and status = 'queued'"
        assert db.value(left) > 0, "the first was not done"
        eventually(lambda: diary.said("load")[:3] == ["load alpha", "load beta", "load alpha"], what="and goes on")
        assert overlaps(diary) == []
        operate.cordon(db, box="b1", project="one")
        stop(first)
        stop(second)


def test_the_device_of_a_killed_lane_is_taken_over_at_once(store: Store, processes: Processes, tmp_path: Path) -> None:
    gpus, diary = Gpus(tmp_path, card()), Diary(tmp_path)
    with store.connect("test") as db:
        first = gpu_lane(processes, store, diary, gpus, {"alpha": 1}, project="one")
        put(db, "alpha", project="one", go=str(tmp_path / "never"))
        eventually(lambda: diary.lines("begin"))
        second = gpu_lane(processes, store, diary, gpus, {"beta": 1}, project="two")
        theirs = put(db, "beta", project="two")
        eventually(lambda: device_of(db, "two").get("lock") == "waiting")
        first.kill()
        done(db, theirs)
        stop(second)


@pytest.mark.parametrize("share", [True, False])
def test_lanes_that_share_a_gpu_run_beside_each_other(
    sqlite_store: Store, processes: Processes, tmp_path: Path, share: bool
) -> None:
    """And a lane that does not know which GPU it has cannot be kept off it."""
    gpus, diary = (Gpus(tmp_path, card()) if share else None), Diary(tmp_path)
    flags = ("--share-gpu",) if share else ()
    with sqlite_store.connect("test") as db:
        lanes = [
            gpu_lane(processes, sqlite_store, diary, gpus, {"alpha": 1}, *flags, project=project)
            for project in ("one", "two")
        ]
        go = tmp_path / "go"
        jobs = [put(db, "alpha", project=project, go=str(go)) for project in ("one", "two")]
        eventually(lambda: len(diary.lines("begin")) == 2, what="both run")
        if share:
            eventually(lambda: [device_of(db, name).get("lock") for name in ("one", "two")] == ["shared"] * 2)
        else:
            assert lane_row(db, "one")["vram_mb"] is None
        go.touch()
        done(db, *jobs)
        for lane in lanes:
            stop(lane)
