"""From options to a running lane: what is refused, what is waited for."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from dataclasses import replace
from importlib import metadata
from typing import Any

from engine import config
from engine.errors import BadInput, StoreUnavailable, UnknownQueue
from engine.lane import devices, logs, outdirs
from engine.lane.lane import Lane
from engine.lane.link import Backoff
from engine.lane.options import LaneOptions
from engine.lane.slot import Spec
from engine.lane.watchdogs import Limits
from engine.queue.lease import check_lease
from engine.queue.workers import Worker
from engine.store import Store, open_store
from engine.store.locks import new_incarnation
from engine.store.migrate import ensure_schema
from engine.store.rights import refuse_login

log = logging.getLogger("engine.lane")
_PASSED_ON = (
    "db_url",
    "db_direct_url",
    "project",
    "box",
    "app",
    "log_level",
    "payload_limit",
    "error_limit",
    "model_idle_seconds",
)


def run_lane(options: LaneOptions) -> int:
    """Run one lane until it is stopped; the exit code. Raises BadInput and ConfigError before anything is started,
    StoreUnavailable only with ``once`` (otherwise an unreachable database is waited for)."""
    check(options)
    options = equip(options)
    box = config.box_name()
    store = _wait_for_store(box, options)
    refuse_twin(store, box)
    worker = Worker(box, options.queue, config.project_name(), new_incarnation())
    spec = Spec(
        box=box,
        worker=worker.owner,
        incarnation=worker.incarnation,
        log_dir=logs.lane_dir(config.data_dir(), box, options.queue, worker.project),
        out_dir=outdirs.lane_root(config.data_dir(), box, options.queue, worker.project, store.safe_url),
        environment=_environment(),
    )
    log.info("%s/%s: lane %s starts on %s", box, options.queue, worker.incarnation, store.safe_url)
    return Lane(store, worker, options, spec).run()


def check(options: LaneOptions) -> None:
    """Refuse options that make no sense, with one line. Raises BadInput, ConfigError, UnknownQueue."""
    queue = options.queue
    if queue not in ("cpu", "gpu") and queue not in config.ingest_queues():
        known = ", ".join(("cpu", "gpu", *config.ingest_queues()))
        raise UnknownQueue(f"--queue {queue}: no such queue (known: {known}; see FLIGHTDECK_INGEST_QUEUES)")
    if options.slots < (0 if queue == "gpu" else 1):
        raise BadInput(f"--slots must be 1 or more, got {options.slots}")
    if options.model_slots < 0 or options.free_slots < 0:
        raise BadInput("--model-slots and --free-slots must not be negative")
    if queue != "gpu":
        for flag, given in (
            ("--devices", options.devices),
            ("--model-slots", options.model_slots),
            ("--free-slots", options.free_slots),
            ("--share-gpu", options.share_gpu),
        ):
            if given:
                raise BadInput(f"{flag} is for --queue gpu, not for {queue}")
    if options.devices and not options.share_gpu:
        _check_count(options, len(options.devices), "")
    if options.exit_on_trip and (options.model_slots + options.free_slots or options.slots) not in (0, 1):
        raise BadInput("--exit-on-trip is for a lane of one slot")
    if options.claims_ahead < 0:
        raise BadInput("claims ahead must not be negative")
    check_lease(options.lease_seconds, options.renew_seconds)
    Limits.configured()


def _check_count(options: LaneOptions, devices: int, which: str) -> None:
    count = options.model_slots + options.free_slots or options.slots
    if count > devices:
        raise BadInput(f"{count} slots on {devices} device(s){which}: one slot per device unless --share-gpu")


def equip(options: LaneOptions) -> LaneOptions:
    """The options of a gpu lane with the devices that it uses and its slots counted. Raises BadInput.

    Where nothing tells of GPUs it has one device of which nothing is known, and as many slots as it was given.
    """
    if options.queue != "gpu":
        return options
    found = devices.look()
    gpus = devices.choose(found.devices, options.devices, os.environ)
    if found.error:
        log.warning("GPUs: %s", found.error)
    log.info("GPUs: %s", ", ".join(map(str, gpus)))
    if gpus != (devices.UNKNOWN,) and not options.share_gpu:
        _check_count(options, len(gpus), f" ({', '.join(map(str, gpus))})")
    slots = options.model_slots + options.free_slots or options.slots or len(gpus)
    if options.exit_on_trip and slots != 1:
        raise BadInput(f"--exit-on-trip is for a lane of one slot, this one has {slots}: say --slots 1")
    return replace(options, gpus=gpus, slots=slots)


def _wait_for_store(box: str, options: LaneOptions) -> Store:
    """The store, once it answers and has a schema that this program can use."""
    backoff = Backoff()
    told = False
    while True:
        try:
            store = open_store()
            ensure_schema(store)
            if told:
                log.info("%s/%s: database reachable", box, options.queue)
            return store
        except StoreUnavailable as error:
            if options.once:
                raise
            if not told:
                told = True
                log.warning("%s/%s: database unreachable, waiting for it (%s)", box, options.queue, error)
            time.sleep(backoff.wait_s())


def machine_id() -> str:
    """What tells this machine from another of the same name; empty where the system has none."""
    try:
        with open("/etc/machine-id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def refuse_twin(store: Store, box: str) -> None:
    """Refuse to work under the name of another machine, or without the rights of a lane. Raises BadInput with both
    names, NotAllowed."""
    mine = machine_id()
    with store.connect("lane start") as db:
        refuse_login(db, "insert", "worker_heartbeats")
        row: dict[str, Any] | None = db.one("select machine_id, simulated from boxes where box = {box}", box=box)
    if row and mine and row["machine_id"] and not row["simulated"] and row["machine_id"] != mine:
        raise BadInput(
            f"box name {box!r} belongs to machine {row['machine_id']}, this is machine {mine}: "
            "give this one another name (--box, FLIGHTDECK_BOX)"
        )


def _environment() -> dict[str, str]:
    """What executors need to see the same settings and the same code. Flags become variables, never arguments: a
    process list must not show a password."""
    environment = {
        f"FLIGHTDECK_{name.upper()}": str(value)
        for name in _PASSED_ON
        if (value := config.get(name)) is not None and value != config.DEFAULTS[name]
    }
    environment["FLIGHTDECK_INGEST_QUEUES"] = ",".join(config.ingest_queues())
    paths = [path for path in sys.path if path]
    with contextlib.suppress(FileNotFoundError):  # this directory was removed
        paths.append(os.getcwd())
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return environment


def version() -> str:
    """The version of this program, for the heartbeat."""
    try:
        return metadata.version("flightdeck")
    except metadata.PackageNotFoundError:
        return "unknown"
