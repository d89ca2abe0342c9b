"""One executor as its lane sees it: started, handed jobs, listened to, killed, replaced."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.lane import logs, protocol, tree
from engine.lane.book import Held
from engine.lane.devices import UNKNOWN, Device
from engine.lane.guard import Child, Guard

FLOW_S = 0.05  # a job that runs longer is no short one: nothing is claimed ahead behind it
START_BACKOFF_S = (0.0, 0.2, 1.0, 3.0, 10.0, 30.0)  # between attempts when executors die before they are ready


@dataclass(frozen=True)
class Spec:
    """What all executors of a lane are started with."""

    box: str
    worker: str
    incarnation: str
    log_dir: Path
    out_dir: Path
    environment: Mapping[str, str]
    guard: Guard | None = None  # it starts them, so that it is above all that they start; without one they are ours


@dataclass(frozen=True)
class Why:
    """Why the lane killed an executor: exit code (exits.py), the cause of the requeue, the evidence for the event."""

    code: int | None
    cause: str
    detail: Mapping[str, Any] = field(default_factory=dict)


class Slot:
    """At most one running job; jobs claimed ahead may wait behind it in the pipe."""

    def __init__(self, index: int, spec: Spec, *, kind: str = "any", device: Device = UNKNOWN) -> None:
        self.index = index
        self.spec = spec
        self.kind = kind  # "any" | "model" | "free": which rows it may claim
        self.device = device
        self.state = "down"  # down | starting | ready | dying
        self.jobs: dict[int, Held] = {}  # by hand-over number, oldest first; the first one runs
        self.model: str | None = None  # loaded
        self.loading: str | None = None  # being loaded
        self.errand: int | None = None  # an operator's order about a model that it carries out
        self.why: Why | None = None
        self.was_ready = False  # this executor, not the slot
        self.failed_starts = 0
        self.start_at = 0.0  # not before (monotonic)
        self.started_at = 0.0
        self.last_beat: float | None = None
        self._number = 0
        self._count = 0
        self._process: subprocess.Popen[bytes] | Child | None = None
        self._out = bytearray()
        self._armed = False  # the selector says when the pipe takes more
        self._reader = protocol.Reader()
        self._control_reader = protocol.Reader()
        self.jobs_socket: socket.socket | None = None
        self.control_socket: socket.socket | None = None
        self.pidfd: int | None = None
        self._life: int | None = None
        self.silent_since: float | None = None  # it closed its end of a pipe, though it lives

    # --- start and end ---

    def start(self, selector: selectors.BaseSelector) -> None:
        """Start an executor. Must run on the lane's main thread: the parent-death signal follows the thread."""
        self._count += 1
        ours, theirs = socket.socketpair()
        our_control, their_control = socket.socketpair()
        life_read, self._life = os.pipe()
        spool = logs.open_spool(logs.spool_of(self.spec.log_dir, self.index))
        options = {
            "job_fd": theirs.fileno(),
            "control_fd": their_control.fileno(),
            "life_fd": life_read,
            "parent_pid": os.getpid() if self.spec.guard is None else None,
            "slot": self.index,
            "box": self.spec.box,
            "worker": self.spec.worker,
            "log_dir": str(self.spec.log_dir),
            "out_dir": str(self.spec.out_dir),
        }
        args = [sys.executable, "-m", "engine.lane.executor", json.dumps(options)]
        env = {**os.environ, **self.spec.environment, **self.device.environment(), tree.COOKIE: self.cookie}
        pipes = (theirs.fileno(), their_control.fileno(), life_read)
        try:
            if self.spec.guard is not None:
                fds = {1: spool, 2: spool, **{fd: fd for fd in pipes}}
                self._process = self.spec.guard.spawn(args, env, fds, f"{self.index}-{self._count}")
            else:
                self._process = subprocess.Popen(
                    args,
                    stdin=subprocess.DEVNULL,
                    stdout=spool,
                    stderr=spool,
                    pass_fds=pipes,
                    start_new_session=True,
                    env=env,
                )
        except OSError:
            ours.close()
            our_control.close()
            os.close(self._life)
            self._life = None
            raise
        finally:
            theirs.close()
            their_control.close()
            os.close(life_read)
            os.close(spool)
        self.pidfd = os.pidfd_open(self._process.pid)
        ours.setblocking(False)
        our_control.setblocking(False)
        with contextlib.suppress(OSError):
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.jobs_socket, self.control_socket = ours, our_control
        self._reader, self._control_reader = protocol.Reader(), protocol.Reader()
        self._out.clear()
        self._armed = False
        self.why = self.model = self.loading = self.errand = self.last_beat = self.silent_since = None
        self.state, self.was_ready = "starting", False
        self.started_at = time.monotonic()
        selector.register(ours, selectors.EVENT_READ, (self, "jobs"))
        selector.register(our_control, selectors.EVENT_READ, (self, "control"))
        selector.register(self.pidfd, selectors.EVENT_READ, (self, "death"))

    @property
    def cookie(self) -> str:
        """What the environment of everything started in this executor carries."""
        return f"{self.spec.incarnation}.{self.index}.{self._count}."

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def target(self) -> tree.Target | None:
        if self._process is None:
            return None
        return tree.Target(self._process.pid, self.cookie, getattr(self._process, "group", None))

    def condemn(self, why: Why) -> None:
        """Note why this executor is about to be killed; the first reason stands."""
        if self.why is None:
            self.why = why

    def say_goodbye(self) -> None:
        """Close the writing side: the executor drops its model and leaves by itself."""
        if self.jobs_socket is not None:
            with contextlib.suppress(OSError):
                self.jobs_socket.shutdown(socket.SHUT_WR)

    def bury(self, selector: selectors.BaseSelector) -> int:
        """Reap the executor, whose tree has been killed, and close everything of it. The return code (-N: signal)."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout=0.0 if self.state == "dying" else 5.0)
        except subprocess.TimeoutExpired:
            code = -int(signal.SIGKILL)  # its memory is still being freed; the kernel will not let it run again
            _unburied.append(self._process)
        for end in (self.jobs_socket, self.control_socket):
            if end is not None:
                self._forget(end, selector)
                end.close()
        if self.pidfd is not None:
            selector.unregister(self.pidfd)
            os.close(self.pidfd)
        if self._life is not None:
            os.close(self._life)
        self.jobs_socket = self.control_socket = self.pidfd = self._life = self._process = None
        self.state = "down"
        self.model = self.loading = self.errand = None
        return code

    # --- talking ---

    @property
    def idle(self) -> bool:
        return self.state == "ready" and self.why is None and not self.jobs and self.errand is None

    @property
    def holds(self) -> str | None:
        """The model that is in its memory, or will be once what it was given has begun."""
        wanted = (held.job.required_model for held in self.jobs.values())
        return next((model for model in wanted if model), self.loading or self.model)

    @property
    def says(self) -> str | None:
        """Its model, for people."""
        return f"{self.loading} (loading)" if self.loading else self.model

    @property
    def occupies(self) -> bool:
        """Its device is in use: something runs there, is loaded, or dies."""
        dying = self.pid is not None and self.why is not None
        return bool(self.jobs) or self.holds is not None or self.errand is not None or dying

    @property
    def running(self) -> Held | None:
        """The job whose user code runs now, as far as the lane knows."""
        first = next(iter(self.jobs.values()), None)
        return first if first is not None and first.began is not None else None

    def flows(self, now: float) -> bool:
        """Jobs handed over now will run soon: nothing runs here, or only since a moment ago."""
        held = self.running
        return held is None or held.began is None or now - held.began < FLOW_S

    def hand(self, held: Held, now: float) -> None:
        """Put one job into the pipe (written by :meth:`pump`). Raises, and keeps nothing of it, when it does not pack."""
        self._number += 1
        job = held.job
        header: dict[str, Any] = {
            "no": self._number,
            "id": job.id,
            "token": job.fencing_token,
            "attempt": job.attempt,
            "family": job.family.name,
            "name": job.name,
            "queue": job.queue,
            "project": job.project,
            "priority": job.priority,
            "good": held.good_until,
        }
        if job.family.has_run:  # what most jobs do not have is left out
            header |= {"run": job.run_id, "node": job.node_id, "model": job.required_model}
        if job.is_priority:
            header["next"] = True
        if job.ahead:
            header["ahead"] = True
        frame = protocol.pack("job", job.payload.encode(), **header)
        held.slot, held.number = self, self._number
        if not job.ahead:
            held.began = now
        self.jobs[self._number] = held
        self._out += frame

    def order(self, kind: str, **header: Any) -> None:
        """Put one frame that is no job into the pipe (written by :meth:`pump`)."""
        self._out += protocol.pack(kind, **header)

    def pump(self, selector: selectors.BaseSelector) -> None:
        """Write what waits, as far as the pipe takes it; the selector says when it takes more."""
        if (not self._out and not self._armed) or self.jobs_socket is None or self.silent_since is not None:
            return
        if self._out:
            try:
                sent = self.jobs_socket.send(self._out)
                del self._out[:sent]
            except BlockingIOError:
                pass
            except OSError:
                self._out.clear()  # it is dying; its pidfd tells
        if self._armed != bool(self._out):
            self._armed = bool(self._out)
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._armed else 0)
            selector.modify(self.jobs_socket, wanted, (self, "jobs"))

    def read(self, which: str, selector: selectors.BaseSelector) -> list[protocol.Frame]:
        """The frames that have come in. Raises ProtocolError."""
        end, reader = (
            (self.jobs_socket, self._reader) if which == "jobs" else (self.control_socket, self._control_reader)
        )
        frames: list[protocol.Frame] = []
        while end is not None:
            try:
                data = end.recv(1 << 18)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                data = b""
            if not data:
                self._forget(end, selector)
                self.silent_since = self.silent_since or time.monotonic()
                break
            frames += reader.feed(data)
            if len(data) < 1 << 16:
                break
        return frames

    @staticmethod
    def _forget(end: socket.socket, selector: selectors.BaseSelector) -> None:
        with contextlib.suppress(KeyError, ValueError):
            selector.unregister(end)

    def control(self, kind: str, **header: Any) -> bool:
        """Write one small frame to the control socket; False when it does not take it now."""
        if self.control_socket is None:
            return False
        try:
            return self.control_socket.send(protocol.pack(kind, **header)) > 0
        except OSError:
            return False


_unburied: list[subprocess.Popen[bytes] | Child] = []


def stuck() -> list[int]:
    """Pids of executors that were killed and do not end: uninterruptible, in a driver or a dead file system."""
    return [process.pid for process in _unburied if process.poll() is None] if _unburied else []


def collect_unburied() -> None:
    """Reap executors that took their time to end."""
    _unburied[:] = [process for process in _unburied if process.poll() is None]
