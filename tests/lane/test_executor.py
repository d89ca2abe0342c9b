"""One real executor, spoken to as its lane does; no database."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.lane import logs
from engine.lane.book import Held
from engine.lane.protocol import Frame
from engine.lane.slot import Slot, Spec
from engine.lane.tree import Target, kill_trees
from engine.queue.claim import ClaimedJob
from engine.queue.family import INGEST
from engine.store.locks import new_incarnation
from tests.lane.fleet import APP, gone, pid_in, runs
from tests.support import ROOT, eventually


class Bench:
    """A slot with its executor, and the frames that came from it."""

    def __init__(self, tmp_path: Path, app: str = APP) -> None:
        self.selector = selectors.DefaultSelector()
        environment = {"FLIGHTDECK_APP": app, "PYTHONPATH": str(ROOT)}
        life = new_incarnation()  # killing a tree sweeps by it, wherever on the machine
        spec = Spec("b1", f"b1/default/{life}", life, tmp_path / "logs", tmp_path / "out", environment)
        self.slot = Slot(0, spec)
        self.slot.start(self.selector)
        self.frames: list[Frame] = []
        self._ids = 0

    def look(self) -> list[Frame]:
        for end in ("jobs", "control"):
            self.frames += self.slot.read(end, self.selector)
        self.slot.pump(self.selector)
        return self.frames

    def wait(self, kind: str, fits: Callable[[Frame], bool] = lambda frame: True) -> Frame:
        return eventually(
            lambda: next((frame for frame in self.look() if frame.kind == kind and fits(frame)), None), what=kind
        )

    def done(self, held: Held) -> Frame:
        return self.wait("done", lambda frame: frame.header["no"] == held.number)

    def hand(self, name: str, args: str = "{}", ahead: bool = False, good_for: float = 30.0, attempt: int = 1) -> Held:
        self._ids += 1
        job = ClaimedJob(
            family=INGEST, id=self._ids, fencing_token=7, attempt=attempt, name=name, run_id=None, node_id=None,
            payload=args, required_model=None, priority=100, is_priority=False, project="", queue="default",
            budget_s=None, failures=0, max_attempts=1, watchdog_retries=0, losses=0, ahead=ahead,
            claimed_mono=time.monotonic(),
        )  # fmt: skip
        held = Held(job, good_until=time.monotonic() + good_for)
        self.slot.hand(held, time.monotonic())
        self.slot.pump(self.selector)
        return held

    def close(self) -> None:
        if self.slot.target is not None:
            kill_trees([self.slot.target])
            self.slot.bury(self.selector)
        self.selector.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    made.wait("ready")
    yield made
    made.close()


def test_ready_tells_models_and_budgets(bench: Bench) -> None:
    ready = bench.wait("ready")
    assert ready.header["models"] == [["alpha", 1.0], ["beta", 1.0]]
    assert ready.header["budgets"] == {"nap_briefly": 0.5}


def test_jobs_run_in_order_and_results_pass_as_bytes(bench: Bench) -> None:
    big = "x" * 500_000
    first = bench.hand("echo", '{"text": "' + big + '"}')
    second = bench.hand("noop", ahead=True)
    third = bench.hand("fail", '{"text": "no"}', ahead=True)
    assert bench.done(third).header["s"] == "failed"
    assert bench.done(third).payload.startswith(b"ValueError: no\n\nTraceback")
    assert b"executor.py" not in bench.done(third).payload
    assert bench.done(first).payload == b'{"text":"' + big.encode() + b'"}'
    assert bench.done(second).payload == b""
    order = [frame.header["no"] for frame in bench.frames if frame.kind == "done"]
    assert order == [first.number, second.number, third.number]
    assert [f.header["no"] for f in bench.frames if f.kind == "began"] == [second.number, third.number]


def test_a_job_past_its_good_until_does_not_start(bench: Bench, tmp_path: Path) -> None:
    late = bench.hand("touch_and_wait", '{"path": "%s", "seconds": 0}' % (tmp_path / "pid"), good_for=-1.0)
    bench.wait("expired", lambda frame: frame.header["no"] == late.number)
    assert not (tmp_path / "pid").exists()


def test_revoked_are_only_those_that_did_not_begin(bench: Bench, tmp_path: Path) -> None:
    running = bench.hand("touch_and_wait", '{"path": "%s"}' % (tmp_path / "pid"), ahead=True)
    behind = [bench.hand("noop", ahead=True) for _ in range(3)]
    pid_in(tmp_path / "pid")
    bench.slot.control("revoke", nos=[running.number, *(held.number for held in behind)])
    assert bench.wait("revoked").header["nos"] == [held.number for held in behind]
    after = bench.hand("noop")
    (tmp_path / "pid.go").touch()
    bench.done(after)
    assert {f.header["no"] for f in bench.frames if f.kind in ("done", "began")} == {running.number, after.number}


def test_revoke_is_answered_while_a_job_holds_the_gil_too_late_but_nothing_starts(bench: Bench) -> None:
    """The lane does not need the answer: past ``good`` a job that did not say ``began`` will not start."""
    bench.hand("hold_gil", '{"seconds": 1.0}', ahead=True)
    bench.wait("began")
    late = bench.hand("noop", ahead=True, good_for=0.2)
    bench.wait("expired", lambda frame: frame.header["no"] == late.number)


def test_cancel_reaches_the_job(bench: Bench, tmp_path: Path) -> None:
    held = bench.hand("heed_cancel", '{"path": "%s"}' % (tmp_path / "pid"))
    pid_in(tmp_path / "pid")
    bench.slot.control("cancel", no=held.number)
    assert bench.done(held).header["s"] == "cancelled"
    assert bench.done(bench.hand("noop")).header["s"] == "completed"


@pytest.mark.parametrize("state", ["working", "holding the GIL", "stopped"])
def test_the_life_pipe_kills_the_group_in_any_state(bench: Bench, tmp_path: Path, state: str) -> None:
    """What the kernel does when the lane is gone; here the lane's end of the pipe is closed by hand."""
    pid = bench.slot.pid
    assert pid is not None
    if state == "holding the GIL":
        bench.hand("hold_gil", '{"seconds": 60}', ahead=True)
        bench.wait("began")
    elif state == "stopped":
        os.kill(pid, signal.SIGSTOP)
    life = bench.slot._life
    assert life is not None
    os.close(life)
    bench.slot._life = None
    gone(pid)


def test_closed_sockets_end_it(bench: Bench) -> None:
    pid = bench.slot.pid
    assert pid is not None
    bench.slot.say_goodbye()
    gone(pid)


def test_output_goes_to_the_jobs_log_and_silent_jobs_leave_none(bench: Bench, tmp_path: Path) -> None:
    silent = bench.hand("noop")
    talker = bench.hand("talk", '{"text": "one"}')
    again = bench.hand("talk", '{"text": "two"}')
    bench.done(again)
    log_dir = tmp_path / "logs"
    assert not logs.job_log(log_dir, silent.job.id, 1).exists()
    assert logs.job_log(log_dir, talker.job.id, 1).read_text() == "one\nand on stderr\n"
    assert logs.job_log(log_dir, again.job.id, 1).read_text() == "two\nand on stderr\n"


def test_an_app_that_cannot_be_imported_is_told(tmp_path: Path) -> None:
    made = Bench(tmp_path, app="no_such_module_anywhere")
    fatal = made.wait("fatal")
    assert fatal.header["config"] and b"no_such_module_anywhere" in fatal.payload
    made.close()


def test_a_tree_dies_with_its_executor(bench: Bench, tmp_path: Path) -> None:
    bench.hand("family_tree", '{"path": "%s"}' % (tmp_path / "pids"))
    pids = [
        int(pid) for pid in eventually(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().split())
    ]
    assert all(runs(pid) for pid in pids)
    target = bench.slot.target
    assert target is not None
    kill_trees([target])
    gone(*pids)


def test_killing_spares_everybody_else(bench: Bench, tmp_path: Path) -> None:
    other = Bench(tmp_path / "other")
    other.wait("ready")
    assert bench.slot.pid is not None and other.slot.pid is not None
    kill_trees([Target(bench.slot.pid, "feedfeedfeedfeed.0.1.")])
    gone(bench.slot.pid)
    assert runs(other.slot.pid)
    other.close()


def frames_of(bench: Bench, kind: str) -> list[dict[str, Any]]:
    return [frame.header for frame in bench.look() if frame.kind == kind]


def test_model_is_loaded_once_and_told(tmp_path: Path) -> None:
    made = Bench(tmp_path)
    made.wait("ready")
    for _ in range(2):
        held = made.hand("with_model")
        made.done(held)
    assert frames_of(made, "model") == []
    made.close()
