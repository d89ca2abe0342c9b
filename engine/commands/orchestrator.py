"""queue-orchestrator: the leader of the fleet (or the one that waits to lead)."""

from __future__ import annotations

import logging
import random
import signal
import threading
from typing import Annotated

import typer

from engine import registry
from engine.commands.options import App, Box, Db, LogLevel, Project, new_app, run_app, start
from engine.errors import StoreUnavailable
from engine.orchestrator.loop import courier, run_orchestrator
from engine.store import Store, open_store
from engine.store.migrate import migrate, refuse_read_only
from engine.store.rights import refuse_login
from engine.telemetry import limits_file

log = logging.getLogger("engine.orchestrator")

app = new_app()


@app.command()
def command(
    once: Annotated[bool, typer.Option("--once", help="Do what there is, then exit.")] = False,
    on_event: Annotated[
        str | None,
        typer.Option(
            "--on-event", metavar="CMD", help="Tell this command what happens: JSON on its stdin [FLIGHTDECK_ON_EVENT]"
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", metavar="NAME", help="Judge throttling by this profile's levels [FLIGHTDECK_PROFILE]"
        ),
    ] = None,
    profiles: Annotated[
        str | None, typer.Option("--profiles", metavar="FILE", help="Where profiles stand, default profiles.toml")
    ] = None,
    db: Db = None,
    project: Project = None,
    box: Box = None,
    app_module: App = None,
    log_level: LogLevel = None,
) -> None:
    """Move graphs on and bring lost work back. Migrates the database first.

    Run as many as you like, on different boxes: one leads, the others wait. One serves all projects and needs no host
    app. The one that leads runs the command of --on-event (no shell) when a box is dead or back, a lane is lost, a run failed, a
    job is poison, or a box throttles: give it to each.

    Example: queue-orchestrator --db postgresql://fleet@db/fleet --on-event /usr/local/bin/page-me
    """
    start(
        db=db,
        project=project,
        box=box,
        app=app_module,
        log_level=log_level,
        on_event=on_event,
        profile=profile,
        profiles=profiles,
    )
    courier()  # a command that cannot be run is refused here,
    limits_file.configured()  # and a profile that does not exist
    _load_hooks()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    store = _migrated(stop, once)
    if store is not None:
        run_orchestrator(store, stop, once)


def _load_hooks() -> None:
    """The app, if there is one, for its ``event_sink``. Graphs need no app: one that cannot be imported stops nothing."""
    try:
        registry.load_app()
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        log.warning("going on without the app's hooks: %s: %s", type(error).__name__, said)


def _migrated(stop: threading.Event, once: bool) -> Store | None:
    """The store with its schema in place; waits for a database that is away, unless ``once``. None: told to stop."""
    told = False
    while not stop.is_set():
        try:
            store = open_store()
            migrate(store)
            with store.connect("schema check") as db:
                refuse_read_only(store, db)
                refuse_login(db, "update", "workflow_dispatch_events")
            return store
        except StoreUnavailable as error:
            if once:
                raise
            if not told:
                log.warning("database not reachable, trying again: %s", error)
            told = True
            stop.wait(random.uniform(0.5, 1.5))
    return None


def main() -> None:
    run_app(app, "queue-orchestrator")
