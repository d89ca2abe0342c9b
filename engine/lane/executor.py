"""The child: one process per slot that runs user code, one job at a time, and lives across jobs.

It imports the host's module once, takes jobs from its socket, writes results back. It knows no database: it talks to its
lane only, and dies with it. Started as ``python -m engine.lane.executor JSON``, in a session of its own.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine import config, registry
from engine.errors import EngineError
from engine.lane import logs, protocol, tree
from engine.lane.call import Caller, describe
from engine.lane.life import die_with_lane
from engine.lane.models import WarmModel

log = logging.getLogger("engine.lane.executor")


class Executor:
    """The loop of the child: read jobs, run them, write what became of them."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.jobs_socket = socket.socket(fileno=int(options["job_fd"]))
        self.control_socket = socket.socket(fileno=int(options["control_fd"]))
        for end in (self.jobs_socket, self.control_socket):
            end.set_inheritable(False)
            end.setblocking(True)
        self.log = logs.JobLog(Path(options["log_dir"]), int(options["slot"]))
        self.reader = protocol.Reader()
        self.queue: deque[protocol.Frame] = deque()
        self.out = bytearray()  # frames not yet written
        self.write_lock = threading.Lock()
        self.book = threading.Lock()  # guards the next four against the control thread
        self.revoked: set[int] = set()  # by the number of the hand-over, as are the other two
        self.begun = 0  # jobs run in the order of their numbers: what is above this has not begun
        self.cancelled: set[int] = set()
        self.current: tuple[int, int, float] | None = None  # id, attempt, since
        self.model = WarmModel(lambda loaded, loading: self.send("model", model=loaded, loading=loading))
        self.caller = Caller(
            box=str(options["box"]),
            worker=str(options["worker"]),
            out_root=Path(options["out_dir"]),
            model=self.model,
            report=self.send,
            is_cancelled=self.is_cancelled,
        )
        self.retired = False
        self.pid = os.getpid()
        self.home = "/"
        with contextlib.suppress(OSError):
            self.home = os.getcwd()
        self.streams = (sys.stdout, sys.stderr)

    # --- talking to the lane ---

    def send(self, kind: str, payload: bytes = b"", **header: Any) -> None:
        """Write one frame (and what waits before it). Usable from any thread."""
        with self.write_lock:
            self.out += protocol.pack(kind, payload, **header)
            self._flush_locked()

    def later(self, kind: str, payload: bytes = b"", **header: Any) -> None:
        """Add one frame to what the next write carries: it must come before any user code runs."""
        with self.write_lock:
            self.out += protocol.pack(kind, payload, **header)

    def flush(self) -> None:
        with self.write_lock:
            self._flush_locked()

    def _flush_locked(self) -> None:
        if self.out:
            try:
                self.jobs_socket.sendall(self.out)
            except OSError:
                os._exit(0)  # the lane is gone
            self.out.clear()

    def next_job(self) -> protocol.Frame | None:
        """The next job; None when the lane closed the pipe. Unloads the warm model while waiting, if it is time."""
        while not self.queue:
            self.flush()
            idle = self.model.idle_for()
            if idle is not None:
                poller = select.poll()
                poller.register(self.jobs_socket, select.POLLIN)
                if not poller.poll(int(idle * 1000) + 1):
                    self.drop_idle(None)
                    continue
            try:
                data = self.jobs_socket.recv(1 << 16)  # more would be mapped and unmapped every time
            except OSError:
                return None
            if not data:
                return None
            self.queue.extend(self.reader.feed(data))
        return self.queue.popleft()

    def watch_control(self) -> None:
        """The control thread: cancel, revoke, and naming the log of a job that takes longer."""
        reader = protocol.Reader()
        poller = select.poll()
        poller.register(self.control_socket, select.POLLIN)
        while True:
            if not poller.poll(1000):
                with self.book:
                    current = self.current
                    ctx = self.caller.ctx if current is not None else None
                    if current is not None and time.monotonic() - current[2] > 1.0:
                        self.log.name(current[0], current[1])
                if ctx is not None:
                    ctx.late(time.monotonic())
                continue
            try:
                data = self.control_socket.recv(1 << 16)
            except OSError:
                return
            if not data:
                return
            for frame in reader.feed(data):
                if frame.kind == "cancel":
                    with self.book:
                        self.cancelled.add(int(frame.header["no"]))
                elif frame.kind == "revoke":
                    self._revoke([int(number) for number in frame.header["nos"]])

    def is_cancelled(self, number: int) -> bool:
        with self.book:
            return number in self.cancelled

    def _revoke(self, numbers: list[int]) -> None:
        with self.book:
            given = [number for number in numbers if number > self.begun]
            self.revoked.update(given)
        with contextlib.suppress(OSError):
            self.control_socket.sendall(protocol.pack("revoked", nos=given))

    # --- running jobs ---

    def serve(self) -> None:
        threading.Thread(target=self.watch_control, name="control", daemon=True).start()
        try:
            while (frame := self.next_job()) is not None:
                if frame.kind == "job":
                    self.run(frame)
                elif frame.kind in ("load", "unload"):
                    self.carry_out(frame)
                self.retire_if_broken()
            self.model.unload()
        finally:  # a thread that user code left running may keep this process; the lane is told that it serves no more
            with contextlib.suppress(OSError):
                self.jobs_socket.shutdown(socket.SHUT_RDWR)

    def run(self, frame: protocol.Frame) -> None:
        """One job from its frame to its ``done``; nothing that user code raises leaves here."""
        head = frame.header
        number, id, attempt = int(head["no"]), int(head["id"]), int(head["attempt"])
        with self.book:
            if number in self.revoked:
                self.revoked.discard(number)
                return
            self.begun = number
            self.current = (id, attempt, time.monotonic())
        if head.get("ahead"):
            self.later("began", no=number)
        self.flush()
        began = time.monotonic()
        if began > head["good"]:
            with self.book:
                self.current = None
            self.later("expired", no=number)
            return
        wanted = head.get("model")
        self.drop_idle(wanted)
        if wanted and not self.model.make_room(wanted):
            with self.book:
                self.current = None
            self.later("expired", no=number)  # it has not begun: the executor after this one runs it
            return
        self.log.began()
        status, payload = self.caller.call(frame)
        elapsed = time.monotonic() - began
        for stream in ("stdout", "stderr"):
            with contextlib.suppress(Exception):  # user code may have deleted it, or put anything there
                getattr(sys, stream).flush()
        if os.getpid() != self.pid:  # user code forked, and its child came back here too: only the parent has a job
            os._exit(0 if status == "completed" else 1)
        with self.book:
            self.current = None
            if number in self.cancelled:
                self.cancelled.discard(number)
                status, payload = "cancelled", b""
        printed = {"p": 1} if self.log.ended(id, attempt) else {}
        self.later("done", payload, no=number, s=status, e=round(elapsed, 6), **printed)
        if not self.queue:
            self.flush()  # the lane need not wait for the tidying
        self._tidy()

    # --- the warm model ---

    def drop_idle(self, wanted: str | None) -> None:
        """Unload the model when its time is up, unless it is what is ``wanted`` now."""
        if self.model.idle_for() == 0.0 and self.model.id != wanted:
            self.model.unload()
            self.retire_if_broken()

    def carry_out(self, frame: protocol.Frame) -> None:
        """An operator's order about a model, and what came of it."""
        wanted, order = str(frame.header["model"]), frame.header["order"]
        began = time.monotonic()
        try:
            if frame.kind == "unload":
                there = self.model.id == wanted
                if there:
                    self.model.unload()
                said = self.model.broken or ("unloaded" if there else "it was not loaded")
            elif not self.model.make_room(wanted):
                said = f"failed: {self.model.broken}"
            else:
                self.model.ensure(wanted)
                said = f"loaded in {time.monotonic() - began:.1f} s"
        except BaseException as error:  # whatever a loader raises
            log.error("loading %s failed\n%s", wanted, describe(error))
            said = f"failed: {type(error).__name__}: {error}"[:500]
        self._tidy()
        self.send("answer", order=order, text=said)

    def retire_if_broken(self) -> None:
        """Ask the lane for a successor; nothing more is loaded here."""
        if self.model.broken and not self.retired:
            self.retired = True
            self.send("retire", reason=self.model.broken[:500])

    def _tidy(self) -> None:
        """What a job changed of its process and did not put back must not fail the next one, which is not to blame."""
        signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm that it set
        self._reap()
        with contextlib.suppress(OSError):
            os.chdir(self.home)  # a working directory that may be gone by now
        if (
            getattr(sys, "stdout", None) is not self.streams[0]
            or getattr(sys, "stderr", None) is not self.streams[1]
            or sys.stdout.closed
            or sys.stderr.closed
        ):
            out, err = self.streams
            if out.closed:
                out = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
            if err.closed:
                err = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
            self.streams = sys.stdout, sys.stderr = out, err

    @staticmethod
    def _reap() -> None:
        """Collect the ends of children that jobs left behind, and of orphans of those; unless a thread may wait for one."""
        if threading.active_count() > 2:
            return
        with contextlib.suppress(OSError):
            while (seen := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                os.waitpid(seen.si_pid, os.WNOHANG)


def main() -> None:
    options = json.loads(sys.argv[1])
    tree.become_subreaper()  # what a job leaves behind stays below this process, and is found there
    die_with_lane(int(options["life_fd"]), options["parent_pid"])
    faulthandler.enable(all_threads=True)
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # the lane asks for stacks before it kills on a trip
    logging.basicConfig(
        stream=sys.stderr,
        level=str(config.get("log_level")).upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
    )
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    executor = Executor(options)
    try:
        registry.load_app()
    except BaseException as error:
        text = str(error)
        if not isinstance(error, EngineError):
            text = f"--app {config.get('app')}: {registry.fault(error)}\n\n{describe(error)}"
        executor.send("fatal", text.encode(errors="replace"), config=isinstance(error, EngineError))
        sys.exit(1)
    executor.send(
        "ready",
        models=[[model.id, model.est_vram_gb] for model in registry.models.values()],
        budgets={task.name: task.budget_s for task in registry.tasks.values() if task.budget_s is not None},
        sink=config.hook("event_sink") is not None,
    )
    executor.serve()


if __name__ == "__main__":
    main()
