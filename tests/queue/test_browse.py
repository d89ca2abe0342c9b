"""Lists of jobs: what is in them, in which order, where they stop, and that they say so."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.errors import BadInput
from engine.queue import browse as browsing
from engine.queue import browse_waiting, operate
from engine.queue.browse import SORTS, browse, counts
from engine.queue.family import INGEST
from engine.queue.finish import Outcome, finish
from engine.queue.lease import progress
from engine.queue.waiting import classes, pairs
from engine.store import Db
from tests.queue.conftest import FUTURE, PAST, Row, add_ingest, add_many, add_node, add_run, lane, take


def ids(found: dict[str, Any]) -> list[int]:
    return [int(job["id"]) for job in found["jobs"]]


@pytest.fixture
def fleet(db: Db) -> dict[str, int]:
    """One job of every kind, by a name for each."""
    run = add_run(db, project="p")
    made = {
        "waits": add_ingest(db, priority=50),
        "later": add_ingest(db, run_after=FUTURE),
        "due": add_ingest(db, run_after=PAST, project="p"),
        "node": add_node(db, run, "render", node="video", queue="gpu", required_model="m1", project="p"),
        "person": add_node(db, run, "approve", status="awaiting_input", project="p"),
        "skipped": add_node(db, run, "left-out", status="skipped"),
        "done": add_ingest(db, status="completed", claimed_box="b7", finished_at=PAST),
        "cancelled": add_ingest(db, status="cancelled", error="cancelled by ops before it ran"),
    }
    made["failed"] = add_ingest(db, queue="other")
    worker = lane("other")
    (job,) = take(db, worker)
    finish(
        db,
        worker,
        [Outcome(job.id, job.fencing_token, "failed", error="ValueError: negative rain\nframes", exit_code=1)],
    )
    made["runs"] = add_ingest(db, queue="other", project="q")
    (job,) = take(db, lane("other", box="b2", project="q"))
    return made


LISTS = {
    "live": ["runs", "person", "due", "node", "waits"],
    "running": ["runs"],
    "queued": ["due", "node", "waits"],
    "scheduled": ["later"],
    "awaiting_input": ["person"],
    "failed": ["failed"],
    "cancelled": ["cancelled"],
    "completed": ["done", "skipped"],
    "all": ["waits", "later", "due", "node", "person", "skipped", "done", "cancelled", "failed", "runs"],
}


def test_each_status_lists_its_jobs_of_all_projects_and_both_families(db: Db, fleet: dict[str, int]) -> None:
    assert set(LISTS) == set(SORTS)
    for status, expected in LISTS.items():
        found = browse(db, status)
        assert sorted(ids(found)) == sorted(fleet[name] for name in expected), status
        assert (found["status"], found["more"], found["whole"]) == (status, False, True)
        assert found["sort"] == SORTS[status][0]


def test_a_row_says_what_an_operator_wants_of_it(db: Db, fleet: dict[str, int]) -> None:
    jobs = {int(job["id"]): job for job in browse(db, "all")["jobs"]}
    node, failed, runs = jobs[fleet["node"]], jobs[fleet["failed"]], jobs[fleet["runs"]]
    assert (node["family"], node["name"], node["node_id"], node["model"]) == ("node", "video", "render", "m1")
    assert isinstance(node["run_id"], str) and isinstance(node["id"], str)
    assert (failed["family"], failed["name"], failed["error"]) == ("ingest", "work", "ValueError: negative rain")
    assert (failed["attempt"], failed["claimed_box"]) == (1, "b1")
    assert (runs["claimed_box"], runs["started_at"] is None, runs["is_priority"]) == ("b2", False, False)


FILTERS: list[tuple[dict[str, Any], list[str]]] = [
    ({"project": "p"}, ["due", "node", "person"]),
    ({"project": ""}, ["waits", "later", "skipped", "done", "cancelled", "failed"]),
    ({"queue": "gpu"}, ["node"]),
    ({"queue": "gpu", "project": "q"}, []),
    ({"box": "b7"}, ["done"]),
    ({"text": "RENDER"}, ["node"]),
    ({"text": "m1 video"}, ["node"]),
    ({"text": "negative rain"}, ["failed"]),
    ({"text": "rain work"}, ["failed"]),
    ({"text": "ops"}, ["cancelled"]),
    ({"text": "%"}, []),
    ({"text": "v_deo"}, []),
    ({"text": "'; drop table ingest_jobs; --"}, []),
]


def test_filters(db: Db, fleet: dict[str, int]) -> None:
    """Text is data: no wildcard, no SQL."""
    for asked, expected in FILTERS:
        assert sorted(ids(browse(db, "all", **asked))) == sorted(fleet[name] for name in expected), asked


def test_a_job_is_found_by_its_id_and_by_its_run(db: Db, fleet: dict[str, int]) -> None:
    (node,) = browse(db, "queued", queue="gpu")["jobs"]
    assert fleet["waits"] in ids(browse(db, "all", text=str(fleet["waits"])))
    assert fleet["node"] in ids(browse(db, "live", text=f"{node['run_id']} video"))


def test_a_box_filters_queued_rows_that_may_run_only_there(db: Db) -> None:
    bound = add_ingest(db, only_boxes=["b1"])
    add_ingest(db, only_boxes=["b2"])
    add_ingest(db)
    assert ids(browse(db, "queued", box="b1")) == [bound]
    assert ids(browse(db, "live", box="b1")) == [bound]


def test_an_unknown_status_is_refused(db: Db) -> None:
    with pytest.raises(BadInput, match="is no status of jobs"):
        browse(db, "finished")


def test_a_sort_that_a_list_has_not_counts_as_its_first(db: Db) -> None:
    assert browse(db, "failed", sort="longest")["sort"] == "newest"


def _queue(db: Db) -> list[Row]:
    """Queued rows of many classes, created in an order that has nothing to do with their ids."""
    chance = random.Random(7)
    run = add_run(db)
    for number in range(60):
        at = f"2026-01-01T00:{chance.randrange(60):02d}:{chance.randrange(60):02d}.{number:06d}+00:00"
        shared: Row = {"priority": chance.choice((10, 100)), "is_priority": chance.random() < 0.1, "created_at": at}
        if chance.random() < 0.5:
            add_ingest(
                db, queue=chance.choice(("default", "other")), project=chance.choice(("", "p")),
                only_boxes=chance.choice(([], ["b1"])), **shared,
            )  # fmt: skip
        else:
            add_node(db, run, f"n{number}", queue="gpu", required_model=chance.choice(("m1", "m2")), **shared)
    rows = db.all("select id, priority, is_priority, created_at from ingest_jobs")
    return rows + db.all("select id, priority, is_priority, created_at from workflow_node_jobs")


def test_queued_rows_of_many_classes_come_in_one_order(db: Db) -> None:
    """Each class is read by its index, in its own order; merged they are as if all had been sorted."""
    rows = _queue(db)
    keys: dict[str, Any] = {
        "oldest": lambda row: (row["created_at"], row["id"]),
        "newest": lambda row: (-row["created_at"].timestamp(), -row["id"]),
        "priority": lambda row: (not row["is_priority"], row["priority"], row["created_at"], row["id"]),
    }
    for sort, key in keys.items():
        expected = [row["id"] for row in sorted(rows, key=key)]
        assert ids(browse(db, "queued", sort=sort)) == expected
        few = browse(db, "queued", sort=sort, limit=9)
        assert ids(few) == expected[:9] and few["more"]
        assert ids(browse(db, "queued", sort=sort, text="work")) == expected  # a filter changes no order


def test_classes_are_found_one_by_one(db: Db) -> None:
    """The loose scan knows every class, and the oldest row of each band."""
    rows = _queue(db)
    assert pairs(db) == [("default", ""), ("default", "p"), ("gpu", ""), ("other", ""), ("other", "p")]
    known = db.all("select distinct queue, project, place, band from ingest_jobs")
    found = classes(db, INGEST, bands=True)
    assert sorted((c.queue, c.project, c.place, c.band) for c in found) == sorted(tuple(row.values()) for row in known)
    firsts = {c.first_at for c in found}
    assert min(row["created_at"] for row in rows if row["id"] in _ingest_ids(db)) in firsts
    assert len(classes(db, INGEST, bands=True, limit=2)) == 2
    assert {c.queue for c in classes(db, INGEST, queue="other")} == {"other"}


def _ingest_ids(db: Db) -> set[int]:
    return {row["id"] for row in db.all("select id from ingest_jobs")}


def test_running_jobs_longest_first_and_what_is_only_claimed_last(db: Db) -> None:
    first, second, third = (add_ingest(db) for _ in range(3))
    take(db, lane(), 1)
    worker = lane(box="b2")
    take(db, worker, 1)
    take(db, lane(box="b3"), 1, begin=False)
    progress(db, worker, [(second, 1, 40, "half way")])
    found = browse(db, "running")
    assert ids(found) == [first, second, third]
    assert (found["jobs"][1]["progress_pct"], found["jobs"][1]["progress_text"]) == (40, "half way")
    assert ids(browse(db, "running", sort="newest")) == [third, second, first]


@pytest.mark.parametrize("status", ["failed", "all", "completed"])
def test_pages_go_on_where_the_last_one_ended(db: Db, status: str) -> None:
    """Every job once, whichever family has more of them, whatever is enqueued meanwhile."""
    state = {"failed": "failed", "all": "failed", "completed": "completed"}[status]
    run = add_run(db)
    made = [add_ingest(db, status=state) for _ in range(9)]
    made += [add_node(db, run, f"n{i}", status=state) for i in range(14)]
    made += [add_ingest(db, status=state) for _ in range(5)]
    seen: list[int] = []
    after = None
    for _ in range(10):
        page = browse(db, status, limit=4, after=after)
        seen += ids(page)
        after = page["next"]
        add_ingest(db, status=state)  # new ones stand in front and move no page
        if after is None:
            break
    assert sorted(seen) == sorted(made) and len(seen) == len(set(seen))


def test_a_filter_that_gives_up_says_so(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    """D25: no list reads a whole history; what was not looked at is not passed over in silence."""
    for module in (browsing, browse_waiting):
        monkeypatch.setattr(module, "LOOKED", 20)
    add_many(db, 1, status="failed", error="the one")
    add_many(db, 30, status="failed", error="another")
    found = browse(db, "failed", text="the one", limit=5)
    assert (found["jobs"], found["whole"], found["looked"]) == ([], False, 20)
    assert browse(db, "failed", text="another", limit=5)["whole"]
    add_many(db, 30, queue="other")
    assert not browse(db, "queued", text="needle", limit=5)["whole"]
    assert browse(db, "queued", text="needle", queue="default", limit=5)["whole"]


def test_counts_stop_and_say_so(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "COUNT_CAP", 5)
    monkeypatch.setattr(browsing, "QUEUED_CAP", 5)
    run = add_run(db)
    add_many(db, 9)
    add_many(db, 6, status="failed", project="p")
    add_many(db, 2, status="failed")
    add_ingest(db, status="cancelled")
    add_node(db, run, "a", status="awaiting_input", project="p")
    found = counts(db)
    assert found["queued"] == {"n": 5, "capped": True}
    assert found["failed"] == {"n": 5, "capped": True}
    assert found["cancelled"] == {"n": 1, "capped": False}
    assert found["awaiting_input"] == {"n": 1, "capped": False}
    assert found["running"] == {"n": 0, "capped": False}
    assert counts(db, "p")["queued"] == {"n": 0, "capped": False}
    assert counts(db, "p")["awaiting_input"]["n"] == 1


def test_run_next_shows_on_the_row(db: Db) -> None:
    add_ingest(db)
    wanted = add_ingest(db)
    operate.run_next(db, wanted)
    assert ids(browse(db, "queued", sort="priority"))[0] == wanted
    assert browse(db, "queued", sort="priority")["jobs"][0]["is_priority"]


def test_odd_rows_of_others_stop_no_page(db: Db) -> None:
    """What plain SQL may write: endless times on PostgreSQL, bytes for names on SQLite, halves of JSON."""
    import json

    from engine.queue.detail import job_detail
    from engine.queue.queues import queues_view
    from engine.queue.timeline import happened
    from engine.snapshot import jsonable

    run = add_run(db)
    if db.kind == "postgresql":
        for when in ("infinity", "-infinity", "0044-03-15 BC"):
            db.run(
                "insert into ingest_jobs (task_name, status, created_at, started_at, run_after) "
                "select 'work', s.status, {at}::timestamptz, {at}::timestamptz, case when s.status = 'queued' then "
                "{at}::timestamptz end from (values ('queued'), ('running'), ('failed'), ('completed')) as s(status)",
                at=when,
            )
            db.run(
                "insert into job_events (family, job_id, event_type, created_at) values ('ingest', 1, 'failed', {at})",
                at=when,
            )
        db.run("update workflow_runs set graph = '[]'")
        db.run("insert into control_events (at, action, detail) values ('infinity', '', '[7]')")
    else:
        db.raw.execute(
            "insert into ingest_jobs (task_name, queue, project, created_at, args, claimed_box) "
            "values (x'ff00', x'6162', x'ff', 'yesterday', 'no json', x'00')"
        )
        db.raw.execute("insert into ingest_jobs (task_name, status, error) values ('work', 'failed', x'ff0a')")
        db.raw.execute(
            "insert into job_events (family, job_id, event_type, box, detail, created_at) "
            "values ('ingest', 1, x'ff', x'ff', '[', 'never')"
        )
        db.raw.execute("insert into control_events (action, detail, box) values (x'ff', '7', x'ff')")
        db.raw.execute("update workflow_runs set graph = 'no json'")
    node = add_node(db, run, "a")
    for status in SORTS:
        json.dumps(jsonable(browse(db, status)))
        browse(db, status, text="work")
    for kind in ("all", "trouble"):
        json.dumps(jsonable(happened(db, kind)))
        happened(db, kind, text="x")
    json.dumps(jsonable(queues_view(db)))
    for row in db.all("select id from ingest_jobs"):
        json.dumps(jsonable(job_detail(db, row["id"])))
    json.dumps(jsonable(job_detail(db, node)))
