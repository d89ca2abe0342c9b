"""Scenario 8: warm models. One load for many jobs, jobs to the slot that is warm, swap, idle unload, what fits nowhere."""

from __future__ import annotations

import time
from pathlib import Path

from engine.store import Db, Store
from tests.fakes.gpus import Gpus, card
from tests.lane.fleet import QUICK, row, stop
from tests.lane.gpu_fleet import TABLE, Diary, device_of, done, gpu_lane, lane_row, put
from tests.support import Processes, command, eventually

MODELS = {"speech": {"gib": 8, "load_s": 0.3}, "image": 12}


def test_many_jobs_of_one_model_are_one_load_then_it_is_swapped_and_dropped_when_idle(
    store: Store, db: Db, processes: Processes, tmp_path: Path
) -> None:
    gpus, diary = Gpus(tmp_path, card()), Diary(tmp_path)
    go = tmp_path / "go"
    env = {"FLIGHTDECK_MODEL_IDLE_SECONDS": "1"}
    lane = gpu_lane(processes, store, diary, gpus, MODELS, env=env)
    first = put(db, "speech", go=str(go))
    eventually(lambda: diary.lines("begin"), what="the first job of the model runs")
    older = put(db, "image")
    rest = [put(db, "speech") for _ in range(9)]
    go.touch()
    done(db, first, older, *rest)
    words = diary.said("load", "unload", "end")
    assert words == ["load speech", *["end speech"] * 10, "unload speech", "load image", "end image"], (
        "warm jobs go before an older one of another model, which then costs one swap"
    )
    result = row(db, rest[-1], TABLE)["output"]
    assert (result["model"], result["device"]) == ("<speech>", card()["uuid"])
    last = diary.lines("end")[-1]
    eventually(lambda: diary.said("unload")[-1:] == ["unload image"], what="the idle unload")
    assert time.monotonic() - last.at >= 1.0, "not before its time"
    eventually(lambda: lane_row(db)["current_model"] is None and device_of(db).get("lock") is None)
    stop(lane)


def test_a_job_goes_to_the_slot_that_has_its_model(store: Store, db: Db, processes: Processes, tmp_path: Path) -> None:
    gpus, diary = Gpus(tmp_path, card(0), card(1)), Diary(tmp_path)
    lane = gpu_lane(processes, store, diary, gpus, MODELS)
    go = tmp_path / "go"
    done_first = [put(db, model, go=str(go)) for model in ("speech", "image")]
    eventually(lambda: len(diary.lines("begin")) == 2, what="a model on each GPU")
    go.touch()
    done(db, *done_first)
    where = {line.detail: line.device for line in diary.lines("load")}
    jobs: dict[str, list[int]] = {model: [] for model in where}
    for model in ("image", "image", "speech", "image", "speech"):
        jobs[model].append(put(db, model))
        done(db, jobs[model][-1])
    for model, ids in jobs.items():
        assert {row(db, id, TABLE)["output"]["device"] for id in ids} == {where[model]}
    assert len(diary.lines("load")) == 2
    stop(lane)


def test_a_model_that_fits_no_live_gpu_is_flagged_until_one_appears(
    store: Store, db: Db, processes: Processes, tmp_path: Path
) -> None:
    """The reason stands on the job; a lane with a GPU that is large enough takes it away by taking the job."""
    small, large = tmp_path / "small", tmp_path / "large"
    small.mkdir(), large.mkdir()
    diary = Diary(tmp_path)
    about = {"huge": 60, "speech": 8}
    args = ("queue-orchestrator", "--db", store.url, "--box", "head")
    orchestrator = processes.spawn(command(*args), env={**QUICK, "FLIGHTDECK_UNPLACEABLE_AFTER": "0.5"})
    first = gpu_lane(processes, store, diary, Gpus(small, card(0)), about)
    eventually(lambda: lane_row(db)["models_fit"] == ["speech"])
    huge, unknown, fine = put(db, "huge"), put(db, "nobody-knows"), put(db, "speech")
    eventually(
        lambda: all(row(db, job, TABLE)["unplaceable_reason"] for job in (huge, unknown)), what="both are flagged"
    )
    assert row(db, huge, TABLE)["unplaceable_reason"].startswith("model huge fits on no device")
    assert "nobody-knows" in row(db, unknown, TABLE)["unplaceable_reason"]
    done(db, fine)
    second = gpu_lane(processes, store, diary, Gpus(large, card(1, total_mb=81_920)), about, box="b2")
    done(db, huge)
    ended = row(db, huge, TABLE)
    assert (ended["unplaceable_reason"], ended["claimed_box"], ended["attempt"]) == (None, "b2", 1)
    assert row(db, unknown, TABLE)["status"] == "queued" and row(db, unknown, TABLE)["unplaceable_reason"]
    for process in (first, second, orchestrator):
        stop(process)
