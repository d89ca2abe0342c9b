"""``queue-broker``: make, show and take back the schema of a fleet's database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from engine import config
from engine.commands.options import App, Box, Db, LogLevel, Project, new_app, run_app, start
from engine.errors import BadInput, SchemaMismatch
from engine.store import Store, open_store
from engine.store import migrate as migrations

app = new_app(help="The database of a fleet.\n\nExample: queue-broker bootstrap --db postgresql://db/fleet")


@app.command()
def bootstrap(
    db: Db = None, project: Project = None, box: Box = None, app_module: App = None, log_level: LogLevel = None
) -> None:
    """Bring the database to this program's schema. Idempotent.

    Example: queue-broker bootstrap --db postgresql://db/fleet
    """
    start(db=db, project=project, box=box, app=app_module, log_level=log_level)
    store = open_store()
    applied = migrations.migrate(store)
    done = f"applied {', '.join(map(str, applied))}" if applied else "nothing to do"
    print(f"{store.safe_url}: schema {migrations.required_version(store)}, {done}")


@app.command()
def status(
    db: Db = None, project: Project = None, box: Box = None, app_module: App = None, log_level: LogLevel = None
) -> None:
    """Say the schema, who leads, what is queued and running, how services, sweeps and lanes fare.

    Example: queue-broker status --db sqlite:////var/lib/flightdeck/fleet.db
    """
    start(db=db, project=project, box=box, app=app_module, log_level=log_level)
    store = open_store()
    with store.connect("queue-broker", read_only=True) as conn:
        migrations.check_schema(store, conn)
        version = migrations.schema_version(conn)
        from engine.queue import health
        from engine.queue.snapshot import queue_view

        ours = config.project_name()
        view = queue_view(conn, ours or None)
        services, lanes, stuck = health.services(conn), health.lanes(conn), health.unplaceable(conn)
    print(f"{store.safe_url}: schema {version}")
    leader = view["leader"]
    print(f"leader: {leader['box'] if leader else 'none'}")
    alive = sum(health.live(lane) for lane in lanes if ours in ("", lane["project"]))
    print(f"lanes: {alive} live")
    for entry in view["projects"]:
        name = entry["project"] or "(default)"
        print(f"project {name}: {entry['queued']} queued, {entry['running']} running")
    for why, count in sorted(stuck.items(), key=lambda item: -item[1]):
        print(f"unplaceable: {count}: {why}")
    for line in (*_flagged(lanes), *_services(services), *_sweeps(services)):
        print(line)


def _flagged(lanes: list[dict[str, Any]]) -> Iterator[str]:
    for lane in lanes:
        if lane["flagged_dead_at"] is not None:
            project = f" (project {lane['project']})" if lane["project"] else ""
            yield f"lane {lane['box']}/{lane['queue']}{project}: looks dead, silent for {lane['age_s']:.0f} s"


def _services(services: list[dict[str, Any]]) -> Iterator[str]:
    for service in services:
        leads = " (leads)" if service["is_leader"] else ""
        error = f", error: {service['last_error']}" if service["last_error"] else ""
        yield f"{service['kind']} {service['box']}{leads}: seen {service['age_s']:.0f} s ago{error}"


def _sweeps(services: list[dict[str, Any]]) -> Iterator[str]:
    """The leader's sweeps and side loops: when each ran last, how long it took, what it did since the leader began."""
    leader = next((service for service in reversed(services) if service["is_leader"]), None)
    detail = leader["detail"] if leader else {}
    for name, loop in sorted(detail.items()):
        if name != "sweeps" and isinstance(loop, dict) and (loop.get("error") or loop.get("restarts")):
            yield f"loop {name}: {loop.get('restarts', 0)} restarts, error: {loop.get('error') or 'none now'}"
    sweeps = detail.get("sweeps")
    for name, sweep in sorted(sweeps.items()) if isinstance(sweeps, dict) else ():
        at, took = sweep.get("last_run_at"), sweep.get("took_ms")
        ran = (
            f"last run {at}, took {took:g} ms, {sweep.get('acted', 0)} done"
            if at and took is not None
            else "not run yet"
        )
        error = f", error: {sweep['error']} ({sweep.get('failures') or 1} times)" if sweep.get("error") else ""
        yield f"sweep {name}: {ran}{error}"


@app.command()
def downgrade(
    to: Annotated[int, typer.Option("--to", metavar="VERSION", min=0, help="The version to go back to; 0 drops all")],
    force: Annotated[bool, typer.Option("--force", help="Also where the name does not end in _test")] = False,
    db: Db = None,
    project: Project = None,
    box: Box = None,
    app_module: App = None,
    log_level: LogLevel = None,
) -> None:
    """Take migrations back, and their tables and data with them.

    Refused without --force unless the database's name ends in _test.

    Example: queue-broker downgrade --to 1 --db postgresql://db/fleet_test
    """
    start(db=db, project=project, box=box, app=app_module, log_level=log_level)
    store = open_store()
    name = _name(store)
    if not force and not name.endswith("_test"):
        raise BadInput(f"downgrade drops data and {name} does not end in _test: say --force if you mean it")
    with store.connect("queue-broker", read_only=True) as conn:
        version = migrations.schema_version(conn)
    if version is None:
        raise SchemaMismatch(f"{store.safe_url}: no schema yet, nothing to take back")
    undone = migrations.downgrade(store, to)
    done = f"took back {', '.join(map(str, undone))}" if undone else "nothing to do"
    print(f"{store.safe_url}: schema {min(version, to)}, {done}")


def _name(store: Store) -> str:
    if store.path is not None:
        return store.path.stem
    with store.connect("queue-broker", read_only=True) as conn:
        return str(conn.value("select current_database()"))


def main() -> None:
    run_app(app, "queue-broker", store_code=2)


if __name__ == "__main__":
    main()
