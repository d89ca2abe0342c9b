"""Restart commands for lanes that look dead: one process beside the fleet, or one on each box.

The orchestrator flags a lane that is silent while it owns running jobs (``worker_heartbeats.flagged_dead_at``); a lane that
beats again is not flagged any more. For each flagged lane the mapped command is run, at most once per cooldown however
many supervisors there are and however often they restart: each run leaves a row in ``control_events``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import config
from engine.errors import BadInput, StoreError
from engine.queue import services
from engine.queue.services import Service
from engine.store import Db, Json, Store
from engine.store.locks import Exclusive, new_incarnation
from engine.store.migrate import ensure_schema

log = logging.getLogger("engine.supervisor")

KIND = "supervisor"
ACTION = "restart_lane"
LOOK_S = 2.0
BEAT_S = 5.0
STATEMENT_S = 5.0
OUTPUT_LINES = 20  # of a command, in the log


@dataclass(frozen=True)
class Map:
    """Which command restarts which lane: by ``box/queue``, ``box``, ``*/queue`` or ``*``, the first that there is."""

    lanes: Mapping[str, tuple[str, ...]]
    cooldown_s: float
    timeout_s: float

    def command(self, box: str, queue: str) -> tuple[str, ...] | None:
        for key in (f"{box}/{queue}", box, f"*/{queue}", "*"):
            if key in self.lanes:
                return self.lanes[key]
        return None


def read_map(path: Path) -> Map:
    """The map in a TOML file. Raises BadInput with one line that names the file and what is wrong."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: not TOML: {error}") from None
    if unknown := sorted(data.keys() - {"cooldown_s", "timeout_s", "lanes"}):
        raise BadInput(f"{path}: unknown key {unknown[0]!r} (known: cooldown_s, timeout_s, [lanes])")
    lanes = data.get("lanes")
    if not isinstance(lanes, dict) or not lanes:
        raise BadInput(f'{path}: no [lanes]: write "box/queue" = ["command", "argument"], or "*" for every lane')
    for key, argv in lanes.items():
        if not key or key.count("/") > 1 or key.startswith("/") or key.endswith("/"):
            raise BadInput(f"{path}: [lanes] {key!r} is neither a box, nor box/queue, nor */queue, nor *")
        if (
            not isinstance(argv, list)
            or not argv
            or not all(isinstance(part, str) and part and "\0" not in part for part in argv)
        ):
            raise BadInput(f"{path}: [lanes] {key!r} must be a list of texts, the command and its arguments")
    return Map(
        {key: tuple(argv) for key, argv in lanes.items()},
        _seconds(path, data, "cooldown_s", "supervisor_cooldown"),
        _seconds(path, data, "timeout_s", "supervisor_timeout"),
    )


def _seconds(path: Path, data: Mapping[str, Any], key: str, setting: str) -> float:
    value = data.get(key, config.get(setting))
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e9:
        raise BadInput(f"{path}: {key} must be a number of seconds above 0, got {value!r}")
    return float(value)


@dataclass(frozen=True)
class DeadLane:
    """A flagged lane; ``age_s``: how long it has been silent."""

    box: str
    queue: str
    project: str
    age_s: float

    def __str__(self) -> str:
        return f"{self.box}/{self.queue}" + (f" (project {self.project})" if self.project else "")


def dead_lanes(db: Db) -> list[DeadLane]:
    """Every lane that is flagged now and did not end in order."""
    now = db.now()
    rows = db.all(
        "select box, queue, project, last_seen from worker_heartbeats "
        "where flagged_dead_at is not null and state <> 'stopping' order by box, queue, project"
    )
    return [
        DeadLane(row["box"], row["queue"], row["project"], (now - row["last_seen"]).total_seconds()) for row in rows
    ]


class Supervisor:
    """``stop`` ends :meth:`run`; commands that still run then are waited for (their timeout bounds that)."""

    def __init__(self, store: Store, lanes: Map, stop: threading.Event) -> None:
        self._store, self._map, self._stop = store, lanes, stop
        self._service = Service(KIND, config.box_name(), new_incarnation())
        self._running: dict[tuple[str, str, str], threading.Thread] = {}
        self._last: dict[str, dict[str, Any]] = {}  # by lane: the last command's end
        self._unmapped: set[str] = set()
        self._beat_at = float("-inf")
        self.failed = 0

    def run(self) -> None:
        """Look every two seconds until stopped; a database that is away is waited for, with one line per change."""
        told = False
        backoff = 0.2
        while not self._stop.is_set():
            try:
                ensure_schema(self._store, seconds=0)
                with self._store.connect(KIND, direct=True, timeout_s=STATEMENT_S) as db:
                    if told:
                        log.info("database is back")
                    told, backoff = False, 0.2
                    try:
                        while not self._stop.is_set():
                            self._round(db)
                            self._stop.wait(LOOK_S * random.uniform(0.8, 1.2))
                    finally:
                        if not db.closed:
                            services.leave(db, self._service)
            except StoreError as error:  # away, read-only, or without a schema yet
                if not told:
                    log.warning("no use of the database, trying again: %s", error)
                told = True
                self._stop.wait(backoff * random.uniform(0.5, 1.5))
                backoff = min(5.0, backoff * 2)
            except Exception:  # a defect must not end it: say it, start over
                log.exception("unexpected error, starting over")
                self._stop.wait(5.0)
        self._wait()

    def once(self) -> bool:
        """Run what is to be run now, and wait for it; False when a command failed. Raises StoreUnavailable."""
        with self._store.connect(KIND, direct=True, timeout_s=STATEMENT_S) as db:
            self._look(db)
        self._wait()
        return not self.failed

    def _round(self, db: Db) -> None:
        self._look(db)
        if time.monotonic() - self._beat_at >= BEAT_S:
            failing = [f"{lane}: {end['said']}" for lane, end in sorted(self._last.items()) if end["code"] != 0]
            services.beat(db, self._service, {"commands": dict(self._last)}, "; ".join(failing)[:1000] or None)
            self._beat_at = time.monotonic()

    def _look(self, db: Db) -> None:
        self._running = {key: thread for key, thread in self._running.items() if thread.is_alive()}
        for lane in dead_lanes(db):
            key = (lane.box, lane.queue, lane.project)
            command = self._map.command(lane.box, lane.queue)
            if command is None:
                if str(lane) not in self._unmapped:
                    log.warning("lane %s looks dead; the map names no command for it", lane)
                self._unmapped.add(str(lane))
            elif key not in self._running and take_turn(
                self._store, db, lane, command, self._map.cooldown_s, self._service.box
            ):
                log.warning("lane %s looks dead, silent for %.0f s: running %s", lane, lane.age_s, command[0])
                thread = threading.Thread(target=self._restart, args=(lane, command), name=f"restart {lane}")
                self._running[key] = thread
                thread.start()

    def _restart(self, lane: DeadLane, command: tuple[str, ...]) -> None:
        code, output = run_command(command, environment(lane), self._map.timeout_s)
        for line in output.splitlines()[-OUTPUT_LINES:]:
            log.info("%s: %s", lane, line)
        last = output.splitlines()[-1] if output.strip() else ""
        said = f"{command[0]} ended with {code}" + (f": {last}" if last else "")
        self._last[str(lane)] = {"code": code, "said": said[:300]}
        if code == 0:
            log.info("%s: %s ended with 0", lane, command[0])
        else:
            self.failed += 1
            log.error("%s: %s; again in %g s if it stays dead", lane, said, self._map.cooldown_s)

    def _wait(self) -> None:
        for thread in self._running.values():
            thread.join(self._map.timeout_s + 10.0)


def take_turn(
    store: Store, db: Db, lane: DeadLane, command: tuple[str, ...], cooldown_s: float, requested_by: str
) -> bool:
    """Whether to restart this lane now: nobody did within the cooldown, and the flag still stands. Leaves the row that says
    so; a lock makes two supervisors agree."""
    turn = Exclusive(store, f"restart:{lane.box}:{lane.queue}:{lane.project}")
    if not turn.try_acquire(db):
        return False
    try:
        recent = db.value(
            "select 1 as one from (select * from control_events order by id desc limit 2000) e where action = {action} "
            "and box = {box} and queue = {queue} and project = {project} and at > {before[cooldown_s]} limit 1",
            action=ACTION,
            box=lane.box,
            queue=lane.queue,
            project=lane.project,
            cooldown_s=cooldown_s,
        )
        if recent is not None:
            return False
        db.run(
            "insert into control_events (at, project, box, queue, action, requested_by, detail) "
            "values ({clock}, {project}, {box}, {queue}, {action}, {by}, {detail})",
            project=lane.project,
            box=lane.box,
            queue=lane.queue,
            action=ACTION,
            by=f"{KIND}@{requested_by}",
            detail=Json({"command": command[0], "silent_s": round(lane.age_s, 1)}),
        )
        return True
    finally:
        turn.release()


def environment(lane: DeadLane) -> dict[str, str]:
    """What a command is told, beside this process's own environment."""
    return {
        "FLIGHTDECK_DEAD_BOX": lane.box,
        "FLIGHTDECK_DEAD_QUEUE": lane.queue,
        "FLIGHTDECK_DEAD_PROJECT": lane.project,
        "FLIGHTDECK_DEAD_AGE": f"{lane.age_s:.0f}",
    }


def run_command(command: tuple[str, ...], more: Mapping[str, str], timeout_s: float) -> tuple[int, str]:
    """Run a command without a shell: its exit code and what it printed (its end). -9 and a word when it took too long;
    then everything that it started in its process group is killed."""
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                env={**os.environ, **more},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return 127, f"cannot start: {error.strerror or error}"
        note = ""
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            note = f"\nkilled: it took longer than {timeout_s:g} s"
        size = output.seek(0, os.SEEK_END)
        output.seek(max(0, size - 16384))
        return code, output.read().decode("utf-8", "replace").rstrip() + note
