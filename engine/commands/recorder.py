"""queue-recorder: samples this box's sensors every two seconds into the flight recorder."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from engine import config
from engine.commands.options import App, Box, Db, LogLevel, Project, new_app, run_app, start
from engine.store import open_store
from engine.telemetry.probing import probes_of
from engine.telemetry.recorder import run_recorder

app = new_app()


@app.command()
def command(
    once: Annotated[bool, typer.Option("--once", help="Take one sample, write it, exit.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="This machine takes the place of the one known by the box's name.")
    ] = False,
    db: Db = None,
    project: Project = None,
    box: Box = None,
    app_module: App = None,
    log_level: LogLevel = None,
) -> None:
    """Record this box: load, clocks, heat, power, memory, traffic and throttling, every two seconds.

    Runs once per box; a second one waits. Ends with SIGTERM.

    Example: queue-recorder --db postgresql://fleet@db/fleet --box spark
    """
    start(db=db, project=project, box=box, app=app_module, log_level=log_level)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    name = config.box_name()
    run_recorder(open_store(), probes_of(name), name, stop, once, replace_machine=replace)


def main() -> None:
    run_app(app, "queue-recorder")
