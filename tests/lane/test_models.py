"""Models: kept warm, swapped, dropped, loaded by order; and which slot asks for which rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import engine
from engine import registry
from engine.errors import BadInput
from engine.lane.devices import UNKNOWN, Device
from engine.lane.errands import Errands
from engine.lane.gpus import Gpus as Policy
from engine.lane.models import WarmModel
from engine.lane.slot import Slot, Spec
from engine.queue import models
from engine.queue.claim import ClaimRequest, claim
from engine.queue.models import ModelOrder
from engine.queue.workers import Worker
from engine.store import Db, Store
from engine.store.locks import new_incarnation
from tests.fakes.gpus import Gpus, card
from tests.lane.fleet import ended, stop
from tests.lane.gpu_fleet import TABLE, Diary, done, gpu_lane, lane_row, put
from tests.support import Processes, command, eventually

# --- one executor's model ---


@dataclass
class Shelf:
    """A warm model with a clock, and what its models did."""

    told: list[tuple[str | None, str | None]] = field(default_factory=list)
    did: list[str] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.warm = WarmModel(lambda loaded, loading: self.told.append((loaded, loading)), lambda: self.now, 60.0)

    def model(self, id: str, fails: str = "") -> None:
        def load() -> str:
            self.did.append(f"load {id}")
            if fails == "load":
                raise MemoryError("too big")
            return f"<{id}>"

        def unload(value: str) -> None:
            self.did.append(f"unload {value}")
            if fails == "unload":
                raise RuntimeError("it clings")

        registry.register_model(id, load, unload, 1.0)


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    made = Shelf()
    made.model("a")
    made.model("b")
    yield made


def test_a_model_is_loaded_once_swapped_and_told(shelf: Shelf) -> None:
    assert shelf.warm.ensure("a") == shelf.warm.ensure("a") == "<a>"
    shelf.warm.ensure("b")
    assert shelf.did == ["load a", "unload <a>", "load b"]
    assert shelf.told == [(None, "a"), ("a", None), (None, None), (None, "b"), ("b", None)], "what loads is seen"


def test_a_model_is_due_to_go_when_no_job_has_used_it_for_a_minute(shelf: Shelf) -> None:
    assert shelf.warm.idle_for() is None
    shelf.warm.ensure("a")
    shelf.now = 50.0
    assert shelf.warm.idle_for() == 10.0
    shelf.warm.used()
    assert shelf.warm.idle_for() == 60.0
    shelf.now = 120.0
    assert shelf.warm.idle_for() == 0.0
    shelf.warm.unload()
    assert shelf.warm.idle_for() is None and shelf.warm.value is None and shelf.told[-1] == (None, None)


def test_an_executor_whose_loader_failed_loads_nothing_more(shelf: Shelf) -> None:
    shelf.model("big", fails="load")
    with pytest.raises(MemoryError):
        shelf.warm.ensure("big")
    assert shelf.warm.id is None and shelf.told[-1] == (None, None)
    assert "the loader of model big failed: MemoryError: too big" in (shelf.warm.broken or "")
    assert not shelf.warm.make_room("a")


def test_an_executor_whose_unloader_failed_loads_nothing_more(shelf: Shelf) -> None:
    shelf.model("clingy", fails="unload")
    shelf.warm.ensure("clingy")
    assert shelf.warm.make_room("clingy") and shelf.warm.make_room("never registered"), "nothing is in the way"
    assert not shelf.warm.make_room("a")
    assert shelf.warm.id is None and "it clings" in (shelf.warm.broken or "")


# --- which slot asks for what ---

SMALL = Device(0, "GPU-0", "nvidia", vram_mb=24_576.0)
LARGE = Device(1, "GPU-1", "nvidia", vram_mb=81_920.0)
KNOWN = {"a": 8.0, "b": 8.0, "huge": 60.0}


class Locks:
    """All devices ours, but for those in ``states``."""

    def __init__(self, **states: str | None) -> None:
        self.states = states

    def state(self, key: str | None) -> str | None:
        return self.states.get((key or "").replace("-", "_"), "held") if key else None

    def ours(self, key: str | None) -> bool:
        return key is None or self.state(key) == "held"

    def yields(self, key: str | None) -> bool:
        return False


def slot(index: int, tmp_path: Path, device: Device = UNKNOWN, kind: str = "any", model: str | None = None) -> Slot:
    made = Slot(index, Spec("b1", "b1/gpu/0", "0", tmp_path, tmp_path, {}), kind=kind, device=device)
    made.state, made.model = "ready", model
    return made


def asked(policy: Policy, now: float = 0.0, flagged: bool = False) -> list[tuple[list[int], tuple[str, ...], bool]]:
    """(slots, models, whether rows without a model) of each claim, in order."""
    asks = policy.asks([each for each in policy.slots if each.idle], now, flagged)
    return [([each.index for each in ask.slots], ask.models if ask.model_rows else (), ask.free_rows) for ask in asks]


def policy(*slots: Slot, locks: Locks | None = None, share: bool = False) -> Policy:
    return Policy(slots, locks or Locks(), share, 512.0, lambda: KNOWN)


def test_a_slot_asks_for_what_fits_its_own_device(tmp_path: Path) -> None:
    """CLAIM: one statement per distinct (model, fits)."""
    made = policy(slot(0, tmp_path, SMALL), slot(1, tmp_path, LARGE), slot(2, tmp_path, UNKNOWN), slot(3, tmp_path))
    assert asked(made) == [
        ([0], ("a", "b"), True),
        ([1, 2, 3], ("a", "b", "huge"), True),
    ]
    assert made.models_fit == ("a", "b", "huge") and made.vram_mb == 81_920.0


def test_slots_for_models_and_slots_for_rows_without(tmp_path: Path) -> None:
    made = policy(slot(0, tmp_path, SMALL, "model"), slot(1, tmp_path, LARGE, "free"))
    assert asked(made) == [([0], ("a", "b"), False), ([1], (), True)]
    detail = made.detail()
    assert (detail["model_slots"], detail["free_slots"], detail["any_slots"]) == (1, 1, 0)
    assert [each["fits"] for each in detail["devices"]] == [["a", "b"], []], "huge fits where no slot takes models"
    assert made.models_fit == ("a", "b")
    assert made.may_run(made.slots[0], "a") and not made.may_run(made.slots[0], None)
    assert made.may_run(made.slots[1], None) and not made.may_run(made.slots[1], "a")


def test_of_several_idle_slots_each_asks_for_its_own_model_first(tmp_path: Path) -> None:
    cold, warm_a, warm_b = slot(0, tmp_path, SMALL), slot(1, tmp_path, LARGE, model="a"), slot(2, tmp_path, model="b")
    one = policy(cold, warm_a)
    assert asked(one) == [([1], ("a",), False), ([0], ("a", "b"), True), ([1], ("a", "b", "huge"), True)]
    equal = policy(slot(0, tmp_path, replace(LARGE, index=0, uuid="GPU-2")), warm_a)
    assert asked(equal) == [([1], ("a",), False), ([0], ("a", "b", "huge"), True)], "the cold one can take all the rest"
    two = policy(warm_a, warm_b)
    assert asked(two) == [
        ([1], ("a",), False),
        ([2], ("b",), False),
        ([1], ("a", "b", "huge"), True),
        ([2], ("a", "b", "huge"), True),
    ]
    assert asked(policy(warm_a)) == [([1], ("a", "b", "huge"), True)]
    last = two.remaining(two.asks(two.slots, 0.0)[2])
    assert last is not None and last.models == ("a", "huge"), "b is the other's, who is idle and has just asked for it"
    warm_b.errand = 1
    busy = two.remaining(two.asks([warm_a], 0.0)[0])
    assert busy is not None and busy.models == ("a", "b", "huge")
    assert two.remaining(replace(busy, slots=(warm_b,))) is None
    warm_b.errand = None
    strict = two.remaining(two.asks(two.slots, 0.0, flagged=True)[0])
    assert strict is not None and strict.models == ("a", "b", "huge"), "two that run next may both be of model b"


def test_a_row_that_runs_next_goes_before_warm_models_and_nothing_is_passed_over_for_ever(tmp_path: Path) -> None:
    made = policy(slot(0, tmp_path, model="a"), slot(1, tmp_path, model="b"))
    whole = [([0], ("a", "b", "huge"), True), ([1], ("a", "b", "huge"), True)]
    assert asked(made, flagged=True) == whole
    assert asked(made, now=1.0)[0] == ([0], ("a",), False)
    assert asked(made, now=11.5) == whole, "every ten seconds a slot asks for whatever is most urgent"
    assert asked(made, now=12.0)[0] == ([0], ("a",), False)


def test_a_device_that_another_lane_has_is_not_waited_for_by_a_warm_slot(tmp_path: Path) -> None:
    warm, other = slot(0, tmp_path, SMALL, model="a"), slot(1, tmp_path, LARGE)
    assert asked(policy(warm, other, locks=Locks(GPU_1="waiting"))) == [([0], ("a", "b"), True)]
    free = policy(warm, other, locks=Locks(GPU_1=None))
    assert asked(free) == [([0], ("a",), False)], "the cold one gets its device and then the rest"
    assert free.curious(free.slots) == [other]
    free.seek([other])
    assert free.wanted(True, ()) == {"GPU-0", "GPU-1"} and free.seeking
    free.looked([other])
    assert free.wanted(True, ()) == {"GPU-0"}, "nothing was there: it is let go; the warm model holds its own"
    assert free.wanted(False, ["huge"]) == {"GPU-0", "GPU-1"}, "a claimed job waits for a slot that can hold its model"


def test_a_claimed_job_is_stranded_when_others_have_every_device_that_could_run_it(tmp_path: Path) -> None:
    """The locks went with a connection, and another lane was there first: the job goes back instead of waiting on."""
    both = slot(0, tmp_path, SMALL), slot(1, tmp_path, LARGE)
    assert policy(*both, locks=Locks(GPU_1="waiting")).stranded("huge")
    assert not policy(*both, locks=Locks(GPU_1="waiting")).stranded("a")
    assert not policy(*both, locks=Locks(GPU_1="asked", GPU_0="waiting")).stranded(None)
    assert policy(*both, locks=Locks(GPU_1="waiting", GPU_0="waiting")).stranded(None)


def test_slots_of_one_device_share_its_memory(tmp_path: Path) -> None:
    first, second = slot(0, tmp_path, LARGE), slot(1, tmp_path, LARGE)
    made = policy(first, second, share=True)
    assert asked(made) == [([0], ("a", "b", "huge"), True)], "one at a time: each changes what fits the next"
    first.model = "huge"
    assert made.fits(second) == ("a", "b") and made.capacity(second) == ("a", "b", "huge")
    assert not made.may_run(second, "huge") and made.may_run(first, "huge")


def test_slots_of_different_kinds_each_find_an_aged_job_in_time(db: Db) -> None:
    """One that waits behind younger jobs of a more urgent band of its own model, found by an exact look every 10 s."""
    worker = Worker("b1", "gpu", "", new_incarnation())
    aged = put(db, "cold", priority=500)
    db.run("update workflow_node_jobs set created_at = {at} where id = {id}", id=aged, at=db.now() - timedelta(days=1))
    for _ in range(20):
        put(db, "cold", priority=1)
    warm = [put(db, "warm", priority=400) for _ in range(2)]
    without = ClaimRequest(worker, 1, 600.0, models=(), free_rows=True)
    with_models = ClaimRequest(worker, 1, 600.0, models=("warm", "cold"), loaded_model="warm", free_rows=False)
    assert claim(db, without) == [], "its exact look is its own"
    assert [job.id for job in claim(db, with_models)] == [warm[0]]
    assert [job.id for job in claim(db, replace(with_models, models=("cold",)))] == [aged]


# --- lanes ---


def test_a_model_runs_only_where_it_fits_and_two_cards_hold_two_models(
    sqlite_store: Store, processes: Processes, tmp_path: Path
) -> None:
    """Affinity: jobs of two models, in turns, are two loads; a model for the large card never meets the small."""
    with sqlite_store.connect("test") as db:
        gpus, diary = Gpus(tmp_path, card(0), card(1, total_mb=81_920)), Diary(tmp_path)
        lane = gpu_lane(processes, sqlite_store, diary, gpus, {"a": 8, "b": 8, "huge": 60, "never": 200})
        eventually(lambda: lane_row(db)["state"] == "running" and lane_row(db)["models_known"])
        row = lane_row(db)
        assert row["models_known"] == ["a", "b", "huge", "never"] and row["models_fit"] == ["a", "b", "huge"]
        assert (row["slots"], row["vram_mb"], row["detail"]["any_slots"]) == (2, 81_920.0, 2)
        assert [(each["index"], each["uuid"], each["fits"]) for each in row["detail"]["devices"]] == [
            (0, card(0)["uuid"], ["a", "b"]),
            (1, card(1)["uuid"], ["a", "b", "huge"]),
        ]
        go = tmp_path / "go"
        first = [put(db, "a", go=str(go)), put(db, "b", go=str(go))]
        eventually(lambda: len(diary.lines("begin")) == 2, what="a model on each card")
        eventually(
            lambda: (
                sorted(each["jobs"] for each in lane_row(db)["detail"]["devices"]) == sorted([job] for job in first)
            ),
            what="each card's own job is told",
        )
        go.touch()
        done(db, *first)
        for model in "bbaab":
            done(db, put(db, model))
        assert sorted(diary.said("load")) == ["load a", "load b"], diary.said("load", "unload")
        done(db, *[put(db, "huge") for _ in range(2)])
        (loaded,) = [line for line in diary.lines("load") if line.detail == "huge"]
        assert loaded.device == card(1)["uuid"]
        eventually(lambda: "huge" in (lane_row(db)["current_model"] or ""))
        stop(lane)


def test_an_aged_job_of_a_cold_model_is_not_starved_by_warm_ones(
    sqlite_store: Store, processes: Processes, tmp_path: Path
) -> None:
    """affinity_max_wait_s: until then warm jobs go first, after it the oldest job does."""
    with sqlite_store.connect("test") as db:
        gpus, diary = Gpus(tmp_path, card()), Diary(tmp_path)
        env = {"FLIGHTDECK_AFFINITY_MAX_WAIT_S": "100"}
        lane = gpu_lane(processes, sqlite_store, diary, gpus, {"warm": 1, "cold": 1, "aged": 1}, env=env)
        go = tmp_path / "go"
        running = put(db, "warm", go=str(go))
        eventually(lambda: diary.lines("begin"))
        cold, aged = put(db, "cold", priority=1), put(db, "aged", priority=100)
        db.run(
            "update workflow_node_jobs set created_at = {at} where id = {id}", id=aged, at=db.now() - timedelta(days=1)
        )
        rest = [put(db, "warm", priority=50) for _ in range(5)]
        go.touch()
        done(db, running, cold, aged, *rest)
        order = [line.detail for line in diary.lines("begin")]
        # The aged one counts as warm and is in a later band than five warm ones, but it is not behind new ones for ever.
        assert order == ["warm"] * 6 + ["aged", "cold"] or order == ["warm"] * 6 + ["cold", "aged"]
        assert diary.said("load") == ["load warm", "load aged", "load cold"], "it counted as warm, the other did not"
        stop(lane)


def test_a_loader_that_fails_fails_its_job_and_leaves_nothing_behind(
    sqlite_store: Store, processes: Processes, tmp_path: Path
) -> None:
    gpus, diary = Gpus(tmp_path, card()), Diary(tmp_path)
    with sqlite_store.connect("test") as db:
        lane = gpu_lane(processes, sqlite_store, diary, gpus, {"bad": {"fail": "load"}, "good": 1})
        bad = put(db, "bad")
        failed = ended(db, bad, TABLE)
        assert failed["status"] == "failed" and "MemoryError: out of memory for bad" in failed["error"]
        good = put(db, "good")
        done(db, good)
        pids = {line.detail: line.pid for line in diary.lines("loading")}
        assert pids["bad"] != pids["good"], "a fresh executor, for nobody knows what the failed load left in memory"
        assert lane_row(db)["last_exit_code"] is None, "that is no accident of the executor"
        stop(lane)


def test_an_unloader_that_fails_costs_no_job_anything(
    sqlite_store: Store, processes: Processes, tmp_path: Path
) -> None:
    gpus, diary = Gpus(tmp_path, card()), Diary(tmp_path)
    with sqlite_store.connect("test") as db:
        lane = gpu_lane(processes, sqlite_store, diary, gpus, {"clingy": {"fail": "unload"}, "good": 1})
        first = put(db, "clingy")
        done(db, first)
        second = put(db, "good")
        done(db, second)
        row = db.one("select attempt, watchdog_retries from workflow_node_jobs where id = {id}", id=second)
        assert row == {"attempt": 1, "watchdog_retries": 0}
        loads = diary.lines("load")
        assert [line.detail for line in loads] == ["clingy", "good"] and loads[0].pid != loads[1].pid
        stop(lane)


def test_jobs_without_a_model_do_not_keep_one_warm(sqlite_store: Store, processes: Processes, tmp_path: Path) -> None:
    gpus, diary = Gpus(tmp_path, card()), Diary(tmp_path)
    with sqlite_store.connect("test") as db:
        env = {"FLIGHTDECK_MODEL_IDLE_SECONDS": "0.3"}
        lane = gpu_lane(processes, sqlite_store, diary, gpus, {"a": 1}, env=env)
        done(db, put(db, "a"))
        done(db, *[put(db, seconds=0.2) for _ in range(6)])
        words = diary.said("load", "unload", "end")
        assert words.index("unload a") < len(words) - 1, words
        eventually(lambda: lane_row(db)["current_model"] is None)
        stop(lane)


# --- orders of operators ---


class Told:
    """Orders as a lane without executors carries them out: what they would be told, what operators read."""

    def __init__(self, *slots: Slot, locks: Locks | None = None) -> None:
        self.sent: list[tuple[int, str, str]] = []
        self.said: dict[int, str] = {}
        crew: Any = self
        self.errands = Errands(policy(*slots, locks=locks), crew, lambda: KNOWN, self.said.__setitem__)

    def tell(self, slot: Slot, kind: str, **header: Any) -> None:
        self.sent.append((slot.index, kind, header["model"]))

    def open(self, *orders: ModelOrder, claiming: bool = True, ready: bool = True) -> None:
        self.errands.ordered(orders)
        self.errands.tick(claiming, ready)


LOAD = ModelOrder(1, "huge", "load")
DROP = ModelOrder(2, "a", "unload")


def test_an_order_waits_for_a_lane_that_starts_or_is_parked_and_for_its_device(tmp_path: Path) -> None:
    where = slot(1, tmp_path, LARGE)
    locks = Locks(GPU_1="waiting")
    told = Told(where, locks=locks)
    told.open(LOAD, ready=False)
    assert told.said[1] == "waiting: the lane is starting"
    told.open(LOAD, claiming=False)
    assert told.said[1] == "waiting: the lane is parked or stops"
    told.open(LOAD)
    assert told.said[1] == "waiting: another lane of this box has GPU-1" and where.errand == 1 and where.occupies
    told.open(LOAD, claiming=False)
    assert where.errand is None, "parked meanwhile: the slot is given back"
    locks.states.clear()
    told.open(LOAD)
    assert told.sent == [(1, "load", "huge")] and told.said[1] == "loading"
    told.errands.answered(where, 1, "loaded in 2.0 s")
    assert told.said[1] == "loaded in 2.0 s on GPU-1"
    told.open(LOAD)
    assert len(told.sent) == 1, "once"


def test_an_executor_that_ends_over_an_order_is_the_answer(tmp_path: Path) -> None:
    loads, drops = slot(1, tmp_path, LARGE), slot(0, tmp_path, SMALL, model="a")
    told = Told(loads, drops)
    told.open(LOAD, DROP)
    assert told.sent == [(1, "load", "huge"), (0, "unload", "a")]
    loads.errand = drops.errand = None
    told.open(LOAD, DROP)
    assert told.said == {
        1: "failed: the executor on GPU-1 ended",
        2: "unloaded: the executor on GPU-0 ended",
    }


def test_an_order_that_cannot_be_met_says_why(tmp_path: Path) -> None:
    small, free = Told(slot(0, tmp_path, SMALL)), Told(slot(0, tmp_path, SMALL, kind="free"))
    small.open(LOAD, DROP, ModelOrder(3, "nope", "load"))
    assert small.said == {
        1: "model huge needs 60 GiB and does not fit: the largest device here has 24.0 GiB",
        2: "not loaded here",
        3: "model nope is not registered here (known: a, b, huge)",
    }
    free.open(LOAD)
    assert free.said[1] == "no slot of this lane takes models"
    both = Told(slot(0, tmp_path, SMALL, model="a"), slot(1, tmp_path, LARGE, model="a"))
    both.errands._gpus.slots[1].errand = 7
    both.open(DROP)
    assert both.said[2] == "waiting: a slot is busy with another order" and both.sent == []


def answer(db: Db, order: str) -> str:
    """What the only lane said."""
    return next(iter(models.answers(db, order).values()), "")


def order(db: Db, action: str, model: str, box: str = "b1") -> str:
    done_ = models.order_model(db, action, model, box=box, requested_by="ann")
    assert done_.id is not None
    return done_.id


def test_an_operator_preloads_and_unloads_a_model(store: Store, db: Db, processes: Processes, tmp_path: Path) -> None:
    gpus, diary = Gpus(tmp_path, card(0), card(1)), Diary(tmp_path)
    about = {"a": {"gib": 8, "load_s": 0.5}, "b": 8, "c": 8, "big": 80, "bad": {"fail": "load"}}
    lane = gpu_lane(processes, store, diary, gpus, about)
    eventually(lambda: lane_row(db)["models_known"])
    load_a = order(db, "load", "a")
    eventually(lambda: lane_row(db)["current_model"] == "a (loading)", what="loading is seen")
    eventually(lambda: answer(db, load_a).startswith("loaded in "), what="the answer")
    eventually(lambda: "held" in [each["lock"] for each in lane_row(db)["detail"]["devices"]])
    assert lane_row(db)["busy"] == 0
    load_b, again = order(db, "load", "b"), order(db, "load", "a", box="*")
    eventually(lambda: answer(db, load_b).startswith("loaded in ") and answer(db, again).startswith("loaded already"))
    devices = {said.split(" on ")[1].split()[0] for said in (answer(db, load_a), answer(db, load_b))}
    assert devices == {card(0)["uuid"], card(1)["uuid"]}, "into the slot that was free, not over a model that is warm"
    done(db, put(db, "a"), put(db, "b"))
    assert diary.said("load") == ["load a", "load b"], "the jobs found them there"

    big, unknown, bad = order(db, "load", "big"), order(db, "load", "nope"), order(db, "load", "bad")
    eventually(lambda: answer(db, big) and answer(db, unknown) and answer(db, bad).startswith("failed"))
    assert "needs 80 GiB and does not fit: the largest device here has 24.0 GiB" in answer(db, big)
    assert "not registered here" in answer(db, unknown)
    assert "MemoryError" in answer(db, bad)

    go = tmp_path / "go"
    jobs = [put(db, model, go=str(go)) for model in ("a", "b")]
    eventually(lambda: len(diary.lines("begin")) == 4, what="both slots work")
    before = diary.said("unload").count("unload b")
    busy, drop = order(db, "load", "c"), order(db, "unload", "b")
    eventually(lambda: answer(db, busy) == "waiting: every slot that could hold it is busy")
    assert diary.said("unload").count("unload b") == before, "no job is interrupted"
    go.touch()
    done(db, *jobs)
    eventually(lambda: "unloaded" in answer(db, drop) and answer(db, busy).startswith("loaded in "))
    rows = db.all("select action, requested_by, detail from control_events order by id")
    assert {row["action"] for row in rows} == {"preload_model", "unload_model"}
    assert {row["requested_by"] for row in rows} == {"ann"} and rows[0]["detail"]["model"] == "a"
    stop(lane)


def test_an_order_that_nothing_came_of_in_its_time_says_why(
    sqlite_store: Store, processes: Processes, tmp_path: Path
) -> None:
    gpus, diary = Gpus(tmp_path, card()), Diary(tmp_path)
    with sqlite_store.connect("test") as db:
        lane = gpu_lane(processes, sqlite_store, diary, gpus, {"a": 1, "b": 1})
        go = tmp_path / "go"
        job = put(db, "a", go=str(go))
        eventually(lambda: diary.lines("begin"))
        late = order(db, "load", "b")
        eventually(lambda: answer(db, late).startswith("waiting"))
        db.run("update model_orders set expires_at = created_at")
        eventually(lambda: answer(db, late) == "given up: waiting: every slot that could hold it is busy")
        go.touch()
        done(db, job)
        assert diary.said("load") == ["load a"]
        stop(lane)


def test_what_was_ordered_is_said_and_nonsense_is_refused_before_any_write(
    store: Store, db: Db, processes: Processes
) -> None:
    engine.configure(db_url=store.url, box="b1")
    assert "no such lane is up" in engine.preload_model("sdxl", requested_by="ann")
    assert "unload of model sdxl ordered" in engine.unload_model("sdxl", box="*")
    for wrong in ({"model": "a b"}, {"model": ""}, {"model": "x", "queue": "nope"}):
        with pytest.raises(BadInput):
            engine.preload_model(**wrong)
    assert db.value("select count(*) from model_orders") == 2
    args = ("queue-worker-control", "--db", store.url, "--box", "b1", "--preload", "sdxl")
    said = processes.spawn(command(*args))
    assert said.wait(30) == 0 and "no such lane is up" in processes.log(said)
    wrong_use = processes.spawn(command(*args, "--unload", "x"))
    assert wrong_use.wait(30) == 2 and "either" in processes.log(wrong_use)
    assert db.value("select count(*) from model_orders") == 3
