"""Entries that the app brings along: checked when they are registered, written to ``schedules`` when a scheduler starts."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from engine import config, registry
from engine.errors import BadInput, EngineError, UnknownQueue
from engine.queue.texts import encode_payload
from engine.registry import Misfire, Schedule
from engine.scheduler.schedule import check_misfire, timetable

if TYPE_CHECKING:  # an executor that imports the app has no use for a database's driver
    from engine.store import Db

log = logging.getLogger("engine.scheduler")

JITTER_LIMIT_S = 86_400.0


def register(
    name: str,
    cron: str,
    task_name: str,
    queue: str,
    args: Mapping[str, Any] | None = None,
    tz: str = "UTC",
    misfire: str = "one",
    jitter_s: float = 0.0,
) -> None:
    """Check an entry and make it known. Raises BadInput and its kin, with the entry's name.

    The queue is only checked for what can never be one: a lane that imports the app may know other queues than the
    scheduler that enqueues.
    """
    try:
        for what, value in (("cron", cron), ("tz", tz), ("task_name", task_name), ("queue", queue)):
            if not isinstance(value, str):
                raise BadInput(f"{what} must be a text, got {type(value).__name__}")
        timetable(cron, tz)
        check_misfire(misfire)
        registry.resolve_task(task_name)
        if queue in ("cpu", "gpu"):
            raise UnknownQueue(f"queue {queue!r} holds the nodes of graphs; a scheduled job needs a queue of its own")
        if not queue:
            raise UnknownQueue(f"{queue!r} is not a queue name")
        if args is not None and not isinstance(args, Mapping):
            raise BadInput(f"args must be a mapping of names to values, got {type(args).__name__}")
        if not isinstance(jitter_s, int | float) or not 0 <= jitter_s <= JITTER_LIMIT_S or math.isnan(jitter_s):
            raise BadInput(f"jitter_s must be 0 to {JITTER_LIMIT_S:g} seconds, got {jitter_s!r}")
        payload = encode_payload(dict(args or {}), f"args of task {task_name}")
    except BadInput as error:
        raise type(error)(f"schedule {name!r}: {error}") from None
    registry.add_schedule(Schedule(name, cron, task_name, queue, payload, tz, cast(Misfire, misfire), float(jitter_s)))


def load_app() -> None:
    """Import the host's module, so that its tasks and entries are known. Raises ConfigError with one line."""
    try:
        registry.load_app()
    except EngineError:
        raise
    except Exception as error:
        log.debug("the app cannot be imported", exc_info=True)
        raise config.ConfigError(f"--app {config.get('app')}: {registry.fault(error)}") from error


def write_entries(db: Db, project: str) -> None:
    """Bring the table to what the app registers. ``enabled`` stays the operator's; entries the app no longer has go.

    An entry is the app's by its ``origin``: one app does not take away what another, or SQL, has written.
    """
    origin = str(config.get("app") or "code")
    rows = db.all("select name, origin from schedules where project = {project}", project=project)
    known = {row["name"]: row["origin"] for row in rows}
    for name in sorted(registry.schedules):
        if known.get(name, origin) != origin:
            log.warning("schedule %s: %s takes it over from %s", name, origin, known[name] or "SQL")
        _write(db, project, origin, registry.schedules[name])
    if not registry.schedules and not config.get("app"):
        return
    gone = db.all(
        "delete from schedules where project = {project} and origin = {origin} and not (name {any[names]}) "
        "returning name",
        project=project,
        origin=origin,
        names=sorted(registry.schedules),
    )
    for row in gone:
        log.warning("schedule %s: no longer in %s, removed", row["name"], origin)


def _write(db: Db, project: str, origin: str, entry: Schedule) -> None:
    """A new entry starts from now; a trigger does the same for one whose times have changed."""
    db.run(
        "insert into schedules (project, name, cron, tz, task_name, queue, args, misfire, jitter_s, origin, last_tick) "
        "values ({project}, {name}, {cron}, {tz}, {task_name}, {queue}, {args}{json}, {misfire}, {jitter_s}, {origin}, "
        "{clock}) on conflict (project, name) do update set cron = excluded.cron, tz = excluded.tz, "
        "task_name = excluded.task_name, queue = excluded.queue, args = excluded.args, misfire = excluded.misfire, "
        "jitter_s = excluded.jitter_s, origin = excluded.origin",
        project=project,
        name=entry.name,
        cron=entry.cron,
        tz=entry.tz,
        task_name=entry.task_name,
        queue=entry.queue,
        args=entry.args,
        misfire=entry.misfire,
        jitter_s=entry.jitter_s,
        origin=origin,
    )
