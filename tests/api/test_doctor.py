"""flightdeck doctor: findings as a function of facts, and the real thing on both stores."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from engine import config
from engine.commands import broker
from engine.commands.options import run_app
from engine.doctor import Finding, examine, exit_code
from engine.doctor.facts import Facts, Fleet, Holder, Machine, Postgres, Sqlite, Table
from engine.doctor.findings import findings
from engine.doctor.gather import _filesystem, machine
from engine.orchestrator import loop
from engine.orchestrator.loop import run_orchestrator
from engine.queue import services
from engine.queue.services import Service
from engine.queue.workers import Worker, beat
from engine.store import Db, Store
from engine.store.locks import new_incarnation
from engine.store.migrate import downgrade
from flightdeck.cli import cli
from tests.lane.fleet import add
from tests.support import RefusingServer, eventually


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def doctor(capsys: pytest.CaptureFixture[str], url: str, *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        run_app(cli, "flightdeck", ["doctor", "--db", url, "--box", "here", *args], store_code=2)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def bad(found: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.level, finding.check) for finding in found if finding.level != "ok"]


# The findings, from facts.

LANE: dict[str, Any] = {
    "box": "a",
    "queue": "gpu",
    "project": "",
    "state": "running",
    "slots": 2,
    "age_s": 3.0,
    "flagged_dead_at": None,
    "last_exit_reason": None,
    "detail": {},
}
LEADER: dict[str, Any] = {
    "kind": "orchestrator",
    "box": "head",
    "pid": 7,
    "is_leader": True,
    "age_s": 1.0,
    "last_error": None,
    "last_seen": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "detail": {"sweeps": {"lost_lanes": {"error": None, "failures": 0}}, "dispatch": {"error": None}},
}


def fleet(**changes: Any) -> Facts:
    return Facts("x", schema=3, fleet=replace(Fleet(services=[LEADER], lanes=[LANE]), **changes))


def postgres(**changes: Any) -> Facts:
    return Facts(
        "x", schema=3, postgres=replace(Postgres(version=180000, version_text="18.4", listen_ms=1.0), **changes)
    )


def sqlite(**changes: Any) -> Facts:
    return Facts(
        "x", schema=3, sqlite=replace(Sqlite("/x.db", filesystem="ext4", journal="wal", check="ok"), **changes)
    )


def service(kind: str, **changes: Any) -> dict[str, Any]:
    return {**LEADER, "kind": kind, "is_leader": False, "detail": {}, **changes}


CASES: list[tuple[Facts, list[tuple[str, str]], str]] = [
    (postgres(), [], ""),
    (sqlite(), [], ""),
    (fleet(), [], ""),
    (Facts("x", unreachable="refused"), [("fault", "database")], "start it"),
    (replace(postgres(), read_only=True), [("fault", "database")], "use the primary"),
    (replace(postgres(), answer_ms=400.0), [("warning", "database")], "400.0 ms"),
    (postgres(version=130000, version_text="13.9"), [("fault", "database")], "PostgreSQL 14 or newer"),
    (replace(postgres(), schema_error="no schema yet: run queue-broker bootstrap"), [("fault", "schema")], "bootstrap"),
    (replace(postgres(), skew_s=-5.0), [("warning", "clock")], "5.0 s behind"),
    (replace(postgres(), skew_s=1.9), [], ""),
    (postgres(listen_ms=None, listen_error="nothing came"), [("warning", "listen")], "polling"),
    (postgres(direct_pooled=True), [("warning", "sessions")], "FLIGHTDECK_DB_DIRECT_URL"),
    (postgres(pooled=True), [], ""),
    (postgres(session_error="it outlives"), [("warning", "sessions")], "45 s"),
    (postgres(connections=95, max_connections=100), [("warning", "database")], "95 of 100"),
    (postgres(holders=[Holder("session", "4711", 29.0)], hidden=2), [], ""),
    (replace(postgres(), schema=4, schema_needed=3), [], ""),
    (
        postgres(holders=[Holder("session", "4711", 312.0, "psql, user ana, idle in transaction", "select 1")]),
        [("warning", "snapshot")],
        "session 4711 (psql, user ana, idle in transaction) has held a snapshot for 5 min",
    ),
    (postgres(holders=[Holder("session", "1", 3 * 3600.0)]), [("warning", "snapshot")], "for 3 h"),
    (postgres(holders=[Holder("session", "1", 3 * 86400.0)]), [("warning", "snapshot")], "for 3 days"),
    (postgres(holders=[Holder("prepared", "tx1", 1.0)]), [("warning", "snapshot")], "rollback prepared 'tx1'"),
    (postgres(holders=[Holder("slot", "old")]), [("warning", "snapshot")], "pg_drop_replication_slot('old')"),
    (postgres(tables=[Table("t", 250_000, 10, 10.0, 10)]), [("warning", "bloat")], "250,000 dead rows"),
    (postgres(tables=[Table("t", 10, 10, 100.0, 1000)]), [("warning", "bloat")], "100 MiB"),
    (postgres(tables=[Table("t", 10, 10, 100.0, 1_000_000)]), [], ""),
    (sqlite(exists=False), [("warning", "database")], "no such file"),
    (sqlite(filesystem="nfs4"), [("warning", "file")], "nfs4"),
    (sqlite(filesystem="fuse.sshfs"), [("warning", "file")], "local disk"),
    (sqlite(filesystem="overlay"), [("warning", "file")], "volume"),
    (sqlite(journal="delete"), [("warning", "file")], "delete"),
    (sqlite(check="row 7 missing from index x"), [("fault", "integrity")], "row 7"),
    (sqlite(check=None), [], ""),
    (sqlite(wal_mb=300.0), [("warning", "wal")], "300 MiB"),
    (sqlite(session_error="no"), [("fault", "sessions")], "writable"),
    (fleet(services=[]), [("fault", "leader")], "queue-orchestrator"),
    (fleet(services=[], lanes=[]), [("warning", "leader")], "no leader"),
    (fleet(services=[], lanes=[], waiting=True), [("fault", "leader")], "no leader"),
    (
        fleet(services=[], lanes=[], waiting=True, unserved={("training", "render"): 3}),
        [("fault", "leader"), ("warning", "lanes")],
        "3 jobs wait and no lane serves queue training of project render -> "
        "start queue-claim-worker --queue training --project render",
    ),
    (fleet(services=[{**LEADER, "age_s": 31.0}]), [("fault", "leader")], "no leader"),
    (
        fleet(services=[{**LEADER, "detail": {"sweeps": {"retention": {"error": "boom", "failures": 3}}}}]),
        [("warning", "leader")],
        "head: sweep retention: boom (3 times)",
    ),
    (
        fleet(services=[{**LEADER, "detail": {"chores": {"error": "its thread ended", "restarts": 1}}}]),
        [("warning", "leader")],
        "head: chores: its thread ended",
    ),
    (
        fleet(services=[LEADER, service("scheduler", last_error="nightly: no such task")]),
        [("warning", "scheduler")],
        "nightly",
    ),
    (fleet(services=[LEADER, service("recorder", age_s=61.0)]), [("warning", "recorder")], "silent"),
    (fleet(services=[LEADER, service("recorder", age_s=61.0), service("recorder")]), [], ""),
    (
        fleet(services=[{**LEADER, "detail": {"sweeps": {"retention": {"last_run_at": "2026-01-02T02:54:00+00:00"}}}}]),
        [("warning", "sweeps")],
        "sweep retention has not run since 2026-01-02T02:54:00+00:00",
    ),
    (
        fleet(services=[{**LEADER, "detail": {"sweeps": {"retention": {"last_run_at": "2026-01-02T02:55:00+00:00"}}}}]),
        [],
        "",
    ),
    (fleet(services=[{**LEADER, "detail": {"sweeps": {"x": {"last_run_at": "a foreign text"}}}}]), [], ""),
    (fleet(schedules=2), [("fault", "scheduler")], "2 schedules"),
    (fleet(schedules=2, services=[LEADER, service("scheduler")]), [], ""),
    (fleet(lanes=[{**LANE, "age_s": 50.0}]), [("warning", "lane")], "a/gpu has been silent for 50 s"),
    (fleet(lanes=[{**LANE, "age_s": 5000.0, "state": "stopping"}]), [], ""),
    (fleet(lanes=[{**LANE, "age_s": 50.0, "flagged_dead_at": "x"}]), [("warning", "lane")], "looks dead"),
    (fleet(lanes=[{**LANE, "state": "refused", "last_exit_reason": "no GPU"}]), [("warning", "lane")], "no GPU"),
    (fleet(lanes=[{**LANE, "detail": {"loops": {"probe": "no answer"}}}]), [("warning", "lane")], "probe: no answer"),
    (
        fleet(unplaceable={"no live lane of queue x": 1200}),
        [("warning", "placement")],
        "1,200: no live lane of queue x",
    ),
    (Facts("x", schema=3, machine=Machine(gpu_errors=["NVML: no"])), [("warning", "gpu")], "NVML: no"),
    (
        Facts("x", schema=3, machine=Machine(gpus=[("GPU 0", "lost", "off the bus")])),
        [("warning", "gpu")],
        "off the bus",
    ),
    (Facts("x", schema=3, machine=Machine(gpus=[("GPU 0", "asleep", "")])), [], ""),
    (Facts("x", schema=3, machine=Machine(disks=[("/", 100.0, 1e6)])), [("fault", "disk")], "make room"),
    (Facts("x", schema=3, machine=Machine(disks=[("/", 1000.0, 1e6)])), [("warning", "disk")], "make room"),
    (Facts("x", schema=3, machine=Machine(disks=[("/", 3000.0, 1e6)])), [], ""),
    (Facts("x", schema=3, errors={"bloat": "permission denied"}), [("warning", "bloat")], "could not be checked"),
]


@pytest.mark.parametrize(("facts", "expected", "words"), CASES)
def test_findings(facts: Facts, expected: list[tuple[str, str]], words: str) -> None:
    found = findings(facts)
    assert bad(found) == expected, found
    assert words in " ".join(finding.line() for finding in found if finding.level != "ok")
    assert exit_code(found) == max([{"warning": 1, "fault": 2}[level] for level, _ in expected], default=0)
    assert all("\n" not in finding.line() for finding in found)


# The real thing.


def test_a_fleet_in_order_has_no_finding_but_what_is_true(
    capsys: pytest.CaptureFixture[str], store: Store, db: Db, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("FLIGHTDECK_PROBE_ROOT", str(tmp_path / "empty"))
    monkeypatch.setattr(loop, "BEAT_S", 0.1)
    beat(db, Worker("a", "default", "", new_incarnation()), state="running", slots=3, busy=0)
    stop = threading.Event()
    thread = threading.Thread(target=run_orchestrator, args=(store, stop))
    thread.start()
    try:
        eventually(lambda: db.value("select 1 as one from services where is_leader = {true}"))
        code, out, err = doctor(capsys, store.url, "--json")
        said = json.loads(out)
        trouble = [f for f in said["findings"] if f["level"] != "ok" and f["check"] not in ("file", "disk")]
        assert (trouble, err) == ([], "")
        checks = {f["check"]: f["text"] for f in said["findings"]}
        assert checks["lanes"] == "1 live, 3 slots"
        assert "lost_lanes" in checks["sweeps"] and "retention" in checks["sweeps"]
        assert "every sweep works" in checks["leader"] and checks["gpu"] == "none on this box"
        if store.kind == "postgresql":
            assert {"listen", "sessions", "clock", "bloat", "snapshot"} <= set(checks)
            assert code == 0 == said["exit"]
        else:
            assert checks["integrity"] == "quick check passed" and "sessions" in checks
    finally:
        stop.set()
        thread.join(30)


def test_it_names_the_session_that_holds_a_snapshot(pg_store: Store, pg_url: str) -> None:
    """Q24: who keeps vacuum from removing what died, since when, with which query; and how to end it."""
    config.configure(doctor_snapshot_seconds=0)
    with psycopg.connect(pg_url, application_name="forgotten shell") as raw:
        raw.execute("set transaction isolation level repeatable read")
        raw.execute("select count(*) as kept_open from workflow_runs")
        found = [f for f in examine(lambda: pg_store) if f.check == "snapshot"]
        pid = raw.info.backend_pid
        lines = [f.line() for f in found if f"session {pid} " in f.text]
        assert len(lines) == 1, found
        assert "forgotten shell" in lines[0] and "kept_open" in lines[0] and "idle in transaction" in lines[0]
        assert f"select pg_terminate_backend({pid})" in lines[0]
    config.configure(doctor_snapshot_seconds=30)
    assert [f.level for f in examine(lambda: pg_store) if f.check == "snapshot"] == ["ok"]


def test_it_says_what_ails_the_fleet(capsys: pytest.CaptureFixture[str], store: Store, db: Db) -> None:
    beat(
        db,
        Worker("a", "gpu", "", new_incarnation()),
        state="running",
        slots=1,
        busy=0,
        detail={"loops": {"probe": "NVML\x1b[31m hangs"}},
    )
    beat(db, Worker("b", "gpu", "", new_incarnation()), state="running", slots=1, busy=1)
    db.run("update worker_heartbeats set last_seen = {before[s]}, flagged_dead_at = {now} where box = 'b'", s=90.0)
    services.beat(db, Service("scheduler", "a", "x"), {}, "nightly: no such task")
    db.run("insert into schedules (name, cron, task_name) values ('nightly', '0 3 * * *', 't')")
    add(db, "t", queue="nobody", unplaceable_reason="no live lane of queue nobody")
    code, out, err = doctor(capsys, store.url)
    assert (code, err) == (2, "")
    lines = out.splitlines()
    for words in (
        "no leader",
        "scheduler on a: nightly: no such task",
        "a/gpu: probe: NVML?[31m hangs",
        "b/gpu looks dead: silent for",
        "1 queued jobs that no live slot could hold: 1: no live lane of queue nobody",
    ):
        assert sum(words in line for line in lines) == 1, (words, out)
    assert "\x1b" not in out


def test_jobs_of_a_queue_that_no_lane_serves_are_counted_without_an_orchestrator(
    capsys: pytest.CaptureFixture[str], store: Store, db: Db
) -> None:
    for queue, project in (("left", "render"), ("left", "render"), ("served", "")):
        add(db, "t", queue=queue, project=project)
    beat(db, Worker("a", "served", "", new_incarnation()), state="running", slots=1, busy=0)
    _, out, _ = doctor(capsys, store.url)
    assert "2 jobs wait and no lane serves queue left of project render -> start queue-claim-worker" in out
    assert "queue served" not in out


def test_an_unreachable_database_is_a_fault_and_no_traceback(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    letter = tmp_path / "letter.db"
    letter.write_text("Dear fleet, " * 200)
    with RefusingServer() as server:
        for url in (server.url, "postgresql://u:s3cret@127.0.0.1:1/none", f"sqlite:///{letter}"):
            code, out, err = doctor(capsys, url)
            assert (code, err) == (2, ""), url
            faults = [line for line in out.splitlines() if line.startswith("fault")]
            assert len(faults) == 1 and "s3cret" not in out and "Traceback" not in out
            assert "disk" in out, "what needs no database is looked at all the same"
    code, out, err = doctor(capsys, "mysql://x/y")
    assert (code, out) == (2, "") and len(err.splitlines()) == 1


def test_a_schema_that_is_missing_or_old_is_a_fault(capsys: pytest.CaptureFixture[str], pg_store: Store) -> None:
    downgrade(pg_store, 1)
    code, out, _ = doctor(capsys, pg_store.url)
    assert code == 2 and "queue-broker bootstrap" in out


def test_a_broken_file_is_a_fault(capsys: pytest.CaptureFixture[str], sqlite_store: Store) -> None:
    with sqlite_store.connect("test") as db:
        for _ in range(2000):
            add(db, "t", {"fill": "x" * 200})
        db.value("pragma wal_checkpoint(truncate)")
    assert sqlite_store.path is not None
    size = sqlite_store.path.stat().st_size
    with sqlite_store.path.open("r+b") as file:
        file.seek(size - 40 * 4096)
        file.write(b"\xff" * 8 * 4096)
    code, out, err = doctor(capsys, sqlite_store.url)
    assert code == 2 and "fault    integrity" in out and err == "", out


def test_doctor_changes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'deep/not/there.db'}"
    code, out, _ = doctor(capsys, url)
    assert code == 1 and "no such file" in out
    assert not (tmp_path / "deep").exists()


def test_the_file_system_of_a_path_is_that_of_the_longest_mount_point(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "31 30 0:31 / /srv/my\\040share rw - nfs4 host:/x rw\n"
        "30 22 0:30 / /srv rw shared:1 - ext4 /dev/sda1 rw\n"
        "22 1 0:20 / / rw - overlay overlay rw\n"
        "bad line\n"
    )
    kinds = [_filesystem(Path(p), mounts) for p in ("/x.db", "/srv/x.db", "/srv/my share/x.db", "/srv/my sharex.db")]
    assert kinds == ["overlay", "ext4", "nfs4", "ext4"]
    assert _filesystem(tmp_path, tmp_path / "none") is None


def test_a_card_without_a_driver_is_told(tmp_path: Path) -> None:
    card = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030200\n")
    assert machine(tmp_path, Facts("x")).gpu_errors == ["an NVIDIA card is on the bus, but no driver of it runs"]


# queue-broker status.


def test_status_tells_of_sweeps_services_dead_lanes_and_jobs_without_a_place(
    capsys: pytest.CaptureFixture[str], store: Store, db: Db
) -> None:
    detail = {
        "sweeps": {
            "retention": {
                "failures": 2,
                "error": "boom",
                "acted": 7,
                "last_run_at": "2026-01-02T03:04:05+00:00",
                "took_ms": 1.5,
            },
            "unplaceable": {"failures": 0, "error": None, "acted": 0, "last_run_at": None, "took_ms": None},
        },
        "chores": {"error": None, "restarts": 1},
        "dispatch": {"error": None, "restarts": 0, "events": 5},
    }
    services.beat(db, Service("orchestrator", "head", "x"), detail, "retention: boom")
    services.beat(db, Service("recorder", "a", "y"), {}, None)
    db.run("update services set is_leader = {true} where box = 'head'")
    beat(db, Worker("b", "gpu", "p", new_incarnation()), state="running", slots=1, busy=1)
    db.run("update worker_heartbeats set flagged_dead_at = {now}")
    beat(db, Worker("b", "cpu", "p", new_incarnation()), state="stopping", slots=1, busy=0)  # ended: it counts no more
    add(db, "t", queue="nobody", unplaceable_reason="no live lane of queue nobody")
    with pytest.raises(SystemExit) as ended:
        run_app(broker.app, "queue-broker", ["status", "--db", store.url], store_code=2)
    out = re.sub(r"\b\d+ s\b", "N s", capsys.readouterr().out)
    assert ended.value.code == 0
    for line in (
        "lanes: 1 live\n",
        "unplaceable: 1: no live lane of queue nobody\n",
        "lane b/gpu (project p): looks dead, silent for N s\n",
        "orchestrator head (leads): seen N s ago, error: retention: boom\n",
        "recorder a: seen N s ago\n",
        "loop chores: 1 restarts, error: none now\n",
        "sweep retention: last run 2026-01-02T03:04:05+00:00, took 1.5 ms, 7 done, error: boom (2 times)\n",
        "sweep unplaceable: not run yet\n",
    ):
        assert line in out, out
    assert "loop dispatch" not in out
