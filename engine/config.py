"""Settings and hooks: the one seam between the engine and its host. A leaf: imports nothing else of ours.

Every setting is looked up in the same order: a command's flag, the environment, :func:`configure`, the default.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs


class EngineError(Exception):
    """Base of every error that the engine raises on purpose; its text is one clear line."""


class ConfigError(EngineError, ValueError):
    """A setting is missing or makes no sense."""


DEFAULTS: Mapping[str, Any] = {
    "db_url": None,  # None: the SQLite file in the user's data directory
    "db_direct_url": None,  # past a transaction pooler: LISTEN and session locks
    "db_prepare": True,  # False behind a pooler that cannot keep prepared statements
    "project": "",
    "box": None,  # None: the hostname
    "app": None,
    "log_level": "info",
    "ingest_queues": ("default", "training"),
    "node_package": None,
    "host_priority": 0,
    "lease_seconds": 600.0,
    "renew_seconds": 10.0,
    "beat_seconds": 10.0,
    "grace": 30.0,
    "max_offline": 1800.0,
    "affinity_max_wait_s": 600.0,
    "model_idle_seconds": 60.0,  # a model that no job has used for so long is dropped, and its GPU let go
    "gpu_turn_seconds": 600.0,  # a GPU for which another lane of the box waits is let go after so long; 0: never
    "gpu_reserve_mb": 512.0,  # of a device's memory, what models may not take; eightfold where it is the system's own
    "device_look_seconds": 10.0,  # how long the driver may take to say which GPUs there are
    "watchdog_retries_cap": 3,
    "losses_cap": 5,
    "shun_seconds": 10.0,  # a job lost or tripped on a box is not offered to that box for so long
    "cancel_grace": 10.0,
    "node_budget_s": 2100.0,
    "ingest_budget_s": 3600.0,
    "payload_limit": 1024 * 1024,
    "cgroups": True,  # executors in control groups of their own, where this user may make them
    "log_tail_seconds": 5.0,  # the end of a running job's log goes to the database so often
    "log_job_bytes": 8 * 1024 * 1024,  # of one job's log on the box: past it the newest half stays; 0: any size
    "log_keep_files": 1000,  # job logs of one lane on the box
    "log_keep_days": 7.0,
    "out_keep_days": 30.0,  # files of jobs (ctx.out_dir) on the box, after their last change; 0 keeps for ever
    "log_total_bytes": 2 * 1024**3,  # of all job logs on the box, in blocks of the disk
    "backlog_limit": 0,  # ingest jobs queued per queue and project, past which enqueuing is refused; 0: no limit
    "error_limit": 8000,
    "leader_up_seconds": 30.0,  # a lost session counts only when server and leader are older than this
    "session_grace_seconds": 3.0,  # how long a session must be missing before its lane counts as dead
    "unplaceable_after": 9.0,  # a queued job that no live slot could hold is flagged after so many seconds
    "retention_runs_days": 30.0,  # runs with their nodes, after their end; 0 keeps for ever, here and below
    "retention_jobs_days": 30.0,  # ingest jobs with their effects and logs, after their end
    "retention_events_days": 30.0,  # what happened to jobs, what operators did
    "retention_outbox_days": 1.0,  # dealt with
    "retention_workers_days": 7.0,  # lanes and services that are not heard of any more
    "retention_detail_hours": 1.0,  # a box's samples as they were taken, deleted by its own recorder
    "retention_minutes_days": 7.0,  # their roll-ups by the minute, and the last samples of a box without a recorder
    "doctor_snapshot_seconds": 30.0,  # flightdeck doctor names a session that holds a snapshot for so long
    "profile": None,  # whose levels count (profiles.toml): of a deck, and of the leader's notices
    "profiles": None,  # another file of profiles
    "on_event": None,  # the leader tells this command what happens, as JSON on its stdin;
    "on_event_seconds": 10.0,  # it may take so long,
    "on_event_burst": 5,  # of one kind so many at once,
    "on_event_every_s": 60.0,  # then one in so many seconds, with what else came
    "supervisor_cooldown": 300.0,  # a lane is restarted at most so often
    "supervisor_timeout": 60.0,  # a restart command may take so long
    "schema_wait_seconds": 120.0,
    "web_token": None,  # queue-broker-web: who may do everything there,
    "web_token_read": None,  # and who may look
    "web_pool": 8,  # connections to the database: so many requests are worked on at once,
    "web_wait_seconds": 2.0,  # others wait so long for their turn, then are told to come again
    "web_rate": 1000.0,  # requests a second of one token; 0: any number
    "web_connections": 1000,  # clients connected at once
    "web_head_seconds": 10.0,  # a request's head must be there within so long,
    "web_body_seconds": 30.0,  # and its body
    "web_grace": 20.0,  # what runs at SIGTERM may take so long
    "web_backlog_limit": 100_000,  # backlog_limit of what comes over HTTP, where that is 0
    "sample_seconds": 2.0,
    "misfire_grace_s": 10.0,  # a cron tick that is seen later than this was missed
    "stall_seconds": 120.0,  # a gpu job that beats may be silent for so long; 0 = never suspected
    "stall_samples": 3,  # readings that must confirm it,
    "stall_sample_gap": 1.0,  # so many seconds apart
    "health_window": 1200.0,  # a gpu job may do nothing for so long before its first beat; 0 = for ever
    "health_window_beating": 300.0,  # and after it
    "gpu_idle_pct": 5.0,  # a GPU that is used at most so much is idle
    "gpu_move_gib": 5.0,  # memory that goes up or down by so much is life
    "gpu_io_mib": 1.0,  # files and sockets read or written, in a window: so much is life
    "probe_seconds": 2.0,  # how often a gpu lane reads its GPUs while jobs run
    "probe_root": "/",  # where probes look for /proc, /sys and /dev
}

PREFIX = "FLIGHTDECK_"  # of every variable; the rest is the setting's name
_NO_SETTINGS = (  # variables that are read, or given to what is started, and set nothing here
    "CHARTS",
    "SLOT",
    "DEAD_BOX",
    "DEAD_QUEUE",
    "DEAD_PROJECT",
    "DEAD_AGE",
    "TEST_DB_URL",
)

HOOKS = ("resolve_node", "workflow_provider", "register_models", "invoke_context", "event_sink")


@dataclass
class _State:
    flags: dict[str, Any] = field(default_factory=dict)
    configured: dict[str, Any] = field(default_factory=dict)
    hooks: dict[str, Callable[..., Any]] = field(default_factory=dict)


_state = _State()


def configure(*, db_url_env: str | None = None, **values: Any) -> None:
    """Set what the host decides: settings (see DEFAULTS) and hooks (see HOOKS). Later calls add to earlier ones.

    ``db_url_env`` names an environment variable that holds the database URL; it is read when the URL is needed.
    Raises ConfigError for a name that does not exist.
    """
    for name, value in values.items():
        if name in HOOKS:
            if not callable(value):
                raise ConfigError(f"configure: hook {name} must be callable, got {type(value).__name__}")
            _state.hooks[name] = value
        elif name in DEFAULTS:
            _state.configured[name] = _coerce(name, value, "configure()")
        else:
            raise ConfigError(f"configure: unknown setting {name!r}")
    if db_url_env is not None:
        _state.configured["db_url_env"] = db_url_env


def set_flags(**values: Any) -> None:
    """Record the flags of a command; None means: not given."""
    for name, value in values.items():
        if name not in DEFAULTS:
            raise ConfigError(f"unknown setting {name!r}")
        if value is not None:
            _state.flags[name] = _coerce(name, value, f"--{name.replace('_', '-')}")


def reset() -> None:
    """Forget flags, configuration and hooks (tests)."""
    _state.flags.clear()
    _state.configured.clear()
    _state.hooks.clear()


def get(name: str) -> Any:
    """The value of one setting, by the order flag, environment, configure, default."""
    if name in _state.flags:
        return _state.flags[name]
    variable = f"{PREFIX}{name.upper()}"
    if os.environ.get(variable):
        return _coerce(name, os.environ[variable], variable)
    if name in _state.configured:
        return _state.configured[name]
    if name == "db_url" and (indirect := _state.configured.get("db_url_env")):
        if not os.environ.get(indirect):
            raise ConfigError(f"configure(db_url_env={indirect!r}): that environment variable is not set")
        return os.environ[indirect]
    if name not in DEFAULTS:
        raise ConfigError(f"unknown setting {name!r}")
    return DEFAULTS[name]


def ignored_variables(environment: Mapping[str, str]) -> list[str]:
    """One line for each variable that looks like a setting and is none, with the name that was probably meant."""
    known = [name.upper() for name in DEFAULTS] + list(_NO_SETTINGS)
    lines = []
    for variable in sorted(environment):
        name = variable.removeprefix(PREFIX)
        if name == variable or name in known or not environment[variable]:
            continue
        import difflib  # 4 ms, for nearly nobody

        near = difflib.get_close_matches(name.upper(), known, n=1)
        lines.append(f"{variable}: no such setting, ignored" + (f"; did you mean {PREFIX}{near[0]}?" if near else ""))
    return lines


def hook(name: str) -> Callable[..., Any] | None:
    """A hook that the host set, or None."""
    if name not in HOOKS:
        raise ConfigError(f"unknown hook {name!r}")
    return _state.hooks.get(name)


def db_url() -> str:
    """The database URL; without a setting, the SQLite file in the user's data directory."""
    url = get("db_url")
    if url:
        return str(url)
    return f"sqlite:///{data_dir() / 'flightdeck.db'}"


def data_dir() -> Path:
    """Where this user's Flight Deck keeps its files (platformdirs); created by whoever writes there."""
    return Path(platformdirs.user_data_dir("flightdeck", appauthor=False))


def box_name() -> str:
    """The name of this box: FLIGHTDECK_BOX, or the hostname."""
    return str(get("box") or socket.gethostname())


def project_name() -> str:
    return str(get("project"))


def ingest_queues() -> tuple[str, ...]:
    return tuple(get("ingest_queues"))


_NAME = re.compile(r"[^\x00-\x1f\x7f:/*,|]{1,100}")


def _coerce(name: str, value: Any, origin: str) -> Any:
    default = DEFAULTS[name]
    try:
        if name == "ingest_queues":
            queues = tuple(value.split(",") if isinstance(value, str) else value)
            for queue in queues:
                if queue in ("cpu", "gpu"):
                    raise ConfigError(f"{origin}: {queue} is a node queue and cannot be an ingest queue")
                if not _NAME.fullmatch(queue):
                    raise ConfigError(f"{origin}: {queue!r} is not a queue name")
            return queues
        if name == "box" and value is not None and not _NAME.fullmatch(str(value)):
            raise ConfigError(f"{origin}: {value!r} is not a box name (no control characters, ':', '/', '*', ',', '|')")
        if isinstance(default, bool):
            if isinstance(value, str):
                if value.lower() not in ("0", "1", "true", "false", "yes", "no", "on", "off"):
                    raise ValueError(value)
                return value.lower() in ("1", "true", "yes", "on")
            return bool(value)
        if isinstance(default, float):
            number = float(value)
            if not 0 <= number <= (1e5 if name.endswith("_days") else 1e9):  # more is no time that a database can tell
                raise ValueError(value)
            return number
        if isinstance(default, int):
            return int(value)
    except ConfigError:
        raise
    except (TypeError, ValueError):
        raise ConfigError(f"{origin}: {value!r} is not a valid value for {name}") from None
    return value
