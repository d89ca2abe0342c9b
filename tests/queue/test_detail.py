"""One job in full: what went in and came out, its attempts, its run, its log, and in words why it waits."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import engine
from engine.errors import BadInput
from engine.queue import detail, operate
from engine.queue.detail import job_detail, why_it_waits, why_no_hardware
from engine.queue.finish import Outcome, finish
from engine.queue.logs import Tail, write_tails
from engine.queue.outline import outline, run_outline
from engine.queue.requeue import requeue
from engine.queue.workers import beat
from engine.snapshot import jsonable
from engine.store import Db
from tests.queue.conftest import FUTURE, add_ingest, add_node, add_run, job, lane, take

NOW = datetime(2026, 3, 4, 14, 0, tzinfo=UTC)


def look(db: Db, job_id: int) -> dict[str, Any]:
    found = job_detail(db, job_id)
    assert found is not None
    json.dumps(jsonable(found))  # what a recording keeps
    return found


def test_the_whole_story_of_a_job_that_failed(db: Db) -> None:
    number = add_ingest(db, args={"frames": 3, "title": "\u5d50"}, max_attempts=1)
    worker = lane(box="b1")
    (first,) = take(db, worker)
    write_tails(db, worker, [Tail(first.id, first.fencing_token, 1, "one\ntwo\n", 8)])
    finish(
        db, worker, [Outcome(first.id, first.fencing_token, "failed", error="ValueError: no\nTraceback", exit_code=1)]
    )
    found = look(db, number)
    row = found["job"]
    assert (row["family"], row["id"], row["status"], row["attempt"]) == ("ingest", str(number), "failed", 1)
    assert (row["claimed_box"], row["error"]) == ("b1", "ValueError: no\nTraceback")
    assert json.loads(found["input"]["text"]) == {"frames": 3, "title": "\u5d50"}
    assert found["input"]["text"].count("\n") == 3 and not found["input"]["cut"]
    assert found["output"] is None and found["execution"] is None
    (event,) = found["events"]
    assert (event["type"], event["attempt"], event["box"], event["exit_code"]) == ("failed", 1, "b1", 1)
    assert (found["log"]["text"], found["log"]["size"], found["log"]["cut"]) == ("one\ntwo\n", 8, False)
    assert found["run"] is None and found["waits"] == [] and found["ahead"] is None
    assert found["hardware"] == [] and found["hardware_why"] == "n/a: shorter than 10 s"


def test_the_committed_effect_of_a_job_that_completed(db: Db) -> None:
    number = add_ingest(db)
    worker = lane()
    (taken,) = take(db, worker)
    finish(db, worker, [Outcome(taken.id, taken.fencing_token, "completed", output_json=json.dumps({"rows": 7}))])
    found = look(db, number)
    assert json.loads(found["output"]["text"]) == {"rows": 7}
    assert found["execution"]["fencing_token"] == str(taken.fencing_token)
    assert found["execution"]["worker"] == worker.owner


def test_attempts_stand_in_their_order_and_the_newest_are_kept(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detail, "EVENTS_SHOWN", 3)
    number = add_ingest(db)
    for _ in range(4):
        worker = lane()
        (taken,) = take(db, worker)
        requeue(db, worker, {taken.id: taken.fencing_token}, "operator_stop", exit_code=79)
    found = look(db, number)
    assert [event["attempt"] for event in found["events"]] == [2, 3, 4] and found["events_cut"]
    assert {event["cause"] for event in found["events"]} == {"operator_stop"}


def test_a_large_payload_is_cut_and_says_so(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detail, "PAYLOAD_SHOWN", 100)
    found = look(db, add_ingest(db, args={"text": "x" * 500}))
    assert found["input"]["cut"] and found["input"]["size"] > 500 and len(found["input"]["text"]) == 100


def test_texts_of_another_writer_are_not_read_whole(db: Db) -> None:
    """Megabytes that every open page of the job asked for every two seconds."""
    job_id = add_ingest(db)
    db.run(
        "update ingest_jobs set error = {much}, progress_text = {much} where id = {id}", much="x" * 3_000_000, id=job_id
    )
    assert len(json.dumps(jsonable(look(db, job_id)))) < 50_000


def test_a_log_is_shown_from_the_start_of_a_line(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detail, "LOG_SHOWN", 10)
    add_ingest(db)
    worker = lane()
    (taken,) = take(db, worker)
    write_tails(db, worker, [Tail(taken.id, taken.fencing_token, 1, "first line\nsecond\n", 18)])
    log = look(db, taken.id)["log"]
    assert (log["text"], log["cut"], log["attempt"]) == ("second\n", True, 1)


def test_no_such_job_and_no_id(db: Db) -> None:
    assert job_detail(db, 999_999) is None
    with pytest.raises(BadInput):
        job_detail(db, "seven")


GRAPH = {
    "name": "clip",
    "nodes": [
        {"id": "fetch"},
        {"id": "render", "depends_on": ["fetch"]},
        {"id": "sound", "depends_on": ["fetch"]},
        {"id": "merge", "depends_on": ["render", "sound"]},
        {"id": "approve", "depends_on": ["merge"], "input": {"prompt": "good?", "schema": {"type": "boolean"}}},
    ],
}


def test_the_run_of_a_node_as_an_indented_list(db: Db) -> None:
    run = add_run(db, graph=GRAPH, workflow_name="clip", retry_of=3)
    add_node(db, run, "fetch", status="completed")
    add_node(db, run, "sound", status="completed")
    render = add_node(db, run, "render", queue="gpu", required_model="m1")
    found = look(db, render)["run"]
    assert (found["id"], found["workflow"], found["status"], found["retry_of"]) == (str(run), "clip", "running", "3")
    shown = [(node["node_id"], node["depth"], node["status"], node["waits_for"]) for node in found["nodes"]]
    assert shown == [
        ("fetch", 0, "completed", []),
        ("render", 1, "queued", []),
        ("sound", 1, "completed", []),
        ("merge", 2, "not yet", ["render"]),
        ("approve", 3, "not yet", ["merge"]),
    ]
    assert found["states"] == {"completed": 2, "queued": 1, "not yet": 2} and found["hidden"] == 0
    assert found["nodes"][1]["id"] == str(render) and found["nodes"][1]["model"] == "m1"


def test_what_a_node_wants_to_be_told(db: Db) -> None:
    run = add_run(db, graph=GRAPH)
    number = add_node(db, run, "approve", status="awaiting_input")
    assert look(db, number)["asked"] == {"prompt": "good?", "schema": {"type": "boolean"}, "submitted": False}
    engine.submit_input(run, "approve", True, conn=db)
    assert look(db, number)["asked"]["submitted"]


def test_a_long_graph_keeps_the_node_its_neighbours_and_what_has_not_ended() -> None:
    """A chain of 3,000: no recursion, and the list is cut around what matters."""
    from engine.queue.outline import _kept

    nodes = [{"id": f"n{i}", "depends_on": [f"n{i - 1}"] if i else []} for i in range(3000)]
    rows = [_node_row(i, "running" if i == 2990 else "completed") for i in range(2995)]
    found = outline({"nodes": nodes}, rows)
    assert [node["depth"] for node in found] == list(range(3000))
    kept = [node["node_id"] for node in _kept(found, "n1500", 50)]
    assert len(kept) == 50 and {"n1499", "n1500", "n1501", "n2990"} <= set(kept)
    assert kept == sorted(kept, key=lambda name: int(name[1:]))


def _node_row(number: int, status: str) -> dict[str, Any]:
    names = (
        "queue",
        "model",
        "box",
        "attempt",
        "progress_pct",
        "started_at",
        "finished_at",
        "unplaceable_reason",
        "error",
    )
    return {"id": number, "node_id": f"n{number}", "status": status, **dict.fromkeys(names)}


def test_a_graph_that_no_submit_would_take_is_listed_all_the_same() -> None:
    circle = {"nodes": [{"id": "a", "depends_on": ["b"]}, {"id": "b", "depends_on": ["a", "gone"]}, {"no": "id"}, 7]}
    found = outline(circle, [_node_row(9, "queued")])
    assert {node["node_id"]: node["status"] for node in found} == {"a": "not yet", "b": "not yet", "n9": "queued"}
    assert outline({"nodes": "no list"}, []) == [] and outline({}, []) == []


def test_there_is_no_such_run(db: Db) -> None:
    assert run_outline(db, 12345) is None


def test_how_many_go_before_it_are_those_that_are_claimed_before_it(db: Db) -> None:
    add_ingest(db, priority=200)
    add_ingest(db, priority=5, only_boxes=["b1"])
    for _ in range(3):
        add_ingest(db)
    mine = add_ingest(db)
    add_ingest(db)
    add_ingest(db, queue="other")
    operate.run_next(db, add_ingest(db))
    found = look(db, mine)["ahead"]
    before = 0
    while take(db, lane(box="b1"))[0].id != mine:
        before += 1
    assert found == {"n": before, "capped": False} and before == 5


def test_a_count_of_what_goes_before_it_stops(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detail, "AHEAD_CAP", 3)
    for _ in range(6):
        number = add_ingest(db)
    assert look(db, number)["ahead"] == {"n": 3, "capped": True}


def _row(**over: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "status": "queued", "queue": "gpu", "unplaceable_reason": None, "run_after": None, "only_boxes": [], "avoid_boxes": [],
        "last_lost_at": None, "last_lost_box": None,
    }  # fmt: skip
    return row | over


def _lane(box: str = "spark", **over: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "box": box, "queue": "gpu", "project": "", "state": "running", "desired": "on", "flagged": False,
        "last_seen_s": 2.0, "slots": 1, "busy": 0,
    }  # fmt: skip
    return row | over


ORDER = {
    "box": "spark", "queue": "gpu", "project": "", "desired": "off", "policy": "hard", "reason": "new fan",
    "until": NOW + timedelta(hours=2), "requested_by": "ops", "updated_at": NOW,
}  # fmt: skip

REASONS: list[tuple[dict[str, Any], str | None, list[dict[str, Any]], list[dict[str, Any]], list[str]]] = [
    (_row(), None, [_lane()], [], []),
    (_row(), None, [], [], ["no lane serves queue gpu of this project"]),
    (
        _row(unplaceable_reason="no live lane of queue gpu"), None, [], [],
        ["no lane serves queue gpu of this project"],
    ),
    (_row(), "cancelled", [_lane()], [], ["its run is cancelled: it will be cancelled"]),
    (_row(unplaceable_reason="model m fits nowhere"), None, [_lane()], [], ["no slot could hold it: model m fits nowhere"]),
    (_row(run_after=NOW + timedelta(minutes=5)), None, [_lane()], [], ["not before 2026-03-04 14:05:00 UTC, in 5 min"]),
    (_row(run_after=NOW - timedelta(minutes=5)), None, [_lane()], [], []),
    (
        _row(only_boxes=["attic"]), None, [_lane()], [],
        ["it may run only on attic", "no lane of queue gpu is on a box that it may use"],
    ),
    (
        _row(avoid_boxes=["spark"]), None, [_lane()], [],
        ["it may not run on spark", "no lane of queue gpu is on a box that it may use"],
    ),
    (
        _row(last_lost_box="spark", last_lost_at=NOW - timedelta(seconds=4)), None, [_lane()], [],
        ["it was lost on spark, which is not offered it for 10 s"],
    ),
    (
        _row(), None, [_lane(desired="off", state="parked")], [ORDER],
        ["gpu on spark is ordered off by ops, until 2026-03-04 16:00 UTC: new fan"],
    ),
    (_row(), None, [_lane(last_seen_s=95.0)], [], ["gpu on spark is down"]),
    (_row(), None, [_lane(busy=1), _lane("halo", slots=2, busy=2)], [], ["every slot is busy: 3 of 3 on spark, halo"]),
    (_row(), None, [_lane(busy=1), _lane("halo")], [], []),
    (_row(), None, [_lane(state="stopping")], [], ["no lane serves queue gpu of this project"]),
]  # fmt: skip


@pytest.mark.parametrize(("row", "run", "lanes", "orders", "expected"), REASONS)
def test_why_a_job_waits_in_words(
    row: dict[str, Any], run: str | None, lanes: list[Any], orders: list[Any], expected: list[str]
) -> None:
    assert why_it_waits(row, NOW, None if run is None else {"status": run}, lanes, orders) == expected


def test_the_reasons_are_those_of_the_database(db: Db) -> None:
    worker = lane("default", box="b1")
    beat(db, worker, state="running", slots=1, busy=0)
    number = add_ingest(db, run_after=FUTURE, only_boxes=["b1"])
    operate.park(db, box="b1", queue="default", project="", reason="dust", requested_by="ops")
    reasons = look(db, number)["waits"]
    assert [reason.split(",")[0][:20] for reason in reasons] == [
        "not before 2100-01-0",
        "it may run only on b",
        "default on b1 is ord",
    ]
    assert reasons[-1] == "default on b1 is ordered off by ops: dust"
    assert job(db, number)["status"] == "queued"


def test_why_a_job_has_no_share_of_its_hardware() -> None:
    def why(status: str, ran_s: float | None, recorded: bool) -> str:
        started = None if ran_s is None else NOW - timedelta(seconds=ran_s)
        over = status in ("completed", "failed")
        return why_no_hardware(
            {"status": status, "started_at": started, "finished_at": NOW if over else None}, NOW, recorded
        )

    assert why("queued", None, True) == "n/a: it has not run"
    assert why("cancelled", None, True) == "n/a: it never ran"
    assert why("completed", 4.0, True) == "n/a: shorter than 10 s"
    assert why("completed", 40.0, False) == "n/a: no recorder on that box"
    assert why("completed", 40.0, True) == "n/a: no sample of it was kept"
    assert "from its 10th second on" in why("running", 40.0, True)


def test_the_share_that_the_recorder_wrote(db: Db) -> None:
    number = add_ingest(db)
    db.run(
        "insert into job_hardware (job_id, gpu_index, power_ms, thermal_ms, temp_max_c, samples) "
        "values ({id}, 1, 1500, 88000, 86, 40)",
        id=number,
    )
    (share,) = look(db, number)["hardware"]
    assert (share["gpu_index"], share["thermal_ms"], share["brake_ms"], share["samples"]) == (1, 88000, None, 40)
