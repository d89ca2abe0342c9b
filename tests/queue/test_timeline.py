"""What happened, newest first: jobs' events, people's orders and alerts as one list that can be paged back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.errors import BadInput
from engine.queue import operate, timeline
from engine.queue.events import record
from engine.queue.timeline import happened
from engine.snapshot import jsonable
from engine.store import Db, Json
from tests.queue.conftest import add_ingest


def event(db: Db, kind: str, **values: Any) -> None:
    given: dict[str, Any] = {
        "family": "ingest",
        "job_id": 900,
        "event_type": kind,
        "box": "b1",
        "queue": "default",
    } | values
    record(db, **given)


def alert(db: Db, text: str) -> None:
    db.run(
        "insert into control_events (at, project, box, action, requested_by, detail) "
        "values ({clock}, '', 'attic', 'alert', 'orchestrator', {detail})",
        detail=Json({"kind": "box_dead", "text": text}),
    )


def texts(found: dict[str, Any]) -> list[str]:
    json.dumps(jsonable(found))
    return [row["text"] for row in found["events"]]


@pytest.fixture
def past(db: Db) -> None:
    """Seven things, oldest first."""
    number = add_ingest(db, project="p")
    event(db, "completed", job_id=number, project="p")
    event(db, "requeued", cause="executor_died", exit_code=137, detail={"reason": "137: killed by SIGKILL"})
    operate.park(db, box="b1", queue="default", project="p", policy="drain", reason="dust", requested_by="ops")
    event(db, "trip", cause=None, exit_code=76, box="b2", queue="gpu", node_id="render", family="node")
    alert(db, "box attic is silent")
    event(db, "failed", detail={"error": "ValueError: negative rain\nmore"})
    operate.cancel_job(db, number, requested_by="maria")  # an order, and the event that it makes


KINDS = {
    "all": ["cancelled", "cancel_job", "failed", "alert", "trip", "park", "requeued", "completed"],
    "telling": ["cancelled", "cancel_job", "failed", "alert", "trip", "park", "requeued"],
    "trouble": ["failed", "alert", "trip", "requeued"],
    "jobs": ["cancelled", "failed", "trip", "requeued", "completed"],
    "orders": ["cancel_job", "alert", "park"],
    "completed": ["completed"],
    "park": ["park"],
    "no such kind": [],
}


def test_each_kind_newest_first(db: Db, past: None) -> None:
    for kind, expected in KINDS.items():
        found = happened(db, kind)
        kinds = [row["type"] for row in found["events"]]
        assert sorted(kinds) == sorted(expected), kind
        times = [row["at"] for row in found["events"]]
        assert times == sorted(times, reverse=True)
        assert (found["more"], found["next"], found["whole"]) == (False, None, True)


def test_rows_say_who_what_and_why(db: Db, past: None) -> None:
    rows = {row["type"]: row for row in happened(db, "all")["events"]}
    assert rows["requeued"]["text"] == "b1 default: job 900 requeued (executor died), exit 137: killed by SIGKILL"
    assert rows["failed"]["text"].endswith("failed: ValueError: negative rain")
    park = rows["park"]
    assert (park["source"], park["by"], park["cause"], park["box"]) == ("control", "ops", "drain", "b1")
    assert park["text"].startswith("default on b1 (project p) ordered off") and "(dust), by ops" in park["text"]
    assert (rows["alert"]["cause"], rows["alert"]["text"]) == ("box_dead", "box attic is silent")
    assert rows["cancel_job"]["job_id"] == rows["cancelled"]["job_id"]
    assert isinstance(rows["trip"]["job_id"], str)


FILTERS: list[tuple[dict[str, Any], list[str]]] = [
    ({"project": "p"}, ["cancelled", "cancel_job", "park", "completed"]),
    ({"box": "b2"}, ["trip"]),
    ({"queue": "gpu"}, ["trip"]),
    ({"text": "RENDER trip"}, ["trip"]),
    ({"text": "dust"}, ["park"]),
    ({"text": "maria"}, ["cancel_job", "cancelled"]),
    ({"text": "executor died"}, ["requeued"]),
    ({"text": "work"}, ["cancelled", "cancel_job", "completed"]),
    ({"text": "negative rain"}, ["failed"]),
    ({"text": "attic silent"}, ["alert"]),
    ({"text": "%"}, []),
    ({"text": "no such thing"}, []),
]


def test_filters(db: Db, past: None) -> None:
    for asked, expected in FILTERS:
        kinds = [row["type"] for row in happened(db, "all", **asked)["events"]]
        assert sorted(kinds) == sorted(expected), asked


def test_an_order_for_every_box_is_about_each_of_them(db: Db) -> None:
    operate.park(db, box="*", queue="default", project="")
    operate.park(db, box="b9", queue="default", project="")
    assert [row["box"] for row in happened(db, box="b1")["events"]] == ["*"]
    assert len(happened(db, queue="default")["events"]) == 2


def test_paging_back_shows_each_row_once(db: Db) -> None:
    """However much happens meanwhile, and whichever table has more."""
    for number in range(9):
        event(db, "failed", job_id=number)
        if number % 3 == 0:
            alert(db, f"number {number}")
    seen: list[tuple[str, str]] = []
    after = None
    for _ in range(20):
        page = happened(db, limit=2, after=after)
        seen += [(row["source"], row["id"]) for row in page["events"]]
        after = page["next"]
        event(db, "failed", job_id=99)
        if after is None:
            break
    assert len(seen) == len(set(seen)) == 12


def test_a_filter_that_gives_up_says_so(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "LOOKED", 5)
    event(db, "failed", detail={"error": "needle"})
    for _ in range(7):
        event(db, "failed")
    found = happened(db, text="needle", limit=3)
    assert (found["events"], found["whole"]) == ([], False)
    assert happened(db, limit=3)["whole"]


def test_a_kind_that_is_no_word_is_refused(db: Db) -> None:
    with pytest.raises(BadInput):
        happened(db, "x" * 100)
