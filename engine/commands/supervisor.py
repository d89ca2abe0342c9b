"""queue-worker-supervisor: runs a restart command for every lane that looks dead."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from engine.commands.options import App, Box, Db, LogLevel, Project, new_app, run_app, start
from engine.store import open_store
from engine.store.migrate import check_schema
from engine.supervisor import Supervisor, read_map

app = new_app()


@app.command()
def command(
    lanes: Annotated[Path, typer.Option("--map", metavar="FILE", help="TOML: which command restarts which lane")],
    once: Annotated[bool, typer.Option("--once", help="Restart what is flagged now, then exit.")] = False,
    db: Db = None,
    project: Project = None,
    box: Box = None,
    app_module: App = None,
    log_level: LogLevel = None,
) -> int:
    """Run a restart command for every lane that looks dead: silent for 30 s while it owned running jobs.

    The map: [lanes] with "box/queue", "box", "*/queue" or "*" = ["command", "argument"]. The command finds the lane in
    FLIGHTDECK_DEAD_BOX, _QUEUE, _PROJECT and _AGE (seconds). A lane is restarted at most once in 300 s (cooldown_s).

    Example: queue-worker-supervisor --map restart.toml
    """
    start(db=db, project=project, box=box, app=app_module, log_level=log_level)
    found = read_map(lanes)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    store = open_store()
    supervisor = Supervisor(store, found, stop)
    if once:
        with store.connect("schema check") as conn:
            check_schema(store, conn)
        return 0 if supervisor.once() else 1
    supervisor.run()
    return 0


def main() -> None:
    run_app(app, "queue-worker-supervisor")
