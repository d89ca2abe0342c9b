"""Scenario 7: many projects on one database. Nobody takes another's jobs, whatever the haste; one view shows them all."""

from __future__ import annotations

from pathlib import Path

from engine.dag.runs import submit_run
from engine.queue import operate
from engine.snapshot import fleet_snapshot
from engine.store import Db, Store
from tests.dag.steps import chain, run_row, statuses
from tests.lane.fleet import add, beats, ended, pid_in, runs, start_lane, start_orchestrator, status, stop
from tests.support import Processes, eventually

# Names that a sloppy comparison would mix up: the default, a prefix, another case, a pattern.
SERVED = ("", "leads", "leads_2", "Leads")
UNSERVED = ("lead_", "leads%")
JOBS_EACH = 60


def heartbeat(db: Db, project: str, box: str = "b1") -> dict[str, object]:
    row = db.one(
        "select * from worker_heartbeats where box = {box} and queue = 'default' and project = {project}",
        box=box,
        project=project,
    )
    return row or {}


def foreign_claims(db: Db, table: str) -> list[dict[str, object]]:
    """Jobs that were claimed by a lane of another project, found by the incarnation of the claim."""
    return db.all(
        f"select j.id, j.project, h.project as lane_project from {table} j join worker_heartbeats h "
        "on j.claimed_by = h.box || '/' || h.queue || '/' || h.incarnation where j.project <> h.project"
    )


def test_lanes_in_a_hurry_take_their_own_projects_jobs_only(store: Store, processes: Processes) -> None:
    with store.connect("test") as db:
        for _ in range(JOBS_EACH):  # interleaved, so that each lane has others' jobs all around its own
            for project in (*SERVED, *UNSERVED):
                add(db, "noop", project=project)
        start_orchestrator(processes, store)
        lanes = [start_lane(processes, store, "--slots", "2", "--project", project) for project in SERVED]
        lanes.append(start_lane(processes, store, "--project", "leads", box="b2"))
        cpu = start_lane(processes, store, "--project", "leads", queue="cpu")
        mine = submit_run(db, chain({"id": "a", "node": "noop"}, {"id": "b", "node": "noop", "depends_on": ["a"]}), project="leads")  # fmt: skip
        theirs = submit_run(db, chain({"id": "a", "node": "noop"}), project="lead_")

        eventually(
            lambda: (
                not db.value(
                    "select count(*) from ingest_jobs where project {any[served]} and status <> 'completed'",
                    served=list(SERVED),
                )
            ),
            timeout_s=60,
        )
        eventually(lambda: run_row(db, mine)["status"] == "completed")

        left = db.all("select project, status, attempt, count(*) as n from ingest_jobs group by 1, 2, 3")
        assert {(row["project"], row["status"], row["attempt"]): row["n"] for row in left} == {
            **{(project, "completed", 1): JOBS_EACH for project in SERVED},
            **{(project, "queued", 0): JOBS_EACH for project in UNSERVED},
        }
        claimed = db.value("select count(*) from ingest_jobs where claimed_by is not null")
        known = db.value(
            "select count(*) from ingest_jobs j join worker_heartbeats h "
            "on j.claimed_by = h.box || '/' || h.queue || '/' || h.incarnation"
        )
        assert claimed == known == JOBS_EACH * len(SERVED), "every claim is traced to its lane"
        assert foreign_claims(db, "ingest_jobs") == [] and foreign_claims(db, "workflow_node_jobs") == []
        assert statuses(db, theirs) == {"a": "queued"}, "one leader expands it, no lane of another project runs it"
        assert db.value("select count(*) from job_events where event_type in ('stale_write', 'lost_claim')") == 0
        for process in (*lanes, cpu):
            stop(process)


def test_one_view_shows_all_projects_and_an_order_reaches_one(
    store: Store, processes: Processes, tmp_path: Path
) -> None:
    with store.connect("test") as db:
        first = start_lane(processes, store, "--project", "leads")
        second = start_lane(processes, store, "--project", "content")
        jobs = {
            project: add(db, "touch_and_wait", {"path": str(tmp_path / project)}, project=project)
            for project in ("leads", "content")
        }
        pids = {project: pid_in(tmp_path / project) for project in jobs}
        waiting = [add(db, "noop", project="leads") for _ in range(3)]
        add(db, "noop", project="nobody")
        eventually(lambda: all(heartbeat(db, project).get("busy") == 1 for project in jobs))

        view = fleet_snapshot(db=db)
        assert {(row["project"], row["queued"], row["running"]) for row in view["projects"]} >= {
            ("leads", 3, 1),
            ("content", 0, 1),
            ("nobody", 1, 0),
        }
        (box,) = view["boxes"]
        assert {(lane["project"], lane["queue"], lane["busy"]) for lane in box["lanes"]} == {
            ("leads", "default", 1),
            ("content", "default", 1),
        }
        assert {job["project"]: job["id"] for job in box["jobs"]} == {p: str(id) for p, id in jobs.items()}
        (alone,) = fleet_snapshot("content", db)["boxes"]
        assert {lane["project"] for lane in alone["lanes"]} == {job["project"] for job in alone["jobs"]} == {"content"}

        operate.park(db, box="b1", queue="default", project="leads")
        eventually(lambda: heartbeat(db, "leads")["state"] == "parked")
        assert status(db, jobs["leads"]) == "queued" and not runs(pids["leads"])
        assert heartbeat(db, "content")["state"] == "running" and runs(pids["content"])
        (tmp_path / "content.go").touch()
        assert ended(db, jobs["content"])["attempt"] == 1
        more = add(db, "noop", project="content")
        assert ended(db, more)["status"] == "completed"
        assert all(status(db, job) == "queued" for job in waiting), "the neighbour does not help out"
        operate.resume(db, box="b1", queue="default", project="leads")
        (tmp_path / "leads.go").touch()
        for job in (jobs["leads"], *waiting):
            assert ended(db, job)["status"] == "completed"
        stop(first)
        stop(second)


def test_a_lane_of_no_project_is_a_project_of_its_own(store: Store, processes: Processes) -> None:
    """The default project is the empty name; it matches itself and nothing else."""
    with store.connect("test") as db:
        theirs, mine = add(db, "noop", project="leads"), add(db, "noop")
        lane = start_lane(processes, store, "--once")
        assert lane.wait(60) == 0, processes.log(lane)
        assert (status(db, theirs), status(db, mine)) == ("queued", "completed")
        by_setting = start_lane(processes, store, "--once", env={"FLIGHTDECK_PROJECT": "leads"})
        assert by_setting.wait(60) == 0, processes.log(by_setting)
        assert status(db, theirs) == "completed"
        assert beats(db, "stopping")["queue"] == "default"
