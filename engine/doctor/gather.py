"""Gathering the facts: every look has a deadline, and one that fails is a line of its own."""

from __future__ import annotations

import os
import select
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from engine import config
from engine.doctor.facts import Facts, Fleet, Holder, Machine, Postgres, Sqlite, Table
from engine.doctor.findings import Finding, findings
from engine.errors import SchemaMismatch, StoreError, StoreUnavailable
from engine.queue import health
from engine.queue.family import FAMILIES
from engine.store import Db, Store
from engine.store.locks import Presence, new_incarnation, present
from engine.store.migrate import check_schema, required_version, schema_version
from engine.store.postgres import PostgresDb, is_pooled
from engine.telemetry.probes import files
from engine.telemetry.probes.amd import AmdProbe
from engine.telemetry.probes.gpu import GpuReading
from engine.telemetry.probes.guard import Guard
from engine.telemetry.probes.nvidia import NvidiaProbe

T = TypeVar("T")

STATEMENT_S = 5.0
NOTIFY_S = 3.0
SESSION_END_S = 3.0
QUICK_CHECK_S = 10.0
PROBE_S = 5.0
QUERY_SHOWN = 120


def examine(open_it: Callable[[], Store]) -> list[Finding]:
    """Look at everything. ``open_it`` opens the store (it may start a server). Raises ConfigError, nothing else."""
    facts = Facts(where="database")
    try:
        store = open_it()
        facts.where = store.safe_url
        _look(store, facts)
    except StoreError as error:
        facts.unreachable = _line(error)
    facts.machine = machine(Path(str(config.get("probe_root"))), facts)
    return findings(facts, float(config.get("doctor_snapshot_seconds")))


def exit_code(found: Sequence[Finding]) -> int:
    """0 fine, 1 warnings, 2 faults."""
    return max(({"ok": 0, "warning": 1, "fault": 2}[finding.level] for finding in found), default=0)


def _look(store: Store, facts: Facts) -> None:
    if store.path is not None:
        facts.sqlite = Sqlite(str(store.path), exists=store.path.exists())
        if not facts.sqlite.exists:
            return
    with store.connect("doctor", read_only=True, timeout_s=STATEMENT_S) as db:
        _attempt(facts, "clock", lambda: _clock(db, facts))
        if isinstance(db, PostgresDb):
            facts.read_only = bool(db.value("select pg_is_in_recovery()"))
            facts.postgres = Postgres()
            _postgres(store, db, facts.postgres, facts)
        elif facts.sqlite is not None:
            _sqlite(store, db, facts.sqlite, facts)
        facts.schema_needed = required_version(store)
        try:
            check_schema(store, db)
            facts.schema = schema_version(db)
        except SchemaMismatch as error:
            facts.schema_error = _line(error)
            return
        _attempt(facts, "fleet", lambda: _fleet(db, facts))


def _attempt(facts: Facts, check: str, look: Callable[[], T]) -> T | None:
    """One look; its failure is noted, and the others go on. Raises StoreUnavailable when the database went away."""
    try:
        return look()
    except (StoreError, psycopg.Error, sqlite3.Error, OSError, ValueError) as error:
        facts.errors[check] = _line(error)
        return None


def _clock(db: Db, facts: Facts) -> None:
    began, wall = time.monotonic(), time.time()
    theirs = db.now()
    took = time.monotonic() - began
    facts.answer_ms = took * 1000.0
    facts.skew_s = wall + took / 2 - theirs.timestamp() if db.kind == "postgresql" else None


# PostgreSQL.


def _postgres(store: Store, db: PostgresDb, facts: Postgres, all_facts: Facts) -> None:
    row = db.one(
        "select current_setting('server_version_num')::int as num, current_setting('server_version') as name, "
        "current_setting('max_connections')::int as most, (select count(*) from pg_stat_activity "
        "where backend_type = 'client backend') as used"
    )
    if row:
        facts.version, facts.version_text = row["num"], str(row["name"]).split()[0]
        facts.connections, facts.max_connections = row["used"], row["most"]
    facts.pooled = is_pooled(db)
    try:
        facts.listen_ms = _listen(store, db)
    except (StoreError, psycopg.Error, OSError) as error:
        facts.listen_error = _line(error)
    try:
        facts.direct_pooled = _sessions(store, db)
    except (StoreError, psycopg.Error) as error:
        facts.session_error = _line(error)
    facts.holders = _attempt(all_facts, "snapshot", lambda: _holders(db, facts)) or []
    facts.tables = _attempt(all_facts, "bloat", lambda: _tables(db)) or []


def _listen(store: Store, db: Db) -> float:
    """Milliseconds from NOTIFY on the ordinary connection to its arrival at a listener. Raises StoreUnavailable."""
    channel = f"flightdeck_doctor_{new_incarnation()}"
    with store.connect("doctor listen", direct=True, timeout_s=STATEMENT_S) as listener:
        listener.run(f"listen {channel}")
        began = time.monotonic()
        db.notify(channel, "")
        raw: psycopg.Connection[Any] = listener.raw
        while True:
            raw.pgconn.consume_input()
            while (note := raw.pgconn.notifies()) is not None:
                if note.relname.decode() == channel:
                    return (time.monotonic() - began) * 1000.0
            left = began + NOTIFY_S - time.monotonic()
            if left <= 0 or not select.select([raw.fileno()], [], [], left)[0]:
                raise StoreUnavailable(f"no notification within {NOTIFY_S:g} s")


def _sessions(store: Store, db: Db) -> bool:
    """Whether a pooler stands in the way of session locks. Raises StoreUnavailable when they do not behave without."""
    name = new_incarnation()
    with store.connect("doctor session", direct=True, timeout_s=STATEMENT_S) as holder:
        if isinstance(holder, PostgresDb) and is_pooled(holder):
            return True
        Presence(store, name).hold(holder)
        if not present(store, db, [name]):
            raise StoreUnavailable(
                "a session lock is not seen from another session: are these two different databases?"
            )
    until = time.monotonic() + SESSION_END_S
    while present(store, db, [name]):
        if time.monotonic() >= until:
            raise StoreUnavailable("a session lock outlives its connection")
        time.sleep(0.05)
    return False


def _holders(db: Db, facts: Postgres) -> list[Holder]:
    """What keeps dead rows from being vacuumed, oldest first, and how many sessions cannot be seen."""
    facts.hidden = int(
        db.value("select count(*) as n from pg_stat_activity where query = '<insufficient privilege>'") or 0
    )
    sessions = db.all(
        "select pid, application_name, usename, host(client_addr) as client, state, query, "
        "extract(epoch from clock_timestamp() - xact_start)::float8 as age_s from pg_stat_activity "
        "where pid <> pg_backend_pid() and datname = current_database() and backend_type not like 'autovacuum%' "
        "and (backend_xmin is not null or backend_xid is not null) and coalesce(query, '') !~* '^\\s*vacuum' "
        "order by xact_start limit 10"
    )
    holders = [
        Holder(
            "session",
            str(row["pid"]),
            row["age_s"],
            ", ".join(
                part
                for part in (
                    row["application_name"] or "no application name",
                    f"user {row['usename']}",
                    f"from {row['client']}" if row["client"] else "",
                    row["state"],
                )
                if part
            ),
            " ".join(str(row["query"] or "").split())[:QUERY_SHOWN],
        )
        for row in sessions
    ]
    for row in db.all(
        "select gid, owner, extract(epoch from clock_timestamp() - prepared)::float8 as age_s from pg_prepared_xacts "
        "where database = current_database() order by prepared limit 10"
    ):
        holders.append(Holder("prepared", row["gid"], row["age_s"], f"user {row['owner']}"))
    for row in db.all(
        "select slot_name, coalesce(plugin, slot_type) as kind, xmin is not null as pins from pg_replication_slots "
        "where not active order by slot_name limit 10"
    ):
        pins = ", pins a snapshot" if row["pins"] else ""
        holders.append(Holder("slot", row["slot_name"], None, f"{row['kind']}, not active{pins}"))
    return holders


def _tables(db: Db) -> list[Table]:
    tables = []
    for family in FAMILIES:
        row = db.one(
            "select s.n_dead_tup as dead, s.n_live_tup as live, extract(epoch from clock_timestamp() - "
            "greatest(s.last_vacuum, s.last_autovacuum))::float8 as vacuumed_s, "
            "pg_relation_size(c.oid) / 1048576.0 as index_mb, greatest(c.reltuples, 0)::bigint as index_rows "
            "from pg_stat_all_tables s cross join pg_class c where s.relid = to_regclass({name}) "
            "and c.oid = to_regclass({index})",
            name=family.table,
            index=f"{family.table}_claim",
        )
        if row:
            tables.append(
                Table(
                    family.table, row["dead"], row["live"], float(row["index_mb"]), row["index_rows"], row["vacuumed_s"]
                )
            )
    return tables


# SQLite.


def _sqlite(store: Store, db: Db, facts: Sqlite, all_facts: Facts) -> None:
    path = Path(facts.path)
    facts.filesystem = _filesystem(path)
    facts.size_mb = path.stat().st_size / 2**20
    wal = Path(f"{path}-wal")
    facts.wal_mb = wal.stat().st_size / 2**20 if wal.exists() else 0.0
    facts.journal = str(db.value("pragma journal_mode"))
    facts.check = _quick_check(db.raw)
    name = new_incarnation()
    mark = Presence(store, name)
    try:
        mark.hold(db)
        if name not in present(store, db, [name]):
            facts.session_error = "a lock that is held is not seen"
    except OSError as error:
        facts.session_error = _line(error)
    finally:
        _attempt(all_facts, "sessions", mark.release)


def _quick_check(raw: sqlite3.Connection) -> str | None:
    """What SQLite says of the file: ``ok``, or the first errors. None: not done within the deadline."""
    until = time.monotonic() + QUICK_CHECK_S
    raw.set_progress_handler(lambda: int(time.monotonic() > until), 10_000)
    try:
        return "; ".join(str(row[0]) for row in raw.execute("pragma quick_check(3)").fetchall())
    except sqlite3.DatabaseError as error:
        return None if "interrupted" in str(error) else _line(error)
    finally:
        raw.set_progress_handler(None, 0)


def _filesystem(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """The type of the file system that a path lies on; None where the system does not tell."""
    best, kind = "", None
    for line in (files.everything(mounts) or "").splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = fields[4].replace("\\040", " ")
        inside = point == "/" or path == Path(point) or Path(point) in path.parents
        if inside and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


# The fleet and this machine.


def _fleet(db: Db, facts: Facts) -> None:
    lanes = health.lanes(db)
    facts.fleet = Fleet(
        services=health.services(db),
        lanes=lanes,
        unserved=health.unserved(db, lanes),
        unplaceable=health.unplaceable(db),
        schedules=int(db.value("select count(*) as n from schedules where enabled = {true}") or 0),
        waiting=_waiting(db),
    )


def _waiting(db: Db) -> bool:
    parts = ["select 1 as one from workflow_runs where status in ('queued', 'running')"]
    for family in FAMILIES:
        parts.append(f"select 1 as one from {family.table} where status = 'queued' and run_after is null")
        parts.append(f"select 1 as one from {family.table} where status = 'running'")
    return any(db.value(f"{part} limit 1") is not None for part in parts)


def machine(root: Path, facts: Facts) -> Machine:
    """This box: its GPUs, each driver behind a deadline, and its disks."""
    found = Machine()
    readers: tuple[Guard[GpuReading], ...] = (
        Guard("nvidia", NvidiaProbe(root, 2.0).read),
        Guard("amd", AmdProbe(root, 2.0).read),
    )
    paths = [config.data_dir()] + ([Path(facts.sqlite.path).parent] if facts.sqlite is not None else [])
    disks = Guard("disk", lambda: [_disk(path) for path in dict.fromkeys(map(_existing, paths))])
    guards: tuple[Guard[Any], ...] = (*readers, disks)
    for guard in guards:
        guard.ask()
    deadline = time.monotonic() + PROBE_S
    for reader in readers:
        reading = reader.collect(deadline)
        if reading is None:
            found.gpu_errors.append(reader.error or f"{reader.name}: no answer")
            continue
        names = {fact.index: fact.name for fact in reading.facts}
        for gpu in reading.gpus:
            why = "; ".join(dict.fromkeys(reading.absent.get(gpu.gpu_index, {}).values())) if gpu.state != "ok" else ""
            name = names.get(gpu.gpu_index) or gpu.gpu_uuid or reader.name
            found.gpus.append((f"GPU {gpu.gpu_index} {name}", str(gpu.state), why))
    if not found.gpus and _nvidia_on_the_bus(root):
        found.gpu_errors.append("an NVIDIA card is on the bus, but no driver of it runs")
    answer = disks.collect(deadline)
    if answer is None:
        facts.errors["disk"] = disks.error or "no answer"
    found.disks = answer or []
    for guard in guards:
        guard.close(0.1)
    return found


def _nvidia_on_the_bus(root: Path) -> bool:
    base = f"{root}/sys/bus/pci/devices"
    return any(
        files.text(f"{base}/{name}/vendor") == "0x10de"
        and (files.text(f"{base}/{name}/class") or "").startswith("0x03")
        for name in files.children(base)
    )


def _existing(path: Path) -> Path:
    """The path, or the nearest directory above it that is there."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _disk(path: Path) -> tuple[str, float, float]:
    room = os.statvfs(path)
    return str(path), room.f_bavail * room.f_frsize / 2**20, room.f_blocks * room.f_frsize / 2**20


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
