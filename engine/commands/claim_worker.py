"""queue-claim-worker: one lane (box, queue, project) with its slots."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from engine import config
from engine.commands.options import App, Box, Db, LogLevel, Project, new_app, run_app, start
from engine.errors import BadInput
from engine.lane.devices import parse_devices
from engine.lane.options import LaneOptions
from engine.lane.start import run_lane, version

app = new_app()

MOST_SLOTS = 4096  # a slip of the finger must not take the box down


@app.command()
def command(
    queue: Annotated[str, typer.Option("--queue", metavar="QUEUE", help="cpu, gpu or an ingest queue")],
    slots: Annotated[
        int | None, typer.Option("--slots", metavar="N", help="Executors (default 1; gpu: one per device)")
    ] = None,
    model_slots: Annotated[
        int, typer.Option("--model-slots", metavar="N", help="gpu: slots for rows with a model")
    ] = 0,
    free_slots: Annotated[int, typer.Option("--free-slots", metavar="N", help="gpu: slots for rows without")] = 0,
    devices: Annotated[
        str | None,
        typer.Option("--devices", metavar="0,1", help="gpu: these devices only, by number or uuid (default: all)"),
    ] = None,
    share_gpu: Annotated[bool, typer.Option("--share-gpu", help="gpu: more slots than devices")] = False,
    host_priority: Annotated[
        int | None,
        typer.Option("--host-priority", metavar="N", help="Negative: work the newest first [FLIGHTDECK_HOST_PRIORITY]"),
    ] = None,
    lease_seconds: Annotated[
        float | None, typer.Option("--lease-seconds", metavar="S", help="Lease of a claim (600)")
    ] = None,
    grace: Annotated[
        float | None, typer.Option("--grace", metavar="S", help="SIGTERM: let jobs finish so long (30)")
    ] = None,
    max_offline: Annotated[
        float | None,
        typer.Option("--max-offline", metavar="S", help="Stop running work after so long without database (1800)"),
    ] = None,
    exit_on_trip: Annotated[
        bool, typer.Option("--exit-on-trip", help="One slot: exit with the watchdog's code")
    ] = False,
    claims_ahead: Annotated[
        int, typer.Option("--claims-ahead", metavar="N", help="Claims beyond the slots while jobs are short")
    ] = 64,
    no_claims_ahead: Annotated[bool, typer.Option("--no-claims-ahead", help="The same as --claims-ahead 0")] = False,
    once: Annotated[bool, typer.Option("--once", help="Do what there is, then exit")] = False,
    db: Db = None,
    project: Project = None,
    box: Box = None,
    app_module: App = None,
    log_level: LogLevel = None,
) -> int:
    """Run one lane: claim jobs of a queue for this box's slots, run them in executors, finish them.

    Example: queue-claim-worker --queue gpu --devices 0,1 --app myhost.jobs

    SIGTERM drains (see --grace), a second one stops at once. Exit codes: 0 ended, 1 database, 2 wrong use, 75-79 trip.
    """
    start(
        db=db,
        project=project,
        box=box,
        app=app_module,
        log_level=log_level,
        host_priority=host_priority,
        lease_seconds=lease_seconds,
        grace=grace,
        max_offline=max_offline,
    )
    named = parse_devices(devices)
    if slots is not None and slots < 1:
        raise BadInput(f"--slots must be 1 or more, got {slots}")
    if max(slots or 0, model_slots + free_slots) > MOST_SLOTS:
        raise BadInput(f"a lane has at most {MOST_SLOTS:,} slots: each is a process")
    options = LaneOptions(
        queue=queue,
        slots=slots if slots is not None else 0 if queue == "gpu" else 1,
        model_slots=model_slots,
        free_slots=free_slots,
        devices=named,
        share_gpu=share_gpu,
        exit_on_trip=exit_on_trip,
        once=once,
        claims_ahead=0 if no_claims_ahead else claims_ahead,
        version=version(),
    )
    settings = (
        "host_priority",
        "lease_seconds",
        "renew_seconds",
        "beat_seconds",
        "grace",
        "max_offline",
        "cancel_grace",
    )
    return run_lane(replace(options, **{name: config.get(name) for name in settings}))


def main() -> None:
    run_app(app, "queue-claim-worker")
