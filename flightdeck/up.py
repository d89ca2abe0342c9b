"""``flightdeck up``: this box for real. Recorder, orchestrator, scheduler and lanes under one supervisor, the deck on top."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine import config as engine_config
from engine.commands.options import LEVELS
from engine.errors import BadInput, ConfigError
from engine.orchestrator.notify import parse_command
from engine.store import Store, open_store
from engine.store.migrate import ensure_schema, migrate
from flightdeck import lifeline
from flightdeck.lifeline import Line
from flightdeck.plan import Plan, Program

if TYPE_CHECKING:
    from flightdeck.app import FlightDeckApp

STOP_S = 10.0

_SETTINGS = {
    "db", "project", "app", "ingest_queues", "log_level", "recorder", "orchestrator", "lane", "grace", "lease_seconds",
    "box", "max_offline", "scheduler",
}  # fmt: skip
_SWITCHES = ("recorder", "orchestrator", "scheduler")
_LANE_FLAGS = {
    "slots": "--slots",
    "model_slots": "--model-slots",
    "free_slots": "--free-slots",
    "devices": "--devices",
    "host_priority": "--host-priority",
    "share_gpu": "--share-gpu",
    "project": "--project",
    "app": "--app",
}
_NUMBERS = {"slots", "model_slots", "free_slots"}

EXAMPLE = """\
db = "postgresql://db/fleet"
app = "myapp.jobs"
ingest_queues = ["default", "imports"]

[[lane]]
queue = "gpu"
slots = 2
devices = "0,1"
"""


def read_config(path: Path | None) -> dict[str, Any]:
    """flightdeck.toml as a dict; empty without a path. Raises ConfigError that names the file and the key."""
    if path is None:
        return {}
    try:
        data = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if unknown := sorted(set(data) - _SETTINGS):
        raise ConfigError(f"{path}: {unknown[0]!r} is no setting here (known: {', '.join(sorted(_SETTINGS))})")
    for number, lane in enumerate(_lanes_of(data, path), 1):
        if not isinstance(lane.get("queue"), str):
            raise ConfigError(f"{path}: lane {number} has no queue")
        if unknown := sorted(set(lane) - set(_LANE_FLAGS) - {"queue"}):
            raise ConfigError(f"{path}: lane {number} ({lane['queue']}): {unknown[0]!r} is no setting of a lane")
        for key in sorted(_NUMBERS & lane.keys()):
            least = int(key == "slots")
            if type(lane[key]) is not int or lane[key] < least:
                said = f"{key} must be a whole number from {least}, got {lane[key]!r}"
                raise ConfigError(f"{path}: lane {number} ({lane['queue']}): {said}")
    if isinstance(table := data.get("orchestrator"), dict):
        _check_orchestrator(table, path)
    for switch in _SWITCHES:
        if not isinstance(data.get(switch, True), bool) and not (switch == "orchestrator" and isinstance(table, dict)):
            raise ConfigError(f"{path}: {switch} must be true or false")
    return data


def _check_orchestrator(table: Mapping[str, Any], path: Path) -> None:
    """``[orchestrator]`` instead of ``orchestrator = true``: with a command that is told what happens."""
    if unknown := sorted(set(table) - {"on_event"}):
        raise ConfigError(f"{path}: [orchestrator]: {unknown[0]!r} is no setting here (known: on_event)")
    if "on_event" in table:
        if not isinstance(table["on_event"], str):
            raise ConfigError(f"{path}: [orchestrator]: on_event must be a text, the command and its arguments")
        try:
            parse_command(table["on_event"])
        except BadInput as error:
            raise ConfigError(f"{path}: [orchestrator]: {error}") from None


def _lanes_of(data: Mapping[str, Any], path: Path) -> list[dict[str, Any]]:
    lanes = data.get("lane", [])
    if not isinstance(lanes, list) or not all(isinstance(lane, dict) for lane in lanes):
        raise ConfigError(f"{path}: lanes are written as [[lane]] tables")
    return lanes


def apply_config(data: Mapping[str, Any]) -> None:
    """The file's settings stand where configure() stands: below flags and environment."""
    values = {("db_url" if key == "db" else key): data[key] for key in data if key not in (*_SWITCHES, "lane")}
    if isinstance(table := data.get("orchestrator"), dict):
        values |= table
    engine_config.configure(**values)


def default_lanes(gpus: int) -> list[dict[str, Any]]:
    """cpu with a slot per core, gpu with a slot per GPU (the lane counts those it can use), one lane per ingest queue."""
    lanes: list[dict[str, Any]] = [{"queue": "cpu", "slots": os.cpu_count() or 1}]
    if gpus:
        lanes.append({"queue": "gpu"})
    return lanes + [{"queue": queue, "slots": 1} for queue in engine_config.ingest_queues()]


def count_gpus() -> int:
    """GPUs that NVML or amdgpu shows on this box."""
    from engine.telemetry.probes.source import RealSource

    source = RealSource()
    try:
        return len(source.facts().gpus)
    finally:
        source.close()


def plan(store: Store, data: Mapping[str, Any], gpus: Callable[[], int] = count_gpus) -> Plan:
    """What runs on this box. The settings travel by environment, so that a restart finds the same."""
    environment = {
        "FLIGHTDECK_DB_URL": store.url,
        "FLIGHTDECK_BOX": engine_config.box_name(),
        "FLIGHTDECK_PROJECT": engine_config.project_name(),
        "FLIGHTDECK_INGEST_QUEUES": ",".join(engine_config.ingest_queues()),
        "FLIGHTDECK_LOG_LEVEL": str(engine_config.get("log_level")),
        "FLIGHTDECK_GRACE": str(engine_config.get("grace")),
        "FLIGHTDECK_LEASE_SECONDS": str(engine_config.get("lease_seconds")),
        "FLIGHTDECK_MAX_OFFLINE": str(engine_config.get("max_offline")),
    }
    if engine_config.get("app"):
        environment["FLIGHTDECK_APP"] = str(engine_config.get("app"))
    if engine_config.get("on_event"):
        environment["FLIGHTDECK_ON_EVENT"] = str(engine_config.get("on_event"))
    if engine_config.get("db_direct_url"):
        environment["FLIGHTDECK_DB_DIRECT_URL"] = str(engine_config.get("db_direct_url"))
    python = sys.executable
    programs = []
    if data.get("orchestrator", True) is not False:
        programs.append(Program("orchestrator", (python, "-m", "engine.commands", "queue-orchestrator"), environment))
    if data.get("recorder", True):
        programs.append(Program("recorder", (python, "-m", "engine.commands", "queue-recorder"), environment))
    lanes = data.get("lane") or default_lanes(gpus())
    if data.get("scheduler", True):
        programs += _schedulers(python, lanes, environment)
    for lane in lanes:
        argv = [python, "-m", "engine.commands", "queue-claim-worker", "--queue", str(lane["queue"])]
        for key, flag in _LANE_FLAGS.items():
            if key in lane and flag == "--share-gpu":
                argv += [flag] if lane[key] else []
            elif key in lane:
                argv += [flag, str(lane[key])]
        name = f"lane {lane['queue']} {lane.get('project', '')}".strip()
        programs.append(Program(name, tuple(argv), environment, drains=True))
    return Plan(
        tuple(programs),
        str(run_dir()),
        keep=store.url if store.url.startswith("embedded:") else None,
        stop_s=STOP_S,
        drain_s=float(engine_config.get("grace")) + 15.0,
        orphan="drain",
    )


def check_lanes(data: Mapping[str, Any]) -> None:
    """Refuse an app, a queue and a log level that do not exist: nobody reads the log of a lane that cannot start. Imports nothing;
    a lane searches the working directory too. Raises ConfigError, BadInput."""
    if str(level := engine_config.get("log_level")).lower() not in LEVELS:
        raise ConfigError(f"log_level: {level!r} is none of {', '.join(LEVELS)}")
    parse_command(engine_config.get("on_event"))
    known = ("cpu", "gpu", *engine_config.ingest_queues())
    for lane in data.get("lane", []):
        if lane["queue"] not in known:
            raise ConfigError(f"lane {lane['queue']}: no such queue (known: {', '.join(known)}; see ingest_queues)")
    for app in dict.fromkeys([engine_config.get("app"), *(lane.get("app") for lane in data.get("lane", []))]):
        package = str(app or "").split(".")[0]
        if (
            package
            and importlib.util.find_spec(package) is None
            and importlib.machinery.PathFinder.find_spec(package, [os.getcwd()]) is None
        ):
            raise ConfigError(f"--app {app}: there is no module {package} here ({os.getcwd()}), nor is one installed")


def _schedulers(python: str, lanes: list[dict[str, Any]], environment: Mapping[str, str]) -> list[Program]:
    """One for each project and app that a lane here works for: a scheduler serves its own project, as a lane does."""
    programs = {}
    for lane in lanes:
        argv = [python, "-m", "engine.commands", "queue-scheduler"]
        for key in ("project", "app"):
            if key in lane:
                argv += [_LANE_FLAGS[key], str(lane[key])]
        name = " ".join(["scheduler", *(str(lane[key]) for key in ("project", "app") if lane.get(key))])
        programs[tuple(argv)] = Program(name, tuple(argv), environment)
    return list(programs.values())


def run_dir() -> Path:
    """Where the supervisor of this box keeps its plan, its socket and the logs."""
    return engine_config.data_dir() / "up" / engine_config.box_name()


def main(*, config: str | None = None, no_deck: bool = False, **looks: Any) -> None:
    """The command. ``looks``: options of the deck. Ends the process."""
    if not no_deck:
        from flightdeck.term.session import check_terminal

        check_terminal()
    with lifeline.signals_unwind(0 if no_deck else None) as unwinding:
        _show(Path(config) if config else None, no_deck, looks, unwinding)


def _show(config: Path | None, no_deck: bool, looks: Mapping[str, Any], unwinding: lifeline.Unwinding) -> None:
    store, data = prepare(config)
    line: Line | None = None
    answer: list[str] = []
    code = 0 if no_deck else 1
    try:
        with unwinding.held():
            line = join(store, data)
        if no_deck:
            _stay(line)
        else:
            from flightdeck.launch import open_deck

            code = open_deck(**looks, opener=lambda: store, on_quit=lambda app: _ask(app, answer), leave=False)
    finally:
        if line is not None:
            _leave(line, answer[0] if answer else "stop" if code == 1 else "drain")
    from flightdeck.term.session import leave_process

    leave_process(code)


def begin(config_path: Path | None = None, gpus: Callable[[], int] | None = None) -> tuple[Store, Line]:
    """Start what runs on this box, or join what an earlier ``up`` left running. Raises ConfigError, StoreError."""
    store, data = prepare(config_path)
    return store, join(store, data, gpus)


def prepare(config_path: Path | None) -> tuple[Store, dict[str, Any]]:
    """The database, with its schema, and the file's settings. Raises ConfigError, StoreError."""
    data = read_config(config_path)
    apply_config(data)
    store = open_store()
    if running := lifeline.attach(run_dir()):
        running.close()
    elif data.get("orchestrator", True) is not False:
        migrate(store)  # what the orchestrator would do first; here a refusal is seen by whoever typed the command
    else:
        ensure_schema(store)
    return store, data


def join(store: Store, data: Mapping[str, Any], gpus: Callable[[], int] | None = None) -> Line:
    """The supervisor of this box, from now on ours: the one that runs, or a new one."""
    line = lifeline.attach(run_dir())
    if line is not None:
        line.ask("own")
        return line
    check_lanes(data)
    return lifeline.start(plan(store, data, gpus or count_gpus))


def _ask(app: FlightDeckApp, answer: list[str]) -> None:
    """``q``: the deck goes, but what about the box?"""
    from flightdeck.screens.dialog import Choice, ConfirmScreen

    def answered(choice: str | None) -> None:
        if choice:
            answer.append(choice)
            app.exit(0)

    app.push_screen(
        ConfirmScreen(
            f"Leave {engine_config.box_name()} working?",
            [
                ("leave: recorder, orchestrator, scheduler and lanes keep running", "text"),
                (f"drain: running jobs have {engine_config.get('grace'):g} s to end, then everything stops", "text"),
                ("stop: jobs go back to the front of the queue", "text"),
            ],
            [
                Choice("leave", "w", "leave working", "ok"),
                Choice("drain", "d", "drain", "warn"),
                Choice("stop", "s", "stop", "bad"),
            ],
        ),
        answered,
    )


def _leave(line: Line, answer: str) -> None:
    """The deck is closed: do what was answered."""
    try:
        if answer == "leave":
            line.ask("leave")
            say("this box keeps working; `flightdeck up` shows it again, and can stop it")
        elif answer == "drain":
            say(f"draining: running jobs have {engine_config.get('grace'):g} s ...")
            line.end("drain", float(engine_config.get("grace")) + 25.0)
        else:
            say("stopping ...")
            line.end("stop", STOP_S + 5.0)
    except OSError:
        say("the supervisor is gone already")
    line.close()


def _stay(line: Line) -> None:
    """Until a signal."""
    say(f"running; logs in {run_dir() / 'log'}")
    while line.alive():
        time.sleep(5.0)
    raise ConfigError(f"the supervisor ended; see {run_dir() / 'supervisor.log'}")


def say(text: str) -> None:
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except OSError:
        pass  # the terminal is gone
