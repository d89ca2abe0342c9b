"""deploy/roles.sql on a real server: each role does its part with the functions that its programs call, and no more."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from engine.dag.inputs import submit_input
from engine.dag.retry import retry_run
from engine.dag.runs import submit_run
from engine.errors import NotAllowed
from engine.orchestrator.loop import run_orchestrator
from engine.queue import controls, enqueue, models, operate
from engine.queue.claim import ClaimRequest, claim
from engine.queue.finish import Outcome, finish
from engine.queue.workers import Worker
from engine.registry import register_ingest_task, register_node
from engine.snapshot import fleet_snapshot
from engine.store import Db, Store
from engine.store.locks import new_incarnation
from engine.store.migrate import migrate
from tests.support import ROOT, Processes, command, eventually

ROLES = ("read", "submit", "operator", "worker")
GRAPH = {"name": "two", "nodes": [{"id": "a", "node": "step"}, {"id": "b", "node": "step", "depends_on": ["a"]}]}


class Logins:
    """A login in each role of one database; the roles have names of their own, because a server shares them."""

    def __init__(self, url: str) -> None:
        self.url, self.prefix = url, f"fd{secrets.token_hex(4)}_"
        script = (ROOT / "deploy" / "roles.sql").read_text().replace("flightdeck_", self.prefix)
        with psycopg.connect(url, autocommit=True) as raw:
            raw.execute(script)
            raw.execute(script)  # idempotent
            for role in ROLES:
                raw.execute(f"create user {self.prefix}{role}_login password 'secret' in role {self.prefix}{role}")

    def store(self, role: str) -> Store:
        parts = urlsplit(self.url)
        place = parts.netloc.rpartition("@")[2]
        return Store(urlunsplit(parts._replace(netloc=f"{self.prefix}{role}_login:secret@{place}")))

    def drop(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as raw:
            for role in ROLES:
                for name in (f"{self.prefix}{role}_login", f"{self.prefix}{role}"):
                    raw.execute(f"drop owned by {name}")
                    raw.execute(f"drop role {name}")


@pytest.fixture
def logins(pg_url: str) -> Iterator[Logins]:
    made = Logins(pg_url)
    yield made
    made.drop()


@pytest.fixture(autouse=True)
def tasks() -> None:
    register_ingest_task("step", dict, max_attempts=2)
    register_node("step", dict)


def refused(db: Db, sql: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        db.raw.execute(sql)


def put(db: Db, **more: object) -> int:
    return int(enqueue.enqueue(db, task_name="step", queue="default", **more).id)  # type: ignore[arg-type]


def test_who_submits_puts_jobs_and_runs_in_and_can_neither_end_nor_change_them(logins: Logins) -> None:
    with logins.store("submit").connect("test") as db:
        first = enqueue.enqueue(db, task_name="step", queue="default", idempotency_key="k")
        assert enqueue.enqueue(db, task_name="step", queue="default", idempotency_key="k").existing
        assert enqueue.get_job(db, first.id).status == "queued"
        assert len(enqueue.enqueue_many(db, task_name="step", queue="default", args_list=[{}, {}])) == 2
        run = submit_run(db, GRAPH)
        assert db.value("select count(*) as n from workflow_node_jobs where run_id = {id}", id=run) == 1
        for sql in (
            "update ingest_jobs set status = 'cancelled'",
            "delete from ingest_jobs",
            "insert into ingest_jobs (task_name, status) values ('step', 'completed')",
            "insert into executions (job_id, fencing_token) values (1, 1)",
            "update workflow_runs set graph = '{}'",
            "update workflow_node_jobs set status = 'completed'",
            "insert into worker_controls (box, queue) values ('*', '*')",
            "insert into control_events (action) values ('park')",
            "select * from flight_recorder",
            "select * from control_events",
            "create table mine (id int)",
        ):
            refused(db, sql)


def test_an_operator_sees_all_and_orders_and_can_neither_claim_nor_complete(logins: Logins) -> None:
    with Store(logins.url).connect("test") as owner:
        jobs = [put(owner) for _ in range(3)]
        run = submit_run(owner, GRAPH)
    with logins.store("operator").connect("test") as db:
        assert fleet_snapshot(db=db)["store"] == "postgresql"
        operate.park(db, box="*", queue="default", policy="drain", requested_by="me")
        operate.resume(db, box="*", queue="default", requested_by="me")
        operate.cordon(db, box="b", requested_by="me")
        operate.uncordon(db, box="b", requested_by="me")
        assert operate.run_next(db, jobs[0], "me").changed
        assert operate.cancel_job(db, jobs[1], "me").changed
        assert operate.retry_job(db, jobs[1], "me").changed
        assert operate.cancel_run(db, run, "me").changed
        assert retry_run(db, run, "me")
        # As queue-broker-web does: a node that cannot be given its inputs fails at once, with its reason.
        lost = submit_run(
            db, {"name": "one", "nodes": [{"id": "a", "node": "step", "inputs": {"x": {"$context": "none"}}}]}
        )
        assert "has no 'none'" in db.value("select error from workflow_runs where id = {id}", id=lost)
        models.order_model(db, action="unload", model="m", box="b", requested_by="me")
        worker = Worker("b", "default", "", new_incarnation())
        with pytest.raises(Exception, match="permission denied"):
            claim(db, ClaimRequest(worker, 1, 600.0))
        for sql in (
            "insert into executions (job_id, fencing_token) values (1, 1)",
            "update ingest_jobs set result = '{}'",
            "update ingest_jobs set args = '{}'",
            "update ingest_jobs set fencing_token = 9",
            "delete from ingest_jobs",
            "delete from job_events",
            "update job_events set detail = '{}'",
            "delete from control_events",
            "update worker_heartbeats set state = 'running'",
            "insert into flight_recorder (box, at) values ('b', now())",
            "create table mine (id int)",
        ):
            refused(db, sql)


REFUSED = [
    ("submit", "queue-broker", ("status",), "flightdeck_read, flightdeck_operator or flightdeck_worker"),
    ("read", "queue-worker-control", ("--queue", "training", "--off"), "flightdeck_operator"),
    ("submit", "flightdeck", ("snapshot",), "flightdeck_read, flightdeck_operator or flightdeck_worker"),
    ("operator", "queue-claim-worker", ("--queue", "training", "--once"), "flightdeck_worker"),
    ("operator", "queue-recorder", ("--once",), "flightdeck_worker"),
    ("submit", "queue-orchestrator", (), "flightdeck_worker"),
    ("operator", "queue-scheduler", (), "flightdeck_worker"),
]


def test_a_command_that_may_not_says_in_one_line_who_may(logins: Logins, processes: Processes) -> None:
    started = []
    for role, program, args, who in REFUSED:
        named = ("--box", "b") if program != "flightdeck" else ()
        started.append(
            (processes.spawn(command(program, *args, "--db", logins.store(role).url, *named)), role, args, who)
        )
    for process, role, args, who in started:
        code, said = process.wait(60), processes.log(process).strip()
        assert code == 1 and len(said.splitlines()) == 1, (role, args, code, said)
        assert "permission denied" in said and f", {who} may (deploy/roles.sql)" in said, (role, args, said)
    with pytest.raises(NotAllowed, match="the schema's owner may"):
        migrate(logins.store("operator"), ledger="mine")


def test_a_run_that_fails_at_once_is_recorded_by_who_submits_and_ended_by_the_orchestrator(logins: Logins) -> None:
    graph = {"name": "one", "nodes": [{"id": "a", "node": "step", "inputs": {"x": {"$context": "none"}}}]}
    with logins.store("submit").connect("test") as db:
        lost = submit_run(db, graph)
        with pytest.raises(psycopg.errors.UniqueViolation), db.transaction():  # the caller's transaction is kept
            inside = submit_run(db, graph)
            assert db.value("select status from workflow_runs where id = {id}", id=inside) == "queued"
            raise psycopg.errors.UniqueViolation
        assert db.value("select count(*) as n from workflow_runs") == 1
    with logins.store("read").connect("test") as db, pytest.raises(NotAllowed, match="flightdeck_submit"):
        submit_run(db, graph)
    run_orchestrator(logins.store("worker"), threading.Event(), once=True)
    with Store(logins.url).connect("test") as owner:
        row = owner.one("select status, error from workflow_runs where id = {id}", id=lost)
    assert row is not None and row["status"] == "failed" and "has no 'none'" in row["error"]


def test_an_operator_answers_a_node_that_waits_for_a_person(logins: Logins) -> None:
    with Store(logins.url).connect("test") as owner:
        graph = {"name": "ask", "nodes": [{"id": "q", "input": {"prompt": "Go?"}}]}
        run = submit_run(owner, graph)
    with logins.store("operator").connect("test") as db:
        assert submit_input(db, run, "q", {"yes": True}, requested_by="me")


def test_who_reads_sees_all_and_writes_nothing(logins: Logins) -> None:
    with Store(logins.url).connect("test") as owner:
        job = put(owner)
    with logins.store("read").connect("test") as db:
        assert fleet_snapshot(db=db)["queues"] == [{"queue": "default", "project": "", "queued": 1}]
        assert enqueue.get_job(db, job).id == str(job)
        for table in ("ingest_jobs", "worker_controls", "control_events", "services", "boxes", "notices", "schedules"):
            refused(db, f"insert into {table} default values")
            refused(db, f"delete from {table}")
        refused(db, "update ingest_jobs set is_priority = true")
        refused(db, "select nextval('job_id_seq')")
        refused(db, "create table mine (id int)")


def test_the_fleets_processes_run_as_workers_who_give_no_orders(logins: Logins, processes: Processes) -> None:
    """A lane, an orchestrator, a scheduler and a recorder, logged in as workers, take a job and a run to their ends."""
    store = logins.store("worker")
    with Store(logins.url).connect("test") as owner:
        job = int(enqueue.enqueue(owner, task_name="train", queue="training", args={"steps": 2}).id)
        run = submit_run(owner, {"name": "one", "nodes": [{"id": "a", "node": "no_such_node"}]})
        started = [
            processes.spawn(command(name, "--db", store.url, "--box", "b", *args))
            for name, args in (
                ("queue-orchestrator", ()),
                ("queue-scheduler", ()),
                ("queue-recorder", ()),
                ("queue-claim-worker", ("--queue", "training")),
                ("queue-claim-worker", ("--queue", "cpu")),
            )
        ]

        def seen() -> tuple[object, ...]:
            return (
                owner.value("select status from ingest_jobs where id = {id}", id=job),
                owner.value("select status from workflow_runs where id = {id}", id=run),
                owner.value("select count(*) > 0 as n from flight_recorder"),
                owner.value("select count(*) as n from services"),
            )

        wanted = ("completed", "failed", True, 3)
        try:
            eventually(lambda: seen() == wanted)
        except AssertionError:
            print(seen(), *(processes.log(each) for each in started), sep="\n")
            raise
        operate.park(owner, box="b", queue="training")
        eventually(
            lambda: owner.value("select state from worker_heartbeats where queue = 'training'") == "parked",
            what="parked",
        )
    for process in started:
        assert "permission denied" not in processes.log(process)
    with store.connect("test") as db:
        worker = Worker("x", "default", "", new_incarnation())
        with Store(logins.url).connect("test") as owner:
            other = put(owner)
        assert [each.id for each in claim(db, ClaimRequest(worker, 1, 600.0))] == [other]
        assert finish(db, worker, [Outcome(other, 1, "completed", json.dumps({}))]).stale == set()
        for sql in (
            "insert into worker_controls (box, queue) values ('*', '*')",
            "update worker_controls set desired = 'on'",
            "insert into model_orders (box, model, action) values ('b', 'm', 'load')",
            "update engine_schema_version set version = 1",
            "create table mine (id int)",
            "drop table ingest_jobs",
            "truncate ingest_jobs",
            "alter table ingest_jobs add column x int",
        ):
            refused(db, sql)
        assert controls.order_for(db, "b", "training", "").desired == "off"
