"""What an executor started dies with it and with its lane, however it hides; on control groups and without.

Where this machine lets us make control groups both ways are tried; where it does not, the lane finds that out by itself
and everything here must hold all the same.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.lane import cgroup, guard, tree
from engine.lane import slot as slots
from engine.lane.book import Held
from engine.lane.crew import Crew
from engine.lane.guard import Child, Guard
from engine.lane.slot import Slot, Why
from engine.store import Store
from engine.store.locks import new_incarnation
from tests.lane.fleet import add, children, ended, gone, heartbeat, history, pid_in, runs, start_lane, stop
from tests.lane.test_executor import Bench
from tests.support import Processes, eventually

WAYS = ["cgroups", "no cgroups"]

LIFE = new_incarnation()  # of this test process: killing a tree sweeps by it, wherever on the machine


def env(way: str) -> dict[str, str]:
    return {"FLIGHTDECK_CGROUPS": "1" if way == "cgroups" else "0"}


def allowed() -> bool:
    """Whether this machine lets us make control groups."""
    made = cgroup.make_lane_group()
    return made is not None and cgroup.end(made)


def pids_in(path: Path) -> list[int]:
    eventually(path.exists, what=str(path))
    return [int(pid) for pid in path.read_text().split()]


@pytest.mark.parametrize(
    ("killed", "way"),
    [
        ("executor", "no cgroups"),
        ("lane", "no cgroups"),
        ("executor and lane", "no cgroups"),
        ("executor", "cgroups"),
        ("executor and lane", "cgroups"),
    ],
)
def test_what_hides_dies_with_the_killed(
    sqlite_store: Store, processes: Processes, tmp_path: Path, way: str, killed: str
) -> None:
    """Orphans without environment, session and descriptors; kills from outside, two in the same millisecond."""
    lane = start_lane(processes, sqlite_store, env=env(way))
    with sqlite_store.connect("test") as db:
        job = add(db, "scatter", {"path": str(tmp_path / "pids")})
        executor, *hidden = pids_in(tmp_path / "pids")
        assert len(hidden) == 2 and all(runs(pid) for pid in hidden)
        mine = children(lane.pid)
        assert {executor, *hidden} <= set(mine)
        for each in killed.split(" and "):
            os.kill(executor if each == "executor" else lane.pid, signal.SIGKILL)
        if killed == "executor":
            gone(executor, *hidden)
            died = eventually(lambda: history(db, job))[0]
            assert (died["cause"], died["exit_code"]) == ("executor_died", 128 + 9)
            lane.kill()
        gone(*mine)


def test_a_neighbours_death_spares_what_a_live_job_started(
    sqlite_store: Store, processes: Processes, tmp_path: Path
) -> None:
    """The guard kills what dead executors left; orphans of a live one are below that, and none of its business."""
    lane = start_lane(processes, sqlite_store, "--slots", "2", env=env("no cgroups"))
    with sqlite_store.connect("test") as db:
        add(db, "scatter", {"path": str(tmp_path / "pids")})
        executor, *hidden = pids_in(tmp_path / "pids")
        assert ended(db, add(db, "die"))["status"] == "failed"
        assert ended(db, add(db, "noop"))["status"] == "completed"
        assert all(runs(pid) for pid in (executor, *hidden))
    lane.kill()
    gone(executor, *hidden)


@pytest.mark.parametrize("way", WAYS)
def test_what_hops_from_fork_to_fork_is_caught(
    sqlite_store: Store, processes: Processes, tmp_path: Path, way: str
) -> None:
    lane = start_lane(processes, sqlite_store, env=env(way))
    with sqlite_store.connect("test") as db:
        add(db, "hop", {"path": str(tmp_path / "pid")})
        executor = pid_in(tmp_path / "pid")
        hops = tmp_path / "pid.hop"
        eventually(hops.exists)
        lane.kill()
        gone(executor)

        def rests() -> bool:
            before = hops.read_text()
            time.sleep(0.1)
            return hops.read_text() == before

        eventually(rests, what="the hopper is dead")


def test_a_killed_guard_costs_no_job_and_is_replaced(sqlite_store: Store, processes: Processes, tmp_path: Path) -> None:
    lane = start_lane(processes, sqlite_store)
    with sqlite_store.connect("test") as db:
        job = add(db, "touch_and_wait", {"path": str(tmp_path / "pid")})
        executor = pid_in(tmp_path / "pid")
        (nurse,) = [pid for pid in children(lane.pid) if "nursery" in cmdline(pid)]
        os.kill(nurse, signal.SIGKILL)
        eventually(lambda: [p for p in children(lane.pid) if "nursery" in cmdline(p) and p != nurse], what="another")
        (tmp_path / "pid.go").touch()
        done = ended(db, job)
        assert (done["status"], done["attempt"], done["result"]["pid"]) == ("completed", 1, executor)
        os.kill(executor, signal.SIGKILL)
        eventually(lambda: heartbeat(db)["last_exit_code"] == 128 + 9, what="the exit code of an executor it adopted")
        assert ended(db, add(db, "nap"))["status"] == "completed"
    stop(lane)


def test_a_lane_that_died_with_its_guard_leaves_nothing_to_the_next(
    sqlite_store: Store, processes: Processes, tmp_path: Path
) -> None:
    """Both killed at once: executors die by their life pipe; what hides is met by the next lane, or, where control
    groups are not allowed, is out of reach."""
    lane = start_lane(processes, sqlite_store)
    with sqlite_store.connect("test") as db:
        add(db, "scatter", {"path": str(tmp_path / "pids")})
        executor, *hidden = pids_in(tmp_path / "pids")
        (nurse,) = [pid for pid in children(lane.pid) if "nursery" in cmdline(pid)]
        for pid in (nurse, lane.pid):
            os.kill(pid, signal.SIGKILL)
        gone(executor)
        next_lane = start_lane(processes, sqlite_store, box="b2")
        if allowed():
            gone(*hidden)
        eventually(lambda: heartbeat(db, box="b2")["state"] == "running")
        stop(next_lane)
        tree.kill_all(hidden)
        gone(*hidden)


def cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


# --- the guard's program ---


@pytest.fixture(params=WAYS)
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guard]:
    for name, value in env(request.param).items():
        monkeypatch.setenv(name, value)
    made = Guard(LIFE)
    made.start()
    yield made
    made.end()
    assert made.pid is not None
    gone(made.pid)


def run(kept: Guard, script: str, out: Path, name: str = "0-1") -> Child:
    with out.open("ab") as file:
        args = [sys.executable, "-I", "-S", "-c", script]
        return kept.spawn(args, {"A": "1", tree.COOKIE: f"{LIFE}.0.1."}, {1: file.fileno(), 7: file.fileno()}, name)


def test_a_program_starts_with_its_descriptors_and_no_others(kept: Guard, tmp_path: Path) -> None:
    child = run(
        kept,
        "import os, json, signal; print(json.dumps([sorted(int(fd) for fd in os.listdir('/proc/self/fd')), "
        "os.getsid(0) == os.getpid(), dict(os.environ), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL]))",
        tmp_path / "out",
    )
    assert child.wait(30) == 0
    fds, leads, environment, plain = json.loads((tmp_path / "out").read_text())
    assert fds == [0, 1, 2, 3, 7], "3 is the listing's own"
    assert leads and environment["A"] == "1" and plain


@pytest.mark.parametrize(
    ("script", "code"), [("import os; os._exit(7)", 7), ("import os; os.kill(os.getpid(), 9)", -9)]
)
def test_exit_codes_come_back_and_zombies_go(kept: Guard, tmp_path: Path, script: str, code: int) -> None:
    child = run(kept, script, tmp_path / "out")
    assert child.wait(30) == code
    eventually(lambda: tree.stat_of(child.pid) is None, what="it is reaped")
    assert child.poll() == code


def test_a_program_that_is_not_there_is_an_error_and_no_guard_is_lost(kept: Guard, tmp_path: Path) -> None:
    before = kept.pid
    with pytest.raises(OSError, match="no-such-program"):
        kept.spawn([str(tmp_path / "no-such-program")], {}, {}, "0-1")
    assert run(kept, "", tmp_path / "out").wait(30) == 0 and kept.pid == before


def test_a_guard_that_stands_still_is_replaced(kept: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "ANSWER_S", 0.3)
    tree.become_subreaper()  # as a lane is
    kept.end()
    kept.start()
    alive = run_until_ready(kept, tmp_path)
    assert kept.pid is not None
    stuck = kept.pid
    os.kill(stuck, signal.SIGSTOP)
    with pytest.raises(OSError, match="does not answer"):
        run(kept, "", tmp_path / "out")
    monkeypatch.undo()
    assert run(kept, "", tmp_path / "out").wait(30) == 0
    assert kept.pid != stuck and kept.replaced and alive.poll() is None
    tree.kill_trees([tree.Target(alive.pid, f"{LIFE}.0.1.", alive.group)])
    assert alive.wait(30) == -9


def run_until_ready(kept: Guard, tmp_path: Path) -> Child:
    """A sleeper, once a fresh guard answers in time."""

    def tried() -> Child | None:
        try:
            return run(kept, "import time; time.sleep(600)", tmp_path / "out", "0-9")
        except OSError:
            return None

    return eventually(tried)


def test_strangers_are_spared(kept: Guard, tmp_path: Path) -> None:
    stranger = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], env={"FLIGHTDECK_SLOT": "other.0.1."}
    )
    child = run(kept, "import time; time.sleep(600)", tmp_path / "out")
    other = run(kept, "import time; time.sleep(600)", tmp_path / "out", "1-1")
    tree.kill_trees([tree.Target(child.pid, f"{LIFE}.0.9.", child.group)])
    assert child.wait(30) == -9
    assert runs(other.pid) and runs(stranger.pid)
    kept.end()
    gone(other.pid)
    assert runs(stranger.pid)
    stranger.kill()
    stranger.wait()


# --- control groups ---


def test_groups_of_dead_lanes_are_ended_and_those_of_live_ones_are_not() -> None:
    if not allowed():
        assert cgroup.make_lane_group() is None, "and the lane does without"
        return
    parent = cgroup.own_group()
    assert parent is not None
    mine = cgroup.make_lane_group()
    assert mine is not None
    namespace = os.path.basename(mine).split("-")[1]
    dead = f"{parent}/{cgroup.PREFIX}{namespace}-{os.getpid()}-1"  # this pid, at another time
    foreign = f"{parent}/{cgroup.PREFIX}1{namespace}-{os.getpid()}-1"  # of another namespace: who knows
    sleepers = []
    for path in (mine, dead, foreign):
        assert cgroup.make(path)
        sleepers.append(subprocess.Popen(["sleep", "600"]))
        Path(path, "cgroup.procs").write_text(str(sleepers[-1].pid))
    cgroup.end_stale(parent)
    assert sleepers[1].wait(30) == -9
    assert not os.path.isdir(dead) and os.path.isdir(mine) and os.path.isdir(foreign)
    assert sleepers[0].poll() is None and sleepers[2].poll() is None
    for path in (mine, foreign):
        eventually(lambda path=path: cgroup.end(path, 0.1))  # type: ignore[misc]
    assert [sleeper.wait(30) for sleeper in sleepers] == [-9] * 3


def test_no_group_outlives_its_lane(sqlite_store: Store, processes: Processes) -> None:
    lane = start_lane(processes, sqlite_store, "--once", "--slots", "2")
    assert lane.wait(60) == 0
    parent = cgroup.own_group()
    left = [name for name in os.listdir(parent or "/") if f"-{lane.pid}-" in name and name.startswith(cgroup.PREFIX)]
    assert left == []


# --- what does not die ---


def test_an_executor_that_does_not_die_is_left_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uninterruptible sleep: nothing fires, nobody waits; the slot gets another executor, the pid is told."""
    bench = Bench(tmp_path)
    bench.wait("ready")
    told: list[tuple[list[Held], int]] = []
    crew = Crew([bench.slot], bench.selector, lambda slot: None, lambda slot, jobs, code: told.append((jobs, code)))
    held = bench.hand("touch_and_wait", json.dumps({"path": str(tmp_path / "pid")}))
    pid = pid_in(tmp_path / "pid")
    assert bench.slot._life is not None
    life = os.dup(bench.slot._life)  # it would be killed for the end of this one
    with monkeypatch.context() as kernel:
        kernel.setattr(tree, "kill_trees", lambda targets: None)  # it says yes, and nothing happens
        crew.kill([bench.slot], Why(79, "operator_stop"))
        now = time.monotonic()
        crew.look_for_the_dying(now)
        assert not told
        crew.look_for_the_dying(now + 5.0)
        assert told == [([held], -9)] and bench.slot.pid is None
        assert slots.stuck() == [pid] and runs(pid)
        crew.start_due(time.monotonic())
        assert bench.slot.pid not in (None, pid)
    os.close(life)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not slots.stuck())
    slots.collect_unburied()
    bench.close()


def test_a_crew_that_does_not_die_is_dismissed_in_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q19"""
    benches = [Bench(tmp_path / str(index)) for index in range(3)]
    pids = []
    for index, bench in enumerate(benches):
        bench.hand("touch_and_wait", json.dumps({"path": str(tmp_path / f"pid{index}")}))
        pids.append(pid_in(tmp_path / f"pid{index}"))
    asked: list[float] = []
    with monkeypatch.context() as kernel:
        kernel.setattr(tree, "kill_trees", lambda targets: None)
        kernel.setattr(Slot, "bury", lambda slot, selector: asked.append(0.0 if slot.state == "dying" else 5.0) or -9)
        Crew([bench.slot for bench in benches], benches[0].selector, lambda slot: None, lambda *_: None).dismiss(0.01)
    assert asked == [0.0] * 3, "nobody is waited for any more"
    for bench in benches:
        bench.close()
    gone(*pids)
