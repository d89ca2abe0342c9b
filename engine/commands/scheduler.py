"""queue-scheduler: enqueues the jobs of cron entries."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from engine.commands.options import App, Box, Db, LogLevel, Project, new_app, run_app, start
from engine.scheduler.ticker import run_scheduler

app = new_app()


@app.command()
def command(
    once: Annotated[bool, typer.Option("--once", help="Fire what is due, then exit.")] = False,
    db: Db = None,
    project: Project = None,
    box: Box = None,
    app_module: App = None,
    log_level: LogLevel = None,
) -> None:
    """Enqueue the jobs of cron entries: those that the app registers, and those in the table `schedules`.

    Serves one project, as lanes do. Run as many as you like, on different boxes: each tick is fired once.

    Example: queue-scheduler --db postgresql://fleet@db/fleet --app myhost.jobs
    """
    start(db=db, project=project, box=box, app=app_module, log_level=log_level)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    run_scheduler(stop, once)


def main() -> None:
    run_app(app, "queue-scheduler")
