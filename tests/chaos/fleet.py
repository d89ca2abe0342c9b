"""The processes of a run: lanes and orchestrators that are killed and come back, each with a clock of its own."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.journal import Journal
from tests.chaos.options import SLOTS, Options
from tests.lane.fleet import runs
from tests.support import ROOT, Processes, command

SITE = Path(__file__).parent / "site"
SKEWS = ("-600", "0", "600")  # seconds by which the clock on the wall is wrong


@dataclass
class Member:
    """One place of the fleet and the process that stands there now."""

    name: str  # box/queue, or orchestrator-N
    args: list[str]
    skew: str
    process: subprocess.Popen[bytes] | None = None
    frozen: list[int] = field(default_factory=list)  # pids that are stopped now
    frozen_at: float = 0.0
    reserved: bool = False  # something else is being done with it
    back_at: float | None = None  # monotonic: when it is started again

    @property
    def is_lane(self) -> bool:
        return "/" in self.name

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid


class Fleet:
    """Starts, stops, kills and restarts. Only processes that it started, by pid."""

    def __init__(self, options: Options, url: str, folder: Path, journal: Journal) -> None:
        logs = folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self._processes = Processes(logs)
        self._journal = journal
        self._environment = {
            **options.environment,
            "PYTHONPATH": os.pathsep.join((str(SITE), str(ROOT))),
            "FLIGHTDECK_WEB_RATE": "0",
            "CHAOS_DB": url,
            "CHAOS_DIR": str(folder),
            "XDG_DATA_HOME": str(folder / "data"),
        }
        self.lanes = [
            Member(
                f"{box}/{queue}",
                command(
                    "queue-claim-worker",
                    *("--queue", queue, "--slots", str(SLOTS), "--db", url, "--box", box, "--app", "tests.chaos.app"),
                ),
                SKEWS[n % len(SKEWS)],
            )
            for n, (box, queue) in enumerate(options.places)
        ]
        self.heads = [
            Member(
                f"orchestrator-{n}",
                command("queue-orchestrator", "--db", url, "--box", f"head{n}"),
                SKEWS[(n + 1) % len(SKEWS)],
            )
            for n in range(1 if options.quick else 2)
        ]
        self.port = free_port() if options.http else 0
        self.doors = [
            Member(
                "web",
                command(
                    "queue-broker-web",
                    *("--db", url, "--box", "web0", "--port", str(self.port), "--app", "tests.chaos.app"),
                ),
                SKEWS[0],
            )
            for _ in range(options.http)
        ]
        self._orphans: list[tuple[float, str, int]] = []  # when to look, whose, pid

    @property
    def members(self) -> list[Member]:
        return [*self.doors, *self.heads, *self.lanes]

    def start(self, member: Member) -> None:
        member.back_at = None
        member.process = self._processes.spawn(member.args, env={**self._environment, "CHAOS_SKEW_S": member.skew})
        log = len(self._processes.started) - 1
        self._journal.did("start", member=member.name, pid=member.pid, skew_s=member.skew, log=f"process-{log}.log")

    def kill(self, member: Member, back_in_s: float) -> None:
        """kill -9; what it started must be gone soon, too."""
        pids = descendants(member.pid)
        os.kill(member.pid, signal.SIGKILL)
        member.process.wait(20)  # type: ignore[union-attr]
        self._thawed(member)
        member.frozen = []
        self._orphans += [(time.monotonic() + 5.0, member.name, pid) for pid in pids if member.is_lane]
        member.back_at = time.monotonic() + back_in_s
        self._journal.did("kill", member=member.name, pid=member.pid, children=len(pids), back_in_s=round(back_in_s, 2))

    def executors(self, member: Member) -> list[int]:
        return [pid for pid in descendants(member.pid) if "engine.lane.executor" in _cmdline(pid)]

    def kill_child(self, member: Member, pick: random.Random) -> None:
        """kill -9 of something below a lane: an executor, or now and then the guard that started them."""
        pids = descendants(member.pid)
        if pids:
            pid = pick.choice(sorted(pids))
            what = "kill_executor" if "engine.lane.executor" in _cmdline(pid) else "kill_helper"
            _signal(pid, signal.SIGKILL)
            self._journal.did(what, member=member.name, pid=pid)

    def freeze(self, member: Member, *, whole: bool = False, only_child: random.Random | None = None) -> None:
        """SIGSTOP of a lane, of a lane with everything that it runs, or of one executor."""
        pids = [member.pid, *(self.executors(member) if whole else ())]
        if only_child is not None:
            executors = sorted(self.executors(member))
            pids = [only_child.choice(executors)] if executors else []
        member.frozen = pids
        member.frozen_at = time.time() if member.pid in pids else 0.0
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        kind = "executor" if only_child is not None else "whole" if whole else "lane"
        self._journal.did("freeze", member=member.name, kind=kind, pids=pids)

    def thaw(self, member: Member) -> None:
        if not member.frozen:
            return
        self._thawed(member)
        for pid in reversed(member.frozen):
            _signal(pid, signal.SIGCONT)
        self._journal.did("thaw", member=member.name, pids=member.frozen)
        member.frozen = []

    def _thawed(self, member: Member) -> None:
        if member.frozen_at:
            self._journal.froze(member.name, member.frozen_at, time.time())
            member.frozen_at = 0.0

    def answers(self) -> bool:
        """Whether the server of the job API takes connections."""
        try:
            socket.create_connection(("127.0.0.1", self.port), 1.0).close()
        except OSError:
            return False
        return True

    def look_after(self) -> None:
        """Start again what is due; tell what ended by itself, and what outlived its lane."""
        now = time.monotonic()
        for member in self.members:
            if member.back_at is not None and now >= member.back_at:
                self.start(member)
            elif member.back_at is None and member.process is not None and member.process.poll() is not None:
                code = member.process.returncode
                said = self._processes.log(member.process)[-400:]
                self._journal.breach("ended_by_itself", f"{member.name} ended with {code}: {said}")
                member.back_at = now + 1.0
        due = [each for each in self._orphans if each[0] <= now]
        self._orphans = [each for each in self._orphans if each[0] > now]
        for _, name, pid in due:
            if runs(pid) and "lane" in _cmdline(pid):
                self._journal.breach("orphan", f"process {pid} outlived its lane {name} by 5 s")

    def calm(self) -> None:
        """No more trouble: everything runs again."""
        for member in self.members:
            self.thaw(member)
            if member.back_at is not None:
                self.start(member)

    def drain(self) -> None:
        """SIGTERM to everybody, the door and the lanes first; each must leave with 0."""
        for group in (self.doors, self.lanes, self.heads):
            for member in group:
                if member.up:
                    member.process.send_signal(signal.SIGTERM)  # type: ignore[union-attr]
            for member in group:
                if member.process is None:
                    continue
                try:
                    code = member.process.wait(60)
                except subprocess.TimeoutExpired:
                    self._journal.breach("drain", f"{member.name} did not end within 60 s of SIGTERM")
                    continue
                if code:
                    self._journal.breach("drain", f"{member.name} ended with {code} after SIGTERM")

    def end(self) -> None:
        for member in self.members:
            for pid in member.frozen:
                _signal(pid, signal.SIGCONT)
        self._processes.end_all()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def descendants(pid: int) -> list[int]:
    """Pids of what ``pid`` started, directly or not, and that still runs."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] not in "ZX":
                parents[int(name)] = int(fields[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {pid})


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
