"""From facts to findings: what is wrong, and what to do. Pure; every line stands alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from engine.doctor.facts import Facts, Fleet, Holder, Machine, Postgres, Sqlite
from engine.queue.health import LANE_SILENT_S, live

Level = Literal["ok", "warning", "fault"]

SKEW_S = 2.0
SLOW_MS = 250.0
SERVICE_SILENT_S = 60.0
LEADER_SILENT_S = 30.0
SWEEP_SILENT_S = 600.0
DEAD_ROWS = 200_000
INDEX_MB = 64.0
INDEX_ROW_BYTES = 1024.0
WAL_MB = 256.0
LOW_DISK_MB, LOW_DISK_SHARE, NO_DISK_MB = 2048.0, 0.05, 200.0
SHARED_FILESYSTEMS = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "gluster", "lustre", "afs")
LEAST_SERVER = 140000


@dataclass(frozen=True)
class Finding:
    """``do``: what helps; empty when nothing is to be done."""

    level: Level
    check: str
    text: str
    do: str = ""

    def line(self) -> str:
        return f"{self.level:8} {self.check:10} {self.text}" + (f" -> {self.do}" if self.do else "")


def findings(facts: Facts, snapshot_s: float = 30.0) -> list[Finding]:
    """Every finding, in the order of the checks. ``snapshot_s``: how old a snapshot may be."""
    found = list(_database(facts))
    if facts.unreachable is None:
        if facts.postgres is not None:
            found += _postgres(facts.postgres, snapshot_s)
        if facts.sqlite is not None:
            found += _sqlite(facts.sqlite)
        if facts.fleet is not None:
            found += _fleet(facts.fleet)
    if facts.machine is not None:
        found += _machine(facts.machine)
    for check, error in facts.errors.items():
        found.append(Finding("warning", check, f"could not be checked: {error}"))
    return found


def _database(facts: Facts) -> Iterator[Finding]:
    if facts.unreachable is not None:
        yield Finding(
            "fault",
            "database",
            facts.unreachable,
            "start it, or correct the URL (--db, FLIGHTDECK_DB_URL); lanes keep what they run for --max-offline",
        )
        return
    if facts.sqlite is not None and not facts.sqlite.exists:
        yield Finding(
            "warning", "database", f"{facts.where}: no such file yet", "the first command that writes makes it"
        )
        return
    name = f"PostgreSQL {facts.postgres.version_text}" if facts.postgres else "SQLite"
    answer = f", answers in {facts.answer_ms:.1f} ms" if facts.answer_ms is not None else ""
    if facts.postgres and facts.postgres.version < LEAST_SERVER:
        yield Finding("fault", "database", f"{name} ({facts.where}) is too old", "PostgreSQL 14 or newer is needed")
    elif facts.read_only:
        yield Finding(
            "fault", "database", f"{facts.where} takes no writes: a standby, or set to read only", "use the primary"
        )
    elif facts.answer_ms is not None and facts.answer_ms > SLOW_MS:
        yield Finding("warning", "database", f"{name} ({facts.where}){answer}", "look at its load and at the way to it")
    else:
        yield Finding("ok", "database", f"{name} ({facts.where}){answer}")
    if facts.schema_error is not None:
        yield Finding("fault", "schema", facts.schema_error)
    elif facts.schema is not None:
        newer = f", newer than this program's {facts.schema_needed}" if facts.schema > facts.schema_needed else ""
        yield Finding("ok", "schema", f"version {facts.schema}{newer}")
    if facts.skew_s is not None:
        off = f"this box's clock is {abs(facts.skew_s):.1f} s {'ahead of' if facts.skew_s > 0 else 'behind'} the database's"
        if abs(facts.skew_s) > SKEW_S:
            yield Finding(
                "warning", "clock", f"{off}; jobs do not mind, logs and samples do", "run chrony or ntpd here"
            )
        else:
            yield Finding("ok", "clock", off)


def _postgres(facts: Postgres, snapshot_s: float) -> Iterator[Finding]:
    if facts.listen_error is not None:
        text = f"LISTEN does not work: {facts.listen_error}; work is found by polling, up to a second later"
        yield Finding("warning", "listen", text, _direct(facts))
    elif facts.listen_ms is not None:
        yield Finding("ok", "listen", f"a notification came back in {facts.listen_ms:.1f} ms")
    if facts.direct_pooled or facts.session_error is not None:
        why = facts.session_error or "a pooler stands before the database"
        text = f"{why}: lost lanes are seen by their heartbeats only, after 45 s instead of 5"
        yield Finding("warning", "sessions", text, _direct(facts))
    else:
        behind = " (the ordinary URL goes through a pooler, the direct one past it)" if facts.pooled else ""
        yield Finding("ok", "sessions", f"session locks live and die with their connection{behind}")
    yield from _bloat(facts)
    yield from _holders(facts, snapshot_s)
    if facts.max_connections and facts.connections >= 0.9 * facts.max_connections:
        text = f"{facts.connections} of {facts.max_connections} connections are used"
        yield Finding("warning", "database", text, "raise max_connections; a lane needs 3, an orchestrator 5")


def _direct(facts: Postgres) -> str:
    if facts.pooled or facts.direct_pooled:
        return "set FLIGHTDECK_DB_DIRECT_URL to an address that goes past the pooler"
    return "see the server's log"


def _bloat(facts: Postgres) -> Iterator[Finding]:
    bad = False
    for table in facts.tables:
        since = "" if table.vacuumed_s is None else f", vacuumed {_age(table.vacuumed_s)} ago"
        wide = table.index_mb >= INDEX_MB and table.index_mb * 2**20 > INDEX_ROW_BYTES * max(1, table.index_rows)
        if table.dead >= DEAD_ROWS or wide:
            bad = True
            text = f"{table.name}: {table.dead:,} dead rows{since}; the index of its queue has {table.index_mb:.0f} MiB"
            do = f"vacuum (index_cleanup on) {table.name}; if the dead rows stay, see snapshot"
            yield Finding("warning", "bloat", text, do)
    if facts.tables and not bad:
        parts = ", ".join(f"{t.name} {t.dead:,} dead rows, queue index {t.index_mb:.1f} MiB" for t in facts.tables)
        yield Finding("ok", "bloat", parts)


def _holders(facts: Postgres, snapshot_s: float) -> Iterator[Finding]:
    old = [h for h in facts.holders if h.kind != "session" or (h.age_s or 0.0) >= snapshot_s]
    for holder in old:
        yield _holder(holder)
    if not old:
        hidden = (
            f" ({facts.hidden} sessions of other users cannot be seen: grant pg_read_all_stats)" if facts.hidden else ""
        )
        yield Finding("ok", "snapshot", f"nothing holds a snapshot for {_age(snapshot_s)} or longer{hidden}")


def _holder(holder: Holder) -> Finding:
    age = f" for {_age(holder.age_s)}" if holder.age_s is not None else ""
    harm = "nothing that died since can be vacuumed, claims get slower"
    if holder.kind == "session":
        query = f"; its query: {holder.query}" if holder.query else ""
        text = f"session {holder.name} ({holder.who}) has held a snapshot{age}: {harm}{query}"
        return Finding(
            "warning", "snapshot", text, f"end its transaction, or select pg_terminate_backend({holder.name})"
        )
    if holder.kind == "prepared":
        text = f"prepared transaction {holder.name!r} ({holder.who}) has been open{age}: {harm}"
        return Finding("warning", "snapshot", text, f"commit prepared or rollback prepared '{holder.name}'")
    text = f"replication slot {holder.name!r} ({holder.who}) keeps what its consumer has not read: disk fills up"
    return Finding(
        "warning", "snapshot", text, f"start its consumer, or select pg_drop_replication_slot('{holder.name}')"
    )


def _sqlite(facts: Sqlite) -> Iterator[Finding]:
    if not facts.exists:
        return
    kind = facts.filesystem or "unknown"
    if kind.startswith(SHARED_FILESYSTEMS):
        text = f"the file lies on {kind}: its locks may not hold between machines"
        yield Finding("warning", "file", text, "SQLite is for one box: put it on a local disk, or use PostgreSQL")
    elif kind == "overlay":
        text = "the file lies on an overlay: other containers do not see its locks, and it goes with the container"
        yield Finding("warning", "file", text, "mount a volume for it")
    else:
        yield Finding("ok", "file", f"{facts.size_mb:.1f} MiB on {kind}")
    if facts.journal is not None and facts.journal != "wal":
        yield Finding(
            "warning", "file", f"journal mode {facts.journal} instead of wal", "open it once with a command that writes"
        )
    if facts.check is None:
        yield Finding("ok", "integrity", "the quick check did not end in time; nothing bad so far")
    elif facts.check != "ok":
        yield Finding(
            "fault", "integrity", facts.check, "stop the lanes, keep a copy, restore a backup (or sqlite3 .recover)"
        )
    else:
        yield Finding("ok", "integrity", "quick check passed")
    if facts.wal_mb >= WAL_MB:
        text = f"the WAL has {facts.wal_mb:.0f} MiB: a reader keeps it from being reset"
        yield Finding("warning", "wal", text, "end long-running readers (a sqlite3 shell, a backup)")
    if facts.session_error is not None:
        text = f"session locks do not work: {facts.session_error}"
        yield Finding("fault", "sessions", text, "the directory beside the database must be writable, on a local disk")
    else:
        yield Finding("ok", "sessions", "session locks live and die with their process")


def _fleet(facts: Fleet) -> Iterator[Finding]:
    yield from _leader(facts)
    yield from _services(facts)
    yield from _lanes(facts)
    if facts.unplaceable:
        total = sum(facts.unplaceable.values())
        worst = sorted(facts.unplaceable.items(), key=lambda item: -item[1])
        reasons = "; ".join(f"{n:,}: {why}" for why, n in worst[:5])
        more = f"; and {len(worst) - 5} more reasons" if len(worst) > 5 else ""
        text = f"{total:,} queued jobs that no live slot could hold: {reasons}{more}"
        yield Finding("warning", "placement", text, "start such a lane, or cancel them")
    elif _leads(facts) is not None:  # who judges it
        yield Finding("ok", "placement", "every queued job has a live slot that could hold it")


def _orchestrators(facts: Fleet) -> list[dict[str, Any]]:
    return [s for s in facts.services if s["kind"] == "orchestrator" and s["age_s"] <= LEADER_SILENT_S]


def _leads(facts: Fleet) -> dict[str, Any] | None:
    return next((s for s in _orchestrators(facts) if s["is_leader"]), None)


def _leader(facts: Fleet) -> Iterator[Finding]:
    orchestrators, leader = _orchestrators(facts), _leads(facts)
    if leader is None:
        wanted = facts.waiting or any(live(lane) for lane in facts.lanes)
        text = "no leader: graphs do not move on and lost work is not brought back"
        yield Finding(
            "fault" if wanted else "warning", "leader", text, "start queue-orchestrator (any number, on any box)"
        )
        return
    errors = dict(_ailing(leader["detail"]))
    waiting = f", {len(orchestrators) - 1} more waiting" if len(orchestrators) > 1 else ""
    if not errors:
        yield Finding("ok", "leader", f"{leader['box']} (pid {leader['pid']}){waiting}; every sweep works")
    for name, error in errors.items():
        yield Finding("warning", "leader", f"{leader['box']}: {name}: {error}", "see the log of that orchestrator")
    yield from _sweeps(leader)


def _sweeps(leader: dict[str, Any]) -> Iterator[Finding]:
    """When each sweep ran last, by the leader's clock; one that has not run for long although its leader lives."""
    sweeps = leader["detail"].get("sweeps")
    runs = {name: state.get("last_run_at") for name, state in sweeps.items()} if isinstance(sweeps, dict) else {}
    late = [name for name, at in runs.items() if at and _since(at, leader["last_seen"]) > SWEEP_SILENT_S]
    for name in late:
        text = f"{leader['box']}: sweep {name} has not run since {runs[name]}"
        yield Finding("warning", "sweeps", text, "restart that orchestrator; another one takes over")
    if runs and not late:
        shown = ", ".join(f"{name} {at[11:19] if at else 'not yet'}" for name, at in sorted(runs.items()))
        yield Finding("ok", "sweeps", f"last runs, UTC: {shown}")


def _since(iso: str, now: Any) -> float:
    try:
        return float((now - datetime.fromisoformat(iso)).total_seconds())
    except (TypeError, ValueError):  # somebody else's row
        return 0.0


def _ailing(detail: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The side loops and sweeps of a leader that fail, with their errors."""
    for name, state in detail.items():
        if name == "sweeps" or not isinstance(state, dict):
            continue
        if state.get("error"):
            yield name, str(state["error"])
    sweeps = detail.get("sweeps")
    for name, state in (sweeps if isinstance(sweeps, dict) else {}).items():
        if isinstance(state, dict) and state.get("error"):
            times = f" ({state['failures']} times)" if state.get("failures") else ""
            yield f"sweep {name}", f"{state['error']}{times}"


def _services(facts: Fleet) -> Iterator[Finding]:
    alive = {(s["kind"], s["box"]) for s in facts.services if s["age_s"] <= SERVICE_SILENT_S}
    for service in facts.services:
        kind, box = service["kind"], service["box"]
        name = f"{kind} on {box}"
        if service["age_s"] <= SERVICE_SILENT_S:
            if service["last_error"] and not (kind == "orchestrator" and service["is_leader"]):
                yield Finding("warning", kind, f"{name}: {service['last_error']}", "see its log")
        elif (kind, box) not in alive and kind != "orchestrator":
            text = f"{name} has been silent for {_age(service['age_s'])}"
            yield Finding("warning", kind, text, f"start it again on {box}")
    if facts.schedules and not any(kind == "scheduler" for kind, _ in alive):
        text = f"no scheduler runs and {facts.schedules} schedules are enabled: nothing fires"
        yield Finding("fault", "scheduler", text, "start queue-scheduler (any number, on any box)")


def _lanes(facts: Fleet) -> Iterator[Finding]:
    bad = False
    for lane in facts.lanes:
        name = f"{lane['box']}/{lane['queue']}" + (f" (project {lane['project']})" if lane["project"] else "")
        loops = lane["detail"].get("loops")
        for loop, error in (loops if isinstance(loops, dict) else {}).items():
            if error and live(lane):
                bad = True
                yield Finding("warning", "lane", f"{name}: {loop}: {error}", "see the lane's log")
        if lane["state"] == "stopping":
            continue  # it ended in order
        if lane["flagged_dead_at"] is not None:
            bad = True
            text = (
                f"{name} looks dead: silent for {_age(lane['age_s'])} while it owned running jobs, which go elsewhere"
            )
            yield Finding("warning", "lane", text, "look at that box, restart the lane (queue-worker-supervisor does)")
        elif lane["age_s"] > LANE_SILENT_S:
            bad = True
            yield Finding("warning", "lane", f"{name} has been silent for {_age(lane['age_s'])}", "restart it")
        elif lane["state"] == "refused":
            bad = True
            text = f"{name} refuses to work: {lane['last_exit_reason'] or 'no reason given'}"
            yield Finding("warning", "lane", text, "see the lane's log")
    if _leads(facts) is None:  # else the leader judges it, see placement
        for (queue, project), n in sorted(facts.unserved.items()):
            bad = True
            of, option = (f" of project {project}", f" --project {project}") if project else ("", "")
            text = f"{n:,} {'job waits' if n == 1 else 'jobs wait'} and no lane serves queue {queue}{of}"
            yield Finding("warning", "lanes", text, f"start queue-claim-worker --queue {queue}{option}")
    alive = [lane for lane in facts.lanes if live(lane)]
    if not bad:
        yield Finding("ok", "lanes", f"{len(alive)} live, {sum(int(lane['slots']) for lane in alive)} slots")


def _machine(facts: Machine) -> Iterator[Finding]:
    for error in facts.gpu_errors:
        yield Finding("warning", "gpu", error, "without readings no gpu job is ever judged idle; look at the driver")
    fine = [f"{name} ({state})" for name, state, _ in facts.gpus if state in ("ok", "asleep")]
    for name, state, why in facts.gpus:
        if state not in ("ok", "asleep"):
            yield Finding("warning", "gpu", f"{name}: {state}{f': {why}' if why else ''}", "look at the driver's log")
    if fine:
        yield Finding("ok", "gpu", ", ".join(fine))
    elif not facts.gpus and not facts.gpu_errors:
        yield Finding("ok", "gpu", "none on this box")
    for path, free, total in facts.disks:
        text = f"{path}: {free:,.0f} MiB free of {total:,.0f}"
        if free < NO_DISK_MB:
            yield Finding("fault", "disk", text, "make room")
        elif free < LOW_DISK_MB and free < LOW_DISK_SHARE * total:
            yield Finding("warning", "disk", text, "make room")
        else:
            yield Finding("ok", "disk", text)


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172800 else f"{seconds / 86400:.0f} days"
