"""What is read again only where it differs says the same as what is read anew, whatever was changed in between."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from engine.queue import controls
from engine.snapshot import FleetView, facts_rows, view
from engine.store import Db
from engine.telemetry import sample as payloads
from engine.telemetry.sample import BOX_METRICS, GPU_METRICS, BoxFacts, BoxSample

BOXES, QUEUES, PROJECTS = ("a", "b", "c"), ("cpu", "gpu", "train"), ("", "p")


class Fleet:
    """A database that anybody changes, and what the feed knows besides."""

    def __init__(self, db: Db, rng: random.Random) -> None:
        self.db, self.rng = db, rng
        self.facts = facts_rows({"a": BoxFacts("a", cores=4), "b": BoxFacts("b")})
        self.last: dict[str, datetime] = {}

    def lane(self) -> dict[str, str]:
        pick = self.rng.choice
        return {"box": pick(BOXES), "queue": pick(QUEUES), "project": pick(PROJECTS)}

    def change(self) -> None:
        """One thing that lanes, orchestrators, operators or strangers do."""
        db, rng, one = self.db, self.rng, self.lane()
        of = "where box = {box} and queue = {queue} and project = {project}"
        now = db.now()
        match rng.randrange(14):
            case 0 | 1:
                db.run(
                    "insert into worker_heartbeats (box, queue, project, state, slots, busy) values "
                    "({box}, {queue}, {project}, 'running', 2, {busy}) on conflict (box, queue, project) do update "
                    "set busy = excluded.busy, last_seen = {clock}",
                    **one,
                    busy=rng.randrange(3),
                )
            case 2:
                db.run("delete from worker_heartbeats where box = {box}", box=one["box"])
            case 3:
                db.run(f"update worker_heartbeats set last_seen = {{then}} {of}", **one, then=_ago(now, rng))
            case 4:
                reason = rng.choice([None, "x\ny", "ü\x1f"])
                db.run(
                    f"update worker_heartbeats set flagged_dead_at = {{clock}}, last_exit_reason = {{why}} {of}",
                    **one,
                    why=reason,
                )
            case 5:
                where = rng.choice([one, {**one, "queue": "*"}, {**one, "box": "*"}])
                wanted, by = rng.choice(["on", "off"]), rng.choice("xy")
                controls.set_order(db, where["box"], where["queue"], where["project"], desired=wanted, requested_by=by)
            case 6:
                db.run("delete from worker_controls")
            case 7 | 8:
                db.run(
                    "insert into ingest_jobs (task_name, queue, project, status, claimed_box, attempt, started_at, fencing_token) "
                    "values ('t', 'train', {project}, {status}, {box}, 1, {then}, 1)",
                    **one,
                    status=(status := rng.choice(["queued", "running"])),
                    then=_ago(now, rng) if status == "running" else None,
                )
            case 9:
                db.run(
                    "update ingest_jobs set progress_pct = {pct} where claimed_box = {box}",
                    box=one["box"],
                    pct=rng.randrange(99),
                )
            case 10:
                db.run("delete from ingest_jobs where claimed_box = {box} and status = 'running'", box=one["box"])
            case 11:
                db.run(
                    "insert into job_events (family, job_id, event_type, box, queue, project, elapsed_s) "
                    "values ('ingest', 999, 'completed', {box}, {queue}, {project}, 1.5)",
                    **one,
                )
            case 12:
                self.last[one["box"]] = now - timedelta(seconds=rng.choice([0, 20, 60]))
            case 13:
                self.facts = facts_rows(
                    {box: BoxFacts(box, cores=rng.randrange(2)) for box in BOXES[: rng.randrange(4)]}
                )


def _ago(now: datetime, rng: random.Random) -> datetime:
    return now - timedelta(seconds=rng.choice([0, 5, 29, 40, 400]))


def _still(found: dict[str, Any]) -> tuple[dict[str, Any], list[float]]:
    """A view without what passes by itself, and the times that its ages count from."""
    times: list[float] = []

    def then(row: dict[str, Any], age: str, at: str) -> dict[str, Any]:
        if row[age] is not None:
            times.append(datetime.fromisoformat(at).timestamp() - row[age])
        return {**row, age: None}

    boxes = [
        {
            **box,
            "at": None,
            "sample_age_s": None,
            "lanes": [then(row, "last_seen_s", box["at"]) for row in box["lanes"]],
            "jobs": [then(row, "age_s", box["at"]) for row in box["jobs"]],
        }
        for box in found["boxes"]
    ]
    return {**found, "at": None, "boxes": boxes}, times


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    (rest, times), (other_rest, other_times) = _still(one), _still(other)
    return rest == other_rest and times == pytest.approx(other_times, abs=0.01)


@pytest.mark.parametrize("seed", range(2))
def test_a_view_that_reuses_says_what_a_fresh_one_says(db: Db, seed: int) -> None:
    rng = random.Random(seed)
    fleet, again = Fleet(db, rng), FleetView()
    before: dict[str, Any] | None = None
    for _ in range(45):
        for _ in range(rng.randrange(3)):
            fleet.change()
        got, _, changed = again.read(db, fleet.facts, fleet.last)
        fresh, _ = view(db, None, fleet.facts, fleet.last)
        assert _same(got, fresh)
        assert changed or (before is not None and _same(got, before)), "what is different was not told"
        kept = {box["box"]: box for box in before["boxes"]} if before is not None else {}
        for box in got["boxes"]:
            same = kept.get(box["box"]) is box
            assert same or box["at"] == got["at"], "a box that was made anew has the ages of now"
        before = got


def test_of_a_view_only_what_changed_is_made_anew(db: Db) -> None:
    for box in BOXES:
        db.run("insert into worker_heartbeats (box, queue, state) values ({box}, 'cpu', 'running')", box=box)
    fleet = FleetView()
    first, _, told = fleet.read(db, {}, {})
    assert told and [box["box"] for box in first["boxes"]] == list(BOXES)
    second, _, told = fleet.read(db, {}, {})
    assert not told and all(a is b for a, b in zip(first["boxes"], second["boxes"], strict=True))
    db.run("update worker_heartbeats set busy = 1 where box = 'b'")
    third, _, told = fleet.read(db, {}, {})
    assert told and [a is b for a, b in zip(first["boxes"], third["boxes"], strict=True)] == [True, False, True]
    db.run("insert into worker_heartbeats (box, queue, state) values ('c', 'train', 'running')")
    before = fleet.read(db, {}, {})[0]["boxes"]
    db.run("insert into ingest_jobs (task_name, queue, status) values ('t', 'train', 'queued')")
    after = fleet.read(db, {}, {})[0]["boxes"]
    assert [a is b for a, b in zip(before, after, strict=True)] == [True, True, False]
    assert [lane["queued"] for lane in after[2]["lanes"]] == [0, 1]


def test_an_event_that_commits_late_is_shown(db: Db) -> None:
    """Its number is lower than those that were shown already."""
    event = "insert into job_events (id, family, job_id, event_type) values ({id}, 'ingest', 1, 'completed')"
    fleet = FleetView()
    db.run(event, id=9)
    assert [row["id"] for row in fleet.read(db, {}, {})[0]["events"]] == ["9"]
    db.run(event, id=7)
    assert [row["id"] for row in fleet.read(db, {}, {})[0]["events"]] == ["9", "7"]


def test_an_event_whose_job_was_renamed_says_so_with_the_next_event(db: Db) -> None:
    db.run("insert into ingest_jobs (task_name, queue, status) values ('old', 'train', 'queued')")
    number = db.value("select max(id) as id from ingest_jobs")
    event = "insert into job_events (family, job_id, event_type) values ('ingest', {job}, 'completed')"
    fleet = FleetView()
    db.run(event, job=number)
    assert "old" in fleet.read(db, {}, {})[0]["events"][0]["text"]
    db.run("update ingest_jobs set task_name = 'new'")
    db.run(event, job=number)
    assert fleet.read(db, {}, {})[0]["events"] == view(db, None, {}, {})[0]["events"]


def test_a_payload_of_a_known_form_is_read_as_it_is_cleaned() -> None:
    """The glance lets through what cleaning would leave as it is, and nothing else."""
    rng = random.Random(5)
    values = [
        1.5,
        7,
        -3,
        0.0,
        "ok",
        "x" * 130,
        "a\0b",
        True,
        None,
        float("nan"),
        float("inf"),
        1e17,
        1e18,
        2**63,
        10**400,
        [1],
        "lost",
    ]
    for _ in range(3000):
        card = {name: rng.choice(values) for name in rng.sample(GPU_METRICS, rng.randrange(1, 6))}
        box = {name: rng.choice(values) for name in rng.sample([*BOX_METRICS, "unknown"], rng.randrange(1, 6))}
        got = BoxSample.from_payload({**box, "box": "b", "gpus": [card]}, datetime(2026, 5, 4, tzinfo=UTC))
        clean = payloads.clean
        assert {name: getattr(got, name) for name in box if name in BOX_METRICS} == {
            name: clean(name, value) for name, value in box.items() if name in BOX_METRICS
        }
        cleaned = {name: clean(name, value) for name, value in card.items() if name not in ("state", "gpu_index")}
        assert {name: getattr(got.gpus[0], name) for name in cleaned} == cleaned
        assert got.gpus[0].state in payloads.GPU_STATES and isinstance(got.gpus[0].gpu_index, int)
